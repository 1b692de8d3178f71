"""What a launcher that is watched gets of this machine."""

from __future__ import annotations

import errno
import gc
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.supervise import supervisor
from meshrun.launch.supervise.supervisor import RUN_MARK, SHORT, socket_folder, supervise, watch_launcher


@pytest.mark.parametrize("name", ["t", "long" * 30])
def test_the_socket_folder_has_a_short_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as base:
        home = Path(base) / name
        home.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(home))
        folder = socket_folder()
        folder.rmdir()
    assert len(str(folder)) <= SHORT + len("/mrxxxxxxxx")
    assert folder.is_relative_to(home) is (name == "t")
    assert folder.name.startswith("mr")


def test_the_socket_folder_is_private() -> None:
    folder = socket_folder()
    assert folder.stat().st_mode & 0o077 == 0
    folder.rmdir()


@pytest.mark.parametrize("full", ["socket_folder", "prepare"])
def test_a_full_folder_for_temporary_files_leaves_nothing_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if full == "socket_folder":
        monkeypatch.setattr(supervisor, full, fail)
    with pytest.raises(OSError, match="No space left"):
        supervise(fail)
    assert list(tmp_path.iterdir()) == []


def test_the_pipes_of_a_launcher_are_closed(tmp_path: Path) -> None:
    """`job.run(..., ranks=N)` starts launchers again and again in one process."""
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        outcome = watch_launcher([sys.executable, "-c", ""], {**os.environ, RUN_MARK: str(tmp_path)})
        gc.collect()
    assert outcome.status == 0
    assert [str(one.message) for one in caught] == []
