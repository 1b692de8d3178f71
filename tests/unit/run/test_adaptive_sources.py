"""Numbers of the step beside values of reductions, arrays from outside, and points: to NumPy's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options
from tests.unit.run.test_distribute import on_ranks

SHAPE, STEPS = (33, 25), 7
RNG = np.random.default_rng(3)
PROFILE = RNG.random(SHAPE, dtype=np.float32)
COLUMN = RNG.random((SHAPE[0], 1), dtype=np.float32)
TABLE = RNG.random((STEPS + 1, 2), dtype=np.float32)
SY, SX = np.array([0, 16, 16, 17, 32]), np.array([3, 7, 7, 24, 0])


@distribute(outputs=("u", "t"))
def adaptive(u, t, step, table: meshrun.Series, *, limit: float = 0.2):
    """The largest stable step, a source in time, and an edge that follows a table.

    table: what the source and the edge are in each step.
    """
    dt = limit / (np.max(np.abs(u + COLUMN)) + table[step, 0])
    new = u.copy()
    new[1:-1] += dt * (u[2:] - 2 * u[1:-1] + u[:-2])
    new += dt * table[step, 1] * PROFILE
    new[0] = table[step + 1, 0] * new.max()
    new[-1] = np.where(step % 2 == 0, dt, COLUMN.max())
    t += dt * (step + 1)
    return new, t


@distribute(outputs=("u", "t"))
def stages(u, t, step, table: meshrun.Series):
    """Arrays between stages and reductions along an axis, beside arrays from outside.

    table: numbers of each step.
    """
    slope = np.sqrt(np.abs(u[1:] * COLUMN[1:] - u[:-1])) * table[step, 0]
    for _ in range(3):
        slope = np.sqrt(np.abs(slope[1:] - slope[:-1] * PROFILE[: len(slope) - 1])) + table[step, 1]
    u[2:-2] += slope - (PROFILE * u).max(axis=1)[2:-2, None]
    u[0] = u.max(axis=0) * table[step + 1, 0]
    t[...] = np.minimum(t, u.min()) + np.max(np.arange(SHAPE[0]) * COLUMN[:, 0]) + step
    return u, t


@distribute(outputs=("u",), series=("trace", "cell"))
def sources(u, step, wavelet: meshrun.Series):
    """Sources at points, of which two are one.

    wavelet: the sources' strength in each step.
    """
    new = u.copy()
    new[1:-1] += np.float32(0.2) * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[SY, SX] += wavelet[step, 0]
    np.add.at(new, (SX, SX), wavelet[step + 1, 1] * (step + 1))
    return new, new[SY, SX] - wavelet[step, 1], u[16, 7] * wavelet[step, 0]


@distribute
def swept(u, step):
    """A reduction of numbers of the step, which no field has."""
    return u * u.max() + np.max(step * COLUMN)


def saved(folder: Path, **arrays: Any) -> list[Path]:
    paths = [folder / f"{name}.npy" for name in arrays]
    for path, array in zip(paths, arrays.values(), strict=True):
        np.save(path, array)
    return paths


@pytest.mark.parametrize("fuse", ["require", "off"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("job", [adaptive, stages], ids=lambda job: job.name)
def test_a_reduction_meets_the_numbers_of_the_step(tmp_path: Path, job: Any, ranks: int, fuse: str) -> None:
    u, t = RNG.random(SHAPE, dtype=np.float32), np.zeros((), np.float32)
    inputs = saved(tmp_path, u=u, t=t)
    outputs = [tmp_path / "u_after.npy", tmp_path / "t_after.npy"]
    options = Options(fuse=fuse, verify="full", steps=StepOptions(steps=STEPS))
    on_ranks(ranks, job, inputs, outputs, options, table=TABLE)
    for step in range(STEPS):
        u, t = job.function(u.copy(), t.copy(), step=step, table=TABLE)
    assert np.load(outputs[0]).tobytes() == u.tobytes()
    assert np.load(outputs[1]).tobytes() == np.asarray(t).tobytes()


@pytest.mark.parametrize("fuse", ["require", "off"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_points_take_the_numbers_of_the_step(tmp_path: Path, ranks: int, fuse: str) -> None:
    u, rows = RNG.random(SHAPE, dtype=np.float32), []
    inputs = saved(tmp_path, u=u)
    outputs = [tmp_path / f"{name}_after.npy" for name in ("u", "trace", "cell")]
    options = Options(fuse=fuse, verify="full", steps=StepOptions(steps=STEPS))
    on_ranks(ranks, sources, inputs, outputs, options, wavelet=TABLE)
    for step in range(STEPS):
        u, *row = sources.function(u.copy(), step=step, wavelet=TABLE)
        rows.append(row)
    assert np.load(outputs[0]).tobytes() == u.tobytes()
    for path, found in zip(outputs[1:], zip(*rows, strict=True), strict=True):
        assert np.load(path).tobytes() == np.array(found).tobytes()


def test_a_reduction_of_numbers_of_the_step_alone_is_refused_with_its_line() -> None:
    line = swept.function.__code__.co_firstlineno + 3
    with pytest.raises(UserError, match="reduces a line of numbers that depend on the step") as refused:
        swept.iterate(np.ones(SHAPE, np.float32), steps=1)
    assert f"line {line}" in str(refused.value)


def test_iterate_gives_every_step_its_numbers() -> None:
    u, t = RNG.random(SHAPE, dtype=np.float32), np.zeros((), np.float32)
    mine = u, t
    for step, (found, time) in enumerate(adaptive.iterate(u, t, steps=STEPS, every=1, table=TABLE)):
        mine = adaptive.function(mine[0].copy(), mine[1].copy(), step=step, table=TABLE)
        assert found.tobytes() == mine[0].tobytes()
        assert np.asarray(time).tobytes() == np.asarray(mine[1]).tobytes()
