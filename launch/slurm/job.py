"""Submit a job to Slurm, follow its output to its end, and judge the run."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshrun.launch.mpi.environment import required_variables
from meshrun.launch.slurm import batch_script, queries
from meshrun.launch.slurm.batch_script import JobRequest
from meshrun.launch.slurm.followed_job import AttemptStatusLines, FollowedJob
from meshrun.launch.slurm.output_file import (
    OutputFile,
    absolute,
    check_output,
    expand,
    values_before,
    values_of,
)
from meshrun.launch.slurm.queries import GONE, JobState, last_line, program
from meshrun.launch.slurm.reasons import NORMAL, remedy, task_end
from meshrun.launch.spec import LaunchSpec
from meshrun.launch.supervise.cleanup import RUN_MARK
from meshrun.launch.supervise.judge import Conclude, Outcome, judge, no_answer
from meshrun.launch.supervise.query import query
from meshrun.launch.supervise.supervisor import Supervision, signal_handlers, supervise

READ_INTERVAL = 0.2  # seconds between two reads of the output
# Seconds between two queries to Slurm: a tenth of the time since the last change, within these limits.
QUERY_INTERVAL, MAX_QUERY_INTERVAL = 0.3, 10.0
TIMEOUT = 60.0  # seconds for a cancelled job to end
# Variables of sbatch that would replace what the script says about how the job is followed.
FOLLOWED = (
    "SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT",
    "SBATCH_REQUEUE", "SBATCH_WAIT",
)  # fmt: skip
NO_ANSWER, NO_OUTPUT = "no answer", "no output"  # what is told once
PENDING = 5.0  # seconds after which a reason to wait that does not pass by itself is explained


@dataclass
class _Times:
    """Of the monotonic clock, in seconds: of scancel, of the last query, of the last change of a state."""

    cancelled: float = float("inf")
    queried: float = 0.0
    changed: float = 0.0


@dataclass
class SubmittedJob:
    """A submitted job. folder: for the status of its runs. signals: that this process was sent. runs: one for
    the job, or one for each task of an array, by name."""

    id: str
    token: str
    request: JobRequest
    folder: Path
    signals: list[signal.Signals] = field(default_factory=list)
    runs: dict[str, FollowedJob] = field(default_factory=dict)
    waiting: JobState | None = None  # tasks of an array that have not started
    _times: _Times = field(default_factory=_Times)
    _waits: dict[str, tuple[str, float]] = field(default_factory=dict)  # reason and since when, by job
    _told: set[str] = field(default_factory=set)  # NO_ANSWER, NO_OUTPUT, and reasons that were explained

    @property
    def interrupted(self) -> signal.Signals | None:
        """The first signal."""
        return self.signals[0] if self.signals else None

    def signalled(self, number: int, _: object) -> None:
        self.signals.append(signal.Signals(number))

    def follow(self) -> bool:
        """Wait for the end of the job; False if an interruption ended the wait first."""
        times = self._times
        times.changed = time.monotonic()
        while not self._over():
            now = time.monotonic()
            if self.interrupted == signal.SIGHUP or self.signals[1:] or now > times.cancelled + TIMEOUT:
                return False
            if self.interrupted and times.cancelled == float("inf"):
                times.cancelled = times.changed = now
                query([program("scancel"), self.id])
            if any(run.reported for run in self.runs.values() if not run.state.over):
                times.changed = max(times.changed, now - QUERY_INTERVAL)
            interval = min(max(QUERY_INTERVAL, (now - times.changed) / 10), MAX_QUERY_INTERVAL)
            if now > times.queried + interval:
                self._query()
                times.queried = time.monotonic()
            self._read_output()
            time.sleep(READ_INTERVAL)
        return True

    def _read_output(self) -> None:
        from meshrun.runner.errors import tell

        unfinished = [run for run in self.runs.values() if not run.closed]
        for run in unfinished:
            run.read_output()
            if run.hangs and not (run.cancelled or self.request.requeue):
                query([program("scancel"), run.state.id])
                run.cancelled = True
        missing = next((run.output for run in unfinished if run.missing), None)
        if missing and NO_OUTPUT not in self._told:
            tell(f"warning: {missing} has no output of this job: is it on a file system shared by all hosts?")
            self._told.add(NO_OUTPUT)

    def _over(self) -> bool:
        waits = self.waiting is not None and not self.waiting.over
        return bool(self.runs or self.waiting) and not waits and all(run.closed for run in self.runs.values())

    def _query(self) -> None:
        from meshrun.runner.errors import tell

        found = queries.query_job(self.id)
        if isinstance(found, str):
            if NO_ANSWER not in self._told:
                tell(f"warning: Slurm does not answer; retrying: {found}")
            self._told.add(NO_ANSWER)
            return
        self._told.discard(NO_ANSWER)
        known = {state.id for state in found}
        forgotten = [one.state for name, one in self.runs.items() if name not in known and not one.state.over]
        found += [replace(state, state=GONE) for state in forgotten]
        self.waiting = None if found else JobState(self.id, GONE)
        for state in found:
            if state.id.endswith("]"):
                self.waiting = state
            else:
                self._update(state)
            self._tell_wait(state)

    def _update(self, state: JobState) -> None:
        from meshrun.runner.errors import tell

        first = state.id not in self.runs
        if first:
            self.runs[state.id] = self._followed(state)
        changed = self.runs[state.id].update(state)
        if first or changed:
            self._times.changed = time.monotonic()
        if (first or changed) and state.state == "RUNNING":
            because = "" if state.reason == "None" else f", {state.reason}"
            tell(f"job {state.id}: RUNNING on {state.nodes}{because}")

    def _tell_wait(self, state: JobState) -> None:
        """Say why a job waits, and what to do if the reason does not pass by itself."""
        from meshrun.runner.errors import tell

        now, reason = time.monotonic(), state.reason
        name = self.id if state.id.endswith("]") else state.id  # an array's waiting tasks become fewer
        if state.state != "PENDING":
            self._waits.pop(name, None)
        if state.state != "PENDING" or reason == "None":
            return
        before, since = self._waits.get(name, ("", now))
        if reason != before:
            self._waits[name] = reason, now
            tell(f"job {state.id}: waiting: {reason}")
        elif now > since + PENDING and reason not in (*NORMAL, *self._told):
            self._told.add(reason)
            hint = remedy(reason, f"scontrol show job {self.id}")
            tell(f"job {state.id} does not start, because of {reason}. Try: {hint}; Ctrl-C cancels the job")

    def _followed(self, state: JobState) -> FollowedJob:
        from meshrun.runner.world.run_status import RunDirectory

        request, run = self.request, RunDirectory(self.folder / state.id)
        run.path.mkdir()
        mark = f"{batch_script.attempt_mark(self.token, state.number)}\n".encode()
        values = values_of(state, values_before(os.environ))
        appends = batch_script.open_mode(request) == "append"
        return FollowedJob(
            AttemptStatusLines(run, self.token),
            JobState(state.id, ""),
            OutputFile(absolute(request.output_file, request.folder), values, mark, appends),
            request,
            self.token,
        )

    def verdict(self, debug: bool, conclude: Conclude = no_answer) -> int:
        """Report how each run ended; returns the first exit status other than 0. conclude: as for `judge`."""
        from meshrun.runner.errors import tell

        if self.interrupted:
            for one in self.runs.values():
                one.run.remove_leftovers()
            why = f"interrupted by {self.interrupted.name}: job {self.id} has ended"
            tell(why)
            for words in {one.run.recovery_hint() for one in self.runs.values()} - {""}:
                tell(words)
            return conclude(128 + self.interrupted, why, files=False)
        statuses = []
        for name, one in sorted(self.runs.items(), key=lambda item: (len(item[0]), item[0])):
            failure = one.failure()
            if failure:
                if not one.state.over:
                    tell(f"job {name} is cancelled, but still {one.state.state}: squeue --job {self.id}")
                elif one.run.failure() is not None and one.state.state not in ("FAILED", "COMPLETED"):
                    tell(failure)  # in addition to a rank's report: a failed host, a limit
                one.run.claim_failure({"exit_code": 1, "sentence": failure, "rank": None})
            tail = one.output_tail.decode(errors="replace") if not one.request.array else ""
            outcome = Outcome(0 if failure is None else 1, None, "", tail)
            statuses.append(judge(one.run, outcome, debug, conclude=conclude))
            if self.request.array:
                tell(f"job {name}: {'failed' if statuses[-1] else 'complete'}, output in {one.output}")
        if self.waiting is not None:
            why = f"job {self.waiting.id}: {self.waiting.state} before it started"
            tell(why)
            statuses.append(conclude(1, why))
        return next(filter(None, statuses), 0)


def start(spec: LaunchSpec, job: JobRequest, *, debug: bool = False, conclude: Conclude = no_answer) -> int:
    """Submit the spec, follow the job to its end and judge it; returns the run's exit status.

    Raises UserError if Slurm rejects it. The first Ctrl-C or SIGTERM cancels the job and waits for its end, a
    second ends the wait; if the terminal closes (SIGHUP), the job continues.
    """
    from meshrun.runner.errors import tell
    from meshrun.runner.world.run_status import RunDirectory

    program("scontrol")
    values = values_before(os.environ)
    check_output(job.output_file, values, Path(job.folder))
    token = secrets.token_hex(8)
    text = batch_script.script(spec, job, token)
    folder = RunDirectory.create().path
    follower = SubmittedJob("", token, job, folder)
    try:
        with signal_handlers(follower.signalled):
            follower.id = _submit(text, job)
            values |= {"A": follower.id} if job.array else {"A": follower.id, "j": follower.id}
            tell(f"job {follower.id} submitted, its output goes to {expand(job.output_file, values)}")
            _remove_notes(follower.id, f"{follower.id}_*")  # of another cluster's job with this number
            if follower.follow():
                _remove_notes(follower.id, f"{follower.id}_*")
                return follower.verdict(debug, conclude)
        assert follower.interrupted
        left = "the job continues" if follower.interrupted == signal.SIGHUP else "not waiting for its end"
        why = f"interrupted by {follower.interrupted.name}, {left}"
        tell(f"{why}: squeue --job {follower.id}")
        return conclude(128 + follower.interrupted, why, files=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_inside(spec: LaunchSpec, job: JobRequest, *, debug: bool, conclude: Conclude) -> int:
    """Run the ranks in the current allocation; returns the run's exit status."""
    from meshrun.runner.system.launcher import slurm_job

    token = secrets.token_hex(8)

    def prepare(run: Path, _: Path) -> tuple[list[str], dict[str, str]]:
        words = batch_script.srun(spec, job, token)
        here = {**batch_script.defaults(job), **os.environ, **required_variables(spec), RUN_MARK: str(run)}
        return [program("srun"), *words[1:]], here

    try:
        return supervise(prepare, Supervision(debug=debug, conclude=conclude), token=token, explain=task_end)
    finally:
        _remove_notes(slurm_job() or "")


def _remove_notes(*jobs: str) -> None:
    from meshrun.runner.files import temporaries
    from meshrun.runner.world.run_status import lost_note

    for job in jobs:
        for pattern in (str(lost_note(job)), temporaries(lost_note(job))):  # unfinished ones too
            for note in Path().glob(pattern):
                note.unlink(missing_ok=True)


def _submit(text: str, job: JobRequest) -> str:
    """Submit a script with sbatch; returns the job's number."""
    from meshrun.runner.errors import UserError

    # Here and not in the script: a site may have another default.
    mode = f"--open-mode={batch_script.open_mode(job)}"
    environment = {name: value for name, value in os.environ.items() if name not in FOLLOWED}
    done = query([program("sbatch"), "--parsable", mode], text, environment=environment)
    if done.returncode:
        # The remedy may be for an earlier line: the last one may only say that no host fits.
        hint = remedy(done.stderr, "sinfo; --print shows the script")
        raise UserError("Slurm rejected the job", got=last_line(done), hint=hint)
    return done.stdout.strip().partition(";")[0]
