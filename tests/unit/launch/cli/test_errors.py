"""A mistake that ranks on several hosts meet is told once, though only their own host's ranks see a claim."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshrun.launch.cli import errors as module
from meshrun.launch.cli.errors import report_error
from meshrun.runner.system import launcher
from meshrun.runner.world.run_status import LINE, RunDirectory, RunLines

SENTENCE = "no such job"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long ranks would have waited."""
    seconds: list[float] = []
    monkeypatch.setattr(module.time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # this host's
    return secrets.token_hex(8)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> Iterator[Callable[[int], None]]:
    """Be that rank of several."""
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "4")

    def be(number: int) -> None:
        slept.clear()
        monkeypatch.setenv("PMI_RANK", str(number))

    return be


def apart(err: str) -> tuple[list[str], list[str]]:
    """Lines for people, and those for the process that reads."""
    lines = [line for line in err.split("\n") if line]
    ours = [line for line in lines if line.startswith(LINE)]
    return [line for line in lines if line not in ours], ours


def notes(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_rank_0_speaks_at_once_to_people_and_to_the_one_who_reads(
    rank: Callable[[int], None],
    token: str,
    slept: list[float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rank(0)
    assert report_error(SENTENCE, 2, ["--run-dir", f"@{token}", "-n", "4"], debug=False) == 2
    people, (line,) = apart(capsys.readouterr().err)
    assert people == [f"meshrun: {SENTENCE}"]
    run = RunDirectory(tmp_path)
    run.read_line(line)
    failure = run.failure()
    assert failure is not None
    assert (failure["exit_code"], failure["sentence"], failure["rank"]) == (2, SENTENCE, 0)
    assert module.LINGER not in slept
    assert notes(tmp_path) == ["failure.json"], "nothing of the claim is left"


def test_another_rank_lets_rank_0_speak_first_and_then_speaks(
    rank: Callable[[int], None],
    token: str,
    slept: list[float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is still there, so that rank 0 has not met the same."""
    rank(3)
    assert report_error(SENTENCE, 2, ["--run-dir", f"@{token}"], debug=False) == 2
    assert slept[0] == module.LINGER
    people, (line,) = apart(capsys.readouterr().err)
    assert people == [f"meshrun: {SENTENCE}"]
    assert json.loads(line.partition(" failure ")[2])["rank"] == 3
    assert notes(tmp_path) == []


def test_of_the_ranks_of_one_host_one_speaks(
    rank: Callable[[int], None],
    token: str,
    slept: list[float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert RunLines(token, has_reader=False).claim_failure({"rank": 0})  # and has not gone yet
    rank(1)
    assert report_error(SENTENCE, 6, ["--run-dir", f"@{token}"], debug=True) == 6
    assert capsys.readouterr().err == ""
    assert slept == [module.LINGER] * 2, "before it looks, and for the words of who has claimed"
    assert len(notes(tmp_path)) == 1, "another's claim stays"


def test_with_a_directory_there_is_nothing_to_wait_for(
    rank: Callable[[int], None], tmp_path: Path, slept: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    rank(3)
    assert report_error(SENTENCE, 2, ["--run-dir", str(tmp_path)], debug=False) == 2
    assert slept == []
    assert capsys.readouterr().err == f"meshrun: {SENTENCE}\n"
    rank(0)
    report_error(SENTENCE, 2, ["--run-dir", str(tmp_path)], debug=False)
    assert slept == [module.LINGER]
    assert capsys.readouterr().err == ""
    assert notes(tmp_path) == ["failure.json"]


@pytest.mark.parametrize("words", [["selftest"], ["--run-dir"], ["-n", "4"]])
def test_where_nobody_reads_rank_0_speaks(
    rank: Callable[[int], None], slept: list[float], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    rank(0)
    report_error(SENTENCE, 2, words, debug=False)
    assert (capsys.readouterr().err, slept) == (f"meshrun: {SENTENCE}\n", [])
    rank(1)
    assert report_error(SENTENCE, 2, words, debug=False) == 2
    assert (capsys.readouterr().err, slept) == ("", [module.LINGER])


def test_a_host_without_room_for_notes_tells_rather_twice_than_not(
    rank: Callable[[int], None],
    token: str,
    slept: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    for number in (0, 1):
        rank(number)
        assert report_error(SENTENCE, 2, ["--run-dir", f"@{token}"], debug=False) == 2
        assert apart(capsys.readouterr().err)[0] == [f"meshrun: {SENTENCE}"]
    assert slept
