"""Run the loops of a program on this rank: the body over and over, on two blocks for each array of its state.

An iteration reads one block of each array and writes the other; then they change places. The first one reads
the arrays as they were before the loop, which stay as they are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.device.api import poison
from meshrun.runner.errors import RunError
from meshrun.runner.programs.stages import LoopComparison, LoopStage
from meshrun.runner.region import Array
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import option

KEPT = 3  # last iterations of which an error tells the numbers


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


def counts_of(loops: Mapping[int, LoopRun], times: int) -> list[LoopCount]:
    """Return the iterations of loops, with those in their bodies, in the order of their lines.

    times: how often a counted loop ran, also from CUDA graphs, of which this module knows nothing.
    """
    found = dict[int, LoopCount]()
    for one in loops.values():
        loop, total, last, runs = one.stage.loop, one.iterations, one.last, one.runs
        if loop.items is not None and loop.again is None and one.stage.first is None:
            last, runs = len(loop.items), times
            total = last * times
        of_body = counts_of(one.run.loops, total)
        if loop.kind != "if":
            unrolled, waits = loop.unrolled, loop.again is not None
            of_body.append(LoopCount(loop.line, total + unrolled * runs, last + unrolled, waits))
        # A loop of an iteration that is unrolled is there once more.
        for each in of_body:
            other = found.get(each.line, each)
            iterations = each.iterations + (0 if other is each else other.iterations)
            found[each.line] = replace(each, iterations=iterations)
    return sorted(found.values(), key=lambda count: count.line)


class LoopRun:
    """The blocks of one loop.

    outer, run: an `execute.ProgramRun`, of the program and of the body. iterations: so far, of all steps;
    last: of the last time that the loop ran; runs: how often it ran.
    """

    def __init__(self, stage: LoopStage, outer: Any, run: Any) -> None:
        self.stage, self.run = stage, run
        self.iterations = self.last = self.runs = 0
        self.sweeps: Any = None  # of `steps.loop_sweeps`: takes all iterations
        self._has_nan = False  # whether the condition has compared a NaN
        loop, program, world = stage.loop, run.program, outer.world
        left = dict(stage.writes)
        # Two blocks of what feeds the next iteration, one of what does not; buffers of values.
        self._blocks: dict[int, list[DistributedArray]] = {}
        self._values: dict[int, Array] = {}
        for output, one in enumerate(program.outputs):
            if not one.shape:
                self._values[output] = world.backend.empty((), one.dtype)
                continue
            feed = loop.feeds[output]
            plan = outer.plans[left[output]] if output in left else run.plans[feed or 0]
            assert plan is not None
            self._blocks[output] = [
                empty_array(world, plan, one.dtype, outer.allocator) for _ in range(1 if feed is None else 2)
            ]
            for array in self._blocks[output]:
                poison(array.block)
        self._fed_values = [
            (value, output, one.part)
            for value, one in program.inputs.items()
            for output, feed in enumerate(loop.feeds)
            if feed == one.number
        ]

    @property
    def waits_for_host(self) -> bool:
        """Whether the host decides about iterations, or makes numbers for them."""
        loop = self.stage.loop
        decides = self.stage.first is not None or loop.again is not None
        return (
            decides
            or self.sweeps is not None
            or bool(loop.body.tape.slots or loop.carried)
            or self.run.waits_for_host
        )

    def take(self, outer: Any) -> None:
        """Run the loop on what the program has before it, and leave the program what is there after it."""
        stage, run, loop = self.stage, self.run, self.stage.loop
        if self.sweeps is not None and loop.items is not None:
            self._sweep(outer)
            return
        for number, place in enumerate(stage.arrays):
            run.arrays[number] = None if place is None else outer.arrays[place]
        for value, source in stage.values:
            run.values.views[value][...] = outer.values.views[source]
        run.forget()
        run.step, run.capturing, run.given = outer.step, outer.capturing, outer.given
        run.most_iterations = outer.most_iterations
        before = run.exchanges

        before_loop = loop.body.tape.numbers(run.step, run.given) if loop.carried else []
        for one in loop.carried:
            run.given[one.number] = before_loop[one.initial] if one.on_tape[0] else one.initial
        wanted = stage.first is None or bool(outer.values.views[stage.first])
        count, most = 0, outer.most_iterations - loop.unrolled if loop.items is None else len(loop.items)
        said = deque[str](maxlen=KEPT)  # what the condition compared in the last iterations
        while wanted and count < most:
            self._iterate(count)
            count += 1
            if loop.again is not None:
                wanted = bool(self._values[loop.again])
            if loop.items is None and count > most - KEPT:
                said.append(_text(stage.compared, run))
        if count:
            self._warn_of_nan(stage.compared, run, count)
        else:
            self._warn_of_nan(stage.compared_at_first, outer, count)
        if wanted and loop.items is None and loop.kind == "while":
            self._fail(outer.most_iterations, [text for text in said if text])
        self._leave(outer, count)
        self.iterations, self.last, self.runs = self.iterations + count, count, self.runs + 1
        outer.exchanges += run.exchanges - before
        outer.exchange_bytes = max(outer.exchange_bytes, run.exchange_bytes)

    def _sweep(self, outer: Any) -> None:
        """Run all iterations by kernels of several steps."""
        given = [outer.arrays[place] for place in self.stage.arrays if place is not None]
        before = self.sweeps.exchanges
        found = self.sweeps.take(given)
        outer.exchanges += self.sweeps.exchanges - before
        for output, number in self.stage.writes:
            array, feed = self._target(output, 0), self.stage.loop.feeds[output]
            array.interior[...] = found[feed].interior
            array.written()
            outer.arrays[number] = array

    def _iterate(self, count: int) -> None:
        run, loop = self.run, self.stage.loop
        tape = loop.body.tape
        if loop.index is not None and loop.items is not None:
            run.given[loop.index] = loop.items[count]
        if tape.slots:
            run.set_step(run.world.xp.asarray(tape.row(run.step, run.given)))
        numbers = tape.numbers(run.step, run.given) if loop.carried else []

        # What is read changes places with what is written.
        targets = {output: self._target(output, count) for output in self._blocks}
        outs = [
            targets[output].interior if output in targets else self._values[output]
            for output in range(len(run.program.outputs))
        ]
        run.take(outs)
        for output, array in targets.items():
            array.written()
            feed = loop.feeds[output]
            if feed is not None:
                run.arrays[feed] = array
        for value, output, part in self._fed_values:
            found = self._values[output]
            run.values.views[value][...] = getattr(found, part) if part else found
        for one in loop.carried:
            run.given[one.number] = numbers[one.final] if one.on_tape[1] else one.final

    def _target(self, output: int, count: int) -> DistributedArray:
        blocks = self._blocks[output]
        return blocks[count % len(blocks)]

    def _leave(self, outer: Any, count: int) -> None:
        """Leave the results of so many iterations. Without any, they are what there was before."""
        stage, loop = self.stage, self.stage.loop
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
            feed = loop.feeds[output]
            if count or feed is None:
                found = self._values[output]
                if not count:
                    found[...] = 0
                outer.values.views[number][...] = getattr(found, part) if part else found
            else:
                outer.values.views[number][...] = outer.values.views[stage.firsts[feed, part]]

    def _warn_of_nan(self, compared: Sequence[LoopComparison], run: Any, count: int) -> None:
        """Warn once if the condition compares a NaN. count: iterations so far. run: whose values it has."""
        sides = [side for one in compared for side in one.sides if isinstance(side, int)]
        if self._has_nan or not any(math.isnan(run.values.views[side].item()) for side in sides):
            return
        self._has_nan = True
        count += self.stage.loop.unrolled
        when = f"after iteration {count:,}" if count else "before the first iteration"
        run.world.warn(
            f"the condition of the loop in line {self.stage.loop.line} compares a NaN in step "
            f"{run.step + 1:,}, {when} ({_text(compared, run)})"
        )

    def _fail(self, most: int, said: Sequence[str]) -> None:
        """Report a loop that its condition does not end. said: what that compared in the last iterations."""
        last = "the last one" if len(said) == 1 else f"the last {len(said)}"
        raise RunError(
            f"the loop in line {self.stage.loop.line} did not end within {counted(most, 'iteration')}",
            why=f"in {last} its condition compared {', '.join(said)}" if said else None,
            hint=f"a looser tolerance, or {option('max_iterations', 'N')} for more",
            everywhere=True,
        )


def _text(compared: Sequence[LoopComparison], run: Any) -> str:
    """Return what a condition compares, in numbers. run: whose values it compares."""
    return " and ".join(
        f" {one.sign} ".join(
            f"{run.values.views[side].item():.6g}" if isinstance(side, int) else side for side in one.sides
        )
        for one in compared
    )
