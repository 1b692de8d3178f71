"""The clocks of a run: all ranks must start within a time, and none may be stopped or gone for long.

A launcher waits for ever for a rank that has left with status 0 before MPI_Init, or that is stopped. Ranks
report to the process that started them (`runner.world.run_status`): as soon as they run, when they are
connected, and when the run is complete. Once connected, they watch each other's progress themselves
(`runner.world.stuck`, `runner.world.watchdog`); this is for those that do not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshrun.runner.world.run_status import RunDirectory
    from meshrun.runner.world.watchdog.progress import StallTimer

EARLY = "ended before all ranks were connected"
LEFT_TIMEOUT = 5.0  # seconds after such an end in which the launcher, or the rank itself, may report why
STOPPED = "is stopped (kill -CONT continues it)"
HALT_TIMEOUT = 600.0  # seconds for which a rank may be stopped or gone; twice what ranks allow each other
LEAST_HALT = 20.0  # of them: ending takes seconds on a busy machine
MAX_NAMES = 4  # ranks that are named; of more, the number is


def halt_timeout(stall_timeout: float | None) -> float:
    """Return the seconds for which a rank may be stopped or gone. stall_timeout: as in `Started`."""
    if stall_timeout is None:
        return HALT_TIMEOUT
    return max(2 * stall_timeout, LEAST_HALT) if stall_timeout else 0.0


@dataclass
class Clocks:
    """Watches the `ranks` ranks of `run`. start, halt: time-outs in seconds; 0 switches one off.

    The others can never start without a rank that has ended, so that ends the run after LEFT_TIMEOUT, if that
    is before `start`.

    Time in which this process did not run, for example because it was stopped from a terminal, does not
    count.
    """

    run: RunDirectory
    ranks: int
    start: float
    halt: float = HALT_TIMEOUT
    _timer: StallTimer = field(init=False)
    _left: StallTimer = field(init=False)
    _known: dict[int, dict[str, object]] = field(default_factory=dict, init=False)  # once all are connected
    _position: object = field(default=None, init=False)

    def __post_init__(self) -> None:
        from meshrun.runner.world.watchdog.progress import StallTimer

        self._timer, self._left = StallTimer(self.start), StallTimer(LEFT_TIMEOUT)

    def failure(self) -> tuple[int, str] | None:
        """A rank and the sentence that ends the run; None while no time-out has passed."""
        now = time.monotonic()
        if not self._known:
            known = self.run.ranks("pid")
            if len(known) < self.ranks:
                left = self.run if self._has_left(known) else None
                timed_out, has_left = self._timer.is_over(self.run, now), self._left.is_over(left, now)
                is_over = (timed_out or has_left) and self.start > 0
                return self._not_started(timed_out) if is_over else None
            self._known, self._timer = known, replace(self._timer, timeout=self.halt)
        if (position := self._where()) != self._position:  # the timer compares by identity
            self._position = position
        is_over = self._timer.is_over(self._position, now) and self.halt > 0
        return self._halted() if is_over else None

    def _where(self) -> object:
        """Where the run is, if ranks are to end now or are halted; None if not."""
        if self.run.record() is not None:
            return "complete"
        states = {rank: _state(one) for rank, one in self._known.items()}
        return {rank: state for rank, state in states.items() if state != "running"} or None

    def _has_left(self, connected: Collection[int]) -> bool:
        """Whether a rank has ended before it was connected."""
        begun = self.run.ranks("begun")
        return any(_state(one) == "ended" for rank, one in begun.items() if rank not in connected)

    def _not_started(self, timed_out: bool) -> tuple[int, str]:
        begun, connected = self.run.ranks("begun"), self.run.ranks("pid")
        states = {rank: _state(one) for rank, one in begun.items()}
        missing = [rank for rank in range(self.ranks) if rank not in connected]
        groups = (
            ([rank for rank in missing if states.get(rank) == "ended"], EARLY),
            ([rank for rank in missing if states.get(rank) == "stopped"], STOPPED),
            ([rank for rank in missing if rank not in begun], "has not begun"),
            (missing, "is not connected to the others"),
        )  # fmt: skip
        why, hint = "the other ranks cannot start", "--debug shows the launcher's own messages"
        if timed_out:
            why = f"not all ranks started within {self.start:g} s"
            hint += "; --start-timeout allows more time"
        return self._sentence(groups, begun, why, hint)

    def _halted(self) -> tuple[int, str]:
        if self._position == "complete":
            groups: tuple[tuple[list[int], str], ...] = ((sorted(self._known), "has not left"),)
            why = f"the run was complete {self.halt:g} s ago"
        else:
            states = {rank: _state(one) for rank, one in self._known.items()}
            groups = (
                ([rank for rank in states if states[rank] == "ended"], "ended without a report"),
                ([rank for rank in states if states[rank] == "stopped"], STOPPED),
            )
            why = f"for {self.halt:g} s"
        return self._sentence(groups, self._known, why, "--debug shows the launcher's own messages")

    def _sentence(
        self,
        groups: tuple[tuple[list[int], str], ...],
        known: dict[int, dict[str, object]],
        why: str,
        hint: str,
    ) -> tuple[int, str]:
        from meshrun.runner.errors import RunError

        silent, what = next(((ranks, what) for ranks, what in groups if ranks), ([0], "is silent"))
        names = [
            f"[rank {rank}, host {known[rank]['host']}]" if rank in known else f"[rank {rank}]"
            for rank in sorted(silent)[:MAX_NAMES]
        ]
        more = f" and {len(silent) - MAX_NAMES:,} more" if len(silent) > MAX_NAMES else ""
        each = " (each of these ranks)" if len(silent) > 1 else ""
        return min(silent), str(RunError(f"{', '.join(names)}{more} {what}{each}: {why}", hint=hint))


def _state(process: dict[str, object]) -> str:
    """Whether a process of this host is running, stopped or ended; those of others count as running."""
    from meshrun.runner.processes import process_stat

    if process["host"] != os.uname().nodename:
        return "running"
    found = process_stat(int(str(process["pid"])))
    if found is None or found.has_ended:
        return "ended"
    return "stopped" if found.state == "T" else "running"
