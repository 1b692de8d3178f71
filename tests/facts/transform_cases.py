"""Fourier transforms of random arrays, by blocks and by numpy.fft: on threads, MPI's ranks and GPUs alike."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrun
from meshrun.runner.plan.grid import bounds
from meshrun.runner.world.world import World

DTYPES = ("bool", "int16", "float16", "float32", "float64", "complex64", "complex128")


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    values = random.standard_normal(shape) + (1j * random.standard_normal(shape) if "complex" in dtype else 0)
    return (10 * values).astype(dtype)


def part(array: Any, world: World, axis: int) -> Any:
    start, stop = bounds(array.shape[axis], world.size, world.rank)
    return array[(slice(None),) * axis + (slice(start, stop),)]


def expected(
    name: str, array: np.ndarray, axes: tuple[int, ...], norm: str, length: int | None = None
) -> np.ndarray:
    """numpy.fft's in double precision."""
    wide = array.astype("complex128" if array.dtype.kind == "c" else "float64")
    if name == "irfft":
        sizes = [wide.shape[axis] for axis in axes]
        sizes[-1] = 2 * (sizes[-1] - 1) if length is None else length
        return np.fft.irfftn(wide, sizes, axes, norm)
    return getattr(np.fft, f"{name}n")(wide, axes=axes, norm=norm)


def close(got: Any, wanted: np.ndarray, dtype: str, single: bool) -> None:
    """single: in single precision. Errors grow with the root of the logarithm of the size; 16 eps is much."""
    found = got.get() if hasattr(got, "get") else got
    assert found.shape == wanted.shape
    assert found.dtype == dtype
    scale = float(np.sqrt(np.mean(abs(wanted) ** 2))) if wanted.size else 0.0
    tolerance = 30 * np.finfo("f4" if single else "f8").eps
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(scale, 1e-30) * 4)


def transforms(
    world: World,
    name: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    *,
    dtype: str = "complex128",
    norm: Any = "backward",
    length: int | None = None,
) -> None:
    """From and to blocks split along every axis, in both orders."""
    array = random_array(shape, dtype)
    wanted = expected(name, array, axes, norm, length)
    single = dtype in ("float16", "float32", "complex64")
    kind = {("irfft", True): "float32", ("irfft", False): "float64"}.get(
        (name, single), "complex64" if single else "complex128"
    )
    more = {"length": length} if name == "irfft" else {}
    for split in range(len(shape)):
        block = world.xp.asarray(part(array, world, split))
        function = getattr(meshrun, name)
        got = function(block, world, axes=axes, norm=norm, split=split, **more)
        close(got, part(wanted, world, split), kind, single)
        got, last = function(block, world, axes=axes, norm=norm, split=split, keep_order=False, **more)
        close(got, part(wanted, world, last), kind, single)


def plan_goes_there_and_back(
    world: World, plan: Any, *, shape: tuple[int, ...], dtype: str, norm: Any = "backward", turns: int = 1
) -> None:
    """`meshrun.FourierPlan`, or what stands behind it. turns: times, each of other numbers, issued at once: a
    store that comes too early or too late is seen."""
    arrays = [random_array(shape, dtype, seed) for seed in range(turns)]
    blocks = [world.xp.asarray(np.ascontiguousarray(part(array, world, 0))) for array in arrays]
    spectra = [plan.forward(block) for block in blocks]
    backs = [plan.inverse(spectrum) for spectrum in spectra]
    for array, block, spectrum, back in zip(arrays, blocks, spectra, backs, strict=True):
        axes = tuple(range(array.ndim))
        close(spectrum, part(expected("fft", array, axes, norm), world, 1), dtype, dtype == "complex64")
        close(back, part(array.astype("complex128"), world, 0), dtype, dtype == "complex64")
        close(block, part(array.astype("complex128"), world, 0), dtype, dtype == "complex64")
