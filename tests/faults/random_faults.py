"""Make random faults in runs, each in namespaces of its own, and judge what became of them.

    python tests/faults/random_faults.py --runs 500 --seed 1 --record faults.json --table docs/faults.md

Every run is drawn from the seed and its number alone: a command, ranks, a launcher, a fault and its moment.
`--only 17` repeats one; its result replaces the one in the record. The judges know what meshrun documents and
share no code with it. Each run has its own /tmp, /dev/shm, working folder and process numbers, so that all
that is left is seen; where the kernel does not allow that, it has private folders instead, and the record
says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MESHRUN = (sys.executable, str(ROOT / "meshrun" / "__main__.py"))
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
MARK = "MESHRUN_TEST_RUN"

# A command ends within LIMIT + 5 times what it takes undisturbed: a slow machine is slow for both. The clocks
# of meshrun that have to end a run are among these seconds.
START, STALL, LIMIT = 20, 8, 60
GONE = 20.0  # seconds after the command in which its processes end, if it was killed itself
SHAPE, STEPS = (512, 256), 12
SUCCESS = frozenset({0})


@dataclass(frozen=True)
class Command:
    """A command of meshrun. expected: its output by NumPy. resumable: it keeps results for --resume."""

    words: tuple[str, ...]
    expected: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None
    resumable: bool = False
    events: tuple[str, ...] = ("start", "input", "output", "commit")
    lost: frozenset[int] = frozenset({1})  # statuses after the loss of a rank
    stuck: frozenset[int] = frozenset({1})  # statuses after a stall
    success: frozenset[int] = SUCCESS  # statuses of an undisturbed run; a busy machine is not a healthy one


def smoothed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    padded = np.pad(array, 1, mode="edge")
    return 2 * array - padded[:-2, 1:-1] - padded[1:-1, 2:]


def stepped(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for _ in range(STEPS):
        array = smoothed(array)
    return array


JOB = ("run", "job.py:smooth", "in.npy", "out.npy", "--device", "cpu", "--json", "record.json")
INSTALLED = ("--device", "cpu", "--json", "record.json")
CALLED = ("start", "input", "block", "output", "commit")
COMMANDS = {
    "one pass": Command(JOB, smoothed, events=CALLED),
    "chunks": Command((*JOB, "--chunk-bytes", "64K"), smoothed, True, CALLED),
    "steps": Command((*JOB, "--steps", str(STEPS), "--checkpoint", "3"), stepped, True, CALLED),
    "transpose": Command(("run", "transpose", "in.npy", "out.npy", *INSTALLED), lambda array: array.T),
    "fft": Command(("run", "fft", "in.npy", "out.npy", *INSTALLED), np.fft.fftn),
    "matmul": Command(
        ("run", "matmul", "in.npy", "right.npy", "out.npy", *INSTALLED), lambda array: array @ array.T
    ),
    "bench": Command(
        (
            "bench",
            "all_reduce",
            "--device",
            "cpu",
            "-b",
            "8",
            "-e",
            "4K",
            "-f",
            "4",
            "-n",
            "20",
            "-T",
            str(STALL),
            "-J",
            "record.json",
        ),
        events=("start",),
        stuck=frozenset({1, 4}),
    ),
    "validate": Command(
        (
            "validate",
            "--quick",
            "--rungs",
            "pairs",
            "--budget",
            "20s",
            "--device",
            "cpu",
            "-T",
            str(STALL),
            "-J",
            "record.json",
        ),
        events=("start",),
        lost=frozenset({2, 3}),
        stuck=frozenset({2, 3}),
        success=frozenset({0, 1, 3}),
    ),
}
RUNS = tuple(name for name, command in COMMANDS.items() if command.expected)
VALIDATED = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}


@dataclass(frozen=True)
class Fault:
    """What is done to a run.

    action: a signal, or a word of planted/sitecustomize.py, `prepare` or `strike`. told: in the first line on
    stderr of a run that fails by it under meshrun's own launcher. several: only with more ranks than one.
    moments: named events, or "any" for a random time. continued: by SIGCONT, after a second.
    """

    action: str
    target: str = ""
    told: str = ""
    commands: tuple[str, ...] = tuple(COMMANDS)
    several: bool = False
    moments: tuple[str, ...] = ("any", "start", "input", "block", "output", "commit")
    launchers: tuple[str, ...] = ("meshrun", "mpirun")
    continued: bool = False


DEAD = r"killed by signal|\[rank \d|ended|lost|interrupted|a rank "
BLOCK, DURING = ("one pass", "chunks", "steps"), ("input", "block", "output", "commit")
FAULTS = {
    "SIGKILL of a rank": Fault("SIGKILL", "rank", DEAD),
    "SIGTERM of a rank": Fault("SIGTERM", "rank", DEAD),
    "SIGINT of a rank": Fault("SIGINT", "rank", DEAD),
    "SIGHUP of a rank": Fault("SIGHUP", "rank", DEAD),
    "SIGSTOP of a rank": Fault(
        "SIGSTOP", "rank", "stopped|stuck|no progress|stalled|answer|has not begun", several=True
    ),
    "SIGKILL of the command": Fault("SIGKILL", "command"),
    "SIGTERM of the command": Fault("SIGTERM", "command", "interrupted"),
    "SIGINT of the command": Fault("SIGINT", "command", "interrupted"),
    "SIGHUP of the command": Fault("SIGHUP", "command", "interrupted"),
    "SIGSTOP, SIGCONT of the command": Fault("SIGSTOP", "command", continued=True),
    "SIGKILL of the launcher": Fault("SIGKILL", "launcher", ".", several=True, launchers=("meshrun",)),
    "SIGTERM of the launcher": Fault("SIGTERM", "launcher", ".", several=True, launchers=("meshrun",)),
    "SIGSTOP, SIGCONT of the launcher": Fault(
        "SIGSTOP", "launcher", ".", several=True, launchers=("meshrun",), continued=True
    ),
    "SIGKILL of a helper": Fault("SIGKILL", "helper", ".", RUNS, True, DURING),
    "SIGSTOP of a helper": Fault("SIGSTOP", "helper", ".", RUNS, True, DURING),
    "exit 0 of a rank": Fault(
        "exit 0", "rank", "ended|exit status 0|rank", several=True, moments=("start", "input", "block")
    ),
    "abort of a rank": Fault("abort", "rank", "SIGABRT|signal 6", moments=("start", *DURING)),
    "segmentation fault of a rank": Fault(
        "segmentation fault", "rank", "SIGSEGV|signal 11", moments=("start", *DURING)
    ),
    "exception in the function": Fault("exception", "rank", "ValueError: planted", BLOCK, moments=("block",)),
    "endless loop in the function": Fault("loop", "rank", "stalled", BLOCK, several=True, moments=("block",)),
    "clock jump of a rank": Fault("clock jump", "rank", moments=("start", *DURING)),
    "full disk under the output": Fault("full output", told="No space left|disk|free", commands=RUNS),
    "full disk under the record": Fault("full record", told="No space left"),
    "file size limit": Fault("file size", told="File too large|a limit of", commands=RUNS),
    "full /dev/shm": Fault("full shm", told="/dev/shm"),
    "no input": Fault("no input", told="in.npy", commands=RUNS),
    "a folder as input": Fault("folder input", told="in.npy", commands=RUNS),
    "truncated input": Fault("truncated input", told="in.npy", commands=RUNS),
    "input without a header": Fault("garbage input", told="in.npy", commands=RUNS),
    "output folder removed": Fault("removed", told="out.npy|No such file|directory is gone", commands=RUNS),
    "two runs of one output": Fault("two runs", told="out.npy", commands=RUNS),
}
PREPARED = (
    "full output",
    "full record",
    "file size",
    "full shm",
    "no input",
    "folder input",
    "truncated input",
    "garbage input",
)
TOLD = ("exception", "no input", "folder input", "truncated input", "garbage input", "file size")
PLANTED = ("exit 0", "abort", "segmentation fault", "exception", "loop", "clock jump")
NAMESPACED = ("full output", "full record", "full shm")  # faults that need a mount


@dataclass(frozen=True)
class Case:
    """One run, as drawn. moment: an event of planted/sitecustomize.py (its `nth` time), or seconds."""

    number: int
    command: str
    ranks: int
    launcher: str
    fault: str
    moment: str
    nth: int
    seconds: float
    victim: int


def draw(seed: int, number: int, undisturbed: dict[str, float], faults: Sequence[str]) -> Case:
    """The case of this number; `undisturbed` seconds change only the length of "any" moments."""
    chance = random.Random(f"{seed}-{number}")
    name = faults[number % len(faults)] if number < len(faults) else chance.choice(faults)
    fault = FAULTS[name]
    command = chance.choice(fault.commands)
    ranks = chance.randint(2 if fault.several else 1, 4)
    launcher = chance.choice(fault.launchers)
    moments = [each for each in fault.moments if each == "any" or each in COMMANDS[command].events]
    if ranks == 1 and launcher == "meshrun" and "start" in moments[:-1]:
        moments.remove("start")  # it loads no MPI
    waits = fault.action in ("SIGSTOP", "exit 0") or mpich()  # MPICH, after any end before MPI_Init
    if launcher == "mpirun" and waits and (fault.target == "rank" or fault.action == "removed"):
        # Nobody but the user watches the start under a bare mpirun (docs/launch.md).
        moments = [each for each in moments if each not in ("any", "start")]
        if not moments:
            launcher, moments = "meshrun", ["start"]
    if mpich() and fault.action == "SIGSTOP" and fault.target == "helper":
        launcher = "meshrun"  # as nobody watches a bare mpirun's daemon, for which MPI_Finalize waits
    moment = chance.choice(moments) if moments else "start"
    return Case(
        number,
        command,
        ranks,
        launcher,
        name,
        moment,
        chance.choice((1, 1, 2, 3)) if moment == "block" else 1,
        round(chance.random() * undisturbed.get(command, 2.0), 3),
        chance.randrange(ranks),
    )


# Where a run takes place


@dataclass
class Site:
    """A working folder with an input and an old output, and what the run's processes are."""

    work: Path
    notes: Path
    temporary: Path
    memory: Path  # of shared memory
    isolated: bool
    kept: set[str] = field(default_factory=set)  # in `temporary`, from before
    segments: set[str] = field(default_factory=set)  # in `memory`, from before

    def fill(self) -> None:
        self.work.mkdir()
        values = np.random.default_rng(7).integers(-9, 9, SHAPE).astype(np.float64)
        np.save(self.work / "in.npy", values)
        np.save(self.work / "right.npy", values.T)
        np.save(self.work / "out.npy", np.arange(7.0))
        shutil.copy(HERE / "faulty_job.py", self.work / "job.py")

    def environment(self, **more: str) -> dict[str, str]:
        planted = os.pathsep.join([str(HERE / "planted"), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ,
            "TMPDIR": str(self.temporary),
            MARK: str(self.notes),
            "FAULT_NOTES": str(self.notes),
            "PYTHONPATH": planted,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "",
            **more,
        }

    def processes(self) -> dict[int, str]:
        """Those of this run, by number, and their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid, marked = int(folder.name), f"{MARK}={self.notes}".encode()
                ours = pid != os.getpid() if self.isolated else marked in (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if ours and state != "Z":
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[pid] = f"{state} {words.strip()}"
        return found

    def leftovers(self) -> list[str]:
        """Files outside of the working folder."""
        temporary = {each.name for each in self.temporary.iterdir()} - self.kept
        segments = {each.name for each in self.memory.iterdir()} - self.segments
        return sorted([f"/tmp/{name}" for name in temporary] + [f"/dev/shm/{name}" for name in segments])


def mount(words: Sequence[str]) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def site(isolated: bool) -> Iterator[Site]:
    """Where one run takes place. isolated: this process is the first one in namespaces of its own."""
    if not isolated:
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="f") as place:
            made = [Path(place, name) for name in ("work", "notes", "t")]
            for folder in made[1:]:
                folder.mkdir()
            memory = Path("/dev/shm")
            yield Site(*made, memory, False, segments={each.name for each in memory.iterdir()})
        return
    base = Path("/mnt")
    mount(["-t", "tmpfs", "-o", "size=256m", "tmpfs", str(base)])
    mount(["-t", "tmpfs", "-o", "size=128m", "tmpfs", "/dev/shm"])
    temporary = base / "tmp"
    temporary.mkdir()
    for path in {ROOT, Path(sys.prefix), Path(sys.base_prefix)}:  # what the new /tmp would hide
        if path.is_relative_to("/tmp"):
            target = temporary / path.relative_to("/tmp")
            target.mkdir(parents=True, exist_ok=True)
            mount(["--bind", str(path), str(target)])
    mount(["--rbind", str(temporary), "/tmp"])
    (base / "notes").mkdir()
    kept = {each.name for each in Path("/tmp").iterdir()}
    yield Site(base / "work", base / "notes", Path("/tmp"), Path("/dev/shm"), True, kept)


# What is done to it


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def rank_of(pid: int) -> int | None:
    """The rank in a process's environment."""
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode(errors="replace") in RANK_VARIABLES:
            return int(value)
    return None


def target(where: Site, command: int, case: Case) -> int | None:
    """The process that the fault is for, if there is one."""
    wanted = FAULTS[case.fault].target
    if wanted == "command" or (wanted == "rank" and case.ranks == 1 and case.launcher == "meshrun"):
        return command
    helpers = []
    for pid, words in where.processes().items():
        with contextlib.suppress(OSError):
            number, above = rank_of(pid), parent(pid)
            below_a_rank = Path(f"/proc/{above}").exists() and rank_of(above) is not None
            if wanted == "launcher" and number is None and re.search(r"prterun|mpirun|mpiexec", words):
                return pid
            if wanted == "rank" and number == case.victim and not below_a_rank:
                return pid
            if wanted == "helper" and (below_a_rank or re.search("prted|hydra_pmi_proxy", words)):
                helpers.append(pid)
    return helpers[case.victim % len(helpers)] if helpers else None


def prepare(where: Site, action: str) -> None:
    """A fault that is there from the beginning."""
    path = where.work / "in.npy"
    if action == "full output":
        holder = where.work.with_name("holder")
        where.work.rename(holder)
        where.work.mkdir()
        used = sum(each.stat().st_size for each in holder.iterdir())
        mount(["-t", "tmpfs", "-o", f"size={(used >> 10) + 340}k", "tmpfs", str(where.work)])
        shutil.copytree(holder, where.work, dirs_exist_ok=True)
        shutil.rmtree(holder)
    elif action == "full record":
        (where.work / "records").mkdir()
        mount(["-t", "tmpfs", "-o", "size=4k", "tmpfs", str(where.work / "records")])
        (where.work / "records" / "full").write_bytes(bytes(4096))
    elif action == "full shm":
        mount(["-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"])
        (where.memory / "filler").write_bytes(bytes((1 << 20) - (64 << 10)))
        where.segments.add("filler")
    elif action in ("no input", "folder input"):
        path.unlink()
        if action == "folder input":
            path.mkdir()
    elif action == "truncated input":
        os.truncate(path, path.stat().st_size // 2)
    elif action == "garbage input":
        path.write_bytes(b"no array" * 1000)


def repair(where: Site, action: str, command: Command) -> None:
    """Take the fault away, so that the next run can be right."""
    if action == "full output":
        mount(["-o", "remount,size=64m", str(where.work)])
    elif action == "full record":
        subprocess.run(["umount", str(where.work / "records")], check=True)
        (where.work / "records").rmdir()
    elif action == "full shm":
        (where.memory / "filler").unlink()
        mount(["-o", "remount,size=128m", "/dev/shm"])
    elif action in ("no input", "folder input", "truncated input", "garbage input", "removed"):
        shutil.rmtree(where.work, ignore_errors=True)
        where.fill()


def before_command(limited: bool) -> None:
    """In the process of the command: what a terminal gives it, and the limit of a file's size."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # ignored ones, as under nohup, would stay ignored
    if limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))


def words_of(case: Case, where: Site, resume: bool = False) -> list[str]:
    command = COMMANDS[case.command]
    words = list(command.words)
    if FAULTS[case.fault].action == "full record" and not resume and (where.work / "records").exists():
        words = [word.replace("record.json", "records/record.json") for word in words]
    if command.resumable and resume:
        words.append("--resume")
    ours = [*MESHRUN, "--stall-timeout", str(STALL)]
    if case.launcher == "meshrun":
        return [*ours, "--start-timeout", str(START), "-n", str(case.ranks), *words]
    launcher = str(Path(sys.executable).parent / "mpiexec")
    options = [] if mpich() else ["--oversubscribe", "--bind-to", "none"]
    return [launcher, *options, "-n", str(case.ranks), *ours, *words]


def mpich() -> bool:
    return (Path(sys.executable).parent / "mpiexec.hydra").exists()


BARE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@dataclass
class Ended:
    """A command's end. status: None if it had to be killed after the limit."""

    status: int | None
    errors: str
    seconds: float
    done: bool = True  # the fault came
    late: list[str] = field(default_factory=list)  # processes at the limit
    second: int | None = None  # status of the second run of the same output


def run(case: Case, where: Site, limit: float, disturbed: bool, resume: bool = False) -> Ended:
    """The command to its end, with the fault or without."""
    fault = FAULTS[case.fault]
    changes = dict(BARE) if case.launcher == "mpirun" else {}
    if disturbed and (fault.action in PLANTED or case.moment != "any") and fault.action not in PREPARED:
        action = fault.action if fault.action in PLANTED else "wait"
        changes["FAULT"] = f"{action},{case.victim},{case.moment},{case.nth},{case.ranks}"
    errors_file, words = where.notes / "stderr", words_of(case, where, resume)
    before = partial(before_command, disturbed and fault.action == "file size")
    environment = where.environment(**changes)

    def start(errors: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            cwd=where.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=before,  # noqa: PLW1509 -- this process has one thread
            start_new_session=True,
        )

    begun = time.monotonic()
    done, second = disturbed and fault.action in PREPARED, None
    with open(errors_file, "wb") as errors:
        process = start(errors)
        if disturbed and fault.action not in PREPARED:
            arrived = wait_for_moment(process, case, where, begun)
            done = arrived if fault.action in PLANTED else False
            if arrived and fault.action not in PLANTED:
                done, second = strike(process, case, where, lambda: start(subprocess.DEVNULL))
        try:
            status: int | None = process.wait(max(1.0, limit - (time.monotonic() - begun)))
        except subprocess.TimeoutExpired:
            status = None
        taken = time.monotonic() - begun
        late = [f"{pid} {words}" for pid, words in where.processes().items()] if status is None else []
        if second is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                second.wait(limit)
        if status is None:
            process.kill()
            for pid in where.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    return Ended(
        status,
        errors_file.read_text(errors="replace"),
        round(taken, 2),
        done,
        late,
        second.returncode if second else None,
    )


def wait_for_moment(process: subprocess.Popen[bytes], case: Case, where: Site, begun: float) -> bool:
    """Wait; whether the moment came before the command's end."""
    event = where.notes / "event"
    while process.poll() is None:
        if event.exists() if case.moment != "any" else time.monotonic() - begun > case.seconds:
            return True
        if time.monotonic() - begun > LIMIT:
            return False
        time.sleep(0.003)
    return event.exists() and FAULTS[case.fault].action in PLANTED


def strike(
    process: subprocess.Popen[bytes], case: Case, where: Site, again: Callable[[], subprocess.Popen[bytes]]
) -> tuple[bool, subprocess.Popen[bytes] | None]:
    """Do what the fault says from outside; whether it was done, and the second run if it is one."""
    fault, second, done = FAULTS[case.fault], None, True
    if fault.action == "removed":
        shutil.rmtree(where.work)
    elif fault.action == "two runs":
        second = again()
    else:
        victim = target(where, process.pid, case)
        done = victim is not None
        if victim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.Signals[fault.action])
            if fault.continued:
                time.sleep(1.0)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)
    (where.notes / "go").touch()
    return done, second


