"""Who takes the tiles of a verification: threads, or processes where the GIL would keep threads waiting.

A process takes one tile after the other on the orders of a thread, which waits for it. All share one memory
for arrays. A process ends when its channel closes or its parent ends, if need be in the midst of a tile.
"""

from __future__ import annotations

import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

import numpy as np

from meshrun.runner.errors import MeshrunError, RunError, first_line
from meshrun.runner.job.pickling import dumps, user_modules
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray
from meshrun.runner.run.verify.tiles import Tile
from meshrun.runner.system.host_memory import free_host_memory, host_processors
from meshrun.runner.system.launcher import environment_of_helper
from meshrun.runner.world.world import World

ALONE = {  # a process has one core and no GPU
    "CUDA_VISIBLE_DEVICES": "",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
END_SECONDS = 10.0  # in which a process ends that is not killed
START_SECONDS = 60.0  # in which a process imports the job's modules
BOOT = (
    "import sys; numbers, sys.path[:] = sys.argv[1:3], sys.argv[3:]; "
    "from meshrun.runner.run.verify.member import serve; serve(*map(int, numbers))"
)
TILE_BYTES = 1 << 20  # of a field in a call of one of a few threads: few enough for a cache
FEW_THREADS, MANY_THREADS = 4, 16  # between them, calls grow with their number: each waits for the GIL
PROCESS_TILE_BYTES = 1 << 19  # nobody waits: few enough for a core's own cache
PROCESS_BYTES = 256 << 20  # of memory for a process, with what its job imports
MESSAGE_BYTES = 64 << 20  # of a job with what it uses, which each process has once more
PROCESS_WORK = 1 << 28  # cells to compute, for each process, with which they are worth their start
LEAST_PROCESSES, MOST_PROCESSES = 4, 64  # few threads hardly wait for the GIL


class NoProcessesError(Exception):
    """Processes cannot take the tiles; the reason."""


@dataclass
class Team:
    """Threads that take tiles, or have processes take them.

    pool: the threads, for other work too. memory: bytes, of all arrays. crew: the processes, None without.
    reason: why there are none, if some were asked for.
    """

    task: Task
    pool: ThreadPoolExecutor
    threads: int
    memory: HostArray
    crew: Crew | None = None
    reason: str | None = None

    @property
    def processes(self) -> int:
        return 0 if self.crew is None else len(self.crew.members)

    @property
    def thread_bytes(self) -> int:
        """Best size of what a thread handles in a call of NumPy, in bytes of one array."""
        return TILE_BYTES * min(max(self.threads, FEW_THREADS), MANY_THREADS) // FEW_THREADS

    def tile_bytes(self) -> int:
        """Return the best size of a tile, in bytes of one field. Waits for processes that are starting."""
        if self.crew is not None:
            try:
                self.crew.wait()
            except NoProcessesError as failure:
                self.crew, self.reason = None, str(failure)
            else:
                return PROCESS_TILE_BYTES
        return self.thread_bytes

    def take(self, tiles: Iterable[Tile]) -> None:
        """Take all tiles, in any order."""
        list(self.pool.map(self._take_here if self.crew is None else self.crew.take, tiles))

    def _take_here(self, tile: Tile) -> None:
        tile.take(self.task, self.memory)


@contextmanager
def open_team(task: Task, nbytes: int, threads: int, processes: int = 0) -> Iterator[Team]:
    """Yield a team with a memory of `nbytes` bytes: of processes, or of threads where those cannot be."""
    with Crew() as crew, ThreadPoolExecutor(max(threads, processes), "verify") as pool:
        team = Team(task, pool, threads, np.empty(0, np.uint8))
        try:
            if processes:
                try:
                    team.memory, team.crew = crew.start(task, nbytes, processes), crew
                except NoProcessesError as failure:
                    team.reason = str(failure)
            if team.crew is None:
                team.memory = np.empty(nbytes, np.uint8)
            yield team
        except BaseException:
            crew.kill()  # before the pool waits for threads that wait for them
            raise


def processes_of(world: World, work: int) -> int:
    """Return how many processes this rank's verification should have; 0 where threads are as fast.

    work: cells to compute, each as often as it is. Ranks share their host.
    """
    beside = len(world.beside)
    cores = min(len(os.sched_getaffinity(0)), host_processors() // beside)
    room = free_host_memory() // 2 // beside // PROCESS_BYTES
    found = min(cores, room, MOST_PROCESSES)
    return found if found >= LEAST_PROCESSES and work >= found * PROCESS_WORK else 0


@dataclass(frozen=True)
class _Member:
    process: subprocess.Popen[bytes]
    channel: Connection

    def ending(self) -> str:
        """Return how the process has ended."""
        try:
            status = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "no answer"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def wait(self) -> None:
        """Wait until the process has the task. NoProcessesError if it cannot."""
        try:
            if not self.channel.poll(START_SECONDS):
                raise NoProcessesError(f"a process was not ready after {START_SECONDS:g} seconds")
            answer = self.channel.recv()
        except (EOFError, OSError):
            raise NoProcessesError(f"a process ended when it started: {self.ending()}") from None
        if answer is not None:
            raise NoProcessesError(f"a process cannot have the job: {answer}")


class Crew:
    """Processes that take tiles, in a memory that no file system names."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self._file: int | None = None
        self._waited = False
        self._idle: queue.SimpleQueue[_Member] = queue.SimpleQueue()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.channel.close()  # which ends the process
        for member in self.members:
            member.ending()
            member.process.kill()
            member.process.wait()
        if self._file is not None:
            os.close(self._file)

    def kill(self) -> None:
        """End the processes in the midst of their tiles."""
        for member in self.members:
            member.process.kill()

    def start(self, task: Task, nbytes: int, processes: int) -> HostArray:
        """Start processes; return their memory. NoProcessesError: they cannot start or have the task."""
        try:
            self._file = os.memfd_create("meshrun-verify")
            os.ftruncate(self._file, max(nbytes, 1))
            memory: HostArray = np.frombuffer(mmap.mmap(self._file, 0), np.uint8)
            message = dumps(task, *user_modules())
            if len(message) > MESSAGE_BYTES:
                raise NoProcessesError(
                    f"the job and what it uses are too large for processes: {len(message):,} bytes"
                )
            for _ in range(processes):
                self.members.append(_started(self._file))
        except OSError as failure:
            raise NoProcessesError(f"processes cannot be started: {first_line(failure)}") from failure
        except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as failure:
            raise NoProcessesError(f"the job cannot be sent to processes: {first_line(failure)}") from failure
        for member in self.members:
            with suppress(OSError):  # of one that has ended, which `wait` finds
                member.channel.send_bytes(message)
        return memory

    def wait(self) -> None:
        """Wait until all processes can take tiles. NoProcessesError, and none is left, if one cannot."""
        if self._waited:
            return
        try:
            for member in self.members:
                member.wait()
                self._idle.put(member)
        except NoProcessesError:
            self.kill()
            raise
        self._waited = True

    def take(self, tile: Tile) -> None:
        """Have a process take the tile. RunError if the process ends, or what the job raises."""
        member = self._idle.get()
        try:
            member.channel.send(tile)
            failure: MeshrunError | None = member.channel.recv()
        except (EOFError, OSError):
            raise RunError(
                "a process of the verification ended before its tile was done",
                got=member.ending(),
                hint="more memory, or fewer ranks on a host",
            ) from None
        finally:
            self._idle.put(member)
        if failure is not None:
            raise failure


def _started(file: int) -> _Member:
    """Start a process. file: of the memory."""
    ours, theirs = Pipe()
    with theirs:
        numbers = theirs.fileno(), file
        path = [place for place in sys.path if isinstance(place, str)]
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *map(str, numbers), *path],
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
            env=environment_of_helper() | ALONE,
            start_new_session=True,  # Ctrl-C is for the process that ends this one
        )
    return _Member(process, ours)
