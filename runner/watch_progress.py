"""Where a rank is in its measurements, noted at the cost of one store, and for how long it has been there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.watch_report import BEFORE, DONE, INSIDE

GAP = 1.0  # seconds, the most that counts between two looks


class Progress:
    """Where this rank is in its measurements; by itself, without anyone watching.

    Each call is one store, so that it may stand between timed iterations. From a call other than
    `pause` on, the rank is expected to make the next one in time. abort: gives up what is under way
    on this rank's device; may hang. Set by whoever has put something under way. grace: seconds more than
    usual that the rank may stay where it is.
    """

    def __init__(self) -> None:
        self.abort: Callable[[], None] = lambda: None
        self.grace = 0.0
        self._state: tuple[int, int, int, str, str] | None = None
        self._sequence = 0
        self._label = ""

    def begin(self, label: str, doing: str = "") -> None:
        """The next measurement, such as "all_reduce float sum, 1048576 B, out-of-place".

        Every rank begins the same ones in the same order. doing: for people, such as "initialising data".
        """
        self._sequence += 1
        self._label = label
        self._state = (self._sequence, BEFORE, 0, label, doing)

    def before(self, doing: str) -> None:
        """No iteration entered yet; `doing` such as "at the barrier"."""
        self._state = (self._sequence, BEFORE, 0, self._label, doing)

    def enter(self, iteration: int) -> None:
        """Iteration `iteration`, counted from 1, is entered, and all before it are finished."""
        self._state = (self._sequence, INSIDE, iteration, self._label, "")

    def done(self, doing: str = "") -> None:
        """Every iteration is finished."""
        self._state = (self._sequence, DONE, 0, self._label, doing)

    def pause(self) -> None:
        """Nothing is measured, until the next call."""
        self._state = None

    def stop(self) -> None:
        """Nothing will be measured any more."""
        self._state = None


@dataclass
class Patience:
    """How long one state has lasted. seconds: how long it may."""

    seconds: float
    lasted: float = 0.0
    _state: object = None
    _looked: float = 0.0

    def over(self, state: object, now: float, grace: float = 0.0) -> bool:
        """Whether `state`, the same object at every look, has lasted too long; None never does.

        Of a long time between two looks only GAP counts: this process did not run, stopped from a terminal,
        say, and so the ranks have not had the time.
        """
        same = state is self._state and state is not None
        self.lasted = self.lasted + min(now - self._looked, GAP) if same else 0.0
        self._state, self._looked = state, now
        return same and self.lasted >= self.seconds + grace
