"""Every cell moves once, from the rank that has it to the rank that gets it, whatever the partitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.redistribution import RedistributionPlan, change_split, count_parts

GRIDS = [(6, 1, 1), (1, 6, 1), (2, 1, 3), (1, 2, 3), (3, 2, 1), (1, 1, 6)]


def moved(plan: RedistributionPlan, shape: tuple[int, ...]) -> np.ndarray:
    """Carry out a plan for all ranks; return the array that they then have, each cell as often as it came."""
    cells = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    result = np.zeros(shape)
    for number in range(plan.parts):
        for receiver in range(plan.ranks):
            box = plan.received(receiver, number)
            landed = np.zeros(box.shape)
            for sender in range(plan.ranks):
                to, _ = plan.messages(sender, number)
                _, of = plan.messages(receiver, number)
                landed[of[sender]] += cells[plan.sent(sender, number).slices][to[receiver]]
            result[box.slices] += landed
    return result - cells


@given(
    some.tuples(*[some.integers(0, 9)] * 3),
    some.sampled_from(GRIDS),
    some.sampled_from(GRIDS),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_between_two_partitions(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    plan = RedistributionPlan(Partition(shape, before), Partition(shape, after), 6)
    assert not moved(plan, shape).any()


@pytest.mark.parametrize("along", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_in_parts_along_any_axis(along: int, parts: int) -> None:
    assert not moved(change_split((7, 11, 5), 0, 1, along, 3, parts), (7, 11, 5)).any()
    assert not moved(change_split((7, 11, 5), 2, 0, along, 3, parts), (7, 11, 5)).any()


def test_the_cut_axis_alone_is_sliced_in_blocks_that_a_transform_makes_longer() -> None:
    """A part that is cut along the new split is sent from the sender's whole block."""
    plan = change_split((8, 6, 4), 0, 1, 1, 2, 3)
    assert plan.sent_cells(0, 0) == ()
    assert plan.received_cells(1, 2) == (slice(None), slice(2, 3))
    third = change_split((8, 6, 4), 0, 1, 2, 2, 2)
    assert third.sent_cells(1, 1) == third.received_cells(0, 1) == (slice(None), slice(None), slice(2, 4))


def test_messages_are_planned_once() -> None:
    plan = change_split((8, 6), 0, 1, 1, 2, 1)
    assert plan.messages(1) is plan.messages(1)
    assert count_parts((8, 6), 0, 1, 1, 2, 8) == 1
