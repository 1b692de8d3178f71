"""Ranks that fail in every way, started on this machine: what the user sees, and that nothing is left.

The ranks are small programs over mpi4py and the run directory, so that what is tested is the
starting, watching and judging alone. They run under whichever MPI this environment has.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLOCK, alive, launcher_problem, nightly, own_lines, wait_for

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import local
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.supervise.supervisor import Supervision

ROOT = Path(local.__file__).parents[2]

RANK = f"""
import os, signal, socket, sys, time
from pathlib import Path
sys.path.append({str(ROOT)!r})
from meshrun.runner.world.termination import end_with_parent
from meshrun.runner.world.run_status import RunDirectory
end_with_parent()  # as every rank: a launcher that is told to end while nobody reads it may leave them
case, folder = sys.argv[-2], Path(sys.argv[-1])
run = RunDirectory(Path(sys.argv[sys.argv.index("--run-dir") + 1]))
from mpi4py import MPI
world = MPI.COMM_WORLD
run.register(world.rank, socket.gethostname(), os.getpid())
world.barrier()
mapped = [line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line]
(folder / f"segments-{{world.rank}}").write_text("\\n".join(mapped))
(folder / f"rank-{{world.rank}}").write_text(str(os.getpid()))
world.barrier()
"""

RECORD = """
world.barrier()
if world.rank == 0:
    run.complete({"job": "test"})
"""


pytestmark = [
    pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem())),
    pytest.mark.mpi_library,
]


@pytest.fixture
def rank_program(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    def write(body: str) -> tuple[str, ...]:
        path = tmp_path / "rank.py"
        path.write_text(RANK + body)
        return (sys.executable, str(path))

    return write


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        yield Path(folder)


@pytest.fixture
def start(
    rank_program: Callable[[str], tuple[str, ...]],
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., int]:
    """Run a rank program's body; afterwards no rank lives and no folder of ours is left."""

    def run(body: str, ranks: int = 2, *, debug: bool = False) -> int:
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        program = rank_program(body)
        status = local.start(ranks, ["case", str(tmp_path)], Supervision(debug=debug), program=program)
        wait_for(lambda: not any(map(alive, pids(tmp_path))))  # a killed process takes a moment to be gone
        assert list(temporary.iterdir()) == []
        assert [path for path in segments(tmp_path) if path.exists()] == []
        return status

    return run


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("rank-*") if path.read_text()]


