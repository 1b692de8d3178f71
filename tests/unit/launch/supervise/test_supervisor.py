"""What a launcher that is watched gets of this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from launch.supervise.supervisor import SHORT, socket_folder


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
