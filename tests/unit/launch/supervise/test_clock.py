"""The clocks of a run: which rank they name, and what they do not take for a stall."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from meshrun.launch.supervise import clock
from meshrun.launch.supervise.clock import HALT_TIMEOUT, Clocks, halt_timeout
from meshrun.runner.world.run_status import RunDirectory, RunLines

GONE = 0x7FFFFFFF  # above the highest process id
HOST = os.uname().nodename


class Seconds:
    """A monotonic clock that a test sets; `Clocks` counts a second for a longer gap."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(clock, "time", made)
    return made


def after(clocks: Clocks, seconds: Seconds, count: int) -> tuple[int, str] | None:
    """The first failure in `count` seconds."""
    for _ in range(count):
        seconds.now += 1
        if (found := clocks.failure()) is not None:
            return found
    return None


def test_a_rank_that_has_not_begun_is_named(tmp_path: Path, seconds: Seconds) -> None:
    run = RunDirectory(tmp_path)
    run.begin(0, HOST, os.getpid())
    clocks = Clocks(run, 2, 5, 9)
    assert after(clocks, seconds, 5) is None
    rank, sentence = after(clocks, seconds, 2) or (None, "")
    assert rank == 1
    assert sentence.startswith("[rank 1] has not begun: not all ranks started within 5 s. Try: ")


def test_a_rank_that_has_ended_is_named_rather_than_those_that_wait(tmp_path: Path, seconds: Seconds) -> None:
    run = RunDirectory(tmp_path)
    run.begin(0, HOST, os.getpid())
    run.begin(2, HOST, GONE)
    rank, sentence = after(Clocks(run, 3, 5, 9), seconds, 8) or (None, "")
    assert rank == 2
    assert sentence.startswith(f"[rank 2, host {HOST}] ended before all ranks were connected")


def test_the_others_do_not_wait_for_a_rank_that_has_ended(tmp_path: Path, seconds: Seconds) -> None:
    run = RunDirectory(tmp_path)
    run.begin(0, HOST, os.getpid())
    clocks = Clocks(run, 2, 60, 9)
    assert after(clocks, seconds, 20) is None
    run.begin(1, HOST, GONE)
    assert after(clocks, seconds, 5) is None, "the launcher may say why"
    rank, sentence = after(clocks, seconds, 2) or (None, "")
    assert rank == 1
    assert sentence.startswith(
        f"[rank 1, host {HOST}] ended before all ranks were connected: the other ranks cannot start. Try: "
    )


def test_a_rank_may_end_once_it_was_connected(tmp_path: Path, seconds: Seconds) -> None:
    run = RunDirectory(tmp_path)
    run.register(1, HOST, GONE)
    run.begin(0, HOST, os.getpid())
    assert after(Clocks(run, 2, 60, 9), seconds, 30) is None


def test_many_silent_ranks_are_counted(tmp_path: Path, seconds: Seconds) -> None:
    _, sentence = after(Clocks(RunDirectory(tmp_path), 1024, 5, 9), seconds, 8) or (None, "")
    assert sentence.startswith("[rank 0], [rank 1], [rank 2], [rank 3] and 1,020 more has not begun")


def connected(path: Path, *pids: int) -> RunDirectory:
    run = RunDirectory(path)
    for rank, pid in enumerate(pids):
        run.register(rank, HOST, pid)
    return run


@pytest.mark.parametrize("state", ["ended without a report", "is stopped"])
def test_a_rank_that_is_halted_for_long_ends_the_run(tmp_path: Path, seconds: Seconds, state: str) -> None:
    with subprocess.Popen(["sleep", "100"]) as other:
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)
        run = connected(tmp_path, os.getpid(), GONE if "ended" in state else other.pid)
        clocks = Clocks(run, 2, 5, 9)
        assert after(clocks, seconds, 8) is None
        rank, sentence = after(clocks, seconds, 4) or (None, "")
        other.kill()
    assert rank == 1
    assert sentence.startswith(f"[rank 1, host {HOST}] {state}")
    assert ": for 9 s" in sentence


def test_ranks_that_run_may_take_any_time(tmp_path: Path, seconds: Seconds) -> None:
    run = connected(tmp_path, os.getpid(), os.getppid())
    assert after(Clocks(run, 2, 5, 9), seconds, 100) is None


def test_0_switches_a_clock_off(tmp_path: Path, seconds: Seconds) -> None:
    run = RunDirectory(tmp_path)
    clocks = Clocks(run, 2, 0, 0)
    assert after(clocks, seconds, 100) is None
    connected(tmp_path, os.getpid(), GONE)
    assert after(clocks, seconds, 100) is None


def test_ranks_that_do_not_leave_after_the_record_are_ended(tmp_path: Path, seconds: Seconds) -> None:
    run = connected(tmp_path, os.getpid())
    run.complete({})
    _, sentence = after(Clocks(run, 1, 5, 9), seconds, 12) or (None, "")
    assert "has not left: the run was complete 9 s ago" in sentence


def test_ranks_on_other_hosts_report_by_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines, run = RunLines("t"), RunDirectory(tmp_path)
    lines.begin(1, "n1", 7)
    lines.register(1, "n1", 7)
    for line in capfd.readouterr().err.strip("\n").split("\n"):
        run.read_line(line)
    assert run.ranks("begun") == run.ranks("pid") == {1: {"rank": 1, "host": "n1", "pid": 7}}


def test_ranks_may_be_stopped_for_twice_the_time_that_they_allow_each_other() -> None:
    assert [halt_timeout(stall) for stall in (None, 0.0, 1.0, 8.0, 300.0)] == [HALT_TIMEOUT, 0, 20, 20, 600]
