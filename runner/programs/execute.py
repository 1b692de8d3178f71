"""Run a program in stages over distributed arrays: exchange what is stale, compute cells, reduce, go on.

No stage waits for the host to know a value: values are arrays of shape () on the device, in slots of 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.arrays import exact_sum
from meshrun.runner.arrays.block_layout import Allocator
from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.arrays.halo.exchange import HaloPlan, exchange, received_bytes
from meshrun.runner.arrays.halo.packed import bind_fill
from meshrun.runner.arrays.reduce import first_extreme, in_any_order, reduce_axes, reduce_own
from meshrun.runner.comm.small.collectives import PAIRS
from meshrun.runner.compiler.compiled import compile_chain
from meshrun.runner.compiler.cuda.pass_launch import key_of
from meshrun.runner.compiler.cuda.values import (
    SUM_COPIES,
    SUM_WORDS,
    BestKey,
    Key,
    SumKey,
    emit,
    emit_reduced,
    emit_totals,
)
from meshrun.runner.compiler.trace.graph import Node, compute, in_order, slot_of
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.between.levels import LevelGrid, Misaligned, whole_space
from meshrun.runner.compiler.whole.chain_code import Chain, ChainBox
from meshrun.runner.compiler.whole.graph import ValueCheck
from meshrun.runner.compiler.whole.point_kernel import PointValues
from meshrun.runner.compiler.whole.point_pass import Blocks, PointCells
from meshrun.runner.device.api import Mark, poison
from meshrun.runner.options.loop_rules import USUAL, LoopRules
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import Widths, check_widths
from meshrun.runner.plan.steps import LINE
from meshrun.runner.programs.body_graphs import BoundCalls, Call, Phase
from meshrun.runner.programs.cells import LevelCells, StageCells
from meshrun.runner.programs.chains import ChainStage, chains_of
from meshrun.runner.programs.kernel import (
    CellKernel,
    bind_expressions,
    bind_values,
    copy_cells,
    do_nothing,
)
from meshrun.runner.programs.level_kernel import LevelKernel, Target, level_partition
from meshrun.runner.programs.looping import LoopRun
from meshrun.runner.programs.memory import shared_memory, written_by
from meshrun.runner.programs.reducing import (
    ReducingKernel,
    combined_cells,
    reducing_kernels,
)
from meshrun.runner.programs.replicas import (
    Gathering,
    gathering_stages,
    replicated_arrays,
    replicated_levels,
)
from meshrun.runner.programs.stages import (
    ArrayPlace,
    KernelStage,
    LoopStage,
    ReductionStage,
    StagedProgram,
    ValueStage,
)
from meshrun.runner.region import Array, HostArray, Region, Shape
from meshrun.runner.report.phases import Phases
from meshrun.runner.system.compiler import NotCompiled
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables

MEASURED = 256  # exchanges between GPUs that are timed; the others are assumed to take as long
SLOT = np.dtype(np.uint64)
# Bytes of cells that are computed and reduced at once: in a cache; on a device, all.
LEAST_COMPILED = 1 << 12  # cells of a level, on CPUs, for which a kernel is compiled if no chain computes it
SLAB = {"cpu": 1 << 20, "cuda": 1 << 60}


class ValueSlots:
    """The values of a program, in slots of one array on the device.

    row: the array. views: of each value, by number, its slot.
    """

    def __init__(self, world: World, dtypes: Mapping[int, np.dtype[Any]]) -> None:
        self.row = world.backend.empty((max(dtypes, default=-1) + 1,), SLOT)
        self.row.fill(0)
        self.views = {number: slot_of(self.row, number, dtype) for number, dtype in dtypes.items()}


@dataclass
class HostState:
    """What the host knows of the step that runs.

    step: its number. given: of the tape's numbers, those of the loops that run, as they are. rules: for loops
    that a condition ends. saved: the step of the run's last checkpoint; None: it has none.
    """

    step: int = 0
    given: dict[int, Any] = field(default_factory=dict)
    rules: LoopRules = USUAL
    saved: int | None = None


@dataclass
class ProgramRun:
    """This rank's blocks of a program. Every method is collective.

    grid: number of blocks along each axis of space. compiled: whether stages are compiled to kernels.
    reducing: kernel stages that also do reductions, by their numbers; with compiled stages.
    allocator: of blocks; by default the back end. arrays: of each of the program's arrays, its block; of an
    input of shape (), None. known: stages whose reductions the last step has done. pending: values to
    compute before something reads them. host: what the host knows of the step. exchanges: number of halo
    exchanges so far.
    """

    world: World
    program: StagedProgram
    grid: Shape
    phases: Phases
    compiled: bool = False
    reducing: dict[int, ReducingKernel] = field(default_factory=dict)
    allocator: Allocator | None = None
    arrays: list[DistributedArray | None] = field(default_factory=list, init=False)
    host: HostState = field(default_factory=HostState, init=False)
    exchanges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        program, world = self.program, self.world
        self._lay_out_levels()
        # On a GPU, no stage waits for the host: values are computed by a kernel, once they are read.
        self._on_gpu = self.compiled and world.backend.device.kind == "cuda"
        # What times a phase's part: nothing on a GPU, whose work the host would wait for.
        self._phase: Phase = nullcontext if world.backend.asynchronous else self.phases
        self.plans = [self._plan(number) for number in range(len(program.arrays))]
        self.values = ValueSlots(world, program.dtypes)
        self._failed = world.backend.empty((len(program.checks),), np.dtype(bool))
        self._failed.fill(False)
        self._fails = world.backend.empty((1,), np.dtype(bool))
        self.exchange_spans: list[tuple[Mark, Mark]] = []
        self.exchange_bytes = 0  # most that arrived from other ranks in one exchange
        self.capturing = False  # whether a CUDA graph is made of what is done
        # What kernels that fill halos are given; None: NumPy or CuPy copies.
        self.tables: DeviceTables | None = None
        self._kernels: dict[tuple[int, str], CellKernel] = {}
        self._between: dict[int, LevelKernel] = {}
        self._bound: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._orders: dict[Node, list[Node]] = {}  # of values, the nodes in the order of their computation
        # The chains of stages that one call computes, by the number of the first one; their calls.
        self._chains: dict[int, list[ChainStage]] = {}
        self._chain_calls: dict[int, Chain] = {}
        # Of steps, by their blocks and the halos that are valid: the calls, what is known after them, and the
        # blocks, which are kept as others could have their ids. The calls of a step that is being bound.
        self._steps: dict[tuple[Any, ...], tuple[BoundCalls, frozenset[int], Any]] = {}
        self._calls: list[tuple[str, Call]] = []
        self._chain_writes: dict[int, set[int]] = {}  # arrays that chains write, whose halo is filled
        self._turns = [*range(len(program.stages))]  # stages, of those of a chain the first one
        self._views: dict[ReductionStage, Partition] = {}  # of cells that are reduced
        # The memory of cells that are reduced; of some of these, what computes them, they, and what is read.
        self._reduced: dict[tuple[int, Shape], Array] = {}
        self._computing: dict[tuple[Any, ...], tuple[Call, Array, Any]] = {}
        # The cells of the reductions that a kernel can do, and what they are combined to: keys and sums.
        kind = world.backend.device.kind
        self._combined = {
            number: one
            for number, stage in enumerate(program.stages if self.compiled else ())
            if isinstance(stage, ReductionStage) and (one := combined_cells(stage, kind)) is not None
        }
        adding = [n for n, one in self._combined.items() if one.program.outputs[0].combine == "add"]
        self._sum_numbers = {number: place for place, number in enumerate(adding)}
        self._keys = world.backend.empty((len(program.stages),), SLOT)
        self._sums = world.backend.empty((len(adding) * SUM_COPIES * SUM_WORDS,), SLOT)
        self._totals = world.backend.empty((len(adding) * SUM_WORDS,), SLOT)
        # What is computed at the points of series.
        self._series = [
            None
            if one is None
            else PointCells(
                one.cells.program.graph,
                program.space,
                tuple(node for output in one.cells.program.outputs for node in output.nodes),
                one.positions,
            )
            for one in program.numbers.series
        ]
        self._point_values = {n: PointValues(one) for n, one in enumerate(self._series) if one is not None}
        self.pending: list[tuple[int, Node | Key]] = []
        self.forget()
        self.arrays = [None] * len(program.arrays)
        self.loops = {
            number: LoopRun(stage, self, self._body(stage))
            for number, stage in enumerate(program.stages)
            if isinstance(stage, LoopStage)
        }
        self.between = shared_memory(program)  # arrays that kernels and reductions write
        for number, owner in self.between.items():
            if owner == number:
                plan = self.plans[number]
                assert plan is not None
                made = empty_array(world, plan, program.arrays[number].dtype, self.allocator)
                poison(made.block)
                self.arrays[number] = made
            self.arrays[number] = self.arrays[owner]

    def _lay_out_levels(self) -> None:
        """Find which cells of each grid this rank computes, and which halos each stage reads."""
        program, world = self.program, self.world
        dimensions = len(program.space)
        self.partition = Partition(program.space, self.grid[:dimensions])
        self.region = self.partition[world.rank]
        grids = {one.lattice for one in program.arrays} | {one.cells.lattice for one in program.kernels}
        lattices = {one for one in grids if one is not None}
        self._levels: dict[LevelGrid | None, Partition] = {None: self.partition}
        self._levels |= {one: level_partition(self.partition, one) for one in lattices}
        self._levels[whole_space(dimensions)] = self.partition
        # This rank's cells of each grid. Of a small level, all ranks have all cells.
        self._own = {lattice: partition[world.rank] for lattice, partition in self._levels.items()}
        replicated = replicated_levels(program, world.backend.device.kind) if self.is_split else set()
        self._gathering = gathering_stages(program, replicated)
        self._gathers: dict[int, Gathering] = {}
        self._replicated = replicated_arrays(program, replicated)
        for lattice in replicated:
            self._levels[lattice] = Partition(lattice.lengths(program.space), (1,) * dimensions)
            self._own[lattice] = self._levels[lattice][0]
        # The arrays whose halo each stage reads and has filled. No cell beyond the ends of an array is read,
        # unless it wraps around them.
        self._filled = {n for n, one in enumerate(program.arrays) if self.is_split or one.wraps}
        self._filled -= self._replicated
        self._halos = [
            [] if isinstance(stage, (ValueStage, LoopStage)) else self._read_beside(stage.cells)
            for stage in program.stages
        ]
        # What a kernel reads for reductions alone is exchanged with what stages before it read.
        for number, reducing in self.reducing.items():
            more = set(self._read_beside(reducing.cells)) - set(self._halos[number])
            self._halos[number] += sorted(more)
            for before in reversed(range(number)):
                more -= set(written_by(program.stages[before]))
                if self._halos[before]:
                    self._halos[before] += sorted(more - set(self._halos[before]))
        # The arrays whose halos a step fills, and those that it also writes.
        self._exchanged = sorted({number for halos in self._halos for number in halos})
        written = {number for stage in program.stages for number in written_by(stage)}
        self._changed = sorted(written.union(self._exchanged))

    def _read_beside(self, cells: StageCells | LevelCells) -> list[int]:
        """Return the arrays of which cells are computed with others than their own, in a halo."""
        return [
            place
            for place, footprint in zip(cells.reads, cells.footprints, strict=True)
            if place in self._filled and any(map(any, footprint))
        ]

    def _plan(self, number: int) -> HaloPlan | None:
        one = self.program.arrays[number]
        if not one.shape:
            return None
        rest = (1,) * (len(one.shape) - len(self.program.space))
        wide = ((0, 0),) * len(rest)
        partition = Partition(one.shape, self.partition.grid + rest)
        if one.lattice is not None:
            partition = self._levels[one.lattice].with_axes(one.shape[len(self.program.space) :])
        # Between levels, the halo in memory may be wider than an array; less of it is read.
        has_levels = any(array.lattice is not None for array in self.program.arrays)
        check_widths((one.read if has_levels else one.widths) + wide, one.shape)
        plan = HaloPlan(
            partition,
            0 if number in self._replicated else self.world.rank,
            one.widths + wide,
            "wrap" if one.wraps else "constant",
            read=one.read + wide,
            padded=True,
        )
        if self._on_gpu and not rest:  # vectors of a row's cells
            plan.aligned = LINE
        return plan

    def result_partition(self, number: int) -> Partition:
        """Return the partition of an output's cells in memory, along the axes of space."""
        for stage in self.program.kernels:
            if ArrayPlace(number, of_output=True) in stage.writes:
                return self._levels[stage.cells.lattice]
        return self.partition

    def _body(self, stage: LoopStage) -> ProgramRun:
        """Return what runs the body of a loop."""
        kind = self.world.backend.device.kind
        reducing = reducing_kernels(stage.body, stage.loop.feeds, kind) if self.compiled else {}
        return ProgramRun(
            self.world, stage.body, self.grid, self.phases, self.compiled, reducing, self.allocator
        )

    def prepare(self) -> list[tuple[int, str, int]]:
        """Compile the stages' kernels. Return which stages have none on some rank, why, and the line.

        Collective. A reduction that its kernel cannot do is done by others.
        """
        if not self.compiled or 0 in self.program.space:
            return []
        own: dict[tuple[int, str], tuple[str, int]] = {}
        chained = self._prepare_chains(own)
        for number, stage in enumerate(self.program.stages):
            if isinstance(stage, (ValueStage, LoopStage)) or number in chained:
                continue
            if not self._is_worth_compiling(stage.cells.lattice):
                continue
            if isinstance(stage.cells, LevelCells):
                levels = self._level_kernel(number, stage.cells)
                if levels.reason:
                    own[number, ""] = levels.reason, levels.line
                continue
            for kind, cells in self._kinds(number, stage).items():
                kernel = self._kernel(number, cells, kind)
                if kernel.kernel is None and self._region(cells).size:
                    own[number, kind] = kernel.reason, kernel.line
        failed: dict[tuple[int, str], tuple[str, int]] = {}
        for of_rank in self.world.control.allgather(own):
            failed = of_rank | failed
        reducing = {number for number, kind in failed if kind == "reducing"}
        if reducing:
            self.reducing = {number: one for number, one in self.reducing.items() if number not in reducing}
            return self.prepare()
        for number, kind in failed:
            if kind == "reduced":
                del self._combined[number]
        bodies = [
            (number, reason, line)
            for number, loop in self.loops.items()
            for _, reason, line in loop.prepare()
        ]
        return [*((number, *why) for (number, _), why in sorted(failed.items())), *bodies]

    def _prepare_chains(self, failed: dict[tuple[int, str], tuple[str, int]]) -> set[int]:
        """Compile the chains of stages. Return the stages that are part of one.

        failed: why a chain is not compiled, for each of its stages, whose cells are computed one by one.
        """
        program, kind = self.program, self.world.backend.device.kind
        self._chains.clear()
        for numbers in chains_of(program, kind, self._filled, {*self.reducing, *self._gathering}):
            stages = []
            for number in numbers:
                stage = program.stages[number]
                assert isinstance(stage, KernelStage)
                positions = self._positions(number)
                stages.append(ChainStage(number, stage, self._region(stage.cells), positions))
            written = {place.number for one in stages for place in one.stage.writes if not place.of_output}
            self._chain_writes[numbers[0]] = written & self._filled
            programs = [stage.programs for stage in stages]
            self._chains[numbers[0]] = stages
            if not any(programs):  # no cell of theirs is here
                continue
            try:
                with self.phases("prepare"):
                    cells = max(one.own.size for one in stages)
                    self._chain_calls[numbers[0]] = compile_chain(programs, cells, self.world.backend)
            except (NotTraceable, NotCompiled) as failure:
                del self._chains[numbers[0]]
                failed |= {(number, ""): (failure.reason, failure.line) for number in numbers}
        chained = {stage.number for stages in self._chains.values() for stage in stages}
        self._turns = [n for n in range(len(program.stages)) if n in self._chains or n not in chained]
        return chained

    def _kinds(self, number: int, stage: KernelStage | ReductionStage) -> dict[str, StageCells]:
        """Return what the kernel of a stage computes, by its kind; nothing for cells that are only read."""
        assert isinstance(stage.cells, StageCells)
        if number in self._combined:
            by_kernel = not self._on_gpu and any(number in one.within for one in self.reducing.values())
            return {} if by_kernel else {"reduced": self._combined[number]}
        if number in self.reducing:
            return {"reducing": self.reducing[number].cells}
        is_read = isinstance(stage, ReductionStage) and self._loaded(stage) is not None
        return {} if is_read else {"": stage.cells}

    def _region(self, cells: StageCells | LevelCells) -> Region:
        """Return this rank's cells of a stage, per position or per cell of its lattice."""
        return self._own[cells.lattice]

    def _positions(self, number: int) -> Region:
        """Return the positions whose cells this rank computes in a stage."""
        stage = self.program.stages[number]
        assert isinstance(stage, KernelStage)
        whole = all(not place.of_output and place.number in self._replicated for place in stage.writes)
        if whole and number not in self._gathering:
            return Partition(self.program.space, (1,) * len(self.program.space))[0]
        return self.region

    def _gather(self, number: int, stage: KernelStage) -> None:
        """Get the other ranks' cells of what a stage computes."""
        if number not in self._gathers:
            arrays = [array for place in stage.writes if (array := self.arrays[place.number]) is not None]
            lattice = stage.cells.lattice
            assert lattice is not None
            own = level_partition(self.partition, lattice)[self.world.rank]
            self._gathers[number] = Gathering(self.world, own, arrays)
        gathering = self._gathers[number]
        gathering()
        self.exchanges += 1
        self.exchange_bytes = max(self.exchange_bytes, gathering.nbytes)

    def forget(self) -> None:
        """Forget what was reduced ahead: the inputs are not what the last step wrote."""
        for array in (self._keys, self._sums, self._totals):
            array.fill(0)
        self.known: frozenset[int] = frozenset()

    def abandon(self, known: frozenset[int]) -> None:
        """Forget what was issued for a CUDA graph that could not be made. known: as it was before."""
        self.known = known
        self.pending.clear()

    def take(self, outs: Sequence[Array | None]) -> None:
        """Run all stages once.

        outs: of each output, this rank's own cells, which are filled; None: one without axes stays a value.
        """
        if self.loops:  # what comes after a loop depends on what it leaves
            self._bind(outs)
            self._bound_calls().take(self._phase)
            return
        # On the same blocks, with the same halos valid, a step is the same calls.
        read = [self.arrays[number] for number in self._exchanged]
        valid = [None if array is None else array.valid for array in read]
        key = self.known, *map(id, self.arrays), *map(id, outs), *valid
        if key not in self._steps:
            self._bind(outs)
            known, kept = self.known, (*self.arrays, *outs)
            self._steps[key] = self._bound_calls(), known, kept
        calls, self.known, _ = self._steps[key]
        calls.take(self._phase)

    def _bound_calls(self) -> BoundCalls:
        """Return the calls that have been bound since the last ones."""
        calls, self._calls = self._calls, []
        arrays = (self.arrays[number] for number in self._changed)
        return BoundCalls(calls, [(array, array.valid) for array in arrays if array is not None])

    def _bind(self, outs: Sequence[Array | None]) -> None:
        """Bind all stages: add their calls. Loops run at once, after the calls before them."""
        self._calls = []
        known, self.known = set(self.known), frozenset()
        for number in self._turns:
            stage = self.program.stages[number]
            if number in self._chains:
                self._bind_pending()
                self._bind_chain(number, outs)
            elif isinstance(stage, KernelStage):
                self._bind_kernel(number, stage, outs)
                if number in self.reducing:
                    known.update(self.reducing[number].within)
            elif isinstance(stage, ReductionStage):
                self._bind_reduction(number, stage, known)
            elif isinstance(stage, LoopStage):
                self._bind_pending()
                self._bound_calls().take(self._phase)
                self.loops[number].take(self)
            elif self._on_gpu:
                self.pending += stage.nodes
            else:
                self._bind_expressions(number, stage)
        self._bind_pending()
        self._bind_values(outs)
        if self.program.checks:
            self._add("", self._note_checks)

    def _bind_values(self, outs: Sequence[Array | None]) -> None:
        """Bind what copies the values that are results to their outputs."""
        for output, values in self.program.numbers.values.items():
            out = outs[output]
            if out is None:
                continue
            for part, value in zip(("real", "imag"), values, strict=False):
                cells: Any = getattr(out, part) if len(values) > 1 else out
                if cells is not self.values.views[value]:
                    self._add("", partial(copy_cells, cells, self.values.views[value]))

    def _add(self, phase: str, call: Call) -> None:
        """Add a call. phase: of the run; "" if its time is too short to be accounted for."""
        self._calls.append((phase, call))

    def _bind_kernel(self, number: int, stage: KernelStage, outs: Sequence[Array]) -> None:
        """Bind what computes the cells of a stage, once all that it reads is there."""
        self._bind_pending()
        self._bind_exchange(self._halos[number])
        self._bind_cells(number, stage, outs)
        if number in self._gathering:
            self._add("exchange", partial(self._gather, number, stage))

    def _bind_reduction(self, number: int, stage: ReductionStage, known: Collection[int]) -> None:
        """Bind a reduction. known: stages whose reductions a kernel has done."""
        combined = self._combined.get(number)
        if number not in known:
            self._bind_pending()
            self._bind_exchange(self._halos[number])
            if combined is None:
                self._add("reduce", partial(self._reduce, number, stage))
                if stage.array is not None and (array := self.arrays[stage.array]) is not None:
                    array.written()
            else:
                self._bind_combining(number, stage, combined)
        if combined is not None and self._on_gpu:
            self._take_key(number, stage, combined)
        elif combined is not None:
            assert stage.value is not None
            words, value = self._sum_words(number), self.values.views[stage.value]
            self._add("", partial(self._round_sum, words, value, stage.reduction.dtype))

    def _round_sum(self, words: HostArray, value: Array, dtype: np.dtype[Any]) -> None:
        """Round a sum that kernels have made. words: of the sum, 0 afterwards."""
        self.world.sum_words(words)
        value[...] = exact_sum.rounded(words, dtype)
        words.fill(0)

    def _note_checks(self) -> None:
        """Note which values are ones for which NumPy raises an error."""
        for number, check in enumerate(self.program.checks):
            failed = self._failed[number : number + 1]
            xp, count = self.world.xp, self.values.views[check.count.value]
            xp.equal(count, 0, out=self._fails.reshape(()))
            xp.logical_or(failed, self._fails, out=failed)

    def _bind_combining(self, number: int, stage: ReductionStage, combined: StageCells) -> None:
        """Bind a reduction by the kernel that computes the cells."""
        key = "reduced", number, *(id(self.arrays[place]) for place in combined.reads)
        if key not in self._bound:
            own = self._view_partition(stage)[self.world.rank]
            if self.region.size == 0 or own.size == 0:
                return
            kernel = self._kernel(number, combined, "reduced")
            # The box from the first to the last own cell that is reduced.
            steps = stage.reduction.step
            starts = zip(stage.reduction.first, own.start, steps, strict=True)
            first = tuple(begin + at * step for begin, at, step in starts)
            lengths = tuple((n - 1) * step + 1 for n, step in zip(own.shape, steps, strict=True))
            around = tuple(
                slice(a - b, a - b + n + low + high)
                for a, b, n, (low, high) in zip(
                    first, self.region.start, lengths, combined.widths, strict=True
                )
            )
            blocks = [block[around] for block in self._blocks(combined)]
            views = self._key_views((number,), lengths)
            self._bound[key] = kernel.bind(blocks, views, first, self.values.row)
        self._add("reduce", self._bound[key])

    def _key_views(self, numbers: Sequence[int], own: Shape) -> list[Array]:
        """Return what kernels of so many own cells combine them to, for reductions' stages."""
        xp, sums = self.world.xp, self._sum_numbers
        return [
            key_of(xp, self._sums, sums[one] * SUM_COPIES * SUM_WORDS, own)
            if one in sums
            else key_of(xp, self._keys, one, own)
            for one in numbers
        ]

    def _sum_words(self, number: int) -> HostArray:
        """Return the words of the sum that kernels make for a reduction's stage, on a CPU."""
        first = self._sum_numbers[number] * SUM_COPIES * SUM_WORDS
        words: HostArray = self._sums[first : first + SUM_WORDS].view(np.int64)
        return words

    def _take_key(self, number: int, stage: ReductionStage, combined: StageCells) -> None:
        """Note that a value is that of a key or a sum."""
        assert stage.value is not None
        (output,), dtype = combined.program.outputs, self.program.dtypes[stage.value]
        if output.combine == "add":
            several = self.world.size > 1
            key: Key = SumKey(self._sum_numbers[number], output.dtype, dtype, added=several)
        else:
            key = BestKey(number, output.combine, output.dtype, dtype)
        self.pending.append((stage.value, key))

    def _bind_pending(self) -> None:
        """Bind the values that nothing has read yet."""
        if not self.pending:
            return
        values = tuple(self.pending)
        self.pending.clear()
        arrays = self.values.row, self._keys, self._sums, self._totals
        sums = tuple(key for _, key in values if isinstance(key, SumKey))
        words = self._totals.size if sums else 0
        keys = self._keys.size if any(isinstance(key, BestKey) for _, key in values) else 0
        # Combine what the ranks have. Incomplete keys lose nothing by it; totals of others are 0.
        members = None
        if self.world.size > 1 and 0 < words + keys <= PAIRS:
            members = self.world.arrays.peer_slots
        if members is None and self.world.size > 1:
            if keys:
                self._add("", partial(self.world.arrays.all_reduce, self._keys, "max"))
            if sums:
                if sums not in self._bound:
                    self._bound[sums] = bind_values(emit_totals(sums), arrays)
                self._add("", self._bound[sums])
                self._add("", partial(self.world.arrays.all_reduce, self._totals, "sum"))
        bound = values, members is None
        if bound not in self._bound:
            kernel = emit(values) if members is None else emit_reduced(values, words, keys, self.world.size)
            self._bound[bound] = bind_values(kernel, arrays, members)
        self._add("", self._bound[bound])

    @property
    def waits_for_host(self) -> bool:
        """Whether the host decides about a loop, or makes numbers for its iterations."""
        return any(loop.waits_for_host for loop in self.loops.values())

    def every_loop(self) -> Iterator[LoopRun]:
        """Yield the loops, and those within them."""
        for loop in self.loops.values():
            yield loop
            yield from loop.run.every_loop()

    @property
    def is_split(self) -> bool:
        """Whether some axis of space is split between ranks."""
        return any(parts > 1 for parts in self.partition.grid)

    def set_inputs(self, arrays: Sequence[DistributedArray]) -> None:
        """Set the values that are inputs. arrays: of all inputs."""
        for value, one in self.program.inputs.items():
            given = arrays[one.number].interior
            self.values.views[value][...] = getattr(given, one.part) if one.part else given

    def set_step(self, slots: Array) -> None:
        """Set the values that the host computes for each step. slots: of the step's tape, on either side."""
        row = self.values.row[: len(slots)]
        if isinstance(slots, np.ndarray):
            self.world.backend.upload(slots, row)
        else:
            row[...] = slots

    def reset_checks(self) -> None:
        """Forget which checks of values have failed."""
        self._failed.fill(False)
        for loop in self.loops.values():
            loop.run.reset_checks()

    def failed_check(self) -> ValueCheck | None:
        """Return the first check of a value that failed in some step so far; None if none did."""
        for number, check in enumerate(self.program.checks):
            if bool(self._failed[number]):
                return check
        of_bodies = (loop.run.failed_check() for loop in self.loops.values())
        return next((check for check in of_bodies if check is not None), None)

    def exchange(self, read: Sequence[int]) -> None:
        """Fill the halos of arrays that are read, where they are stale."""
        stale = self._stale(read)
        if stale:
            with self._phase(self._exchange_phase):
                self._exchange(stale, [array.valid for array in stale])

    def _bind_exchange(self, read: Sequence[int]) -> None:
        """Bind what fills the halos of arrays that a stage reads, where they are stale by then."""
        stale = self._stale(read)
        if stale:
            valid = [array.valid for array in stale]
            self._add(self._exchange_phase, partial(self._exchange, stale, valid))
            for array in stale:
                array.valid = array.layout.filled.declared

    @property
    def _exchange_phase(self) -> str:
        return "exchange" if self.is_split else "kernel"

    def _stale(self, read: Sequence[int]) -> list[DistributedArray]:
        arrays = (self.arrays[number] for number in read)
        return [array for array in arrays if array is not None and array.is_stale]

    def _exchange(self, stale: Sequence[DistributedArray], valid: Sequence[Widths]) -> None:
        """Fill the halos of arrays. valid: the widths of each that are."""
        for array, widths in zip(stale, valid, strict=True):
            array.valid = widths
        backend = self.world.backend
        timed = backend.asynchronous and not self.capturing and len(self.exchange_spans) < MEASURED
        begin = backend.mark() if timed and self.is_split else None
        self._fill_halos(stale)
        if begin is not None:
            self.exchange_spans.append((begin, backend.mark()))
        if self.is_split:
            self.exchanges += 1
            self.exchange_bytes = max(self.exchange_bytes, received_bytes(stale))

    def _fill_halos(self, stale: Sequence[DistributedArray]) -> None:
        """Fill the halos of arrays: on GPUs by kernels, which graphs can hold."""
        if self.tables is None:
            exchange(stale)
            return
        key = "halos", *map(id, stale)
        if key not in self._bound:
            self._bound[key] = bind_fill(self.world, stale, self.tables)
        self._bound[key]()

    def _kernel(self, number: int, cells: StageCells, kind: str = "") -> CellKernel:
        key = number, kind
        if key not in self._kernels:
            with self.phases("prepare"):
                shape = self._region(cells).shape
                compiled = self.compiled and self._is_worth_compiling(cells.lattice)
                self._kernels[key] = CellKernel(cells, self.world.backend, shape, compiled=compiled)
        return self._kernels[key]

    def _level_kernel(self, number: int, cells: LevelCells) -> LevelKernel:
        if number not in self._between:
            with self.phases("prepare"):
                compiled = self.compiled and self._is_worth_compiling(cells.lattice)
                positions = self._positions(number)
                self._between[number] = LevelKernel(cells, self.world.backend, positions, compiled=compiled)
        return self._between[number]

    def _is_worth_compiling(self, lattice: LevelGrid | None) -> bool:
        """Return whether a compiler takes less time than NumPy's functions save: not for small levels."""
        if lattice is None or self.world.backend.device.kind == "cuda":
            return True
        return math.prod(lattice.lengths(self.program.space)) >= LEAST_COMPILED

    def _blocks(self, cells: StageCells) -> list[Array]:
        """Return the blocks that a stage reads, with a halo as wide as the stage's."""
        found = []
        for number in cells.reads:
            array = self.arrays[number]
            assert array is not None
            cut = []
            for core, (low, high) in zip(array.layout.core, cells.widths, strict=False):
                cut.append(slice(core.start - low, core.stop + high))
            found.append(array.block[tuple(cut)])
        return found

    def _read(self, cells: StageCells | LevelCells) -> dict[int, DistributedArray]:
        """Return the arrays that a stage reads, by number."""
        return {place: array for place in cells.reads if (array := self.arrays[place]) is not None}

    def _targets(self, stage: KernelStage, outs: Sequence[Array]) -> list[Array]:
        """Return the own cells that a stage writes."""
        targets = []
        for place in stage.writes:
            array = None if place.of_output else self.arrays[place.number]
            targets.append(outs[place.number] if array is None else array.interior)
        return targets

    def _bind_chain(self, first: int, outs: Sequence[Array]) -> None:
        """Bind the stages of the chain that begins with stage `first`, between which no halo is filled."""
        for number in self._chain_writes[first]:
            array = self.arrays[number]
            if array is not None:
                array.written()
        if first not in self._chain_calls:
            return
        key = "chain", first, *map(id, self.arrays), *map(id, outs)
        if key not in self._bound:
            boxes: list[ChainBox] = []
            for one in self._chains[first]:
                cells = one.stage.cells
                blocks = self._blocks(cells) if isinstance(cells, StageCells) else ()
                boxes += one.boxes(blocks, self._read(cells), self._targets(one.stage, outs))
            self._bound[key] = self._chain_calls[first].bind(boxes, self.values.row)
        self._add("kernel", self._bound[key])

    def _bind_cells(self, number: int, stage: KernelStage, outs: Sequence[Array]) -> None:
        """Bind the kernel of a stage."""
        targets = self._targets(stage, outs)
        for place in stage.writes:
            array = None if place.of_output else self.arrays[place.number]
            if array is not None:
                array.written()
        if self._region(stage.cells).size:
            # To bind a kernel to its arrays takes the host longer than a small block takes the device.
            read = (self.arrays[place] for place in stage.cells.reads)
            key = number, *map(id, read), *map(id, targets)
            if key not in self._bound:
                self._bound[key] = self._bound_kernel(number, stage, targets)
            self._add("kernel", self._bound[key])
        if number in self.reducing:
            self.known |= frozenset(self.reducing[number].ahead)

    def _bound_kernel(self, number: int, stage: KernelStage, targets: Sequence[Array]) -> Call:
        """Return what computes the own cells of a stage's results."""
        region = self._region(stage.cells)
        if isinstance(stage.cells, LevelCells):
            arrays, written = self._read(stage.cells), [Target(target, region.start) for target in targets]
            return self._level_kernel(number, stage.cells).bind(arrays, written, self.values.row)
        start = region.start
        if number in self.reducing:
            reducing = self.reducing[number]
            blocks = self._blocks(reducing.cells)
            views = self._key_views((*reducing.within, *reducing.ahead), self.region.shape)
            kernel = self._kernel(number, reducing.cells, "reducing")
            return kernel.bind(blocks, [*targets, *views], start, self.values.row)
        return self._kernel(number, stage.cells).bind(
            self._blocks(stage.cells), targets, start, self.values.row
        )

    def _bind_expressions(self, number: int, stage: ValueStage) -> None:
        """Bind arithmetic of values, by functions of arrays."""
        key = "values", number
        if key not in self._bound:
            if self.world.xp is np:
                self._bound[key] = bind_expressions(stage.nodes, self.values.views)
            else:
                self._bound[key] = partial(self._compute_values, stage)
        self._add("", self._bound[key])

    def _compute_values(self, stage: ValueStage) -> None:
        for number, node in stage.nodes:
            self.values.views[number][...] = self.value(node)

    def value(self, node: Node) -> Any:
        """Compute an expression of values, on the device."""
        xp, found = self.world.xp, dict[Node, Any]()
        if node.op == "scalar":
            return self.values.views[node.value]
        if node not in self._orders:
            self._orders[node] = in_order([node])
        for one in self._orders[node]:
            operands = [found[operand] for operand in one.operands]
            if one.op == "scalar":
                found[one] = self.values.views[one.value]
            elif one.op == "constant":
                found[one] = one.value if xp is np else xp.asarray(one.value)
            elif xp is np:
                found[one] = compute(one.op, one.dtype, [np.asarray(operand) for operand in operands])
            elif one.op == "cast":
                found[one] = operands[0].astype(one.dtype)
            else:
                found[one] = getattr(xp, one.op)(*operands)
        return found[node]

    @property
    def misaligned(self) -> Misaligned | None:
        """Why coarse grids are computed at all positions, if they are."""
        return self.program.reasons.misaligned

    def series(self, number: int) -> Array | None:
        """Return (components, own points) of a series at points, of the last step; None of a value."""
        points, one = self._series[number], self.program.numbers.series[number]
        if points is None or one is None:
            return None
        # The host knows neither which halos a CUDA graph has filled nor what its last step wrote.
        for place, footprint in zip(one.cells.reads, one.cells.footprints, strict=True):
            array = self.arrays[place]
            if array is not None and any(map(any, footprint)):
                array.written()
        self.exchange(self._read_beside(one.cells))
        xp, start, stop = self.world.xp, self.region.start, self.region.stop
        if not self.region.size:
            return xp.empty((len(points.nodes), 0), points.nodes[0].dtype)
        whole = tuple(parts == 1 for parts in self.partition.grid)
        blocks = Blocks(xp, self._blocks(one.cells), one.cells.widths, start, stop, whole)
        if self._on_gpu:
            return self._point_values[number].compute(blocks, self.values.row)
        values, _ = points.compute(blocks, self.values.row)
        return xp.stack(values)

    def _reduce(self, number: int, stage: ReductionStage) -> None:
        reduction, world = stage.reduction, self.world
        view = self._view_partition(stage)
        axes = reduction.axes
        if reduction.ufunc in ("argmax", "argmin"):
            total = first_extreme(world, view, axes, self._cells(number, stage, view), reduction.ufunc)
        elif stage.value is not None and reduction.ufunc == "add" and reduction.dtype.kind == "f":
            total = self._exact_sum(number, stage, view)
        else:
            total = self._in_tree(number, stage, view, reduction.ufunc)
        if stage.value is not None:
            self.values.views[stage.value][...] = total
            return
        assert stage.array is not None
        array = self.arrays[stage.array]
        assert array is not None
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(self.region.shape))
        if self.region.size:
            array.interior[...] = total.reshape(shape)
        array.written()

    def _view_partition(self, stage: ReductionStage) -> Partition:
        """Return how the cells that are reduced are split: a cell is on the rank of its position."""
        if stage in self._views:
            return self._views[stage]
        reduction, starts, lattice = stage.reduction, [], stage.cells.lattice
        partition = self._levels[lattice]
        for axis, (first, step, length) in enumerate(
            zip(reduction.first, reduction.step, reduction.length, strict=True)
        ):
            cuts = [partition.bounds(axis, part)[0] for part in range(partition.grid[axis])]
            starts.append((0, *(min(max(-(-(cut - first) // step), 0), length) for cut in cuts[1:])))
        self._views[stage] = Partition(reduction.length, self.partition.grid, starts=tuple(starts))
        return self._views[stage]

    def _exact_sum(self, number: int, stage: ReductionStage, view: Partition) -> Any:
        """Return the sum of all cells, rounded once."""
        own, words = view[self.world.rank], exact_sum.zero_words()
        for begin, end in self._parts(own, stage):
            part = own.rows(begin, end)
            exact_sum.add_cells(words, self.world.xp, self._computed(number, stage, part.start, part.stop))
        self.world.sum_words(words)
        return exact_sum.rounded(words, stage.reduction.dtype)

    def _parts(self, own: Region, stage: ReductionStage) -> Iterator[tuple[int, int]]:
        """Yield the first and last + 1 rows of own cells that are computed and reduced at once."""
        row_bytes = stage.reduction.dtype.itemsize * max(own.size // max(own.shape[0], 1), 1)
        step = max(SLAB[self.world.backend.device.kind] // row_bytes, 1)
        if self._loaded(stage) is not None:
            step = max(own.shape[0], 1)
        for begin in range(0, own.shape[0], step):
            yield begin, min(begin + step, own.shape[0])

    def _in_tree(self, number: int, stage: ReductionStage, view: Partition, ufunc: str) -> Array:
        """Return the cells combined; what is computed for them, some rows after the others."""
        world, axes = self.world, stage.reduction.axes
        own, rest = view[world.rank], [axis for axis in axes if axis]
        inner_cut = any(view.grid[axis] > 1 for axis in rest)
        # Of small arrays, all cells at once, where the order does not change the bits.
        dtype = stage.reduction.dtype
        small = math.prod(view.shape) * dtype.itemsize <= SLAB["cpu"] and in_any_order(dtype, ufunc)
        if inner_cut or not rest or small or self._loaded(stage) is not None:
            return reduce_axes(world, view, axes, self._cells(number, stage, view), ufunc)
        # Reduce all axes but the first, some rows at a time, then the first.
        kept = tuple(n for axis, n in enumerate(own.shape) if axis and axis not in rest)
        rows = world.backend.empty((own.shape[0], *kept), dtype)
        for begin, end in self._parts(own, stage):
            part = own.rows(begin, end)
            cells = self._computed(number, stage, part.start, part.stop)
            rows[begin:end] = reduce_own(world.backend, rest, cells, ufunc)
        if 0 not in axes:
            return rows
        lengths = (view.shape[0], *(n for axis, n in enumerate(view.shape) if axis and axis not in rest))
        return reduce_axes(world, _first_axes(view, lengths, rest), (0,), rows, ufunc)

    def _loaded(self, stage: ReductionStage) -> Node | None:
        """Return the load that the cells are, if they are not computed."""
        nodes = [node for output in stage.cells.program.outputs for node in output.nodes]
        return nodes[0] if len(nodes) == 1 and nodes[0].op == "load" else None

    def _cells(self, number: int, stage: ReductionStage, view: Partition) -> Array:
        """Return this rank's cells that are reduced."""
        own = view[self.world.rank]
        return self._computed(number, stage, own.start, own.stop)

    def _computed(self, number: int, stage: ReductionStage, begin: Shape, end: Shape) -> Array:
        """Return the cells `begin` to before `end` of those that are reduced."""
        arrays = [self.arrays[place] for place in stage.cells.reads]
        key = number, begin, *map(id, arrays)
        if key not in self._computing:
            self._computing[key] = *self._bind_computed(number, stage, begin, end), arrays
        call, cells, _ = self._computing[key]
        call()
        return cells

    def _bind_computed(
        self, number: int, stage: ReductionStage, begin: Shape, end: Shape
    ) -> tuple[Call, Array]:
        """Return what computes the cells `begin` to before `end` of those that are reduced, and the cells."""
        reduction, cells = stage.reduction, stage.cells
        shape = tuple(b - a for a, b in zip(begin, end, strict=True))
        region = self._region(cells)
        if 0 in shape or region.size == 0:
            return do_nothing, self.world.backend.empty(tuple(shape), cells.program.outputs[0].dtype)
        first = tuple(a + j * s for a, j, s in zip(reduction.first, begin, reduction.step, strict=True))
        last = tuple(
            a + (j - 1) * s + 1 for a, j, s in zip(reduction.first, end, reduction.step, strict=True)
        )
        every = tuple(slice(None, None, step) for step in reduction.step)
        corner = tuple(a - b for a, b in zip(first, region.start, strict=True))
        lengths = tuple(b - a for a, b in zip(first, last, strict=True))
        blocks = self._blocks(cells)
        load = self._loaded(stage)
        if load is not None:
            cut = tuple(
                slice(a + low + at, a + low + at + n)
                for a, (low, _), at, n in zip(corner, cells.widths, load.offset, lengths, strict=True)
            )
            dimensions = len(self.program.space)
            inner = np.unravel_index(load.component, blocks[0].shape[dimensions:] or (1,))
            index = (*cut, *map(int, inner)) if blocks[0].ndim > dimensions else cut
            return do_nothing, blocks[0][index][every]
        around = tuple(
            slice(a, a + n + low + high)
            for a, n, (low, high) in zip(corner, lengths, cells.widths, strict=True)
        )
        # Parts of one shape share the memory.
        if (number, lengths) not in self._reduced:
            dtype = cells.program.outputs[0].dtype
            self._reduced[number, lengths] = self.world.backend.empty(lengths, dtype)
        out = self._reduced[number, lengths]
        given = [block[around] for block in blocks]
        return self._kernel(number, cells).bind(given, [out], first, self.values.row), out[every]


def _first_axes(view: Partition, lengths: Shape, without: Sequence[int]) -> Partition:
    """Return a partition without some axes, which are not split."""
    kept = [axis for axis in range(len(view.shape)) if axis not in without]
    return Partition(lengths, tuple(view.grid[a] for a in kept), starts=tuple(view.starts[a] for a in kept))
