"""Steps in stages on GPUs: a step in time from the largest value of the state has NumPy's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

STEPS = 75  # some of them in CUDA graphs


def laplacian(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def heat(u, t):
    dt = 0.2 / (np.max(np.abs(u)) + 0.5)
    u[1:-1, 1:-1] += dt.astype(u.dtype) * laplacian(u)
    u[0], u[-1] = 1, 0
    t += dt.astype(t.dtype)
    return u, t


def inner(u, t):
    """Of parts of the state."""
    dt = u.dtype.type(0.1) / (np.max(u[3:-2, 4:-5]) - np.min(u[2:]) + u.dtype.type(1))
    u += dt * (np.roll(u, 1, 0) - u)
    t += dt
    return u, t


def between(u, t):
    """Of what a stage has written."""
    v = u * 2 - np.roll(u, 1, 0)
    w = v / np.max(np.abs(v))
    u[:] = w + u.dtype.type(0.25) * np.roll(w, 1, 1)
    t += np.min(w)
    return u, t


@pytest.mark.parametrize("function", [heat, inner, between])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_are_numpys(world: World, folder: Path, function: Any, dtype: str) -> None:
    u, t = np.random.default_rng(0).normal(size=(257, 301)).astype(dtype), np.zeros((), dtype)
    given, made = [folder / "u.npy", folder / "t.npy"], [folder / "u_after.npy", folder / "t_after.npy"]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(given, (u, t), strict=True)] and None)
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(distribute(outputs=("u", "t"))(function), given, made, {}, options, world=world)
    # What a stage of `between` has written is reduced by calls that allocate: no graph is made of them.
    assert record["steps"]["graph"] == (world.size == 1 and function is not between)
    assert record["steps"]["graph"] or record["steps"]["graph_reason"]
    if world.rank == 0:
        for _ in range(STEPS):
            u, t = function(u, t)
        assert np.load(made[0]).tobytes() == u.tobytes()
        assert np.load(made[1]).tobytes() == np.asarray(t).tobytes()


def test_a_graph_is_not_made_of_what_allocates(world: World, folder: Path) -> None:
    @distribute
    def normalised(u):
        return u / np.linalg.norm(u)

    u = np.random.default_rng(0).normal(size=(257, 301))
    given, made = folder / "u.npy", folder / "u_after.npy"
    world.on_root(lambda: np.save(given, u))
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(normalised, [given], [made], {}, options, world=world)
    assert record["steps"]["graph"] is False
    assert record["steps"]["graph_reason"]
    if world.rank == 0:
        np.testing.assert_allclose(np.load(made), u / np.linalg.norm(u), rtol=1e-12)
