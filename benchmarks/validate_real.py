"""How often `meshrun validate` names the right part on real ranks, and how often it blames healthy ones.

    python benchmarks/validate_real.py --device cuda --ranks 2 --faults healthy busy off-nvlink [--json FILE]
    python benchmarks/validate_real.py --device cpu --ranks 4 --runs 20 --faults healthy stopped
    python benchmarks/validate_real.py --hosts 4 --per-host 2 --runs 20 --faults healthy limited

Each run is `meshrun -n N validate --quick`, as a user would type it. The sorts of runs take turns, and what
is disturbed changes from run to run. A fault is there before the ranks are, and goes after them:

healthy         none. Expected: status ok.
busy            another process keeps a GPU busy, with matrix products or with copies inside its memory.
off-nvlink      NCCL_P2P_DISABLE=1: every GPU alike, so that none is slower than its siblings. Expected: the
                alarm that pairs stay far below what the hardware allows.
off-nvlink-one  the same for one rank alone. NCCL may fail over ranks that differ; the run is then not right.
stopped         a rank is stopped for half of the time, in slices of 10 to 50 ms.
neighbour       two processes spin on a rank's core; the ranks are pinned for this, each to a core of its own.
limited         of hosts in network namespaces, one has a slower network (needs root).

Expected of the others: status critical, and a finding at the GPU (of "limited": at the host, or at each of
its NICs). "right" counts runs like that, "also" those that blame another part, too (a pair is at both GPUs).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.report.record import write

Json = dict[str, Any]
MARK = "MESHRUN_CAMPAIGN"  # in the environment of every process of a run
RANK = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
LONGEST = 600  # seconds of a run
GPU_KINDS = ("gpu", "pcie", "nvlink", "nvlink send", "nvlink receive", "pair")
NETWORK = ("host pairs", "rails")
NIC_KINDS = ("nic", "send", "receive", "flap")
FAR_BELOW = "all GPUs alike: pairs flows at"
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
        words = ["validate", "--quick", "--device", self.options.device, "-J", str(self.report), *rungs]
        environment = {MARK: token, **setting.environment}
        if self.hosts:
            size, hosts = f"{self.options.hosts}x{self.options.per_host}", ",".join(self.hosts.names[1:])
            there = ["launch", "mpirun", "-j", size, "--hosts", hosts, "--", *words]
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # MPI does not know that hosts share cores
            start = [sys.executable, "-m", "launch", *there]
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
            return ["-m", "launch", "-n", str(ranks), *words]
        tests = " || ".join(f'[ "${name.decode()}" = {self.one} ]' for name in RANK)
        script = f'if {tests}; then export {" ".join(self.of_one)}; fi; exec "$@"'
        program = ("sh", "-c", script, "rank", sys.executable, "-m", "launch")
        return [
            "-c",
            f"import sys; from launch.local import start; "
            f"sys.exit(start({ranks}, {list(words)!r}, program={program!r}))",
        ]


Around = Callable[[Site, int, str], AbstractContextManager[Setting]]


# Faults: of a part, there while the block lasts.


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
        [sys.executable, __file__, "--keep-busy", load],
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


# What is expected


def ok(report: Json, place: Json) -> bool:
    return bool(report["status"] == "ok")


def alarmed(report: Json, place: Json) -> bool:
    sentences = [one["sentence"] for one in report["alarms"]]
    return report["status"] != "ok" and any(one.startswith(FAR_BELOW) for one in sentences)


def gpu_named(report: Json, place: Json) -> bool:
    return report["status"] == "critical" and any(at(one, place) for one in report["findings"])


def host_named(report: Json, place: Json) -> bool:
    found = [one for one in report["findings"] if at(one, place)]
    whole = any(one["kind"] == "host" for one in found)
    every = {gpu for one in found for gpu in one["gpus"]} == set(place["gpus"])
    return report["status"] == "critical" and (whole or every)


def at(finding: Json, place: Json) -> bool:
    """Whether a finding is at the GPU, or where none is meant, at the network of the host."""
    if place.get("host") not in finding["hosts"]:
        return False
    if "gpu" in place:
        return finding["kind"] in GPU_KINDS and place["gpu"] in finding["gpus"]
    network = finding["rung"] in NETWORK and finding["kind"] in ("host", *NIC_KINDS)
    return network and finding["hosts"] == [place["host"]]


@dataclass(frozen=True)
class Sort:
    """of: what is disturbed."""

    around: Around
    right: Callable[[Json, Json], bool]
    of: str = ""
    device: str = ""  # that it needs


SORTS = {
    "healthy": Sort(none, ok),
    "busy": Sort(busy, gpu_named, "gpu", "cuda"),
    "off-nvlink": Sort(off_nvlink, alarmed, "", "cuda"),
    "off-nvlink-one": Sort(off_nvlink_one, gpu_named, "gpu", "cuda"),
    "stopped": Sort(stopped, gpu_named, "gpu", "cpu"),
    "neighbour": Sort(neighbour, gpu_named, "gpu", "cpu"),
    "limited": Sort(limited, host_named, "host", "cpu"),
}


def disturbed(sort: Sort, part: int, setting: Setting, members: Sequence[Json]) -> Json:
    """The part as a report names it; {} of none."""
    if sort.of == "host":
        host = list(dict.fromkeys(one["host"] for one in members))[part]
        return {"host": host, "gpus": [one["gpu"] for one in members if one["host"] == host]}
    if sort.of == "gpu":
        bus_id = setting.bus_id.lower()
        found = (
            one for one in members if (one["bus_id"].lower() == bus_id if bus_id else one["rank"] == part)
        )
        return {name: value for name, value in next(found, {}).items() if name in ("host", "gpu")}
    return {}


@dataclass(frozen=True)
class Run:
    """place: what was disturbed. also: findings at other parts. said: on stderr."""

    sort: str
    number: int
    place: Json
    exit_status: int | None
    right: bool
    also: int
    seconds: float
    status: str
    line: str
    findings: list[str]
    alarms: list[str]
    rates: Json
    said: str


def once(site: Site, name: str, number: int) -> tuple[Run, Json]:
    """One run and its report, {} where it left none."""
    sort, token = SORTS[name], secrets.token_hex(8)
    part = number % (site.options.hosts if sort.of == "host" else site.ranks)
    site.report.unlink(missing_ok=True)
    begin = time.perf_counter()
    with sort.around(site, part, token) as setting:
        begin = time.perf_counter()
        try:
            done = site.run(setting, token)
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            status, said = None, f"not over after {LONGEST} s"
        seconds = time.perf_counter() - begin
    report = json.loads(site.report.read_text()) if site.report.exists() else {}
    place = disturbed(sort, part, setting, report.get("members", []))
    findings = report.get("findings", [])
    run = Run(
        name,
        number,
        place,
        status,
        bool(report) and sort.right(report, place),
        sum(not at(one, place) for one in findings),
        seconds,
        report.get("status", "no report"),
        report.get("line", ""),
        [one["sentence"] for one in findings],
        [one["sentence"] for one in report.get("alarms", [])],
        {rung["name"]: rung["rates"] for rung in report.get("rungs", []) if rung["rates"]},
        said[-2000:],
    )
    return run, report


def campaign(site: Site) -> list[Run]:
    options, runs = site.options, []
    skipped: dict[str, str] = {}
    facts: Json = {}
    for number in range(options.runs):
        for name in options.faults:
            if name in skipped:
                continue
            try:
                run, report = once(site, name, number)
            except Skipped as reason:
                skipped[name] = str(reason)
                print(f"{name}: skipped, {reason}", flush=True)
                continue
            runs.append(run)
            verdict = "right" if run.right and not run.also else "right, and more" if run.right else "WRONG"
            where = " ".join(str(value) for value in run.place.values())
            print(f"{number:3} {name} {where}: {verdict}, {run.seconds:.1f} s: {run.line}", flush=True)
            facts = facts or {
                "versions": report.get("environment", {}),
                "devices": [one["device"] for one in report.get("members", [])],
            }
            if options.reports:
                options.reports.mkdir(parents=True, exist_ok=True)
                write(report, options.reports / f"{name}-{number}.json")
            if options.json:  # now: a long campaign may be ended before its end
                record = {"benchmark": "validate_real", "hosts": options.hosts, "ranks": site.ranks, **facts}
                write(record | {"skipped": skipped, "runs": [asdict(one) for one in runs]}, options.json)
    return runs


def show(runs: Sequence[Run]) -> None:
    print(f"{'sort':14} {'runs':>4} {'right':>5} {'also':>4}   seconds (least, most)")
    for name in dict.fromkeys(one.sort for one in runs):
        those = [one for one in runs if one.sort == name]
        seconds = [one.seconds for one in those]
        right, also = sum(one.right for one in those), sum(one.also > 0 for one in those)
        print(
            f"{name:14} {len(those):4} {right:5} {also:4}"
            f"   {statistics.median(seconds):.1f} ({min(seconds):.1f}, {max(seconds):.1f})"
        )


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu with --hosts, else cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=0, help="in network namespaces of this machine")
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--runs", type=int, default=10, help="of each sort")
    parser.add_argument("--faults", nargs="+", choices=SORTS, default=["healthy"], metavar="SORT")
    parser.add_argument("--load", choices=LOADS, help="of busy; default: in turn")
    parser.add_argument("--rungs", help="only these, as meshrun validate takes them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where every run's report is kept")
    parser.add_argument("--keep-busy", choices=LOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep_busy:
        return keep_busy(options.keep_busy)
    options.device = options.device or ("cpu" if options.hosts else "cuda")
    if options.hosts:
        options.ranks = options.hosts * options.per_host
    for name in options.faults:
        sort = SORTS[name]
        if sort.device not in ("", options.device) or (sort.of == "host") > bool(options.hosts):
            parser.error(f"{name} needs {'--hosts' if sort.of == 'host' else f'--device {sort.device}'}")
        if sort.of == "gpu" and options.hosts:
            parser.error(f"{name} is of one host")
    with sited(options) as site:
        show(campaign(site))


if __name__ == "__main__":
    main()
