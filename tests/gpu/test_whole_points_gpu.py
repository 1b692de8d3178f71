"""Functions of whole arrays with points, series and several sizes on GPUs: the bits of NumPy.

`python -m pytest --with-mpi tests/gpu/test_whole_points_gpu.py`, alone and after `mpirun -n 2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World, open_world
from tests.unit.run import test_distribute_points as points
from tests.unit.run import test_distribute_sizes as sizes
from tests.unit.run import test_series as series
from tests.unit.run.test_distribute import stepped
from tests.unit.steps import test_program_graphs as graphs

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    opened = open_world("cuda", oversubscribe=True)
    yield opened
    opened.arrays.close()


LONG = Options(fuse="require", steps=StepOptions(steps=300)), [*range(1, 301)]
SERIES = {
    name: series.KINDS[name] for name in ("one pass", "every step", "every fourth and the last", "a kernel")
}


@pytest.mark.parametrize("kind", [*SERIES, "more rows than wait on the device, in CUDA graphs"])
def test_rows_of_series(world: World, tmp_path: Path, kind: str) -> None:
    folder = Path(world.on_root(lambda: str(tmp_path)))
    arrays, inputs, outputs = world.on_root(lambda: series.files(folder))
    options, chosen = SERIES.get(kind, LONG)
    record = run(series.acoustic, inputs, outputs, {}, options, world=world)
    if kind not in SERIES and world.size == 1:
        assert record["steps"]["graph"]
    world.on_root(lambda: series.check(outputs, arrays, chosen[-1], chosen))


@pytest.mark.parametrize("kind", ["one pass", "steps", "a kernel"])
@pytest.mark.parametrize("job", [points.injected, points.injected_first], ids=lambda job: job.name)
def test_points(world: World, tmp_path: Path, job: Any, kind: str) -> None:
    folder, options = Path(world.on_root(lambda: str(tmp_path))), points.OPTIONS[kind]
    shape = points.N, points.M
    arrays = [np.random.default_rng(n).random(shape, dtype=np.float32) for n in range(len(job.arrays))]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    outputs = [folder / f"{name}_after.npy" for name in job.output_names]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, arrays, strict=True)] and None)
    run(job, inputs, outputs, {}, options, world=world)
    wanted = stepped(job.function, arrays, options.steps.steps or 1)
    assert [np.load(path).tobytes() for path in outputs] == [one.tobytes() for one in wanted]


def test_cuda_graphs_hold_the_kernel_of_points(world: World, tmp_path: Path) -> None:
    folder = Path(world.on_root(lambda: str(tmp_path)))
    arrays = [np.random.default_rng(n).random((points.N, points.M), dtype=np.float32) for n in range(2)]
    inputs = [folder / f"{name}.npy" for name in points.injected.arrays]
    outputs = [folder / f"{name}_after.npy" for name in points.injected.output_names]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, arrays, strict=True)] and None)
    options = Options(fuse="require", steps=StepOptions(steps=100))
    record = run(points.injected, inputs, outputs, {}, options, world=world)
    wanted = stepped(points.injected.function, arrays, 100)
    assert [np.load(path).tobytes() for path in outputs] == [one.tobytes() for one in wanted]
    assert world.size > 1 or record["steps"]["graph"]


@pytest.mark.parametrize("shape", [(61, 130), (40, 33, 50)])
def test_cuda_graphs_hold_points_and_series_with_numbers_of_the_step(
    world: World, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    folder, steps, job = Path(world.on_root(lambda: str(tmp_path))), 300, graphs.heard
    fields = [np.random.default_rng(n).random(shape, dtype=np.float32) for n in range(2)]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    outputs = [folder / f"{name}_after.npy" for name in (*job.output_names, *job.series)]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, fields, strict=True)] and None)
    record = run(
        job, inputs, outputs, {}, Options(fuse="require", steps=StepOptions(steps=steps)), world=world
    )
    rows = []
    for step in range(steps):
        *fields, row = job.function(*(one.copy() for one in fields), step=step)
        rows.append(row)
    for path, want in zip(outputs, [*fields, np.stack(rows)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem
    assert world.size > 1 or record["steps"]["graph"], record["steps"]["graph_reason"]


@pytest.mark.parametrize("every", [None, 4])
def test_series_at_points_beside_reductions(world: World, tmp_path: Path, every: int | None) -> None:
    folder, steps = Path(world.on_root(lambda: str(tmp_path))), 50
    arrays, inputs, outputs = world.on_root(lambda: series.inputs_of(folder, series.adaptive))
    run(
        series.adaptive,
        inputs,
        outputs,
        {},
        Options(steps=StepOptions(steps=steps, every=every)),
        world=world,
    )
    fields, rows = series.after_all(series.adaptive, arrays, steps)
    chosen = [n - 1 for n in range(1, steps + 1) if n % (every or 1) == 0 or n == steps]
    for path, want in zip(outputs, [*fields, *(one[chosen] for one in rows)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem


@pytest.mark.parametrize("job", [sizes.acoustic, sizes.maxwell, sizes.two_grids], ids=lambda job: job.name)
@pytest.mark.parametrize("kind", ["one pass", "steps"])
def test_sizes(world: World, tmp_path: Path, job: Any, kind: str) -> None:
    folder, options = Path(world.on_root(lambda: str(tmp_path))), sizes.OPTIONS[kind]
    arrays, inputs, outputs = world.on_root(lambda: sizes.files(folder, job))
    run(job, inputs, outputs, {}, Options(steps=options.steps), world=world)
    wanted = sizes.after(job, arrays, options.steps.steps or 1)
    assert [np.load(path).tobytes() for path in outputs] == [one.tobytes() for one in wanted]
