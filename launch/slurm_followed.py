"""What one job of Slurm's, or one task of an array, leaves: its output, read as it grows, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launch import local, slurm_ask
from launch.slurm_ask import GONE, State
from launch.told import Told
from launch.watch import CLAIMED, TAIL, pass_on

if TYPE_CHECKING:
    from runner.run_status import RunDirectory

LATE = 10.0  # seconds that a file system may take to show here what was written there
AT_ONCE = 0.5  # seconds that it takes where a failure left no words to wait for
HINTS = {
    "NODE_FAIL": "the run again; --requeue has Slurm do it",
    "OUT_OF_MEMORY": "--srun-args --mem=0 for all of a host's memory, or more hosts",
    "PREEMPTED": "--requeue, or another --partition",
    "TIMEOUT": "a longer --time",
}
# "srun: error: c2: task 3: Killed"; of several tasks, the first.
TASK_ENDS = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
NOT_STARTED = re.compile(r"^srun: error: task (\d+) launch failed: (.+)$", re.MULTILINE)
BY_SLURM = ("Terminated", "Exited with exit code 143")  # how ranks end because another has
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)


class Attempts(Told):
    """Told, by a job that Slurm may start again: what an attempt before has told is void."""

    def _hear(self, line: bytes) -> None:
        if line.split(b" ")[2:3] == [b"attempt"]:
            self._run.remove_leftovers()
            for note in self._run.path.iterdir():
                note.unlink()
        else:
            super()._hear(line)


@dataclass
class Followed:
    """A job, or one task of an array, and what is known of it.

    shown: its output is passed on. requeue: Slurm may start it again.
    """

    run: RunDirectory
    told: Told
    state: State
    shown: bool
    requeue: bool = False
    nodes: str = ""  # all that it had: Slurm forgets the failed ones
    said: bytes = b""
    begun: float = float("inf")
    ended: float = float("inf")
    failed: float = float("inf")
    cancelled: bool = False
    closed: bool = False
    _found: bool = False
    _read: int = 0

    def now(self, state: State) -> bool:
        """Take what Slurm says; whether that is news."""
        news = (state.state, state.reason) != (self.state.state, self.state.reason)
        self.state = state
        if len(state.nodes) > len(self.nodes):
            self.nodes = state.nodes
        if state.state == "RUNNING":
            self.begun = min(self.begun, time.monotonic())
        self.ended = min(self.ended, time.monotonic()) if state.over else float("inf")
        return news

    def look(self) -> None:
        """Read on in the output file. Opened each time: that makes a network file system look again."""
        with contextlib.suppress(FileNotFoundError), open(self.state.output or os.devnull, "rb") as file:
            self._found = True
            file.seek(self._read)
            while chunk := file.read(1 << 20):
                self._read += len(chunk)
                self._pass_on(self.told.feed(chunk))
        self._look_for_the_lost()
        if self.run.failure() is not None:
            self.failed = min(self.failed, time.monotonic())
        if self.done:
            self._pass_on(self.told.finish())
            self.closed = True

    def _look_for_the_lost(self) -> None:
        """What ranks could not say in the output: that its writer's host is lost."""
        from runner.run_status import lost_note

        if self.state.state not in ("", "PENDING") and not self.requeue:
            with contextlib.suppress(OSError):  # none, or one that is just being replaced
                note = lost_note(self.state.id)
                sentence = note.read_text().strip().removeprefix("meshrun: ")
                self.run.claim_failure({"exit_code": 1, "sentence": sentence, "rank": None})
                note.unlink(missing_ok=True)

    @property
    def hangs(self) -> bool:
        """Whether Slurm still keeps a run that has told its failure: a dead host holds up the end."""
        return not self.state.over and time.monotonic() > self.failed + CLAIMED

    @property
    def missing(self) -> bool:
        """Whether the output should be here by now."""
        return not self._found and time.monotonic() > self.begun + LATE

    @property
    def heard(self) -> bool:
        """Whether the ranks have told how it ends."""
        return self.run.failure() is not None or self.run.record() is not None

    @property
    def done(self) -> bool:
        """Whether nothing more is to come: it is over, and the output is here."""
        if self.cancelled and time.monotonic() > self.failed + 2 * CLAIMED:
            return True
        late = LATE if self.nodes and (self.state.well or not self._found) else AT_ONCE
        return self.state.over and (self.heard or time.monotonic() > self.ended + late)

    def failure(self) -> str | None:
        """What Slurm and srun tell of a bad end; None of a good one."""
        from runner.errors import RunError

        state, recorded = self.state, self.run.record() is not None
        if recorded and (state.well or state.state == GONE):
            return None
        got, expected, hint = None, None, HINTS.get(state.state)
        what = f"job {state.id} ended as {state.state} ({state.reason})"
        text = self.said.decode(errors="replace")
        if failed := sorted({*NODE_FAILURE.findall(text), *self._failed_nodes()}):
            what, hint = f"{what}: {', '.join(failed)} failed", HINTS["NODE_FAIL"]
        elif state.state in ("COMPLETED", "FAILED", GONE):
            what, hint = task_end(text) or (what, None)
            status = state.exit_code.partition(":")[0]
            got = f"exit status {status}, {'a' if recorded else 'no'} completion record"
            expected = "exit status 0, and a record that rank 0 writes as its last act"
        if self.nodes and not self._found:
            hint = f"a working directory or --output that all hosts share: {state.output} is not here"
        hint = hint or f"scontrol show job {state.id}, and {state.output}"
        return str(RunError(what, got=got, expected=expected, hint=hint))

    def _failed_nodes(self) -> list[str]:
        if self.state.state != "NODE_FAIL" and self.state.reason != "NodeDown":
            return []
        return slurm_ask.failed(self.nodes)

    def _pass_on(self, text: bytes) -> None:
        self.said = (self.said + text)[-TAIL:]
        if self.shown:
            pass_on(1, text)


def task_end(text: str) -> tuple[str, str] | None:
    """The first task that did not end because another had, by srun's account, and what to try."""
    if match := NOT_STARTED.search(text):
        return f"rank {match[1]} could not be started: {match[2]}", "the log of slurmd on its host"
    for host, task, end in TASK_ENDS.findall(text):
        if not end.startswith(BY_SLURM):
            return f"[rank {task}, host {host}] ended before its time: {end}", local.MEMORY
    return None
