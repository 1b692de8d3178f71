"""Exchanges of arrays among ranks as threads: every dtype, uneven and empty parts, grids, misuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import exchange_cases as cases
import numpy as np
import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.grid import bounds
from meshrun.runner.world.process_grid import process_grid
from meshrun.runner.world.world import World, open_world

RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
SHAPES = [(6, 4), (7, 5, 3), (1, 9), (2, 1, 1), (0, 3), (3, 0, 2)]


def on_ranks(ranks: int, case: Callable[[World], Any]) -> list[Any]:
    return run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)))


@RANKS
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_move_between_any_two_axes(ranks: int, shape: tuple[int, ...]) -> None:
    on_ranks(ranks, lambda world: cases.redistributes(world, shape))
    on_ranks(ranks, lambda world: cases.gathers(world, shape))


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_every_dtype(dtype: str) -> None:
    on_ranks(3, lambda world: cases.redistributes(world, (4, 5), dtype))
    on_ranks(3, lambda world: cases.gathers(world, (4, 5), dtype))
    on_ranks(3, lambda world: cases.sends_everyone_something(world, dtype))
    on_ranks(3, lambda world: cases.reduces(world, dtype))
    on_ranks(4, lambda world: cases.all_reduces(world, dtype))


@RANKS
@pytest.mark.parametrize(
    "case",
    [
        cases.gathers_parts_of_any_length,
        cases.sends_everyone_something,
        cases.passes_on_in_a_ring,
        cases.reduces_arrays_of_any_strides_and_byte_order,
        cases.refuses_what_cannot_be_reduced,
        cases.refuses_what_does_not_fit,
        cases.has_grids,
    ],
    ids=lambda case: case.__name__,
)
def test_case(ranks: int, case: Callable[[World], None]) -> None:
    on_ranks(ranks, case)


def test_a_sum_of_half_precision_is_rounded_once() -> None:
    def case(world: World) -> list[float]:
        return world.reduce_scatter(np.full(3, 2048 if world.rank == 0 else 1, np.float16)).tolist()

    assert on_ranks(3, case) == [[2050.0]] * 3  # half precision has no 2049


def test_the_bits_of_a_sum_depend_on_the_order_of_ranks_only() -> None:
    inputs = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    expected = inputs[0].copy()
    for one in inputs[1:]:
        expected += one
    got = on_ranks(5, lambda world: world.reduce_scatter(inputs[world.rank]))
    np.testing.assert_array_equal(np.concatenate(got), expected)


@pytest.mark.parametrize("mutant", ["swapped", "twice", "shifted"])
def test_the_cases_notice_a_wrong_exchange(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks swapped, one sent twice, and a cut that is off by one."""
    exchange = World.exchange

    def wrong(self: World, sends: Any, receives: Any) -> None:
        sends = list(sends)
        if mutant == "swapped" and len(sends) > 2:
            sends[1], sends[2] = (sends[1][0], sends[2][1]), (sends[2][0], sends[1][1])
        if mutant == "twice" and len(sends) > 2:
            sends[2] = (sends[2][0], sends[1][1])
        exchange(self, sends, receives)

    monkeypatch.setattr(World, "exchange", wrong)
    if mutant == "shifted":
        monkeypatch.setattr(
            "meshrun.runner.plan.grid.bounds",
            lambda n, p, r, unit=1: (n - bounds(n, p, r)[1], n - bounds(n, p, r)[0]),
        )
    noticed = (AssertionError, UserError, RunError)
    with pytest.raises(noticed):
        on_ranks(3, lambda world: cases.redistributes(world, (6, 6)))
    if mutant != "shifted":
        with pytest.raises(noticed):
            on_ranks(3, cases.sends_everyone_something)


@pytest.mark.parametrize(
    ("shape", "ranks", "grid"),
    [
        ((0, 0), 12, (4, 3)),
        ((0, 0), 7, (7, 1)),
        ((2, 0), 8, (2, 4)),
        ((0, 0, 0), 8, (2, 2, 2)),
        ((6,), 6, (6,)),
    ],
)
def test_a_grid_is_as_square_as_possible(shape: tuple[int, ...], ranks: int, grid: tuple[int, ...]) -> None:
    assert process_grid(shape, ranks) == grid


@pytest.mark.parametrize("shape", [(2, 3), (4, 0), (), (-1, -6), (6, 0, 2)])
def test_a_grid_that_does_not_use_every_rank_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="the grid does not use every rank exactly once"):
        process_grid(shape, 6 if shape != (2, 3) else 5)


def test_a_place_outside_the_grid() -> None:
    def case(world: World) -> None:
        grid = world.grid(2, 1)
        for place in ((0,), (2, 0), (0, -1)):
            with pytest.raises(UserError, match="no rank has this place"):
                grid.rank_at(*place)

    on_ranks(2, case)
