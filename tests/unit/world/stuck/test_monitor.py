"""When a stall is reported, when it ends the run, and what is left; `meshrun status`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from stalled_ranks import COMPUTING, WAITING, setting

from meshrun.launch.cli.main import command, main
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import WAIT, Operation, Recorder
from meshrun.runner.recorder.snapshot import RankSnapshot
from meshrun.runner.world.run_status import RunDirectory, RunLines
from meshrun.runner.world.stuck import monitor_process
from meshrun.runner.world.stuck import status as run_states
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.stuck.monitor_process import Lead, end_ranks, report

ABOUT = {"run": "abc", "size": 2, "host": "n1", "device": "CPU", "command": "run edges"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_a_chosen_limit_ends_a_run_with_the_culprits_sentence(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(setting(run), [WAITING, COMPUTING], {})
    failure = run.failure()
    assert failure is not None
    assert (failure["exit_code"], failure["rank"]) == (1, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"meshrun: {failure['sentence']}"
    assert "stalled: rank 1 (host n1, CPU) has not entered barrier 4" in lines[0]
    assert lines[1:] == [
        "meshrun:   rank 0: in barrier 4",
        "meshrun:   no rank has entered an operation for 7 s (--stall-timeout)",
    ]


@pytest.mark.parametrize("operations", [COMPUTING.operations, ()], ids=["in its function", "elsewhere"])
def test_without_a_chosen_limit_a_computing_rank_may_take_any_time(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], operations: tuple[Operation, ...]
) -> None:
    computing = replace(COMPUTING, operations=operations)
    assert not report(setting(run, chosen=False), [WAITING, computing], {})
    assert run.failure() is None
    text = capsys.readouterr().err
    assert "no progress for 7 s: rank 1" in text
    assert "the run goes on" in text


@pytest.mark.parametrize("state", ["stopped", "dead"])
def test_a_rank_that_cannot_go_on_ends_the_run_anyway(run: RunDirectory, state: Any) -> None:
    assert report(setting(run, chosen=False), [WAITING, replace(COMPUTING, state=state)], {})
    assert run.failure() is not None


def test_ranks_that_wait_for_each_other_end_the_run_anyway(run: RunDirectory) -> None:
    wait = Operation(9, WAIT, 9.0, None, 0, "world")
    both = [
        replace(WAITING, rank=rank, operations=(wait,), messages={"world": {1 - rank: (0, 1)}})
        for rank in (0, 1)
    ]
    assert report(setting(run, chosen=False), both, {})
    failure = run.failure()
    assert failure is not None
    assert "stalled: deadlock: ranks 0-1 wait for each other" in failure["sentence"]


def test_a_rank_that_failed_first_is_the_one_that_is_told(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.claim_failure({"exit_code": 3, "sentence": "the first", "rank": 0})
    assert report(setting(run), [WAITING, COMPUTING], {})
    assert capsys.readouterr().err == ""


class Ranks:
    """A host's monitor whose ranks do what a test says."""

    def __init__(self) -> None:
        self.counts, self.ended = {0: 5, 1: 4}, set[int]()

    def progress(self) -> dict[int, int]:
        return dict(self.counts)

    def snapshots(self) -> list[RankSnapshot]:
        return [WAITING, COMPUTING] if self.counts else []


