"""What a benchmark does to a part while ranks run. A fault is there before they are, and goes after them.

A fault is a context manager of a site, the number of the part that it disturbs, and the run's token.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "MESHRUN_CAMPAIGN"  # in the environment of every process of a run
RANK = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
LONGEST = 600  # seconds of a run
HEALTHY_RATE, LIMITED_RATE = "1gbit", "200mbit"  # the wire, and not this machine's cores, decides
LOADS = ("product", "copy")


class Skipped(Exception):
    """This machine cannot have the fault; why."""


@dataclass
class Site:
    """Where ranks run. hosts: of tests/cluster, by which ranks are started; None: on this machine."""

    options: argparse.Namespace
    folder: Path
    hosts: Any = None

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def ranks(self) -> int:
        return int(self.options.ranks)

    def run(self, setting: Setting, token: str) -> subprocess.CompletedProcess[str]:
        """One validation. Raises subprocess.TimeoutExpired after ten minutes."""
        rungs = ["--rungs", self.options.rungs] if self.options.rungs else []
        quick = [] if self.options.device == "cpu" else ["--quick"]  # which leaves no time to confirm on CPUs
        words = ["validate", *quick, "--device", self.options.device, "-J", str(self.report), *rungs]
        environment = {MARK: token, **setting.environment}
        if self.hosts:
            size, hosts = f"{self.options.hosts}x{self.options.per_host}", ",".join(self.hosts.names[1:])
            there = ["launch", "mpirun", "-j", size, "--hosts", hosts, "--", *words]
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # MPI does not know that hosts share cores
            start = [sys.executable, "-m", "meshrun", *there]
            with beside(functools.partial(pin, self, token)):
                done: subprocess.CompletedProcess[str] = self.hosts.run(
                    self.hosts.names[0], start, LONGEST, **environment
                )
            return done
        return subprocess.run(
            [sys.executable, *setting.starter(self.ranks, words)],
            env={**os.environ, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )


@dataclass(frozen=True)
class Setting:
    """What a fault asks of the launch. environment: of all ranks; of_one: more of it, for rank `one` alone.
    bus_id: of the GPU that is disturbed, where its number is not yet known.
    """

    environment: dict[str, str] = field(default_factory=dict)
    of_one: tuple[str, ...] = ()
    one: int = 0
    bus_id: str = ""

    def starter(self, ranks: int, words: Sequence[str]) -> list[str]:
        """The words of Python that start these ranks."""
        if not self.of_one:
            return ["-m", "meshrun", "-n", str(ranks), *words]
        tests = " || ".join(f'[ "${name.decode()}" = {self.one} ]' for name in RANK)
        script = f'if {tests}; then export {" ".join(self.of_one)}; fi; exec "$@"'
        program = ("sh", "-c", script, "rank", sys.executable, "-m", "meshrun")
        return [
            "-c",
            f"import sys; from meshrun.launch.mpi.local import start; "
            f"sys.exit(start({ranks}, {list(words)!r}, program={program!r}))",
        ]


Around = Callable[[Site, int, str], AbstractContextManager[Setting]]


@contextlib.contextmanager
def none(site: Site, part: int, token: str) -> Iterator[Setting]:
    yield Setting()


@contextlib.contextmanager
def busy(site: Site, part: int, token: str) -> Iterator[Setting]:
    """Another process on the GPU. Which number the ranks give to that GPU, its bus tells."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    chosen = visible[part] if visible else str(part)
    load = LOADS[part % len(LOADS)] if site.options.load is None else site.options.load
    process = subprocess.Popen(
        [sys.executable, __file__, load],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": chosen},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        bus_id = process.stdout.readline().strip()  # says that it is under way
        if not bus_id:
            raise RuntimeError(f"no load on GPU {chosen}")
        yield Setting(bus_id=bus_id)
        if process.poll() is not None:
            raise RuntimeError(f"the load on GPU {chosen} has ended before the ranks")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def off_nvlink(site: Site, part: int, token: str) -> Iterator[Setting]:
    yield Setting({"NCCL_P2P_DISABLE": "1"})


@contextlib.contextmanager
def off_nvlink_one(site: Site, part: int, token: str) -> Iterator[Setting]:
    yield Setting(of_one=("NCCL_P2P_DISABLE=1",), one=part)


@contextlib.contextmanager
def stopped(site: Site, part: int, token: str) -> Iterator[Setting]:
    slices = random.Random(token)

    def blink(over: threading.Event) -> None:
        for pid in processes(site, token, [part], over):
            with contextlib.suppress(ProcessLookupError):  # the run is over
                while not over.wait(slices.uniform(0.01, 0.05)):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(slices.uniform(0.01, 0.05))
                    os.kill(pid, signal.SIGCONT)

    with beside(blink):
        yield Setting()


@contextlib.contextmanager
def neighbour(site: Site, part: int, token: str) -> Iterator[Setting]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= site.ranks:
        raise Skipped(f"{site.ranks} ranks with a core each, and one for all else, of {len(cores)} cores")
    spin = f"import os\nos.sched_setaffinity(0, [{cores[part]}])\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]

    try:
        with beside(functools.partial(pin, site, token)):
            # Threads of BLAS, made at its import, would all wait for that one core.
            yield Setting({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextlib.contextmanager
def limited(site: Site, part: int, token: str) -> Iterator[Setting]:
    name = site.hosts.names[1 + part]
    site.hosts.rate(name, LIMITED_RATE)
    try:
        yield Setting()
    finally:
        site.hosts.rate(name, HEALTHY_RATE)


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """`work(over)` in a thread; it returns soon after `over` is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pin(site: Site, token: str, over: threading.Event) -> None:
    """Give each rank a core of its own, and where there are too few, those of a host different ones: which of
    them share one changes too slowly else, and hosts are not alike.
    """
    cores = sorted(os.sched_getaffinity(0))
    for rank, pid in enumerate(processes(site, token, range(site.ranks), over)):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), [cores[rank % len(cores)]])


def processes(site: Site, token: str, ranks: Sequence[int], over: threading.Event) -> list[int]:
    """The processes of these ranks, as soon as there are all; none where the run is over before."""
    while not over.wait(0.05):
        found = ranks_of(site, token)
        if all(rank in found for rank in ranks):
            return [found[rank] for rank in ranks]
    return []


def ranks_of(site: Site, token: str) -> dict[int, int]:
    """The processes of ranks that run by now, without what they have started."""
    found: dict[int, tuple[int, int]] = {}  # rank and parent
    for pid in candidates(site, token):
        with contextlib.suppress(OSError, IndexError, ValueError):  # ended meanwhile
            known = variables(pid)
            if numbers := [known[name] for name in RANK if name in known]:
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                found[pid] = int(numbers[0]), parent
    return {rank: pid for pid, (rank, parent) in found.items() if parent not in found}


def candidates(site: Site, token: str) -> list[int]:
    if site.hosts:  # the mark does not get to other hosts
        return [pid for host in site.hosts.names[1:] for pid, _ in site.hosts.processes(host)]
    every = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [pid for pid in every if variables(pid).get(MARK.encode()) == token.encode()]


def variables(pid: int) -> dict[bytes, bytes]:
    """A process's environment; {} where it has ended, or is another user's."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(line.split(b"=", 1) for line in lines if b"=" in line)


@contextlib.contextmanager
def sited(options: argparse.Namespace) -> Iterator[Site]:
    """Ranks on this machine, or on hosts made on it, all of them on a network of one speed."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as name:  # short: sockets are made below it
        folder = Path(name)
        if not options.hosts:
            yield Site(options, folder)
            return
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
        from hosts import Hosts

        # No rank is where the command is typed: all hosts are alike, reached by ssh.
        names = ("login", *(f"n{number}" for number in range(1, options.hosts + 1)))
        with Hosts(folder / "hosts", names) as hosts:
            for host in names:
                hosts.rate(host, HEALTHY_RATE)
            yield Site(options, folder, hosts)


def keep_busy(load: str) -> None:
    """Use this process's GPU for ever; its bus on standard output when that has begun."""
    import cupy

    side = 8192
    left = cupy.random.random((side, side), dtype=cupy.float32)
    right, product = left.copy(), cupy.empty_like(left)
    stream = cupy.cuda.get_current_stream()
    begun = False
    while True:
        for _ in range(16):  # in the queue at once, so that the GPU does not wait for this process
            if load == "product":
                cupy.matmul(left, right, out=product)
            else:
                product[...] = left
        stream.synchronize()
        if not begun:
            print(cupy.cuda.runtime.deviceGetPCIBusId(0), flush=True)
            begun = True


if __name__ == "__main__":
    keep_busy(sys.argv[1])
