"""Steps of a program in stages: the loop and its observers see it as they see any stepper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.compiler.decide import not_compiled
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram
from meshrun.runner.device.api import Mark, NotCapturable, poison
from meshrun.runner.errors import RunError
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.looping import LoopCount, counts_of
from meshrun.runner.programs.reducing import prepared_for_kernels, reducing_kernels
from meshrun.runner.programs.spectral.spectral_run import SpectralRun
from meshrun.runner.programs.stages import StagedProgram, plan_program, with_results_as_arrays
from meshrun.runner.region import Array
from meshrun.runner.steps import halo_path
from meshrun.runner.steps.loop_sweeps import add_sweeps, close_sweeps
from meshrun.runner.steps.step_scalars import StepScalars
from meshrun.runner.steps.stepper import EAGER, GRAPH_STEPS, Stepper

IN_STAGES = "a step has several stages"
BY_HOST = "the host issues redistributions between ranks"
NUMBERED = "a step in stages has numbers of its own"
WAITS = "the host decides about loops or conditions in a step"
WAITS_BETWEEN_GRAPHS = f"{WAITS}; their iterations are CUDA graphs"


class ProgramStepper(Stepper):
    """This rank's blocks of a program in stages. Every method is collective.

    An input without axes is a value: every rank has it, in a block of shape (). Each step runs all stages.
    """

    def __post_init__(self) -> None:
        task, world = self.task, self.world
        self._peers, self._device_halos = "", None
        self.stages: ProgramRun | SpectralRun
        if isinstance(task.job.program, SpectralProgram):
            self.program: StagedProgram | SpectralProgram = task.job.program
            self._shared: dict[int, int] = {}
            grid = task.partition.grid
            self.stages = SpectralRun(world, task.job.program, grid, self.phases, task.compiled, self)
        else:
            self.stages = self._in_stages()
        self.stages.host.rules = self.rules
        if isinstance(self.stages, ProgramRun) and task.compiled:
            add_sweeps(self.stages, task.partition.grid, self.phases)
        axes = max(len(one.shape) for one in task.fields)
        self.stages.tables = halo_path.find_tables(world, axes)
        self.plans = [
            self.stages.plans[number] or HaloPlan(one.partition, world.rank, (), task.boundary)
            for number, one in enumerate(task.fields)
        ]
        self.lay_out(self.plans, [parts > 1 for parts in task.partition.grid])
        self.region = task.partition[world.rank]
        # What the loop and the record ask of a stepper.
        self.lowered = IN_STAGES if self.steps_per_exchange > 1 else ""
        self.steps_per_exchange = self.fused_steps = 1
        self.overlap, self.graph, self.exchanges_by_kernel = False, False, False
        self.graph_reason, self.single_reason = "", ""
        self._graphs, self._graph_exchanges = {}, dict[tuple[int, int, int], int]()
        self.halo_taken, self.halo_reason = "", ""
        self._spans: list[tuple[Mark, Mark]] = []
        tape = task.job.tape
        self._scalar_rows = StepScalars(tape, world.xp, 1) if tape is not None and tape.slots else None
        if self._scalar_rows is not None:
            self.graph_reason = NUMBERED
        elif isinstance(self.stages, ProgramRun) and self.stages.waits_for_host:
            self.graph_reason = WAITS
        if isinstance(self.stages, SpectralRun):
            if self.stages.program.loop_steps:
                self.graph_reason = WAITS
            elif self.stages.is_issued_by_host:
                self.graph_reason = BY_HOST

    def _in_stages(self) -> ProgramRun:
        task, world = self.task, self.world
        program = with_results_as_arrays(plan_program(task.job.program), task.feed_numbers)
        self._shared = {n: one.becomes for n, one in enumerate(program.arrays) if one.becomes is not None}
        reducing, kind = {}, world.backend.device.kind
        if task.compiled and kind == "cuda":
            program = prepared_for_kernels(program, task.feed_numbers)
        if task.compiled:
            reducing = reducing_kernels(program, task.feed_numbers, kind)
        self.program = program
        grid = task.partition.grid
        return ProgramRun(world, program, grid, self.phases, task.compiled, reducing, self)

    def start(self, arrays: Sequence[DistributedArray]) -> None:
        """Take over arrays of `plans`' layouts with their own cells filled; prepare the first step."""
        with self.phases("prepare"):
            self.arrays = list(arrays)
            for place in self.fed:
                self.spare[place] = empty_array(self.world, self.plans[place], arrays[place].dtype, self)
                poison(self.spare[place].block)
            self._finals = self._unfed_results()
            self.stages.forget()
            self._check_kernels()
            self._say_why_grids_are_fine()
            if self.stages.is_split:
                self.halo_taken = self.world.arrays.label.replace(",", " ").split()[0].lower()
            self.world.control.barrier()

    def _say_why_grids_are_fine(self) -> None:
        """Warn if coarse grids are computed at all positions, which takes several times as long."""
        reason = self.stages.misaligned
        if reason is not None:
            line = f"line {reason.line}: " if reason.line else ""
            self.world.warn(
                f"job {self.task.job.name} computes its coarse grids at all positions of the finest one, "
                f"which takes longer: {line}{reason.reason}. `meshrun kernel` shows the stages"
            )

    def _check_kernels(self) -> None:
        """Compile the stages' kernels; say which ones have none, or fail where all must have one."""
        failed = self.stages.prepare()
        if failed and self.must_fuse:
            _, reason, line = failed[0]
            raise not_compiled(self.task, reason, line)
        for number, reason, _ in failed:
            stage = f"stage {number + 1} of {self._stage_count}"
            self.world.warn(f"{stage} of job {self.task.job.name} has no kernel: {reason}")

    @property
    def _stage_count(self) -> int:
        if isinstance(self.program, SpectralProgram):
            return len(self.program.steps)
        return len(self.program.stages)

    def advance(self, steps: int, *, last: bool = False, ahead: int = 0) -> None:
        """Take so many steps. last, ahead: as of `Stepper`; there is nothing to save."""
        backend, recorder = self.world.backend, self.world.recorder
        self._until = self.done + steps
        name = 0 if recorder is None else recorder.name("step")
        begin = backend.mark() if backend.asynchronous else None
        left = steps
        while left:
            entry, before = 0 if recorder is None else recorder.enter(name, 0, 0, self.done + 1), left
            if self.world.checksums is not None:
                self.world.checksums.step = self.done + 1
            taken = self._replayed(left)
            if not taken:
                self._take_step()
                taken = 1
            left -= taken
            self.done, self.taken = self.done + taken, self.taken + taken
            self.progress(self.done)
            if recorder is not None:
                recorder.leave(entry, before - left)
        if begin is not None:
            self._spans.append((begin, backend.mark()))

    def _replayed(self, left: int) -> int:
        """Take some of so many steps as one CUDA graph, which is made at first. Return how many; 0 if none.

        The number of steps is even: each block is the one that it was.
        """
        if not self.world.backend.asynchronous or self.graph_reason or self.taken < EAGER:
            return 0
        if self.world.size > 1 and not self.world.arrays.capturable:
            self.graph_reason = f"exchanges by {self.world.arrays.label} wait for the host"
            return 0
        steps = next((one for one in GRAPH_STEPS if one <= left and one % 2 == 0), 0)
        if not steps:
            return 0
        first = self.arrays[self.fed[0]] if self.fed else None
        key = id(first), steps, 1
        if key not in self._graphs:
            blocks, spare, known = list(self.arrays), dict(self.spare), self.stages.known
            exchanges, self.stages.capturing = self.stages.exchanges, True
            try:
                self._graphs[key] = self.world.backend.capture(partial(self._take_steps, steps))
                self._graph_exchanges[key] = self.stages.exchanges - exchanges
            except NotCapturable as reason:
                # Nothing was done on the device: no halo was filled.
                self.graph_reason = str(reason)
                self.arrays, self.spare = blocks, spare
                self.stages.abandon(known)
                for array in (*blocks, *spare.values()):
                    array.written()
                return 0
            finally:
                self.stages.exchanges, self.stages.capturing = exchanges, False
        self._graphs[key]()
        self.stages.exchanges += self._graph_exchanges[key]
        self.graph = True
        return steps

    def _take_steps(self, steps: int) -> None:
        for _ in range(steps):
            self._take_step()

    def _take_step(self) -> None:
        stages = self.stages
        stages.host.step, stages.host.saved = self.done, self.saved
        for place, array in enumerate(self.arrays):
            stages.arrays[place] = array
        for number, place in self._shared.items():
            self.spare[place].written()
            stages.arrays[number] = self.spare[place]
        stages.set_inputs(self.arrays)
        if self._scalar_rows is not None:
            self._scalar_rows.provide(self.done, 1, self._until)
            stages.set_step(self._scalar_rows.rows(0, 1)[0])
        stages.take([self.written(number) for number in range(len(self.feeds))])
        for place in set(self.fed) - set(self._shared.values()):
            self.spare[place].written()
        self.swap()

    def written(self, number: int) -> Array:
        """Return the own cells that a step writes of output `number`; a view."""
        feed = self.feeds[number]
        return self._finals[number] if feed is None else self.spare[feed].interior

    def series(self, number: int, nodes: Sequence[Node], own: int) -> Array:
        """Return (components, own points) of a series in the last step. Collective.

        nodes: of the values of a series without points, which the rank has that owns the first cell.
        """
        found = self.stages.series(number)
        if found is not None:
            return found
        values = [self.stages.value(node).reshape(1) for node in nodes]
        return self.world.xp.stack(values)[:, :own]

    def settle(self) -> None:
        """Wait until all steps are done. Raises RunError where NumPy raises an error for a value."""
        super().settle()
        failed = self.stages.failed_check()
        if failed is not None:
            code: Any = getattr(self.task.job.function, "__code__", None)
            file = f"{code.co_filename}, line {failed.line}: " if code is not None else ""
            raise RunError(f"{file}job {self.task.job.name} {failed.what}", everywhere=True)

    def finish(self) -> None:
        """Account for all steps; the results are complete."""
        self.settle()
        loops = [*self.stages.every_loop()]
        if self.graph_reason == WAITS and any(loop.graphs.replayed for loop in loops):
            self.graph_reason = WAITS_BETWEEN_GRAPHS
        elif self.graph_reason == WAITS:
            self.graph_reason += next((f": {loop.graphs.reason}" for loop in loops if loop.graphs.reason), "")
        close_sweeps(loops)
        if isinstance(self.stages, SpectralRun):
            self.drop_graphs()
            self.stages.close()
        self.exchanges = self.stages.exchanges
        moved = self.task.input_bytes(self.region) + self.task.result_bytes(self.region)
        self.phases.add("kernel", 0, self.taken * moved)
        if self.stages.exchange_spans:
            spans = [self.world.backend.elapsed(*span) for span in self.stages.exchange_spans]
            self.phases.add("exchange", statistics.median(spans) * self.exchanges)
        if self.stages.is_split:
            self.phases.add("exchange", 0, self.exchanges * self.exchange_bytes)

    @property
    def loop_counts(self) -> Sequence[LoopCount]:
        """The iterations of the function's loops in the steps of this run."""
        if isinstance(self.stages, SpectralRun):
            return self.stages.loop_counts
        return counts_of(self.stages.loops, self.taken)

    def check_inputs_that_stay(self) -> None:
        """Do nothing: the function is not called."""

    @property
    def exchange_bytes(self) -> int:
        """Bytes that arrive from other ranks in one exchange, at most."""
        return self.stages.exchange_bytes
