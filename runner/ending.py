"""How a run ends when it does not end well: one error told once, nothing left behind, every rank down.

An error that all ranks meet alike ends them in order and rank 0 speaks. An error of one rank
cannot wait for the others, which may be waiting for this one: the first to fail claims the
failure, speaks, and aborts the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from runner import lock
from runner.errors import (
    BadResult,
    MeshrunError,
    RunError,
    UserError,
    describe,
    is_met_by_all,
    tell,
    traceback_of,
)
from runner.launcher import announced
from runner.verdict import Run, RunLines, remove_partial
from runner.world import World

PR_SET_PDEATHSIG = 1  # prctl(2)
TERMINATING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the signals that end a run
GRACE = 1.0  # seconds that a later failure waits for the first one's words to get out


@dataclass
class Ending:
    """What this process has to clean up and how it tells a failure.

    run: of whoever started the ranks and waits for the verdict; None when nobody does.
    usage_status: the exit status of a UserError; failure_status: of what has none of its own. farewell: what
    an interrupted run says. world: set once it is open. keep: saves what is worth it before this process
    ends, once; OSError is its own affair. failed: by then, the exit status and the sentence of this rank's
    failure. kept: what a run that fails from now on leaves behind, and how to go on;
    None: nothing. release: lets go of the output, where this process holds it.
    """

    run: Run | None = None
    debug: bool = False
    partial: Path | None = None
    usage_status: int = UserError.exit_code
    failure_status: int = RunError.exit_code
    farewell: str = "interrupted; nothing was written"
    world: World | None = None
    claimed: Run | None = field(default=None, init=False)  # by this rank, for now
    failed: tuple[int, str] | None = field(default=None, init=False)
    keep: Callable[[], None] | None = None
    kept: str | None = None
    release: Callable[[], None] | None = None

    def unfinished(self, partial: Path | None) -> None:
        """Name what to remove if the run fails; None once it has its final name, or is to be kept."""
        self.partial = partial
        if self.run is not None:
            self.run.keep_partial(partial)

    def keeps(self, words: str | None) -> None:
        """Say what a run that fails from now on leaves behind, and how to go on; None: nothing."""
        self.kept = words
        if self.run is not None:
            self.run.keep_words(words or "")

    def clean(self) -> None:
        keep, self.keep = self.keep, None
        if keep is not None:
            with contextlib.suppress(OSError):
                keep()
        if self.partial is not None:
            remove_partial(self.partial)
        self.let_go()

    def hold(self, output: Path) -> None:
        """Keep other runs from writing `output`, to the end of this one."""
        self.release = lock.hold(output)
        if self.run is not None:
            self.run.keep_hold(output)

    def let_go(self) -> None:
        """End the hold on the output, if there is one."""
        release, self.release = self.release, None
        if release is not None:
            with contextlib.suppress(OSError):
                release()

    def interrupted(self) -> None:
        """For `on_termination`: this process is told to end, and most often the others are too."""
        with contextlib.suppress(OSError):  # no room for notes, and there is more to be done
            run = self._place()
            if run is not None and run.close():
                self.claimed = run  # a rank that misses the file from now on has nothing to tell
        self.clean()
        told = announced()
        rank = self.world.rank if self.world else told.rank if told else 0
        if self.run is None and rank == 0:  # else whoever started the ranks tells
            tell(f"interrupted; {self.kept}" if self.kept else self.farewell)
        self._forget()

    def fail_together(self, failure: BaseException, rank: int) -> int:
        """The end of a rank when every rank has met `failure`; its exit status."""
        if rank == 0:
            self.failed = self._status(failure), describe(failure)
            self.clean()
            if self.run is not None:
                self.run.claim_failure(self._claim(failure, describe(failure), rank))
                self.run.forget()
            tell(describe(failure))
            self._tell_kept()
            self._trace(failure)
        return self._status(failure)

    def end_now(self, failure: MeshrunError) -> None:
        """Tell `failure` and end every rank of the run at once; from any thread, and does not return."""
        assert self.world is not None
        status = self.fail_alone(failure, "", self.world.rank)
        self.world.control.abort(status)
        os._exit(status)

    def _status(self, failure: BaseException) -> int:
        if isinstance(failure, UserError):
            return self.usage_status
        own = failure.exit_code if isinstance(failure, MeshrunError) else RunError.exit_code
        none = own == RunError.exit_code and not isinstance(failure, BadResult)
        return self.failure_status if none else own

    def fail_alone(self, failure: BaseException, where: str, rank: int) -> int:
        """Tell this rank's failure unless another rank's came first; the exit status to abort with."""
        status = self._status(failure)
        sentence = f"[{where}] {describe(failure)}" if where else describe(failure)
        self.failed = status, sentence
        run = self._place()
        first = run is None or run.claim_failure(self._claim(failure, sentence, rank))
        if first:
            self.claimed = run
            tell(sentence)
            self._tell_kept()
            self._trace(failure)
        # After the claim: a rank that misses the file while it writes would else be the first to fail.
        self.clean()
        if not first:
            time.sleep(GRACE)
        self._forget()
        return status

    def _place(self) -> Run | None:
        """Where ranks claim what only one of them is to tell; None for a rank alone."""
        if self.run is None and self.world is not None and self.world.size > 1:
            return RunLines(self.world.nonce, heard=False)
        return self.run

    def _forget(self) -> None:
        if isinstance(self.claimed, RunLines):
            time.sleep(GRACE / 4)  # ranks that fail at this moment find the claim; nobody does later
            self.claimed.forget()

    def _claim(self, failure: BaseException, sentence: str, rank: int) -> dict[str, Any]:
        return {"exit_code": self._status(failure), "sentence": sentence, "rank": rank}

    def _tell_kept(self) -> None:
        if self.kept:
            tell(self.kept)

    def _trace(self, failure: BaseException) -> None:
        if self.debug:
            sys.stderr.write(traceback_of(failure))


@dataclass
class Guard:
    """Ends every rank when one fails inside alone; lets through what all ranks raise alike.

    speaks: tell the failure and exit here also when this is the only rank.
    """

    world: World
    ending: Ending
    speaks: bool = False

    def __enter__(self) -> Guard:
        self.ending.world = self.world
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None:
            return
        alone = self.world.size == 1
        if is_met_by_all(failure) or (alone and not self.speaks):
            self.ending.failed = self.ending._status(failure), describe(failure)
            self.ending.clean()
            return
        where = "" if alone else str(self.world.here)
        status = self.ending.fail_alone(failure, where, self.world.rank)
        if alone:
            raise SystemExit(status)
        self.world.control.abort(status)  # MPI does not return from it; simulated ranks do


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one is gone.

    A launcher that is killed outright (Open MPI's) leaves its ranks running.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def on_termination(action: Callable[[], None]) -> None:
    """Call `action` and end when a launcher or a person ends this process.

    A Python signal handler waits for the interpreter, which may sit in an MPI call for ever; a
    thread that reads the signal's number from the wake-up pipe does not. That pipe tells of every signal
    with a Python handler: one that a job handles, such as SIGUSR1, is the job's own. Those of TERMINATING end
    the run whatever handler a job sets for them, but one that was ignored before (nohup) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    ending = [number for number in TERMINATING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in ending:
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while (number := os.read(reader, 1)[0]) not in ending:
            pass
        try:
            action()
        finally:  # the launcher that would read its words may be gone
            os._exit(128 + number)

    threading.Thread(target=wait, name="termination", daemon=True).start()
