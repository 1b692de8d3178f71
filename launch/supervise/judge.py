"""Judge a run whose launcher has ended: determine the exit status, report the failure, clean up."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from meshrun.launch.supervise.launcher_output import (
    no_space,
    process_ends,
    refuses_root,
    start_failure,
    unreachable,
)

if TYPE_CHECKING:
    from meshrun.runner.world.run_status import RunDirectory

# From the last output of a launcher: which rank ended first, and a hint. None if it does not report one.
Explain = Callable[[str], tuple[str, str | None] | None]

MEMORY = "dmesg | grep -i 'killed process' for out of memory, and the batch system's log for its limits"
USER_SIGNAL = (
    "a handler for this signal in the job's file; #SBATCH --signal, scancel --signal and preemption send it"
)
# Hints by signal, for its most frequent cause.
HINTS: dict[int, str] = {
    signal.SIGKILL: MEMORY,
    signal.SIGBUS: "df -h /dev/shm: the usual cause is that it is full (docker run --shm-size)",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 shows the Python lines of the crash",
    signal.SIGABRT: "PYTHONFAULTHANDLER=1 shows the Python lines of the crash",
    signal.SIGTERM: "the batch system's log: this rank was ended from outside",
    signal.SIGUSR1: USER_SIGNAL,
    signal.SIGUSR2: USER_SIGNAL,
}
# The same for the launcher, whose own files are in the folder for temporary files.
LAUNCHER_HINTS: dict[int, str] = {
    signal.SIGBUS: "df -h /tmp /dev/shm: the usual cause is that one of them, or TMPDIR, is full",
    signal.SIGXFSZ: "ulimit -f unlimited: a file of the launcher is larger than allowed",
}
DEBUG_HINT = "--debug shows the launcher's own messages"
UNEXPLAINED = "the run failed, and no rank reported why"


@dataclass(frozen=True)
class Outcome:
    """How the launcher ended.

    status: its exit status, negative for a signal. interrupted: the signal with which the user ended the run.
    launcher_output: the launcher's own messages. output_tail: the last output of the ranks, on stderr.
    """

    status: int
    interrupted: signal.Signals | None
    launcher_output: str
    output_tail: str


class Conclude(Protocol):
    """Prints the result of a command, such as `meshrun validate`, whose run failed before it could print one.

    why: the reason, as printed. rank_status: the exit status of ranks that end without a message; None if
    none was started, or none has failed. answer: the partial result saved by rank 0. files: the files on
    the command line may be written here. Returns the exit status.
    """

    def __call__(
        self,
        status: int,
        why: str,
        *,
        rank_status: int | None = None,
        answer: str | None = None,
        files: bool = True,
    ) -> int: ...


def no_answer(
    status: int, why: str, *, rank_status: int | None = None, answer: str | None = None, files: bool = True
) -> int:
    """`Conclude` for a command whose only result is its exit status."""
    return status


def judge(
    run: RunDirectory,
    outcome: Outcome,
    debug: bool = False,
    lost: Sequence[str] = (),
    explain: Explain | None = None,
    conclude: Conclude = no_answer,
    files: bool = True,
) -> int:
    """Report what the ranks could not report themselves, clean up a failed run, and return the run's exit
    status.

    lost: hosts that did not answer after the run. explain: for a launcher whose messages were forwarded.
    conclude: prints the command's result if rank 0 has not. files: the files on the command line are on this
    machine.

    The launcher's exit status alone is not reliable. The run has succeeded if rank 0 has written the
    completion record, which it does last, after every rank has finished, and no rank claims a failure. A
    signal that kills a rank after that (a crash while MPI or CUDA shuts down) does not affect the results and
    causes a warning. Any other non-zero status of the launcher is a failure even with the record, and so is
    status 0 without the record.
    """
    from meshrun.runner.errors import printable, tell

    status, why, at_fault = _judge(run, outcome, debug, lost, explain)
    words, answer = run.recovery_hint(), run.answer()
    if status and printable(words) not in outcome.output_tail:
        tell(words)
    if status and answer != "":
        files = files and (
            answer is not None or not run.any_registered()
        )  # otherwise rank 0 has written them
        return conclude(
            status, why, rank_status=run.exit_status() if at_fault else None, answer=answer, files=files
        )
    return status


def _judge(
    run: RunDirectory, outcome: Outcome, debug: bool, lost: Sequence[str], explain: Explain | None
) -> tuple[int, str, bool]:
    """The exit status, why it is not 0, and whether a rank or host has failed, rather than the launcher."""
    from meshrun.runner.errors import printable, tell

    failure, record = run.failure(), run.record()
    if debug and outcome.launcher_output:
        sys.stderr.write(outcome.launcher_output)
    run.remove_leftovers()  # none if the output has its final name
    if outcome.interrupted:
        why = f"interrupted by {outcome.interrupted.name}: every rank has ended"
        tell(why)
        return 128 + outcome.interrupted, why, True
    killed = _killed(run, outcome)
    if lost:
        tell(_silent(lost))
    if failure:
        # Claimed but not printed: the launcher ended that rank before it could.
        if printable(failure["sentence"]) not in outcome.output_tail:
            tell(failure["sentence"])
        if killed and killed.sure and killed.rank != failure["rank"]:
            tell(killed.sentence)
        return int(failure["exit_code"]), failure["sentence"], True
    if record is not None and (killed or outcome.status == 0):
        if killed:
            tell(f"warning: the run was complete when this happened: {killed.sentence}")
        if full := no_space(outcome.launcher_output):
            tell(f"warning: ranks exchanged messages by slower means: {full}")
        return 0, "", True
    why = _silent(lost) if lost else ""
    if killed or not lost:
        why = killed.sentence if killed else _unexplained(outcome, record is not None, explain)
        tell(why)
        if why.startswith(UNEXPLAINED) and not debug:
            sys.stderr.write(outcome.launcher_output)
    return run.exit_status(), why, outcome.status >= 0 or bool(killed or lost)


@dataclass(frozen=True)
class Loss:
    """The loss of a rank or of hosts that ended a run. sentence: to print; "" if a rank has."""

    rank: int | None
    sentence: str


def find_loss(run: RunDirectory, outcome: Outcome, lost: Sequence[str] = ()) -> Loss | None:
    """Return what was lost: hosts that no longer answer, or a rank that was killed by a signal before any
    other failure.

    lost: these hosts. None if the run was complete, was interrupted, or failed in another way, as it would
    again.
    """
    from meshrun.runner.errors import UserError, printable

    killed, failure = _killed(run, outcome), run.failure()
    if outcome.interrupted or run.record() is not None:
        return None
    if lost:  # then the ranks on other hosts fail too
        if failure is not None and failure["exit_code"] == UserError.exit_code:
            return None
        told = failure is not None and printable(failure["sentence"]) in outcome.output_tail
        named = failure is not None and all(f" {host} (" in failure["sentence"] for host in lost)
        return Loss(None, "" if told and named else _silent(lost))
    if killed is None or (failure is not None and failure["rank"] != killed.rank):
        return None
    return Loss(killed.rank, killed.sentence)


def _silent(hosts: Sequence[str]) -> str:
    from meshrun.runner.errors import RunError

    hint = "check their power and network; processes and files of the run may remain there"
    return str(RunError(f"host {', '.join(hosts)} no longer answers", hint=hint))


@dataclass(frozen=True)
class Killed:
    """A rank ended by a signal. sure: the launcher certainly names the right rank."""

    rank: int | None
    sentence: str
    sure: bool


def _killed(run: RunDirectory, outcome: Outcome) -> Killed | None:
    """The rank ended by a signal, according to the launcher."""
    from meshrun.runner.errors import RunError

    ends = process_ends(outcome.launcher_output)
    end = next((end for end in ends if end.signal is not None), None)
    if end is None or end.signal is None:
        return None
    if end.maybe_by_launcher and start_failure(outcome.launcher_output):
        return None
    if end.signals:
        which = " or ".join(_status(-number) for number in end.signals)
        what = f"[host {end.host}] a rank was killed by {which}; MPICH's launcher does not tell which rank"
        hint = HINTS.get(end.signals[0], DEBUG_HINT)
        if signal.SIGBUS in end.signals[1:]:
            hint += "; of SIGBUS, the usual cause is a full /dev/shm (df -h /dev/shm)"
        return Killed(None, str(RunError(what, hint=hint)), sure=False)
    known = (run.rank_of(end.pid, end.host) if end.pid else None) or {}
    rank, host = known.get("rank", end.rank), known.get("host", end.host)
    who = f"process {end.pid}" if rank is None else f"rank {rank}"
    what = f"[{who}, host {host}] killed by {_status(-end.signal)}"
    if end.maybe_by_launcher:
        what += ", possibly by MPICH's launcher because another rank had died"
        hint = f"{MEMORY}; PYTHONFAULTHANDLER=1 shows the lines of a crash"
    else:
        hint = HINTS.get(end.signal, DEBUG_HINT)
    return Killed(rank, str(RunError(what, hint=hint)), not end.maybe_by_launcher)


def _unexplained(outcome: Outcome, recorded: bool, explain: Explain | None) -> str:
    from meshrun.runner.errors import RunError

    left = next(iter(process_ends(outcome.launcher_output)), None)
    hint: str | None = DEBUG_HINT
    if full := no_space(outcome.launcher_output):
        return str(RunError(full, hint=HINTS[signal.SIGBUS]))
    if unreachable(outcome.launcher_output):
        return _not_started("its ranks cannot reach each other")
    if reason := start_failure(outcome.launcher_output):
        return _not_started(reason)
    if refuses_root(outcome.launcher_output + outcome.output_tail):
        variables = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return str(RunError("Open MPI's launcher does not run as root", hint=f"{variables} meshrun ..."))
    if explain and (explained := explain(outcome.output_tail)):
        what, hint = explained
    elif left is None and (ended := _terminated(outcome.status)):
        what, hint = f"a rank was ended by {ended.name}", HINTS[signal.SIGTERM]
    elif left is None:
        what, hint = UNEXPLAINED, LAUNCHER_HINTS.get(-outcome.status, DEBUG_HINT)
    else:
        where = f"[rank {left.rank}]" if left.host is None else f"[rank {left.rank}, host {left.host}]"
        what = f"{where} ended too early" + (f", exit status {left.status}" if left.status else "")
    failure = RunError(
        what,
        got=f"{_status(outcome.status)} of the launcher, {'a' if recorded else 'no'} completion record",
        expected="exit status 0, and a record that rank 0 writes last",
        hint=hint,
    )
    return str(failure)


def _terminated(status: int) -> signal.Signals | None:
    """The signal after which a rank, and so the launcher, ends with this exit status; None for others."""
    from meshrun.runner.processes import TERMINATING

    return next((number for number in TERMINATING if status == 128 + number), None)


def _not_started(reason: str) -> str:
    """Why MPI cannot start: ranks inherit this process's limit of a file's size."""
    from meshrun.runner.errors import RunError

    what = f"MPI could not start: {reason}"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return str(RunError(what, hint="df -h /dev/shm, and --debug for the launcher's own messages"))
    got, expected = f"a limit of {limit:,} bytes a file", "room for MPI's shared memory"
    return str(RunError(what, got=got, expected=expected, hint="ulimit -f unlimited"))


def _status(status: int) -> str:
    """A return code of subprocess as text."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal
        return f"signal {-status}"