def test_a_stall_is_reported_once_until_there_is_progress(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[int] = []

    def note(*_: object) -> bool:
        reports.append(1)
        return False

    monkeypatch.setattr(monitor_process, "report", note)
    ranks: Any = Ranks()
    lead = Lead(setting(run, seconds=0.0), ranks, None)
    for _ in range(4):
        assert not lead.look()
    assert len(reports) == 1
    ranks.counts[1] += 1
    for _ in range(4):
        assert not lead.look()
    assert len(reports) == 2


def test_ranks_that_have_all_ended_are_no_stall(run: RunDirectory) -> None:
    ranks: Any = Ranks()
    ranks.counts = {}
    lead = Lead(setting(run, seconds=0.0), ranks, None)
    assert not any(lead.look() for _ in range(3))
    assert run.failure() is None


RANK = f"""
import signal, sys, time
sys.path.append({str(Path(ring.__file__).parents[2])!r})
from pathlib import Path
from meshrun.runner.recorder.ring import Recorder, file_of
recorder = Recorder(file_of("abc", 1, Path(sys.argv[1])), {{**{ABOUT!r}, "rank": 1}})
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["hears", "deaf"])
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RANK, str(tmp_path), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_ranks_are_ended_and_their_files_removed(
    rank: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_process, "END_TIMEOUT", 0.3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monitor = HostMonitor("abc", tmp_path)
    assert monitor.progress() == {1: 0}
    assert monitor.pids() == [rank.pid]
    # As a rank does that a launcher such as mpirun kills while it cleans up.
    assert RunLines("abc", has_reader=False).suppress_failures()
    end_ranks(monitor)
    assert rank.wait(60) in (-signal.SIGTERM, -signal.SIGKILL)
    assert monitor.pids() == []
    monitor.remove()
    assert monitor.progress() == {}
    assert monitor.ended == {1}
    assert list((tmp_path / "temporary").iterdir()) == []


WITH_MONITOR = f"""
import signal, sys, time
sys.path.append({str(Path(ring.__file__).parents[2])!r})
from meshrun.runner.recorder.ring import Recorder, file_of
from meshrun.runner.world import helper_process
from meshrun.runner.world.run_status import RunLines
from meshrun.runner.world.stuck.monitor import PROCESS
recorder = Recorder(file_of(sys.argv[1], 1), {{**{ABOUT!r}, "rank": 1}})
setting = {{**{setting()!r}, "run_id": sys.argv[1], "rank": 0, "token": "0", "address": None}}
monitor = helper_process.start(PROCESS, "monitor", setting)
assert "error" not in helper_process.first_message(monitor, "monitor")
if sys.argv[2] == "stopped":
    recorder.close()
    monitor.send_signal(signal.SIGSTOP)
    sys.exit()
assert RunLines(sys.argv[1], has_reader=False).suppress_failures()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_stopped_monitor_does_not_hold_up_the_end_of_its_rank() -> None:
    """A launcher waits until nobody holds the streams of a rank."""
    command = [sys.executable, "-c", WITH_MONITOR, f"stopped{os.getpid()}", "stopped"]
    subprocess.run(command, stderr=subprocess.PIPE, check=True, timeout=60)


def test_nothing_is_left_when_a_launcher_kills_the_process_group_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As prterun does with ranks that have not ended a second after SIGTERM."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    name = f"group{os.getpid()}"
    command = [sys.executable, "-c", WITH_MONITOR, name, "killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir())
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while (list(tmp_path.iterdir()) or ring.files_of(name)) and time.monotonic() < until:
        time.sleep(0.02)
    left = [*tmp_path.iterdir(), *ring.files_of(name)]
    for path in left:
        path.unlink()
    assert left == []


# meshrun status


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """This process as the only rank of a run."""
    monkeypatch.setattr(run_states.running, "__defaults__", (tmp_path,))
    recorder = Recorder(ring.file_of("abc", 0, tmp_path), {**ABOUT, "size": 1, "rank": 0})
    yield recorder
    recorder.close()


def show(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["status", *words], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def test_status_shows_what_a_rank_does(own: Recorder) -> None:
    own.leave(own.enter(own.name("read"), 100))
    own.enter(own.name("kernel"), 2_000_000, 0, 0)
    status, text = show("--last", "2")
    assert status == 0
    lines = text.splitlines()
    assert lines[0].startswith("run abc: run edges, 1 rank, for ")
    assert lines[1].split() == ["rank", "process", "in", "for", "bytes", "operations", "at"]
    assert lines[2].split()[:3] == ["0", "running", "kernel"]
    assert "2.0 MB" in lines[2]
    assert lines[-2].split()[-3:] == ["kernel", "not", "left"]
    assert "read" in lines[-1]


def test_status_shows_the_steps_and_waits_that_are_served(own: Recorder) -> None:
    world = own.group("world", [0])
    for _ in range(3):
        step = own.enter(own.name("step"), 0, 0, 1)
        waiting = own.enter(own.name(ring.WAIT), 0, world)
        time.sleep(0.01)
        own.leave(waiting)
        own.leave(step, 500)
    _, text = show()
    heads, row = text.splitlines()[1:3]
    assert heads.split()[-2:] == ["steps", "waited"]
    steps, waited, unit = row.split()[-3:]
    assert (steps, unit) == ("1,500", "ms")
    _, text = show("--json")
    (run,) = json.loads(text)
    assert run["metrics"]["steps"] == [{"rank": "0", "value": 1500.0}]
    seconds = {one["reason"]: one["value"] for one in run["metrics"]["wait_seconds"]}
    assert seconds["messages"] >= 0.03
    assert float(waited) == pytest.approx(1e3 * sum(seconds.values()), rel=0.01)


def test_status_as_json_and_of_one_run(own: Recorder) -> None:
    own.enter(own.name("kernel"))
    status, text = show("ab", "--json")
    assert status == 0
    (run,) = json.loads(text)
    assert (run["run"], run["pid"], run["ranks"][0]["operations"][0]["name"]) == (
        "abc",
        os.getpid(),
        "kernel",
    )


@pytest.mark.usefixtures("own")
def test_status_of_an_unknown_run_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "b"]) == 1
    said = capsys.readouterr().err
    assert said == "meshrun: no run b of this user on this host: expected abc. Try: meshrun status\n"


def test_status_without_runs_has_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_states.running, "__defaults__", (tmp_path,))
    assert main(["status"]) == 1
    said = capsys.readouterr().err
    assert said == "meshrun: no run of this user on this host. Try: meshrun status on a host of the run\n"


def test_status_of_a_part_of_a_run_says_so(own: Recorder, tmp_path: Path) -> None:
    own.close()
    part = Recorder(ring.file_of("abc", 0, tmp_path), {**ABOUT, "rank": 0})
    _, text = show()
    part.close()
    assert "1 more rank has ended or is on another host" in text
