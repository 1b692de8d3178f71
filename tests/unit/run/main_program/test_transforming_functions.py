"""Functions with transforms and products of whole arrays that are called with distributed arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import RunError
from tests.unit.arrays.test_operations import RANKS, on_ranks, values


@meshrun.distribute
def diffused(u: Any, *, dt: float = 0.1) -> Any:
    n, m = u.shape
    kx, ky = np.fft.rfftfreq(m, 1 / m), np.fft.fftfreq(n, 1 / n)[:, None]
    return np.fft.irfft2(np.fft.rfft2(u) * np.exp(-dt * (kx**2 + ky**2)), u.shape)


@meshrun.distribute
def filtered(u: Any) -> None:
    """Changes its array, and returns nothing."""
    u[1:-1] = np.fft.ifft(np.fft.fft(u, axis=0) * 0.5, axis=0).real[1:-1]
    u[0] = np.roll(u, 1, 1)[1]


@meshrun.distribute(outputs=("u", "t"), series=("energy",))
def stepped(u: Any, t: Any) -> Any:
    """A value that is an input, one that is a result, and a sum of a spectrum."""
    spectrum = np.fft.rfft2(u)
    t = t + 0.1 / (1 + np.max(np.abs(u)))
    return np.fft.irfft2(spectrum * t, u.shape), t, np.sum(np.abs(spectrum) ** 2)


@meshrun.distribute
def halved(u: Any) -> Any:
    return np.fft.rfft(u) + 1


@meshrun.distribute(outputs=("c",))
def multiplied(a: Any, b: Any) -> Any:
    return (a + 1) @ b.T - np.mean(a)


@meshrun.distribute
def iterated(u: Any) -> Any:
    """A loop that its condition ends: an implicit equation, solved by transforms."""
    change, x = 1.0, np.zeros_like(u)
    while change > 1e-9:
        new = np.fft.irfft2(0.2 * np.fft.rfft2(u - 0.1 * x * x), u.shape)
        change, x = np.max(np.abs(new - x)), new
    return x


def given(job: Any) -> list[Any]:
    if job is multiplied:
        return [values((8, 8), "f8"), values((8, 8), "f8", 1)]
    return [values((10, 8), "f8"), *([np.float64(0.5)] if job is stepped else [])]


def numbers(results: Any) -> list[Any]:
    """Return results as NumPy's arrays."""
    every = results if isinstance(results, tuple) else (results,)
    return [np.asarray(one.gather() if hasattr(one, "gather") else one) for one in every]


@pytest.mark.parametrize(
    "job", [diffused, filtered, stepped, halved, multiplied, iterated], ids=lambda job: job.name
)
def test_calls_have_the_bits_of_runs_from_files(job: Any, tmp_path: Path) -> None:
    """Of calls that follow each other, too, and they agree with NumPy's within rounding."""
    arrays = given(job)
    files, outputs = [], [tmp_path / f"out{n}.npy" for n in range(3 if job is stepped else 1)]
    for number, one in enumerate(arrays):
        files.append(tmp_path / f"in{number}.npy")
        np.save(files[-1], one)
    job.run(files, outputs, device="cpu")
    wanted = [np.load(path) for path in outputs]

    def body(world: Any) -> None:
        for split in (0, 0, 1):
            split_arrays = [world.array(one, split=split) if one.ndim else one for one in arrays]
            wholes = [one.copy() for one in arrays]
            results, expected = job(*split_arrays), job.function(*wholes)
            if expected is None:
                assert results is split_arrays[0]
                expected = wholes[0]
            for found, want, of_numpy in zip(numbers(results), wanted, numbers(expected), strict=True):
                assert found.tobytes() == want.tobytes()
                np.testing.assert_allclose(found, of_numpy, rtol=1e-12, atol=1e-12)
            for one, whole in zip(split_arrays, wholes, strict=True):
                np.testing.assert_allclose(numbers(one)[0], whole, rtol=1e-12, atol=1e-12)

    for ranks in RANKS:
        on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_steps_with_transforms_on_distributed_arrays(ranks: int) -> None:
    def body(world: Any) -> None:
        whole = values((9, 8), "f8")
        found = diffused.iterate(world.array(whole), steps=3, dt=0.05)
        for _ in range(3):
            whole = diffused.function(whole, dt=0.05)
        np.testing.assert_allclose(found.gather(), whole, rtol=1e-12, atol=1e-12)

    on_ranks(ranks, body)


def test_a_run_counts_iterations_and_ends_a_loop_that_does_not(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", values((10, 8), "f8"))
    files, alike = (tmp_path / "in.npy", tmp_path / "out.npy"), {"device": "cpu", "verify": "full"}
    (loop,) = iterated.run(*files, steps=2, **alike)["loops"]
    assert loop["iterations"] > loop["last"] > 4
    assert loop["waits"]
    with pytest.raises(RunError, match=r"loop in line \d+ did not end within 3 iterations"):
        iterated.run(*files, max_iterations=3, **alike)


def test_parts_of_two_axes() -> None:
    def body(world: Any) -> None:
        whole = values((9, 8), "f8")
        found = diffused(world.array(whole, split=(2, 2)))
        np.testing.assert_allclose(found.gather(), diffused.function(whole), rtol=1e-12, atol=1e-12)

    on_ranks(4, body)
