"""How transforms are split: which axes are whole when, slabs or pencils, and what it costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import UserError
from meshrun.runner.transforms.plan import (
    Real,
    Redistribution,
    Split,
    Transform,
    TransformPlan,
    plan_transform,
)


def walk(plan: TransformPlan, axes: tuple[int, ...], real: Real, length: int) -> None:
    """Every axis is transformed once, while it is whole; the half first or last; shapes and splits follow."""
    done: list[int] = []
    splits, shape = list(plan.splits), plan.shape
    for stage in plan.stages:
        assert len(set(splits)) == len(plan.grid)
        if isinstance(stage, Redistribution):
            assert splits[stage.grid_axis] == stage.old
            assert stage.new not in splits
            splits[stage.grid_axis] = stage.new
            assert stage.shape == shape
            continue
        if plan.grid != (1,):
            assert not set(stage.axes) & set(splits)
        done += stage.axes
        if stage.half:
            assert stage.axes == (axes[-1],)
            assert len(done) == (1 if real == "forward" else len(axes))
            shape = tuple(length if axis == axes[-1] else n for axis, n in enumerate(shape))
        assert stage.shape == shape
    assert sorted(done) == sorted(axes)
    assert bool(real) == any(isinstance(stage, Transform) and stage.half for stage in plan.stages)
    parts = [plan.last[rank] for rank in range(math.prod(plan.grid))]
    assert sum(part.size for part in parts) == math.prod(plan.last_shape)


@given(st.data())
def test_plans_are_complete(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=4)))
    axes = tuple(data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True)))
    real: Real = data.draw(st.sampled_from(["", "forward", "inverse"]))
    ranks = data.draw(st.integers(1, 12))
    length = {"": 0, "forward": shape[axes[-1]] // 2 + 1, "inverse": 2 * shape[axes[-1]]}[real]
    plan = plan_transform(shape, axes, ranks, real=real, length=length)
    assert math.prod(plan.grid) == ranks
    walk(plan, axes, real, length)


@pytest.mark.parametrize(
    ("shape", "axes", "ranks", "name", "exchanges"),
    [
        ((64, 64, 64), (0, 1, 2), 1, "slab", 0),
        ((64, 64, 64), (0, 1, 2), 8, "slab", 1),
        ((64, 64, 64), (0, 1, 2), 256, "pencil", 2),
        ((64, 64), (0, 1), 8, "slab", 1),
        ((1000, 4096), (1,), 8, "slab", 0),  # a batch is split along the axis that stays
        ((4096, 1000), (0,), 8, "slab", 0),
        ((3, 64, 64), (1, 2), 8, "slab", 0),  # few ranks without work cost less than an exchange,
        ((3, 64, 64), (1, 2), 32, "slab", 1),  # many do not
    ],
)
def test_the_choice(
    shape: tuple[int, ...], axes: tuple[int, ...], ranks: int, name: str, exchanges: int
) -> None:
    plan = plan_transform(shape, axes, ranks)
    assert (plan.name, len(plan.exchanges)) == (name, exchanges)
    walk(plan, axes, "", 0)


@pytest.mark.parametrize("real", ["forward", "inverse"])
def test_a_real_transform_of_two_axes_takes_one_exchange(real: Real) -> None:
    assert len(plan_transform((64, 33), (0, 1), 4, real=real, length=64).exchanges) == 1


@pytest.mark.parametrize("real", ["", "forward", "inverse"])
def test_pencils_take_two_exchanges(real: Real) -> None:
    length = {"": 0, "forward": 7, "inverse": 22}[real]
    plan = plan_transform((12, 12, 12), (0, 1, 2), 6, real=real, length=length, decomposition="pencil")
    assert sorted(plan.grid) == [2, 3]
    assert len(plan.exchanges) == 2
    walk(plan, (0, 1, 2), real, length)


def test_what_cannot_be_split() -> None:
    with pytest.raises(
        UserError, match=r"more ranks than planes: got 8 ranks .* expected at most 5\. Try: -n 5"
    ):
        plan_transform((5, 5, 5), (0, 1, 2), 8, decomposition="slab")
    with pytest.raises(UserError, match=r"cannot be split into 7 pencils: .*no prime number"):
        plan_transform((50, 50, 50), (0, 1, 2), 7, decomposition="pencil")
    with pytest.raises(UserError, match=r"cannot be split into 2 parts: .*axis 0"):
        plan_transform((50,), (0,), 2)


def test_parts_of_a_split_in_the_grids_order() -> None:
    split = Split((5, 4, 3), (2, 3), (2, 0))
    assert str(split[0]) == "[0:2, 0:4, 0:2]"
    assert str(split[4]) == "[2:4, 0:4, 2:3]"
    assert sum(split[rank].size for rank in range(6)) == 60
