"""What a lesson gets to measure with, and what it makes: tables, a chart, and a paragraph about its figures.

A lesson's module has

    SUMMARY             a line of help
    RANKS               how many ranks it takes: "one", or "several" (two and more)
    CPU                 whether it has a meaning without a GPU
    measure(stage)      the Lesson
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jobs.measure.exit_codes import NeedsGpu
from runner import Box, World

Cell = str | float | int | None  # None: not measured, shown as "-"
Ranks = Literal["one", "several"]


@dataclass(frozen=True)
class Stage:
    """What a lesson measures with.

    box: this process's GPUs; None on a CPU. gpu: the index of the rank's own GPU in it. samples: how often
    each figure is measured; the median counts. check: whether data is looked at. minbytes, maxbytes: of the
    sizes to go through. options: of the one command, by name. progress: says what is measured now.
    """

    world: World
    box: Box | None
    gpu: int = 0
    samples: int = 5
    check: bool = True
    minbytes: int = 1 << 10
    maxbytes: int = 1 << 30
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda doing: None

    @property
    def gpus(self) -> Box:
        """The box, for lessons that need one. Raises NeedsGpu."""
        if self.box is None:
            raise NeedsGpu("this needs a GPU", hint="meshrun doctor says which there are", everywhere=True)
        return self.box

    def sizes(self, factor: int = 4) -> list[int]:
        """minbytes, times `factor`, ... up to maxbytes."""
        found = [self.minbytes]
        while found[-1] * factor <= self.maxbytes:
            found.append(found[-1] * factor)
        return found

    def median(self, seconds: Callable[[], float]) -> float:
        """The median of as many calls as `samples`, after one that does not count."""
        seconds()
        return statistics.median(seconds() for _ in range(self.samples))


@dataclass(frozen=True)
class Table:
    """titles: of the columns, with units, such as "copy (GB/s)". rows: a cell for each title; floats are
    shown with 4 digits. title: above it, where there are several."""

    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Line:
    """points: (x, y), by x; y None where nothing was measured."""

    label: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True)
class Chart:
    """Lines over x, logarithmic unless said, sizes in bytes where `bytes`; y from 0 or logarithmic.

    names: of x = 0, 1, ... where it counts things, which are drawn as bars.
    """

    x: str
    y: str
    lines: tuple[Line, ...]
    bytes: bool = False
    log_x: bool = True
    log_y: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bars:
    """What ran when: (lane, label, begin, end), seconds from a common zero."""

    spans: tuple[tuple[str, str, float, float], ...]
    title: str = ""


@dataclass(frozen=True)
class Lesson:
    """name: of the command. title: what was measured, on what. said: paragraphs about these figures.

    wrong: what a check of data found, a sentence each; a lesson that has any fails, after it is shown.
    facts: everything measured, plain values for JSON, seconds and bytes.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    said: tuple[str, ...]
    charts: tuple[Chart | Bars, ...] = ()
    wrong: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def rate(nbytes: float, seconds: float) -> float | None:
    """GB/s; None where the clock saw no time pass."""
    return nbytes / seconds / 1e9 if seconds > 0 else None


def crossings(lines: Sequence[Line]) -> list[tuple[float, str]]:
    """Which line is the highest from which x on: (x, label), by x; the first holds from the smallest x.

    Only x where every line has a value count, and a lead of less than 2 % changes nothing.
    """
    if not lines:
        return []
    places = sorted(set.intersection(*({x for x, y in line.points if y is not None} for line in lines)))
    height = {(line.label, x): y for line in lines for x, y in line.points if y is not None}
    found: list[tuple[float, str]] = []
    for x in places:
        best = max((line.label for line in lines), key=lambda label: height[label, x])
        if not found or (best != found[-1][1] and height[best, x] > 1.02 * height[found[-1][1], x]):
            found.append((x, best))
    return found
