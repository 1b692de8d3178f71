"""Where chunks come from and go to, and what an engine is asked for in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from runner.chunks import Chunks
from runner.partition import Region
from runner.spans import Spans, Stage
from runner.storage import HostArray, Sink, Source
from runner.window import Window
from runner.work import Task
from runner.world import World

PIECE = 8 << 20  # bytes that one thread reads or writes, so that several share a chunk


class Step(NamedTuple):
    """Something for a thread to do: a part of one stage of a chunk. moved: bytes."""

    stage: Stage
    moved: int
    do: Callable[[], None]


@dataclass(frozen=True)
class Ends:
    """A streamed run's two files, what is done between them, and this rank's notes of when."""

    world: World
    task: Task
    chunks: Chunks
    source: Source
    sink: Sink
    spans: Spans

    def window(self, number: int) -> Window:
        task = self.task
        return Window(self.chunks[number], task.shape, task.widths, task.boundary, task.cval)

    @property
    def result_dtype(self) -> np.dtype[Any]:
        return self.task.known[1]

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the largest padded block (what is read for it is no larger) and of the largest result."""
        blocks = results = 0
        for region in self.chunks.largest:
            padded = (n + sum(width) for n, width in zip(region.shape, self.task.widths, strict=True))
            blocks = max(blocks, math.prod(padded) * self.task.dtype.itemsize)
            results = max(results, self.task.output_region(region).size * self.result_dtype.itemsize)
        return blocks, results

    def reads(self, window: Window, target: HostArray) -> list[Step]:
        """All that is read for a window, to an array of its shape `staged`, in pieces."""
        return [
            Step("read", part.nbytes, partial(self.source.read, rows, part))
            for region, place in window.reads()
            for rows, part in _pieces(
                region, target[place], self.source.chunks[0] if self.source.chunks else 1
            )
        ]

    def writes(self, region: Region, result: HostArray) -> list[Step]:
        """All that is written of `region` of the output, in pieces."""
        align = self.sink.chunks[0] if self.sink.chunks else 1
        return [
            Step("write", part.nbytes, partial(self.sink.write, rows, part))
            for rows, part in _pieces(region, result, align)
        ]


class Engine(Protocol):
    """What happens to a chunk between its file and the other one.

    The main thread calls all but `join`, which every thread calls before its first step, and `finish`.
    Slots are room for one chunk each.
    """

    def slots(self, count: int) -> list[Any]: ...

    def join(self) -> None: ...

    def begin(self, slot: Any, number: int) -> list[Step]:
        """What threads have to do before `compute`."""

    def compute(self, slot: Any, idle: Callable[[], None]) -> None:
        """Make the chunk's result, or issue all that makes it. idle: to be called during what takes long."""

    def finish(self, slot: Any) -> list[Step]:
        """In a thread, when the result is there: what threads have to do with it."""

    def release(self, slot: Any) -> None:
        """The chunk is written; the slot may have another."""


def shaped(memory: HostArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """The first of these bytes as an array; of NumPy or CuPy."""
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _pieces(region: Region, array: HostArray, align: int) -> Iterator[tuple[Region, HostArray]]:
    """A region and its array in runs of rows of about PIECE bytes, cut at multiples of `align` rows."""
    rows, start = region.shape[0], region.start[0]
    step = max(PIECE * rows // max(array.nbytes, 1) // align, 1) * align
    first = 0
    while first < rows:
        last = min(first + step - (start + first) % align, rows)
        yield region.rows(first, last), array[first:last]
        first = last
