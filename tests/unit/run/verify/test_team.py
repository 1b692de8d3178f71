"""The team of a verification: processes give what threads give, and tell what goes wrong in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_runs import plain_loop, stepped, weighted, weighted_job

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, traceback_of
from meshrun.runner.job import pickling
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.region import Region
from meshrun.runner.run.verify import steps as verify_steps
from meshrun.runner.run.verify import team as verify_team
from meshrun.runner.run.verify.steps import PlainLoop
from meshrun.runner.run.verify.team import (
    LEAST_PROCESSES,
    MOST_PROCESSES,
    PROCESS_BYTES,
    PROCESS_WORK,
    open_team,
    processes_of,
)
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.world import open_world


def planned(job: Job, array: np.ndarray[Any, Any], parameters: dict[str, Any] | None = None) -> Task:
    """A task whose result is like its one input."""
    task = plan_task(job, parameters or {}, [(array.shape, array.dtype)], 1)
    return task.with_results([(array.shape[task.leading :], array.dtype)])


def taken(
    folder: Path, task: Task, array: np.ndarray[Any, Any], steps: int, processes: int
) -> tuple[np.ndarray[Any, Any], str | None]:
    """The result after some steps, and why no processes took them."""
    np.save(folder / "in.npy", array)
    loop = PlainLoop(task, Region((0,) * array.ndim, array.shape), steps)
    with open_team(task, loop.nbytes, 2, processes) as team:
        found = loop.run([open_source(folder / "in.npy")], team)[0].copy()
        assert team.processes == (0 if team.reason else processes)
        return found, team.reason


def heat_job() -> Job:
    @meshrun.map_blocks(halo=1, boundary="nearest")
    def heat(block: Any) -> Any:
        sides = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
        return block[1:-1, 1:-1] + np.float32(0.2) * (sides - 4 * block[1:-1, 1:-1])

    return heat


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every verification use two processes, and many tiles."""
    monkeypatch.setattr(verify_steps, "processes_of", lambda *_: 2)
    monkeypatch.setattr(verify_team, "PROCESS_TILE_BYTES", 256)


@pytest.mark.parametrize(("boundary", "ranks"), [("wrap", 1), ("constant", 1), ("mirror", 2)])
@pytest.mark.usefixtures("two_processes")
def test_processes_verify_what_threads_do(tmp_path: Path, boundary: str, ranks: int) -> None:
    """Two fields, of which each feeds the other, by a function that overwrites its blocks."""
    widths, feeds = ((1, 2), (0, 1)), ("other", "block")
    function = weighted(widths)
    job = weighted_job(function, widths, boundary, feeds, in_place=True)
    arrays = [np.random.default_rng(k).integers(0, 2**32, (23, 14), np.uint32) for k in range(2)]
    found, record = stepped(tmp_path, job, arrays, 5, ranks=ranks, verify="full")
    for one, other in zip(found, plain_loop(function, arrays, 5, widths, boundary, (1, 0), 9), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (record["verify"]["processes"], record["verify"]["processes_reason"]) == (2 * ranks, None)


@pytest.mark.parametrize("cell", [(0, 0), (13, 11)])
@pytest.mark.usefixtures("two_processes")
def test_processes_find_a_single_wrong_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: tuple[int, int]
) -> None:
    job = meshrun.map_blocks(halo=1, boundary="wrap")(lambda block: block[:-2, 1:-1] + block[1:-1, 2:])
    start = np.arange(24 * 20, dtype=np.uint32).reshape(24, 20)
    advance = Stepper.advance

    def wrong(stepper: Stepper, *arguments: Any, **options: Any) -> None:
        advance(stepper, *arguments, **options)
        if stepper.taken == 6:
            stepper.own(0)[cell] ^= 1

    monkeypatch.setattr(Stepper, "advance", wrong)
    with pytest.raises(RunError, match="verification failed") as failure:
        stepped(tmp_path, job, [start], 6, verify="full")
    assert f"cell {list(cell)}, computed by [rank 0" in str(failure.value)
    assert "(1 of 480 cells of box [0:24, 0:20] are)" in str(failure.value)


