"""Fourier transforms of blocks on GPUs: `mpirun -n N python -m pytest --with-mpi tests/gpu/...`."""

from __future__ import annotations

from itertools import permutations

import pytest
import transform_cases as cases
from exchange_cases import part, same, whole

import meshrun
from runner.world.world import World

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [(7, 11), (1, 5), (4, 6, 5), (67, 64, 3), (256, 255)])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("single", [True, False])
def test_every_axis_of_any_shape(world: World, name: str, shape: tuple[int, ...], single: bool) -> None:
    dtype = {("rfft", True): "float32", ("rfft", False): "float64"}.get(
        (name, single), "complex64" if single else "complex128"
    )
    cases.transforms(world, name, shape, tuple(range(len(shape))), dtype=dtype)


@pytest.mark.parametrize("shape", [(13, 5, 6), (300, 1, 70), (512, 4, 256)])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
def test_transposes_by_every_permutation(world: World, shape: tuple[int, ...], dtype: str) -> None:
    array = whole(shape, dtype)
    for order in permutations(range(3)):
        block = meshrun.transpose(world.xp.asarray(part(array, world, 0)), world, axes=order)
        same(block, part(array.transpose(order), world, 0))
