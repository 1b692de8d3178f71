"""How a rank ends, without another one: what it tells, and what it leaves to others."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.ending import Ending, on_termination
from runner.errors import RunError
from runner.launcher import Announced
from runner.verdict import LINE, RunDirectory, RunLines

GONE = RunError("rank 0 has out.npy, this rank cannot open it")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_first_failure_is_told_and_the_second_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    assert Ending(run).fail_alone(GONE, "rank 1", 1) == 1
    assert Ending(run).fail_alone(RunError("later"), "rank 2", 2) == 1
    assert capsys.readouterr().err == f"meshrun: [rank 1] {GONE}\n"
    failure = run.failure()
    assert failure is not None
    assert failure["rank"] == 1


def test_a_failure_while_ranks_are_ended_is_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 removes its file, and a rank about to open it misses it."""
    run = RunDirectory(tmp_path)
    partial = tmp_path / "partial-output"
    partial.touch()
    Ending(run, partial=partial).interrupted()
    assert not partial.exists()
    Ending(run).fail_alone(GONE, "rank 1", 1)
    assert capsys.readouterr().err == ""
    assert run.failure() is None


def test_a_failure_told_before_ranks_are_ended_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    Ending(run).fail_alone(GONE, "rank 1", 1)
    Ending(run).interrupted()
    failure = run.failure()
    assert failure is not None
    assert failure["rank"] == 1


def test_on_another_host_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunLines("token")
    claimed: list[bool] = []

    class Between(Ending):
        def clean(self) -> None:
            claimed.append(run.claim_failure({"sentence": "while ranks are ended"}))

    Between(run).interrupted()
    assert claimed == [False]
    assert LINE not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_notes_the_rest_is_done(tmp_path: Path) -> None:
    partial = tmp_path / "partial-output"
    partial.touch()
    kept: list[str] = []
    ending = Ending(RunDirectory(tmp_path / "gone"), partial=partial, keep=lambda: kept.append("kept"))
    ending.interrupted()
    assert kept == ["kept"]
    assert not partial.exists()


@pytest.mark.parametrize(("rank", "said"), [("0", "meshrun: interrupted; nothing was written\n"), ("1", "")])
def test_of_many_ranks_one_says_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: str
) -> None:
    """Before there is a world, as ranks that MPI has not joined are."""
    monkeypatch.setattr("runner.ending.announced", lambda: Announced("a launcher", 2, int(rank)))
    Ending().interrupted()
    assert capsys.readouterr().err == said


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue[int]]:
    """The exit statuses that this process would have ended with; its signals are its own again afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    # Not as a shell has it, which has what runs in the background ignore them.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    found: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr("os._exit", found.put)
    yield found
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_a_job_handles_does_not_end_the_run(statuses: queue.Queue[int]) -> None:
    handled: list[int] = []
    ended: list[str] = []
    on_termination(lambda: ended.append("in order"))
    signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert statuses.get(timeout=30) == 128 + signal.SIGTERM
    assert set(handled) == {signal.SIGUSR1}
    assert ended == ["in order"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_runs_does_so_whatever_handler_a_job_sets(
    statuses: queue.Queue[int], number: signal.Signals
) -> None:
    on_termination(lambda: None)
    signal.signal(number, lambda *_: None)
    os.kill(os.getpid(), number)
    assert statuses.get(timeout=30) == 128 + number


def test_a_signal_that_is_ignored_stays_so(statuses: queue.Queue[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    on_termination(lambda: None)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert statuses.get(timeout=30) == 128 + signal.SIGTERM
