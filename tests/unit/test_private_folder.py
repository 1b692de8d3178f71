"""Folders that a killed process has left are removed by the next run of the same user, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshrun.runner import lock

MAKE = """
import os, sys
from pathlib import Path
from meshrun.runner.lock import private_folder
made = private_folder("run", Path(sys.argv[1]))
(made / "note").write_text("x")
print(made, flush=True)
"""


def left_by_a_process(home: Path, *, killed: bool) -> tuple[Path, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE + "sys.stdin.read()", str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(lock.__file__).parents[1],
    )  # fmt: skip
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    if killed:
        process.kill()
        process.wait()
    os.utime(folder, (0, 0))
    return folder, process


def test_what_a_killed_process_has_left_is_removed_with_what_it_names(tmp_path: Path) -> None:
    other = tmp_path / "mr12345678"
    other.mkdir()
    folder, _ = left_by_a_process(tmp_path, killed=True)
    (folder / "also").write_text(str(other))
    os.utime(folder, (0, 0))
    made = lock.private_folder("run", tmp_path)
    assert list(tmp_path.iterdir()) == [made]
    assert made.stat().st_mode & 0o777 == 0o700


def test_the_folder_of_a_process_that_lives_stays(tmp_path: Path) -> None:
    folder, process = left_by_a_process(tmp_path, killed=False)
    made = lock.private_folder("run", tmp_path)
    assert {*tmp_path.iterdir()} == {folder, made}
    process.communicate()


def test_other_kinds_young_ones_and_links_stay(tmp_path: Path) -> None:
    for name in ("meshrun-call-1", "meshrun-x", "meshrun-run-young", "target"):
        (tmp_path / name).mkdir()
        if not name.endswith("young"):
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "meshrun-run-link").symlink_to("target")
    before = {*tmp_path.iterdir()}
    made = lock.private_folder("run", tmp_path)
    assert {*tmp_path.iterdir()} == {*before, made}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "meshrun-run-1").mkdir()
    os.chown(tmp_path / "meshrun-run-1", 12345, -1)
    os.utime(tmp_path / "meshrun-run-1", (0, 0))
    lock.private_folder("run", tmp_path)
    assert (tmp_path / "meshrun-run-1").exists()
