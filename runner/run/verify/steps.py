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
from dataclasses import dataclass, replace
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
    compare_output,
    drop_cached,
    gather_proof,
    mismatch_error,
    sources,
    tolerance_of,
)
from runner.storage.formats.registry import Sink, Source, first_serial, read_back, reopen
from runner.world.world import World

AGAINST = "the job's own function in NumPy, in a plain loop over the steps"
TILE_BYTES = 1 << 20  # of a field in a call: few enough for a cache
MANY_THREADS = 8  # more of them wait for the GIL in each call: their tiles are twice as large
PASS_STEPS = (16, 8, 4, 2)  # taken on a tile before the next one, if few cells are computed twice
REPEATED = 1.1  # cells computed in a pass, over those that it gives
COMPARED_BYTES = 1 << 20  # of a slab of results: some of its temporary arrays are twice as large
CONES = 4  # a box is at least so many times as long as the cells that its steps need beyond it
BOX_CELLS = 1 << 22


@dataclass(frozen=True)
class Cells:
    """Cells of one input from `start` on. own: a call of the function may have the memory.

    Along an axis that wraps around they may begin before the array and end after it.
    """

    array: HostArray
    start: Shape
    own: bool = False


class PlainLoop:
    """Steps over the cells that decide one box.

    Each pass takes several steps on one tile after the other, with its data in a processor's cache, and gives
    a range of cells from a larger one. Threads share the tiles of a pass.
    """

    def __init__(
        self,
        task: Task,
        files: Sequence[Source],
        box: Region,
        steps: int,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._tile_bytes = TILE_BYTES * (1 + (threads > MANY_THREADS))
        self._task, self._files, self._box, self._steps, self._pool = task, files, box, steps, pool
        names = [field.name for field in task.fields]
        self._feeds = [None if name is None else names.index(name) for name in task.job.feeds]
        self._memory: dict[int, list[HostArray]] = {}

    def run(self) -> list[HostArray]:
        """Take the steps; return the results of the box, as its outputs hold them."""
        start, stop = self._needed(self._box.start, self._box.stop, self._steps)
        fields = [self._read(place, file, start, stop) for place, file in enumerate(self._files)]
        results: list[HostArray] = []
        each, tile = self._pass_of([b - a for a, b in zip(start, stop, strict=True)])
        left = self._steps
        while left:
            count = min(each, left)
            left -= count
            start, stop = self._needed(self._box.start, self._box.stop, left)
            results = self._pass(fields, start, stop, count, tile)
            fields = self._fed(fields, results, start, own=False)
        ends = zip(self._box.start, self._box.stop, start, strict=True)
        cut = tuple(slice(a - origin, b - origin) for a, b, origin in ends)[: self._task.leading]
        return [result[cut] for result in results]

    def _needed(self, start: Shape, stop: Shape, steps: int) -> tuple[Shape, Shape]:
        """Return start and stop of the cells that decide a range after so many steps."""
        ends = [
            _decisive(a, b, n, width, self._task.boundary, steps)
            for a, b, n, width in zip(start, stop, self._task.shape, self._task.widths, strict=True)
        ]
        return tuple(a for a, _ in ends), tuple(b for _, b in ends)

    def _read(self, place: int, file: Source, start: Shape, stop: Shape) -> Cells:
        """Read the cells of input `place`, beyond the array's ends where it wraps around."""
        field = self._task.fields[place]
        start, stop = self._of_field(place, start, stop)
        array = np.empty([b - a for a, b in zip(start, stop, strict=True)], field.dtype)
        for into, region in _wrapped(start, stop, field.shape):
            part = array[into]
            cells = part if part.flags.c_contiguous else np.empty(region.shape, field.dtype)
            file.read(region, cells)
            if cells is not part:
                part[...] = cells
        return Cells(array, start)

    def _of_field(self, place: int, start: Shape, stop: Shape) -> tuple[Shape, Shape]:
        if place == 0:
            return start, stop
        shared, tail = self._task.leading, self._task.fields[place].shape[self._task.leading :]
        return start[:shared] + (0,) * len(tail), stop[:shared] + tuple(tail)

    def _fed(
        self, fields: Sequence[Cells], results: Sequence[HostArray], start: Shape, *, own: bool
    ) -> list[Cells]:
        """Return the fields after a step whose results begin at `start`."""
        found = list(fields)
        for feed, result in zip(self._feeds, results, strict=True):
            if feed is not None:
                found[feed] = Cells(result, self._of_field(feed, start, start)[0], own)
        return found

    def _pass_of(self, shape: Sequence[int]) -> tuple[int, Shape]:
        """Return the number of steps of a pass over so many cells, and the shape of its tiles."""
        task = self._task
        largest = max(one.dtype.itemsize * math.prod(one.shape[task.leading :]) for one in task.fields)
        tile = list(shape)
        while math.prod(tile[: task.leading]) * largest > self._tile_bytes:
            longest, _, axis = max((n, -axis, axis) for axis, n in enumerate(tile) if task.cut_axes[axis])
            if longest == 1:
                break
            tile[axis] = -(-longest // 2)
        for count in PASS_STEPS:
            pairs = zip(tile, shape, task.widths, strict=True)
            wider = [min(n + (count - 1) * sum(width) / 2, m) / n for n, m, width in pairs]
            if math.prod(wider) <= REPEATED:
                return count, tuple(tile)
        return 1, tuple(tile)

    def _pass(
        self, fields: Sequence[Cells], start: Shape, stop: Shape, steps: int, tile: Shape
    ) -> list[HostArray]:
        """Take so many steps of all tiles of a range; return the results."""
        task = self._task
        shape = tuple(b - a for a, b in zip(start, stop, strict=True))
        results = [
            self._buffer(number, shape[: task.leading] + known[task.leading :], dtype)
            for number, (known, dtype) in enumerate(task.known)
        ]

        def take(part: Region) -> None:
            first = tuple(a + b for a, b in zip(start, part.start, strict=True))
            last = tuple(a + b for a, b in zip(start, part.stop, strict=True))
            into = [result[part.slices[: task.leading]] for result in results]
            self._take(fields, first, last, steps, into)

        list(self._pool.map(take, cover(shape, tile)))
        return results

    def _take(
        self, fields: Sequence[Cells], start: Shape, stop: Shape, steps: int, into: list[HostArray]
    ) -> None:
        """Take so many steps of one tile; write the results."""
        leading = self._task.leading
        for remaining in reversed(range(steps)):
            first, last = self._needed(start, stop, remaining)
            cells = tuple(b - a for a, b in zip(first, last, strict=True))[:leading]
            results = into
            if remaining:
                results = [np.empty(cells + known[leading:], dtype) for known, dtype in self._task.known]
            self._step(fields, first, last, results)
            fields = self._fed(fields, results, first, own=True)

    def _step(self, fields: Sequence[Cells], start: Shape, stop: Shape, into: Sequence[HostArray]) -> None:
        """Compute one step of a range, in parts where the array wraps around; write the results."""
        task = self._task
        for place, region in _wrapped(start, stop, task.shape):
            low = tuple(a + part.start for a, part in zip(start, place, strict=True))
            high = tuple(a + part.stop for a, part in zip(start, place, strict=True))
            blocks = [self._padded(number, cells, low, high) for number, cells in enumerate(fields)]
            here = BlockContext(0, 1, "", region.start, region.shape, task.shape, None, np)
            with np.errstate(all="ignore"):
                found = task.call(blocks, here, result_buffers(task, region.shape, CpuBackend()))
            for result, one in zip(into, found, strict=True):
                result[place[: task.leading]] = one

    def _buffer(self, number: int, shape: Shape, dtype: np.dtype[Any]) -> HostArray:
        """Return memory for result `number` that the pass before does not use: two buffers take turns."""
        kept = self._memory.setdefault(number, [])
        size = math.prod(shape)
        kept.append(kept.pop(0) if len(kept) == 2 else np.empty(size, dtype))
        return kept[-1][:size].reshape(shape)

    def _padded(self, place: int, cells: Cells, start: Shape, stop: Shape) -> HostArray:
        """Return the cells of a range with their halo; those beyond the array's ends follow the boundary."""
        task, field = self._task, self._task.fields[place]
        first, last = self._of_field(place, start, stop)
        block, outside = cells.array, []
        for axis, (low, high) in enumerate(field.widths):
            origin, length = cells.start[axis], field.shape[axis]
            wanted = np.arange(first[axis] - low, last[axis] + high)
            if task.boundary == "wrap" and axis < task.leading and cells.array.shape[axis] < length:
                index = wanted
            else:
                index = sources(wanted, length, task.boundary)
            beyond = (wanted < 0) | (wanted >= length)
            outside.append(beyond if task.boundary == "constant" else np.zeros_like(beyond))
            block = _taken(block, np.where(outside[axis], origin, index) - origin, axis)
        is_all = cells.own and block.size == cells.array.size
        shared = np.may_share_memory(block, cells.array) and not is_all
        if shared or not block.flags.c_contiguous:
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
    drop_cached(world, sinks)
    alone = first_serial([*sources, *sinks]) is not None
    boxes = list(_boxes(world, task, steps, mode, alone))
    total = sum(box.size for box in boxes)
    wrong: Mismatch | None = None
    done = 0
    progress(0, total)
    for box in boxes:
        files, written = [reopen(source) for source in sources], [read_back(sink) for sink in sinks]
        for file in written:
            _ = file.array  # opened once, not by each thread
        threads = threads_of(world)
        with ThreadPoolExecutor(threads, "verify") as pool:
            results = PlainLoop(task, files, box, steps, pool, threads).run()
            for number, expected in enumerate(results):
                wrong = wrong or _compared(task, number, written[number], box, expected, steps, pool)
        done += box.size
        progress(done, total)
    error = None if wrong is None else mismatch_error(world, task, wrong, dealt=False)
    return gather_proof(world, mode, AGAINST, begin, (error, len(boxes), done))


def _compared(
    task: Task,
    number: int,
    written: Source,
    box: Region,
    expected: HostArray,
    steps: int,
    pool: ThreadPoolExecutor,
) -> Mismatch | None:
    """Return what is wrong in a box of the written output `number`, compared in slabs by threads."""
    row = max(expected[:1].nbytes, 1)
    rows = max(COMPARED_BYTES // row, 1)
    slabs = [(first, min(first + rows, len(expected))) for first in range(0, len(expected), rows)]

    def tolerance_of_slab(ends: tuple[int, int]) -> float:
        return tolerance_of(task, number, expected[slice(*ends)], steps)

    tolerance = max(pool.map(tolerance_of_slab, slabs))

    def compare(ends: tuple[int, int]) -> Mismatch | None:
        return compare_output(task, number, written, box.rows(*ends), expected[slice(*ends)], tolerance)

    wrong = [found for found in pool.map(compare, slabs) if found is not None]
    if not wrong:
        return None
    return replace(wrong[0], wrong=sum(one.wrong for one in wrong), cells=expected.size, box=box)


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


def _decisive(
    start: int, stop: int, length: int, width: tuple[int, int], boundary: str, steps: int
) -> tuple[int, int]:
    """Return the positions along an axis that decide a range after so many steps.

    Where the axis wraps around they may go beyond its ends, unless they are all.
    """
    low, high = width
    if boundary == "wrap":
        first, last = start - steps * low, stop + steps * high
        return (0, length) if last - first >= length else (first, last)
    for _ in range(steps):
        first, last = start - low, stop + high
        if boundary in ("reflect", "mirror"):  # cells beyond an end are copies of those as far inside
            first, last = min(first, 2 * length - 1 - last), max(last, 1 - first)
        first, last = max(first, 0), min(last, length)
        if (first, last) == (start, stop):
            break
        start, stop = first, last
    return start, stop


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
