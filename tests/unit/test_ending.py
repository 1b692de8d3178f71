"""How a rank ends, without another one: what it tells, and what it leaves to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.ending import Ending
from runner.errors import RunError
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
