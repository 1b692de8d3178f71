"""The file of -J is complete at every moment."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from meshrun import World
from meshrun.jobs.measure import record_file
from meshrun.jobs.measure.record_file import RecordFile, create_record, open_record
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.world import single_rank_world


def test_what_was_written_stays_whole_while_the_next_is_made(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept = RecordFile(path)
    kept.write(lambda: "[1]")

    def failing() -> str:
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        kept.write(failing, last=True)
    assert json.loads(path.read_text()) == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_a_failed_write_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept = RecordFile(path)
    kept.write(lambda: "[1]")
    with pytest.raises(UnicodeEncodeError):
        kept.write(lambda: "\ud800", last=True)
    assert json.loads(path.read_text()) == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_writing_takes_a_small_share_of_the_time_and_the_last_text_is_always_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept, made = RecordFile(path), 0

    def text() -> str:
        nonlocal made
        made += 1
        return str(made)

    for _ in range(1000):
        kept.write(text)
    assert 1 <= made < 500
    kept.write(text, last=True)
    assert path.read_text() == str(made)


def test_ranks_without_a_file_write_nothing() -> None:
    RecordFile(None).write(lambda: pytest.fail("made for nobody"), last=True)


def print_text(text: str) -> None:
    print(text, end="")


@pytest.fixture
def world() -> World:
    return single_rank_world(CpuBackend())


def test_the_file_is_new_and_named(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    kept = open_record(world, str(path), print_text)
    kept.write(lambda: "ours", last=True)
    assert path.read_text() == "mine"
    assert (tmp_path / "out.json.0").read_text() == "ours"
    assert capsys.readouterr().out == f"# Writing JSON output to {path}.0\n"


def test_no_file_where_none_can_be(world: World, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        open_record(world, str(tmp_path / "missing" / "out.json"), print_text)


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path, names = tmp_path / "out.JSON", []
    for content in ("first", "second", "third"):
        name = create_record(path)
        Path(name).write_text(content)
        names.append(name)
    assert names == [str(path), f"{path}.0", f"{path}.1"]
    assert [Path(name).read_text() for name in names] == ["first", "second", "third"]


def test_a_name_without_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a name ending in \.json"):
        create_record(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory"):
        create_record(tmp_path / "missing" / "out.json")


@pytest.mark.parametrize("before", ["", '{"an earlier": "state"}'])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(before)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_file, "write_file", full)
    with pytest.raises(RunError, match=r"cannot write .*a\.json: No space left on device"):
        RecordFile(path).write(lambda: "{}", last=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == [before] * bool(before)


def test_standard_output_gets_the_last_document_once(capsys: pytest.CaptureFixture[str]) -> None:
    kept = RecordFile(Path(create_record("-")))
    for number in range(3):
        kept.write(lambda number=number: f"{number}\n", last=True)
    assert capsys.readouterr().out == ""
    kept.close()
    kept.close()
    assert capsys.readouterr().out == "2\n"
