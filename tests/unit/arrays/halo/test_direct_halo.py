"""Halos that ranks store into each other's memory: the kernel's own code and the runner's tables, with ranks
as threads of one process. The results are those of a plain NumPy loop, to the bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import step_runs
from host_halo import HostPeers, HostTables, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_kernel import NumpyKernel, mixed
from nvrtc_log import log_of_text
from queued_device import GraphBackend
from step_runs import padded, plain_loop, stepped, weighted, weighted_job

import meshrun
from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo import packed as halo_module
from meshrun.runner.arrays.halo.boxes import FieldHalos
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.arrays.halo.packed import PackedHalos
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.api import HEADERS, Device, NotCapturable
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.grid import Partition
from meshrun.runner.report.summary import _halo_notes
from meshrun.runner.steps import halo_path, stepper
from meshrun.runner.world.world import Rank, World, open_world

GRIDS: list[tuple[int, ...]] = [(2,), (3,), (4,), (1, 3), (2, 2), (3, 2), (2, 1, 2)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("halo"))


def on_host(
    monkeypatch: pytest.MonkeyPatch,
    library: Path,
    peers: Callable[[World, str, int], Any] | None = None,
) -> None:
    """Runs on threads exchange halos as runs on GPUs do."""
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    chosen = peers or (
        lambda world, choice, ndim: "--halo nccl" if choice == "nccl" else HostPeers(world.control)
    )
    monkeypatch.setattr(halo_path, "find_peers", chosen)


# Blocks of several fields, filled once.


def halos_of(
    world: World,
    kind: str,
    fields: Sequence[FieldHalos],
    arrays: Sequence[Any],
    library: Path,
    cval: Any,
) -> list[Any]:
    """This rank's padded blocks after an exchange, from poisoned ones."""
    layouts = [field.layout(world.rank) for field in fields]
    pairs = []
    for layout, array in zip(layouts, arrays, strict=True):
        blocks = [np.full(layout.shape, 0xA5, array.dtype) for _ in range(2)]
        blocks[1][layout.core] = array[layout.region.slices]
        pairs.append((blocks[0], blocks[1]))
    tables = HostTables(library)
    cells = halo_boxes.constant_cells(world.backend, [one.dtype for one in arrays], fields[0].boundary, cval)
    if kind == "direct":
        halos: Any = DirectHalos(
            world, fields, pairs, cells, tables, HostPeers(world.control), handshake=False, patience=20
        )
    else:
        halos = PackedHalos(world, fields, pairs, cells, tables)
    targets = [pair[1] for pair in pairs]
    world.control.barrier()
    if kind == "parts":
        halos.fill_from_others(targets)
        halos.fill_own(targets)
    else:
        halos.fill(targets)
    halos.check()
    halos.close()
    return targets


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(data=st.data())
def test_any_halo_of_any_fields_is_filled(data: st.DataObject, library: Path) -> None:
    grid = data.draw(st.sampled_from(GRIDS))
    ndim = data.draw(st.integers(len(grid), 3))
    grid = (*grid, *[1] * (ndim - len(grid)))
    shape = tuple(data.draw(st.integers(4, 12)) for _ in range(ndim))
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 3), st.integers(0, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    fields, arrays = [], []
    widths = tuple(data.draw(width) for _ in range(ndim))
    for dtype in data.draw(
        st.lists(st.sampled_from(["u1", "u2", "f4", "f8", "c16"]), min_size=1, max_size=3)
    ):
        tail = data.draw(st.sampled_from([(), (3,)]))
        partition = Partition((*shape, *tail), (*grid, *[1] * len(tail)))
        of_field = (*widths, *[(0, 0)] * len(tail))
        fields.append(FieldHalos(partition, of_field, boundary, np.dtype(dtype).itemsize))
        arrays.append(random.integers(0, 250, partition.shape).astype(dtype))
    kind = data.draw(st.sampled_from(["direct", "packed", "parts"]))

    def body(control: ThreadComm) -> Any:
        return halos_of(open_world("cpu", control=control), kind, fields, arrays, library, 9)

    found = run_ranks(fields[0].partition.size, body, timeout=60)
    for rank, blocks in enumerate(found):
        for field, array, block in zip(fields, arrays, blocks, strict=True):
            region = field.partition[rank]
            if region.size == 0:
                continue
            whole = padded(array, field.widths, boundary, 9)
            place = tuple(
                slice(a, b + low + high)
                for a, b, (low, high) in zip(region.start, region.stop, field.widths, strict=True)
            )
            np.testing.assert_array_equal(block, whole[place])


class CountedTables(HostTables):
    """Tables whose kernels do nothing but count their launches."""

    def __init__(self, launches: list[str]) -> None:
        self._launches = launches

    def kernel(self, path: Path, name: str) -> Callable[..., None]:
        return lambda *arguments: self._launches.append(name)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_whole_rows_are_sent_without_a_copy(boundary: str) -> None:
    """Planes with the cells beyond the other axes, which the sender has filled, go into the halo."""
    launches: list[str] = []
    widths = ((1, 2), (1, 1), (2, 0))
    field = FieldHalos(Partition((9, 4, 5), (3, 1, 1)), widths, boundary, 4)
    whole = padded(np.random.default_rng(1).random((9, 4, 5), np.float32), widths, boundary, 9)

    def body(control: ThreadComm) -> Any:
        world, layout = open_world("cpu", control=control), field.layout(control.rank)
        first = 3 * control.rank
        blocks = [whole[first : first + 6].copy() for _ in range(2)]
        for axis_0 in (slice(0, 1), slice(4, 6)):
            blocks[1][axis_0] = np.nan
        halos = PackedHalos(world, [field], [(blocks[0], blocks[1])], blocks[:1], CountedTables(launches))
        halos.fill_from_others([blocks[1]], beyond=True)
        assert layout.shape == blocks[1].shape
        return blocks[1]

    assert halo_module.whole_rows_are_sent([field])
    found = run_ranks(3, body, timeout=60)
    assert launches == []
    for rank, block in enumerate(found):
        inner = slice(0 if rank or boundary == "wrap" else 1, None if rank < 2 or boundary == "wrap" else 4)
        np.testing.assert_array_equal(block[inner], whole[3 * rank : 3 * rank + 6][inner])


def test_rows_of_many_fields_or_from_further_blocks_are_packed() -> None:
    def field(rows: int, grid: tuple[int, int], widths: Any) -> FieldHalos:
        return FieldHalos(Partition((rows, 8), grid), widths, "reflect", 4)

    near, beside = field(8, (4, 1), ((2, 2), (1, 1))), field(8, (4, 1), ((0, 0), (1, 1)))
    assert halo_module.whole_rows_are_sent([near] * 4 + [beside] * 3)
    assert not halo_module.whole_rows_are_sent([near] * 5)
    assert not halo_module.whole_rows_are_sent([field(7, (4, 1), ((2, 2), (1, 1)))])
    assert not halo_module.whole_rows_are_sent([field(8, (2, 2), ((2, 2), (1, 1)))])


def test_boxes_have_few_axes_and_wide_units() -> None:
    field = FieldHalos(Partition((16, 64), (2, 1)), ((1, 1), (0, 0)), "wrap", 4)
    (low, high) = field.sent(0)
    rows = halo_boxes.table([halo_boxes.between_blocks(field, low, 4096, 8192, 1)])
    assert rows.shape == (1, halo_boxes.COLUMNS)
    source, target, unit, first, last, peer, axes = rows[0, :7]
    assert (unit, first, last, peer, axes) == (16, 0, 16, 1, 1)
    assert {low.source[0].start, high.source[0].start} == {0, 7}
    assert (source - 4096) % 256 == 0
    assert (target - 8192) % 256 == 0


def test_the_marks_of_a_neighbours_rows_make_an_exchange() -> None:
    length = 3 * halo_boxes.UNITS * halo_boxes.WIDEST
    boxes = [halo_boxes.HaloBox(0, 4096, ((length, 1, 1),), peer) for peer in (1, -1, 4)]
    rows = halo_boxes.table([*boxes, boxes[0]], {1: 64, 4: 72, 5: 80})
    marks = {peer: rows[rows[:, halo_boxes.PEER] == peer] for peer in (1, 4, 5, -1)}
    for peer, address in ((1, 64), (4, 72), (5, 80)):
        assert set(marks[peer][:, halo_boxes.ARRIVED]) == {address}
        assert marks[peer][:, halo_boxes.MARK].sum() == halo_boxes.EXCHANGE
        assert (marks[peer][:, halo_boxes.MARK] > 0).all()
    assert [len(marks[peer]) for peer in (1, 4, 5)] == [6, 3, 1]
    assert not marks[-1][:, [halo_boxes.ARRIVED, halo_boxes.MARK]].any()


@pytest.mark.parametrize("first", [0, 4, 12])
@pytest.mark.parametrize("length", [3, 4, 7, 64, 1001])
def test_a_row_is_copied_in_wide_units_but_for_its_ends(first: int, length: int) -> None:
    box = halo_boxes.HaloBox(4096 + first, 8192 + first, ((1, 9, 9), (length, 4, 4), (4, 1, 1)))
    rows = halo_boxes.table([box])
    spans = sorted((row[0] + row[2] * row[3], row[0] + row[2] * row[4], row[2]) for row in rows)
    assert spans[0][0] == 4096 + first
    assert spans[-1][1] == 4096 + first + 4 * length
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    wide = sum(stop - start for start, stop, unit in spans if unit == 16)
    assert wide >= 4 * length - 28 or first == 0


def test_a_box_of_too_many_axes_is_refused() -> None:
    box = halo_boxes.HaloBox(0, 0, (*[(2, 1000 + n, 1) for n in range(6)], (4, 1, 1)))
    with pytest.raises(ValueError, match="7 axes"):
        halo_boxes.table([box])


def test_neighbours_are_mutual() -> None:
    for grid in ((4, 1), (3, 3)):
        field = FieldHalos(Partition((12, 12), grid), ((2, 0), (0, 1)), "nearest", 4)
        found = [halo_boxes.neighbours([field], rank) for rank in range(field.partition.size)]
        for rank, near in enumerate(found):
            assert all(rank in found[other] for other in near)


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_the_kernels_compile_without_a_warning_and_spill_nothing(architecture: str) -> None:
    said = log_of_text(halo_boxes.KERNELS.read_text(), "exchange_halos", (f"-I{HEADERS}",), architecture)
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == 2, said
    assert "warning" not in said


# Whole runs.


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(data=st.data())
def test_any_steps_are_a_plain_loop(data: st.DataObject, tmp_path_factory: Any, library: Path) -> None:
    folder = tmp_path_factory.mktemp("direct")
    ranks, grid = data.draw(st.sampled_from([(2, None), (3, "3"), (3, "1x3"), (4, "2x2"), (2, "1x2")]))
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = data.draw(st.tuples(width, width))
    shape = data.draw(st.tuples(st.integers(3, 20), st.integers(3, 14)))
    steps, every = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    halo = data.draw(st.sampled_from(["direct", "nccl"]))
    in_place = data.draw(st.booleans())
    feeds = data.draw(st.sampled_from([("block", "other"), ("other", "block"), ("block", None)]))
    function = weighted(widths)

    job = weighted_job(function, widths, boundary, feeds, in_place=in_place)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(2)]
    places = [None if name is None else ("block", "other").index(name) for name in feeds]
    expected = plain_loop(function, arrays, steps, widths, boundary, places, 9)
    with pytest.MonkeyPatch.context() as patch:
        on_host(patch, library)
        found, record = stepped(
            folder, job, arrays, steps, ranks=ranks, grid=grid, steps_per_exchange=every, halo=halo,
            overlap=data.draw(st.booleans()), devices=data.draw(st.booleans()),
        )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    taken = record["steps"]["halo"]
    assert taken in ("direct" if halo == "direct" else "threads", None)


