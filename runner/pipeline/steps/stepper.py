"""Time steps of a map job on one rank: blocks stay in device memory, halos are exchanged between steps.

Each input that an output feeds has two padded blocks: a step reads one and writes its results to the other;
then the two are swapped. Both have the halo of `steps_per_exchange` steps (`runner.plan.steps`), so a cell
has the same place in both. Inputs that no output feeds have one block.

With `overlap`, the last step before an exchange computes the rows that neighbours need first, and the rest
while these rows are in transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.device.api import Mark, poison
from runner.pipeline.halo_exchange import HaloPlan, Halos
from runner.pipeline.steps.blocks import StepBlocks
from runner.pipeline.steps.fused_steps import most_fused_steps, take_rows
from runner.plan.steps import most_steps, wide_widths
from runner.plan.task import Task
from runner.region import Array
from runner.report.phases import Phases
from runner.world.world import World

MEASURED = 256  # exchanges of a device that are timed; the others are assumed to take as long
PENDING = 64  # spans of device work that are not yet added to the phases


def no_step_progress(done: int) -> None:
    """Ignore progress."""


@dataclass
class Stepper(StepBlocks):
    """This rank's blocks of a task that takes steps. Every method is collective.

    steps_per_exchange: 0: as many as one kernel takes; lowered to the most that a kernel takes or the blocks
    allow (`limited`: the blocks did not allow what was asked for). overlap: see above; used if
    only axis 0 is split and the blocks are large enough. keep_finals: keep the results that feed no input
    after every `advance`, not only after the last step. progress: called with `done`. done: steps taken,
    including those of an earlier run; taken: those of this run. exchanges: number of halo exchanges so far.
    """

    world: World
    task: Task
    phases: Phases
    steps_per_exchange: int = 0
    overlap: bool = False
    progress: Callable[[int], None] = no_step_progress
    keep_finals: bool = False
    done: int = 0
    taken: int = field(default=0, init=False)
    exchanges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        task, rank = self.task, self.world.rank
        limit, fused = most_steps(task), most_fused_steps(task)
        self.limited = 0 < limit < self.steps_per_exchange
        steps = self.steps_per_exchange or fused
        if fused > 1:
            steps = min(steps, fused)
        steps = min(steps, limit or 1)  # 0: nothing is exchanged
        self.steps_per_exchange = steps
        self.plans = [
            HaloPlan(one.partition, rank, wide_widths(one, steps), task.boundary, task.cval)
            for one in task.fields
        ]
        self.lay_out(self.plans, [parts > 1 for parts in task.partition.grid])
        for plan in self.plans:
            plan.aligned = fused > 1
        self._halos = Halos([self.plans[place] for place in self.fed])
        self._exchanging = any(self.cut) and task.has_halo
        self._unexchanged = self.fused_steps if self.fused_steps > 1 else steps
        low, high = task.widths[0]
        smallest = task.shape[0] // task.partition.grid[0]
        split = [axis for axis, parts in enumerate(task.partition.grid) if parts > 1]
        self.overlap = (
            self.overlap and self._exchanging and split == [0] and smallest > steps * (low + high) > 0
        )
        self._spans: list[tuple[Mark, Mark]] = []
        self._exchange_spans: list[tuple[Mark, Mark]] = []
        self._poisoned = False

    def start(self, blocks: Sequence[Array]) -> None:
        """Take over padded blocks of `plans`' shapes with their own cells filled; prepare the first step."""
        backend = self.world.backend
        with self.phases("prepare"):
            self._blocks = list(blocks)
            self._spare = {place: self.plans[place].empty(backend, blocks[place].dtype) for place in self.fed}
            self._finals = self._unfed_results()
            if backend.asynchronous and self.world.size > 1:
                self._halos.connect(self.world.arrays, backend.empty((2,), np.dtype(np.uint8)))
        with self.phases("exchange"):
            Halos(self.plans).fill(self._blocks, self.world.arrays)
        with self.phases("prepare"):
            self._try_a_row()
            self.world.control.barrier()  # else waiting for a slower neighbour would count as exchange

    def advance(self, steps: int, *, last: bool = False) -> None:
        """Take so many steps. last: no more steps follow, so halos need not be exchanged again."""
        backend = self.world.backend
        begin = backend.mark() if backend.asynchronous else None
        left = steps
        while left:
            cycle = min(left, self.steps_per_exchange if self._exchanging else self._unexchanged)
            left -= cycle
            if self.fused_steps > 1:
                self._take_fused(cycle, last and left == 0)
                self.done += cycle
            else:
                for remaining in reversed(range(cycle)):
                    final = last and left == 0 and remaining == 0
                    self._step(remaining, final)
                    self.done += 1
            self.progress(self.done)
        if begin is not None:
            self._spans.append((begin, backend.mark()))
            if len(self._spans) >= PENDING:
                self.settle()

    def _take_fused(self, steps: int, final: bool) -> None:
        """Take so many steps by one kernel; then make the halos ready along the split axes."""
        targets = [self._spare[place] for place in self.fed]
        if not self._poisoned:
            for target in targets:
                poison(target)
        if self.overlap and not final:
            self._overlapped(targets, lambda rows, _: take_rows(self, rows, steps))
        else:
            take_rows(self, (0, self.region.shape[0]), steps)
            if not final and self._exchanging:
                self._exchange(targets)
        self.swap()
        self._poisoned = True
        self.taken += steps

    def settle(self) -> None:
        """Wait until all steps are done, and add their times to the phases."""
        backend = self.world.backend
        if backend.asynchronous:
            backend.synchronize()
            for begin, end in self._spans:
                self.phases.add("kernel", backend.elapsed(begin, end))
            self._spans = []

    def finish(self) -> None:
        """Add the times of all steps to the phases; the results are complete."""
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

    def _step(self, remaining: int, final: bool) -> None:
        """Take one step, after which `remaining` follow without an exchange; then prepare the halos."""
        targets = [self._spare[place] for place in self.fed]
        if not self._poisoned:
            for target in targets:
                poison(target)
        keep = final or (self.keep_finals and remaining == 0)
        if self.overlap and remaining == 0 and not final:
            self._overlapped(targets, self._compute_rows)
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
        self.swap()
        self._poisoned = True
        self.taken += 1

    def _exchange(self, targets: list[Array]) -> None:
        self.exchanges += 1
        if self.world.backend.asynchronous:
            with _DeviceSpan(self):
                self._halos.fill(targets, self.world.arrays)
        else:
            with self.phases("exchange"):
                self._halos.fill(targets, self.world.arrays)

    def _compute_rows(self, rows: tuple[int, int], copied: bool) -> None:
        self._compute(self._rows(*rows), self.keep_finals, copied=copied)

    def _overlapped(self, targets: list[Array], compute: Callable[[tuple[int, int], bool], None]) -> None:
        """Compute the rows that neighbours need, then the others while the first are in transfer.

        compute: takes rows, and whether others are computed from the same blocks later.
        """
        backend = self.world.backend
        rows, (low, high) = self.region.shape[0], self.task.widths[0]
        first, last = self.steps_per_exchange * high, rows - self.steps_per_exchange * low
        for part in ((0, first), (last, rows)):
            if part[0] < part[1]:
                compute(part, True)
        self.exchanges += 1
        if not backend.asynchronous:
            with self.phases("exchange"):
                exchange = self._halos.start(targets, self.world.arrays)
            compute((first, last), False)
            with self.phases("exchange"):
                self._halos.fill_own(targets)
                exchange.finish()
            return
        ready = backend.mark()
        compute((first, last), False)
        with backend.beside(ready), _DeviceSpan(self):
            exchange = self._halos.start(targets, self.world.arrays)
            exchange.receive()
        self._halos.fill_own(targets)
        exchange.fill_corners()


class _DeviceSpan:
    """Time an exchange on the device; only the first ones of a run are timed."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def __enter__(self) -> None:
        self._begin = self._stepper.world.backend.mark()

    def __exit__(self, *_: object) -> None:
        spans = self._stepper._exchange_spans
        if len(spans) < MEASURED:
            spans.append((self._begin, self._stepper.world.backend.mark()))
