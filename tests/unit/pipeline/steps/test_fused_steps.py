"""Steps by a kernel that takes several of them, on simulated ranks, against a plain NumPy loop.

The kernel is NumPy's and knows what the fields are after every step: all that the runner says lies beside a
rank's cells is compared with it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy_kernel import NumpyKernel, mixed
from step_runs import plain_loop, stepped

import meshrun
from runner.pipeline import fusing
from runner.pipeline.block_layout import BlockLayout
from runner.pipeline.steps import fused_steps, halo_path
from runner.pipeline.steps import stepper as stepper_module
from runner.pipeline.steps.stepper import Stepper
from runner.plan.halo import BOUNDARIES
from runner.plan.step_options import SaveInterval
from runner.plan.steps import wide_widths
from runner.plan.stream_options import StreamOptions
from runner.region import Region

GRIDS = [(1, None), (2, None), (3, "3"), (3, "1x3"), (4, "2x2"), (4, "4"), (2, "1x2")]


class Kernels:
    """Has runs take their steps by NumPy kernels, for as long as `patch` lasts."""

    def __init__(self, patch: pytest.MonkeyPatch, most_steps: int = 3) -> None:
        self.made: list[NumpyKernel] = []
        self.most_steps = most_steps
        self.history: list[Any] = []

        def compile_for(
            device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float
        ) -> Any:
            kernel = NumpyKernel(program, widths, feeds, boundary, cval, self.most_steps, self.history)
            self.made.append(kernel)
            return kernel, "NumPy"

        patch.setattr(fusing, "compile_for", compile_for)

    def know(
        self, function: Any, arrays: Any, steps: int, widths: Any, boundary: str, feeds: Any, cval: float
    ) -> Any:
        """Return the fields after `steps` steps; the kernels know those before."""
        self.history[:] = [list(arrays)]
        for _ in range(steps):
            now = list(self.history[-1])
            results = plain_loop(function, now, 1, widths, boundary, feeds, cval)
            for feed, result in zip(feeds, results, strict=True):
                now[feed] = result
            self.history.append(now)
        return self.history[-1]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_steps_of_one_kernel_on_any_ranks_are_a_plain_loop(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    ndim = data.draw(st.sampled_from([2, 2, 1]))
    ranks, grid = data.draw(st.sampled_from(GRIDS if ndim == 2 else [(1, None), (2, None), (3, "3")]))
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = tuple(data.draw(width) for _ in range(ndim))
    shape = tuple(data.draw(st.integers(3, 20)) for _ in range(ndim))
    steps, every = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([None, 1, 2, 3, 4]))
    fields, reverse = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    names = ("block", "other")[:fields]
    feeds = names[::-1] if reverse else names
    function = mixed(widths, fields)
    places = [names.index(name) for name in feeds]
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=fields, feeds=feeds)(function)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(fields)]
    with pytest.MonkeyPatch.context() as patch:
        kernels = Kernels(patch, data.draw(st.integers(3, 4)))
        expected = kernels.know(function, arrays, steps, widths, boundary, places, 9)
        found, record = stepped(
            tmp_path_factory.mktemp("fused"), job, arrays, steps, ranks=ranks, grid=grid,
            steps_per_exchange=every, overlap=data.draw(st.sampled_from([None, False, True])),
            devices=data.draw(st.booleans()), fuse="require",
        )  # fmt: skip
    for one, place in zip(found, places, strict=True):
        np.testing.assert_array_equal(one, expected[place])
    assert record["steps"]["steps"] == steps
    assert record["fused"]["compiler"] == "NumPy"
    taken = [kernel for kernel in kernels.made if kernel.passes]
    assert taken or boundary in ("reflect", "mirror")  # of whose cells some may be on other ranks
    assert all(0 < count <= kernels.most_steps for kernel in taken for _, count in kernel.passes)


def run_all(
    folder: Path,
    kernels: Kernels,
    *,
    shape: tuple[int, ...] = (18, 12),
    widths: Any = ((1, 1), (1, 1)),
    boundary: str = "reflect",
    steps: int = 7,
    fields: int = 2,
    **options: Any,
) -> Any:
    """Take steps of `mixed`; return whether the results are those of the loop, and the record."""
    names = ("block", "other")[:fields]
    function = mixed(widths, fields)
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=fields, feeds=names)(function)
    random = np.random.default_rng(5)
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(fields)]
    expected = kernels.know(function, arrays, steps, widths, boundary, range(fields), 9)
    found, record = stepped(folder, job, arrays, steps, fuse="require", **options)
    return all(map(np.array_equal, found, expected)), record


@pytest.mark.parametrize("most", [3, 4])
@pytest.mark.parametrize("every", [None, 1, 2, 4])
def test_kernels_take_equal_numbers_of_steps_between_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, every: int | None
) -> None:
    """Never more than one kernel takes, whatever --steps-per-exchange says."""
    kernels = Kernels(monkeypatch, most)
    same, record = run_all(tmp_path, kernels, ranks=2, steps=7, steps_per_exchange=every)
    assert same
    each = min(every or most, most)
    assert record["steps"]["steps_per_exchange"] == each
    counts = [count for _, count in kernels.made[0].passes]
    assert counts == {1: [1] * 7, 2: [2, 2, 2, 1], 3: [3, 2, 2], 4: [4, 3]}[each]
    assert record["steps"]["exchanges"] == len(counts) - 1
    assert kernels.made[0].prepared == set(counts)


def test_one_rank_exchanges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch, 4)
    same, record = run_all(tmp_path, kernels, steps=10, boundary="wrap")
    assert same
    assert [count for _, count in kernels.made[0].passes] == [4, 3, 3]
    assert record["steps"]["exchanges"] == 0


@pytest.mark.parametrize("devices", [False, True])
def test_rows_that_neighbours_need_are_computed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: bool
) -> None:
    kernels = Kernels(monkeypatch, 3)
    same, record = run_all(tmp_path, kernels, shape=(40, 6), ranks=2, steps=5, overlap=True, devices=devices)
    assert same
    assert record["overlap"] is True
    assert [(own[0], count) for own, count in kernels.made[0].passes] == [(3, 3), (3, 3), (14, 3), (20, 2)]


@pytest.mark.parametrize("boundary", ["mirror", "reflect"])
def test_blocks_whose_halo_mirrors_cells_of_others_take_single_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str
) -> None:
    """Beyond the last of three rows are copies of the first, which is on another rank."""
    kernels = Kernels(monkeypatch, 3)
    same, record = run_all(
        tmp_path, kernels, shape=(3, 4), widths=((0, 3 - (boundary == "mirror")), (0, 1)), ranks=2,
        boundary=boundary,
    )  # fmt: skip
    assert same
    assert not any(kernel.passes for kernel in kernels.made)
    assert record["steps"]["exchanges"] == 6


@pytest.mark.parametrize("ranks", [1, 3])
def test_until_stops_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    Kernels(monkeypatch, 4)

    @meshrun.map_blocks(halo=1, boundary="constant")
    def relax(block: Any) -> Any:
        return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4

    start = np.random.default_rng(0).random((12, 8))
    options: dict[str, Any] = {"ranks": ranks, "until": 1e-3, "every": 7, "verify": "full"}
    plain, one = stepped(tmp_path, relax, [start], 400, fuse="off", **options)
    found, other = stepped(tmp_path, relax, [start], 400, fuse="require", **options)
    np.testing.assert_array_equal(found[0], plain[0])
    assert one["steps"]["steps"] == other["steps"]["steps"] < 400
    assert one["steps"]["until"] == other["steps"]["until"]


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 2)])
def test_a_checkpoint_is_resumed_on_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int
) -> None:
    kernels = Kernels(monkeypatch, 3)
    saved = SaveInterval(steps=5)
    take, stop = NumpyKernel.take_steps, [True]

    def broken(kernel: NumpyKernel, *arguments: Any) -> None:
        if stop[0] and sum(count for _, count in kernel.passes) == 13:  # in the third interval
            raise ValueError("as if the power went")
        take(kernel, *arguments)

    monkeypatch.setattr(NumpyKernel, "take_steps", broken)
    with pytest.raises(ValueError, match="power"):
        run_all(tmp_path, kernels, steps=17, ranks=first, checkpoint=saved)
    stop[0] = False
    resume = StreamOptions(resume=True)
    same, record = run_all(tmp_path, kernels, steps=17, ranks=second, checkpoint=saved, stream=resume)
    assert same
    assert record["steps"]["first"] == 10
    assert [count for _, count in kernels.made[-1].passes] == [3, 2, 2]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_fields_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str) -> None:
    """Each step is a call; the chunk's halo is as wide as its steps need."""
    kernels = Kernels(monkeypatch)
    same, record = run_all(
        tmp_path, kernels, shape=(40, 5), ranks=2, boundary=boundary, stream=StreamOptions(chunk_bytes=640),
        steps_per_exchange=3, verify="full",
    )  # fmt: skip
    assert same
    assert record["steps"]["passes"] == 3
    assert record["stream"]["chunks"] > 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("halo"))


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("ranks", "grid"), [(2, "2"), (4, "2x2")])
def test_direct_halos_of_aligned_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, boundary: str, ranks: int, grid: str
) -> None:
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    monkeypatch.setattr(halo_path, "find_peers", lambda world, choice, ndim: HostPeers(world.control))
    kernels = Kernels(monkeypatch)
    same, record = run_all(tmp_path, kernels, boundary=boundary, ranks=ranks, grid=grid, halo="direct")
    assert same
    assert record["steps"]["halo"] == "direct"
    assert record["steps"]["exchanges"] == 2