def run_heat(tmp_path: Path, **options: Any) -> Any:
    """Steps of two random fields on three ranks, and what a plain loop makes of them."""
    widths = ((1, 1), (1, 1))
    function = weighted(widths)
    job = meshrun.map_blocks(halo=1, boundary="wrap", outputs=2)(function)
    arrays = [np.random.default_rng(n).integers(0, 2**32, (24, 10), np.uint32) for n in range(2)]
    expected = plain_loop(function, arrays, 40, widths, "wrap", [0, 1])
    found, record = stepped(tmp_path, job, arrays, 40, ranks=3, **options)
    same = all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    return same, record


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_blocks_of_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, every: int
) -> None:
    library = compiled(tmp_path_factory.mktemp("threads"), threads=3)

    def tables(world: World, ndim: int) -> HostTables:
        return HostTables(Path(shutil.copy(library, library.with_name(f"rank{world.rank}.so"))))

    on_host(monkeypatch, library)
    monkeypatch.setattr(halo_path, "find_tables", tables)
    same, record = run_heat(tmp_path, halo="direct", steps_per_exchange=every)
    assert same
    assert record["steps"]["halo"] == "direct"


def test_the_record_says_how_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, record = run_heat(tmp_path)
    assert same
    assert record["steps"]["halo"] == "threads"
    assert record["steps"]["halo_reason"] == "the ranks compute on CPUs"
    with pytest.raises(UserError, match="--halo direct is not possible here"):
        run_heat(tmp_path, halo="direct")
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path)
    assert same
    assert (record["steps"]["halo"], record["steps"]["halo_reason"]) == ("direct", None)
    _, record = run_heat(tmp_path, halo="nccl")
    assert (record["steps"]["halo"], record["steps"]["halo_reason"]) == ("threads", "--halo nccl")


