"""Functions of time and place on GPUs, on one rank or several: NumPy's bits, also in CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute, map_blocks
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

STEPS = 150  # more than are launched one by one before graphs take them
SHAPE = (190, 133)
PROFILE = np.random.default_rng(1).random(SHAPE, dtype=np.float32)
TABLE = np.random.default_rng(2).random((STEPS + 1, 2), dtype=np.float32)


@distribute
def shot(u, step, table: meshrun.Series):
    new = u.copy()
    new[1:-1] += np.float32(0.1) * (u[2:] - 2 * u[1:-1] + u[:-2])
    new += table[step, 0] * PROFILE
    new[0] = table[step + 1, 1]
    new[-1] = np.where(step % 2 == 0, 1, -1)
    return new


@map_blocks(halo=1, boundary="wrap")
def ring(u, *, step, table: meshrun.Series):
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    return u[1:-1, 1:-1] + np.float32(0.1) * around + table[step][1] * (1 + step)


@distribute
def shaken(u, here, step, table: meshrun.Series):
    y, x = here.coordinates()
    u[1:-1] += np.float32(0.1) * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u + (here.uniform(3, step) * x - table[step, 0] * y).astype(u.dtype)


def stepped(job: Any, u: Any) -> Any:
    for step in range(STEPS):
        given: dict[str, Any] = {"step": step, "table": TABLE}
        if job is shaken:
            given["here"] = meshrun.BlockContext(0, 1, "", (0, 0), SHAPE, SHAPE, None, np, step)
        u = job.function(np.pad(u, 1, mode="wrap") if job is ring else u.copy(), **given)
    return u


@distribute(outputs=("u", "t"))
def adaptive(u, t, step, table: meshrun.Series):
    dt = np.float32(0.2) / (np.max(np.abs(u)) + table[step, 0])
    u[1:-1] += dt * (u[2:] - 2 * u[1:-1] + u[:-2])
    u += dt * table[step + 1, 1] * PROFILE
    t += dt * (step + 1)
    return u, t


@distribute(series=("trace",))
def sources(u, step, table: meshrun.Series):
    u[1:-1] += np.float32(0.1) * (u[2:] - 2 * u[1:-1] + u[:-2])
    u[[3, 90, 90], [5, 7, 7]] += table[step, 0]
    return u, u[[0, 189], [0, 132]] * table[step + 1, 1]


@pytest.mark.parametrize("kernels", ["single steps", "several steps"])
@pytest.mark.parametrize("job", [shot, ring, shaken], ids=lambda job: job.name)
def test_every_step_has_its_numbers(world: World, folder: Path, job: Any, kernels: str) -> None:
    u = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    source, output = folder / "u.npy", folder / "out.npy"
    world.on_root(lambda: np.save(source, u))
    steps = StepOptions(steps=STEPS, steps_per_exchange=1 if kernels == "single steps" else None)
    run(
        job,
        source,
        output,
        {"table": TABLE},
        Options(device="cuda", fuse="require", steps=steps),
        world=world,
    )
    assert np.load(output).tobytes() == stepped(job, u).tobytes()


def test_values_of_reductions_meet_the_numbers_of_the_step(world: World, folder: Path) -> None:
    u, t = np.random.default_rng(0).random(SHAPE, dtype=np.float32), np.zeros((), np.float32)
    inputs, outputs = [folder / "u.npy", folder / "t.npy"], [folder / "u_out.npy", folder / "t_out.npy"]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, (u, t), strict=True)])
    options = Options(device="cuda", fuse="require", steps=StepOptions(steps=STEPS))
    run(adaptive, inputs, outputs, {"table": TABLE}, options, world=world)
    for step in range(STEPS):
        u, t = adaptive.function(u.copy(), t.copy(), step=step, table=TABLE)
    assert np.load(outputs[0]).tobytes() == u.tobytes()
    assert np.load(outputs[1]).tobytes() == np.asarray(t).tobytes()


def test_points_take_the_numbers_of_the_step(world: World, folder: Path) -> None:
    u, rows = np.random.default_rng(0).random(SHAPE, dtype=np.float32), []
    source, outputs = folder / "u.npy", [folder / "u_out.npy", folder / "trace.npy"]
    world.on_root(lambda: np.save(source, u))
    options = Options(device="cuda", fuse="require", steps=StepOptions(steps=STEPS))
    run(sources, source, outputs, {"table": TABLE}, options, world=world)
    for step in range(STEPS):
        u, row = sources.function(u.copy(), step=step, table=TABLE)
        rows.append(row)
    assert np.load(outputs[0]).tobytes() == u.tobytes()
    assert np.load(outputs[1]).tobytes() == np.array(rows).tobytes()
