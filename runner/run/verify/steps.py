"""`--verify` of a run that took steps: take them again, in a plain loop, and compare with what is on disk.

Nothing of the run is trusted: inputs come from their files, results are read back, what lies beyond an edge
is looked up by the formulas of `runner.run.verify.results`, and every step calls the job's own function in
NumPy, on cells that are cut elsewhere than the run's blocks. The cells that decide a box after n steps are
those within n halos of it; each step computes those that the following steps need.

Where floating-point results depend on the device or on the cut, differences grow with the number of steps;
the tolerance is that of one pass times the number of steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np

from runner.device.cpu import CpuBackend
from runner.job.block_context import BlockContext
from runner.pipeline.in_memory import OnProgress, no_progress, result_buffers
from runner.pipeline.streamed.dispatch import threads_of
from runner.plan.sampling import box_shape, cover, sample
from runner.plan.task import Task
from runner.region import HostArray, Region, Shape
from runner.run.verify.results import (
    Mismatch,
    are_parallel,
    compare_output,
    leave_cache,
    mismatch_error,
    place_of,
    sources,
    tolerance_of,
)
from runner.storage.formats.registry import Sink, Source, read_back, reopen
from runner.world.world import World

AGAINST = "the job's own function in NumPy, in a plain loop over the steps"
SLAB_CELLS = 1 << 19  # cells of a call: few enough for a cache, enough to share the work among threads
CONES = 4  # a box is at least so many times as long as the cells that its steps need beyond it
BOX_CELLS = 1 << 22


class PlainLoop:
    """Steps over the cells that decide one box.

    `_fields` are arrays over the ranges `_start` to `_stop`, which shrink from step to step; along an axis
    that wraps around they may begin before the array and end after it.
    """

    def __init__(
        self, task: Task, files: Sequence[Source], box: Region, steps: int, pool: ThreadPoolExecutor
    ) -> None:
        self._task, self._box, self._steps, self._pool = task, box, steps, pool
        names = [field.name for field in task.fields]
        self._feeds = [None if name is None else names.index(name) for name in task.job.feeds]
        self._whole = self._wraps_whole()
        self._start, self._stop = self._needed(steps)
        self._fields = [self._read(place, file) for place, file in enumerate(files)]
        self._results: list[HostArray] = []
        self._memory: dict[int, list[HostArray]] = {}

    def run(self) -> list[HostArray]:
        """Take the steps; return the results of the box, as its outputs hold them."""
        for step in range(1, self._steps + 1):
            start, stop = self._needed(self._steps - step)
            self._results = self._step(start, stop)
            fields = [field[self._inside(place, start, stop)] for place, field in enumerate(self._fields)]
            for number, feed in enumerate(self._feeds):
                if feed is not None:
                    fields[feed] = self._results[number]
            self._fields, self._start, self._stop = fields, start, stop
        ends = zip(self._box.start, self._box.stop, self._start, strict=True)
        cut = tuple(slice(a - origin, b - origin) for a, b, origin in ends)[: self._task.leading]
        return [result[cut] for result in self._results]

    def _wraps_whole(self) -> tuple[bool, ...]:
        """Whether each axis wraps around and the cells needed of it are all: then it is kept whole."""
        return tuple(
            self._task.boundary == "wrap" and b - a + self._steps * (low + high) >= n
            for a, b, n, (low, high) in zip(
                self._box.start, self._box.stop, self._task.shape, self._task.widths, strict=True
            )
        )

    def _needed(self, steps: int) -> tuple[Shape, Shape]:
        """Return start and stop of the cells that decide the box after so many steps."""
        starts, stops = [], []
        for axis, (low, high) in enumerate(self._task.widths):
            a, b, n = self._box.start[axis], self._box.stop[axis], self._task.shape[axis]
            first, last = a - steps * low, b + steps * high
            if self._whole[axis]:
                first, last = 0, n
            elif self._task.boundary != "wrap":
                first, last = max(first, 0), min(last, n)
            starts.append(first)
            stops.append(last)
        return tuple(starts), tuple(stops)

    def _read(self, place: int, file: Source) -> HostArray:
        """Read the cells of input `place`, beyond the array's ends where it wraps around."""
        field = self._task.fields[place]
        start, stop = self._of_field(place, self._start, self._stop)
        array = np.empty([b - a for a, b in zip(start, stop, strict=True)], field.dtype)
        for into, region in _wrapped(start, stop, field.shape):
            part = np.empty(region.shape, field.dtype)
            file.read(region, part)
            array[into] = part
        return array

    def _of_field(self, place: int, start: Shape, stop: Shape) -> tuple[Shape, Shape]:
        if place == 0:
            return start, stop
        shared, tail = self._task.leading, self._task.fields[place].shape[self._task.leading :]
        return start[:shared] + (0,) * len(tail), stop[:shared] + tuple(tail)

    def _inside(self, place: int, start: Shape, stop: Shape) -> tuple[slice, ...]:
        """Return the slices of a smaller range in the array of input `place`."""
        origin, _ = self._of_field(place, self._start, self._stop)
        first, last = self._of_field(place, start, stop)
        return tuple(slice(a - o, b - o) for a, b, o in zip(first, last, origin, strict=True))

    def _step(self, start: Shape, stop: Shape) -> list[HostArray]:
        """Compute one step over a range, slab by slab."""
        task = self._task
        shape = tuple(b - a for a, b in zip(start, stop, strict=True))
        results = [
            self._buffer(number, shape[: task.leading] + known[task.leading :], dtype)
            for number, (known, dtype) in enumerate(task.known)
        ]
        rows = max(SLAB_CELLS // max(math.prod(shape[1:]), 1), 1)

        def compute(ends: tuple[int, int]) -> None:
            first, last = ends
            low, high = (first, *start[1:]), (last, *stop[1:])
            blocks = [self._padded(place, low, high) for place in range(len(task.fields))]
            offset = tuple(a % n if n else a for a, n in zip(low, task.shape, strict=True))
            cells = tuple(b - a for a, b in zip(low, high, strict=True))
            here = BlockContext(0, 1, "", offset, cells, task.shape, None, np)
            with np.errstate(all="ignore"):
                found = task.call(blocks, here, result_buffers(task, cells, CpuBackend()))
            for result, one in zip(results, found, strict=True):
                result[first - start[0] : last - start[0]] = one

        list(self._pool.map(compute, _rows_between(start[0], stop[0], rows, task.shape[0])))
        return results

    def _buffer(self, number: int, shape: Shape, dtype: np.dtype[Any]) -> HostArray:
        """Return memory for result `number` that the step before does not use: two buffers take turns."""
        kept = self._memory.setdefault(number, [])
        size = math.prod(shape)
        kept.append(kept.pop(0) if len(kept) == 2 else np.empty(size, dtype))
        return kept[-1][:size].reshape(shape)

    def _padded(self, place: int, start: Shape, stop: Shape) -> HostArray:
        """Return the cells of a range with their halo; beyond the array's ends as the boundary says."""
        task, field = self._task, self._task.fields[place]
        first, last = self._of_field(place, start, stop)
        origin, _ = self._of_field(place, self._start, self._stop)
        block, outside = self._fields[place], []
        for axis, (low, high) in enumerate(field.widths):
            wanted = np.arange(first[axis] - low, last[axis] + high)
            if task.boundary == "wrap" and axis < task.leading and not self._whole[axis]:
                index = wanted
            else:
                index = sources(wanted, field.shape[axis], task.boundary)
            beyond = (wanted < 0) | (wanted >= field.shape[axis])
            outside.append(beyond if task.boundary == "constant" else np.zeros_like(beyond))
            block = _taken(block, np.where(outside[axis], origin[axis], index) - origin[axis], axis)
        if np.may_share_memory(block, self._fields[place]) or not block.flags.c_contiguous:
            block = np.array(block, order="C")  # the function's, which may change it
        for axis, beyond in enumerate(outside):
            if beyond.any():
                block[(slice(None),) * axis + (beyond,)] = task.cval
        return block


def verify_steps(
    world: World,
    task: Task,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    steps: int,
    mode: str,
    *,
    progress: OnProgress = no_progress,
) -> dict[str, Any]:
    """Check the files that `sinks` wrote after `steps` steps; collective. Returns the record of the check.

    RunError on every rank for a wrong cell. mode: "full" checks every cell, "sample" some boxes, or every
    cell where that is less work. progress: called with this rank's verified cells, and with all of them.
    """
    begin = time.perf_counter()
    task = replace(task, kernel=None)  # the function itself is what is compared with
    if world.rank == 0:
        for sink in sinks:
            leave_cache(place_of(sink))
    world.control.barrier()
    alone = not are_parallel(sources, sinks)
    boxes = list(_boxes(world, task, steps, mode, alone))
    total = sum(box.size for box in boxes)
    wrong: Mismatch | None = None
    done = 0
    progress(0, total)
    for box in boxes:
        files, written = [reopen(source) for source in sources], [read_back(sink) for sink in sinks]
        with ThreadPoolExecutor(threads_of(world), "verify") as pool:
            results = PlainLoop(task, files, box, steps, pool).run()
        for number, expected in enumerate(results):
            tolerance = tolerance_of(task, number, expected, steps)
            wrong = wrong or compare_output(task, number, written[number], box, expected, tolerance)
        done += box.size
        progress(done, total)
    found = world.control.allgather((wrong, len(boxes), done))
    for mismatch, _, _ in found:
        if mismatch is not None:
            raise mismatch_error(world, task, mismatch, dealt=False)
    return {
        "mode": mode,
        "against": AGAINST,
        "boxes": sum(entry[1] for entry in found),
        "cells": sum(entry[2] for entry in found),
        "seed": world.run_id,
        "seconds": time.perf_counter() - begin,
    }


def _boxes(world: World, task: Task, steps: int, mode: str, alone: bool) -> Iterator[Region]:
    """Yield this rank's boxes; all on rank 0 where only that one can read the files."""
    ranks = list(range(world.size)) if alone else [world.rank]
    if (alone and world.rank) or 0 in task.shape:
        return
    everything = list(cover(task.shape, _full_box(task, steps, world.size)))
    if mode == "sample":
        sampled = [_sampled(world, task, steps, rank) for rank in range(world.size)]
        if _work(task, steps, chain.from_iterable(sampled)) < _work(task, steps, everything):
            for rank in ranks:
                yield from sampled[rank]
            return
    for number, region in enumerate(everything):
        if number % world.size in ranks:
            yield region


def _sampled(world: World, task: Task, steps: int, rank: int) -> list[Region]:
    """Return the boxes of a sample; fewer where their steps need many cells."""
    room = math.prod(min(n, extra + 8) for n, extra in zip(task.shape, _cone(task, steps), strict=True))
    found = list(sample(task.partition, rank, task.cut_axes, world.run_id))
    return found[: max(len(found) * BOX_CELLS // max(room * len(found), BOX_CELLS), 2)]


def _work(task: Task, steps: int, boxes: Iterable[Region]) -> int:
    """Return how many cells decide the boxes, counted for each of them."""
    cone = _cone(task, steps)
    return sum(
        math.prod(min(n, m + extra) for n, m, extra in zip(task.shape, box.shape, cone, strict=True))
        for box in boxes
    )


def _cone(task: Task, steps: int) -> Shape:
    return tuple(steps * (low + high) for low, high in task.widths)


def _full_box(task: Task, steps: int, ranks: int) -> Shape:
    """Return the shape of the boxes that cover the array: much longer than the cells needed beyond them."""
    if not any(_cone(task, steps)):
        return box_shape(task.shape, task.cut_axes, BOX_CELLS)
    box = list(task.shape)
    longest = max((n, axis) for axis, n in enumerate(task.shape) if task.cut_axes[axis])[1]
    low, high = task.widths[longest]
    share = -(-task.shape[longest] // ranks)
    box[longest] = max(min(max(CONES * steps * (low + high), share), task.shape[longest]), 1)
    return tuple(box)


def _taken(block: HostArray, index: HostArray, axis: int) -> HostArray:
    """Return `np.take`, as a view where the positions follow each other."""
    if index.size and index[-1] - index[0] == index.size - 1 and (np.diff(index) == 1).all():
        return block[(slice(None),) * axis + (slice(int(index[0]), int(index[-1]) + 1),)]
    return np.take(block, index, axis)


def _rows_between(first: int, last: int, step: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `step` rows, cut where the array wraps around."""
    while first < last:
        stop = min(first + step, last, (first // length + 1) * length)
        yield first, stop
        first = stop


def _wrapped(start: Shape, stop: Shape, shape: Shape) -> Iterator[tuple[tuple[slice, ...], Region]]:
    """Yield the regions of an array that fill a range which may go beyond its ends, and where they go."""
    per_axis = []
    for a, b, n in zip(start, stop, shape, strict=True):
        pieces, at = [], a
        while at < b:
            end = min(b, (at // n + 1) * n)
            pieces.append((slice(at - a, end - a), at % n, at % n + end - at))
            at = end
        per_axis.append(pieces)
    for box in product(*per_axis):
        region = Region(tuple(low for _, low, _ in box), tuple(high for _, _, high in box))
        yield tuple(into for into, _, _ in box), region
