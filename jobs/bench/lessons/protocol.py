"""The input of a lesson (Context) and its result (Lesson).

A lesson is a package of this folder, whose `lesson.measure(context)` measures and returns a Lesson.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshrun import World
from meshrun.jobs.measure.exit_codes import NeedsGpu
from meshrun.runner.errors import UserError
from meshrun.runner.report.units import size_name

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

TableCell = str | float | int | None  # None: not measured, printed as "-"


@dataclass(frozen=True)
class Context:
    """The input of a lesson.

    box: this process's GPUs, None on a CPU. gpu: index of the rank's own GPU in it. samples: measurements of
    each figure, whose median is reported. check: whether to check results. minbytes, maxbytes: first and last
    size. options: those of this lesson only, by name. progress: called with the name of the next step.
    """

    world: World
    box: Box | None
    gpu: int = 0
    samples: int = 5
    check: bool = True
    minbytes: int = 1 << 10
    maxbytes: int = 1 << 30
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda step: None

    @property
    def required_box(self) -> Box:
        """Return `box`, for code that runs on GPUs only. Raises NeedsGpu."""
        if self.box is None:
            raise NeedsGpu("this needs a GPU", hint="meshrun doctor lists the GPUs", everywhere=True)
        return self.box

    @property
    def device_name(self) -> str:
        """The device, for titles."""
        device = self.world.here.device
        return device.name if self.box is None else f"GPU {self.gpu}, {self.box.gpus[self.gpu].name}"

    @property
    def device(self) -> dict[str, Any]:
        """The device, for the JSON record."""
        if self.box is None:
            return {"kind": "cpu", "name": self.world.here.device.name}
        gpu = self.box.gpus[self.gpu]
        return {"kind": "cuda", "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "cache": gpu.cache}

    def sizes(self, factor: int = 4) -> list[int]:
        """Return minbytes, times `factor`, ... up to maxbytes."""
        sizes = [self.minbytes]
        while sizes[-1] * factor <= self.maxbytes:
            sizes.append(sizes[-1] * factor)
        return sizes

    def median(self, seconds: Callable[[], float]) -> float:
        """Return the median of `samples` calls, after one warm-up call."""
        seconds()
        return statistics.median(seconds() for _ in range(self.samples))

    def require_host_memory(self, nbytes: int) -> None:
        """Raise UserError if the host has less free memory: the kernel would kill a process."""
        free = self.world.backend.free_memory()
        if nbytes > free:
            raise UserError(
                "not enough memory",
                got=f"-e {size_name(self.maxbytes)}, which needs {size_name(nbytes)}",
                expected=f"at most {size_name(free)}, which is free",
                hint="a smaller -e",
            )


@dataclass(frozen=True)
class LessonTable:
    """titles: of the columns, with units, such as "copy (GB/s)". rows: a cell for each title; floats are
    printed with 4 digits. title: printed above, if there are several tables."""

    titles: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class ChartLine:
    """points: (x, y) in the order of x; y is None where nothing was measured."""

    label: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True)
class Chart:
    """Lines over x. bytes: x are sizes in bytes. y starts at 0 unless log_y.

    names: of x = 0, 1, ... if x is a category; drawn as groups of bars.
    """

    x: str
    y: str
    lines: tuple[ChartLine, ...]
    bytes: bool = False
    log_x: bool = True
    log_y: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """spans: (row, label, begin, end), in seconds from a common zero."""

    spans: tuple[tuple[str, str, float, float], ...]
    title: str = ""


@dataclass(frozen=True)
class Lesson:
    """name: of the command. title: the measurement and the device. explanation: sentences about the figures
    of this run. mismatches: a sentence for each wrong result; if there is any, the command fails after
    printing. facts: all that was measured, as plain values for JSON, in seconds and bytes.
    """

    name: str
    title: str
    tables: tuple[LessonTable, ...]
    explanation: tuple[str, ...]
    charts: tuple[Chart | Timeline, ...] = ()
    mismatches: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def size_table(sizes: Sequence[int], lines: Sequence[ChartLine], title: str = "") -> LessonTable:
    """Make a table of rates in GB/s: a row per size, a column per line; lines have a point for each size."""
    return LessonTable(
        ("size", *(f"{line.label} (GB/s)" for line in lines)),
        tuple((size_name(n), *(line.points[at][1] for line in lines)) for at, n in enumerate(sizes)),
        title,
    )


def rate(nbytes: float, seconds: float) -> float | None:
    """Return GB/s; None if no time was measured."""
    return nbytes / seconds / 1e9 if seconds > 0 else None


def crossings(lines: Sequence[ChartLine]) -> list[tuple[float, str]]:
    """Find the highest line by x: (x from which it is highest, label), in the order of x.

    Only x where every line has a value count, and a lead of less than 2 % is ignored.
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
