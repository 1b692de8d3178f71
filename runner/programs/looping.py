"""Run the loops of a program on this rank: the body over and over, on two blocks for each array of its state.

An iteration reads one block of each array and writes the other; then they change places. The first one reads
the arrays as they were before the loop, which stay as they are.

On a GPU, iterations after the first are CUDA graphs. The host waits for the condition of each; once a loop is
long, it launches further iterations first, whose results are dropped if the condition is false. Of small
arrays, of which an iteration takes the host longer than the GPU, a graph holds several iterations: each
writes a block of its own, so that the results of any of them are there when the host knows which is the last.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.compiler.trace.graph import slot_of
from meshrun.runner.device.api import Mark, poison
from meshrun.runner.errors import UserError
from meshrun.runner.programs.body_graphs import EAGER, BodyGraphs
from meshrun.runner.programs.conditions import (
    KEPT,
    Iteration,
    compared_text,
    compares_nan,
    not_ended,
    operand_arrays,
    operand_outputs,
    report_nan,
)
from meshrun.runner.programs.marching import RowMarch, rows_of_loop
from meshrun.runner.programs.stages import LoopStage
from meshrun.runner.region import HostArray

AHEAD = 16  # iterations before others are launched while the condition is not known: some may be in vain
BATCHES = (8, 4, 2)  # iterations of one graph: the most whose blocks, twice as many, have at most BATCH_BYTES
BATCH_BYTES = 256 << 20


@dataclass(frozen=True)
class LoopCount:
    """How often a loop in a function ran.

    line: in the user's file. iterations: of all steps. last: of the last time that the loop ran. waits:
    whether the host waits for a value in each iteration.
    """

    line: int
    iterations: int
    last: int
    waits: bool


def counts_of(loops: Mapping[Any, LoopRun], times: int) -> list[LoopCount]:
    """Return the iterations of loops, with those in their bodies, in the order of their lines.

    times: how often a counted loop ran, also from CUDA graphs, of which this module knows nothing.
    """
    found = dict[int, LoopCount]()
    for one in loops.values():
        loop, tally = one.stage.loop, one.tally
        total, last, runs = tally.iterations, tally.last, tally.runs
        if loop.numbers.items is not None and loop.again is None and one.stage.first is None:
            last, runs = len(loop.numbers.items), times
            total = last * times
        of_body = counts_of(one.run.loops, total)
        if loop.kind != "if":
            unrolled, waits = loop.numbers.unrolled, loop.again is not None
            of_body.append(LoopCount(loop.line, total + unrolled * runs, last + unrolled, waits))
        # A loop of an iteration that is unrolled is there once more.
        for each in of_body:
            other = found.get(each.line, each)
            iterations = each.iterations + (0 if other is each else other.iterations)
            found[each.line] = replace(each, iterations=iterations)
    return sorted(found.values(), key=lambda count: count.line)


class IterationValues:
    """The values that an iteration has made.

    kept: its row of `execute.ValueSlots`, on the device. row: the same on the host, if the host needs it;
    views: of each value, by number, its slot there. given: numbers that the host has made for the iteration.
    mark: after which the values are there, and the numbers are no longer needed. exchanges: of halos, until
    then.
    """

    mark: Mark = None
    exchanges = 0

    def __init__(self, run: Any, count: int) -> None:
        """count: of numbers that the host makes."""
        self.kept = run.world.backend.empty(run.values.row.shape, run.values.row.dtype)
        self.row = run.world.backend.host_empty(run.values.row.shape, run.values.row.dtype)
        self.given = run.world.backend.host_empty((max(count, 1),), run.values.row.dtype)
        self.views = {n: slot_of(self.row, n, dtype) for n, dtype in run.program.dtypes.items()}


@dataclass
class Tally:
    """How often the host has run a loop.

    iterations: of all runs; last: of the last one. has_nan: whether the condition has compared a NaN.
    compared: what it compared in the last iterations of a loop that did not end.
    """

    runs: int = 0
    iterations: int = 0
    last: int = 0
    has_nan: bool = False
    compared: deque[str] = field(default_factory=lambda: deque[str](maxlen=KEPT))

    def add(self, count: int) -> None:
        self.runs, self.iterations, self.last = self.runs + 1, self.iterations + count, count


@dataclass(frozen=True)
class Ahead:
    """How iterations are launched before it is known whether they are wanted.

    possible: whether one in vain leaves what the one before it has computed. batch: iterations of a graph.
    """

    possible: bool
    batch: int

    @property
    def slots(self) -> int:
        """Blocks of each array that feeds the next iteration, and buffers of values."""
        return 2 * self.batch


def how_far_ahead(stage: LoopStage, ranks: int, *, asynchronous: bool) -> Ahead:
    """Return how iterations are launched before it is known whether they are wanted: the same on every rank.

    asynchronous: whether the device computes while the host goes on.
    """
    loop, program = stage.loop, stage.body
    fields = (output for output, one in enumerate(program.outputs) if one.shape)
    unfed = any(loop.feeds[output] is None for output in fields)
    possible = loop.again is not None and not (unfed or program.checks or program.loops)
    nbytes = sum(math.prod(one.shape) * one.dtype.itemsize for one in program.outputs) // ranks
    batch = next((one for one in BATCHES if 2 * one * nbytes <= BATCH_BYTES), 1)
    return Ahead(possible, batch if possible and asynchronous else 1)


class LoopRun:
    """The blocks of one loop.

    outer, run: an `execute.ProgramRun`, of the program and of the body. tally: of what the host has run.
    graphs: of iterations.
    """

    def __init__(self, stage: LoopStage, outer: Any, run: Any) -> None:
        self.stage, self.run = stage, run
        self.tally = Tally()
        self.graphs = BodyGraphs(run)
        self._next: dict[int, Any] = {}  # carried numbers, as the iteration that runs leaves them
        self.sweeps: Any = None  # of `steps.loop_sweeps`: takes all iterations
        loop, program, world = stage.loop, run.program, outer.world
        left = dict(stage.writes)
        self._ahead = how_far_ahead(stage, world.size, asynchronous=world.backend.asynchronous)
        slots = self._ahead.slots
        # Blocks of what feeds the next iteration, one of what does not; as many rows of values.
        self._blocks: dict[int, list[DistributedArray]] = {}
        for output, one in enumerate(program.outputs):
            if not one.shape:
                continue
            feed = loop.feeds[output]
            plan = outer.plans[left[output]] if output in left else run.plans[feed or 0]
            assert plan is not None
            self._blocks[output] = [
                empty_array(world, plan, one.dtype, outer.allocator)
                for _ in range(1 if feed is None else slots)
            ]
            for array in self._blocks[output]:
                poison(array.block)
        self._list_blocks()
        self._answers = [IterationValues(run, len(loop.body.tape.slots)) for _ in range(slots)]
        # Which values become which of the next iteration.
        moves = [(self._number(output, part), value) for value, output, part in self._fed_values]
        self._moves = world.backend.empty((2, len(moves)), np.dtype(np.int64))
        world.backend.upload(np.array(moves, np.int64).reshape(-1, 2).T.copy(), self._moves)

    @cached_property
    def march(self) -> RowMarch | None:
        """What computes iterations of one row each, row by row, on CPUs; None for other loops."""
        world = self.run.world
        rows = rows_of_loop(self.stage) if world.backend.device.kind == "cpu" else None
        split = {axis for axis, parts in enumerate(self.run.partition.grid) if parts > 1}
        is_alone = rows is not None and not rows.beside & split - {rows.axis}
        return RowMarch(self.run, rows) if rows is not None and is_alone else None

    @cached_property
    def _fed_values(self) -> list[tuple[int, int, str]]:
        """The values that are outputs of the iteration before, each with the output and its part."""
        return [
            (value, output, one.part)
            for value, one in self.run.program.inputs.items()
            for output, feed in enumerate(self.stage.loop.feeds)
            if feed == one.number
        ]

    def _number(self, output: int, part: str) -> int:
        """Return the number of the value that an output without axes is, or its part."""
        numbers: Sequence[int] = self.run.program.numbers.values[output]
        return numbers[part == "imag"]

    def prepare(self) -> list[tuple[int, str, int]]:
        """Compile the kernels of an iteration; see `execute.ProgramRun.prepare`. Collective."""
        if self.march is None:
            found: list[tuple[int, str, int]] = self.run.prepare()
            return found
        kernel, run = self.march.kernel, self.run
        failed = kernel.kernel is None and run.compiled and run.region.size > 0
        reasons = run.world.control.allgather([(0, kernel.reason, kernel.line)] if failed else [])
        return next((one for one in reasons if one), [])

    def keep_blocks(self, outputs: Collection[int]) -> None:
        """Free the blocks, as sweeps take all iterations, but one of each of some outputs."""
        self._blocks = {output: self._blocks[output][:1] for output in outputs}
        self._list_blocks()

    def _list_blocks(self) -> None:
        """List the blocks that iterations write, those of each slot: each with the input that it feeds."""
        feeds, slots = self.stage.loop.feeds, range(self._ahead.slots)
        self._written = [
            [(self._target(output, slot), feeds[output]) for output in self._blocks] for slot in slots
        ]
        outputs = range(len(self.run.program.outputs))
        self._outs = [
            [self._target(n, slot).interior if n in self._blocks else None for n in outputs] for slot in slots
        ]

    @property
    def waits_for_host(self) -> bool:
        """Whether the host decides about iterations, or makes numbers for them."""
        loop = self.stage.loop
        decides = self.stage.first is not None or loop.again is not None
        return decides or bool(loop.body.tape.slots or loop.numbers.carried) or self.run.waits_for_host

    def take(self, outer: Any) -> None:
        """Run the loop on what the program has before it, and leave the program what is there after it."""
        if self.stage.loop.again is None and self.stage.first is None:  # no value decides
            self._take(outer)
            return
        with self.run.world.operations.waits.of_line(self.stage.loop.line):
            self._take(outer)

    def _take(self, outer: Any) -> None:
        stage, run, loop = self.stage, self.run, self.stage.loop
        if self.sweeps is not None and loop.numbers.items is not None:
            self._sweep(outer)
            return
        self._begin(outer)
        before = run.exchanges
        wanted = stage.first is None or run.world.waited_for(outer.values.views[stage.first])
        items = loop.numbers.items
        self.tally.compared.clear()
        if self.march is not None and items is not None:
            self._march(outer, self.march, items)
            outer.exchanges += run.exchanges - before
            outer.exchange_bytes = max(outer.exchange_bytes, run.exchange_bytes)
            return
        allowed = outer.host.rules.most_iterations
        count, most = 0, allowed - loop.numbers.unrolled if items is None else len(items)
        if not wanted:
            self._watch_first(outer)
        # Before a graph of several iterations is made, each block has been written and read by single ones.
        issued, patience = 0, EAGER
        if self.tally.last < 2 * AHEAD:
            patience = max(AHEAD, self._ahead.slots + 1)
        while wanted and count < most:
            # Blocks are written again once their iteration is known not to be the last one.
            last = min(count + self._ahead.slots, most) if count >= patience and self._ahead.possible else 0
            while issued + self._ahead.batch <= last and self._iterate_ahead(issued):
                issued += self._ahead.batch
            if issued == count:
                self._iterate(count)
                issued += 1
            count += 1
            if loop.again is not None:
                answer = self._answers[(count - 1) % self._ahead.slots]
                if run.world.backend.asynchronous:
                    with run.world.operations.waits:
                        run.world.backend.passed(answer.mark)
                values = answer.views
                wanted = bool(values[run.program.numbers.values[loop.again][0]])
                self._watch(values, count)
                if count > most - KEPT:
                    self.tally.compared.append(compared_text(stage.compared, values))
        if issued > count:  # the others were in vain
            run.exchanges = self._answers[(count - 1) % self._ahead.slots].exchanges
        if wanted and items is None and loop.kind == "while":
            raise not_ended(loop.line, allowed, [text for text in self.tally.compared if text])
        self._leave(outer, count)
        self.tally.add(count)
        outer.exchanges += run.exchanges - before
        outer.exchange_bytes = max(outer.exchange_bytes, run.exchange_bytes)

    def _begin(self, outer: Any) -> None:
        """Give the body what the program has before the loop."""
        stage, run, loop = self.stage, self.run, self.stage.loop
        for number, place in enumerate(stage.arrays):
            run.arrays[number] = None if place is None else outer.arrays[place]
        for value, source in stage.values:
            run.values.views[value][...] = outer.values.views[source]
        run.forget()
        run.host, run.capturing, run.tables = outer.host, outer.capturing, outer.tables
        self._next = {}
        before_loop = loop.body.tape.numbers(run.host.step, run.host.given) if loop.numbers.carried else []
        for one in loop.numbers.carried:
            run.host.given[one.number] = before_loop[one.initial] if one.on_tape[0] else one.initial

    def _march(self, outer: Any, march: RowMarch, items: range) -> None:
        """Run all iterations, each of which computes a row."""
        run, loop = self.run, self.stage.loop
        numbers = np.zeros((len(items), len(loop.body.tape.slots)), run.values.row.dtype)
        # Where neither cells nor numbers depend on those of the iterations before, the last one's are enough.
        carried = {one.number for one in loop.numbers.carried}
        depending = loop.body.tape.depending_on(carried)
        each = march.numbered or any(
            one.on_tape[1] and one.final in depending for one in loop.numbers.carried
        )
        for count in range(0 if each else len(items) - 1, len(items)):
            self._make_numbers(count, numbers[count])
        # The last iteration's blocks, which begin as what there was before the loop.
        targets = {output: self._target(output, len(items) - 1) for output in self._blocks}
        for output, array in targets.items():
            feed = loop.feeds[output]
            assert feed is not None
            array.interior[...] = run.arrays[feed].interior
            array.written()
            run.arrays[feed] = array
        march.take(items, numbers, targets)
        self._leave(outer, len(items))
        self.tally.add(len(items))

    def _sweep(self, outer: Any) -> None:
        """Run all iterations by kernels of several steps."""
        given = [outer.arrays[place] for place in self.stage.arrays if place is not None]
        before = self.sweeps.exchanges
        found = self.sweeps.take(given, capturing=outer.capturing)
        outer.exchanges += self.sweeps.exchanges - before
        for output, number in self.stage.writes:
            array = found[self.stage.loop.feeds[output]]
            if output in self._blocks:
                own, array = array.interior, self._target(output, 0)
                array.interior[...] = own
            array.written()
            outer.arrays[number] = array

    def _iterate(self, first: int, batch: int = 1) -> None:
        """Run some iterations, after so many."""
        run, backend = self.run, self.run.world.backend
        slots, answers = [], []
        for count in range(first, first + batch):
            slot = count % self._ahead.slots
            answer = self._answers[slot]
            if answer.mark is not None:  # an earlier iteration may still read its numbers
                backend.passed(answer.mark)
            self._make_numbers(count, answer.given)
            slots.append(slot)
            answers.append(answer)
        before = run.exchanges
        if backend.asynchronous:
            targets = [array for slot in slots for array, _ in self._written[slot]]
            if self.graphs.issue(targets, partial(self._issue, slots), (*slots,)):
                for slot in slots:
                    self._note_written(slot)
        else:
            self._issue(slots)
        waits = self.stage.loop.again is not None or self.stage.loop.body.tape.slots
        mark = backend.mark() if waits else None
        for n, answer in enumerate(answers, 1):
            answer.mark, answer.exchanges = mark, before + (run.exchanges - before) * n // batch

    def _make_numbers(self, count: int, row: HostArray) -> None:
        """Make the host's numbers of an iteration, after so many. row: those that the device needs."""
        loop, given = self.stage.loop, self.run.host.given
        tape, numbers = loop.body.tape, loop.numbers
        if numbers.index is not None and numbers.items is not None:
            given[numbers.index] = numbers.items[count]
        if not (tape.slots or numbers.carried):
            return
        given.update(self._next)
        values = tape.numbers(self.run.host.step, given)
        if tape.slots:
            row[...] = tape.row_of(values)
        # The loops within this iteration still compute with what it has found.
        self._next = {
            one.number: values[one.final] if one.on_tape[1] else one.final for one in numbers.carried
        }

    def _iterate_ahead(self, first: int) -> bool:
        """Run iterations before it is known whether they are wanted. Return whether they were run."""
        given = self.run.host.given
        if self.graphs.reason or self.run.capturing or not self.run.world.backend.asynchronous:
            return False
        before, following = dict(given), self._next
        try:
            self._iterate(first, self._ahead.batch)
        except UserError:  # of the host's numbers, which count only if the iteration does
            given.clear()
            given.update(before)
            self._next = following
            return False
        return True

    def _issue(self, slots: Sequence[int]) -> None:
        """Issue what iterations compute, and keep their values: also on the host, if these decide."""
        run, loop, backend = self.run, self.stage.loop, self.run.world.backend
        for slot in slots:
            answer = self._answers[slot]
            if loop.body.tape.slots:
                run.set_step(answer.given)
            run.take(self._outs[slot])
            if run.program.dtypes:
                host = answer.row if loop.again is not None else None
                backend.keep_row(run.values.row, answer.kept, host, self._moves)
            self._note_written(slot)

    def _note_written(self, slot: int) -> None:
        """Note what an iteration has written: the next one reads it."""
        for array, feed in self._written[slot]:
            array.written()
            if feed is not None:
                self.run.arrays[feed] = array

    def _target(self, output: int, count: int) -> DistributedArray:
        blocks = self._blocks[output]
        return blocks[count % len(blocks)]

    def _leave(self, outer: Any, count: int) -> None:
        """Leave the results of so many iterations. Without any, they are what there was before."""
        stage, loop = self.stage, self.stage.loop
        self.run.host.given.update(self._next)
        for output, number in stage.writes:
            if count:
                outer.arrays[number] = self._target(output, count - 1)
                continue
            array, feed = self._target(output, 0), loop.feeds[output]
            place = None if feed is None else stage.arrays[feed]
            source = None if place is None else outer.arrays[place]
            array.interior[...] = 0 if source is None else source.interior
            array.written()
            outer.arrays[number] = array
        for output, number, part in stage.results:
            feed, view = loop.feeds[output], outer.values.views[number]
            if count:
                kept = self._answers[(count - 1) % self._ahead.slots].kept
                view[...] = slot_of(kept, self._number(output, part), view.dtype)
            else:
                view[...] = 0 if feed is None else outer.values.views[stage.firsts[feed, part]]

    def _watch(self, values: Any, count: int) -> None:
        """Show what the condition compares after so many iterations; report the first NaN.

        values: by number.
        """
        loop, compared, rules = self.stage.loop, self.stage.compared, self.run.host.rules
        text = partial(compared_text, compared, values)
        if not self.tally.has_nan and compares_nan(compared, values):
            self._report_nan(text(), count, self._left_arrays(count))
        if loop.kind != "if":
            rules.progress(loop.line, count + loop.numbers.unrolled, text)

    def _watch_first(self, outer: Any) -> None:
        """Report a NaN that the condition compares before the first iteration."""
        compared, values = self.stage.compared_at_first, outer.values.views
        if not self.tally.has_nan and compares_nan(compared, values):
            self._report_nan(compared_text(compared, values), 0, self._first_arrays(outer))

    def _report_nan(self, text: str, count: int, arrays: Iterable[tuple[str, DistributedArray]]) -> None:
        """Report the first NaN that the condition compares. text: what it compares. count: of iterations."""
        host = self.run.host
        self.tally.has_nan = True
        at = Iteration(self.stage.loop.line, count + self.stage.loop.numbers.unrolled, host.step, host.saved)
        report_nan(self.run.world, at, text, arrays, fails=host.rules.check_finite)

    def _left_arrays(self, count: int) -> list[tuple[str, DistributedArray]]:
        """Return the arrays that so many iterations have left, those first that the condition depends on."""
        loop, outputs = self.stage.loop, self.run.program.outputs
        assert loop.again is not None
        order = operand_outputs(loop.body, loop.again)
        return [(outputs[n].name, self._target(n, count - 1)) for n in order]

    def _first_arrays(self, outer: Any) -> list[tuple[str, DistributedArray]]:
        """Return the arrays before the first iteration, those first that its condition depends on."""
        stage, program, outputs = self.stage, outer.program, self.run.program.outputs
        names = {n: one.name for n, one in enumerate(program.arrays[: program.function_inputs])}
        for one, feed in zip(outputs, stage.loop.feeds, strict=True):
            place = None if feed is None else stage.arrays[feed]
            if place is not None:
                names[place] = one.name
        order = dict.fromkeys([*operand_arrays(program, stage.compared_at_first), *names])
        arrays = ((names[n], outer.arrays[n]) for n in order if n in names)
        return [(name, array) for name, array in arrays if array is not None]
