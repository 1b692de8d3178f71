"""The recorder's file: what is written is read, from C and Python; half written, overwritten, stale."""

from __future__ import annotations

import importlib
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.recorder import process, ring
from meshrun.runner.recorder.imports import ImportCounter
from meshrun.runner.recorder.process import frames, place, process_state, remove_stale, tracebacks
from meshrun.runner.recorder.ring import RECORDS, RECORDS_AT, Recorder, read, start_time
from meshrun.runner.recorder.snapshot import snapshots

ROOT = Path(ring.__file__).parents[2]
ABOUT = {"run": "r", "rank": 0, "size": 1, "host": "n1", "device": "CPU", "command": "run"}
Make = Callable[[], Recorder]


@pytest.fixture(
    params=[pytest.param(True, marks=pytest.mark.skipif(not ring.BUILT, reason="not built")), False]
)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a recorder that writes from C, or from Python."""
    monkeypatch.setattr(ring, "BUILT", request.param)
    made: list[Recorder] = []

    def new() -> Recorder:
        made.append(Recorder(ring.file_of("r", len(made), tmp_path), {**ABOUT, "rank": len(made)}))
        return made[-1]

    yield new
    for one in made:
        one.close()


def test_operations_are_read_as_written(make: Make) -> None:
    recorder = make()
    world = recorder.group("world", [0, 1, 2])
    barrier, kernel = recorder.name("barrier"), recorder.name("kernel")
    recorder.leave(recorder.enter(barrier, 0, world, 7))
    recorder.enter(kernel, 4096)
    recorder.count(world, 2, 1, 0)
    recorder.count(world, 2, 1, 3)
    found = read(recorder.path)
    assert found is not None
    first, second = found.operations
    assert (first.name, first.group, first.sequence, first.is_collective) == ("barrier", "world", 7, True)
    assert first.left is not None
    assert 0 <= first.left <= first.entered <= found.age
    assert (second.name, second.moved, second.left, second.main, str(second)) == (
        "kernel",
        4096,
        None,
        True,
        "kernel",
    )
    assert found.collectives == {"world": 7}
    assert {name: (one.entered, one.open) for name, one in found.communication.items()} == {"barrier": (1, 0)}
    assert {name: (one.moved, one.open) for name, one in found.totals.items()} == {"kernel": (4096, 1)}
    assert found.messages == {("world", 2): (2, 3)}
    assert found.groups["world"].members == (0, 1, 2)
    assert ring.count_of(recorder.path) == 2


def test_the_last_operations_stay_and_an_old_one_is_not_left_in_a_new_ones_place(make: Make) -> None:
    recorder = make()
    name = recorder.name("kernel")
    first = recorder.enter(name)
    for _ in range(RECORDS):
        recorder.enter(name)
    recorder.leave(first)
    found = read(recorder.path)
    assert found is not None
    assert [one.number for one in found.operations] == list(range(2, RECORDS + 2))
    assert all(one.left is None for one in found.operations)


def test_each_module_that_is_imported_counts_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted_one.py").write_text("import counted_two")
    (tmp_path / "counted_two.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("counted_one", "counted_two"):
        sys.modules.pop(name, None)
    recorder = make()
    importlib.import_module("counted_one")
    for _ in range(3):  # a loop that tries again is no progress
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("counted_none")
        importlib.reload(sys.modules["counted_two"])
    assert ring.count_of(recorder.path) == 3
    recorder.enter(recorder.name("kernel"))
    assert ring.count_of(recorder.path) == 4
    recorder.close()
    assert not any(isinstance(finder, ImportCounter) for finder in sys.meta_path)


def test_threads_share_a_recorder(make: Make) -> None:
    recorder = make()
    name = recorder.name("read")

    def work() -> None:
        for _ in range(500):
            recorder.leave(recorder.enter(name))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(recorder.path)
    assert found is not None
    assert [one.number for one in found.operations] == list(range(1, 2001))
    assert all(one.left is not None and not one.main for one in found.operations)


def test_a_half_written_record_is_left_out(make: Make) -> None:
    recorder = make()
    for _ in range(3):
        recorder.enter(recorder.name("kernel"))
    with recorder.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[RECORDS_AT + 2 * 64 + 56 : RECORDS_AT + 3 * 64] = bytes(8)
    found = read(recorder.path)
    assert found is not None
    assert [one.number for one in found.operations] == [1, 3]


def test_full_tables_lose_names_and_not_the_run(make: Make) -> None:
    recorder = make()
    numbers = [recorder.name(f"phase {i}") for i in range(ring.NAMES + 5)]
    groups = [recorder.group(f"world/{i}", range(100)) for i in range(ring.GROUPS + 5)]
    for peer in range(ring.PEERS + 5):
        recorder.count(groups[0], peer, 1, 1)
    recorder.enter(numbers[-1], 0, groups[-1], 3)
    recorder.enter(numbers[0])
    found = read(recorder.path)
    assert found is not None
    assert [one.name for one in found.operations] == ["other", "phase 0"]
    assert not found.operations[0].is_collective
    assert len(found.messages) == ring.PEERS - 1


@pytest.mark.parametrize("members", [range(4096), range(0, 4096, 64), [5], [3, 1, 2], [0, 1, 4, 5, 8, 9], []])
def test_members_are_read_in_their_order(make: Make, members: list[int]) -> None:
    recorder = make()
    recorder.group("world", members)
    found = read(recorder.path)
    assert found is not None
    assert found.groups["world"].members == tuple(members)


@given(st.lists(st.integers(0, 10_000), max_size=40, unique=True))
def test_runs_of_members(members: list[int]) -> None:
    assert ring.members_of(ring.runs_of(members)) == tuple(members)


def test_a_communicator_too_large_to_list_has_unknown_members(make: Make) -> None:
    recorder = make()
    recorder.group("world", [i * i for i in range(1000)])
    found = read(recorder.path)
    assert found is not None
    assert found.groups["world"].members is None


def test_other_files_are_no_recordings(tmp_path: Path) -> None:
    for content in (b"", b"meshrun1", bytes(ring.SIZE)):
        path = tmp_path / "file"
        path.write_bytes(content)
        assert read(path) is None
    assert read(tmp_path / "none") is None


def test_a_name_that_is_taken_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    link = ring.file_of("r", 0, tmp_path)
    link.symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        Recorder(link, ABOUT)
    assert (tmp_path / "target").read_text() == "mine"


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Recorder(ring.file_of("r", 0, tmp_path), ABOUT)
    assert not list(tmp_path.iterdir())


# Processes.

RANK = f"""
import sys, time
sys.path.append({str(ROOT)!r})
from pathlib import Path
from meshrun.runner.recorder.ring import Recorder, file_of
recorder = Recorder(file_of("r", 5, Path(sys.argv[1])), {{**{ABOUT!r}, "rank": 5}})
def wait_here():
    time.sleep(600)
