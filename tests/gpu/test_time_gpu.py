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