# What is judged


def statuses(case: Case, ended: Ended) -> frozenset[int]:
    """What docs/reference/exit-statuses.md has for a run that did not succeed."""
    fault, command = FAULTS[case.fault], COMMANDS[case.command]
    alone = case.ranks == 1
    if fault.action.startswith("SIG"):
        number = signal.Signals[fault.action.split(",")[0]]
        if fault.target == "command" or (fault.target == "rank" and alone):
            if number == signal.SIGKILL:
                return frozenset({-9})
            return SUCCESS if fault.continued else frozenset({128 + number, -number})
        if fault.target == "rank":
            if number == signal.SIGSTOP:
                return command.stuck
            return command.lost if number == signal.SIGKILL else command.lost | {128 + number}
        return SUCCESS if fault.continued else command.lost | command.stuck
    if fault.action in ("abort", "segmentation fault") and alone:
        return frozenset({-6} if fault.action == "abort" else {-11})
    if fault.action in ("no input", "folder input", "truncated input", "garbage input"):
        return frozenset({2})
    if fault.action in ("removed", "two runs"):
        return frozenset({1, 2})
    if fault.action == "loop":
        return command.stuck
    if fault.action == "clock jump":
        return SUCCESS
    if fault.action == "full record":
        return frozenset({3}) if case.command == "validate" else frozenset({1, 2})
    if fault.action == "full shm":
        return frozenset({1, 2, 3})
    return command.lost


