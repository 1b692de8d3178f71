"""Steps by a kernel that takes several of them, on simulated ranks, against a plain NumPy loop.

The kernel is NumPy's and knows what the fields are after every step: all that the runner says lies beside a
rank's cells is compared with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy_kernel import NumpyKernel, mixed
from pairs import pairs_by_day
from queued_device import QueuedBackend
from step_runs import plain_loop, stepped

import meshrun
from meshrun.runner.arrays.block_layout import BlockLayout
from meshrun.runner.compiler import decide as fusing
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import DEVICE_SHARE
from meshrun.runner.plan.steps import read_widths, wide_widths
from meshrun.runner.region import Region
from meshrun.runner.steps import halo_path
from meshrun.runner.steps import stepper as stepper_module
from meshrun.runner.steps.blocks import StepBlocks
from meshrun.runner.steps.fused_steps import passes
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.system.compiler import NotCompiled

GRIDS = {  # by the number of axes
    1: [(1, None), (2, None), (3, "3")],
    2: [(1, None), (2, None), (3, "3"), (3, "1x3"), (4, "2x2"), (4, "4"), (2, "1x2")],
    3: [(1, None), (2, None), (3, "3"), (2, "1x2x1"), (4, "1x2x2"), (4, "2x1x2")],
}


class Kernels:
    """Has runs take their steps by NumPy kernels, for as long as `patch` lasts."""

    def __init__(self, patch: pytest.MonkeyPatch, most_steps: int = 3, *, aligned: bool = True) -> None:
        self.made: list[NumpyKernel] = []
        self.most_steps = most_steps
        self.history: list[Any] = []

        def compile_for(
            device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
            shape: Any, row: int,
        ) -> Any:  # fmt: skip
            kernel = NumpyKernel(
                program,
                widths,
                feeds,
                boundary,
                cval,
                self.most_steps,
                self.history,
                aligned=aligned,
                row=row,
            )
            self.made.append(kernel)
            return kernel, "NumPy"

        patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)

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


@settings(
    max_examples=max(settings.default.max_examples // 2, 1),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_steps_of_one_kernel_on_any_ranks_are_a_plain_loop(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    ndim = data.draw(st.sampled_from([2, 3, 2, 1]))
    ranks, grid = data.draw(st.sampled_from(GRIDS[ndim]))
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = tuple(data.draw(width) for _ in range(ndim))
    shape = tuple(data.draw(st.integers(3, 20 if ndim < 3 else 12)) for _ in range(ndim))
    steps, every = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([None, 1, 2, 3, 4, 7, 12]))
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
    found, record = stepped(folder, job, arrays, steps, **({"fuse": "require"} | options))
    return all(map(np.array_equal, found, expected)), record


@pytest.mark.parametrize(
    ("steps", "most"), [(0, 8), (1, 8), (8, 8), (9, 8), (22, 8), (5, 1), (10**12 + 1, 7)]
)
def test_kernels_are_counted_and_not_listed(steps: int, most: int) -> None:
    """In a run of a million steps, a list for each kernel takes longer than the kernel."""
    found = passes(steps, most)
    assert sum(taken * kernels for taken, kernels in found.items()) == steps
    assert sum(found.values()) == -(-steps // most)
    assert not found or max(found) <= min(most, min(found) + 1)
    assert list(found) == sorted(found, reverse=True)


@pytest.mark.parametrize("most", [3, 4])
@pytest.mark.parametrize("every", [None, 1, 2, 4])
def test_kernels_take_equal_numbers_of_steps_between_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, every: int | None
) -> None:
    kernels = Kernels(monkeypatch, most)
    same, record = run_all(tmp_path, kernels, ranks=2, steps=7, steps_per_exchange=every)
    assert same
    each = every or most
    assert record["steps"]["steps_per_exchange"] == each
    counts = [count for _, count in kernels.made[0].passes]
    expected = {1: [1] * 7, 2: [2, 2, 2, 1], 3: [3, 2, 2], 4: [4, 3] if most == 4 else [2, 2, 3]}
    assert counts == expected[each]
    assert record["steps"]["exchanges"] == {1: 6, 2: 3, 3: 2, 4: 1}[each]
    assert kernels.made[0].prepared == set(counts)


@pairs_by_day(boundary=["reflect", "constant", "wrap", "nearest", "mirror"], ranks=[2, 3, 5])
def test_several_kernels_between_two_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, ranks: int
) -> None:
    """All but the last compute rows of neighbours, too: here of ranks with unequal numbers of rows."""
    kernels = Kernels(monkeypatch, 2)
    same, record = run_all(
        tmp_path, kernels, shape=(38, 9), widths=((1, 0), (1, 2)), boundary=boundary, ranks=ranks, steps=13,
        steps_per_exchange=5,
    )  # fmt: skip
    assert same
    assert record["steps"]["exchanges"] == 2
    assert all([count for _, count in one.passes] == [2, 2, 1, 2, 2, 2, 2] for one in kernels.made)
    inner = ranks if boundary == "wrap" else ranks - 1  # ranks with a neighbour before them
    rows = [sum(one.passes[number][0][0] for one in kernels.made) for number in range(3)]
    assert rows == [38 + 3 * inner, 38 + inner, 38]


def test_rows_of_a_kernel_never_go_around_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes as many rows as the array has for all of it, whose ends meet."""
    kernels = Kernels(monkeypatch, 2)
    same, record = run_all(
        tmp_path, kernels, shape=(24, 9), boundary="wrap", ranks=2, steps=20, steps_per_exchange=8
    )
    assert same
    assert record["steps"]["steps_per_exchange"] == 7
    assert (
        "--steps-per-exchange 8 is lowered to 7: the halo of 8 steps reaches around" in record["warnings"][0]
    )
    assert max(shape[0] for shape, _ in kernels.made[0].passes) == 12 + 2 * 5


