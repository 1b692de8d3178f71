"""Steps in stages on GPUs: maxima have NumPy's bits, and sums those of one rank on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World, open_world
from tests.facts.reducing_steps import apart, centred, conjugate, energy, every_size, laplacian, mean

STEPS = 75  # some of them in CUDA graphs


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


def run_both(
    world: World,
    folder: Path,
    function: Any,
    names: str,
    arrays: Any,
    steps: int = STEPS,
    parameters: Any = None,
) -> Any:
    """Return the record of a run on the GPUs, and assert the bits of a run by one rank on a CPU."""
    job, keys = distribute(outputs=tuple(names.split()))(function), names.split()
    given = [folder / f"{key}.npy" for key in keys]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(given, arrays, strict=True)] and None)
    made = [[folder / f"{key}_{device}.npy" for key in keys] for device in ("cuda", "cpu")]
    options = Options(device="cuda", fuse="require", steps=StepOptions(steps))
    record = run(job, given, made[0], parameters or {}, options, world=world)
    if world.rank == 0:

        def alone(control: Any) -> Any:
            plain = Options(device="cpu", steps=StepOptions(steps))
            return run(job, given, made[1], parameters or {}, plain, world=open_world("cpu", control=control))

        run_ranks(1, alone)
        for key, one, other in zip(keys, *made, strict=True):
            assert np.load(one).tobytes() == np.load(other).tobytes(), key
    return record


@pytest.mark.parametrize("function", [mean, energy, centred, every_size, apart])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(257, 301), (64, 1024), (7, 5)])
def test_sums_have_the_bits_of_one_rank(
    world: World, folder: Path, function: Any, dtype: str, shape: tuple[int, int]
) -> None:
    arrays = [np.random.default_rng(0).normal(size=shape).astype(dtype), np.zeros((), dtype)]
    record = run_both(world, folder, function, "u t", arrays)
    assert record["steps"]["graph"], record["steps"]["graph_reason"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conjugate_gradients(world: World, folder: Path, dtype: str) -> None:
    b = np.random.default_rng(0).normal(size=(250, 301)).astype(dtype)
    record = run_both(
        world, folder, conjugate, "x r p rs beta", [b * 0, b, b * 0, np.vdot(b, b), b[0, 0] * 0]
    )
    assert record["steps"]["graph"], record["steps"]["graph_reason"]


@pytest.mark.parametrize("function", [heat, inner, between])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_are_numpys(world: World, folder: Path, function: Any, dtype: str) -> None:
    u, t = np.random.default_rng(0).normal(size=(257, 301)).astype(dtype), np.zeros((), dtype)
    given, made = [folder / "u.npy", folder / "t.npy"], [folder / "u_after.npy", folder / "t_after.npy"]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(given, (u, t), strict=True)] and None)
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(distribute(outputs=("u", "t"))(function), given, made, {}, options, world=world)
    assert record["steps"]["graph"], record["steps"]["graph_reason"]
    if world.rank == 0:
        for _ in range(STEPS):
            u, t = function(u, t)
        assert np.load(made[0]).tobytes() == u.tobytes()
        assert np.load(made[1]).tobytes() == np.asarray(t).tobytes()


def test_a_graph_is_not_made_of_what_waits_for_the_host(world: World, folder: Path) -> None:
    @distribute
    def shifted(u):
        return u - np.prod(1 + u / 1000)  # products have no kernel that combines them

    u = np.random.default_rng(0).normal(size=(257, 301))
    given, made = folder / "u.npy", folder / "u_after.npy"
    world.on_root(lambda: np.save(given, u))
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(shifted, [given], [made], {}, options, world=world)
    assert record["steps"]["graph"] is False
    assert record["steps"]["graph_reason"]