PROGRESS = re.compile(r"meshrun: [^:]+(: verify)?: \d+ %[ ;]")  # every 5 s of a run on a busy machine


def own_lines(errors: str) -> list[str]:
    lines = [line for line in errors.splitlines() if line.strip() and not PROGRESS.match(line)]
    return [line for line in lines if not line.startswith(("meshrun: warning: ", "[hwloc"))]


def values_of(path: Path) -> tuple[str, tuple[int, ...], bytes] | None:
    """Type, shape and bytes of an array; None if it cannot be read."""
    try:
        array = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def judge(case: Case, where: Site, ended: Ended, old: Any, new: Any) -> list[str]:
    """What is wrong with a disturbed run."""
    fault = FAULTS[case.fault]
    if ended.status is None and not launcher_hangs(case, ended):
        return [f"hangs: no end in {ended.seconds:.0f} s: {ended.late}"]
    wrong = judged_words(case, ended)
    folder_is_gone = fault.action == "removed" and ended.done
    records = where.work / "records"
    record = (records if records.exists() else where.work) / "record.json"
    success = ended.status == 0 and (record.exists() or not hides_failure(case))
    if COMMANDS[case.command].expected is not None and not folder_is_gone:
        found = values_of(where.work / "out.npy")
        if success and found != new:
            wrong.append("success, but the output is not right")
        elif found not in (old, new):
            wrong.append("the old output is damaged")
    if record.exists():
        wrong += judged_record(case, ended, record)
    elif success and not folder_is_gone:
        wrong.append("success without a record")
    return wrong


