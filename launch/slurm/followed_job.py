"""Follow one Slurm job, or one task of an array: its output and its end."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshrun.launch.slurm import queries
from meshrun.launch.slurm.output_file import OutputFile
from meshrun.launch.slurm.queries import GONE, JobState
from meshrun.launch.slurm.reasons import task_end
from meshrun.launch.supervise.status_lines import StatusLines
from meshrun.launch.supervise.supervisor import CLAIMED, TAIL, pass_on

if TYPE_CHECKING:
    from meshrun.launch.slurm.batch_script import JobRequest
    from meshrun.runner.world.run_status import RunDirectory

LATE = 10.0  # seconds for a shared file system to show what another host has written
AT_ONCE = 0.5  # the same after a failure without a message to wait for
HINTS = {
    "NODE_FAIL": "run again; --requeue has Slurm do it",
    "OUT_OF_MEMORY": "--srun-args --mem=0 to use all of a host's memory, or more hosts",
    "PREEMPTED": "--requeue, or another --partition",
    "TIMEOUT": "a longer --time",
}
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)


class AttemptStatusLines(StatusLines):
    """StatusLines of a job, which Slurm may restart: a new attempt discards the previous one's reports."""

    def _receive(self, line: bytes) -> None:
        if line.split(b" ")[2:3] == [b"attempt"]:
            self.run.remove_leftovers()
            for note in self.run.path.iterdir():
                note.unlink()
        else:
            super()._receive(line)


@dataclass
class _Times:
    """Of the monotonic clock, in seconds: when the job began, when it ended, when a failure was reported."""

    begun: float = float("inf")
    ended: float = float("inf")
    failed: float = float("inf")


@dataclass
class FollowedJob:
    """A job, or one task of an array, and its observed state. token: of the run."""

    status_lines: AttemptStatusLines
    state: JobState
    output: OutputFile
    request: JobRequest
    token: str
    nodes: str = ""  # all nodes that it had: Slurm forgets failed ones
    output_tail: bytes = b""
    times: _Times = field(default_factory=_Times)
    cancelled: bool = False
    closed: bool = False

    @property
    def run(self) -> RunDirectory:
        return self.status_lines.run

    def update(self, state: JobState) -> bool:
        """Store a new state from Slurm; returns whether it differs."""
        changed = (state.state, state.reason) != (self.state.state, self.state.reason)
        self.state = state
        if len(state.nodes) > len(self.nodes):
            self.nodes = state.nodes
        if state.state == "RUNNING":
            self.times.begun = min(self.times.begun, time.monotonic())
        self.times.ended = min(self.times.ended, time.monotonic()) if state.over else float("inf")
        return changed

    def read_output(self) -> None:
        """Read new output."""
        if self.state.state not in ("", "PENDING"):
            while chunk := self.output.read():
                self._pass_on(self.status_lines.feed(chunk))
        self._read_lost_note()
        if self.run.failure() is not None:
            self.times.failed = min(self.times.failed, time.monotonic())
        if self.done:
            self._pass_on(self.status_lines.finish())
            self.closed = True

    def _read_lost_note(self) -> None:
        """Read the note in which ranks report the loss of the host that writes the output."""
        from meshrun.runner.world.run_status import read_lost_note

        if self.state.state not in ("", "PENDING") and not self.request.requeue:
            sentence = read_lost_note(self.state.id, self.token)
            if sentence is not None:
                self.run.claim_failure({"exit_code": 1, "sentence": sentence, "rank": None})

    @property
    def hangs(self) -> bool:
        """Whether the job still runs although it has reported a failure: a dead host delays its end."""
        return not self.state.over and time.monotonic() > self.times.failed + CLAIMED

    @property
    def missing(self) -> bool:
        """Whether the output is overdue."""
        return not self.output.found and time.monotonic() > self.times.begun + LATE

    @property
    def reported(self) -> bool:
        """Whether the ranks have reported how the run ended."""
        return self.run.failure() is not None or self.run.record() is not None

    @property
    def done(self) -> bool:
        """Whether the job is over and its output complete."""
        if self.cancelled and time.monotonic() > self.times.failed + 2 * CLAIMED:
            return True
        late = LATE if self.nodes and (self.state.succeeded or not self.output.found) else AT_ONCE
        return self.state.over and (self.reported or time.monotonic() > self.times.ended + late)

    def failure(self) -> str | None:
        """Why the job failed, according to Slurm and srun; None if it did not."""
        from meshrun.runner.errors import RunError

        state, recorded = self.state, self.run.record() is not None
        if recorded and (state.succeeded or state.state == GONE):
            return None
        got, expected, hint = None, None, HINTS.get(state.state)
        what = f"job {state.id} ended as {state.state} ({state.reason})"
        text = self.output_tail.decode(errors="replace")
        if failed := sorted({*NODE_FAILURE.findall(text), *self._failed_nodes()}):
            what, hint = f"{what}: {', '.join(failed)} failed", HINTS["NODE_FAIL"]
        elif state.state in ("COMPLETED", "FAILED", GONE):
            what, hint = task_end(text) or (what, None)
            status = state.exit_code.partition(":")[0]
            got = f"exit status {status}, {'a' if recorded else 'no'} completion record"
            expected = "exit status 0, and a record that rank 0 writes last"
        if self.nodes and not self.output.found:
            hint = f"a working directory or --output that all hosts share: {self.output} is not here"
        hint = hint or f"scontrol show job {state.id}, and {self.output}"
        return str(RunError(what, got=got, expected=expected, hint=hint))

    def _failed_nodes(self) -> list[str]:
        if self.state.state != "NODE_FAIL" and self.state.reason != "NodeDown":
            return []
        return queries.failed_nodes(self.nodes)

    def _pass_on(self, text: bytes) -> None:
        self.output_tail = (self.output_tail + text)[-TAIL:]
        if not self.request.array:
            pass_on(1, text)
