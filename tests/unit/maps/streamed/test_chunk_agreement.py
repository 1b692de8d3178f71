"""Whether a run is in chunks and in which: by hand, from what the options and the machine's memory say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decided import streamed
from PIL import Image
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.arrays.fingerprint import fingerprint
from meshrun.runner.arrays.inputs import Inputs, State, input_key, state_of
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.discover import find
from meshrun.runner.maps.streamed.chunk_agreement import chunks_of, known_results
from meshrun.runner.maps.streamed.endpoints import PIECE, _pieces
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan import chunking
from meshrun.runner.plan.chunking import DEVICE_SHARE, HOST_SHARE, ON_DEVICE, ON_HOST, MemoryUse
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.region import Region
from meshrun.runner.run.prepare import limits
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.storage.journal import differences
from meshrun.runner.system.host_memory import host_memory
from meshrun.runner.world.world import World, open_world, single_rank_world

GIB = 1 << 30
LITTLE = 100 * 6 * 8  # bytes of the array of `task`


@meshrun.map_blocks
def same(block: Any, *, out: Any) -> None:
    out[...] = block


def task(shape: tuple[int, ...] = (100, 6), *, job: Any = same, ranks: int = 1, **options: Any) -> Task:
    """Of float64."""
    return plan_task(job, {}, [(shape, np.dtype(np.float64))], ranks, **options)


def lone(backend: Any = None) -> World:
    return single_rank_world(backend or CpuBackend())


@pytest.fixture
def source(tmp_path: Path) -> Any:
    np.save(tmp_path / "in.npy", np.zeros((100, 6)))
    return open_source(tmp_path / "in.npy")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the host have so many bytes."""
    return lambda size: monkeypatch.setattr("meshrun.runner.run.prepare.host_memory", lambda: size)


# ---- whether


def asked(source: Any, target: str = "out.npy", *, world: World | None = None, **options: Any) -> bool:
    world = world or lone()
    cut = plan_task(same, {}, [(source.shape, source.dtype)], world.size)
    return streamed(world, cut, source, StreamOptions(**options), source.path.with_name(target))


def test_an_array_that_fits_is_not_cut(source: Any, memory: Callable[[int], None]) -> None:
    assert not asked(source)
    memory(HOST_SHARE * 2 * LITTLE)  # the block and its result
    assert not asked(source)


def test_an_array_that_does_not_fit_is_cut(source: Any, memory: Callable[[int], None]) -> None:
    memory(HOST_SHARE * 2 * LITTLE - HOST_SHARE)
    assert asked(source)


@pytest.mark.parametrize("missing", [0, 1])
def test_ranks_of_a_host_share_its_memory_and_agree(
    source: Any, memory: Callable[[int], None], missing: int
) -> None:
    # 100 rows on 3 ranks: 34, 33, 33. All decide as the rank with the most.
    memory(HOST_SHARE * 3 * (34 * 6 * 8 * 2 - missing))
    answers = run_ranks(3, lambda control: asked(source, world=open_world("cpu", control=control)))
    assert answers == [bool(missing)] * 3


