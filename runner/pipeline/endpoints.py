"""Stream endpoints and the Engine protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from runner.plan.chunks import Chunks
from runner.plan.task import Task
from runner.plan.window import Window
from runner.region import HostArray, Region
from runner.report.spans import Spans, Stage
from runner.storage.formats import Sink, Source
from runner.world.world import World

PIECE = 8 << 20  # bytes that one thread reads or writes at a time: several threads share a chunk


class Step(NamedTuple):
    """Part of one stage of a chunk, executed by an I/O thread. moved: bytes."""

    stage: Stage
    moved: int
    do: Callable[[], None]


@dataclass(frozen=True)
class Endpoints:
    """Source and sink of a streamed run, the task between them, and this rank's spans."""

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
        """Bytes of the largest padded block (its input is no larger) and of the largest result."""
        blocks = results = 0
        for region in self.chunks.largest:
            padded = (n + sum(width) for n, width in zip(region.shape, self.task.widths, strict=True))
            blocks = max(blocks, math.prod(padded) * self.task.dtype.itemsize)
            results = max(results, self.task.output_region(region).size * self.result_dtype.itemsize)
        return blocks, results

    def reads(self, window: Window, target: HostArray) -> list[Step]:
        """Steps that read a window, in pieces, into an array of its shape `staged`."""
        return [
            Step("read", part.nbytes, partial(self.source.read, rows, part))
            for region, place in window.reads()
            for rows, part in _pieces(
                region, target[place], self.source.chunks[0] if self.source.chunks else 1
            )
        ]

    def writes(self, region: Region, result: HostArray) -> list[Step]:
        """Steps that write `region` of the output, in pieces."""
        align = self.sink.chunks[0] if self.sink.chunks else 1
        return [
            Step("write", part.nbytes, partial(self.sink.write, rows, part))
            for rows, part in _pieces(region, result, align)
        ]


class Engine(Protocol):
    """Processes chunks between the source and the sink.

    The main thread calls all methods except `join`, which every I/O thread calls before its first step, and
    `finish`, which an I/O thread calls. A slot holds the buffers of one chunk.
    """

    def slots(self, count: int) -> list[Any]: ...

    def join(self) -> None: ...

    def begin(self, slot: Any, number: int) -> list[Step]:
        """Return the steps that must be done before `compute`."""

    def compute(self, slot: Any, idle: Callable[[], None]) -> None:
        """Compute the result, or issue the work that does. idle: call it during long computations."""

    def finish(self, slot: Any) -> list[Step]:
        """Wait for the result, in an I/O thread; return the steps that write it."""

    def release(self, slot: Any) -> None:
        """Free the slot of a chunk that has been written."""


def shaped(memory: HostArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """View the first bytes of `memory` (NumPy or CuPy, uint8) as an array."""
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _pieces(region: Region, array: HostArray, align: int) -> Iterator[tuple[Region, HostArray]]:
    """Split a region and its array into rows of about PIECE bytes, at multiples of `align` rows."""
    rows, start = region.shape[0], region.start[0]
    step = max(PIECE * rows // max(array.nbytes, 1) // align, 1) * align
    first = 0
    while first < rows:
        last = min(first + step - (start + first) % align, rows)
        yield region.rows(first, last), array[first:last]
        first = last
