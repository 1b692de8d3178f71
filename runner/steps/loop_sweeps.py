"""Iterations of a loop in a function by kernels of several steps, where its body is one kernel.

Such a body is a step of its own: its state is the fields, and what it reads from outside of the loop are
inputs that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.arrays.halo.exchange import exchange
from meshrun.runner.arrays.halo.packed import bind_fill
from meshrun.runner.compiler.decide import fused_alone
from meshrun.runner.compiler.whole.block_form import block_job
from meshrun.runner.device.api import NotCapturable
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.looping import LoopRun
from meshrun.runner.programs.stages import LoopStage
from meshrun.runner.region import Shape
from meshrun.runner.report.phases import Phases
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import World


class LoopSweeps:
    """The blocks of one loop of a known number of iterations.

    stepper: of a task whose step is an iteration. count: of iterations. All of them may be part of a step's
    CUDA graph: they begin on the same blocks every time.
    """

    def __init__(self, world: World, stepper: Stepper, count: int) -> None:
        self._world, self._count, self.stepper = world, count, stepper
        self._first: tuple[list[DistributedArray], dict[int, DistributedArray]] | None = None
        self._fill: Callable[[], None] | None = None  # the halos that the first kernel reads
        stepper.arrays = [
            empty_array(world, plan, field.dtype, stepper)
            for plan, field in zip(stepper.plans, stepper.task.fields, strict=True)
        ]

    def take(self, arrays: Sequence[DistributedArray], *, capturing: bool = False) -> list[DistributedArray]:
        """Run all iterations. Return what the body's inputs are then.

        arrays: what they are at first. capturing: whether a CUDA graph is made of it. Raises NotCapturable.
        """
        stepper = self.stepper
        if capturing and not stepper.is_capturable:
            raise NotCapturable("the host exchanges halos between the iterations of a loop")
        if self._first is not None:
            stepper.arrays, stepper.spare = list(self._first[0]), dict(self._first[1])
        for own, given in zip(stepper.arrays, arrays, strict=True):
            if own is not given:
                own.interior[...] = given.interior
            own.written()
        stepper.taken = 0
        if self._first is None:
            stepper.start(stepper.arrays)
            self._first = first = list(stepper.arrays), dict(stepper.spare)
            stepper.issue(self._count)
            self._fill = self._filling(first[0])  # once it is known whether kernels take several steps
        else:
            if self._fill is not None:
                self._fill()
            stepper.issue(self._count)
        return stepper.arrays

    def _filling(self, first: Sequence[DistributedArray]) -> Callable[[], None] | None:
        """Return what fills the halos of the arrays that the first kernel reads; None if it reads none."""
        stepper = self.stepper
        arrays = [one for one in first if any(map(any, one.layout.filled.declared))]
        # Kernels of several steps read no cell beyond the ends of an array.
        if not arrays or (stepper.fused_steps > 1 and not stepper._exchanging):
            return None
        tables = stepper._tables
        return partial(exchange, arrays) if tables is None else bind_fill(self._world, arrays, tables)

    @property
    def exchanges(self) -> int:
        """Halo exchanges so far."""
        return self.stepper.exchanges

    def close(self) -> None:
        """Free what exchanges between devices hold. Collective."""
        self.stepper.settle()
        self.stepper.drop_graphs()
        if self.stepper._device_halos is not None:
            self.stepper._device_halos.close()


def close_sweeps(loops: Iterable[LoopRun]) -> None:
    """Close the sweeps of loops. Collective."""
    for loop in loops:
        if loop.sweeps is not None:
            loop.sweeps.close()


def add_sweeps(run: ProgramRun, grid: Shape, phases: Phases) -> None:
    """Give the loops of a program kernels of several steps where these can run them. Collective."""
    for loop in run.loops.values():
        task, items = _task_of(run.world, loop.stage, grid), loop.stage.loop.numbers.items
        if task is not None and task.kernel is not None and items is not None:
            stepper = Stepper(run.world, task, phases)
            if stepper.fused_steps > 1:
                feeds, copied = loop.stage.loop.feeds, list[int]()
                for output, place in loop.stage.writes:
                    plan, feed = run.plans[place], feeds[output]
                    assert plan is not None
                    assert feed is not None
                    if not stepper.plans[feed].serves_for(plan):
                        copied.append(output)
                loop.keep_blocks(copied)  # those that the program needs in other blocks
                loop.sweeps = LoopSweeps(run.world, stepper, len(items))
                _share_inputs(run, loop.stage, stepper)
        add_sweeps(loop.run, grid, phases)


def _share_inputs(run: ProgramRun, stage: LoopStage, stepper: Stepper) -> None:
    """Let stages before a loop write what it reads, and leaves as it is, into the loop's own blocks."""
    for number, place in enumerate(stage.arrays):
        if place in run.between and number not in stepper.fed:
            plan, array = run.plans[place], stepper.arrays[number]
            if plan is not None and array.layout.serves_for(plan):
                run.arrays[place] = array


def _task_of(world: World, stage: LoopStage, grid: Shape) -> Task | None:
    """Return the task of which an iteration is a step, with its kernel; None if it has none on some rank."""
    loop, body = stage.loop, stage.loop.body
    shapes: list[Shape] = [*(one.shape for one in body.inputs), *(one.shape for one in body.outputs)]
    fields = all(shapes)
    plain = not (body.staged or body.checks or body.tape.slots or body.graph.points or body.sizes)
    known = loop.kind == "for" and loop.again is None and loop.first is None and not loop.numbers.carried
    if not (fields and plain and known) or None in loop.feeds:
        return None
    names = tuple(f"input{number}" for number in range(len(body.inputs)))
    feeds = tuple(names[feed] for feed in loop.feeds if feed is not None)
    outputs = tuple(f"output{number}" for number in range(len(body.outputs)))
    job = Job("loop", "map", _iteration, (), frozenset(), names, outputs, feeds, whole=True)
    types = [(one.shape, one.dtype) for one in body.inputs]
    text = "x".join(map(str, grid[: len(body.space)]))
    task: Task | None = None
    try:
        task = plan_task(block_job(job, body), {}, types, world.size, grid=text)
        task, _ = fused_alone(world.backend.device, task, "require", "strict", len(loop.numbers.items or ()))
    except UserError:  # a block is smaller than what a step reads of it
        task = None
    return task if all(world.control.allgather(task is not None and task.kernel is not None)) else None


def _iteration(*arrays: Any) -> Any:
    """Stand in for the statements of a loop."""