recorder.enter(recorder.name("kernel"))
print("ready", flush=True)
wait_here()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a recorder, which waits in C."""
    script = tmp_path / "user_file.py"
    script.write_text(RANK)
    started = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def await_state(pid: int, state: str) -> None:
    until = time.monotonic() + 60
    while process_state(pid) != state:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_line_of_a_process_that_waits_in_c_and_its_state(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    await_state(other.pid, "waiting")
    for _ in range(3):  # a second answer is not appended to the first
        (found,) = snapshots(ring.files_of("r", tmp_path))
        assert str(found.at) == "user_file.py:8 in wait_here"
        assert str(found.current) == "kernel"
    other.send_signal(signal.SIGSTOP)
    await_state(other.pid, "stopped")
    (found,) = snapshots(ring.files_of("r", tmp_path))
    assert (found.state, found.at) == ("stopped", None)
    other.send_signal(signal.SIGCONT)
    time.sleep(0.1)
    assert other.poll() is None


def test_a_dead_process_and_what_it_left(other: subprocess.Popen[str], tmp_path: Path, make: Make) -> None:
    living = make()
    remove_stale(tmp_path)
    assert len(ring.files_of("r", tmp_path)) == 2
    other.kill()
    other.wait()
    assert [one.state for one in snapshots(ring.files_of("r", tmp_path), with_lines=False)] == [
        "running",
        "dead",
    ]
    remove_stale(tmp_path)
    assert ring.files_of("r", tmp_path) == [living.path]


def test_files_of_another_namespace_of_processes_stay(
    other: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.kill()
    other.wait()
    monkeypatch.setattr(process, "namespace", lambda: "pid:[1]")
    remove_stale(tmp_path)
    assert len(ring.files_of("r", tmp_path)) == 1


def test_another_process_with_the_number_is_another(tmp_path: Path) -> None:
    own = os.getpid()
    assert process_state(own, start_time(own)) == "running"
    assert process_state(own, start_time(own) + 1) == "dead"
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a ) T) D 1 " + " ".join("0" * 30))
    assert process_state(7, processes=tmp_path) == "disk"


def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    """Its file has gone. A process without a handler would be killed: only recorders' files name any."""
    assert tracebacks([(tmp_path / "gone", os.getpid())], seconds=0.1) == [[]]


