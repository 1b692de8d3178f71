"""A rank's position in its measurements, recorded with a single store, and how long it has been there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshrun.runner.world.watchdog.report import BEFORE, DONE, INSIDE

MAX_GAP = 1.0  # seconds; a longer time between two checks counts as this


class MeasurementProgress:
    """The position of this rank in its measurements. This class only records it; `Watchdog` watches it.

    Each call is a single store, so that it can be made between timed iterations. After any call but `pause`
    the next one is expected within the time-out. abort: cancels the work on this rank's device; set by the
    code that starts such work; may hang. grace: seconds added to the time-out at the current position.
    """

    def __init__(self) -> None:
        self.abort: Callable[[], None] = lambda: None
        self.grace = 0.0
        self._current: tuple[int, int, int, str, str] | None = None
        self._sequence = 0
        self._label = ""

    def begin(self, label: str, doing: str = "") -> None:
        """Begin the next measurement, such as "all_reduce float sum, 1048576 B, out-of-place".

        Every rank begins the same measurements in the same order. doing: for the report, such as
        "initialising data".
        """
        self._sequence += 1
        self._label = label
        self._current = (self._sequence, BEFORE, 0, label, doing)

    def before(self, doing: str) -> None:
        """Record that no iteration has been entered yet; `doing` such as "at the barrier"."""
        self._current = (self._sequence, BEFORE, 0, self._label, doing)

    def enter(self, iteration: int) -> None:
        """Enter iteration `iteration`, counted from 1; all earlier ones are finished."""
        self._current = (self._sequence, INSIDE, iteration, self._label, "")

    def done(self, doing: str = "") -> None:
        """Record that every iteration is finished."""
        self._current = (self._sequence, DONE, 0, self._label, doing)

    def pause(self) -> None:
        """Expect no progress until the next call."""
        self._current = None

    def stop(self) -> None:
        """Expect no more progress."""
        self._current = None


@dataclass
class StallTimer:
    """Time at the current position. timeout: allowed seconds. elapsed: seconds so far."""

    timeout: float
    elapsed: float = 0.0
    _position: object = None
    _checked: float = 0.0

    def is_over(self, position: object, now: float, grace: float = 0.0) -> bool:
        """Whether `position` has lasted too long; None never has. Positions are compared by identity.

        A gap between two checks counts as MAX_GAP at most: this process did not run, for example because
        it was stopped from a terminal, and the other ranks probably did not either.
        """
        is_same = position is self._position and position is not None
        self.elapsed = self.elapsed + min(now - self._checked, MAX_GAP) if is_same else 0.0
        self._position, self._checked = position, now
        return is_same and self.elapsed >= self.timeout + grace
