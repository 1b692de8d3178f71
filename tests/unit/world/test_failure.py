"""How a rank that fails or is terminated ends: what it reports, and what it leaves to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun.runner.comm.small.collectives import SmallCollectives
from meshrun.runner.errors import RunError
from meshrun.runner.system.launcher import DetectedLauncher
from meshrun.runner.world.failure import FailureHandler, Guard, OwnRank
from meshrun.runner.world.run_status import LINE, RunDirectory, RunLines

GONE = RunError("rank 0 has out.npy, this rank cannot open it")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_first_failure_is_reported_and_the_second_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    assert FailureHandler(run).report_single(GONE, "rank 1", 1) == 1
    assert FailureHandler(run).report_single(RunError("later"), "rank 2", 2) == 1
    assert capsys.readouterr().err == f"meshrun: [rank 1] {GONE}\n"
    failure = run.failure()
    assert failure is not None
    assert failure["rank"] == 1


def test_a_failure_while_ranks_are_terminated_is_not_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 removes its file, and a rank about to open it misses it."""
    run = RunDirectory(tmp_path)
    partial = tmp_path / "partial-output"
    partial.touch()
    handler = FailureHandler(run)
    handler.transaction.track_partial(partial)
    handler.terminate()
    assert not partial.exists()
    FailureHandler(run).report_single(GONE, "rank 1", 1)
    assert capsys.readouterr().err == ""
    assert run.failure() is None


def test_a_failure_reported_before_ranks_are_terminated_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    FailureHandler(run).report_single(GONE, "rank 1", 1)
    FailureHandler(run).terminate()
    failure = run.failure()
    assert failure is not None
    assert failure["rank"] == 1


def test_on_another_host_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunLines("token")
    claimed: list[bool] = []

    class Between(FailureHandler):
        def clean_up(self) -> None:
            claimed.append(run.claim_failure({"sentence": "while ranks are ended"}))

    Between(run).terminate()
    assert claimed == [False]
    assert LINE not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_status_files_the_rest_is_cleaned_up(tmp_path: Path) -> None:
    partial = tmp_path / "partial-output"
    partial.touch()
    saved: list[str] = []
    handler = FailureHandler(RunDirectory(tmp_path / "gone"), before_exit=lambda: saved.append("saved"))
    handler.transaction.partials = (partial,)
    handler.terminate()
    assert saved == ["saved"]
    assert not partial.exists()


@pytest.mark.parametrize(("rank", "said"), [("0", "meshrun: interrupted; nothing was written\n"), ("1", "")])
def test_one_of_many_ranks_reports_the_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: str
) -> None:
    """Before there is a world, as ranks that MPI has not joined are."""
    monkeypatch.setattr(
        "meshrun.runner.world.failure.detect_launcher", lambda: DetectedLauncher("a launcher", 2, int(rank))
    )
    FailureHandler().terminate()
    assert capsys.readouterr().err == said


ENDS_MEANWHILE = """
import sys, threading
from pathlib import Path
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.run_status import RunLines
handler = FailureHandler()
handler._claims = lambda: RunLines("abc", has_reader=False)
threading.Thread(target=handler.terminate, daemon=True).start()
while handler._claimed is None:
    pass
"""


def test_a_rank_that_ends_while_it_is_terminated_leaves_no_claim(tmp_path: Path) -> None:
    """The signal comes just before the end: the main thread is faster than the one that cleans up."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", ENDS_MEANWHILE]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from meshrun.runner.system.launcher import Started
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.rank_process import run_as_rank

def body(world, handler):
    handler.transaction.lock(Path(sys.argv[2]))
    os._exit(9)

run_as_rank(body, FailureHandler(), device="cpu", started=Started(1, sys.argv[1]))
"""


def test_what_a_killed_rank_has_locked_is_unlocked_by_the_process_that_started_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    command = [sys.executable, "-c", KILLED, str(run.path), str(tmp_path / "out.npy")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (9, "")
    assert list(tmp_path.glob(".out.npy*"))
    run.remove_leftovers()
    assert not list(tmp_path.glob(".out.npy*"))


def test_the_cause_of_an_error_of_cuda_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that has waited in vain for another rank ends the CUDA context."""

    class Waited:
        failure = RunError("rank 0 waited in vain for rank 1 in a collective")

    waited, aborted = Waited(), list[int]()
    control: Any = SimpleNamespace(size=2, rank=0, abort=aborted.append)
    SmallCollectives.known.add(waited)  # type: ignore[arg-type]
    try:
        guard = Guard(OwnRank(control, "rank 0, host a", "f00", None), FailureHandler())
        with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"), guard:
            raise RuntimeError("cudaErrorLaunchFailure")
    finally:
        SmallCollectives.known.discard(waited)  # type: ignore[arg-type]
    assert aborted == [RunError.exit_code]
    assert "[rank 0, host a] rank 0 waited in vain for rank 1" in capsys.readouterr().err
