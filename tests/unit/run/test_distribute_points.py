"""Functions of whole arrays that read and write points, as jobs: the bits of the plain function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options
from tests.unit.run.test_distribute import on_ranks, stepped

N, M = 33, 24
POINTS = np.random.default_rng(7)
SY, SX = POINTS.integers(0, N, 16), POINTS.integers(0, M, 16)
AMPLITUDES = POINTS.random(16).astype(np.float32)


@distribute(outputs=("u", "before"))
def injected(u, before):
    """A wave whose sources are written last."""
    new = 2 * u - before
    new[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[SY, SX] += AMPLITUDES
    return new, u


@distribute(outputs=("u",))
def injected_first(u):
    """Around the ends, and what was written is read by the neighbours."""
    u[SY, SX] += AMPLITUDES
    u[[0, -1, 5], [0, 3, -1]] = 0.5
    return 0.25 * (np.roll(u, 2, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1))


STEPS = 7
OPTIONS = {
    "one pass": Options(verify="full"),
    "steps": Options(verify="full", steps=StepOptions(steps=STEPS)),
    "a kernel": Options(fuse="require", steps=StepOptions(steps=STEPS)),
    "two steps between exchanges": Options(steps=StepOptions(steps=STEPS, steps_per_exchange=2)),
    "a kernel, two steps": Options(fuse="require", steps=StepOptions(steps=STEPS, steps_per_exchange=2)),
    "in chunks": Options(steps=StepOptions(steps=STEPS), stream=StreamOptions(chunk_bytes=4096)),
    "one copy": Options(steps=StepOptions(steps=STEPS, copies="one")),
    "a grid": Options(steps=StepOptions(steps=STEPS), grid="0x0"),
}


def compare(folder: Path, job: Any, ranks: int, kind: str, arrays: Any = None) -> dict[str, Any]:
    """Compare a run with the plain function; return its record."""
    if arrays is None:
        arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(len(job.arrays))]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    outputs = [folder / f"{name}_after.npy" for name in job.output_names]
    options = OPTIONS[kind]
    record = on_ranks(ranks, job, inputs, outputs, options)
    for path, wanted in zip(outputs, stepped(job.function, arrays, options.steps.steps or 1), strict=True):
        assert np.load(path).tobytes() == wanted.tobytes()
    if options.fuse == "require":
        assert record["fused"]["compiler"]
    return record


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("job", [injected, injected_first], ids=lambda job: job.name)
def test_the_bits_are_those_of_the_whole_arrays(tmp_path: Path, job: Any, ranks: int, kind: str) -> None:
    record = compare(tmp_path, job, ranks, kind)
    if OPTIONS[kind].fuse == "require":
        assert record["steps"]["steps_per_kernel"] > 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("job", [injected, injected_first], ids=lambda job: job.name)
def test_steps_in_a_cache_see_the_points_of_earlier_ones(
    job: Any, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.compiler.cpp.host.strip_rows", lambda *_: 3)
    compare(tmp_path, job, ranks, "a kernel")


COLUMNS = np.arange(M)
LINE, COLUMN = POINTS.random(M).astype(np.float32), POINTS.random((N, 1)).astype(np.float32)


@distribute(outputs=("u",))
def beside_lines(u):
    """Points beside arrays from outside that broadcast."""
    u[SY, SX] += AMPLITUDES
    return u * COLUMN + np.roll(u, 1, 1) * LINE


@pytest.mark.parametrize("kind", ["steps", "a kernel", "two steps between exchanges", "in chunks"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_points_beside_arrays_that_broadcast(tmp_path: Path, ranks: int, kind: str) -> None:
    compare(tmp_path, beside_lines, ranks, kind)


@pytest.mark.parametrize("fuse", ["off", "require"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_array_times_a_number_of_the_step_has_a_value_for_each_point(
    tmp_path: Path, ranks: int, fuse: Any
) -> None:
    @distribute(outputs=("u",))
    def shots(u, step, table: meshrun.Series):
        u[SY, SX] += AMPLITUDES * table[step]
        u[3, COLUMNS] = u[4, COLUMNS] * (LINE * table[step])
        return u

    start, table = POINTS.random((N, M), dtype=np.float32), POINTS.random(STEPS).astype(np.float32)
    np.save(tmp_path / "u.npy", start)
    wanted = start.copy()
    for step in range(STEPS):
        wanted = shots.function(wanted, step, table)
    options = Options(verify="full", fuse=fuse, steps=StepOptions(steps=STEPS))
    on_ranks(ranks, shots, [tmp_path / "u.npy"], [tmp_path / "out.npy"], options, table=table)
    assert np.load(tmp_path / "out.npy").tobytes() == wanted.tobytes()