@pytest.mark.parametrize("grid", ["1x2", "2x2"])
def test_one_kernel_lies_between_exchanges_where_columns_are_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: str
) -> None:
    kernels = Kernels(monkeypatch, 2)
    same, record = run_all(
        tmp_path, kernels, ranks=4 if grid == "2x2" else 2, grid=grid, steps_per_exchange=4
    )
    assert same
    assert record["steps"]["steps_per_exchange"] == 2
    assert "one kernel takes 2 steps" in record["warnings"][0]


@pytest.mark.parametrize(
    "options",
    [
        {"until": -1.0, "every": 7},
        {"checkpoint": SaveInterval(steps=6)},
        {"overlap": True},
    ],
)
def test_several_kernels_between_what_is_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    same, record = run_all(
        tmp_path, Kernels(monkeypatch, 3), shape=(60, 5), ranks=3, steps=23, steps_per_exchange=9, **options
    )
    assert same
    assert record["steps"]["steps_per_exchange"] == 9


def test_one_rank_exchanges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch, 4)
    same, record = run_all(tmp_path, kernels, steps=10, boundary="wrap")
    assert same
    assert [count for _, count in kernels.made[0].passes] == [4, 3, 3]
    assert record["steps"]["exchanges"] == 0
    assert record["steps"]["steps_per_exchange"] == 4


@pytest.mark.parametrize(("ranks", "grid"), [(1, None), (2, "2"), (2, "1x2")])
def test_a_kernel_of_single_steps_reads_the_blocks_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, grid: str | None
) -> None:
    """Their rows are apart in memory: a function would be given copies of the whole blocks, in each step."""
    kernels = Kernels(monkeypatch, 1)
    same, _ = run_all(tmp_path, kernels, ranks=ranks, steps=5, boundary="wrap", grid=grid)
    assert same
    fields = len(kernels.made[0].program.inputs)
    assert [kernel.copies for kernel in kernels.made] == [fields] * ranks  # of a row, to try the kernel


def test_one_rank_takes_as_many_steps_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch, 4)
    same, record = run_all(tmp_path, kernels, steps=6, steps_per_exchange=2)
    assert same
    assert [count for _, count in kernels.made[0].passes] == [2, 2, 2]
    assert record["steps"]["steps_per_exchange"] == 2