@pytest.mark.parametrize(("ranks", "widths"), [(1, ((1, 1), (0, 0))), (2, ((0, 0), (0, 1)))])
def test_where_nothing_is_exchanged_nothing_is_direct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, ranks: int, widths: Any
) -> None:
    """Kernels fill the cells beyond the array all the same."""
    on_host(monkeypatch, library)
    job = weighted_job(weighted(widths), widths, "reflect", ("block", None), in_place=False)
    arrays = [np.arange(12, dtype=np.uint32).reshape(3, 4) for _ in range(2)]
    _, record = stepped(tmp_path, job, arrays, 2, ranks=ranks)
    assert (record["steps"]["halo"], record["steps"]["halo_reason"]) == (None, None)


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        ({"halo": None}, []),
        ({"halo": "mpi", "halo_reason": "the ranks compute on CPUs"}, []),
        (
            {"halo": "nccl", "halo_reason": "the ranks are on 2 hosts"},
            ["  halos by messages (nccl), not stored directly: the ranks are on 2 hosts"],
        ),
        (
            {"halo": "direct", "exchange_fraction": 0.1, "graph": True, "graph_reason": None},
            ["  halos stored into the neighbours' memory; steps in CUDA graphs"],
        ),
        (
            {"halo": "direct", "exchange_fraction": None, "graph": True, "graph_reason": None},
            [
                "  halos stored into the neighbours' memory by the kernels that compute them; "
                "steps in CUDA graphs"
            ],
        ),
        (
            {
                "halo": "direct",
                "exchange_fraction": 0.1,
                "graph": False,
                "graph_reason": "the function allocates device memory",
            },
            [
                "  halos stored into the neighbours' memory; each step launched by itself: "
                "the function allocates device memory"
            ],
        ),
    ],
)
def test_the_summary_says_how_and_why(steps: dict[str, Any], note: list[str]) -> None:
    assert _halo_notes(steps) == note


