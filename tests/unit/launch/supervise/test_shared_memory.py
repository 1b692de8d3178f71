"""Shared memory that dead runs left: whose it is, and whether someone still uses it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun.launch.supervise import shared_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=shared_memory.FOLDER) as path:  # not every file system grants leases
        yield Path(path)


def segment(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    return path


def mapped(path: Path) -> mmap.mmap:
    """The segment in memory, whose file is closed, as by MPI."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_only_mpis_segments_count(folder: Path) -> None:
    names = (
        "mpich_shm_1_0",
        "mpich_shar_tmpss66Kr",
        "ucx_shm_posix_2308f7a0",
        "sm_segment.n1.0.1.0",
        "vader_segment.n1.0.1.0",
    )
    known = {segment(folder, name) for name in names}
    segment(folder, "nccl-abc")
    assert shared_memory.segments(folder) == known


def test_a_missing_folder_has_none(folder: Path) -> None:
    assert shared_memory.segments(folder / "nosuch") == set()


def test_new_and_unused_segments_go(folder: Path) -> None:
    old = segment(folder, "mpich_shm_old")
    before = shared_memory.segments(folder)
    new = segment(folder, "mpich_shm_new")
    used = segment(folder, "mpich_shm_used")
    with mapped(used):
        shared_memory.remove_orphans(before, folder)
    assert old.exists()
    assert used.exists()
    assert not new.exists()


def test_old_and_unused_segments_of_mpi_go(folder: Path) -> None:
    names = ("mpich_shm_stale", "sm_segment.stale", "meshrun_recorder", "nccl-abc", "mpich_shm_used")
    stale, open_mpis, recorder, nccls, used = (segment(folder, name) for name in names)
    for path in folder.iterdir():
        os.utime(path, (0, time.time() - shared_memory.NEW - 1))
    new = segment(folder, "mpich_shm_new")
    with mapped(used):
        shared_memory.remove_stale(shared_memory.segments(folder))
    assert set(folder.iterdir()) == {recorder, nccls, used, new}
    assert not stale.exists()
    assert not open_mpis.exists()


def test_a_segment_of_a_rank_that_is_going_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared_memory.segments(folder)
    leaving = segment(folder, "mpich_shm_leaving")
    with mapped(leaving) as memory:
        looks = iter((lambda: None, lambda: None, memory.close))
        monkeypatch.setattr(time, "sleep", lambda _: next(looks)())
        shared_memory.remove_orphans(before, folder)
        assert memory.closed
    assert not leaving.exists()


def test_a_segment_that_another_run_has_created_and_not_mapped_yet_stays(folder: Path) -> None:
    """A busy machine may take a break between the two."""
    before = shared_memory.segments(folder)
    left, theirs = segment(folder, "mpich_shm_left"), segment(folder, "mpich_shm_theirs")
    with theirs.open("r+b"):
        shared_memory.remove_orphans(before, folder)
        assert theirs.exists()
        assert not left.exists()


@pytest.mark.parametrize(
    "namespaces", [["--user"], ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]]
)
def test_a_segment_of_a_process_in_another_namespace_stays(folder: Path, namespaces: list[str]) -> None:
    """Containers may share /dev/shm: one cannot see the other's processes, or not what they map."""
    user = ["--map-user=1000", "--map-group=1000"] if namespaces == ["--user"] else []
    remover = (
        "import sys; from pathlib import Path; from meshrun.launch.supervise import shared_memory;"
        "shared_memory.ATTEMPTS = 1; shared_memory.remove_orphans(set(), Path(sys.argv[1]))"
    )
    left, theirs = segment(folder, "mpich_shm_left"), segment(folder, "mpich_shm_theirs")
    with mapped(theirs):
        done = subprocess.run(
            ["unshare", *namespaces, *user, sys.executable, "-c", remover, str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no namespaces: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    assert theirs.exists()
    assert not left.exists()