def test_the_frame_that_is_named() -> None:
    text = f"""Current thread 0x00007f (most recent call first):
  File "{ROOT}/runner/comm/mpi.py", line 85 in barrier
  File "/usr/lib/python3/site-packages/numpy/core.py", line 3 in dot
  File "/home/a b/edges.py", line 17 in smooth
  File "/home/a b/edges.py", line 30 in edges
"""
    found = frames(text)
    assert len(found) == 4
    assert str(place(found)) == "edges.py:17 in smooth"
    assert str(place(found[:1])) == "mpi.py:85 in barrier"
    assert place([]) is None


def test_a_process_that_has_closed_its_recorder_survives_a_late_question(tmp_path: Path) -> None:
    """`meshrun status` may have read the file just before."""
    script = RANK.replace("wait_here()\n", "").replace("time.sleep(600)", "pass")
    script += f"\nrecorder.close()\nimport os, signal\nos.kill(os.getpid(), {int(ring.TRACEBACK_SIGNAL)})\n"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_totals_lose_nothing_when_records_are_overwritten(make: Make) -> None:
    recorder = make()
    outer, step = recorder.name("kernel"), recorder.name("step")
    entry = recorder.enter(outer, 100)
    for _ in range(RECORDS + 10):
        recorder.leave(recorder.enter(step, 8), 3)
    time.sleep(0.02)
    recorder.leave(entry)
    found = read(recorder.path)
    assert found is not None
    kernel, steps = found.totals["kernel"], found.totals["step"]
    assert (kernel.entered, kernel.open, kernel.moved, kernel.steps) == (1, 0, 100, 0)
    assert 0.02 <= kernel.seconds <= found.age
    assert (steps.entered, steps.open) == (RECORDS + 10, 0)
    assert (steps.moved, steps.steps) == (8 * (RECORDS + 10), 3 * (RECORDS + 10))
    assert 0 < steps.seconds <= kernel.seconds - 0.02
    assert set(found.totals) == {"kernel", "step"}


def test_an_open_operation_counts_until_now(make: Make) -> None:
    recorder = make()
    recorder.leave(recorder.enter(recorder.name("barrier")))
    recorder.enter(recorder.name("barrier"))
    time.sleep(0.02)
    first = read(recorder.path)
    time.sleep(0.02)
    second = read(recorder.path)
    assert first is not None
    assert second is not None
    assert (first.totals["barrier"].entered, first.totals["barrier"].open) == (2, 1)
    assert first.totals["barrier"].seconds >= 0.02
    assert second.totals["barrier"].seconds >= first.totals["barrier"].seconds + 0.02


def test_half_written_totals_are_left_out(make: Make) -> None:
    recorder = make()
    for name in ("read", "write"):
        recorder.leave(recorder.enter(recorder.name(name)))
    with recorder.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = ring.TOTALS_AT + recorder.name("read") * 64 + 56
        content[at : at + 8] = bytes(8)  # as of a rank that was stopped between two stores
    found = read(recorder.path)
    assert found is not None
    assert set(found.totals) == {"write"}


def test_a_reader_never_sees_totals_that_are_torn(make: Make) -> None:
    recorder = make()
    name = recorder.name("step")
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            recorder.leave(recorder.enter(name, 8), 1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        found = [one for _ in range(100) if (one := read(recorder.path)) and "step" in one.totals]
    finally:
        ended.set()
        thread.join()
    assert found
    for one in found:
        total = one.totals["step"]
        assert total.moved == 8 * total.entered
        assert total.steps == total.entered - total.open
        assert 0 <= total.seconds <= one.age + 0.1


def test_planned_steps_are_read(make: Make) -> None:
    recorder = make()
    recorder.plan_steps(500)
    found = read(recorder.path)
    assert found is not None
    assert found.planned == 500
