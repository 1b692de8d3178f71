"""Functions with Fourier transforms on GPUs: NumPy's results within rounding, step after step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.job.discover import find
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.programs.spectral import spectral_run
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.transforms import rooms
from meshrun.runner.world.world import World

SOLVERS = Path(__file__).parents[2] / "examples" / "solvers"
STEPS = 40  # some of them in CUDA graphs


def there_and_back(u):
    spectrum = np.fft.rfftn(u, norm="ortho")
    line = np.arange(u.shape[0]).astype(u.dtype).reshape(-1, *(1,) * (u.ndim - 1))
    return np.fft.irfftn(spectrum * (1 - 1 / (line + 2)), u.shape, axes=range(u.ndim), norm="ortho")


def each_axis(u):
    for axis in range(u.ndim):
        u = np.fft.fft(u, axis=axis, norm="ortho")
        u = 0.5 * (u + np.roll(u, 1, axis))
    return u


def with_values(u):
    spectrum = np.fft.fft2(u)
    spectrum = spectrum / np.sum(np.abs(spectrum) ** 2).astype(u.real.dtype) ** 0.5
    return np.fft.ifft2(spectrum, norm="forward")


def cells(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def verified(world: World, folder: Path, job: Any, arrays: list[Any], *, graph: bool) -> None:
    """Run on the GPUs; the run compares its results with NumPy's. graph: whether steps are CUDA graphs."""
    given = [folder / f"in{number}.npy" for number in range(len(arrays))]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(given, arrays, strict=True)] and None)
    options = Options(device="cuda", fuse="require", verify="full", steps=StepOptions(STEPS))
    record = run(job, given, folder / "out.npy", {}, options, world=world)
    if graph and (world.size == 1 or world.arrays.capturable):
        assert record["steps"]["graph"], record["steps"]["graph_reason"]


@pytest.mark.parametrize("shape", [(48, 64), (45, 63), (2048, 33), (12, 10, 14), (9, 7, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_real_transforms(world: World, folder: Path, shape: tuple[int, ...], dtype: str) -> None:
    array = cells(shape, "complex128").real.astype(dtype)
    verified(world, folder, distribute(there_and_back), [array], graph=True)


@pytest.mark.parametrize("shape", [(48, 64), (45, 63), (2048, 33), (12, 10, 14), (97,), (360,)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_transforms_along_each_axis(world: World, folder: Path, shape: tuple[int, ...], dtype: str) -> None:
    verified(world, folder, distribute(each_axis), [cells(shape, dtype)], graph=len(shape) > 1)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_values_of_spectra(world: World, folder: Path, dtype: str) -> None:
    verified(world, folder, distribute(with_values), [cells((48, 60), dtype)], graph=world.size == 1)


@pytest.mark.parametrize("shape", [(300, 513), (45, 63), (24, 10, 14)])
@pytest.mark.parametrize("peers", [None, "messages"])
def test_transforms_in_parts_between_gpus(
    world: World, folder: Path, shape: tuple[int, ...], peers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By copy engines, if the GPUs reach each other's memory, and by messages."""
    monkeypatch.setattr(rooms, "PART_BYTES", 1 << 10)
    opened = spectral_run.open_rooms
    monkeypatch.setattr(
        spectral_run, "open_rooms", lambda world, changes, copies: opened(world, changes, copies, peers)
    )
    array = cells(shape, "complex128").real.astype("f4")
    verified(world, folder, distribute(there_and_back), [array], graph=True)


def test_solvers(world: World, folder: Path) -> None:
    verified(world, folder, find(str(SOLVERS / "turbulence.py")), [cells((64, 48), "c16").real], graph=True)
    packet, trap = cells((48, 64), "complex128"), cells((48, 64), "complex128").real
    verified(world, folder, find(str(SOLVERS / "split_step.py")), [packet, trap], graph=True)
