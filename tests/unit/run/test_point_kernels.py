"""The CUDA kernels of points and series, in steps: run on the host, and compiled by NVRTC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvrtc_log import log_of_text
from point_threads import by_threads

from meshrun.runner.compiler.compiled import HostKernel, compile_points
from meshrun.runner.compiler.whole import point_kernel
from meshrun.runner.compiler.whole.block_form import block_form
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.point_code import (
    PointArrays,
    PointPlace,
    PointSet,
    device_source,
)
from meshrun.runner.compiler.whole.point_pass import Blocks, PointCells
from meshrun.runner.run.declare import distribute
from tests.unit.compiler.test_whole import field
from tests.unit.run import test_distribute_points as points
from tests.unit.run import test_series as series


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take steps as a GPU does: one by one, with the kernel of points."""
    monkeypatch.setattr(HostKernel, "most_steps", 1)
    monkeypatch.setattr(point_kernel, "compile_points", by_threads)
    monkeypatch.setattr("meshrun.runner.steps.observers.series.compile_points", by_threads)
    monkeypatch.setattr("meshrun.runner.steps.observers.series.MOST_WAITING", 4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("job", [points.injected, points.injected_first], ids=lambda job: job.name)
def test_points(tmp_path: Path, job: Any, ranks: int) -> None:
    points.compare(tmp_path, job, ranks, "a kernel")


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("job", [series.acoustic, series.periodic], ids=lambda job: job.name)
def test_rows(tmp_path: Path, job: Any, ranks: int) -> None:
    series.compare(tmp_path, job, ranks, 10)


@distribute(outputs=("u", "w", "k"))
def of_all_kinds(u, w, k):
    """Points of several outputs, dtypes and components; numbers that differ from point to point."""
    y, x = np.array([2, 5, 5, 9, -1, 0]), np.array([3, 3, 8, -2, 4, 0])
    u[y, x] += np.array([1, 2.5, -3, 4, 5, 6])
    w[y, x, 1] *= 3
    w[y, x] -= 1
    k[y, x] = np.array([1, -2, 3, 4, 5, 6])
    k[1:] = k[1:] * 2 + k[:-1]
    return np.roll(u, 1, 0) + u, w, k


KINDS = [field(14, 11), field(14, 11, 3, dtype="f4"), field(14, 11, dtype="i2")]


@pytest.mark.usefixtures("threads")
def test_dtypes_and_components(tmp_path: Path) -> None:
    points.compare(tmp_path, of_all_kinds, 2, "a kernel", KINDS)


def sets_of(job: Any, arrays: list[Any]) -> list[PointSet]:
    made = block_form(job, [(one.shape, one.dtype) for one in arrays], {})
    found = [PointSet(cells, n) for n, cells in enumerate(made.function.points.cells) if len(cells.positions)]
    if made.series_pass is not None:
        found += [PointSet(cells, None, series=True) for cells in made.series_pass.cells]
    return found


@pytest.mark.parametrize("job", [series.acoustic, of_all_kinds], ids=lambda job: job.name)
def test_the_kernel_compiles(job: Any) -> None:
    arrays = KINDS if job is of_all_kinds else [np.zeros((series.N, series.M), np.float32)] * 3
    log = log_of_text(device_source(sets_of(job, arrays)), "points", ("--fmad=false",), "90")
    assert "warning" not in log
    assert "0 bytes spill stores" in log


def test_lists_of_computed_numbers() -> None:
    """Numbers of a step times constants, and others that are computed in other ways."""
    graph = WholeGraph([(9, 8)], (9, 8))
    kind, wanted = np.dtype("f8"), np.array([3.0, -0.5])
    first, second = graph.scalar(0, kind), graph.scalar(1, kind)
    values = [graph.operation("multiply", kind, [first, graph.constant(at, kind)]) for at in (2.0, 5.0)]
    values += [graph.constant(7.0, kind), second, graph.operation("add", kind, [second, first]), first]
    values += [graph.operation("multiply", kind, [second, graph.constant(4.0, kind)])]
    positions = np.array([[n, 7 - n] for n in range(len(values))])
    pick = graph.pick(graph.list_points(positions), values)
    cells = PointCells(graph, graph.space, (pick,), positions)
    block = np.zeros((9, 8))
    blocks = Blocks(np, [block], ((0, 0), (0, 0)), (0, 0), (9, 8), (True, True))
    (expected,), _ = cells.compute(blocks, wanted)
    assert expected.tolist() == [6, 15, 7, -0.5, 2.5, 3, -2]
    sets = [PointSet(cells, None, series=True)]
    table = sets[0].table(PointPlace((0, 0), (9, 8), (0, 0), (True, True), [block], []))
    for code in (compile_points(sets), by_threads(sets)):
        rows = np.zeros((1, 1, len(values)))
        code.bind([table], PointArrays([block], [], wanted, [rows], np.zeros(1, np.int64)))()
        assert rows.tobytes() == expected.tobytes()
