"""Files that are kept for a user: nobody else's are read, and none that is not whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshrun.runner.system import cached_files
from meshrun.runner.system.cached_files import cache_folder


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cache"
    assert cached_files.is_usable(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cached_files.read(folder / "one.cubin") is None
    for content in (b"kernel", b"another" * 1000):
        cached_files.write(folder / "one.cubin", content)
        assert cached_files.read(folder / "one.cubin") == content
    assert [path.name for path in folder.iterdir()] == ["one.cubin"]


def test_a_file_is_named_after_all_that_its_contents_follow_from(tmp_path: Path) -> None:
    words = [["text", "-O3"], ["text-O3", ""], ["text", "-O2"]]
    paths = {cached_files.path_of(tmp_path / "cache", each, ".so") for each in words}
    assert len(paths) == 3
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file"):
        path = cached_files.path_of(folder, ["text"], ".so")
        assert path is None
        assert cached_files.keep(path, b"kernel") is cached_files.read(path) is None


def test_what_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    assert cached_files.keep(tmp_path / "one", b"kernel") == tmp_path / "one"
    assert cached_files.keep(tmp_path / "no folder" / "one", b"kernel") is None


@pytest.mark.parametrize("left", [0, 1, 32, 33, 40])
def test_a_file_that_is_cut_short_is_not_read(tmp_path: Path, left: int) -> None:
    path = tmp_path / "one"
    cached_files.write(path, b"kernel of 18 bytes")
    path.write_bytes(path.read_bytes()[:left])
    assert cached_files.read(path) is None


def test_a_changed_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "one"
    cached_files.write(path, b"kernel")
    content = path.read_bytes()
    path.write_bytes(b"K" + content[1:])
    assert cached_files.read(path) is None


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_what_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    path, folder = tmp_path / "one", tmp_path / "folder"
    cached_files.write(path, b"kernel")
    path.chmod(mode)
    assert cached_files.read(path) is None
    folder.mkdir()
    folder.chmod(mode)
    assert not cached_files.is_usable(folder)


def test_what_another_user_put_there_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_files.write(tmp_path / "one", b"kernel")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert cached_files.read(tmp_path / "one") is None
    assert not cached_files.is_usable(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    cached_files.write(tmp_path / "one", b"kernel")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert cached_files.read(tmp_path / "link") is None
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    assert not cached_files.is_usable(tmp_path / "folder")


def test_a_folder_is_neither_a_file_nor_below_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not cached_files.is_usable(tmp_path / "file")
    assert not cached_files.is_usable(tmp_path / "file" / "cache")
    assert cached_files.read(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:  # may write everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert not cached_files.is_usable(tmp_path)
    tmp_path.chmod(0o700)


def test_nothing_is_left_of_a_file_that_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cached_files.write(tmp_path / "one", b"kernel")
    assert [*tmp_path.iterdir()] == []


def test_libraries_are_kept_in_the_users_cache() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/cache", "HOME": "/home/ann"}) == Path("/cache/meshrun")
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/home/ann"}) == Path(
        "/home/ann/.cache/meshrun"
    )
    assert cache_folder({}) is None