def test_peers_are_gpus_of_one_host_and_few_axes() -> None:
    def world(*places: tuple[str, str], kind: str = "cuda", checksums: Any = None) -> Any:
        ranks = tuple(
            Rank(number, host, host, 0, 0, Device(kind, "", uuid=uuid))
            for number, (host, uuid) in enumerate(places)
        )
        hosts = [*{host for host, _ in places}]
        return SimpleNamespace(ranks=ranks, here=ranks[0], hosts=hosts, checksums=checksums)

    here, beside, shared = ("n1", "GPU-1"), ("n1", "GPU-2"), ("n1", "GPU-1")
    find = halo_path.find_peers
    assert find(world(here, beside), "nccl", 2) == "--halo nccl"
    assert find(world(here, ("n2", "GPU-3")), "direct", 2) == "the ranks are on 2 hosts"
    assert find(world(here, shared), "auto", 2) == "ranks share a GPU"
    assert find(world(here, beside, kind="cpu"), "auto", 2) == "the ranks compute on CPUs"
    assert find(world(here, beside, checksums=object()), "auto", 2) == "--checksum, which checks messages"
    assert find(world(here, beside), "auto", 6) == "an array has more than 5 axes"


def test_memory_that_one_rank_cannot_open_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    made = []

    def peers(world: World, choice: str, ndim: int) -> HostPeers:
        made.append(HostPeers(world.control, {1: "rank 1 has no peer access"}))
        return made[-1]

    on_host(monkeypatch, library, peers)
    same, record = run_heat(tmp_path)
    assert same
    assert record["steps"]["halo_reason"] == "rank 1 has no peer access"
    assert all(one.closed for one in made)
    with pytest.raises(UserError, match="rank 1 has no peer access"):
        run_heat(tmp_path, halo="direct")


