"""Time steps of a map job on one rank: blocks stay in device memory, halos are exchanged between steps.

Each input that an output feeds has two padded blocks: a step reads one and writes its results to the other,
which then changes places with it. Both have the halo of `steps_per_exchange` steps (`runner.plan.steps`), so
that a cell has the same place in all of them. Inputs that are fed by no output keep one block.

With `overlap`, the last step before an exchange computes the rows that neighbours need first, and the rest
while these rows are in transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.device.api import Mark, poison
from runner.errors import RunError
from runner.job.block_context import BlockContext
from runner.pipeline.halo_exchange import HaloPlan, Halos
from runner.pipeline.in_memory import Results, check_types, slabs
from runner.pipeline.result_type import hide_output
from runner.plan.steps import Piece, edge_copies, most_steps, step_pieces, wide_widths
from runner.plan.task import Task
from runner.region import Array, Region
from runner.report.phases import Phases
from runner.world.world import World

MEASURED = 256  # exchanges of a device that are timed; the others are taken to last as long
PENDING = 64  # spans of device work that are not yet added to the phases


def no_step_progress(done: int) -> None:
    """Ignore progress."""


@dataclass
class Stepper:
    """This rank's blocks of a task that takes steps. Every method is collective.

    steps_per_exchange: lowered to what the blocks allow (`limited`). overlap: see above; where only axis 0 is
    split and the blocks are large enough. keep_finals: have the results that feed no input after every
    `advance`, not only after the last step. progress: called with `done`. done: steps taken, also those of an
    earlier run; taken: those of this one. exchanges: of halos, so far.
    """

    world: World
    task: Task
    phases: Phases
    steps_per_exchange: int = 1
    overlap: bool = False
    progress: Callable[[int], None] = no_step_progress
    keep_finals: bool = False
    done: int = 0
    taken: int = field(default=0, init=False)
    exchanges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        task, rank = self.task, self.world.rank
        limit = most_steps(task)
        self.limited = 0 < limit < self.steps_per_exchange
        if self.limited:
            self.steps_per_exchange = limit
        elif limit == 0:  # nothing is exchanged
            self.steps_per_exchange = 1
        steps = self.steps_per_exchange
        self.plans = [
            HaloPlan(one.partition, rank, wide_widths(one, steps), task.boundary, task.cval)
            for one in task.fields
        ]
        self.region = self.plans[0].region
        names = [one.name for one in task.fields]
        # Of each output, the input that it feeds; and the inputs that are fed.
        self.feeds = [None if name is None else names.index(name) for name in task.job.feeds]
        self.fed = sorted(place for place in self.feeds if place is not None)
        self._halos = Halos([self.plans[place] for place in self.fed])
        self._exchanging = any(parts > 1 for parts in task.partition.grid) and task.has_halo
        self._apart = "here" in task.job.services
        self._edges = [
            edge_copies(one.partition, plan.region, one.widths, task.boundary)
            for one, plan in zip(task.fields, self.plans, strict=True)
        ]
        self._pieces: dict[int, list[Piece]] = {}
        low, high = task.widths[0]
        smallest = task.shape[0] // task.partition.grid[0]
        split = [axis for axis, parts in enumerate(task.partition.grid) if parts > 1]
        self.overlap = (
            self.overlap and self._exchanging and split == [0] and smallest > steps * (low + high) > 0
        )
        self._blocks: list[Array] = []
        self._spare: dict[int, Array] = {}
        self._finals: list[Array] = []  # None for an output that feeds an input
        self._scratch: dict[tuple[int, ...], list[Array]] = {}
        self._spans: list[tuple[Mark, Mark]] = []
        self._exchange_spans: list[tuple[Mark, Mark]] = []
        self._poisoned = False
        # Whether the function fills the spare blocks, rather than buffers that are copied to them.
        self._fills_in_place = task.fills and task.job.strided_out and None not in self.feeds

    def start(self, blocks: Sequence[Array]) -> None:
        """Take over padded blocks of `plans`' shapes with their own cells filled; prepare the first step."""
        backend = self.world.backend
        with self.phases("prepare"):
            self._blocks = list(blocks)
            self._spare = {
                place: backend.empty(blocks[place].shape, blocks[place].dtype) for place in self.fed
            }
            self._finals = [
                backend.empty(self.task.output_region(self.region, number).shape, dtype)
                if feed is None
                else None
                for number, (feed, (_, dtype)) in enumerate(zip(self.feeds, self.task.known, strict=True))
            ]
            if backend.asynchronous and self.world.size > 1:
                self._halos.connect(self.world.arrays, backend.empty((2,), np.dtype(np.uint8)))
        with self.phases("exchange"):
            Halos(self.plans).fill(self._blocks, self.world.arrays)
        with self.phases("prepare"):
            self._try_a_row()
            self.world.control.barrier()  # or waiting for a later neighbour would count as exchange

    def own(self, place: int) -> Array:
        """Return this rank's own cells of input `place` as they are now; a view."""
        return self._blocks[place][self.plans[place].core]

    def result(self, number: int) -> Array:
        """Return this rank's part of output `number`, after the last step; a view."""
        feed = self.feeds[number]
        return self._finals[number] if feed is None else self.own(feed)

    def advance(self, steps: int, *, last: bool = False) -> None:
        """Take so many steps. last: none will follow, so that halos need not be exchanged again."""
        backend = self.world.backend
        begin = backend.mark() if backend.asynchronous else None
        left = steps
        while left:
            cycle = min(left, self.steps_per_exchange)
            left -= cycle
            for remaining in reversed(range(cycle)):
                final = last and left == 0 and remaining == 0
                self._step(remaining, final)
                self.done += 1
            self.progress(self.done)
        if begin is not None:
            self._spans.append((begin, backend.mark()))
            if len(self._spans) >= PENDING:
                self.settle()

    def settle(self) -> None:
        """Wait until all steps are done, and add their times to the phases."""
        backend = self.world.backend
        if backend.asynchronous:
            backend.synchronize()
            for begin, end in self._spans:
                self.phases.add("kernel", backend.elapsed(begin, end))
            self._spans = []

    def finish(self) -> None:
        """Account for all steps; the results are complete."""
        self.settle()
        backend = self.world.backend
        moved = self.task.input_bytes(self.region) + self.task.result_bytes(self.region)
        self.phases.add("kernel", 0, self.taken * moved)
        if backend.asynchronous and self._exchange_spans:
            seconds = sum(backend.elapsed(begin, end) for begin, end in self._exchange_spans)
            self.phases.add("exchange", seconds * self.exchanges / len(self._exchange_spans))
        self.phases.add("exchange", 0, self.exchanges * self._halos.received_bytes(self._fed(self._blocks)))
        if not self._exchanging:
            self.phases.phases.pop("exchange", None)

    def _fed(self, blocks: Sequence[Array]) -> list[Array]:
        return [blocks[place] for place in self.fed]

    def _step(self, remaining: int, final: bool) -> None:
        """Take one step, after which so many are taken without an exchange; then make the halos ready."""
        targets = [self._spare[place] for place in self.fed]
        if not self._poisoned:
            for target in targets:
                poison(target)
        keep = final or (self.keep_finals and remaining == 0)
        if self.overlap and remaining == 0 and not final:
            self._overlapped(targets)
        else:
            pieces = self._pieces_of(remaining)
            for piece in pieces:
                self._compute(piece, keep, copied=len(pieces) > 1)
            if final:
                pass
            elif remaining == 0 and self._exchanging:
                self._exchange(targets)
            else:
                self._fill_outside(targets)
        for place in self.fed:
            self._blocks[place], self._spare[place] = self._spare[place], self._blocks[place]
        self._poisoned = True
        self.taken += 1

    def _pieces_of(self, remaining: int) -> list[Piece]:
        if remaining not in self._pieces:
            self._pieces[remaining] = step_pieces(self.task, self.region, remaining, apart=self._apart)
        return self._pieces[remaining]

    def _exchange(self, targets: list[Array]) -> None:
        self.exchanges += 1
        if self.world.backend.asynchronous:
            with _DeviceSpan(self):
                self._halos.fill(targets, self.world.arrays)
        else:
            with self.phases("exchange"):
                self._halos.fill(targets, self.world.arrays)

    def _overlapped(self, targets: list[Array]) -> None:
        """Compute the rows that neighbours need, then the others while those are in transfer."""
        backend = self.world.backend
        rows, (low, high) = self.region.shape[0], self.task.widths[0]
        first, last = self.steps_per_exchange * high, rows - self.steps_per_exchange * low
        for a, b in ((0, first), (last, rows)):
            if a < b:
                self._compute(self._rows(a, b), self.keep_finals, copied=True)
        self.exchanges += 1
        if not backend.asynchronous:
            with self.phases("exchange"):
                exchange = self._halos.start(targets, self.world.arrays)
            self._compute(self._rows(first, last), self.keep_finals)
            with self.phases("exchange"):
                self._halos.fill_own(targets)
                exchange.finish()
            return
        ready = backend.mark()
        self._compute(self._rows(first, last), self.keep_finals)
        with backend.beside(ready), _DeviceSpan(self):
            exchange = self._halos.start(targets, self.world.arrays)
            exchange.receive()
        self._halos.fill_own(targets)
        exchange.fill_corners()

    def _rows(self, first: int, last: int) -> Piece:
        part = self.region.rows(first, last)
        return Piece(part, part)

    def _fill_outside(self, targets: list[Array]) -> None:
        """Fill the cells beyond the array from the new ones."""
        for place, target in zip(self.fed, targets, strict=True):
            plan = self.plans[place]
            plan.fill_outside(target)
            for axis, copy in self._edges[place]:
                shift = plan.widths[axis][0] - plan.region.start[axis]
                plan.copy_along(target, axis, copy, shift)
            plan.fill_whole_axes(target)

    def _compute(self, piece: Piece, keep: bool, *, copied: bool = False) -> None:
        """Compute the cells of `piece` into the spare blocks. keep: also the results that feed no input, of
        this rank's own cells. copied: leave the blocks as they are."""
        backend = self.world.backend
        rows = piece.region.shape[0]
        ranges = [(0, rows)] if backend.asynchronous else slabs(self.task, piece.region, (0, rows))
        for (first, last), windows in self._windows(piece, ranges, copied):
            if backend.asynchronous:
                self._call(piece, first, last, windows, keep)
            else:
                with self.phases("kernel"):
                    self._call(piece, first, last, windows, keep)

    def _call(self, piece: Piece, first: int, last: int, windows: list[Array], keep: bool) -> None:
        place = piece.place.rows(first, last)
        region = piece.region.rows(first, last)
        outs = self._outs(region, place)
        results = self._results(region, windows, outs)
        for number, (feed, result) in enumerate(zip(self.feeds, results, strict=True)):
            if feed is None:
                if keep:
                    self._finals[number][self._inside(number, place)] = result
                continue
            if not (self._fills_in_place and outs is not None and result is outs[number]):
                self._spare[feed][self._at(feed, place)] = result

    def _results(self, region: Region, windows: list[Array], outs: list[Array] | None) -> Results:
        world, backend = self.world, self.world.backend
        here = BlockContext(
            world.rank, world.size, world.here.host, region.start, region.shape, self.task.shape,
            backend.stream, backend.xp,
        )  # fmt: skip
        results = self.task.call(windows, here, outs)
        check_types(self.task, results)
        return results

    def _outs(self, region: Region, place: Region | None) -> list[Array] | None:
        """Return arrays for a call to fill: the cells at `place` of the spare blocks, or buffers.

        Both are poisoned before their first use.
        """
        if not self.task.fills:
            return None
        if self._fills_in_place and place is not None:
            fed = [feed for feed in self.feeds if feed is not None]
            return [self._spare[feed][self._at(feed, place)] for feed in fed]
        if region.shape not in self._scratch:
            declared = self.task.declared(region.shape)
            assert declared is not None
            outs = [self.world.backend.empty(*one) for one in declared]
            for out in outs:
                poison(out)
            self._scratch[region.shape] = outs
        return self._scratch[region.shape]

    def _at(self, place: int, cells: Region) -> tuple[slice, ...]:
        """Return the slices of `cells` in the block of input `place`."""
        plan = self.plans[place]
        beside = self.task.field_region(place, cells)
        return tuple(
            slice(a - origin + width, b - origin + width)
            for a, b, origin, (width, _) in zip(
                beside.start, beside.stop, plan.region.start, plan.widths, strict=True
            )
        )

    def _inside(self, number: int, cells: Region) -> tuple[slice, ...]:
        """Return the slices of `cells` in this rank's part of output `number`."""
        whole, part = (self.task.output_region(one, number) for one in (self.region, cells))
        return tuple(slice(a - o, b - o) for a, b, o in zip(part.start, part.stop, whole.start, strict=True))

    def _windows(
        self, piece: Piece, ranges: Any, copied: bool
    ) -> Iterator[tuple[tuple[int, int], list[Array]]]:
        """Yield ranges of the piece's rows, each with its C-contiguous windows.

        A function may change the windows of the inputs that are fed. Rows that two windows share are saved
        and restored. copied: of all cells.
        """
        halo = sum(self.task.widths[0])
        padded = [self._padded(place, piece.place) for place in range(len(self._blocks))]
        kept: dict[int, Array] = {}
        for first, last in ranges:
            for place, rows in kept.items():
                padded[place][first : first + halo] = rows
            windows = [block[first : last + halo] for block in padded]
            if halo:
                kept = {place: padded[place][last : last + halo].copy() for place in self.fed}
            fed = set(self.fed) if copied else set()
            yield (
                (first, last),
                [
                    window.copy(order="C") if place in fed or not window.flags.c_contiguous else window
                    for place, window in enumerate(windows)
                ],
            )

    def _padded(self, place: int, cells: Region) -> Array:
        """Return the view of `cells` with the halo of one step in the block of input `place`."""
        inside = self._at(place, cells)
        widths = self.task.fields[place].widths
        wider = (
            slice(part.start - low, part.stop + high)
            for part, (low, high) in zip(inside, widths, strict=True)
        )
        return self._blocks[place][tuple(wider)]

    def _try_a_row(self) -> None:
        """Call the function on a copy of the last row: its kernels are compiled before the first step.

        Raises RunError if it changes an input that no output feeds, which all further steps need.
        """
        if self.region.size == 0:
            return
        rows = self.region.shape[0]
        row = self._rows(rows - 1, rows)
        windows = [self._padded(place, row.place).copy(order="C") for place in range(len(self._blocks))]
        before = {place: w.copy() for place, w in enumerate(windows) if place not in self.fed}
        with hide_output(), np.errstate(all="ignore"):
            self._results(row.region, windows, self._outs(row.region, None))
        for place, old in before.items():
            if not bool((old.view(np.uint8) == windows[place].view(np.uint8)).all()):
                name = self.task.fields[place].name
                raise RunError(
                    f"job {self.task.job.name} changes its input {name}, which all further steps need",
                    expected=f"no change, or an output that feeds {name}",
                    hint=f"work on {name}.copy(), or name {name} in feeds=",
                )


class _DeviceSpan:
    """Times an exchange on the device, for the first ones of a run."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def __enter__(self) -> None:
        self._begin = self._stepper.world.backend.mark()

    def __exit__(self, *_: object) -> None:
        spans = self._stepper._exchange_spans
        if len(spans) < MEASURED:
            spans.append((self._begin, self._stepper.world.backend.mark()))