@pytest.mark.parametrize("missing", [0, 1])
def test_a_device_needs_room_for_what_the_function_makes(source: Any, missing: int) -> None:
    needed = 2 * 2 * LITTLE
    device = QueuedBackend(memory=int(np.ceil(needed / DEVICE_SHARE)) - 2 * missing)
    assert asked(source, world=lone(device)) == bool(missing)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_device_that_is_kept_busy_gets_chunks(
    source: Any, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "ON_DEVICE", (LITTLE + missing) // chunking.FILLS + bool(missing))
    device = lone(QueuedBackend(memory=GIB))
    assert asked(source, world=device) == (not missing)
    assert not asked(source)  # a CPU overlaps nothing
    task = plan_task(same, {}, [(source.shape, source.dtype)], 1)
    target = source.path.with_name("out.npy")
    assert not streamed(device, task, source, StreamOptions(), target, keep_whole=True)


OPTIONS = [
    ("--chunk-bytes", {"chunk_bytes": 4800}),
    ("--host-memory", {"host_memory": GIB}),
    ("--device-memory", {"device_memory": GIB}),
    ("--depth", {"depth": 2}),
    ("--resume", {"resume": True}),
    ("--static", {"static": True}),
    ("--timeline", {"timeline": "t.html"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_an_option_of_chunks_asks_for_chunks(source: Any, name: str, options: dict[str, Any]) -> None:
    assert StreamOptions(**options).named == name
    assert asked(source, **options)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_picture_is_refused_by_the_options_name(
    source: Any, tmp_path: Path, name: str, options: dict[str, Any], side: str
) -> None:
    picture = tmp_path / "in.png"
    Image.new("L", (6, 100)).save(picture)
    pixels = open_source(picture)
    bytes_ = replace(source, stored=np.dtype(np.uint8), path=source.path)
    with pytest.raises(UserError) as refusal:
        asked(pixels, **options) if side == "input" else asked(bytes_, "out.png", **options)
    which = picture if side == "input" else tmp_path / "out.png"
    assert str(refusal.value).startswith(
        f"{name} applies only to streamed runs: got {which}, which one rank reads or writes whole"
    )


def test_a_picture_without_options_is_not_cut(tmp_path: Path, memory: Callable[[int], None]) -> None:
    Image.new("L", (6, 100)).save(tmp_path / "in.png")
    memory(HOST_SHARE)
    assert not asked(open_source(tmp_path / "in.png"), "out.png")


# ---- into what


def rows_of(
    cut: Task,
    *,
    backend: Any = None,
    world: World | None = None,
    kept: int | None = None,
    source_chunks: Any = None,
    sink_chunks: Any = None,
    **options: Any,
) -> int:
    source = SimpleNamespace(chunks=source_chunks)
    sink = SimpleNamespace(chunks=sink_chunks, path=Path("out.zarr"))
    chosen: Any = StreamOptions(**options)
    world = world or lone(backend)
    memory = world.gather_calls(lambda: limits(world, chosen))
    return chunks_of(world, cut, [source], [sink], chosen, memory, kept).rows  # type: ignore[arg-type]


def halo(*widths: tuple[int, int]) -> Any:
    @meshrun.map_blocks(halo=widths)
    def padded(block: Any, *, out: Any) -> None:
        out[...] = 0

    return padded


@pytest.mark.parametrize(
    ("job", "size", "rows"),
    [
        (same, 480, 10),
        (same, 527, 10),
        (same, 48, 1),
        (halo((2, 1)), 480, 7),
        (halo((2, 1)), 4 * 48, 1),
        (halo((0, 0), (1, 1)), 640, 10),
        (halo((1, 1), (1, 1)), 640, 8),
    ],
)
def test_chunk_bytes_are_of_what_is_read_with_its_halo(job: Any, size: int, rows: int) -> None:
    assert rows_of(task(job=job), chunk_bytes=size) == rows


@pytest.mark.parametrize(
    ("job", "size", "least"),
    [(same, 47, 48), (halo((2, 1)), 191, 192), (halo((1, 1), (1, 1)), 191, 192)],
)
def test_chunk_bytes_for_less_than_a_row_are_refused(job: Any, size: int, least: int) -> None:
    with pytest.raises(UserError) as refusal:
        rows_of(task(job=job), chunk_bytes=size)
    assert str(refusal.value) == (
        f"--chunk-bytes is less than a row with the halo: got {size} bytes, expected at least {least}"
    )
    assert rows_of(task(job=job), chunk_bytes=least) == 1


def test_of_several_blocks_the_widest_one_decides() -> None:
    # 7 columns in 2 blocks: 4 and 3.
    cut = task((100, 7), ranks=2, grid="1x2")
    assert rows_of(cut, chunk_bytes=4 * 8 * 10) == 10
    with pytest.raises(UserError, match="expected at least 32"):
        rows_of(cut, chunk_bytes=31)


@pytest.mark.parametrize(("size", "rows"), [(16, 16), (31, 16), (32, 32), (95, 80), (100, 96)])
def test_chunks_end_where_the_outputs_chunks_do(size: int, rows: int) -> None:
    assert rows_of(task(), chunk_bytes=size * 48, sink_chunks=(16, 6)) == rows


def test_chunk_bytes_for_less_than_a_chunk_of_the_output_are_refused() -> None:
    with pytest.raises(UserError) as refusal:
        rows_of(task(job=halo((1, 1))), chunk_bytes=18 * 48 - 1, sink_chunks=(16, 6))
    assert str(refusal.value) == (
        "--chunk-bytes is less than the 16 rows of a chunk of the output with the halo: got 863 bytes, "
        "expected at least 864"
    )


def test_of_an_output_in_chunks_of_one_row_a_row_is_the_least() -> None:
    with pytest.raises(UserError, match=r"^--chunk-bytes is less than a row with the halo: got 143 bytes"):
        rows_of(task(job=halo((1, 1))), chunk_bytes=143, sink_chunks=(1, 6))


def test_an_output_of_chunks_is_cut_along_rows_alone() -> None:
    with pytest.raises(UserError, match=r"out\.zarr has a chunked format.*got --grid 1x2"):
        rows_of(task(ranks=2, grid="1x2"), sink_chunks=(16, 6))


def test_without_options_a_chunk_is_what_a_cache_or_a_copy_engine_likes() -> None:
    large = task((1 << 20, 1 << 10))  # 8 KiB a row
    assert rows_of(large) == ON_HOST >> 13
    assert rows_of(large, backend=QueuedBackend()) == ON_DEVICE >> 13


def test_a_wide_halo_does_not_make_most_of_a_chunk() -> None:
    wide = task((1 << 20, 1 << 10), job=halo((400, 100)))
    assert rows_of(wide) == 4 * 500


def test_every_rank_has_chunks_for_all_its_slots() -> None:
    assert rows_of(task((100, 6)), depth=3) == 34
    rows = run_ranks(
        2,
        lambda control: rows_of(task((100, 6)), world=open_world("cpu", control=control), depth=4),
    )
    assert rows == [13, 13]


@pytest.mark.parametrize(("natural", "rows"), [(1, 34), (10, 40), (17, 34), (34, 34), (50, 50)])
def test_chunks_are_whole_chunks_of_the_input(natural: int, rows: int) -> None:
    assert rows_of(task((100, 6)), depth=3, source_chunks=(natural, 6)) == rows


def test_chunks_fit_the_hosts_memory() -> None:
    # A row is read, and its result is written: 96 bytes; three chunks at a time.
    assert rows_of(task(), host_memory=3 * 96 * 7) == 7
    assert rows_of(task(), host_memory=3 * 96 * 8 - 1) == 7
    with pytest.raises(UserError, match="a chunk of a row with its halo does not fit the host memory"):
        rows_of(task(), host_memory=3 * 96 - 1)


def test_chunks_fit_the_devices_memory() -> None:
    assert rows_of(task(), backend=QueuedBackend(), device_memory=3 * 96 * 7) == 7
    with pytest.raises(UserError, match=r"does not fit the device memory.*--device-memory"):
        rows_of(task(), backend=QueuedBackend(), device_memory=3 * 96 - 1)
    free = int(2 * 96 * 5 / DEVICE_SHARE) + 2
    assert rows_of(task(), backend=QueuedBackend(memory=free), depth=2) == 5


def test_the_rank_with_the_least_memory_decides_for_all() -> None:
    def rows(control: Any) -> int:
        size = 3 * 96 * (5 if control.rank == 1 else 9)
        return rows_of(task(), world=open_world("cpu", control=control), host_memory=size)

    assert run_ranks(3, rows) == [5, 5, 5]


def test_an_unfinished_runs_chunks_are_kept_whatever_is_asked() -> None:
    assert rows_of(task(), kept=7) == 7
    assert rows_of(task(), kept=7, chunk_bytes=48) == 7
    assert rows_of(task(), kept=7, host_memory=3 * 96 * 7) == 7
    with pytest.raises(UserError) as refusal:
        rows_of(task(), kept=7, host_memory=3 * 96 * 7 - 1)
    assert str(refusal.value) == (
        "the chunks of the unfinished run do not fit this run's memory: got 6 rows that fit, expected 7 "
        "rows, 3 chunks under way. Try: --depth 1, or memory as in the first run"
    )


def test_an_unfinished_runs_chunks_of_an_aligned_output_are_kept() -> None:
    assert rows_of(task(), kept=32, sink_chunks=(16, 6)) == 32


def test_an_array_without_cells_has_no_chunks() -> None:
    assert rows_of(task((0, 6)), chunk_bytes=1) == 1


# ---- the result's shape and dtype, before there is any


@pytest.mark.parametrize("backend", [CpuBackend, QueuedBackend])
@pytest.mark.parametrize("zeros", [True, False])
def test_what_is_not_declared_is_seen_by_a_call_on_a_small_array_else_on_the_first_row(
    tmp_path: Path, backend: Callable[[], Any], zeros: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = []

    @meshrun.map_blocks(halo=((2, 1), (0, 0)), boundary="constant", cval=5)
    def means(block: Any) -> Any:
        blocks.append(block.copy())
        print("called")
        if not zeros and len(block) > 4:
            raise ZeroDivisionError
        return block[2:-1].mean(axis=1).astype(np.float32)

    np.save(tmp_path / "in.npy", np.arange(60.0).reshape(10, 6))
    source = open_source(tmp_path / "in.npy")
    known = known_results(lone(backend()), task((10, 6), job=means), [source]).known
    assert known == (((10,), np.dtype(np.float32)),)
    assert not blocks[0][2:-1].any()
    assert zeros == (len(blocks) == 1)
    if not zeros:
        np.testing.assert_array_equal(blocks[-1], [[5] * 6, [5] * 6, np.arange(6), np.arange(6, 12)])
    assert capsys.readouterr().out == ""


# ---- memory


def machine(
    folder: Path, kilobytes: int, group: str | None, limits: dict[str, str], version: str = "0::"
) -> tuple[Path, Path]:
    """A /proc and a tree of control groups: memory.max by the group's path."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(f"MemTotal:       {kilobytes} kB\nMemFree:   7 kB\n")
    if group is not None:
        (folder / "proc/self/cgroup").write_text(f"{version}{group}\n")
    root = folder / "sys/fs/cgroup"
    for path, text in limits.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "memory.max").write_text(f"{text}\n")
    return folder / "proc", root


@pytest.mark.parametrize(
    ("group", "limits", "found"),
    [
        (None, {}, 64 << 20),
        ("/", {}, 64 << 20),
        ("/", {".": "1000000"}, 1000000),
        ("/job/step", {"job/step": "max"}, 64 << 20),
        ("/job/step", {"job/step": "3000000"}, 3000000),
        ("/job/step", {"job/step": "3000000", "job": "2000000"}, 2000000),
        ("/job/step", {"job/step": "max", "job": "2000000"}, 2000000),
        ("/job/step", {"job": "2000000", "other": "5"}, 2000000),
        ("/job/step", {"job/step": "99999999999"}, 64 << 20),
        ("/job/step", {"..": "5"}, 64 << 20),  # not one of its groups
    ],
)
def test_memory_is_the_hosts_or_less_by_a_control_group(
    tmp_path: Path, group: str | None, limits: dict[str, str], found: int
) -> None:
    proc, root = machine(tmp_path, 64 << 10, group, limits)
    assert host_memory(proc, root) == found


def test_other_lines_of_control_groups_are_passed_over(tmp_path: Path) -> None:
    proc, root = machine(tmp_path, 64 << 10, "/job", {"job": "5"}, version="3:cpu,cpuacct:")
    assert host_memory(proc, root) == 64 << 20


def test_this_machine_has_memory() -> None:
    assert 1 << 20 < host_memory() < 1 << 50


def test_limits_are_what_the_options_say_else_a_share(memory: Callable[[int], None]) -> None:
    memory(4000)
    assert limits(lone(), StreamOptions()) == MemoryUse(4000 // HOST_SHARE, 0)
    assert limits(lone(), StreamOptions(host_memory=77, device_memory=88)) == MemoryUse(77, 0)
    device = QueuedBackend(memory=1000)
    assert limits(lone(device), StreamOptions()) == MemoryUse(4000 // HOST_SHARE, int(1000 * DEVICE_SHARE))
    assert limits(lone(device), StreamOptions(host_memory=77, device_memory=88)) == MemoryUse(77, 88)


def test_ranks_beside_share_what_options_do_not_say(memory: Callable[[int], None]) -> None:
    memory(12000)

    def share(control: Any) -> tuple[MemoryUse, MemoryUse]:
        world = open_world("cpu", control=control)
        names = ["one", "one", "two"]
        world.ranks = tuple(
            replace(rank, host=name, host_id=name) for rank, name in zip(world.ranks, names, strict=True)
        )
        return limits(world, StreamOptions()), limits(world, StreamOptions(host_memory=55))

    halves, whole = MemoryUse(12000 // HOST_SHARE // 2, 0), MemoryUse(12000 // HOST_SHARE, 0)
    told = MemoryUse(55, 0)
    assert run_ranks(3, share) == [(halves, told), (halves, told), (whole, told)]


# ---- what makes two runs the same

KEY = input_key(0)
JOB = """
import meshrun

@meshrun.map_blocks(halo=1)
def smooth(block, *, out, gain: float = 1.0):
    out[...] = gain * block[1:-1, 1:-1]
"""


def identified(
    folder: Path,
    *,
    name: str = "in.npy",
    dtype: Any = np.float64,
    backend: Any = None,
    rows: int = 7,
    grid: tuple[int, int] = (1, 1),
    gain: float = 1.0,
    job: str = "smooth.py:smooth",
    **options: Any,
) -> dict[str, Any]:
    found = find(str(folder / job))
    source = open_source(folder / name)
    cut = plan_task(found, {"gain": gain}, [(source.shape, np.dtype(dtype))], 1, **options)
    chunks = Chunks(Partition(source.shape, grid), rows)
    cut = cut.with_grid(grid)
    cut = cut if cut.results else cut.with_results([(source.shape[cut.leading :], np.dtype(dtype))])
    return fingerprint(
        lone(backend), cut, [source], chunks, Inputs({KEY: source.path}, {KEY: state_of(source.path)})
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "smooth.py").write_text(JOB)
    np.save(tmp_path / "in.npy", np.zeros((10, 6)))
    return tmp_path


def test_two_runs_alike_have_one_identity(project: Path) -> None:
    one = identified(project)
    assert differences(one, identified(project)) == []
    assert one["inputs"]["block"]["path"] == str((project / "in.npy").resolve())
    assert one["parameters"] == {"gain": 1.0}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"gain": 2.0}, ["parameters.gain"]),
        ({"boundary": "wrap"}, ["boundary"]),
        ({"boundary": "constant", "cval": 2.0}, ["boundary", "cval"]),
        ({"rows": 8}, ["rows"]),
        ({"grid": (1, 2)}, ["grid"]),
        ({"backend": QueuedBackend()}, ["device"]),
        ({"dtype": np.float32}, ["inputs.block.dtype", "results.output.dtype"]),
    ],
)
def test_each_thing_that_makes_other_bytes_makes_another_run(
    project: Path, change: dict[str, Any], names: list[str]
) -> None:
    assert sorted(differences(identified(project), identified(project, **change))) == names


def changed(project: Path, do: Callable[[], object], **more: Any) -> list[str]:
    before = identified(project)
    do()
    return sorted(differences(before, identified(project, **more)))


def test_an_input_that_was_touched_is_another_one(project: Path) -> None:
    assert changed(project, lambda: os.utime(project / "in.npy", ns=(5, 5))) == ["inputs.block.changed_ns"]


def test_an_input_written_anew_is_another_one(project: Path) -> None:
    names = changed(project, lambda: np.save(project / "in.npy", np.zeros((11, 6))))
    assert {"inputs.block.bytes", "inputs.block.shape", "results.output.shape"} <= set(names)


def test_an_input_of_another_order_is_another_one(project: Path) -> None:
    before = state_of(project / "in.npy")

    def transpose() -> None:
        np.save(project / "in.npy", np.asfortranarray(np.zeros((10, 6))))
        os.utime(project / "in.npy", ns=(0, before[1]))

    names = changed(project, transpose)
    assert "inputs.block.order" in names


def test_a_copy_of_the_input_is_another_one(project: Path) -> None:
    os.link(project / "in.npy", project / "too.npy")
    assert changed(project, lambda: None, name="too.npy") == ["inputs.block.path"]


def test_a_link_to_the_input_is_the_same_one(project: Path) -> None:
    (project / "link.npy").symlink_to(project / "in.npy")
    assert changed(project, lambda: None, name="link.npy") == []


def test_a_job_file_that_was_edited_is_another_one(project: Path) -> None:
    edited = JOB.replace("gain *", "2 * gain *")
    assert changed(project, lambda: (project / "smooth.py").write_text(edited)) == ["code"]


def test_another_halo_is_another_run(project: Path) -> None:
    edited = JOB.replace("halo=1", "halo=((1, 1), (0, 2))").replace("1:-1, 1:-1", "1:-1, :-2")
    assert changed(project, lambda: (project / "smooth.py").write_text(edited)) == ["code", "halo"]


WRAPPED = """
import meshrun
from wrapping import traced

@meshrun.map_blocks(halo=1)
@traced
def smooth(block, *, out, gain: float = 1.0):
    out[...] = gain * block[1:-1, 1:-1]
"""
WRAPPING = """
import functools

def traced(function):
    @functools.wraps(function)
    def call(*arguments, **keywords):
        return function(*arguments, **keywords)
    return call
"""


def test_the_code_of_a_function_that_another_files_decorator_wraps_is_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    (project / "wrapping.py").write_text(WRAPPING)
    (project / "smooth.py").write_text(WRAPPED)
    edited = WRAPPED.replace("gain *", "2 * gain *")
    assert changed(project, lambda: (project / "smooth.py").write_text(edited)) == ["code"]


def test_a_function_that_is_in_no_file_has_code_too(project: Path) -> None:
    def identities(text: str) -> Any:
        names: dict[str, Any] = {"meshrun": meshrun}
        exec(text, names)
        source = open_source(project / "in.npy")
        cut = plan_task(names["typed"], {}, [(source.shape, source.dtype)], 1)
        return fingerprint(
            lone(), cut, [source], Chunks(cut.partition, 2), Inputs({}, {KEY: State(0, 0, 1, 0)})
        )

    text = "@meshrun.map_blocks\ndef typed(block, *, out):\n    out[...] = block + 1"
    assert differences(identities(text), identities(text)) == []
    assert differences(identities(text), identities(text.replace("+ 1", "+ 2"))) == ["code"]


def test_the_state_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "inner/b").write_bytes(b"123")
    os.utime(tmp_path / "a", ns=(5, 100))
    os.utime(tmp_path / "inner/b", ns=(5, 200))
    assert state_of(tmp_path)[:3] == (8, 200, 2)
    os.utime(tmp_path / "a", ns=(5, 300))
    assert state_of(tmp_path)[:3] == (8, 300, 2)
    (tmp_path / "inner/b").unlink()
    assert state_of(tmp_path)[:3] == (5, 300, 1)


@pytest.mark.parametrize("start", [0, 3, 8])
@pytest.mark.parametrize("align", [1, 4, 5])
def test_pieces_are_cut_where_the_files_chunks_are(start: int, align: int) -> None:
    """A chunk of a file is decoded whole: no two pieces share one."""
    rows = 23
    region = Region((start, 0), (start + rows, 6))
    array = np.zeros((rows, PIECE // 40 // 8))  # several pieces
    found = list(_pieces(region, array, align))
    assert [part.start[0] for part, _ in found][1:] == [part.stop[0] for part, _ in found][:-1]
    assert (found[0][0].start[0], found[-1][0].stop[0]) == (start, start + rows)
    assert all(part.start[0] % align == 0 for part, _ in found[1:])
    assert all(len(rows) == part.shape[0] for part, rows in found)