# Of Open MPI's: a rank that it ended was connecting to it. It then waits forever for nobody.
UNREACHED = "PMIX ERROR: PMIX_ERR_UNREACH"


def launcher_hangs(case: Case, ended: Ended) -> bool:
    """Whether a bare `mpirun` waits although no process of meshrun is left, which nothing of it can end."""
    alone = all(re.match(r"\d+ \w \S*(prterun|mpirun) ", words) for words in ended.late)
    return case.launcher == "mpirun" and alone and UNREACHED in ended.errors


def hides_failure(case: Case) -> bool:
    """Whether the launcher can return 0 for a failed run: MPICH's alone, if a rank has ended with status 0.

    The record tells (docs/sharp-edges.md).
    """
    return mpich() and case.launcher == "mpirun" and FAULTS[case.fault].action == "exit 0"


NOT_STARTED = r"(?m)^Abort\(\d+\): Fatal error in internal_Init"  # of MPICH


def judged_words(case: Case, ended: Ended) -> list[str]:
    """What is wrong with the exit status and stderr."""
    fault, command, lines = FAULTS[case.fault], COMMANDS[case.command], own_lines(ended.errors)
    if case.launcher == "mpirun":  # the status and most lines are the launcher's
        told = not ended.status or re.search(rf"(?m)^meshrun: (?!warning: ).*({fault.told})", ended.errors)
        if mpich() and re.search(NOT_STARTED, ended.errors):  # which no rank survives
            told = True
        return (
            [] if told or fault.action not in TOLD else [f"no line of meshrun names the cause: {lines[:3]}"]
        )
    wrong = []
    if ended.status not in command.success | statuses(case, ended):
        wrong.append(f"exit status {ended.status}, not {sorted(statuses(case, ended))}")
    if ended.status is None or ended.status <= 0 or (not lines and ended.status in command.success):
        return wrong  # killed; right; or the report of `validate` says why
    if lines and lines[0].startswith("Fatal Python error: init_"):  # a signal before meshrun's first line
        lines = [line for line in lines if line.startswith("meshrun: ")]
    elif "Traceback" in ended.errors:
        wrong.append("a traceback on stderr")
    first = lines[0] if lines else ""
    if not first.startswith("meshrun: "):
        wrong.append(f"first line is not meshrun's: {first!r}")
    elif "[Errno " in first:
        wrong.append(f"first line is an error of Python: {first!r}")
    elif ended.done and not re.search(fault.told or ".", first):
        wrong.append(f"first line does not name the cause: {first!r}")
    if len(lines) > 8:
        wrong.append(f"{len(lines)} lines on stderr")
    return wrong


