"""One rank's part of a map job: fill the halo of its block, call the function, hand out the results.

On a CPU the function is called on slabs of rows that fit a cache. On a GPU it is called on the
whole block; among several ranks, on the block's interior while the halo travels, then on the
rows that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from runner.comm import Array
from runner.errors import RunError
from runner.here import Here
from runner.partition import Region
from runner.timing import Phases
from runner.work import Work
from runner.world import World

SLAB = 2 << 20  # bytes of input for one call on a CPU: about one core's second-level cache
Rows = tuple[int, int]
Progress = Callable[[int, int], None]  # rows done, rows in all


def quiet(done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass
class Pipeline:
    """This rank's run of `work`: `prepare`, then `results`, each once, each collective.

    overlap: compute the interior while the halo travels; done where the cut and the block allow it.
    """

    world: World
    work: Work
    phases: Phases
    overlap: bool = False
    progress: Progress = quiet

    def __post_init__(self) -> None:
        self.plan = self.work.plan(self.world.rank)
        low, high = self.plan.widths[0]
        rows = self.plan.region.shape[0]
        partition = self.work.partition
        cut = [axis for axis, parts in enumerate(partition.grid) if parts > 1]
        # Rows that need no other rank are one contiguous range only when the array is cut along axis 0.
        # All ranks decide alike, by the smallest block, or they would wait for each other.
        smallest = partition.shape[0] // partition.grid[0]
        self.overlap = self.overlap and cut == [0] and smallest > sum(self.work.widths[0])
        self._interior = (low, rows - high) if self.overlap else (0, rows)

    def prepare(self, block: Array) -> Work:
        """Make `block` ready for the first call, and settle the result's shape and dtype.

        Where these are not declared, or where kernels are yet to be compiled, the function is
        called on one row to see.
        """
        backend = self.world.backend
        if backend.asynchronous and self.world.size > 1:
            with self.phases("prepare"):
                self.plan.connect(self.world.arrays, backend.empty((2,), np.dtype(np.uint8)))
        if self.overlap:
            with self.phases("prepare"):
                self.plan.fill_own(block)
        elif any(width != (0, 0) for width in self.work.widths):
            with self.phases("exchange", self._exchanged):
                self.plan.fill(block, self.world.arrays)
        if backend.asynchronous or self.work.result is None:
            with self.phases("prepare"):
                self.work = self._probe(block)
        return self.work

    def results(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """The results of this rank, each with its place in the output."""
        yield from self._on_device(block) if self.world.backend.asynchronous else self._on_host(block)
        assert self.work.result is not None
        written = self.work.output_region(self.plan.region).size * self.work.result[1].itemsize
        self.phases.add("kernel", 0, self.plan.region.size * self.work.dtype.itemsize + written)

    def _on_host(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """Slab by slab, each handed out while it is in the cache."""
        if self.overlap:
            with self.phases("exchange", self._exchanged):
                exchange = self.plan.start(block, self.world.arrays)
        for rows in self._slabs(*self._interior):
            yield self._timed(block, rows)
        if self.overlap:
            with self.phases("exchange"):
                exchange.finish()
            for rows in self._border():
                yield self._timed(block, rows)

    def _timed(self, block: Array, rows: Rows) -> tuple[Region, Array]:
        with self.phases("kernel"):
            part = self.plan.region.rows(*rows)
            result = self._call(block, rows, self.work.buffer(part.shape, self.world.backend))
        self.progress(rows[1], self.plan.region.shape[0])
        return self.work.output_region(part), result

    def _on_device(self, block: Array) -> Iterator[tuple[Region, Array]]:
        """The whole block; the exchange, if it is still to be made, on a stream beside the interior's."""
        backend, region = self.world.backend, self.plan.region
        with self.phases("prepare"):
            out = self.work.buffer(region.shape, backend) if region.size else None
            self.world.control.barrier()  # or waiting for a later neighbour would count as exchange
        if region.size == 0:
            return
        begin = backend.mark()
        ranges = [self._interior]
        found = [self._call(block, self._interior, out)]
        if self.overlap:
            with backend.beside(begin):
                sent = backend.mark()
                self.plan.start(block, self.world.arrays).finish()
                received = backend.mark()
            ranges += self._border()
            found += [self._call(block, rows, out) for rows in ranges[1:]]
        end = backend.mark()
        backend.synchronize()
        self.phases.add("kernel", backend.elapsed(begin, end))
        if self.overlap:
            self.phases.add("exchange", backend.elapsed(sent, received), self._exchanged)
        if out is not None:
            yield self.work.output_region(region), out
        else:
            places = (self.work.output_region(region.rows(*rows)) for rows in ranges)
            yield from zip(places, found, strict=True)

    def _call(self, block: Array, rows: Rows, out: Array | None) -> Array:
        """The function's result for some of the block's own rows; `out` is for these, or for all of them."""
        return call_rows(self.world, self.work, self.plan.region, block, rows, out)

    def _slabs(self, first: int, last: int) -> Iterator[Rows]:
        return slabs(self.plan.region, self.plan.widths[0], self.work.dtype.itemsize, (first, last))

    def _border(self) -> list[Rows]:
        first, last = self._interior
        rows = self.plan.region.shape[0]
        return [(a, b) for a, b in ((0, first), (last, rows)) if a < b]

    def _probe(self, block: Array) -> Work:
        """What one row's call returns, agreed on by all ranks that have a row."""
        found = None
        if self.plan.region.size:
            first = self._interior[0]
            row = (first, first + 1)
            out = self.work.buffer(self.plan.region.rows(*row).shape, self.world.backend)
            result = self._call(block, row, out)
            found = tuple(result.shape[self.work.leading :]), np.dtype(result.dtype)
        if self.work.result is not None:
            return self.work
        everyone = self.world.control.allgather(found)
        answers = [answer for answer in everyone if answer is not None]
        if not answers:  # an array without cells: nothing to call the function on
            answers = [(self.work.shape[self.work.leading :], self.work.dtype)]
        odd = next((rank for rank, a in enumerate(everyone) if a is not None and a != answers[0]), None)
        if odd is not None:
            raise RunError(
                f"job {self.work.job.name} returns different results on different ranks",
                got=f"{_shape_and_dtype(everyone[odd])} on rank {odd}",
                expected=f"{_shape_and_dtype(answers[0])}, as on the first rank",
                hint="declare out=",
                everywhere=True,
            )
        return self.work.with_result(*answers[0])

    @property
    def _exchanged(self) -> int:
        """Bytes received from other ranks and as many sent."""
        return self.plan.received_cells * self.work.dtype.itemsize


