"""Steps of functions with Fourier transforms, from files to files: verified, on one rank and on three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.fft import fft2, fftfreq, ifft2

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

FIELD = np.random.default_rng(1).standard_normal((12, 10))


@meshrun.distribute
def imported(u):
    return ifft2(fft2(u) * fftfreq(u.shape[1])).real


@meshrun.distribute(outputs=("u", "t"))
def state(u, t):
    dt = 0.1 / (1 + np.max(np.abs(u)))
    t += dt
    return np.fft.irfft2(np.fft.rfft2(u) * (1 - dt), u.shape), t


@meshrun.distribute
def clocked(u, step):
    return np.fft.irfft2(np.fft.rfft2(u) * np.cos(0.1 * step), u.shape) + np.sin(step)


@meshrun.distribute
def spectrum(h):
    """Half a spectrum is the state."""
    w = np.fft.irfft2(h)
    return np.fft.rfft2(w * w) * 0.01 + h


@meshrun.distribute
def noisy(u, here, step):
    i, j = here.coordinates()
    return np.fft.ifft2(np.fft.fft2(u + here.normal(3, step)) * (i + j)).real


@meshrun.distribute
def in_place(u):
    u[...] = np.fft.ifft2(np.fft.fft2(u) * 0.5).real


def took(job: Any, inputs: list[Any], outputs: list[Path], ranks: int) -> None:
    """Take three steps. Raises if the results are not NumPy's within rounding."""
    options = Options(device="cpu", verify="full", steps=StepOptions(3))
    run_ranks(
        ranks,
        lambda control: run(job, inputs, outputs, {}, options, world=open_world("cpu", control=control)),
    )


@pytest.mark.parametrize(
    "job", [imported, state, clocked, spectrum, noisy, in_place], ids=lambda one: one.name
)
def test_steps_have_the_same_bits_on_any_number_of_ranks(tmp_path: Path, job: Any) -> None:
    given = {"u": FIELD, "h": np.fft.rfft2(FIELD), "t": np.zeros(())}
    inputs = [tmp_path / f"{name}.npy" for name in job.arrays]
    for path, name in zip(inputs, job.arrays, strict=True):
        np.save(path, given[name])
    found = []
    for ranks in (1, 3):
        outputs = [tmp_path / f"{name}_{ranks}.npy" for name in job.result_names]
        took(job, inputs, outputs, ranks)
        found.append([np.load(path).tobytes() for path in outputs])
    assert found[0] == found[1]


@meshrun.distribute(series=("energy", "most"))
def watched(u):
    h = np.fft.rfft2(u) * 0.9
    return np.fft.irfft2(h, u.shape), np.sum(np.abs(h) ** 2), u.max()


def test_values_are_series(tmp_path: Path) -> None:
    np.save(tmp_path / "u.npy", FIELD)
    outputs = [tmp_path / f"{name}.npy" for name in ("after", "energy", "most")]
    took(watched, [tmp_path / "u.npy"], outputs, 3)
    energy = np.sum(np.abs(np.fft.rfft2(FIELD)) ** 2)
    np.testing.assert_allclose(np.load(outputs[1]), energy * 0.81 ** np.arange(1, 4), rtol=1e-12)
    np.testing.assert_allclose(np.load(outputs[2]), FIELD.max() * 0.9 ** np.arange(3), rtol=1e-12)
