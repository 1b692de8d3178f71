"""Say on standard error which rung is measured, so that a run of minutes is not silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from meshrun.jobs.measure.status_line import StatusLine
from meshrun.jobs.validate.plan import RungName
from meshrun.runner.errors import tell

REFRESH = 1.0  # seconds between two updates of a terminal's line
FIRST_LINE, LONGEST_PAUSE = 5.0, 60.0  # seconds before the first line of a log, and between two at most


class Progress:
    """A line about the rung that is measured: one that changes on a terminal, several in a log.

    A log gets its first line after `FIRST_LINE` seconds, and the pause doubles with each line: short runs
    print nothing, long ones little. The lines come from a thread, because a single measurement may take long.

    Parameters
    ----------
    columns : int, optional
        Width of the terminal; None for a log.
    rungs : sequence of str
        What the run measures, in order.
    silent : bool
        Print nothing, as for a monitoring plugin.

    Examples
    --------
    >>> with Progress(None, ("gpu", "pairs"), silent=True) as progress:
    ...     progress.show("gpu")
    """

    def __init__(self, columns: int | None, rungs: Sequence[RungName], silent: bool = False) -> None:
        self._rungs, self._rung = rungs, rungs[0]
        self._line, self._is_log, self._silent = StatusLine(columns), columns is None, silent
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def show(self, rung: RungName) -> None:
        """Begin a rung."""
        self._rung = rung
        if not self._silent:
            self._line.show(self.text())

    def text(self) -> str:
        done = 100 * self._rungs.index(self._rung) // len(self._rungs)
        return f"validate: {done} %; measuring {self._rung}, {time.monotonic() - self._begin:.0f} s so far"

    def __enter__(self) -> Progress:
        if not self._silent:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._silent:
            self._line.clear()

    def _repeat(self) -> None:
        pause = FIRST_LINE if self._is_log else REFRESH
        while not self._ended.wait(pause):
            if not self._is_log:
                self._line.show(self.text())
                continue
            tell(self.text())
            pause = min(2 * pause, LONGEST_PAUSE)