def test_ranks_that_are_threads_pickle_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends first no longer sends the module of the user's file by value, which the other needs."""
    text = (
        "import meshrun\ndef same(b): return b + 0\n@meshrun.map_blocks\ndef job(block): return same(block)\n"
    )
    (tmp_path / "job.py").write_text(text)
    task = planned(find(f"{tmp_path / 'job.py'}:job"), np.ones((4, 4), np.float32))
    second_inside, first_done, dump = threading.Event(), threading.Event(), pickling._dump
    first_inside, found = threading.Event(), []

    def slow(value: Any, file: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            first_inside.set()
            second_inside.wait(0.3)
        else:
            second_inside.set()
            first_done.wait(0.3)
        return dump(value, file)

    def other() -> None:
        first_inside.wait()
        found.append(pickling.dumps(task))

    monkeypatch.setattr(pickling, "_dump", slow)
    thread = threading.Thread(target=other)
    thread.start()
    first = pickling.dumps(task)
    first_done.set()
    thread.join()
    assert [len(one) for one in found] == [len(first)]


@pytest.mark.parametrize("kept", ["array", "view", "block"])
def test_what_a_function_keeps_is_not_the_next_block(tmp_path: Path, kept: str) -> None:
    """The same zeros in each call, or a view of them, while it changes its block; or the block itself."""
    zeros: dict[Any, Any] = {}

    @meshrun.map_blocks(halo=0)
    def keeper(block: Any) -> Any:
        block += 1
        if kept == "block":
            return block
        found = zeros.setdefault(block.shape, np.zeros(block.shape))
        assert not found.any()
        return found if kept == "array" else found[:]

    start = np.ones((16, 16))
    found, _ = taken(tmp_path, planned(keeper, start), start, 5, 0)
    assert (found == (6 if kept == "block" else 0)).all()


def test_a_file_with_helpers_of_its_own_goes_to_processes(tmp_path: Path) -> None:
    """The file is not read again: it may have changed."""
    (tmp_path / "neighbour_of_job.py").write_text("def twice(x):\n    return 2 * x\n")
    file = tmp_path / "job.py"
    file.write_text(
        textwrap.dedent("""
        import meshrun
        from neighbour_of_job import twice
        ONE = 1
        def shifted(block):
            return twice(block[:-2, 1:-1]) + ONE
        @meshrun.map_blocks(halo=1, boundary="wrap")
        def job(block, *, rate: int = 3):
            return shifted(block) + rate
        """)
    )
    job = find(f"{file}:job")
    file.write_text("raise SystemExit(3)")
    start = np.arange(200).reshape(20, 10)
    found, reason = taken(tmp_path, planned(job, start, {"rate": 5}), start, 2, 2)
    assert reason is None
    once = 2 * np.roll(start, 1, 0) + 6
    np.testing.assert_array_equal(found, 2 * np.roll(once, 1, 0) + 6)


def test_threads_take_the_tiles_of_a_job_that_processes_cannot_have(tmp_path: Path) -> None:
    lock = threading.Lock()

    @meshrun.map_blocks(halo=1)
    def locked(block: Any) -> Any:
        with lock:
            return block[1:-1, 1:-1] + 1

    start = np.zeros((20, 10))
    found, reason = taken(tmp_path, planned(locked, start), start, 3, 2)
    assert (found == 3).all()
    assert reason is not None
    assert "cannot be sent to processes: " in reason
    assert "lock" in reason


def test_threads_take_the_tiles_of_a_job_with_a_large_table(tmp_path: Path) -> None:
    table = np.ones(verify_team.MESSAGE_BYTES // 8)
    job = meshrun.map_blocks(halo=1)(lambda block: block[1:-1, 1:-1] + table[0])
    start = np.zeros((20, 10))
    found, reason = taken(tmp_path, planned(job, start), start, 3, 2)
    assert (found == 3).all()
    assert reason is not None
    assert "too large for processes: 67,1" in reason


def test_threads_take_the_tiles_if_a_process_cannot_import_what_the_job_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("no_such_module_elsewhere")
    exec("def plus(x):\n    return x + 1\n", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plus = vars(module)["plus"]
    job = meshrun.map_blocks(halo=1)(lambda block: plus(block[1:-1, 1:-1]))
    start = np.zeros((20, 10))
    found, reason = taken(tmp_path, planned(job, start), start, 3, 2)
    assert (found == 3).all()
    assert reason is not None
    assert "No module named 'no_such_module_elsewhere'" in reason


def test_threads_take_the_tiles_if_processes_do_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = np.zeros((20, 10), np.float32)
    task = planned(heat_job(), start)
    monkeypatch.setattr(verify_team, "BOOT", "import sys; sys.exit(7)")
    assert "exit status 7" in (taken(tmp_path, task, start, 3, 2)[1] or "")
    monkeypatch.setattr(verify_team, "BOOT", "import time; time.sleep(600)")  # more than a test may take
    monkeypatch.setattr(verify_team, "START_SECONDS", 0.2)
    assert "not ready after 0.2 seconds" in (taken(tmp_path, task, start, 3, 2)[1] or "")

    def refused(*_: Any) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert "Operation not permitted" in (taken(tmp_path, task, start, 3, 2)[1] or "")


@pytest.fixture
def no_new_process() -> Iterator[None]:
    """Other tests of this process may have left some."""
    before = children()
    yield
    assert not children() - before


@pytest.mark.usefixtures("no_new_process")
def test_a_process_that_dies_gives_a_sentence(tmp_path: Path) -> None:
    here = os.getpid()

    @meshrun.map_blocks(halo=1)
    def fatal(block: Any, *, here_: int = here) -> Any:
        assert os.getpid() != here_
        os.kill(os.getpid(), signal.SIGKILL)

    start = np.zeros((20, 10))
    with pytest.raises(RunError, match=r"a process of the verification ended .*: got SIGKILL"):
        taken(tmp_path, planned(fatal, start, {"here_": here}), start, 3, 2)


@pytest.mark.usefixtures("no_new_process")
def test_an_error_in_a_process_names_its_place(tmp_path: Path) -> None:
    @meshrun.map_blocks(halo=1)
    def broken(block: Any) -> Any:
        raise ValueError("no such field")

    start = np.zeros((20, 10))
    with pytest.raises(RunError, match=r"ValueError: no such field \(.*test_team.py:\d+\)") as failure:
        taken(tmp_path, planned(broken, start), start, 3, 2)
    assert "in broken" in traceback_of(failure.value)


def test_a_wrong_result_in_a_process_is_the_same_sentence(tmp_path: Path) -> None:
    job = meshrun.map_blocks(halo=1)(lambda block: block)
    start = np.zeros((20, 10))
    sentences = []
    for processes in (0, 2):
        with pytest.raises(RunError) as failure:
            taken(tmp_path, planned(job, start), start, 1, processes)
        sentences.append(str(failure.value))
    assert sentences[0] == sentences[1]


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_verification_that_ends_in_the_midst_of_a_tile(
    tmp_path: Path, ends: signal.Signals
) -> None:
    """Tiles would take longer than a test may."""
    np.save(tmp_path / "in.npy", np.zeros((20, 10), np.float32))
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, signal, sys, threading, time
        from pathlib import Path
        import numpy as np
        import meshrun
        from meshrun.runner.plan.task import plan_task
        from meshrun.runner.region import Region
        from meshrun.runner.run.verify import team as verify_team
        from meshrun.runner.run.verify.steps import PlainLoop
        from meshrun.runner.storage.formats.registry import open_source

        def slow(block):
            time.sleep(600)

        verify_team.PROCESS_TILE_BYTES = 64
        job = meshrun.map_blocks(halo=1)(slow)
        task = plan_task(job, {}, [((20, 10), np.dtype("f4"))], 1).with_results([((), np.dtype("f4"))])
        loop = PlainLoop(task, Region((0, 0), (20, 10)), 1)
        with verify_team.open_team(task, loop.nbytes, 2, 2) as team:
            team.tile_bytes()
            print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
            threading.Timer(0.5, os.kill, (os.getpid(), int(sys.argv[2]))).start()
            loop.run([open_source(Path(sys.argv[1]))], team)
        """)
    )
    done = subprocess.run(  # until the processes have closed its pipe, too
        [sys.executable, program, tmp_path / "in.npy", str(int(ends))],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -ends
    found = done.stdout.split()
    assert len(found) == 2
    deadline = time.monotonic() + 60
    while any(Path("/proc", one, "cwd").exists() for one in found):  # a zombie has none
        assert time.monotonic() < deadline, "a process outlives the one that has started it"
        time.sleep(0.02)


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_process_is_no_rank_and_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("PMIX_RANK", "1")

    @meshrun.map_blocks(halo=1)
    def told(block: Any) -> Any:
        import os  # of the process

        assert "OMPI_COMM_WORLD_RANK" not in os.environ
        assert "PMIX_RANK" not in os.environ
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        assert os.environ["OMP_NUM_THREADS"] == "1"
        return block[1:-1, 1:-1]

    start = np.zeros((20, 10))
    assert taken(tmp_path, planned(told, start), start, 1, 2)[1] is None


@pytest.mark.parametrize(
    ("cores", "ranks", "work", "free", "expected"),
    [
        (16, 1, 1 << 40, 1 << 40, 16),
        (16, 2, 1 << 40, 1 << 40, 8),
        (200, 1, 1 << 40, 1 << 40, MOST_PROCESSES),
        (16, 1, 1 << 20, 1 << 40, 0),  # too little work
        (16, 1, 16 * PROCESS_WORK, 1 << 40, 16),
        (16, 1, 15 * PROCESS_WORK, 1 << 40, 0),
        (16, 1, 1 << 40, 20 * PROCESS_BYTES, 10),  # half of the memory
        (16, 1, 1 << 40, 1 << 20, 0),
        (LEAST_PROCESSES - 1, 1, 1 << 40, 1 << 40, 0),
    ],
)
def test_how_many_processes(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, work: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(verify_team, "host_processors", lambda: cores)
    monkeypatch.setattr(verify_team, "free_host_memory", lambda: free)

    def rank(control: Control) -> int:
        return processes_of(open_world("cpu", control=control), work)

    assert run_ranks(ranks, rank, timeout=60) == [expected] * ranks
