"""One rank's part of a map job in memory: fill the block's halo, call the function, yield the results.

On a CPU the function is called on slabs of rows that fit a cache. On a GPU it is called on the
whole block; with several ranks, on the block's interior while the halo is exchanged, then on the
rows that need the halo.

A function may change its block in place. So there is no trial call on cells that are needed later, and
rows that two calls need, as own cells or as halo, are copied before the first of the two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from runner.comm.api import Message
from runner.device.api import Backend, poison
from runner.errors import RunError
from runner.job.block_context import BlockContext
from runner.pipeline.halo_exchange import HaloPlan
from runner.pipeline.result_type import ResultType, type_of, type_without_cells
from runner.plan.task import Task
from runner.region import Array, Region, Shape
from runner.report.phases import Phases
from runner.world.world import World

SLAB = 2 << 20  # bytes of input per call on a CPU: about one core's L2 cache
Rows = tuple[int, int]
OnProgress = Callable[[int, int], None]  # rows done, rows in all


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass
class Pipeline:
    """Runs `task` on this rank: call `prepare`, then `results`, once each; both are collective.

    overlap: compute the interior while the halo is exchanged, if the partition and the block allow it.
    """

    world: World
    task: Task
    phases: Phases
    overlap: bool = False
    progress: OnProgress = no_progress

    def __post_init__(self) -> None:
        self.plan = halo_plan(self.task, self.world.rank)
        low, high = self.plan.widths[0]
        rows = self.plan.region.shape[0]
        partition = self.task.partition
        cut = [axis for axis, parts in enumerate(partition.grid) if parts > 1]
        # Rows that need no other rank are one contiguous range only when the array is cut along axis 0.
        # All ranks decide by the smallest block: if they decided differently they would deadlock.
        smallest = partition.shape[0] // partition.grid[0]
        self.overlap = self.overlap and cut == [0] and smallest > sum(self.task.widths[0])
        self._interior = (low, rows - high) if self.overlap else (0, rows)
        self._halo = sum(self.plan.widths[0])
        self._out: Array | None = None  # a device's whole result, of a job that fills one
        self._first: list[tuple[Rows, Array]] = []  # what `prepare` has computed: one piece, or none
        self._sends: list[Message] = []
        self._edges: list[tuple[Rows, Array]] = []

    def prepare(self, block: Array) -> Task:
        """Prepare `block` for the first call, and determine the result's shape and dtype.

        If these are not declared, or on a device, where kernels must be compiled, the first call is made
        here: on one slab, or on a device on one row. Its result is the first of `results`.
        """
        backend = self.world.backend
        if backend.asynchronous and self.world.size > 1:
            with self.phases("prepare"):
                self.plan.connect(self.world.arrays, backend.empty((2,), np.dtype(np.uint8)))
        if self.overlap:
            with self.phases("prepare"):
                self.plan.fill_own(block)
                # Before the interior is computed, maybe in place.
                self._sends = self.plan.pack(block)
                self._edges = [((a, b), block[a : b + self._halo].copy()) for a, b in self._border()]
        elif any(width != (0, 0) for width in self.task.widths):
            with self.phases("exchange", self._exchanged):
                self.plan.fill(block, self.world.arrays)
        self._windows = windows(block, self._slabs(*self._interior), self._halo)
        if backend.asynchronous:
            with self.phases("prepare"):
                self._begin_on_device(block)
                self.task = self._settled()
        elif self.task.result is None:
            self._first = [self._timed(rows, window) for rows, window in islice(self._windows, 1)]
            with self.phases("prepare"):
                self.task = self._settled()
        return self.task

    def results(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """Yield this rank's results, each with its region of the output."""
        yield from self._on_device(block) if self.world.backend.asynchronous else self._on_host(block)
        assert self.task.result is not None
        written = self.task.output_region(self.plan.region).size * self.task.result[1].itemsize
        self.phases.add("kernel", 0, self.plan.region.size * self.task.dtype.itemsize + written)

    def _on_host(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """Compute slab by slab, and yield each result while it is in the cache."""
        if self.overlap:
            with self.phases("exchange", self._exchanged):
                exchange = self.plan.start(block, self.world.arrays, self._sends)
        yield from map(self._placed, self._first)
        for rows, window in self._windows:
            yield self._placed(self._timed(rows, window))
        if self.overlap:
            with self.phases("exchange"):
                exchange.finish()
            for rows, window in self._filled_edges(block):
                yield self._placed(self._timed(rows, window))

    def _timed(self, rows: Rows, window: Array) -> tuple[Rows, Array]:
        with self.phases("kernel"):
            shape = self.plan.region.rows(*rows).shape
            result = self._call(rows, window, result_buffer(self.task, shape, self.world.backend))
        self.progress(rows[1], self.plan.region.shape[0])
        return rows, result

    def _begin_on_device(self, block: Array) -> None:
        """Compute the interior's last row on a copy; the first would leave the other rows unaligned."""
        region = self.plan.region
        if region.size:
            self._out = result_buffer(self.task, region.shape, self.world.backend)
            last = self._interior[1]
            rows = (last - 1, last)
            window = block[last - 1 : last + self._halo].copy()
            self._first = [(rows, self._call(rows, window, self._out))]

    def _on_device(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """The whole block; the exchange, if it is still to be made, on a stream beside the interior's."""
        backend, region = self.world.backend, self.plan.region
        with self.phases("prepare"):
            self.world.control.barrier()  # or waiting for a later neighbour would count as exchange
        if region.size == 0:
            return
        begin = backend.mark()
        first, last = self._interior[0], self._interior[1] - 1
        found = [*self._first]
        if first < last:
            window = block[first : last + self._halo]
            found.append(((first, last), self._call((first, last), window, self._out)))
        if self.overlap:
            with backend.beside(begin):
                sent = backend.mark()
                self.plan.start(block, self.world.arrays, self._sends).finish()
                received = backend.mark()
            for rows, window in self._filled_edges(block):
                found.append((rows, self._call(rows, window, self._out)))
        end = backend.mark()
        backend.synchronize()
        self.phases.add("kernel", backend.elapsed(begin, end))
        if self.overlap:
            self.phases.add("exchange", backend.elapsed(sent, received), self._exchanged)
        if self._out is not None:
            yield self.task.output_region(region), self._out
        else:
            yield from map(self._placed, found)

    def _placed(self, piece: tuple[Rows, Array]) -> tuple[Region, Array]:
        rows, result = piece
        return self.task.output_region(self.plan.region.rows(*rows)), result

    def _filled_edges(self, block: Array) -> Iterator[tuple[Rows, Array]]:
        """The rows that need other ranks, with their halo, once it is in `block`."""
        low, high = self.plan.widths[0]
        for rows, window in self._edges:
            if rows[0] == 0:
                window[:low] = block[:low]
            else:
                window[-high:] = block[-high:]
            yield rows, window

    def _call(self, rows: Rows, window: Array, out: Array | None) -> Array:
        """The function's result for some of the block's own rows; `out` is for these, or for all of them."""
        return call_rows(self.world, self.task, self.plan.region, window, rows, out)

    def _slabs(self, first: int, last: int) -> Iterator[Rows]:
        return slabs(self.plan.region, self.plan.widths[0], self.task.dtype.itemsize, (first, last))

    def _border(self) -> list[Rows]:
        first, last = self._interior
        rows = self.plan.region.shape[0]
        return [(a, b) for a, b in ((0, first), (last, rows)) if a < b]

    def _settled(self) -> Task:
        """The task with its result as the first calls returned it, agreed on by all ranks that have a row."""
        if self.task.result is not None:
            return self.task
        found = next((type_of(self.task, result) for _, result in self._first), None)
        everyone = self.world.control.allgather(found)
        answers = [answer for answer in everyone if answer is not None]
        if not answers:  # an array without cells: nothing to call the function on
            answers = [type_without_cells(self.task)]
        odd = next((rank for rank, a in enumerate(everyone) if a is not None and a != answers[0]), None)
        if odd is not None:
            raise RunError(
                f"job {self.task.job.name} returns different results on different ranks",
                got=f"{_shape_and_dtype(everyone[odd])} on rank {odd}",
                expected=f"{_shape_and_dtype(answers[0])}, as on the first rank",
                hint="declare out=",
                everywhere=True,
            )
        return self.task.with_result(*answers[0])

    @property
    def _exchanged(self) -> int:
        """Bytes received from other ranks and as many sent."""
        return self.plan.received_cells * self.task.dtype.itemsize


def halo_plan(task: Task, rank: int) -> HaloPlan:
    """How a rank fills the halo of its block."""
    return HaloPlan(task.partition, rank, task.widths, task.boundary, task.cval)


def result_buffer(task: Task, cells: Shape, backend: Backend) -> Array | None:
    """A poisoned result for own cells of shape `cells`; None for a job that returns its result."""
    if not task.fills:
        return None
    declared = task.declared(cells)
    assert declared is not None
    out = backend.empty(*declared)
    poison(out)
    return out


def call_rows(
    world: World, task: Task, region: Region, window: Array, rows: Rows, out: Array | None
) -> Array:
    """The function's result for the rows `rows` of `region`.

    window: these rows with their halo, which the function may change: nobody reads them afterwards.
    out: for these rows, or for all of the region's; None for a job that returns its result.
    """
    first, last = rows
    part, ranks, backend = region.rows(first, last), (world.rank, world.size, world.here.host), world.backend
    here = BlockContext(*ranks, part.start, part.shape, task.shape, backend.stream, backend.xp)
    if out is not None and out.shape[0] > last - first:
        out = out[first:last]
    result = task.call(window, here, out)
    if task.result is None:
        return result
    if result.shape[task.leading :] != task.result[0][task.leading :]:
        raise RunError(
            f"job {task.job.name} returned two shapes",
            got=f"{result.shape[task.leading :]} after the first {task.leading} axes",
            expected=f"{task.result[0][task.leading :]}, as declared or as the first call returned",
        )
    if result.dtype != task.result[1]:
        raise RunError(
            f"job {task.job.name} returned two dtypes",
            got=result.dtype,
            expected=f"{task.result[1]}, as declared or as the first call returned",
            hint="return result.astype(...), or declare out=",
        )
    return result


def windows(block: Array, ranges: Iterable[Rows], halo: int) -> Iterator[tuple[Rows, Array]]:
    """Yield ranges of `block`'s own rows, each with its window (the rows and their halo) for one call.

    ranges: consecutive. halo: rows before plus rows after. A call may change its window: the rows that the
    next window shares are saved and restored. A window, or a result that is a view of it, is valid until
    the next one is requested.
    """
    kept: Array = None
    for first, last in ranges:
        if kept is not None:
            block[first : first + halo] = kept
        kept = block[last : last + halo].copy() if halo else None
        yield (first, last), block[first : last + halo]


def slabs(region: Region, width: tuple[int, int], itemsize: int, rows: Rows) -> Iterator[Rows]:
    """Split `rows` of `region` into pieces whose input fits a cache. width: halo along axis 0."""
    if region.size == 0:
        return
    row_bytes = region.size // region.shape[0] * itemsize
    step = max(SLAB // row_bytes, 4 * sum(width), 1)
    for begin in range(*rows, step):
        yield begin, min(begin + step, rows[1])


def _shape_and_dtype(answer: ResultType) -> str:
    return f"{answer[1]} with trailing axes {answer[0]}"
