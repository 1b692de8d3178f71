"""Progress of a streamed run: bytes done, bytes per second, time left.

One line that is redrawn on a terminal; elsewhere a line every few seconds, as in `progress`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from types import TracebackType
from typing import Any

from meshrun.runner.report.progress import QUIET
from meshrun.runner.report.spans import NEWEST, Span
from meshrun.runner.report.units import bytes_text, left_text

BETWEEN = 0.2  # seconds between redraws on a terminal
RECENT = 30.0  # seconds over which a rate is averaged, fewer if these have more than NEWEST spans
BAR = 10, 40  # columns, at least and at most
GAP = 2  # columns between texts

# The rates that are shown, and their stages.
SHOWN = {
    "read": ("read",),
    "moved": ("to device", "from device"),
    "computed": ("kernel",),
    "written": ("write",),
}
SHOWN_AS = {stage: name for name, stages in SHOWN.items() for stage in stages}

Rates = Callable[[], dict[str, float]]  # called only when they are shown
# Called with bytes done, bytes in all, and a function that returns rank 0's rates.
OnStreamProgress = Callable[[int, int, Rates], None]


def no_stream_progress(done: int, total: int, rates: Rates) -> None:
    """Ignore progress."""


def recent_rates(spans: Iterable[Span], now: float) -> dict[str, float]:
    """This rank's bytes per second over the last RECENT seconds, by the names of SHOWN.

    spans: newest first by their ends (`reversed(Spans.found)`). A span that began before those seconds counts
    in part. now: `time.perf_counter()`. A running stage does not count, so that with few long chunks a rate
    is too low rather than too high.
    """
    since = now - RECENT
    newest = list(takewhile(lambda span: span.end >= since, islice(spans, NEWEST)))
    if len(newest) == NEWEST:
        since = max(since, newest[-1].end)  # `newest` has all later spans
    moved, first = dict.fromkeys(SHOWN, 0.0), now
    for span in newest:
        if span.end < since:
            break
        first = min(first, span.begin)
        inside = (span.end - max(span.begin, since)) / span.seconds if span.seconds else 1.0
        moved[SHOWN_AS[span.stage]] += span.moved * inside
    seconds = now - max(first, since)  # less than RECENT at the start of a run
    return {name: count / seconds for name, count in moved.items() if count} if seconds > 0 else {}


class StreamProgress:
    """Rank 0's view of a streamed run.

    The rates passed in are rank 0's. With several ranks they are shown multiplied by the number of ranks,
    with a "~": the run's rate if all ranks are as fast. The time left is the remaining bytes over the rate
    since the first chunk ended, so that neither filling the pipeline nor chunks finished by an earlier run
    distort it.

    columns: the terminal's width; None for plain lines, 0 for nothing at all. clock: seconds.
    """

    def __init__(
        self, title: str, columns: int | None, *, ranks: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._columns, self._ranks, self._clock = title, columns, ranks, clock
        self._shown = clock() if columns is None else -float("inf")
        self._first: int | None = None  # bytes done at the first update: those of an earlier run
        self._origin: tuple[float, int] | None = None  # when the first chunk ended, bytes done by then
        self._live = _live(columns) if columns else None

    def __enter__(self) -> StreamProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop drawing and clear the line."""
        if self._live is not None:
            self._live.stop()

    def update(self, done: int, total: int, rates: Rates) -> None:
        """Show the state, at limited frequency.

        done, total: bytes of the run's input, of all ranks, as far as rank 0 knows; the first call, before
        the first chunk, passes the bytes done by an earlier run. rates: returns rank 0's bytes per second by
        name; called only when they are shown, because it takes time.
        """
        now = self._clock()
        self._note(done, now)
        wait = QUIET if self._columns is None else BETWEEN
        last = done == total and self._columns is not None
        if self._columns == 0 or (now - self._shown < wait and not last):
            return
        self._shown = now
        left = self.left(done, total, now)
        if self._columns is None:
            words = "; ".join(self.texts(done, total, rates(), left))
            sys.stderr.write(f"meshrun: {self._title}: {words}\n")
            sys.stderr.flush()
        elif self._live is not None:
            self._live.start()  # only now, because a run that does not stream has another bar
            self._live.update(self.line(done, total, rates(), left), refresh=True)

    def _note(self, done: int, now: float) -> None:
        if self._first is None:
            self._first = done
        elif self._origin is None and done > self._first:
            self._origin = now, done

    def left(self, done: int, total: int, now: float) -> float | None:
        """Seconds, or None while fewer than two chunks have ended."""
        if self._origin is None or done <= self._origin[1]:
            return None
        began, before = self._origin
        return (total - done) * (now - began) / (done - before)

    def texts(self, done: int, total: int, rates: dict[str, float], left: float | None) -> list[str]:
        """Share done, time left, rates, bytes; if there is too little space, the last are dropped."""
        texts = [f"{100 * done // total if total else 100} %"]
        if left is not None:
            texts.append(f"{left_text(left)} left")
        if rates:
            texts.append(_rates_text(rates, self._ranks))
        return [*texts, f"{bytes_text(done)} of {bytes_text(total)}"]

    def line(self, done: int, total: int, rates: dict[str, float], left: float | None) -> Any:
        """The same as one line of the terminal, with a bar if there is space; the bytes are dropped for
        it."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        texts = [self._title, *self.texts(done, total, rates, left)]
        if self._room(texts) < BAR[0]:
            texts.pop()
        while self._room(texts) < -GAP and len(texts) > 2:
            texts.pop()
        cells: list[Any] = [Text(self._title), Text((" " * GAP).join(texts[1:]))]
        room = self._room(texts)
        if room >= BAR[0]:
            cells.insert(1, ProgressBar(max(total, 1), done, width=min(room, BAR[1])))
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for _ in cells:
            grid.add_column(no_wrap=True)
        grid.add_row(*cells)
        return grid

    def _room(self, texts: list[str]) -> int:
        """Columns left for a bar."""
        return (self._columns or 0) - sum(len(text) + GAP for text in texts)


def _rates_text(rates: dict[str, float], ranks: int) -> str:
    """For example "read ~12, written ~8.3 GB/s": one unit for all, two digits."""
    unit, size = ("GB/s", 1e9) if max(rates.values()) * ranks >= 1e9 else ("MB/s", 1e6)
    sign = "~" if ranks > 1 else ""
    figures = ((name, rate * ranks / size) for name, rate in rates.items())
    words = (f"{name} {sign}{value:.{0 if value >= 9.95 else 1}f}" for name, value in figures)
    return f"{', '.join(words)} {unit}"


def _live(columns: int) -> Any:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, width=columns, force_terminal=True)
    return Live(console=console, transient=True, auto_refresh=False)
