"""Fourier transforms of blocks on GPUs: `mpirun -n N python -m pytest --with-mpi tests/gpu/...`."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import transform_cases as cases
from exchange_cases import part, same, whole

import meshrun
from meshrun.runner.world.world import World

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


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_one_axis_of_whole_arrays_and_of_parts_of_them(axis: int, dtype: str) -> None:
    import cupy

    generator = np.random.default_rng(axis)
    array = (generator.standard_normal((64, 45, 32)) + 1j * generator.standard_normal((64, 45, 32))).astype(
        dtype
    )
    limit = 1e-4 if dtype == "complex64" else 1e-12
    for given in (array, array[3:60], array[:, 2:40]):
        placed = cupy.asarray(array)
        placed = placed[3:60] if given.shape[0] == 57 else placed[:, 2:40] if given.shape[1] == 38 else placed
        for norm in ("backward", "ortho", "forward"):
            found = meshrun.fft(placed, axes=axis, norm=norm)
            np.testing.assert_allclose(
                found.get(), np.fft.fft(given, axis=axis, norm=norm), rtol=0, atol=limit
            )
            back = meshrun.ifft(found, axes=axis, norm=norm)
            np.testing.assert_allclose(back.get(), given, rtol=0, atol=limit)