@pytest.mark.parametrize(
    ("ranks", "asked", "reason"),
    [
        (2, 4, None),
        (1, 9, "one kernel takes 3 steps"),
        (9, 9, "the halo of 9 steps is wider than the smallest block"),
        (2, 3, None),
        (1, None, None),
        (9, None, None),
    ],
)
def test_what_is_lowered_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, asked: int | None, reason: str | None
) -> None:
    kernels = Kernels(monkeypatch, 3)
    same, record = run_all(tmp_path, kernels, ranks=ranks, steps=5, steps_per_exchange=asked)
    assert same
    found = [one for one in record["warnings"] if "steps-per-exchange" in one]
    taken = record["steps"]["steps_per_exchange"]
    assert found == ([f"--steps-per-exchange {asked} is lowered to {taken}: {reason}"] if reason else [])


@pytest.mark.parametrize("devices", [False, True])
def test_rows_that_neighbours_need_are_computed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: bool
) -> None:
    kernels = Kernels(monkeypatch, 3)
    same, record = run_all(
        tmp_path,
        kernels,
        shape=(40, 6),
        ranks=2,
        steps=5,
        steps_per_exchange=3,
        overlap=True,
        devices=devices,
    )
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_arguments_of_a_kernel_are_prepared_once_for_the_two_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """On the host they take longer than the steps of a small block on the device."""
    kernels = Kernels(monkeypatch, 3)
    same, _ = run_all(tmp_path, kernels, steps=60, ranks=ranks)
    assert same
    for kernel in kernels.made:
        assert len(kernel.passes) == 20
        assert kernel.bound == 2


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


@pytest.mark.parametrize(
    ("copies", "fuse", "until", "stays"),
    [
        (2.1, "require", None, True),
        (1.9, "require", None, False),
        (2.1, "off", None, False),  # a function's own arrays need memory, too
        (2.1, "require", 0.0, False),  # a check needs the fields before its step, and their differences
        (5.3, "require", 0.0, True),
    ],
)
def test_fields_stay_in_the_memory_of_devices_where_two_copies_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copies: float,
    fuse: str,
    until: float | None,
    stays: bool,
) -> None:
    kernels = Kernels(monkeypatch, aligned=False)
    nbytes = copies * 2 * 202 * 102 * 4  # of two fields, with their halos
    monkeypatch.setattr(QueuedBackend, "free_memory", lambda _: nbytes / DEVICE_SHARE)
    same, record = run_all(
        tmp_path, kernels, shape=(200, 100), ranks=1, steps=9, fuse=fuse, until=until, devices=True
    )
    assert same
    assert (record["steps"]["passes"] is None) is stays


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("devices", [False, True])
def test_fields_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, devices: bool
) -> None:
    """A kernel takes several steps of a chunk, whose halo is as wide as all its steps need."""
    kernels = Kernels(monkeypatch, aligned=False)
    same, record = run_all(
        tmp_path, kernels, shape=(60, 5), ranks=2, boundary=boundary, stream=StreamOptions(chunk_bytes=800),
        steps=11, steps_per_exchange=4, verify="full", devices=devices,
    )  # fmt: skip
    assert same
    assert record["steps"]["passes"] == 3
    assert record["stream"]["chunks"] > 2
    assert record["steps"]["steps_per_exchange"] == 4
    assert record["steps"]["steps_per_kernel"] == 3
    assert {count for kernel in kernels.made for _, count in kernel.passes} == {2, 3}  # 4 as 2 + 2, 3


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_steps_of_any_chunks_are_a_plain_loop(data: st.DataObject, tmp_path_factory: Any) -> None:
    """What the runner says lies beside a chunk's rows is compared with the fields of that step."""
    boundary, ndim = data.draw(st.sampled_from(BOUNDARIES)), data.draw(st.sampled_from([2, 2, 1]))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = tuple(data.draw(width) for _ in range(ndim))
    shape = tuple(data.draw(st.integers(3, 40 if axis == 0 else 7)) for axis in range(ndim))
    fields, steps = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 9))
    until = data.draw(st.sampled_from([{}, {"until": 0.0, "every": 3}]))
    with pytest.MonkeyPatch.context() as patch:
        kernels = Kernels(patch, data.draw(st.integers(2, 4)), aligned=False)
        same, record = run_all(
            tmp_path_factory.mktemp("chunks"), kernels, shape=shape, widths=widths, boundary=boundary,
            steps=steps, fields=fields, ranks=data.draw(st.integers(1, 2)),
            steps_per_exchange=data.draw(st.sampled_from([None, 2, 5])),
            stream=StreamOptions(chunk_bytes=data.draw(st.integers(200, 3000))), **until,
        )  # fmt: skip
    assert same
    assert record["steps"]["steps"] == steps


