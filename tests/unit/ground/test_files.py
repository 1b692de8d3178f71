"""Small files: whole at every moment, and never written through a link that somebody else has put there."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshrun.jobs.measure.record_file import RecordFile
from meshrun.jobs.validate.baseline import json as baseline
from meshrun.jobs.validate.baseline.baseline_run import BaselineRun
from meshrun.runner import files
from meshrun.runner.errors import UserError
from meshrun.runner.report import record as records
from meshrun.runner.report.timeline import write_timeline

RUN = BaselineRun("2026-01-01T00:00:00+00:00", (("n1", 1),), ("CPU",), {}, {})


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk: Python ignores SIGXFSZ, and the write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file in another folder that nothing may change, though links lead to it."""
    path = tmp_path / "elsewhere" / "victim"
    path.parent.mkdir()
    path.write_text("as it was")
    yield path
    assert path.read_text() == "as it was"
    assert os.listdir(path.parent) == ["victim"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "elsewhere")


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_written_and_nothing_beside_it_stays(tmp_path: Path, durable: bool) -> None:
    files.write_file(tmp_path / "a.json", "old", durable=durable)
    files.write_file(tmp_path / "a.json", b"new", durable=durable)
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert names(tmp_path) == ["a.json"]


def test_a_link_is_replaced_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "a.json").symlink_to(victim)
    files.write_file(tmp_path / "a.json", "new")
    assert not (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "a.json").read_text() == "new"


def test_links_under_names_that_can_be_guessed_are_not_followed(tmp_path: Path, victim: Path) -> None:
    path, process, thread = tmp_path / "a.json", os.getpid(), threading.get_native_id()
    guessed = [".a.json.new", f".a.json.{process}.partial", f"a.json.{thread}"]
    for name in guessed:
        path.with_name(name).symlink_to(victim)
    writers: list[Callable[[], object]] = [
        lambda: records.write_json(path, "test", 1, {}),
        lambda: write_timeline(path, [], {}),
        lambda: RecordFile(path).write(lambda: "{}"),
        lambda: baseline.add(path, RUN),
    ]
    for write in writers:
        path.unlink(missing_ok=True)
        write()
        assert path.is_file()
        assert names(tmp_path) == sorted([*guessed, "a.json"])


def test_the_old_files_permissions_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    path.chmod(0o600)
    files.write_file(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_on_a_full_disk_the_old_file_stays(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.json", "old")
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        files.write_file(tmp_path / "a.json", "x" * 2000)
    assert (tmp_path / "a.json").read_text() == "old"
    assert names(tmp_path) == ["a.json"]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    assert files.is_stream(tmp_path / "full")
    with pytest.raises(OSError, match="No space left"):
        files.write_file(tmp_path / "full", "text")
    files.write_file(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "full").is_symlink()


def test_a_name_as_long_as_they_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    assert len(os.fsencode(path.name)) == files.longest_name(tmp_path) - 1
    files.write_file(path, "text")
    assert path.read_text() == "text"


def test_a_file_is_created_once(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "made")
    for path in (tmp_path / "one", tmp_path / "two"):
        assert files.create(path, "first")
        assert not files.create(path, "second")
        assert path.read_text() == "first"
        assert not files.create(tmp_path / "link", "third")
        monkeypatch.setattr(os, "link", no_links)  # as on FAT
    assert names(tmp_path) == ["link", "one", "two"]


@pytest.mark.parametrize("kind", ["folder", "protected", "in no folder", "in a protected folder"])
def test_what_could_not_be_written_is_refused_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "protected":
        path.touch(0o444)
    elif kind == "in no folder":
        path = tmp_path / "gone" / "a.json"
    else:
        path = Path("/proc/a.json")
    before = names(tmp_path)
    with pytest.raises(OSError):
        files.check_writable(path)
    assert names(tmp_path) == before


def test_what_could_be_written_is_let_through_and_not_made(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("old")
    files.check_writable(tmp_path / "b.json")
    assert names(tmp_path) == ["b.json"]
    assert (tmp_path / "b.json").read_text() == "old"


def check(path: Path, folder: bool) -> None:
    files.check_own(path, folder, "rm it")


def test_what_was_left_by_oneself_is_let_through(tmp_path: Path) -> None:
    (tmp_path / "store" / "c").mkdir(parents=True)
    (tmp_path / "store" / "c" / "0").touch()
    check(tmp_path / "store", True)
    check(tmp_path / "store" / "c" / "0", False)


def test_what_was_planted_is_refused(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(UserError, match=r"/link is not of a run of yours: got a link to .*/victim.*rm it"):
        check(tmp_path / "link", False)
    (tmp_path / "folder").symlink_to(victim.parent)
    with pytest.raises(UserError, match="got a link to"):
        check(tmp_path / "folder", True)
    os.link(victim, tmp_path / "other name")
    with pytest.raises(UserError, match="got a file with 2 names, expected a file with one"):
        check(tmp_path / "other name", False)
    (tmp_path / "other name").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="got neither file nor folder, expected a file"):
        check(tmp_path / "pipe", False)
    with pytest.raises(UserError, match="got a folder, expected a file"):
        check(tmp_path, False)


@pytest.mark.parametrize("place", ["c", "c/0/1"])
def test_a_link_anywhere_in_a_folder_is_refused(tmp_path: Path, victim: Path, place: str) -> None:
    path = tmp_path / "store" / place
    path.parent.mkdir(parents=True)
    path.symlink_to(victim.parent if place == "c" else victim)
    with pytest.raises(UserError, match=f"/store/{place} is not of a run of yours: got a link to"):
        check(tmp_path / "store", True)


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)  # a file made now is still the test's user's
    check(tmp_path / "a", False)
    monkeypatch.setattr(files, "_owner_of_new", lambda folder: 4242)
    with pytest.raises(UserError, match=r"got a file of \w+, expected one of user 4242"):
        check(tmp_path / "a", False)


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device or address"):
        files.write_file(tmp_path / "pipe", "text")