def call_rows(world: World, work: Work, region: Region, block: Array, rows: Rows, out: Array | None) -> Array:
    """The function's result for own rows `rows` of `block`, which is `region` with its halo.

    out: for these rows, or for all of the region's; None for a job that returns its result.
    """
    first, last = rows
    part = region.rows(first, last)
    here = Here(
        world.rank,
        world.size,
        world.here.host,
        part.start,
        part.shape,
        work.shape,
        world.backend.stream,
        world.backend.xp,
    )
    if out is not None and out.shape[0] > last - first:
        out = out[first:last]
    result = work.call(block[first : last + sum(work.widths[0])], here, out)
    if work.result is None:
        return result
    if result.shape[work.leading :] != work.result[0][work.leading :]:
        raise RunError(
            f"job {work.job.name} returned two shapes",
            got=f"{result.shape[work.leading :]} after the first {work.leading} axes",
            expected=f"{work.result[0][work.leading :]}, as declared or as the first call returned",
        )
    if result.dtype != work.result[1]:
        raise RunError(
            f"job {work.job.name} returned two dtypes",
            got=result.dtype,
            expected=f"{work.result[1]}, as declared or as the first call returned",
            hint="return result.astype(...), or declare out=",
        )
    return result


def slabs(region: Region, width: tuple[int, int], itemsize: int, rows: Rows) -> Iterator[Rows]:
    """Rows of `region` in pieces whose input fits a cache. width: of the halo along axis 0."""
    if region.size == 0:
        return
    row_bytes = region.size // region.shape[0] * itemsize
    step = max(SLAB // row_bytes, 4 * sum(width), 1)
    for begin in range(*rows, step):
        yield begin, min(begin + step, rows[1])


def _shape_and_dtype(answer: tuple[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return f"{answer[1]} with trailing axes {answer[0]}"
