"""Ranks of a real MPI that get stuck in every way: all end in time, with status 4, and are named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import DEADLOCK, alive, launcher_problem, promised

from meshrun.launch.mpi import launcher as mpi_launcher

ROOT = Path(mpi_launcher.__file__).parents[2]
ALLOWED = 2  # seconds without progress
PROMISE = ALLOWED + 10

RANK = f"""
import os, sys, threading, time
from pathlib import Path
sys.path.append({str(ROOT)!r})
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.world.watchdog.watchdog import Watchdog
folder = Path(sys.argv[1])
comm = MpiComm()
def end(status):
    (folder / f"status-{{comm.rank}}").write_text(str(status))
    comm.abort(status)
def report(text):
    sys.stderr.write("".join(f"REPORT {{comm.rank}} {{line}}\\n" for line in text.splitlines()))
    sys.stderr.flush()
names = [f"rank {{rank}}, host here, CPU" for rank in range(comm.size)]
dog = Watchdog(comm, names, {ALLOWED}, on_report=report, end=end)
assert dog.warnings == [], dog.warnings
(folder / f"rank-{{comm.rank}}").write_text(str(os.getpid()))
def told(name):
    partial = folder / f".{{name}}-{{comm.rank}}"
    partial.write_text(str(time.time()))
    partial.rename(folder / f"{{name}}-{{comm.rank}}")
dog.begin("all_reduce float sum, 1048576 B, out-of-place", "initialising data")
comm.barrier()
print("a row of the table")
"""

# Each rank has told "stuck" before its last state. Rank 2 is the one that a test makes the culprit.
LOOP = """
told("stuck")
iteration = 0
while True:
    iteration += 1
    dog.enter(iteration)
    comm.barrier()
    time.sleep(0.01)
"""


pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        yield Path(folder)


class Run:
    """Ranks under mpiexec."""

    def __init__(self, folder: Path, sockets: Path, body: str, ranks: int) -> None:
        self.folder, self.ranks, self.begun = folder, ranks, time.monotonic()
        (folder / "rank.py").write_text(RANK + body)
        launcher = mpi_launcher.find()
        self.process = subprocess.Popen(
            [*launcher.command(ranks), sys.executable, str(folder / "rank.py"), str(folder)],
            env=launcher.environment(ranks, os.environ, sockets),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLOCK
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    def all_stuck(self) -> None:
        self.wait_for(lambda: len(list(self.folder.glob("stuck-*"))) == self.ranks)

    def stop(self, rank: int) -> None:
        """Freeze a rank's process, threads and all, as a signal from its host would."""
        os.kill(self.pid(rank), signal.SIGSTOP)
        (self.folder / f"stuck-{rank}").write_text(str(time.time()))

    def pid(self, rank: int) -> int:
        return int((self.folder / f"rank-{rank}").read_text())

    def end_after_stuck(self) -> tuple[str, list[str]]:
        self.all_stuck()
        return self.end()

    def end(self) -> tuple[str, list[str]]:
        """After the end of all ranks: stdout, and the lines of the report."""
        promise = promised(PROMISE, self.begun)
        last = max(float(path.read_text()) for path in self.folder.glob("stuck-*"))
        out, errors = self.process.communicate(timeout=DEADLOCK)
        deadline = time.monotonic() + promise  # MPICH's launcher may end before its ranks
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.living() == []
        assert time.time() - last < promise, errors
        assert self.process.returncode == 4, errors
        assert {path.read_text() for path in self.folder.glob("status-*")} == {"4"}
        return out, re.findall(r"REPORT (.*)", errors)

    def living(self) -> list[int]:
        return [rank for rank in range(self.ranks) if alive(self.pid(rank))]

    def kill(self) -> None:
        """What a failed test has left."""
        for rank in range(self.ranks):
            path = self.folder / f"rank-{rank}"
            if path.exists() and alive(int(path.read_text())):
                os.kill(int(path.read_text()), signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path, sockets: Path) -> Iterator[Callable[..., Run]]:
    """Begin ranks with a body; afterwards none lives."""
    begun: list[Run] = []

    def run(body: str, ranks: int = 4) -> Run:
        begun.append(Run(tmp_path, sockets, body, ranks))
        return begun[-1]

    yield run
    for each in begun:
        each.kill()


