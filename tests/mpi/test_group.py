"""Exchanges of arrays among MPI's ranks, at any number of them."""

from __future__ import annotations

from collections.abc import Callable

import exchange_cases as cases
import pytest

from runner.world.world import World

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]


@pytest.mark.parametrize("shape", [(6, 4), (7, 5, 3), (1, 9), (3, 0, 2)])
def test_blocks_move_between_any_two_axes(world: World, shape: tuple[int, ...]) -> None:
    cases.redistributes(world, shape)
    cases.gathers(world, shape)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_every_dtype(world: World, dtype: str) -> None:
    cases.redistributes(world, (4, 5), dtype)
    cases.sends_everyone_something(world, dtype)
    cases.reduces(world, dtype)


@pytest.mark.parametrize(
    "case",
    [
        cases.gathers_parts_of_any_length,
        cases.passes_on_in_a_ring,
        cases.refuses_what_does_not_fit,
        cases.has_grids,
    ],
    ids=lambda case: case.__name__,
)
def test_case(world: World, case: Callable[[World], None]) -> None:
    case(world)


def test_blocks_far_beyond_what_is_sent_unasked(world: World) -> None:
    cases.redistributes(world, (1031, 517))
