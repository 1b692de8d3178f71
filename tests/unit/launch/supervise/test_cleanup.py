"""What a run left on a host is removed by a command of its own, and nothing of another run's."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun.launch.mpi.mpirun import CLEANUP
from meshrun.launch.supervise import shared_memory
from meshrun.launch.supervise.cleanup import RUN_MARK, clean_up, remove_topologies, strays
from meshrun.runner.world.run_status import RunLines

DEADLINE = 60.0  # seconds
IGNORES_SIGNALS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"


@pytest.fixture
def mark(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def token() -> str:
    return secrets.token_hex(8)


def sweep(mark: str, folder: Path, seconds: float, token: str) -> None:
    """As ssh does it: from anywhere, with what a login shell has."""
    words = [sys.executable, "-I", CLEANUP, mark, str(folder), f"{seconds:.0f}", token]
    environment = {"PATH": os.environ["PATH"], "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        words, cwd="/", env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@contextlib.contextmanager
def process(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A rank of the run with that mark, in a session of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", IGNORES_SIGNALS], env={**os.environ, RUN_MARK: mark}, start_new_session=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def segment(folder: Path, age: float = 0.0) -> Path:
    """A segment of shared memory, as MPICH names them, that many seconds old."""
    path = folder / f"mpich_shm_test_{secrets.token_hex(4)}"
    path.write_bytes(bytes(4096))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_processes_of_the_run_end_and_others_do_not(mark: str, token: str, tmp_path: Path) -> None:
    with process(mark) as ours, process(mark) as ours_too, process(f"{mark}2") as theirs:
        sweep(mark, tmp_path / "nosuch", 5, token)
        assert [one.wait(DEADLINE) for one in (ours, ours_too)] == [-signal.SIGKILL] * 2
        assert theirs.poll() is None


def test_the_launchers_folder_goes_with_all_that_is_in_it(mark: str, token: str, tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    (folder / "prte.n1" / "1").mkdir(parents=True)
    (folder / "prte.n1" / "contact.txt").write_text("1")
    sweep(mark, folder, 5, token)
    assert not folder.exists()
    sweep(mark, folder, 5, token)  # there is nothing more to do


@pytest.mark.skipif(not os.access(shared_memory.FOLDER, os.W_OK), reason="no /dev/shm")
def test_shared_memory_of_the_run_goes(mark: str, token: str, tmp_path: Path) -> None:
    new = segment(shared_memory.FOLDER)
    try:
        sweep(mark, tmp_path / "nosuch", 600, token)
        assert not new.exists()
    finally:
        new.unlink(missing_ok=True)


def test_shared_memory_that_is_older_than_the_run_stays(mark: str, token: str, tmp_path: Path) -> None:
    """In a folder of its own: in /dev/shm itself, runs of other tests remove what they find."""
    with tempfile.TemporaryDirectory(dir=shared_memory.FOLDER) as shared:
        new, old = segment(Path(shared)), segment(Path(shared), age=3600.0)
        clean_up(mark, str(tmp_path / "nosuch"), 600, token, shared=Path(shared))
        assert not new.exists()
        assert old.exists()


def test_the_note_of_a_failure_that_a_killed_rank_left_goes(mark: str, token: str, tmp_path: Path) -> None:
    ours, theirs = RunLines(token, has_reader=False), RunLines(secrets.token_hex(8), has_reader=False)
    for lines in (ours, theirs):
        assert lines.claim_failure({"exit_code": 1})
    try:
        sweep(mark, tmp_path / "nosuch", 5, token)
        assert ours.claim_failure({"exit_code": 1}), "the note is gone"
        assert not theirs.claim_failure({"exit_code": 1})
    finally:
        ours.remove_claim()
        theirs.remove_claim()


def test_a_processs_mark_is_matched_whole(tmp_path: Path) -> None:
    def process(pid: int, environment: bytes) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(environment)

    process(10, b"A=1\0MESHRUN_RUN=/tmp/meshrun-a\0B=2\0")
    process(11, b"MESHRUN_RUN=/tmp/meshrun-abc\0")
    process(12, b"OLD_MESHRUN_RUN=/tmp/meshrun-a\0")
    process(os.getpid(), b"MESHRUN_RUN=/tmp/meshrun-a\0")
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    assert strays("/tmp/meshrun-a", tmp_path) == [10]


@pytest.mark.parametrize(
    ("process", "stay"),
    [("hydra_pmi_proxy) S", True), ("hydra_pmi_proxy) Z", False), ("python) S", False)],
)
def test_descriptions_of_the_host_go_when_no_daemon_of_mpich_lives(
    tmp_path: Path, process: str, stay: bool
) -> None:
    left, other = tmp_path / "hydra_hwloc_xmlfile_MV1Uiu", tmp_path / "hydra_other"
    left.touch()
    other.touch()
    processes, numbers = tmp_path / "proc", " 0" * 46
    (processes / "17").mkdir(parents=True)
    (processes / "17" / "stat").write_text(f"17 ({process} 1 17 17{numbers}")
    (processes / "16").mkdir()
    anybodys = b"16 (\xff\xfe) S 1 16 16" + numbers.encode()
    (processes / "16" / "stat").write_bytes(anybodys)
    remove_topologies(tmp_path, processes)
    assert left.exists() == stay
    assert other.exists()