@pytest.mark.parametrize(
    ("halo", "least", "overlaps"), [("nccl", 1, True), ("nccl", 1 << 20, False), ("direct", 1, False)]
)
def test_large_messages_overlap_with_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, halo: str, least: int, overlaps: bool
) -> None:
    monkeypatch.setattr(stepper, "OVERLAPPED_BYTES", least)
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path, devices=True, halo=halo)
    assert same
    assert record["overlap"] is overlaps


@pytest.mark.parametrize("every", [1, 2, 3])
def test_graphs_take_the_steps_between_two_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, every: int
) -> None:
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    monkeypatch.setattr(GraphBackend, "captured", 0)
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path, devices=True, steps_per_exchange=every, until=-1.0, every=12)
    assert same
    assert GraphBackend.captured >= 3  # on three ranks
    assert record["steps"]["graph"] is True
    assert record["steps"]["steps"] == 40


def test_graphs_leave_kernels_of_fewer_steps_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 steps are 10 times 7 and 5 times 6: no other kernel is compiled, which the kernel asserts."""
    made = []

    def compile_for(device: Any, *about: Any) -> Any:
        program, widths, _, feeds, boundary, cval, _, row = about
        made.append(NumpyKernel(program, widths, feeds, boundary, cval, 7, aligned=False, row=row))
        return made[0], "NumPy"

    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (14, 28))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    function = mixed(((1, 1), (1, 1)))
    job = meshrun.map_blocks(halo=1, boundary="wrap", outputs=2)(function)
    arrays = [np.random.default_rng(n).integers(0, 2**32, (24, 10), np.uint32) for n in range(2)]
    expected = plain_loop(function, arrays, 100, ((1, 1), (1, 1)), "wrap", [0, 1])
    found, record = stepped(tmp_path, job, arrays, 100, devices=True, fuse="require")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert record["steps"]["graph"] is True
    assert made[0].prepared == {6, 7}


@pytest.mark.parametrize("between", [4, 6])
def test_graphs_hold_several_kernels_between_two_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, between: int
) -> None:
    """An even number of kernels, or an odd one, after which the blocks of each field have changed places."""

    def compile_for(device: Any, *about: Any) -> Any:
        program, widths, _, feeds, boundary, cval, _, row = about
        return NumpyKernel(program, widths, feeds, boundary, cval, 2, aligned=False, row=row), "NumPy"

    taken = noted_replays(monkeypatch)
    on_host(monkeypatch, library)
    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (12, 4))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    same, record = run_heat(tmp_path, devices=True, fuse="require", steps_per_exchange=between)
    assert same
    assert sum(taken) >= 12
    needed = -(-40 // between) - 1
    assert needed <= record["steps"]["exchanges"] <= needed + 1  # a graph of the last steps ends with one


def noted_replays(patch: pytest.MonkeyPatch) -> list[int]:
    """Return the steps of each graph that rank 0 will launch."""
    taken: list[int] = []
    replay = stepper.Stepper._replay

    def counted(self: Any, *arguments: Any, **options: Any) -> int:
        steps = replay(self, *arguments, **options)
        if self.world.rank == 0 and steps:
            taken.append(steps)
        return steps

    patch.setattr(stepper.Stepper, "_replay", counted)
    return taken


def test_fields_that_are_observed_often_have_long_graphs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    """Nine steps between two observations are too few for `WORTH_MAKING` graphs, those of the run are not."""
    taken = noted_replays(monkeypatch)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4, 2))
    monkeypatch.setattr(stepper, "GRAPH_BYTES", 1)
    monkeypatch.setattr(stepper, "WORTH_MAKING", 6)
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    on_host(monkeypatch, library)
    same, _ = run_heat(tmp_path, devices=True, steps_per_exchange=1, until=-1.0, every=10)
    assert same
    assert taken == [4, 2, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("most", "worth", "replays"), [(1, 1, [4] * 9), (16 * 1280, 1, [16, 16, 4]), (16 * 1280, 3, [4] * 9)]
)
def test_graphs_of_small_blocks_are_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, most: int, worth: int, replays: list[int]
) -> None:
    """As many steps as move `most` bytes on a rank, if `worth` such graphs are launched."""
    taken = noted_replays(monkeypatch)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    monkeypatch.setattr(stepper, "GRAPH_BYTES", most)
    monkeypatch.setattr(stepper, "WORTH_MAKING", worth)
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    on_host(monkeypatch, library)
    same, _ = run_heat(tmp_path, devices=True, steps_per_exchange=1)
    assert same
    assert taken == replays


@pytest.mark.parametrize(
    ("boundary", "grid"), [(one, grid) for one in BOUNDARIES for grid in ("3x1", "1x2", "2x2")]
)
def test_one_launch_fills_what_lies_beyond_the_array_between_two_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, boundary: str, grid: str
) -> None:
    on_host(monkeypatch, library)
    widths = ((2, 1), (1, 2))
    function = weighted(widths)
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2)(function)
    arrays = [np.random.default_rng(n).integers(0, 2**32, (27, 19), np.uint32) for n in range(2)]
    expected = plain_loop(function, arrays, 8, widths, boundary, [0, 1], 9)
    ranks = np.prod([int(parts) for parts in grid.split("x")])
    found, record = stepped(
        tmp_path, job, arrays, 8, ranks=int(ranks), grid=grid, halo="direct", steps_per_exchange=3
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert record["steps"]["exchanges"] == 2


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_graphs_hold_messages_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, every: int, overlap: bool
) -> None:
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4, 1))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    monkeypatch.setattr(ThreadComm, "capturable", True)
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path, devices=True, steps_per_exchange=every, halo="nccl", overlap=overlap)
    assert same
    assert record["overlap"] is overlap
    assert record["steps"]["graph"] is True
    assert record["steps"]["halo"] == "threads"
    assert record["steps"]["exchanges"] == 40 // every - 1


def test_messages_that_the_host_moves_are_in_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4, 1))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path, devices=True, halo="nccl")
    assert same
    assert record["steps"]["graph"] is False


def test_a_run_that_fails_drops_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    """A communicator that is closed waits for the graphs that hold its messages."""
    left: list[int] = []
    drop = stepper.Stepper.drop_graphs

    def dropped(self: Any) -> None:
        drop(self)
        left.append(len(self._graphs))

    def fail(self: Any, blocks: Any) -> Any:
        raise RunError("an observer fails", everywhere=True)

    monkeypatch.setattr(stepper.Stepper, "drop_graphs", dropped)
    monkeypatch.setattr("meshrun.runner.steps.loop.Until.observe", fail)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    monkeypatch.setattr(ThreadComm, "capturable", True)
    on_host(monkeypatch, library)
    with pytest.raises(RunError, match="an observer fails"):
        run_heat(tmp_path, devices=True, halo="nccl", until=-1.0, every=12)
    assert left == [0, 0, 0]


def test_steps_that_no_graph_can_hold_are_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    reason = "the function allocates device memory"
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)

    def capture(self: Any, work: Any) -> Any:
        self_stepper = work.func.__self__
        self_stepper.swap()  # as if it failed after a step
        raise NotCapturable(reason)

    monkeypatch.setattr(GraphBackend, "capture", capture)
    monkeypatch.setattr(stepper, "EAGER", 3)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    on_host(monkeypatch, library)
    same, record = run_heat(tmp_path, devices=True)
    assert same
    assert record["steps"]["graph"] is False
    assert record["steps"]["graph_reason"] == reason


# What may go wrong between ranks. Late ranks: an exchange waits for them.


def late(monkeypatch: pytest.MonkeyPatch, delays: Callable[[int, int], float]) -> None:
    """Before each of its exchanges, a rank sleeps."""
    fill, count = DirectHalos.fill, dict[int, int]()

    def delayed(halos: DirectHalos, blocks: Any) -> None:
        number = count[id(halos)] = count.get(id(halos), 0) + 1
        time.sleep(delays(halos._world.rank, number))
        fill(halos, blocks)

    monkeypatch.setattr(DirectHalos, "fill", delayed)


LATE = [lambda rank, number: 0.002 * (rank == 1), lambda rank, number: 0.002 * ((rank + number) % 3 == 0)]


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("delays", LATE)
def test_a_late_rank_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, every: int, delays: Any
) -> None:
    on_host(monkeypatch, library)
    late(monkeypatch, delays)
    same, _ = run_heat(tmp_path, halo="direct", steps_per_exchange=every)
    assert same


FAULTS = {
    "a count is not waited for": (
        "if (!wait_for(page + size + peers[i], number * EXCHANGE, patience, state))", "if (false)"
    ),
    "an earlier exchange's count is enough": (
        "peers[i], number * EXCHANGE, patience", "peers[i], (number - 1) * EXCHANGE, patience"
    ),
    "a share is added before the cells are stored": (
        "    if (ready) copy_row(row);\n", "    if (blockIdx.x + 1 < gridDim.x) copy_row(row);\n"
    ),
    "a cell is left out": ("blockDim.x) < row.last) *", "blockDim.x) < row.last - 1) *"),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.nightly] if turn else []) for turn, one in enumerate(FAULTS)],
)
def test_a_broken_kernel_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    on_host(monkeypatch, compiled(tmp_path, [FAULTS[fault]]))
    late(monkeypatch, LATE[0])
    same, _ = run_heat(tmp_path, halo="direct", overlap=False)
    assert not same


def test_cells_stored_before_a_neighbour_is_ready_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two steps per exchange every exchange has the same target."""
    on_host(
        monkeypatch, compiled(tmp_path, [("ready = wait_for(page + row.peer, number, patience, state);", "")])
    )
    late(monkeypatch, LATE[0])
    original = DirectHalos.fill

    def slow_reader(halos: DirectHalos, blocks: Any) -> None:
        original(halos, blocks)
        if halos._world.rank == 2:  # reads its halo only when its neighbours are two steps further
            time.sleep(0.003)

    monkeypatch.setattr(DirectHalos, "fill", slow_reader)
    same, _ = run_heat(tmp_path, halo="direct", steps_per_exchange=2)
    assert not same