def judged_record(case: Case, ended: Ended, path: Path) -> list[str]:
    try:
        record = json.loads(path.read_text())
    except ValueError as reason:
        return [f"the record is no JSON: {reason}"]
    if case.command == "validate" and case.launcher == "meshrun":
        told, status = VALIDATED[record["status"]], ended.status
        if status is not None and told != status and 0 <= status < 128:  # an interrupted run has no verdict
            return [f"exit status {ended.status}, but the record says {record['status']}"]
    return []


CLAIM = "meshrun-*-failure.json"  # of the rank that reports a failure
# Of a killed command; the next run removes it.
UNSEEN = r"/tmp/(meshrun-run-|mr|\.?meshrun-\w+-failure\.json)|/dev/shm/meshrun_"
# Of MPI; only meshrun -n removes them.
LAUNCHERS = r".*/(ompi|hydra|prte|pmix|openmpi|mpich|sm_segment|vader|ucx_shm)"


def left(case: Case, where: Site, ended: Ended, clean: bool) -> tuple[list[str], list[str]]:
    """Files that are left, and those of them that are not documented. clean: after an undisturbed run, when
    nothing may be left."""
    known = usual = {"in.npy", "right.npy", "out.npy", "job.py", "record.json", "records", "__pycache__"}
    resumable = COMMANDS[case.command].resumable and not clean
    if resumable and ended.status != 0:
        known = known | {"out.npy.journal", ".out.npy.stream.partial", "out.npy.checkpoint"}
    # The next run takes the rest of a command that nobody saw die.
    unseen = not clean and (ended.status is None or ended.status < 0 or case.launcher == "mpirun")
    inside = {each.name for each in where.work.iterdir()} if where.work.exists() else set()
    if (where.work / "records").exists():
        inside |= {f"records/{each.name}" for each in (where.work / "records").iterdir()}
        known = known | {"records/full", "records/record.json"}
    outside = where.leftovers()
    if case.launcher == "mpirun":
        outside = [name for name in outside if not re.match(LAUNCHERS, name)]
    found = [*sorted(inside - usual - {"records/full", "records/record.json"}), *outside]
    if unseen:
        known = known | {name for name in inside if re.match(r"\.out\.npy|.*\.lock$", name)}
        outside = [name for name in outside if not re.match(f"{UNSEEN}|{LAUNCHERS}", name)]
    return found, [*sorted(inside - known), *outside]


