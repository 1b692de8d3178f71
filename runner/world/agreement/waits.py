"""How long a rank waits for values that its program asks for, and in which lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from meshrun.runner.world.agreement.caller import callers_line


@dataclass
class LineWaits:
    """The waits of a line.

    file: of the program; None: that of the function that runs. times: number of waits. seconds: of all.
    """

    file: str | None
    line: int
    times: int = 0
    seconds: float = 0.0


@dataclass
class Waits:
    """The waits of this rank, from when this object is made.

    A block `with waits:` is one wait: for other ranks' parts of a value, or for a device that computes one.
    Such blocks do not nest. times, seconds: of all waits. lines: by file and line. start: on the
    `perf_counter` clock.
    """

    times: int = 0
    seconds: float = 0.0
    lines: dict[tuple[str | None, int], LineWaits] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)
    _begun: float = 0.0
    _noted: tuple[int, float] = 0, 0.0  # waits, and their seconds, at the last note
    _open: list[int] = field(default_factory=list)  # lines of loops that run, the inner one last

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.times += 1
        self.seconds += time.perf_counter() - self._begun

    @contextmanager
    def of_line(self, line: int) -> Iterator[None]:
        """Count waits as those of a loop or condition in a line; those of inner ones are theirs."""
        self._note_open()
        self._open.append(line)
        try:
            yield
        finally:
            self._note_open()
            self._open.pop()

    def note_caller(self) -> None:
        """Count the waits since the last note as those of the line of the program that called meshrun."""
        if self._noted[0] < self.times:
            code, line = callers_line()
            if code is not None:
                self._note(code.co_filename, line)

    def _note_open(self) -> None:
        """Count the waits since the last note as those of the innermost line that runs, if there is one."""
        if self._open:
            self._note(None, self._open[-1])
        self._noted = self.times, self.seconds

    def _note(self, file: str | None, line: int) -> None:
        times, seconds = self._noted
        if self.times > times:
            of_line = self.lines.setdefault((file, line), LineWaits(file, line))
            of_line.times += self.times - times
            of_line.seconds += self.seconds - seconds
        self._noted = self.times, self.seconds

    @property
    def longest(self) -> list[LineWaits]:
        """The lines, the one that waited longest first."""
        return sorted(self.lines.values(), key=lambda one: -one.seconds)
