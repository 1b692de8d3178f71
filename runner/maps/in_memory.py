"""One rank's part of a map job in memory: fill the blocks' halos, call the function, yield the results.

On a CPU the function is called on slabs of rows that fit a cache. On a GPU it is called on the
whole block; with several ranks, on the block's interior while the halo is exchanged, then on the
rows that need the halo.

A function may change its blocks in place. So it is never called on trial with cells that are needed later,
and rows that two calls need, as own cells or as halo, are copied before the first of the two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import (
    HaloPlan,
    connect,
    exchange,
    fill_own,
    is_staged,
    pack,
    received_bytes,
    start_exchange,
)
from meshrun.runner.comm.api import Message
from meshrun.runner.compiler.result_type import ResultType, types_of, types_without_cells
from meshrun.runner.device.api import Shortage, poisoned
from meshrun.runner.errors import RunError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Array, Region
from meshrun.runner.report.phases import Phases
from meshrun.runner.spelling import option
from meshrun.runner.world.world import World

SLAB = 2 << 20  # bytes of input per call on a CPU: about one core's L2 cache
Rows = tuple[int, int]
Blocks = Sequence[Array]  # one per input, with its halo
Results = tuple[Array, ...]  # one per output
OnProgress = Callable[[int, int], None]  # rows done, rows in all
OnSteps = Callable[[int, int, int], None]  # steps taken, steps in all, cells computed in one


class BlockDoesNotFit(RunError):
    """A rank's block, with what the function allocates for it, does not fit its device; on every rank."""


def no_progress(*counts: int) -> None:
    """Ignore progress."""