def survivors(where: Site, ended: Ended) -> list[str]:
    """Processes that outlive the command."""
    until = time.monotonic() + GONE
    while where.processes() and time.monotonic() < until:
        time.sleep(0.02)
    found = [f"{pid} {words}" for pid, words in where.processes().items()]
    for pid in where.processes():
        os.kill(pid, signal.SIGKILL)
    return found


def inside(case: Case, limit: float, isolated: bool) -> dict[str, Any]:
    """Run one case here, and say what is wrong."""
    fault, command = FAULTS[case.fault], COMMANDS[case.command]
    with site(isolated) as where:
        where.fill()
        old, new = values_of(where.work / "out.npy"), expected(where, case)
        prepare(where, fault.action)
        ended = run(case, where, limit, disturbed=True)
        wrong = judge(case, where, ended, old, new)
        if orphans := survivors(where, ended):
            wrong.append(f"processes are left: {orphans}")
        rest, undocumented = left(case, where, ended, clean=False)
        if undocumented:
            wrong.append(f"files are left: {undocumented}")
        if case.moment == "never":
            return {"seconds": ended.seconds, "wrong": wrong, "errors": ended.errors}
        repair(where, fault.action, command)
        for note in where.notes.iterdir():
            note.unlink()
        for pattern, age in (
            ("meshrun-run-*", 60),
            (CLAIM, 120),
            (f".{CLAIM}*", 120),
        ):  # a run spares new ones
            for path in where.temporary.glob(pattern):
                os.utime(path, (time.time() - age,) * 2)
        for path in where.memory.iterdir():
            os.utime(path, (time.time() - 120,) * 2)
        (where.work / "record.json").unlink(missing_ok=True)  # bench would keep it, as nccl-tests
        again = run(case, where, limit, disturbed=False, resume=True)
        wrong += judged_again(case, where, again, new)
        return {
            **asdict(case),
            "status": ended.status,
            "seconds": ended.seconds,
            "done": ended.done,
            "first": (own_lines(ended.errors) or [""])[0].replace(f"{ROOT}/", "")[:300],
            "second": ended.second,
            "left": sorted({re.sub(r"[\d]+|(?<=meshrun-run-)\w+|(?<=/mr)\w+", "*", each) for each in rest}),
            "again": again.status,
            "wrong": wrong,
            "errors": ended.errors[-3000:] if wrong else "",
        }


