"""What a run leaves behind for the process that started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshrun.runner.world.run_status import LINE, RunDirectory, RunLines, claim, run_at
from meshrun.runner.world.world import open_world


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_a_new_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = RunDirectory.create()
    assert made.path.parent == tmp_path
    assert made.path.stat().st_mode & 0o077 == 0


def test_names_that_are_no_utf8_are_noted(directory: RunDirectory) -> None:
    partial = directory.path / "bad\udcff.npy"
    partial.touch()
    directory.note_partial(partial)
    directory.note_recovery_hint(f"rm {partial}")
    assert directory.recovery_hint() == f"rm {partial}"
    directory.remove_leftovers()
    assert not partial.exists()


def test_nothing_is_there_at_first(directory: RunDirectory) -> None:
    assert directory.record() is None
    assert directory.failure() is None
    assert directory.rank_of(4711) is None
    assert not directory.keeps_files()
    directory.remove_leftovers()


def test_a_process_gets_its_rank_back(directory: RunDirectory) -> None:
    directory.register(3, "n2", 4711)
    assert directory.rank_of(4711) == {"rank": 3, "host": "n2"}


def test_the_record_appears_whole(directory: RunDirectory) -> None:
    directory.complete({"seconds": 1.5})
    assert directory.record() == {"seconds": 1.5}
    assert [path.name for path in directory.path.iterdir()] == ["record.json"]


def test_half_a_record_is_none(directory: RunDirectory) -> None:
    (directory.path / "record.json").write_text('{"seconds": 1')
    assert directory.record() is None


def test_the_unfinished_output_is_removed(directory: RunDirectory, tmp_path: Path) -> None:
    partial = tmp_path / ".out.npy.abc.partial"
    partial.touch()
    directory.note_partial(partial)
    directory.remove_leftovers()
    assert not partial.exists()
    directory.remove_leftovers()  # gone already, for example renamed


def test_the_first_failure_stays(directory: RunDirectory) -> None:
    assert directory.claim_failure({"rank": 2, "sentence": "first"})
    assert not directory.claim_failure({"rank": 0, "sentence": "second"})
    directory.report_failure({"rank": 0, "sentence": "third"})
    failure = directory.failure()
    assert failure is not None
    assert (failure["rank"], failure["sentence"]) == (2, "first")
    assert failure["time"] > 0


def test_a_failure_is_reported_though_a_terminated_rank_has_suppressed_them(directory: RunDirectory) -> None:
    assert directory.suppress_failures()
    assert not directory.claim_failure({"rank": 1, "sentence": "by a rank"})
    assert directory.failure() is None
    directory.report_failure({"rank": 1, "sentence": "too late"})
    assert (directory.failure() or {})["sentence"] == "too late"


def _claim(path: Path, start: threading.Barrier, won: list[int], number: int) -> None:
    start.wait()
    if claim(path, {"number": number}):
        won.append(number)


def test_of_many_threads_one_wins(tmp_path: Path) -> None:
    for turn in range(50):
        path, start = tmp_path / f"claim-{turn}", threading.Barrier(8)
        won: list[int] = []
        threads = [threading.Thread(target=_claim, args=(path, start, won, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert json.loads(path.read_text())["number"] == won[0]
    assert len(os.listdir(tmp_path)) == 50, "no temporary files are left"


CLAIMS = """
import os, sys
from pathlib import Path
from meshrun.runner.world.run_status import claim
print(sum(claim(Path(sys.argv[1], f"claim-{turn}"), {"pid": os.getpid()}) for turn in range(200)))
"""


def test_of_many_processes_one_wins(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    won = [int(process.communicate()[0]) for process in processes]
    assert sum(won) == 200
    assert len(os.listdir(tmp_path)) == 200, "no temporary files are left"


def test_a_note_that_many_write_is_never_read_half_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    output = tmp_path / ("long name " * 20)
    run.note_partial(output)
    writers = [threading.Thread(target=lambda: [run.note_partial(output) for _ in range(300)]) for _ in "12"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert (tmp_path / "partial").read_text() == str(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partial"]


def heard(directory: RunDirectory, text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        assert line.startswith(f"{LINE} token ")
        directory.read_line(line)


def test_lines_leave_what_a_directory_is_told(
    directory: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = run_at("@token")
    run.register(9, "n2", 4711)
    run.note_partial(tmp_path / "a b.partial")
    run.note_kept()
    run.complete({"seconds": 1.5, "much": ["more"] * 9999})
    assert run.claim_failure({"exit_code": 7, "sentence": "wrong\ndata", "rank": 9})
    assert not run.claim_failure({"exit_code": 1, "sentence": "later", "rank": 8})
    run.remove_claim()
    said = capsys.readouterr().err
    assert max(map(len, said.split("\n"))) < 512  # a pipe keeps that together
    heard(directory, said)
    assert directory.rank_of(4711, "n2.cluster") == {"rank": 9, "host": "n2"}
    assert (directory.path / "partial").read_text() == str(tmp_path / "a b.partial")
    assert directory.keeps_files()
    assert directory.record() is not None
    failure = directory.failure()
    assert failure is not None
    assert (failure["exit_code"], failure["sentence"], failure["rank"]) == (7, "wrong\ndata", 9)
    assert list(tmp_path.glob("meshrun-*")) == []


def test_nobody_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunLines("token", has_reader=False)
    assert run.claim_failure({"sentence": "first"})
    assert not run.claim_failure({"sentence": "second"})
    run.complete({})
    run.remove_claim()
    assert capsys.readouterr().err == ""


def test_a_rank_that_is_killed_in_its_claim_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run, other = RunLines("token", has_reader=False), RunLines("other", has_reader=False)
    assert run.claim_failure({"sentence": "first"})
    assert other.claim_failure({"sentence": "first"})
    (note,) = tmp_path.glob("meshrun-token-*")
    note.with_name(f".{note.name}.0123456789abcdef.partial").write_text("half")
    run.remove_claim()
    assert [path.name for path in tmp_path.iterdir()] == [note.name.replace("token", "other")]


@pytest.mark.parametrize("line", [f"{LINE} token song {{}}", f"{LINE} token rank", f"{LINE} token rank {{"])
def test_a_line_that_is_none(directory: RunDirectory, line: str) -> None:
    with pytest.raises(ValueError):
        directory.read_line(line)


def test_processes_of_one_number_on_several_hosts(directory: RunDirectory) -> None:
    directory.register(0, "n1", 4711)
    directory.register(1, "n2.cluster", 4711)
    assert directory.rank_of(4711) is None
    assert directory.rank_of(4711, "n2") == {"rank": 1, "host": "n2.cluster"}
    assert directory.rank_of(4711, "n3") is None


def test_a_directory_is_named_by_its_path(tmp_path: Path) -> None:
    assert run_at(str(tmp_path)) == RunDirectory(tmp_path)


@pytest.mark.parametrize("starts", ["a command", "ranks"])
def test_the_next_run_removes_what_killed_ranks_have_claimed(
    starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, new = RunLines("old", has_reader=False), RunLines("new", has_reader=False)
    other = tmp_path / "meshrun-failure.txt"
    for path in (other, tmp_path / ".meshrun-old-failure.json.0123.partial"):
        path.touch()
    assert old.claim_failure({"sentence": "first"})
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert new.claim_failure({"sentence": "of a run that is ending"})
    if starts == "a command":
        made = {RunDirectory.create().path.name}
    else:
        made = set()
        opened = open_world("cpu", record="run")
        opened.close()
        opened.recorder.close()
    assert {path.name for path in tmp_path.iterdir()} == {other.name, "meshrun-new-failure.json", *made}
    assert not new.claim_failure({"sentence": "second"})