@dataclass
class Pipeline:
    """Run `task` on this rank: call `prepare`, then `results`, once each; both are collective.

    overlap: compute the interior while the halo is exchanged, if the partition and the block allow it. plans:
    layout of this rank's block of each input; (): they are made from the task.
    """

    world: World
    task: Task
    phases: Phases
    overlap: bool = False
    progress: OnProgress = no_progress
    plans: Sequence[HaloPlan] = ()

    def __post_init__(self) -> None:
        self.plans = self.plans or halo_plans(self.task, self.world.rank)
        self.region = self.plans[0].region
        low, high = self.plans[0].widths[0]
        rows = self.region.shape[0]
        self._unit = self.task.units[0]
        top, bottom = (-(-width // self._unit) * self._unit for width in self.task.widths[0])
        if self.overlap:
            # Rows that need no other rank are one contiguous range only when the array is cut along axis 0.
            # All ranks decide by the smallest block: different decisions would cause a deadlock.
            partition = self.task.partition
            cut = [axis for axis, parts in enumerate(partition.grid) if parts > 1]
            smallest = partition[partition.size - 1].shape[0]
            self.overlap = cut == [0] and smallest > top + bottom
        self._interior = (top, rows - bottom) if self.overlap else (0, rows)
        self._halo = low + high
        self._outs: list[Array] | None = None  # on a device: whole results, for a job that fills them
        self._first: list[tuple[Rows, Results]] = []  # the piece that `prepare` has computed, if any
        self._sends: list[list[Message]] = []
        self._edges: list[tuple[Rows, Blocks]] = []
        self._arrays: Sequence[DistributedArray] = []
        self._exchanged = 0  # bytes received from other ranks, and as many sent
        self._shortage: Shortage | None = None  # of device memory, in a call on this rank

    @property
    def _exchanged_by_any(self) -> bool:
        """Whether a rank needs cells of another: the same on every rank."""
        return any(
            parts > 1 and width != (0, 0)
            for one in self.task.fields
            for parts, width in zip(one.partition.grid, one.widths, strict=True)
        )

    def prepare(self, arrays: Sequence[DistributedArray]) -> Task:
        """Prepare `arrays` for the first call, and determine the results' shapes and dtypes.

        If these are not declared, and always on a device, where kernels must be compiled, the first call is
        made here: on one slab, or on a device on as few rows as possible. `results` yields its results first.
        """
        backend, blocks = self.world.backend, [array.block for array in arrays]
        self._arrays, self._exchanged = arrays, received_bytes(arrays)
        if backend.asynchronous and self.world.size > 1 and self._exchanged_by_any and not is_staged(arrays):
            with self.phases("prepare"):
                connect(self.world, self.plans)
        if self.overlap:
            with self.phases("prepare"):
                fill_own(arrays)
                # Before the interior is computed, which may happen in place.
                self._sends = pack(arrays)
                self._edges = [
                    ((a, b), [block[a : b + self._halo].copy() for block in blocks])
                    for a, b in self._border()
                ]
        elif self.task.has_halo:
            with self.phases("exchange", self._exchanged):
                exchange(arrays, once=True)
        self._windows = windows(blocks, self._slabs(*self._interior), self._halo)
        if backend.asynchronous:
            with self.phases("prepare"):
                self._within_memory(lambda: self._begin_on_device(blocks))
                self._agree_on_memory()
                self.task = self._settled()
        elif self.task.results is None:
            self._first = [self._timed(rows, window) for rows, window in islice(self._windows, 1)]
            with self.phases("prepare"):
                self.task = self._settled()
        return self.task

    def results(self) -> Iterator[tuple[Region, Results]]:
        """Yield results for rows of this rank, piece by piece, each with its region of the first array."""
        blocks = [array.block for array in self._arrays]
        yield from self._on_device(blocks) if self.world.backend.asynchronous else self._on_host(blocks)
        for array in self._arrays:  # the function may have changed its block
            array.written()
        moved = self.task.input_bytes(self.region) + self.task.result_bytes(self.region)
        self.phases.add("kernel", 0, moved)

    def _on_host(self, blocks: Blocks) -> Iterator[tuple[Region, Results]]:
        """Compute slab by slab, and yield each result while it is in the cache."""
        if self.overlap:
            with self.phases("exchange", self._exchanged):
                started = start_exchange(self._arrays, self._sends, once=True)
        yield from map(self._placed, self._first)
        for rows, window in self._windows:
            yield self._placed(self._timed(rows, window))
        if self.overlap:
            with self.phases("exchange"):
                started.finish()
            for rows, edge in self._filled_edges(blocks):
                yield self._placed(self._timed(rows, edge))

    def _timed(self, rows: Rows, window: Blocks) -> tuple[Rows, Results]:
        with self.phases("kernel"):
            shape = self.region.rows(*rows).shape
            results = self._call(rows, window, poisoned(self.world.backend, self.task.filled(shape)))
        self.progress(rows[1], self.region.shape[0])
        return rows, results

    def _begin_on_device(self, blocks: Blocks) -> None:
        """Compute the interior's last rows on a copy; the first would leave the other rows unaligned."""
        region = self.region
        if region.size:
            self._outs = poisoned(self.world.backend, self.task.filled(region.shape))
            first, last = rows = (self._interior[1] - self._unit, self._interior[1])
            window = [block[first : last + self._halo].copy() for block in blocks]
            self._first = [(rows, self._call(rows, window, self._outs))]

    def _on_device(self, blocks: Blocks) -> Iterator[tuple[Region, Results]]:
        """Compute the whole blocks; overlap the exchange, if it is not done yet, with the interior."""
        backend, region = self.world.backend, self.region
        with self.phases("prepare"):
            self.world.control.barrier()  # else waiting for a slower neighbour would count as exchange
        if region.size == 0:
            self._agree_on_memory()
            return
        begin = backend.mark()
        first, last = self._interior[0], self._interior[1] - self._unit
        found = [*self._first]

        def compute(rows: Rows, window: Blocks) -> None:
            found.append((rows, self._call(rows, window, self._outs)))

        if first < last:
            window = [block[first : last + self._halo] for block in blocks]
            self._within_memory(lambda: compute((first, last), window))
        if self.overlap:
            with backend.beside(begin):
                sent = backend.mark()
                start_exchange(self._arrays, self._sends, once=True).finish()
                received = backend.mark()
            for rows, edge in self._filled_edges(blocks):
                self._within_memory(partial(compute, rows, edge))
        end = backend.mark()
        backend.synchronize()
        self.phases.add("kernel", backend.elapsed(begin, end))
        if self.overlap:
            self.phases.add("exchange", backend.elapsed(sent, received), self._exchanged)
        self._agree_on_memory()
        if self._outs is not None:
            yield region, tuple(self._outs)
        else:
            yield from map(self._placed, found)

    def _within_memory(self, work: Callable[[], None]) -> None:
        """Do `work`; note a shortage of device memory, for `_agree_on_memory`.

        A rank that is short of memory still takes part in the exchange, for which its neighbours wait.
        """
        if self._shortage is not None:
            return
        try:
            work()
        except BaseException as failure:  # a user's function may raise anything
            self._shortage = self.world.backend.shortage(failure)
            if self._shortage is None:
                raise

    def _agree_on_memory(self) -> None:
        """Raise BlockDoesNotFit on every rank if a call on any rank did not fit its device. Collective."""
        everyone = self.world.control.allgather(self._shortage)
        for rank, shortage in zip(self.world.ranks, everyone, strict=True):
            if shortage is not None:
                raise BlockDoesNotFit(
                    f"a block and what {self.task.job.name} allocates for it do not fit the device memory of "
                    f"rank {rank.number}, {rank.host}, {rank.device}",
                    got=str(shortage),
                    hint=f"more ranks, or files such as .npy without {option('overlap')}, which are "
                    "streamed in chunks",
                    everywhere=True,
                )

    def _placed(self, piece: tuple[Rows, Results]) -> tuple[Region, Results]:
        rows, results = piece
        return self.region.rows(*rows), results

    def _filled_edges(self, blocks: Blocks) -> Iterator[tuple[Rows, Blocks]]:
        """Yield the rows that need other ranks, with their halo, which must be in `blocks`."""
        low, high = self.plans[0].widths[0]
        for rows, window in self._edges:
            for part, block in zip(window, blocks, strict=True):
                if rows[0] == 0:
                    part[:low] = block[:low]
                else:
                    part[-high:] = block[-high:]
            yield rows, window

    def _call(self, rows: Rows, window: Blocks, outs: Blocks | None) -> Results:
        """Return the function's results for some of the own rows; `outs` are for these rows or for all."""
        return call_rows(self.world, self.task, self.region, window, rows, outs)

    def _slabs(self, first: int, last: int) -> Iterator[Rows]:
        return slabs(self.task, self.region, (first, last))

    def _border(self) -> list[Rows]:
        first, last = self._interior
        rows = self.region.shape[0]
        return [(a, b) for a, b in ((0, first), (last, rows)) if a < b]

    def _settled(self) -> Task:
        """Return the task with its results as the first calls returned them; all ranks with rows agree."""
        if self.task.results is not None:
            return self.task
        found = next((types_of(self.task, results) for _, results in self._first), None)
        return agreed_results(self.world, self.task, found)


def agreed_results(world: World, task: Task, found: tuple[ResultType, ...] | None) -> Task:
    """Return the task with the result types found. Collective.

    found: by this rank; None if it has no cells. Raises RunError on every rank if ranks found different ones.
    """
    everyone = world.control.allgather(found)
    answers = [answer for answer in everyone if answer is not None]
    if not answers:  # arrays without cells: nothing to call the function on
        answers = [types_without_cells(task)]
    odd = next((rank for rank, a in enumerate(everyone) if a is not None and a != answers[0]), None)
    if odd is not None:
        raise RunError(
            f"job {task.job.name} returns different results on different ranks",
            got=f"{_shapes_and_dtypes(everyone[odd])} on rank {odd}",
            expected=f"{_shapes_and_dtypes(answers[0])}, as on the first rank",
            hint="declare out=",
            everywhere=True,
        )
    return task.with_results(answers[0])


def halo_plans(task: Task, rank: int) -> list[HaloPlan]:
    """Return the layout of a rank's block of each input."""
    return [
        HaloPlan(field.partition, rank, field.widths, *task.beyond(number))
        for number, field in enumerate(task.fields)
    ]


def fits_one_call(world: World, task: Task) -> bool:
    """Return whether `Pipeline` would call the function once, for all cells, on the host and on one rank."""
    region = task.partition[0]
    alone = world.size == 1 and not world.backend.asynchronous
    return alone and region.size > 0 and task.input_bytes(region) <= SLAB


def call_once(world: World, task: Task, arrays: Sequence[DistributedArray]) -> Results:
    """Return the function's results for all cells, of a task that `fits_one_call`.

    What is measured and agreed on in a `Pipeline` takes longer than the function of small arrays.
    """
    exchange(arrays, once=True)
    region = task.partition[0]
    outs = poisoned(world.backend, task.filled(region.shape))
    return call_rows(world, task, region, [one.block for one in arrays], (0, region.shape[0]), outs)


def call_rows(
    world: World, task: Task, region: Region, window: Blocks, rows: Rows, outs: Blocks | None
) -> Results:
    """Return the function's results for the rows `rows` of `region`.

    window: these rows of each input with their halo, which the function may change: they are not read
    afterwards. outs: for these rows, or for all of the region's; None for a job that returns its results.
    """
    first, last = rows
    part, ranks, backend = region.rows(first, last), (world.rank, world.size, world.here.host), world.backend
    here = BlockContext(*ranks, part.start, part.shape, task.shape, backend.stream, backend.xp)
    if outs is not None:
        places = [task.output_rows(rows, number) for number in range(len(outs))]
        whole = any(out.shape[0] > to.stop - to.start for out, to in zip(outs, places, strict=True))
        outs = [out[to] for out, to in zip(outs, places, strict=True)] if whole else outs
    results = task.call(window, here, outs)
    if task.results is not None:
        check_types(task, results)
    return results


def check_types(task: Task, results: Results) -> None:
    """Raise RunError for results of another shape or dtype than the task's known ones."""
    for result, (shape, dtype) in zip(results, task.known, strict=True):
        if result.shape[task.leading :] != shape[task.leading :]:
            raise RunError(
                f"job {task.job.name} returned two shapes",
                got=f"{result.shape[task.leading :]} after the first {task.leading} axes",
                expected=f"{shape[task.leading :]}, as declared or as the first call returned",
            )
        if result.dtype == dtype:
            continue
        hint = f"return result.astype({str(dtype)!r})"
        if task.job.out is not None:
            raise RunError(
                f"job {task.job.name} returned another dtype than out= declares",
                got=result.dtype,
                expected=dtype,
                hint=hint,
            )
        raise RunError(
            f"job {task.job.name} returned two dtypes",
            got=result.dtype,
            expected=f"{dtype}, as the first call returned",
            hint=f"{hint}, or declare out=",
        )


def windows(blocks: Blocks, ranges: Iterable[Rows], halo: int) -> Iterator[tuple[Rows, list[Array]]]:
    """Yield ranges of own rows, each with its window (the rows of every block with their halo) for one call.

    ranges: consecutive. halo: rows before plus rows after. A call may change its window: the rows that the
    next window shares are saved and restored. A window, or a result that is a view of it, is valid until
    the next one is requested.
    """
    kept: list[Array] = []
    for first, last in ranges:
        for block, rows in zip(blocks, kept, strict=False):
            block[first : first + halo] = rows
        kept = [block[last : last + halo].copy() for block in blocks] if halo else []
        yield (first, last), [block[first : last + halo] for block in blocks]


def slabs(task: Task, region: Region, rows: Rows, most: int | None = None) -> Iterator[Rows]:
    """Split `rows` of `region` into pieces of whole units whose input fits a cache, of `most` rows."""
    if region.size == 0:
        return
    row_bytes = max(task.input_bytes(region) // region.shape[0], 1)
    unit = task.units[0]
    step = -(-max(SLAB // row_bytes, 4 * sum(task.widths[0]), 1) // unit) * unit
    step = min(step, most or step)
    for begin in range(*rows, step):
        yield begin, min(begin + step, rows[1])


def _shapes_and_dtypes(answers: tuple[ResultType, ...]) -> str:
    return ", ".join(f"{dtype} with trailing axes {shape}" for shape, dtype in answers)