LABEL = "all_reduce float sum, 1048576 B, out-of-place"
OTHERS = "rank 0, host here, CPU; rank 1, host here, CPU; rank 3, host here, CPU"


@pytest.mark.mpi_library
def test_a_rank_that_sleeps_in_an_iteration_that_the_others_have_left(start: Callable[..., Run]) -> None:
    body = """
for iteration in range(1, 8):
    dog.enter(iteration)
    if iteration == 6 and comm.rank == 2:
        told("stuck")
        time.sleep(600)
    if iteration == 6:
        continue
    if iteration == 7:
        told("stuck")
    comm.barrier()
"""
    out, report = start(body).end_after_stuck()
    assert out.count("a row of the table") == 4
    assert report == [
        f"0 stuck: {LABEL}, iteration 7: no progress for {ALLOWED} s",
        "0   not entered: rank 2, host here, CPU (in iteration 6)",
        f"0   entered, not finished: {OTHERS}",
    ]


def test_a_rank_that_never_gets_to_the_barrier(start: Callable[..., Run]) -> None:
    body = """
told("stuck")
if comm.rank == 2:
    time.sleep(600)
dog.before("at the barrier")
comm.barrier()
"""
    _, report = start(body).end_after_stuck()
    assert report == [
        f"0 stuck: {LABEL}: no progress for {ALLOWED} s",
        "0   not entered: rank 2, host here, CPU (initialising data)",
        f"0   not entered: {OTHERS} (at the barrier)",
    ]


@pytest.mark.mpi_library
def test_a_stopped_process(start: Callable[..., Run]) -> None:
    run = start(LOOP)
    run.all_stuck()
    run.stop(2)
    _, report = run.end()
    assert re.fullmatch(rf"0 stuck: {LABEL}, iteration \d+: no progress for {ALLOWED} s", report[0])
    assert "0   no answer: rank 2, host here, CPU (frozen, or its host gone)" in report
    assert sum(line.count("host here") for line in report) == 4


def test_rank_0_stopped(start: Callable[..., Run]) -> None:
    """The others end by themselves; at least the first of them tells."""
    run = start(LOOP)
    run.all_stuck()
    run.stop(0)
    _, report = run.end()
    assert report
    for line in report:
        rank = line[0]
        assert rank in "123"
        assert re.fullmatch(
            rf"{rank} stuck: {LABEL}, iteration \d+: no progress for {ALLOWED} s; "
            rf"\[rank {rank}, host here, CPU\] had entered it and not finished; "
            "rank 0 does not answer: frozen or gone",
            line,
        )


@pytest.mark.nightly
def test_all_ranks_stuck_alike(start: Callable[..., Run]) -> None:
    """As a bug in the library would have it: everyone is in, and nobody gets out."""
    body = """
dog.enter(3)
told("stuck")
threading.Event().wait()
"""
    _, report = start(body).end_after_stuck()
    assert report == [
        f"0 stuck: {LABEL}, iteration 3: no progress for {ALLOWED} s",
        "0   entered, not finished: ranks 0-3 (4 of 4)",
    ]


def test_ranks_that_go_on_are_left_alone(start: Callable[..., Run]) -> None:
    body = f"""
for iteration in range(1, 31):
    dog.enter(iteration)
    comm.barrier()
    time.sleep({ALLOWED} / 15)
dog.pause()
time.sleep({ALLOWED} * 1.5)
dog.stop()
comm.barrier()
comm.close()
"""
    run = start(body)
    out, errors = run.process.communicate(timeout=DEADLOCK)
    assert run.process.returncode == 0, errors
    assert "REPORT" not in errors
    assert out.count("a row of the table") == 4
