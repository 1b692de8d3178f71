"""Exchanges of arrays among GPUs: `mpirun -n N python -m pytest --with-mpi tests/gpu/test_group_gpu.py`."""

from __future__ import annotations

from collections.abc import Callable

import exchange_cases as cases
import pytest

from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [*cases.SHAPES, (1031, 517)])
def test_blocks_move_between_any_two_axes(world: World, shape: tuple[int, ...]) -> None:
    cases.moves_blocks_between_any_two_axes(world, shape)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_every_dtype(world: World, dtype: str) -> None:
    cases.takes_every_dtype(world, dtype)


@pytest.mark.parametrize("case", cases.OTHERS, ids=lambda case: case.__name__)
def test_case(world: World, case: Callable[[World], None]) -> None:
    case(world)
