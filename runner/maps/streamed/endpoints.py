"""Stream endpoints and the Engine protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.report.spans import Spans, Stage
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.world.world import World

PIECE = 8 << 20  # bytes that a thread reads or writes at a time: several threads share a chunk


class Step(NamedTuple):
    """Part of one stage of a chunk, executed by an I/O thread. moved: bytes."""

    stage: Stage
    moved: int
    do: Callable[[], None]


@dataclass(frozen=True)
class Endpoints:
    """Sources and sinks of a streamed run, the task between them, and this rank's spans.

    sources: per input. sinks: per output. take: returns the results of a chunk's steps, given its region and
    its padded blocks, which it changes; they are valid until the next call. None: one call of the function.
    """

    world: World
    task: Task
    chunks: Chunks
    sources: Sequence[Source]
    sinks: Sequence[Sink]
    spans: Spans
    take: Callable[[Region, Sequence[Array]], Sequence[Array]] | None = None

    def windows(self, number: int) -> list[Window]:
        """Return the window of each input for a chunk."""
        task, region = self.task, self.chunks[number]
        return [
            Window(task.field_region(place, region), field.shape, field.widths, *task.beyond(place))
            for place, field in enumerate(task.fields)
        ]

    def output_regions(self, number: int) -> list[Region]:
        """Return the region of each output for a chunk."""
        region = self.chunks[number]
        return [self.task.output_region(region, place) for place in range(len(self.sinks))]

    @property
    def largest(self) -> tuple[list[int], list[int]]:
        """Return the bytes of each input's largest padded block (not less than is read) and each result."""
        task = self.task
        blocks, results = [0] * len(task.fields), [0] * len(task.known)
        for region in self.chunks.largest:
            for place, field in enumerate(task.fields):
                cells = math.prod(field.padded(task.field_region(place, region).shape))
                blocks[place] = max(blocks[place], cells * field.dtype.itemsize)
            for place, (_, dtype) in enumerate(task.known):
                size = task.output_region(region, place).size * dtype.itemsize
                results[place] = max(results[place], size)
        return blocks, results

    def reads(self, place: int, window: Window, target: HostArray) -> list[Step]:
        """Return steps that read a window of input `place`, in pieces, into an array of shape `staged`."""
        source = self.sources[place]
        align = source.chunks[0] if source.chunks else 1
        return [
            Step("read", part.nbytes, partial(source.read, rows, part))
            for region, within in window.reads()
            for rows, part in _pieces(region, target[within], align)
        ]

    def writes(self, place: int, region: Region, result: HostArray) -> list[Step]:
        """Return steps that write `region` of output `place`, in pieces."""
        sink = self.sinks[place]
        align = sink.chunks[0] if sink.chunks else 1
        return [
            Step("write", part.nbytes, partial(sink.write, rows, part))
            for rows, part in _pieces(region, result, align)
        ]


class Engine(Protocol):
    """Processes chunks between the source and the sink.

    The main thread calls all methods except `join`, which every I/O thread calls before its first step, and
    `finish`, which an I/O thread calls. A slot holds the buffers of one chunk.

    shortages: sentences on what did not fit the device's memory, and what was done instead.
    """

    @property
    def shortages(self) -> list[str]: ...

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
