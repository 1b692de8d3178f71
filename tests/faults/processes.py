"""What the tests of faults share: whether ranks can be started here, and what became of their processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import pytest
from _pytest.mark import ParameterSet

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.supervise import shared_memory
from meshrun.runner.errors import MeshrunError

DEADLOCK = 100  # seconds; nothing that is waited for takes a tenth of it on an idle machine
FEW_CORES = re.compile(r"meshrun: warning: ([\d,]+ ranks share \d+ cores?|ranks are bound to a single core)")
PROGRESS = re.compile(r"meshrun: [^:]+(: verify)?: \d+ %[ ;]")  # every 5 s, without a terminal
MARK = "MESHRUN_TEST_RUN"  # in the environment of every process of a test


@dataclass
class Place:
    """Where a test runs commands: `work` with files, `notes` that ranks leave, `temporary` for all else.

    begun: when the last command was started, as time.monotonic() has it.
    """

    work: Path
    notes: Path
    temporary: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def start(
        self, command: Sequence[str], out: IO[str] | int = subprocess.PIPE, **changes: str
    ) -> subprocess.Popen[str]:
        """Start a command in `work`. out: its standard output. changes: of its environment."""
        self.begun = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.work,
            env={**os.environ, "TMPDIR": str(self.temporary), MARK: str(self.notes), **changes},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


AnyPlace = TypeVar("AnyPlace", bound=Place)


@contextlib.contextmanager
def place_below(folder: Path, kind: type[AnyPlace]) -> Iterator[AnyPlace]:
    """Make a place with its folders; what a failed test leaves running ends."""
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    segments = shared_memory.segments()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as temporary:  # short: sockets are made in it
        made = kind(work, notes, Path(temporary))
        yield made
        for process in made.started:
            process.kill()
        for pid in left_running(notes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in made.started:
            process.wait()
        shared_memory.remove_orphans(segments)  # a launcher by itself leaves some


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Make a folder a file system of `size` bytes; skips the test where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def nightly(*values: object) -> ParameterSet:
    """One of many combinations: each of its values is in another one that every run has."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def promised(seconds: float, begun: float) -> float:
    """Seconds that may pass from now until something that takes at most so many on an idle machine.

    As many times more on a busy one: it took long since `begun`, when a command was started, to get here.
    """
    return max(seconds, 5 * (time.monotonic() - begun))


def launcher_problem() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "no mpi4py"
    try:
        mpi_launcher.find()
    except MeshrunError as reason:
        return str(reason)
    return None


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def left_running(notes: Path) -> list[int]:
    """Processes, launchers and ranks, with the test's mark in their environment."""
    wanted, found = f"{MARK}={notes}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLOCK
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def of_the_run(errors: str) -> str:
    """stderr without the lines that a machine of few cores, or a busy one, gets."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not FEW_CORES.match(line) and not PROGRESS.match(line))


def own_lines(errors: str) -> list[str]:
    """The same without what this machine's MPI has to say of the machine."""
    lines = of_the_run(errors).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("[hwloc")]