@pytest.mark.parametrize("fault", ["the halo of the step before", "the face of another neighbour"])
def test_wrong_boxes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, fault: str
) -> None:
    original = halo_boxes.between_blocks

    def wrong(field: FieldHalos, moved: Any, source: int, target: int, peer: int = -1) -> Any:
        box = original(field, moved, source, target, peer)
        if peer >= 0 and fault == "the face of another neighbour":
            rows = field.layout(moved.sender).shape[1] * field.itemsize
            return halo_boxes.HaloBox(box.source + rows, box.target, box.axes, peer)
        return box

    monkeypatch.setattr(halo_boxes, "between_blocks", wrong)
    if fault == "the halo of the step before":
        fill = DirectHalos.fill

        def crossed(halos: DirectHalos, blocks: Any) -> None:
            """Each rank stores cells of the block that the step has read."""
            fill(halos, blocks)
            first, second = halos._launches
            halos._launches = {first: halos._launches[second], second: halos._launches[first]}

        monkeypatch.setattr(DirectHalos, "fill", crossed)
    on_host(monkeypatch, library)
    same, _ = run_heat(tmp_path, halo="direct")
    assert not same


@pytest.mark.parametrize("handshake", [False, True])
def test_a_dead_neighbour_is_named_and_nobody_spins(library: Path, handshake: bool) -> None:
    field = FieldHalos(Partition((8, 4), (2, 1)), ((1, 1), (0, 0)), "wrap", 8)

    def body(control: ThreadComm) -> Any:
        world = open_world("cpu", control=control)
        first, second = (np.zeros(field.layout(world.rank).shape) for _ in range(2))
        cells = halo_boxes.constant_cells(world.backend, [np.float64], "wrap", 0)
        halos = DirectHalos(
            world, [field], [(first, second)], cells, HostTables(library), HostPeers(control),
            handshake=handshake, patience=0.2,
        )  # fmt: skip
        if world.rank == 1:
            return None  # dies before its first exchange
        halos.check()
        halos.fill([first])
        begin = time.monotonic()
        for _ in range(50):  # what is queued behind it
            halos.fill([second])
        waited = time.monotonic() - begin
        with pytest.raises(RunError, match="waited in vain for the halo of its neighbour, rank 1"):
            halos.check()
        return waited

    waited, _ = run_ranks(2, body, timeout=60)
    assert waited < 50 * 0.2


def test_fields_without_halos_have_no_neighbour(library: Path) -> None:
    field = FieldHalos(Partition((8, 4), (2, 1)), ((0, 0), (1, 1)), "wrap", 8)
    array = np.arange(32.0).reshape(8, 4)

    def body(control: ThreadComm) -> Any:
        return halos_of(open_world("cpu", control=control), "direct", [field], [array], library, 0)[0]

    for rank, block in enumerate(run_ranks(2, body, timeout=60)):
        whole = padded(array[4 * rank :][:4], field.widths, "wrap", 0)
        np.testing.assert_array_equal(block, whole)