def segments(folder: Path) -> list[Path]:
    """Shared memory that any rank had mapped."""
    return [Path(line) for path in folder.glob("segments-*") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ranks", [1, 2, mpi_launcher.cores() + 1])
def test_a_complete_run_succeeds_with_any_number_of_ranks(
    start: Callable[..., int], ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(f"assert world.size == {ranks}" + RECORD, ranks) == 0
    assert own_lines(capfd.readouterr().err) == []


def test_what_ranks_write_arrives_byte_for_byte(
    start: Callable[..., int], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = r"""
words = b"a\n\tb\r\nno newline yet \x1b[1m" + bytes(range(128, 256)) + b"-" * 80 + b"\na table\n" + b"-" * 80
if world.rank == 0:
    os.write(1, words)
"""
    assert start(body + RECORD) == 0
    expected = (
        b"a\n\tb\r\nno newline yet \x1b[1m" + bytes(range(128, 256)) + b"-" * 80 + b"\na table\n" + b"-" * 80
    )
    assert capfdbinary.readouterr().out == expected


@pytest.mark.parametrize("status", [nightly(1), 2])
def test_a_rank_that_claims_a_failure_is_heard_alone(
    start: Callable[..., int], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    body = f"""
if world.rank == 1:
    run.claim_failure({{"exit_code": {status}, "sentence": "[rank 1] no good", "rank": 1}})
    print("meshrun: [rank 1] no good", file=sys.stderr, flush=True)
    world.Abort({status})
world.barrier()
"""
    assert start(body) == status
    assert own_lines(capfd.readouterr().err) == ["meshrun: [rank 1] no good"]


def test_a_failure_claimed_and_not_told_is_told(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
if world.rank == 1:
    run.claim_failure({"exit_code": 2, "sentence": "[rank 1] had no time to speak", "rank": 1})
    world.Abort(2)
world.barrier()
"""
    assert start(body) == 2
    assert own_lines(capfd.readouterr().err) == ["meshrun: [rank 1] had no time to speak"]


def test_a_killed_rank_gets_a_name_and_takes_all_others_along(
    start: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    partial = tmp_path / ".out.npy.partial"
    body = """
if world.rank == 0:
    (folder / ".out.npy.partial").write_text("half")
    run.note_partial(folder / ".out.npy.partial")
world.barrier()
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
world.barrier()
"""
    assert start(body, 3) == 1
    (sentence,) = own_lines(capfd.readouterr().err)
    host = os.uname().nodename
    if mpi_launcher.find().vendor == "MPICH":  # its launcher may name a rank that it has killed itself
        killed = rf"\[rank [012], host {host}\] killed by signal 9 \(SIGKILL\), possibly by MPICH's launcher"
        assert re.search(killed, sentence)
    else:
        assert f"[rank 1, host {host}] killed by signal 9 (SIGKILL). Try: dmesg" in sentence
    assert not partial.exists()


def test_debug_shows_the_launchers_own_words(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL) if world.rank == 1 else world.barrier()"
    assert start(body, debug=True) == 1
    errors = capfd.readouterr().err
    assert "noticed that process" in errors or "BAD TERMINATION" in errors


def test_ranks_that_leave_without_a_record_have_failed(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert start("") == 1
    assert "exit status 0 of the launcher, no completion record" in capfd.readouterr().err


def test_a_rank_that_vanishes_quietly_is_a_failure_whatever_the_launcher_says(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert start("os._exit(0) if world.rank == 1 else world.barrier()") == 1
    errors = capfd.readouterr().err
    # MPICH's launcher says nothing, or kills the other ranks and names one of them.
    assert "no completion record" in errors or "because another rank had died" in errors


def test_a_crash_after_the_record_is_a_warning(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    body = RECORD + "world.barrier(); rank = world.rank; MPI.Finalize()\n"
    assert start(body + "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(1)") == 0
    assert "warning: the run was complete when this happened: [rank " in capfd.readouterr().err


HANG = "\ntime.sleep(600)\n"
STUBBORN = "\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\ntime.sleep(600)\n"
DOOR = f"""
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the command respects nohup, under which this may run
sys.path.insert(0, {str(ROOT)!r})
from meshrun.launch.mpi import local
sys.exit(local.start(2, ["case", sys.argv[1]], program=sys.argv[2:]))
"""


@pytest.fixture
def door(
    rank_program: Callable[[str], tuple[str, ...]], tmp_path: Path, temporary: Path
) -> Callable[[str], subprocess.Popen[str]]:
    """A process that has started two ranks of a program and waits for them."""

    def begin(body: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DOOR, str(tmp_path), *rank_program(body)]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(pids(tmp_path)) == 2)
        return started

    return begin


@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM), signal.SIGHUP])
def test_a_signal_to_the_command_ends_every_rank(
    door: Callable[[str], subprocess.Popen[str]], tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    started = door(HANG)
    started.send_signal(number)
    _, errors = started.communicate(timeout=DEADLOCK)
    assert started.returncode == 128 + number
    assert own_lines(errors) == [f"meshrun: interrupted by {number.name}: every rank has ended"]
    assert not any(map(alive, pids(tmp_path)))
    assert list(temporary.iterdir()) == []


def test_ranks_deaf_to_signals_end_too(door: Callable[[str], subprocess.Popen[str]], tmp_path: Path) -> None:
    started = door(STUBBORN)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=DEADLOCK)
    assert started.returncode == 130
    assert not any(map(alive, pids(tmp_path)))


def test_a_second_signal_ends_a_launcher_that_hangs(
    door: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    started = door(HANG)
    ranks = [Path(f"/proc/{pid}/status").read_text() for pid in pids(tmp_path)]
    parents = {
        int(line.split()[1]) for text in ranks for line in text.splitlines() if line.startswith("PPid")
    }
    for parent in parents:
        os.kill(parent, signal.SIGSTOP)
    started.send_signal(signal.SIGINT)
    time.sleep(0.3)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=DEADLOCK)
    assert started.returncode == 130
    assert not any(map(alive, [*pids(tmp_path), *parents]))
    assert [path for path in segments(tmp_path) if path.exists()] == []


def test_ranks_do_not_outlive_a_command_that_is_killed(
    door: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    started = door(HANG)
    started.kill()
    started.communicate(timeout=DEADLOCK)
    wait_for(lambda: not any(map(alive, pids(tmp_path))))
    for path in segments(tmp_path):  # nobody could do that for it
        path.unlink(missing_ok=True)


SLOW = """
import time
from pathlib import Path
import meshrun

@meshrun.map_blocks(split_dependent=True)
def slow(block, *, here, go: str):
    while here.offset[0] % 3000 and not Path(go).exists():  # all but a rank's first slab
        time.sleep(0.01)
    return block
"""


def test_the_progress_bar_moves_while_the_run_goes_on(tmp_path: Path, temporary: Path) -> None:
    """The job waits for a file that is made when a bar has been seen, or cannot be waited for any longer."""
    np.save(tmp_path / "in.npy", np.zeros((6000, 1000)))
    (tmp_path / "job.py").write_text(SLOW)
    words = ["-n", "2", "run", "job.py:slow", "in.npy", "out.npy", "--device", "cpu", "--go", "go"]
    ours, its = pty.openpty()  # of no size, as under many tools
    process = subprocess.Popen(
        [*PROGRAM, *words],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=its,
        stderr=its,
    )
    os.close(its)
    try:
        seen = read_until(ours, b"\x1b[2Kslow")  # drawn, and drawn again
        (tmp_path / "go").touch()
        rest = read_until(ours, b"wrote out.npy")
        assert process.wait(DEADLOCK) == 0, rest
    finally:
        process.kill()
        os.close(ours)
    assert b"\x1b[2Kslow" in seen


def read_until(terminal: int, words: bytes) -> bytes:
    """What a terminal shows up to some words, or until nothing more comes."""
    shown = b""
    with contextlib.suppress(OSError):  # the program has ended
        while words not in shown and select.select([terminal], [], [], DEADLOCK / 3)[0]:
            shown += os.read(terminal, 1 << 16)
    return shown
