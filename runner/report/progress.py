"""Progress of a run in one piece: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from meshrun.runner.report.units import cells_text, figure, seconds_text

QUIET = 5.0  # seconds between lines without a terminal
BETWEEN = 0.1  # seconds between two iterations that a bar shows


class ProgressBar:
    """Shows the share of rank 0's rows that is done, then of its verification.

    columns: the terminal's width; None for plain lines, 0 for nothing at all.
    """

    def __init__(self, title: str, columns: int | None) -> None:
        self._title, self._columns = title, columns
        self._last = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._loop = (0, 0, 0.0)
        self._bar = None
        if columns:
            self._bar = _bar(columns)
            self._task = self._bar.add_task(title, total=None)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self._show(self._title, done, total, "rank 0's rows")

    def steps(self, done: int, total: int, cells: int) -> None:
        """Show the steps taken, their rate and the time left. cells: computed in one step, by all ranks."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        seconds, taken = now - self._first[0], done - self._first[1]
        text = f"the steps: {done:,} of {total:,}"
        pace = ""
        if taken and seconds:
            left = seconds_text(seconds / taken * (total - done))
            pace = f", {cells_text(taken * cells / seconds)}, {left} left"
        title = self._title if self._bar is None else f"{self._title}: step {done:,} of {total:,}{pace}"
        self._show(title, done, total, text + pace)

    def iterations(self, line: int, count: int, compared: Callable[[], str]) -> None:
        """Show an iteration of a loop, what its condition compares, and the rate of iterations.

        line: in the user's file; 0: not shown. count: of iterations so far. compared: makes the text, which
        may be empty.
        """
        if self._columns == 0:
            return
        now = time.monotonic()
        if self._loop[0] != line or self._loop[1] > count:  # it begins
            self._loop = line, count, now
        if now - self._last < (QUIET if self._bar is None else BETWEEN):
            return
        self._last = now
        _, first, begun = self._loop
        rate = f", {figure((count - first) / (now - begun))} iterations/s" if count > first else ""
        where = f"loop in line {line}, " if line else ""
        values = compared()
        text = f"{self._title}: {where}iteration {count:,}{': ' if values else ''}{values}{rate}"
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, description=text, total=None)
        else:
            sys.stderr.write(f"meshrun: {text}\n")
            sys.stderr.flush()

    def proof(self, done: int, total: int) -> None:
        """Show the verification: the same bar under another title."""
        self._show(f"{self._title}: verify", done, total, "rank 0's part")

    def _show(self, title: str, done: int, total: int, what: str) -> None:
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, description=title, completed=done, total=total)
        elif self._columns is None and time.monotonic() - self._last > QUIET:
            self._last = time.monotonic()
            sys.stderr.write(f"meshrun: {title}: {100 * done // max(total, 1)} % of {what}\n")
            sys.stderr.flush()


def _bar(columns: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, width=columns, force_terminal=True)
    parts = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    return Progress(*parts, console=console, transient=True)
