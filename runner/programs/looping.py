"""Run the loops of a program on this rank: the body over and over, on two blocks for each array of its state.

An iteration reads one block of each array and writes the other; then they change places. The first one reads
the arrays as they were before the loop, which stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.device.api import poison
from meshrun.runner.errors import RunError
from meshrun.runner.spelling import option
from meshrun.runner.programs.stages import LoopStage
from meshrun.runner.region import Array

if TYPE_CHECKING:
    from meshrun.runner.programs.execute import ProgramRun

class LoopRun:
    """The blocks of one loop. run: of its body. iterations: so far, of all steps; last: of the last step."""

    def __init__(self, stage: LoopStage, outer: ProgramRun, run: ProgramRun) -> None:
        self.stage, self.run = stage, run
        self.iterations = self.last = 0
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
        return decides or bool(loop.body.tape.slots or loop.carried) or self.run.waits_for_host

    def take(self, outer: ProgramRun) -> None:
        """Run the loop on what the program has before it, and leave the program what is there after it."""
        stage, run, loop = self.stage, self.run, self.stage.loop
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
        count, most = 0, len(loop.items) if loop.items is not None else outer.most_iterations
        while wanted and count < most:
            self._iterate(count)
            count += 1
            if loop.again is not None:
                wanted = bool(self._values[loop.again])
        if wanted and loop.items is None and loop.kind == "while":
            self._fail(most)
        self._leave(outer, count)
        self.iterations, self.last = self.iterations + count, count
        outer.exchanges += run.exchanges - before
        outer.exchange_bytes = max(outer.exchange_bytes, run.exchange_bytes)

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

    def _leave(self, outer: ProgramRun, count: int) -> None:
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

    def _fail(self, most: int) -> None:
        raise RunError(
            f"the loop in line {self.stage.loop.line} does not end",
            got=f"{most:,} iterations",
            expected="a condition that becomes false",
            hint=f"a looser tolerance, or {option('max_iterations', 'N')} for more",
            everywhere=True,
        )