def expected(where: Site, case: Case) -> tuple[str, tuple[int, ...], bytes] | None:
    """The right output; of the FFT, whose last bits depend on the ranks, that of as many undisturbed."""
    function = COMMANDS[case.command].expected
    if function is None:
        return None
    values = function(np.load(where.work / "in.npy"))
    if case.command == "fft":
        made = where.work / "whole.npy"
        words = ["-n", str(case.ranks), "run", "fft", "in.npy", "whole.npy", "--device", "cpu"]
        command = [*MESHRUN, *words]
        subprocess.run(command, cwd=where.work, env=where.environment(), check=True, capture_output=True)
        np.testing.assert_allclose(np.load(made), values, atol=1e-8)
        whole = values_of(made)
        made.unlink()
        return whole
    return values.dtype.str, values.shape, values.tobytes()


def judged_again(case: Case, where: Site, again: Ended, new: Any) -> list[str]:
    """What is wrong with the run after the disturbed one."""
    if again.status not in COMMANDS[case.command].success:
        return [f"the next run ends with {again.status}: {own_lines(again.errors)[:3]} {again.late}"]
    wrong = []
    if new and values_of(where.work / "out.npy") != new:
        wrong.append("the next run's output is not right")
    if rest := left(case, where, again, clean=True)[1]:
        wrong.append(f"files are left after the next run: {rest}")
    return wrong


# Many of them