# Kernels of several steps that do not compile


def refuse_steps(monkeypatch: pytest.MonkeyPatch, kernels: Kernels, refused: int, rank: int = 0) -> None:
    """Have the kernel of so many steps not compile on one rank."""
    prepare_steps = NumpyKernel.prepare_steps

    def prepare(kernel: NumpyKernel, steps: int, arrays: Any, *, sends: bool = False) -> None:
        if steps == refused and kernel is kernels.made[rank]:
            raise NotCompiled("too many registers")
        prepare_steps(kernel, steps, arrays, sends=sends)

    monkeypatch.setattr(NumpyKernel, "prepare_steps", prepare)


@pairs_by_day(refused=[3, 2], boundary=["reflect", "constant", "wrap"], ranks__options=[
    (1, {}), (2, {}), (2, {"overlap": True, "devices": True}), (4, {"grid": "2x2"}),
    (2, {"stream": StreamOptions(chunk_bytes=800), "shape": (60, 5), "steps_per_exchange": 5}),
])  # fmt: skip
def test_single_steps_are_taken_if_a_kernel_of_several_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, ranks: int, options: Any, refused: int
) -> None:
    """Also after others have been taken by kernels: the second one is compiled after a frame."""
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    kernels = Kernels(monkeypatch, 3, aligned=False)
    refuse_steps(monkeypatch, kernels, refused, ranks - 1)
    frames = {"frames": str(tmp_path / "frames"), "every": 3}
    same, record = run_all(
        tmp_path, kernels, ranks=ranks, boundary=boundary, steps=8, fuse="auto", **frames, **options
    )
    assert same
    if "stream" not in options:  # of chunks, each rank takes its steps as it can
        assert any(kernel.passes for kernel in kernels.made) == (refused == 2)
    (warning,) = [one for one in record["warnings"] if "one by one" in one]
    assert "too many registers" in warning


@pytest.mark.parametrize("options", [{}, {"stream": StreamOptions(chunk_bytes=800), "shape": (60, 5)}])
def test_or_the_run_fails_if_a_kernel_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    kernels = Kernels(monkeypatch, 3, aligned=False)
    refuse_steps(monkeypatch, kernels, 3)
    with pytest.raises(UserError, match=r"does not compile: got .*: too many registers. Try: --fuse off"):
        run_all(tmp_path, kernels, steps=3, **options)


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
    axes = StepBlocks.axes

    def wider(*arguments: Any) -> Any:
        return [replace(one, after=one.after + 1) for one in axes(*arguments)]

    monkeypatch.setattr(StepBlocks, "axes", wider)
    with pytest.raises(AssertionError):
        run_all(tmp_path, Kernels(monkeypatch), steps=3)


def test_a_step_more_than_the_halo_has_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (wide_widths, read_widths):
        monkeypatch.setattr(
            stepper_module,
            change.__name__,
            lambda what, steps, change=change: change(what, max(steps - 1, 1)),
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
    layout.aligned = data.draw(st.sampled_from([32, 128]))
    made: list[Any] = []

    class Allocator:
        def empty(self, shape: Any, dtype: Any) -> Any:
            made.append(np.empty(shape, dtype))
            return made[-1]

    block = layout.empty(Allocator(), dtype)
    assert block.shape == layout.shape
    assert list(block.strides) == layout.strides(dtype.itemsize)
    first = block[layout.core].__array_interface__["data"][0] - made[0].__array_interface__["data"][0]
    assert first % layout.aligned == 0
    assert ndim == 1 or block.strides[-2] % layout.aligned == 0
    unit = max(layout.aligned // dtype.itemsize, 1)
    assert made[0].size < math.prod(layout.shape[:-1]) * (layout.shape[-1] + unit) + unit
    block[...] = np.arange(block.size).reshape(block.shape) % 2  # cells do not share memory
    np.testing.assert_array_equal(block.ravel(), np.arange(block.size) % 2)
