"""The numbers of the steps that kernels read: rows of slots, made on the host some steps ahead.

A kernel has the address of its rows when it is bound or recorded. They lie in a window that stays where it
is: before kernels are launched, and before a recorded graph is, the rows of their steps are copied into it,
on the device and in the order of its stream. The host waits for nothing.
"""

from __future__ import annotations

from types import ModuleType

from meshrun.runner.compiler.trace.timed import StepTape
from meshrun.runner.region import Array

AHEAD = 256  # steps whose rows are made and uploaded at once


class StepScalars:
    """Rows of the steps of a task. xp: numpy or cupy. most: steps whose rows are in the window at once."""

    def __init__(self, tape: StepTape, xp: ModuleType, most: int) -> None:
        self._tape, self._xp = tape, xp
        self._window: Array = xp.zeros((most, max(len(tape.slots), 1)), "uint64")
        self._rows_at: dict[tuple[int, int], Array] = {}
        self._made: Array = self._window[:0]
        self._first = 0  # step of the first row that is made

    def provide(self, step: int, count: int, until: int) -> None:
        """Have the window hold the rows of `count` steps from `step` on. until: the step after the last."""
        last = step + count
        if not self._first <= step <= last <= self._first + len(self._made):
            ahead = max(min(AHEAD, until - step), count)
            self._made, self._first = self._xp.asarray(self._tape.rows(step, ahead)), step
        begin = step - self._first
        self._window[:count] = self._made[begin : begin + count]

    def rows(self, first: int, count: int) -> Array:
        """Return rows of the window; the same array for the same rows, which tells bound kernels apart."""
        if (first, count) not in self._rows_at:
            self._rows_at[first, count] = self._window[first : first + count]
        return self._rows_at[first, count]