def namespaces() -> list[str]:
    """The command that gives a process namespaces of its own; none if the kernel does not allow it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *user, "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    try:
        tried = [*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        subprocess.run(tried, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return words


def perform(case: Case, limit: float, around: Sequence[str]) -> dict[str, Any]:
    """Run one case in namespaces; its result."""
    words = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--inside",
        json.dumps(asdict(case)),
        "--limit",
        str(limit),
    ]
    done = subprocess.run(
        [*around, *words, *(["--isolated"] if around else [])],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=4 * limit + 60,
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {
            **asdict(case),
            "status": None,
            "seconds": 0.0,
            "done": False,
            "left": [],
            "again": None,
            "second": None,
            "first": "",
            "wrong": [f"the harness failed: {done.stderr[-2000:]}"],
            "errors": "",
        }
    return result


def undisturbed(around: Sequence[str], commands: Sequence[str], jobs: int) -> dict[str, float]:
    """Seconds of each command on two ranks of this machine, now."""
    found = {}
    with ThreadPoolExecutor(jobs) as pool:
        cases = [
            Case(-1, name, 2, "meshrun", "clock jump of a rank", "never", 1, 0.0, 0) for name in commands
        ]
        for case, result in zip(cases, pool.map(lambda one: perform(one, 300.0, around), cases), strict=True):
            if result["wrong"]:
                sys.exit(f"{case.command} fails undisturbed: {result['wrong']}\n{result['errors']}")
            found[case.command] = result["seconds"]
    return found


END = "<!-- end -->"  # of the tables in a page


def library() -> str:
    return "MPICH" if mpich() else "Open MPI"


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: fault by command, then command by ranks."""
    results, names = [each for each in results if each["done"]], list(COMMANDS)
    lines = [
        f"| fault | {' | '.join(names)} | worst time to end | left until the next run |",
        f"| --- |{' --- |' * (len(names) + 2)}",
    ]
    for fault in FAULTS:
        of_fault = [each for each in results if each["fault"] == fault]
        if not of_fault:
            continue
        cells = [share([each for each in of_fault if each["command"] == name]) for name in names]
        rest = sorted({kind(name) for each in of_fault for name in each["left"]})
        worst = max(each["seconds"] for each in of_fault)
        names_left = ", ".join(f"`{name}`" for name in rest) or "-"
        lines.append(f"| {fault} | {' | '.join(cells)} | {worst:.1f} s | {names_left} |")
    lines += ["", f"| ranks | {' | '.join(names)} | all |", f"| --- |{' --- |' * (len(names) + 1)}"]
    for ranks in range(1, 5):
        of_ranks = [each for each in results if each["ranks"] == ranks]
        cells = [share([each for each in of_ranks if each["command"] == name]) for name in names]
        lines.append(f"| {ranks} | {' | '.join(cells)} | {share(of_ranks)} |")
    return "\n".join(lines) + "\n"


def kind(name: str) -> str:
    """A file's name without the run's."""
    return re.sub(
        r"(?<=/meshrun_)\S+|(?<=/meshrun-)\S+(?=-failure)|(?<=^\.out\.npy\.)(?!stream)\S+(?=\.partial)",
        "*",
        name,
    )


def share(results: Sequence[dict[str, Any]]) -> str:
    return f"{sum(not each['wrong'] for each in results)}/{len(results)}" if results else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of runs to repeat")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--table", type=Path, help="page whose tables are replaced")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--isolated", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(inside(Case(**json.loads(asked.inside)), asked.limit, asked.isolated)))
        return
    around = namespaces()
    taken = undisturbed(around, list(COMMANDS), asked.jobs)
    faults = [name for name, fault in FAULTS.items() if around or fault.action not in NAMESPACED]
    numbers = asked.only if asked.only is not None else range(asked.first, asked.first + asked.runs)
    cases = [draw(asked.seed, number, taken, faults) for number in numbers]
    results = recorded(asked.record, asked.seed)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for result in pool.map(lambda one: perform(one, LIMIT + 5 * taken[one.command], around), cases):
            results[result["number"]] = result
            print(summary(result), flush=True)
            if asked.record:
                about = {"seed": asked.seed, "mpi": library(), "isolated": bool(around)}
                limits = {"limit_seconds": LIMIT, "start_timeout": START, "stall_timeout": STALL}
                runs = [results[number] for number in sorted(results)]
                text = json.dumps({**about, **limits, "undisturbed_seconds": taken, "runs": runs}, indent=1)
                asked.record.write_text(text)
    found = table(list(results.values()))
    print(found)
    if asked.table:
        begin = f"<!-- made by tests/faults/random_faults.py with {library()} -->"
        before, begin, rest = asked.table.read_text().partition(begin)
        asked.table.write_text(f"{before}{begin}\n{found}{END}{rest.partition(END)[2]}")
    sys.exit(any(result["wrong"] for result in results.values()))


def recorded(path: Path | None, seed: int) -> dict[int, dict[str, Any]]:
    """The results of an earlier call with the same seed, by number."""
    if path is None or not path.exists():
        return {}
    record = json.loads(path.read_text())
    return {one["number"]: one for one in record["runs"]} if record["seed"] == seed else {}


def summary(result: dict[str, Any]) -> str:
    state = "WRONG" if result["wrong"] else "right"
    what = f"{result['fault']}; {result['command']} on {result['ranks']}, {result['launcher']}"
    head = f"{state} {result['number']:4} {what}, {result['moment']}; status {result['status']}"
    return "\n      ".join([f"{head}, {result['seconds']:.1f} s", *result["wrong"]])


if __name__ == "__main__":
    main()
