"""Halos that are filled only as far as the steps read each input: ranks as threads, against a plain loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_kernel import NumpyKernel
from step_runs import plain_loop, stepped

import meshrun
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9
from meshrun.jobs.airflow.step import step_job
from meshrun.runner.arrays.block_layout import BlockLayout
from meshrun.runner.arrays.halo import exchange
from meshrun.runner.compiler import traced as tracing
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval
from meshrun.runner.plan import steps
from meshrun.runner.plan.halo import Widths
from meshrun.runner.plan.steps import read_widths, wide_widths
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.steps import halo_path
from meshrun.runner.steps import stepper as stepper_module

GRIDS = [(1, None), (2, None), (3, "3"), (3, "1x3"), (4, "2x2"), (4, "4"), (2, "1x2")]
WIDTHS = ((2, 2), (2, 2))
Offset = tuple[int, int]
Reads = Sequence[Sequence[tuple[int, Offset]]]  # of each output: inputs, and offsets from the own cell


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("halo"))


def pulls(reads: Reads, inputs: int, dtype: Any = np.uint32, widths: Widths = WIDTHS) -> Callable[..., Any]:
    """A function of fields a, b and c whose outputs are weighted sums of the cells that they read."""

    def function(*blocks: Any) -> Any:
        (low, high), (left, right) = widths
        rows, columns = blocks[0].shape[0] - low - high, blocks[0].shape[1] - left - right
        results = []
        for number, of_output in enumerate(reads):
            total = None
            for place, (input_, (y, x)) in enumerate(of_output):
                part = blocks[input_][low + y : low + y + rows, left + x : left + x + columns]
                term = part * np.dtype(dtype).type(2 * place + 2 * number + 1)
                total = term if total is None else total + term
            results.append(total)
        return tuple(results)

    def of_one(a: Any) -> Any:
        return function(a)

    def of_two(a: Any, b: Any) -> Any:
        return function(a, b)

    def of_three(a: Any, b: Any, c: Any) -> Any:
        return function(a, b, c)

    return (of_one, of_two, of_three)[inputs - 1]


def by_numpy(patch: pytest.MonkeyPatch, most_steps: int) -> None:
    """Have runs take their steps by NumPy kernels."""

    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        aligned = most_steps == 1  # single steps are taken on aligned blocks, too
        kernel = NumpyKernel(program, widths, feeds, boundary, cval, most_steps, aligned=aligned, row=row)
        return kernel, "NumPy"

    patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)


def by_tables(patch: pytest.MonkeyPatch, library: Path) -> None:
    """Have runs exchange halos as GPUs do."""
    patch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    patch.setattr(
        halo_path,
        "find_peers",
        lambda world, choice, ndim: "--halo nccl" if choice == "nccl" else HostPeers(world.control),
    )


def same_as_a_plain_loop(
    folder: Path, reads: Reads, boundary: str, steps: int, *, inputs: int | None = None,
    shape: tuple[int, int] = (12, 11), most: int = 1, **options: Any,
) -> tuple[bool, dict[str, Any]]:  # fmt: skip
    """Take steps of `pulls`; return whether the results are those of the loop, and the record."""
    inputs = inputs or len(reads)
    function = pulls(reads, inputs)
    feeds = ("a", "b", "c")[: len(reads)]
    job = meshrun.map_blocks(halo=WIDTHS, boundary=boundary, cval=9, outputs=len(reads), feeds=feeds)(
        function
    )
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(inputs)]
    expected = plain_loop(function, arrays, steps, WIDTHS, boundary, range(len(reads)), 9)
    with pytest.MonkeyPatch.context() as patch:
        by_numpy(patch, most)
        found, record = stepped(folder, job, arrays, steps, fuse="require", **options)
    return all(map(np.array_equal, found, expected)), record


@pytest.mark.parametrize("rows", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("boundary", ["reflect", "mirror"])
@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("side", [2, -2])
def test_blocks_of_fewer_rows_than_are_read_on_one_side(
    tmp_path: Path, rows: int, boundary: str, most: int, side: int
) -> None:
    """The cells beyond the array equal those of another block, on the side that is not read."""
    for count, ranks in product((1, 4), (2, 3)):
        reads, folder = [[(0, (side, 0))]], tmp_path / f"{count}_{ranks}"
        folder.mkdir()
        same, _ = same_as_a_plain_loop(
            folder, reads, boundary, count, shape=(rows, 5), most=most, ranks=ranks
        )
        assert same


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(data=st.data())
def test_any_reads_on_any_ranks_are_a_plain_loop(
    data: st.DataObject, tmp_path_factory: Any, library: Path
) -> None:
    inputs = data.draw(st.integers(1, 3))
    outputs = data.draw(st.integers(1, inputs))
    near = st.sampled_from([0, 0, 0, 1, -1, 2, -2])
    read = st.tuples(st.integers(0, inputs - 1), st.tuples(near, near))
    reads = [data.draw(st.lists(read, min_size=1, max_size=3)) for _ in range(outputs)]
    ranks, grid = data.draw(st.sampled_from(GRIDS))
    path = data.draw(st.sampled_from(["messages", "nccl", "direct"]))
    copies = "two" if path == "direct" else data.draw(st.sampled_from(["one", "two"]))
    with pytest.MonkeyPatch.context() as patch:
        if path != "messages":
            by_tables(patch, library)
        patch.setattr(steps, "BANDS", data.draw(st.integers(1, 6)))
        same, record = same_as_a_plain_loop(
            tmp_path_factory.mktemp("reads"), reads, data.draw(st.sampled_from(BOUNDARIES)),
            data.draw(st.integers(1, 7)), inputs=inputs, most=data.draw(st.integers(1, 3)),
            shape=(data.draw(st.integers(3, 18 if copies == "two" else 90)), data.draw(st.integers(3, 14))),
            ranks=ranks, grid=grid, copies=copies,
            steps_per_exchange=data.draw(st.integers(1, 3)), halo="auto" if path == "messages" else path,
            overlap=data.draw(st.booleans()), devices=data.draw(st.booleans()),
        )  # fmt: skip
    assert same
    assert record["steps"]["copies"] == ("one", "two").index(copies) + 1


@pytest.mark.parametrize("path", ["messages", "nccl", "direct"])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_fields_of_several_components_and_three_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, boundary: str, path: str
) -> None:
    def function(a: Any, b: Any) -> Any:
        back, front = a[:-2, 1:-1, 1:-1], a[1:-1, 2:, 1:-1]
        left, right = b[1:-1, 1:-1, :-2], b[2:, 1:-1, 1:-1]
        return back * 3 + front + right[..., 0], left * 5 + a[1:-1, 1:-1, 1:-1][..., None]

    job = meshrun.map_blocks(halo=(1, 1, 1), boundary=boundary, cval=9, outputs=2)(function)
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 2**32, (9, 8, 7, *tail), np.uint32) for tail in ((), (2,))]
    expected = plain_loop(function, arrays, 5, ((1, 1),) * 3, boundary, [0, 1], 9)
    by_numpy(monkeypatch, 1)
    if path != "messages":
        by_tables(monkeypatch, library)
    for every in (1, 2):
        found, record = stepped(
            tmp_path, job, arrays, 5, fuse="require", ranks=4, grid="2x2x1", steps_per_exchange=every,
            halo="auto" if path == "messages" else path,
        )  # fmt: skip
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert record["fused"]["compiler"] == "NumPy"


# What is exchanged.


def d2q9(grid: str, ranks: int, steps: int = 1) -> tuple[Task, list[Widths]]:
    job: Job = step_job(D2Q9, {Cell.FLUID}, "bgk")
    types = [((32, 20), np.dtype(np.float32))] * 9 + [((32, 20), np.dtype(np.uint8))]
    task = plan_task(job, {"omega": 1.2}, types, ranks, grid=grid)
    program = tracing.traced(task)
    task = replace(task, reads=tracing.reads_of(task, program))
    return task, read_widths(task, steps)


def test_a_population_is_read_where_it_comes_from() -> None:
    _, widths = d2q9("2x2", 4)
    for (y, x), found in zip(D2Q9.velocities, widths, strict=False):
        assert found == ((max(y, 0), max(-y, 0)), (max(x, 0), max(-x, 0)))
    assert widths[9] == ((1, 1), (1, 1))  # stays: is filled once


def test_steps_need_what_the_steps_after_them_need() -> None:
    task, widths = d2q9("2x1", 2, 3)
    for (y, x), found in zip(D2Q9.velocities, widths, strict=False):
        assert found == ((2 + max(y, 0), 2 + max(-y, 0)), (max(x, 0), max(-x, 0)))
    assert widths[9] == wide_widths(task.fields[9], 3)


@pytest.mark.parametrize(("grid", "cells"), [("2x1", 20), ("1x2", 32)])
def test_three_populations_of_nine_cross_a_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: str, cells: int
) -> None:
    by_numpy(monkeypatch, 1)
    job = step_job(D2Q9, {Cell.FLUID}, "bgk")
    arrays: list[Any] = [np.random.default_rng(n).random((32, 20), np.float32) for n in range(9)]
    arrays.append(np.zeros((32, 20), np.uint8))
    outputs = [tmp_path / f"out{number}.npy" for number in range(9)]
    options = {"ranks": 2, "grid": grid, "parameters": {"omega": 1.2}, "outputs": outputs}
    _, record = stepped(tmp_path, job, arrays, 4, fuse="require", **options)
    assert record["steps"]["exchange_bytes"] == 2 * 3 * cells * 4
    assert record["phases"]["exchange"]["bytes"] == 3 * 2 * 3 * cells * 4 * 2
    _, record = stepped(tmp_path, job, arrays, 4, fuse="off", **options)
    assert record["steps"]["exchange_bytes"] == 2 * 9 * cells * 4


def test_a_field_that_is_read_in_its_own_cells_is_not_exchanged(tmp_path: Path) -> None:
    old, now = (1, (0, 0)), [(0, (-1, 0)), (0, (1, 0)), (0, (0, 0))]
    same, record = same_as_a_plain_loop(tmp_path, [[*now, old], [(0, (0, 0))]], "wrap", 4, ranks=2)
    assert same
    assert record["steps"]["exchange_bytes"] == 2 * 11 * 4
    alone = [[(0, (0, 1)), (1, (0, -1))], [(0, (0, 0))]]
    same, record = same_as_a_plain_loop(tmp_path, alone, "mirror", 4, ranks=2)
    assert same
    assert (record["steps"]["exchanges"], record["steps"]["exchange_bytes"]) == (0, 0)


# Nothing relies on the cells that are not read.


def test_poison_in_halos_that_are_not_read_is_seen_nowhere(tmp_path: Path) -> None:
    reads = [[(0, (1, 0)), (1, (0, 0))], [(0, (0, 0)), (1, (0, -1))]]
    function = pulls(reads, 2, np.float32)
    job = meshrun.map_blocks(halo=WIDTHS, boundary="reflect", outputs=2)(function)
    arrays = [np.random.default_rng(n).random((12, 11), np.float32) for n in range(2)]
    expected = plain_loop(function, arrays, 6, WIDTHS, "reflect", [0, 1])
    with pytest.MonkeyPatch.context() as patch:
        by_numpy(patch, 2)
        found, record = stepped(
            tmp_path, job, arrays, 6, ranks=4, grid="2x2", fuse="require", verify="full", check_finite=1,
            until=1e-30, every=2, checkpoint=SaveInterval(steps=2), frames=str(tmp_path / "frames.npy"),
        )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(np.load(tmp_path / "frames.npy")).all()
    assert record["steps"]["until"]["change"] > 0
    assert record["verify"]["mode"] == "full"


# Faults that must show.

ONE_SIDE: Reads = [[(0, (-1, 0)), (1, (0, 1))], [(0, (0, 0)), (1, (1, 0))]]
DIAGONAL: Reads = [[(0, (-1, -1)), (0, (0, 0))]]


def without(side: tuple[int, int, int]) -> Callable[..., list[Widths]]:
    """`read_widths` without one side: input, axis, and 0 or 1."""
    place, axis, end = side

    def changed(task: Task, steps: int) -> list[Widths]:
        found = read_widths(task, steps)
        pairs = [list(pair) for pair in found[place]]
        pairs[axis][end] = 0
        found[place] = tuple((low, high) for low, high in pairs)
        return found

    return changed


@pytest.mark.parametrize("side", [(0, 0, 0), (1, 0, 1), (1, 1, 1)])
def test_a_side_left_out_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: tuple[int, int, int]
) -> None:
    run = functools.partial(same_as_a_plain_loop, tmp_path, ONE_SIDE, "wrap", 3, ranks=4, grid="2x2")
    assert run()[0]
    monkeypatch.setattr(stepper_module, "read_widths", without(side))
    assert not run()[0]


@pytest.mark.parametrize("path", ["messages", "nccl", "direct"])
def test_a_corner_left_out_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, path: str
) -> None:
    if path != "messages":
        by_tables(monkeypatch, library)
    halo = "auto" if path == "messages" else path
    run = functools.partial(
        same_as_a_plain_loop, tmp_path, DIAGONAL, "wrap", 3, ranks=4, grid="2x2", halo=halo
    )
    assert run()[0]
    for module in (exchange, halo_path.halo_boxes):
        for name in ("sends", "transfers"):
            whole = getattr(module, name)
            monkeypatch.setattr(module, name, functools.partial(faces, whole))
    assert not run()[0]


def faces(whole: Callable[..., Any], partition: Any, rank: int, widths: Widths, boundary: str) -> list[Any]:
    """Transfers that are no corners."""

    def is_face(one: Any) -> bool:
        own = partition[one.receiver].shape
        axes = zip(one.target, widths, own, strict=True)
        return sum(part.stop <= low or part.start >= low + n for part, (low, _), n in axes) < 2

    return [one for one in whole(partition, rank, widths, boundary) if is_face(one)]


def test_needs_of_later_steps_left_out_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = functools.partial(same_as_a_plain_loop, tmp_path, ONE_SIDE, "wrap", 5, ranks=3, most=2)
    assert run()[0]
    monkeypatch.setattr(stepper_module, "read_widths", lambda task, steps: read_widths(task, 1))
    assert not run()[0]


def test_a_part_in_the_wrong_place_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = BlockLayout.inside
    monkeypatch.setattr(
        BlockLayout,
        "inside",
        lambda one, layout: tuple(
            slice(part.start and part.start - 1, part.stop - (part.start > 0)) for part in inside(one, layout)
        ),
    )
    assert not same_as_a_plain_loop(tmp_path, ONE_SIDE, "wrap", 3, ranks=2)[0]
