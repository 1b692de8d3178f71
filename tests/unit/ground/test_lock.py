"""One run at a time writes an output, with locks and without, and nobody is locked out by a dead one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from meshrun.runner.errors import UserError
from meshrun.runner.lock import hold


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Lustre mount without -o flock."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.npy"


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir())


def dead_holder(output: Path) -> int:
    """A process that holds the output and is killed."""
    child = os.fork()
    if child == 0:
        try:
            hold(output)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return child


@pytest.fixture(params=["locks", "no locks"])
def either(request: pytest.FixtureRequest) -> None:
    if request.param == "no locks":
        request.getfixturevalue("without_locks")


@pytest.mark.usefixtures("either")
def test_a_second_run_is_refused_until_the_first_lets_go(output: Path) -> None:
    release = hold(output)
    with pytest.raises(UserError, match=r"another run is writing .*out\.npy"):
        hold(output)
    release()
    assert names(output) == []
    hold(output)()
    assert names(output) == []


@pytest.mark.usefixtures("either")
def test_a_dead_run_is_in_nobodys_way(output: Path) -> None:
    dead_holder(output)
    hold(output)()
    assert names(output) == []


@pytest.mark.usefixtures("without_locks")
def test_without_locks_the_sentence_says_who_has_it_and_what_to_do(output: Path) -> None:
    release = hold(output)
    with pytest.raises(UserError) as refusal:
        hold(output)
    claim = output.with_name(".out.npy.claim")
    assert f"a claim of process {os.getpid()} on host {os.uname().nodename} since 2" in str(refusal.value)
    assert str(refusal.value).endswith(f"if that process has ended: rm {claim}")
    release()


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("change", [{"host": "n7"}, {"boot": "another"}, {"processes": 1}, {"pid": "?"}])
def test_what_only_a_person_can_know_to_be_stale_is_not_taken_over(
    output: Path, change: dict[str, object]
) -> None:
    dead_holder(output)
    claim = output.with_name(".out.npy.claim")
    claim.write_text(json.dumps({**json.loads(claim.read_text()), **change}))
    with pytest.raises(UserError, match=f"rm {re.escape(str(claim))}"):
        hold(output)
    claim.unlink()
    hold(output)()


@pytest.mark.usefixtures("without_locks")
def test_half_a_claim_is_one(output: Path) -> None:
    output.with_name(".out.npy.claim").write_text('{"id"')
    with pytest.raises(UserError, match=r"process \? on host \?"):
        hold(output)


@pytest.mark.usefixtures("without_locks")
def test_another_process_with_the_dead_ones_number_does_not_hold(output: Path) -> None:
    dead_holder(output)
    claim = output.with_name(".out.npy.claim")
    claim.write_text(json.dumps({**json.loads(claim.read_text()), "pid": os.getpid()}))
    hold(output)()


@pytest.mark.usefixtures("without_locks")
def test_a_claim_that_another_run_has_taken_over_is_left_to_it(output: Path) -> None:
    release = hold(output)
    claim = output.with_name(".out.npy.claim")
    claim.unlink()  # by hand
    other = hold(output)
    release()
    assert claim.exists()
    other()
    assert names(output) == []


@pytest.mark.parametrize("name", [".out.npy.lock", ".out.npy.claim"])
def test_a_link_in_the_place_of_the_lock_is_not_followed(
    output: Path, name: str, request: pytest.FixtureRequest
) -> None:
    victim = output.with_name("victim")
    victim.write_text("as it was")
    output.with_name(name).symlink_to(victim)
    output.with_name(".other.npy.lock").symlink_to(output.with_name("made"))
    if name.endswith("claim"):
        request.getfixturevalue("without_locks")
    with pytest.raises(UserError, match=rf"rm .*{name}"):
        hold(output)
    with pytest.raises(UserError, match=r"cannot lock .*\.other\.npy\.lock: got a link"):
        hold(output.with_name("other.npy"))
    assert victim.read_text() == "as it was"
    assert not output.with_name("made").exists()


def test_what_is_no_file_in_the_place_of_the_lock_is_a_sentence(output: Path) -> None:
    os.mkfifo(output.with_name(".out.npy.lock"))
    with pytest.raises(UserError, match=r"cannot lock .*got no plain file"):
        hold(output)
    output.with_name(".out.npy.lock").unlink()
    output.with_name(".out.npy.lock").mkdir()
    with pytest.raises(UserError, match=r"cannot lock .*Is a directory\. Try: rmdir "):
        hold(output)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_where_no_lock_can_be_made_nothing_is_to_be_removed(
    output: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, flags: int, *_: object) -> int:
        found = number if flags & os.O_CREAT else errno.ENOENT
        raise OSError(found, os.strerror(found), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=rf"got {os.strerror(number)}\. Try: another output, in a folder"):
        hold(output)


def test_a_lock_that_the_file_system_refuses_has_a_hint(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"Input/output error\. Try: an output on another file system"):
        hold(output)


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    words = "the output's folder does not exist: got .*gone. Try: mkdir -p .*gone$"
    with pytest.raises(UserError, match=words):
        hold(tmp_path / "gone" / "out.npy")


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="directory is gone"):
        hold(Path("out.npy"))
