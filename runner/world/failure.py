"""Handle the failure of a run: report the error once, roll the output back, end every rank.

An error that every rank raises ends the ranks normally, and rank 0 reports it. A rank with an error of its
own cannot wait for the others, which may be waiting for it: the first rank to fail claims the failure,
reports it and aborts the run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.small.collectives import failure_of_collectives
from meshrun.runner.errors import (
    BadResult,
    MeshrunError,
    RunError,
    UserError,
    describe,
    is_met_by_all,
    tell,
    traceback_of,
)
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.system.launcher import detect_launcher
from meshrun.runner.world.run_status import RunLines, RunStatus

# Errors of the software and of what it is installed on, rather than of GPUs or the network.
SOFTWARE = (
    OSError,
    ImportError,
    MemoryError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    AssertionError,
)
GRACE = 1.0  # seconds that a later failure waits until the first one has been reported


@dataclass(frozen=True)
class OwnRank:
    """What the end of a run needs of the world: this rank's control communicator, name, run and recorder."""

    control: Control
    name: str
    run_id: str
    recorder: Recorder | None


@dataclass
class FailureHandler:
    """Reports this process's failure and cleans up after it.

    status: read by the process that started the ranks; None if no process does. debug: print tracebacks.
    usage_exit_status: for a UserError. failure_exit_status: for any other error without an exit status of
    its own, of which the run may be a test of the machine: not for errors of software, such as a full disk.
    interrupt_message: printed when the run is interrupted. rank: set once the world is open. transaction: the
    run's output, rolled back on failure. before_exit: called once before this process ends in failure, to
    save partial results; it may raise OSError. failed: exit status and message of this rank's failure, set
    before `before_exit` is called; None while there is none.
    """

    status: RunStatus | None = None
    debug: bool = False
    usage_exit_status: int = UserError.exit_code
    failure_exit_status: int = RunError.exit_code
    interrupt_message: str = "interrupted; nothing was written"
    rank: OwnRank | None = None
    before_exit: Callable[[], None] | None = None
    transaction: OutputTransaction = field(init=False)
    failed: tuple[int, str] | None = field(default=None, init=False)
    _claimed: RunStatus | None = field(default=None, init=False)  # where this rank has claimed the failure

    def __post_init__(self) -> None:
        self.transaction = OutputTransaction(self.status)

    def report_to(self, status: RunStatus | None) -> None:
        """Let the process that started the ranks know a failure, and what the output leaves behind."""
        self.status = self.transaction.observer = status

    def exit_status(self, failure: BaseException) -> int:
        """The exit status of a process that ends with `failure`."""
        if isinstance(failure, UserError):
            return self.usage_exit_status
        if isinstance(failure, SOFTWARE) and self.failure_exit_status != RunError.exit_code:
            return self.usage_exit_status
        own = failure.exit_code if isinstance(failure, MeshrunError) else RunError.exit_code
        is_default = own == RunError.exit_code and not isinstance(failure, BadResult)
        return self.failure_exit_status if is_default else own

    def clean_up(self) -> None:
        """Call `before_exit`, the first time, and roll the output back."""
        before_exit, self.before_exit = self.before_exit, None
        if before_exit is not None:
            with contextlib.suppress(OSError):
                before_exit()
        self.transaction.roll_back()
        if self.rank is not None and self.rank.recorder is not None:
            self.rank.recorder.close()

    def set_failed(self, failure: BaseException) -> None:
        """Clean up after `failure` without reporting it: the caller does."""
        self.failed = self.exit_status(failure), describe(failure)
        self.clean_up()

    def report_common(self, failure: BaseException, rank: int) -> int:
        """Report, on rank 0, a failure that every rank has raised; returns the exit status."""
        if rank == 0:
            self.set_failed(failure)
            if self.status is not None:
                self.status.claim_failure(self._claim(failure, describe(failure), rank))
                self.status.remove_claim()
            self._print(failure, describe(failure))
        return self.exit_status(failure)

    def report_single(self, failure: BaseException, where: str, rank: int) -> int:
        """Report a failure of this rank only, unless another rank's came first; returns the status to abort
        with.

        where: names the rank in the message; "" for no name.
        """
        status = self.exit_status(failure)
        sentence = f"[{where}] {describe(failure)}" if where else describe(failure)
        self.failed = status, sentence
        place = self._claims()
        is_first = place is None or place.claim_failure(self._claim(failure, sentence, rank))
        if is_first:
            self._claimed = place
            self._print(failure, sentence)
        # Only after the claim: a rank that is writing to the removed file would otherwise fail first.
        self.clean_up()
        if not is_first:
            time.sleep(GRACE)
        self._remove_claim()
        return status

    def abort(self, failure: MeshrunError) -> None:
        """Report `failure` and end every rank of the run now; from any thread. Does not return."""
        assert self.rank is not None
        status = self.report_single(failure, "", self.rank.control.rank)
        self.rank.control.abort(status)
        os._exit(status)

    def terminate(self) -> None:
        """Clean up before a signal ends this process, usually with all others; for `on_termination`."""
        with contextlib.suppress(OSError):  # a full disk must not prevent the clean-up
            place = self._claims()
            if place is not None and place.suppress_failures():
                atexit.register(place.remove_claim)  # the main thread may end this process meanwhile
                self._claimed = place
        self.clean_up()
        launched = detect_launcher()
        rank = self.rank.control.rank if self.rank else launched.rank if launched else 0
        if self.status is None and rank == 0:  # otherwise the process that started the ranks reports it
            hint = self.transaction.recovery_hint
            tell(f"interrupted; {hint}" if hint else self.interrupt_message)
        self._remove_claim()

    def _claims(self) -> RunStatus | None:
        """Where ranks claim the failure that only one of them reports; None for a single rank."""
        if self.status is None and self.rank is not None and self.rank.control.size > 1:
            return RunLines(self.rank.run_id, has_reader=False)
        return self.status

    def _remove_claim(self) -> None:
        if isinstance(self._claimed, RunLines):
            time.sleep(GRACE / 4)  # ranks that fail now still need to find the claim
            self._claimed.remove_claim()

    def _claim(self, failure: BaseException, sentence: str, rank: int) -> dict[str, Any]:
        return {"exit_code": self.exit_status(failure), "sentence": sentence, "rank": rank}

    def _print(self, failure: BaseException, sentence: str) -> None:
        tell(sentence)
        if self.transaction.recovery_hint:
            tell(self.transaction.recovery_hint)
        if self.debug:
            with contextlib.suppress(OSError):
                sys.stderr.write(traceback_of(failure))


@dataclass
class Guard:
    """Ends every rank if only this one raises an error; lets errors common to all ranks through.

    reports_single_rank: in a run of one rank, report the failure and exit too, instead of raising it.
    """

    rank: OwnRank
    handler: FailureHandler
    reports_single_rank: bool = False

    def __enter__(self) -> Guard:
        self.handler.rank = self.rank
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None:
            return
        failure = failure_of_collectives() or failure  # whose kernel has ended the CUDA context
        single_rank = self.rank.control.size == 1
        if is_met_by_all(failure) or (single_rank and not self.reports_single_rank):
            self.handler.set_failed(failure)
            return
        where = "" if single_rank else self.rank.name
        status = self.handler.report_single(failure, where, self.rank.control.rank)
        if single_rank:
            raise SystemExit(status)
        self.rank.control.abort(status)  # MPI does not return from it; thread ranks do
