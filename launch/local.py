"""Ranks on this machine: started through its mpiexec, watched, and their run judged."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launch import mpi_library, mpiexec, noise, shm
from launch.mpiexec import RUN_MARK
from launch.plan import Plan
from launch.watch import Outcome, watch

if TYPE_CHECKING:
    from runner.run_status import RunDirectory

PROGRAM = (sys.executable, str(Path(__file__).with_name("__main__.py")))

MEMORY = "dmesg | grep -i 'killed process' for out of memory, and the batch system's log for its limits"
# Clear the line, show the cursor: a rank that was ended could not.
AFTER_PROGRESS_BAR = "\r\x1b[K\x1b[?25h"

LEAST = 16 << 20  # bytes: a Python with NumPy and MPI, what it shares with others not counted

Account = Callable[[str], tuple[str, str] | None]

# What most often sends a rank this signal, and what to do.
HINTS: dict[int, str] = {
    signal.SIGKILL: MEMORY,
    signal.SIGBUS: "df -h /dev/shm: a full one ends ranks like this (docker run --shm-size)",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 for the Python lines it crashed in",
    signal.SIGABRT: "PYTHONFAULTHANDLER=1 for the Python lines it crashed in",
    signal.SIGTERM: "the batch system's log: someone ended this rank from outside",
}


def start(
    ranks: int,
    words: Sequence[str],
    columns: int | None = None,
    *,
    program: Sequence[str] = PROGRAM,
    debug: bool = False,
) -> int:
    """Run `program` with `words` as `ranks` ranks on this machine; the run's exit status.

    The program is also given `--run-dir DIR -n RANKS`, and `--tty COLUMNS` where a progress bar
    may be drawn. debug: show the launcher's own words too.

    The launcher's exit status is not the verdict. The run has succeeded when rank 0 has left the
    completion record, its last act after every rank has said that its part is done, and no rank
    has claimed a failure. A signal that kills a rank after that (a crash while MPI or CUDA shuts
    down) changes nothing about the results: that is a warning. Any other bad status of the
    launcher is a failure, record or not, and so is a good one without the record.

    Raises UserError where there is no launcher, or one of another MPI than mpi4py loads. 130 (128 + signal)
    when interrupted.
    """
    launcher = mpiexec.find()
    if not launcher.bundled:  # else both are of one environment, and asking takes a tenth of a second
        mpi_library.check(launcher, {"here": mpi_library.loaded()})
    check_room(ranks)

    def started(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        ours = [*rank_words(str(run), columns), "-n", str(ranks)]
        environment = launcher.environment(ranks, os.environ, sockets)
        return [*launcher.command(ranks, bar=columns is not None), *program, *ours, *words], {
            **environment,
            RUN_MARK: str(run),
        }

    return conduct(started, columns, debug=debug, ran=words)


def check_room(ranks: int) -> None:
    """Refuse more ranks than there is memory to start; say so where there are more than cores."""
    from runner.backend.host import host_memory
    from runner.errors import UserError, tell

    memory = host_memory()
    if ranks * LEAST > memory:
        raise UserError(
            f"{ranks:,} ranks do not fit into the memory of this machine",
            got=f"{memory >> 20:,} MiB",
            expected=f"{LEAST >> 20} MiB for each rank, before it does anything",
            hint=f"-n {mpiexec.cores()}, a rank for every core, or one for every GPU",
        )
    if ranks > mpiexec.cores():
        tell(
            f"warning: {ranks:,} ranks take turns on {mpiexec.cores()} cores: "
            "to start and to run takes longer, and timings say little"
        )


def shown(plan: Plan) -> str:
    """What `start` runs, for a shell, without what only a run has."""
    launcher = mpiexec.find()
    variables = launcher.environment(plan.ranks, {**os.environ, **plan.settings})
    return for_shell(variables, launcher.command(plan.ranks), [*PROGRAM, "-n", str(plan.ranks), *plan.words])


def for_shell(variables: Mapping[str, str], *words: Sequence[str]) -> str:
    """A command for a shell with this process's environment, its parts on lines of their own.

    variables: the environment that the command is to have.
    """
    removed = [f"-u {name}" for name in sorted(os.environ.keys() - variables.keys())]
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assigned = ["env " + " ".join(removed)] if removed else []
    assigned += [f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())]
    return " \\\n    ".join([*assigned, *map(shlex.join, words)])


def plan_words(plan: Plan, token: str | None = None) -> list[str]:
    """What every rank is told of the plan that it must find carried out.

    token: of the lines by which it tells its verdict; None where nobody reads them.
    """
    run = ["--run-dir", f"@{token}"] if token else []
    network = ["--expect-network", plan.network] if plan.network else []
    silence = ["--host-timeout", f"{plan.host_timeout:g}"]
    return [*run, *silence, "--expect", str(plan.hosts), str(plan.per_host), *network, "-n", str(plan.ranks)]


def rank_words(place: str, columns: int | None) -> list[str]:
    """What every rank is told of the process that waits. place: as `runner.run_status.run_at` takes it."""
    terminal = [] if columns is None else ["--tty", str(columns)]
    colour = ["--colour"] if sys.stdout.isatty() else []
    return ["--run-dir", place, *terminal, *colour]


def conduct(
    started: Callable[[Path, Path], tuple[list[str], dict[str, str]]],
    columns: int | None = None,
    *,
    token: str | None = None,
    debug: bool = False,
    elsewhere: Callable[[Path, Path, float], list[str]] | None = None,
    account: Account | None = None,
    ran: Sequence[str] = (),
) -> int:
    """Run a launcher, watch it, judge the run and clean up after it; the run's exit status.

    started: its words and environment, given the run's directory and a private folder with a short path.
    token: of the lines by which ranks tell what belongs into the directory, where they cannot write there.
    elsewhere: cleans up on other hosts, given the same two and the seconds since the start; those that do
    not answer. account, ran: as `judge` takes them.
    """
    from runner.launcher import working_directory
    from runner.run_status import RunDirectory, RunLines

    working_directory()  # where it is gone, launchers have no words for it
    run = RunDirectory.create()
    sockets = mpiexec.socket_folder()
    segments = shm.segments()
    begun = time.monotonic()
    sys.stdout.flush()  # what the ranks say goes straight to the file descriptor
    in_order = False
    try:
        words, environment = started(run.path, sockets)
        outcome = watch(words, environment, token)
        if columns is not None and outcome.status:
            sys.stderr.write(AFTER_PROGRESS_BAR)
        lost = elsewhere(run.path, sockets, time.monotonic() - begun) if elsewhere else []
        status = judge(run, outcome, debug, lost, account, ran)
        in_order = status == outcome.status == 0
        return status
    finally:
        if not in_order:
            shm.remove_orphans(segments)
        if token:
            RunLines(token).remove_claim()  # of a rank that was killed before it could
        for folder in (run.path, sockets):
            shutil.rmtree(folder, ignore_errors=True)


def judge(
    run: RunDirectory,
    outcome: Outcome,
    debug: bool = False,
    lost: Sequence[str] = (),
    account: Account | None = None,
    ran: Sequence[str] = (),
    files: bool = True,
) -> int:
    """Tell what the ranks could not tell themselves; the run's exit status. Cleans up a failed run.

    lost: hosts that did not answer afterwards. account: of a launcher whose words are shown: which rank
    ended first by them, and what to try. ran: the command that the ranks ran and its words; where it ends
    with an answer, it gets that from here if rank 0 has not given it. files: its files belong here.
    """
    from launch.further import conclude
    from runner.errors import tell

    status, why = _judge(run, outcome, debug, lost, account)
    words, answer = run.recovery_hint(), run.answer()
    if status and words not in outcome.said:
        tell(words)
    if status and answer != "":
        files = files and (answer is not None or not run.any_registered())  # else rank 0 has written them
        return conclude(ran, status, why, kept=run.exit_status(), answer=answer, files=files)
    return status


def _judge(
    run: RunDirectory, outcome: Outcome, debug: bool, lost: Sequence[str], account: Account | None
) -> tuple[int, str]:
    """The exit status, and why it is not 0."""
    from runner.errors import tell

    failure, record = run.failure(), run.record()
    if debug and outcome.noise:
        sys.stderr.write(outcome.noise)
    run.remove_leftovers()  # nothing, where the output has got its final name
    if outcome.interrupted:
        why = f"interrupted by {outcome.interrupted.name}: every rank has ended"
        tell(why)
        return 128 + outcome.interrupted, why
    killed = _killed(run, outcome)
    if lost:
        tell(_silent(lost))
    if failure:
        # Claimed and not told: the launcher was faster in ending that rank than it in speaking.
        if failure["sentence"] not in outcome.said:
            tell(failure["sentence"])
        if killed and killed.sure and killed.rank != failure["rank"]:
            tell(killed.sentence)
        return int(failure["exit_code"]), failure["sentence"]
    if record is not None and (killed or outcome.status == 0):
        if killed:
            tell(f"warning: the run was complete when this happened: {killed.sentence}")
        return 0, ""
    why = _silent(lost) if lost else ""
    if killed or not lost:
        why = killed.sentence if killed else _unexplained(outcome, record is not None, debug, account)
        tell(why)
    return run.exit_status(), why


def _silent(hosts: Sequence[str]) -> str:
    from runner.errors import RunError

    hint = "their power and network; processes and files of the run may be left there"
    return str(RunError(f"no answer any more from host {', '.join(hosts)}", hint=hint))


@dataclass(frozen=True)
class Killed:
    """A rank that a signal ended. sure: no doubt that the launcher names the right one."""

    rank: int | None
    sentence: str
    sure: bool


def _killed(run: RunDirectory, outcome: Outcome) -> Killed | None:
    """The rank that a signal ended, by the launcher's account."""
    from runner.errors import RunError

    end = next((end for end in noise.process_ends(outcome.noise) if end.signal is not None), None)
    if end is None or end.signal is None:
        return None
    known = (run.rank_of(end.pid, end.host) if end.pid else None) or {}
    rank, host = known.get("rank", end.rank), known.get("host", end.host)
    who = f"process {end.pid}" if rank is None else f"rank {rank}"
    what = f"[{who}, host {host}] killed by {_status(-end.signal)}"
    if end.maybe_by_launcher:
        what += ", by MPICH's launcher perhaps, because another rank had died"
        hint = f"{MEMORY}; PYTHONFAULTHANDLER=1 for the lines of a crash"
    else:
        hint = HINTS.get(end.signal, "--debug for the launcher's own words")
    return Killed(rank, str(RunError(what, hint=hint)), not end.maybe_by_launcher)


def _unexplained(outcome: Outcome, recorded: bool, debug: bool, account: Account | None) -> str:
    from runner.errors import RunError

    left = next(iter(noise.process_ends(outcome.noise)), None)
    hint = "--debug for the launcher's own words"
    if account and (told := account(outcome.said)):
        what, hint = told
    elif left is None:
        what = "the run did not end well, and no rank said why"
        if not debug:
            sys.stderr.write(outcome.noise)
    else:
        where = f"[rank {left.rank}]" if left.host is None else f"[rank {left.rank}, host {left.host}]"
        what = f"{where} ended before its time" + (f", exit status {left.status}" if left.status else "")
    failure = RunError(
        what,
        got=f"{_status(outcome.status)} of the launcher, {'a' if recorded else 'no'} completion record",
        expected="exit status 0, and a record that rank 0 writes as its last act",
        hint=hint,
    )
    return str(failure)


def _status(status: int) -> str:
    """An exit status as subprocess gives it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal
        return f"signal {-status}"