# Faults that must show.


def test_a_cell_too_many_beside_a_block_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes_of = fused_steps.axes_of

    def wider(*arguments: Any) -> Any:
        return [replace(one, after=one.after + 1) for one in axes_of(*arguments)]

    monkeypatch.setattr(fused_steps, "axes_of", wider)
    with pytest.raises(AssertionError):
        run_all(tmp_path, Kernels(monkeypatch), steps=3)


def test_a_step_more_than_the_halo_has_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stepper_module, "wide_widths", lambda field, steps: wide_widths(field, max(steps - 1, 1))
    )
    with pytest.raises(AssertionError, match="more cells than lie beside"):
        run_all(tmp_path, Kernels(monkeypatch), steps=3, ranks=2)


def test_an_exchange_left_out_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stepper, "_exchange", lambda stepper, targets: None)
    with pytest.raises(AssertionError, match="not of their step"):
        run_all(tmp_path, Kernels(monkeypatch), ranks=2)


# Rows in memory.


@settings(max_examples=60)
@given(data=st.data())
def test_own_cells_of_aligned_rows_begin_lines(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 3))
    whole = tuple(data.draw(st.integers(1, 70)) for _ in range(ndim))
    widths = tuple(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 9))) for _ in range(ndim))
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "f2", "f4", "f8", "c16"])))
    layout = BlockLayout(Region((0,) * ndim, whole), whole, [True] * ndim, widths, "reflect")
    assert layout.row(dtype.itemsize) == (0, layout.shape[-1])
    layout.aligned = True
    made: list[Any] = []

    class Allocator:
        def empty(self, shape: Any, dtype: Any) -> Any:
            made.append(np.empty(shape, dtype))
            return made[-1]

    block = layout.empty(Allocator(), dtype)
    assert block.shape == layout.shape
    assert list(block.strides) == layout.strides(dtype.itemsize)
    first = block[layout.core].__array_interface__["data"][0] - made[0].__array_interface__["data"][0]
    row = first % made[0].strides[-2] if ndim > 1 else first
    assert row % 128 == 0
    assert ndim == 1 or block.strides[-2] % 128 == 0
    assert made[0].shape[-1] - layout.shape[-1] < 2 * 128 / dtype.itemsize + 1
