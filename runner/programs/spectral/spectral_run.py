"""Run a function with Fourier transforms: its parts as programs in stages, and transforms between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.arrays.block_layout import Allocator
from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.compiler.trace.graph import Node, slot_of
from meshrun.runner.compiler.whole.between.levels import Misaligned
from meshrun.runner.compiler.whole.graph import ValueCheck
from meshrun.runner.compiler.whole.spaces.parts import (
    LoopStep,
    ProductStep,
    SharedPlace,
    SpacePart,
    SpectralProgram,
    TransformStep,
)
from meshrun.runner.device.api import Mark, poison
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.redistribution import Boxes, RedistributionPlan
from meshrun.runner.plan.steps import LINE
from meshrun.runner.programs.conditions import (
    KEPT,
    Iteration,
    compared_text,
    compares_nan,
    not_ended,
    report_nan,
)
from meshrun.runner.programs.execute import HostState, ProgramRun
from meshrun.runner.programs.looping import LoopCount, LoopRun, Tally
from meshrun.runner.programs.reducing import prepared_for_kernels
from meshrun.runner.programs.spectral.layouts import plan_layouts, slab_grid
from meshrun.runner.programs.spectral.lifetimes import exchanged_states, lifetimes_of, written_by
from meshrun.runner.programs.stages import LoopComparison, StagedProgram, comparisons, plan_program
from meshrun.runner.region import Array, Region, Shape, address_of, overlap
from meshrun.runner.report.phases import Phases
from meshrun.runner.transforms.device import DeviceTransform, changes_of
from meshrun.runner.transforms.product import multiply, transposed_rows
from meshrun.runner.transforms.rooms import (
    BoxChange,
    Exchange,
    MessageExchange,
    Rooms,
    open_rooms,
    peer_copies,
)
from meshrun.runner.world.group import move
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables, PeerCopies


@dataclass(frozen=True)
class SharedCondition:
    """A condition of a loop.

    part: that computes it, by number. value: of that part. compared: as of `LoopStage`.
    """

    part: int
    value: int
    compared: tuple[LoopComparison, ...]


@dataclass
class Held:
    """A value on the device, as an input of a part."""

    interior: Array


@dataclass
class SpectralRun:
    """This rank's blocks of a function with Fourier transforms. Every method is collective.

    grid: number of blocks of the function's arrays along each axis of space. compiled, allocator: as of
    `ProgramRun`. arrays: the function's inputs. plans: of their blocks; None for one of shape (). host: what
    the host knows of the step.
    """

    world: World
    program: SpectralProgram
    grid: Shape
    phases: Phases
    compiled: bool = False
    allocator: Allocator | None = None
    arrays: list[DistributedArray | None] = field(default_factory=list, init=False)
    host: HostState = field(default_factory=HostState, init=False)
    tables: DeviceTables | None = field(default=None, init=False)
    moved: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        program, world = self.program, self.world
        self.layouts = plan_layouts(program)
        self._changing_places = exchanged_states(program)
        self._lifetimes = lifetimes_of(program, self._changing_places)
        self.partition = Partition(program.space, self.grid[: len(program.space)])
        self.region = self.partition[world.rank]
        self.runs: dict[int, ProgramRun] = {}
        self._conditions: dict[int, SharedCondition] = {}  # by the number of what tells whether to go on
        for number, step in enumerate(program.steps):
            if isinstance(step, SpacePart):
                grid = slab_grid(step.program.space, self.layouts.parts[number], world.size)
                if self._is_own(number, step):
                    grid = self.partition.grid
                staged = self._with_compared(number, step, plan_program(step.program))
                if self.compiled and world.backend.device.kind == "cuda":
                    staged = prepared_for_kernels(staged)
                self.runs[number] = ProgramRun(
                    world, staged, grid, self.phases, self.compiled, {}, self.allocator
                )
        self.plans = [
            self._plan(SharedPlace(number, True), self.partition.grid) if one.shape else None
            for number, one in enumerate(program.inputs)
        ]
        self.arrays = [None] * len(program.inputs)
        self.values = [None if one.shape else world.backend.empty((), one.dtype) for one in program.shared]
        self._tallies = {one: Tally() for one in program.loop_steps}
        self._failed = world.backend.empty((len(program.checks),), np.dtype(bool))
        self._failed.fill(False)

        # Arrays by what they are and how they are split; those of the function's are the caller's.
        self._held: dict[tuple[SharedPlace, Shape], DistributedArray] = {}
        self._valid: set[tuple[SharedPlace, Shape]] = set()
        self._users: list[tuple[DistributedArray, list[range]]] = []  # of each block, when it is needed
        self._results: dict[tuple[int, SharedPlace], Array] = {}  # of parts that are split otherwise
        self._on_gpu = world.backend.device.kind == "cuda"
        self._device_transforms: dict[tuple[int, int, int], DeviceTransform] = {}  # of step and blocks
        self._exchanges: dict[int, list[Exchange]] = {}  # of transforms, by number of the step
        self._kept: dict[Any, Any] = {}  # plans and memory of these
        self._changes: dict[int, list[BoxChange]] = {}  # their exchanges
        self._rooms: Rooms | None = None
        self._copies: PeerCopies | None = None
        self._moves: dict[tuple[Hashable, int, int], MessageExchange] = {}

    def _with_compared(self, number: int, step: SpacePart, staged: StagedProgram) -> StagedProgram:
        """Return a part in which what the conditions of loops compare are values of their own."""
        loops = [one for one in self.program.loop_steps if one.kind != "if"]
        conditions = {one for loop in loops for one in (loop.first, loop.again)}
        for output, place in enumerate(step.writes):
            if place.of_function or place.number not in conditions:
                continue
            (value,) = staged.numbers.values[output]
            stages, compared = comparisons(staged.stages, value, staged.dtypes)
            staged = replace(staged, stages=stages)
            self._conditions[place.number] = SharedCondition(number, value, compared)
        return staged

    def _is_own(self, number: int, step: SpacePart) -> bool:
        """Whether a part has the space of the function, and is split along the axis that its arrays are."""
        return step.program.space == self.program.space and self.layouts.parts[number] == 0

    def result_partition(self, number: int) -> Partition:
        """Return the partition of an output's cells in memory, along the axes of space."""
        return self.partition

    def _readers(self, place: SharedPlace, grid: Shape) -> Iterable[tuple[ProgramRun, int]]:
        """Yield the parts that read an array under a partition, and its number in each.

        Two arrays that change places have the same layout.
        """
        other = None if place.of_function else self._changing_places.get(place.number)
        for number, run in self.runs.items():
            step = self.program.steps[number]
            if not isinstance(step, SpacePart) or run.partition.grid != grid:
                continue
            for one in (place, *(() if other is None else (SharedPlace(other),))):
                if one in step.reads:
                    yield run, step.reads.index(one)

    def _plan(self, place: SharedPlace, grid: Shape) -> HaloPlan:
        """Return the layout of an array's blocks, with halos that suit all parts that read it."""
        program = self.program
        shape = program.shared[place.number].shape
        if place.of_function:
            own = program.inputs[place.number].shape
            shape = (*program.space, *own[len(program.space) :])
        rest = (1,) * (len(shape) - len(grid))
        readers = list(self._readers(place, grid))
        widths, read, wraps = [(0, 0)] * len(grid), [(0, 0)] * len(grid), False
        for run, number in readers:
            one = run.program.arrays[number]
            widths = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(widths, one.widths, strict=True)]
            read = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(read, one.read, strict=True)]
            wraps = wraps or one.wraps
        inner = ((0, 0),) * len(rest)
        plan = HaloPlan(
            Partition(shape, grid + rest),
            self.world.rank,
            (*widths, *inner),
            "wrap" if wraps else "constant",
            read=(*read, *inner),
            padded=True,
        )
        if self.compiled and self.world.backend.device.kind == "cuda" and not rest:
            plan.aligned = LINE
        return plan

    def prepare(self) -> list[tuple[int, str, int]]:
        """Compile the kernels of all parts; fill arrays that the function uses besides its inputs; allocate
        what GPUs exchange in transforms.

        Return which parts have none on some rank, by number of the step, why, and the line.
        """
        self._open_rooms()
        failed = []
        for number, run in self.runs.items():
            run.tables = self.tables
            failed += [(number, reason, line) for _, reason, line in run.prepare()]
            step = self.program.steps[number]
            assert isinstance(step, SpacePart)
            for place, one in enumerate(run.program.arrays[len(step.reads) : len(step.program.inputs)]):
                plan, constant = run.plans[len(step.reads) + place], step.program.constants[place]
                assert plan is not None
                array = empty_array(self.world, plan, one.dtype, self.allocator)
                poison(array.block)
                array.interior[...] = self.world.xp.asarray(constant.values[array.region.slices])
                run.arrays[len(step.reads) + place] = array
        return failed

    def _open_rooms(self) -> None:
        """Allocate the memory in which arrays change their split, and let the ranks open each other's."""
        if not self._on_gpu or self.world.size == 1 or self._copies is not None:
            return
        for number, transform in self.layouts.transforms.items():
            step = self.program.steps[number]
            if isinstance(step, TransformStep) and len(transform.shape) > 1:
                dtype = self.program.shared[step.source].dtype
                following = self.program.steps[number + 1 : number + 2]
                followed = any(
                    isinstance(one, TransformStep) and one.source != step.target for one in following
                )
                changes = changes_of(transform, dtype, self.world.size, followed=followed)
                if changes:
                    self._changes[number] = changes
        self._copies = peer_copies(self.world)
        self._rooms = open_rooms(self.world, self._changes, self._copies)

    def close(self) -> None:
        """Forget the memory of the other ranks."""
        if self._rooms is not None:
            self._rooms.close()
        self._rooms = self._copies = None
        self._device_transforms.clear()
        self._exchanges.clear()
        self._moves.clear()

    @property
    def is_issued_by_host(self) -> bool:
        """Whether something between ranks is prepared anew in each step: what no CUDA graph can hold."""
        lines = any(len(transform.shape) == 1 for transform in self.layouts.transforms.values())
        products = any(isinstance(step, ProductStep) for step in self.program.steps)
        return self.world.size > 1 and (lines or products)

    def forget(self) -> None:
        for run in self.runs.values():
            run.forget()

    def abandon(self, known: frozenset[int]) -> None:
        """Forget what was issued for a CUDA graph that could not be made."""
        for run in self.runs.values():
            run.abandon(frozenset())

    @property
    def known(self) -> frozenset[int]:
        """Stages whose reductions are done ahead: none."""
        return frozenset()

    @property
    def exchange_spans(self) -> list[tuple[Mark, Mark]]:
        return [span for run in self.runs.values() for span in run.exchange_spans]

    @property
    def capturing(self) -> bool:
        return any(run.capturing for run in self.runs.values())

    @capturing.setter
    def capturing(self, value: bool) -> None:
        for run in self.runs.values():
            run.capturing = value

    @property
    def is_split(self) -> bool:
        return self.world.size > 1

    @property
    def exchanges(self) -> int:
        """Number of halo exchanges and redistributions so far."""
        return self.moved + sum(run.exchanges for run in self.runs.values())

    @exchanges.setter
    def exchanges(self, number: int) -> None:
        self.moved += number - self.exchanges

    @property
    def exchange_bytes(self) -> int:
        """Bytes that arrive in one redistribution or exchange, at most."""
        sizes = [np.prod(one.shape, dtype=float) * one.dtype.itemsize for one in self.program.shared]
        return int(max(sizes, default=0)) // self.world.size if self.is_split else 0

    def set_inputs(self, arrays: Sequence[DistributedArray]) -> None:
        """Do nothing: values that are inputs are given to parts when they run."""

    def set_step(self, slots: Array) -> None:
        """Set the values that the host computes for each step. slots: of the function's tape."""
        self._set_slots(slots, range(len(self.program.steps)))

    def _set_slots(self, slots: Array, numbers: range) -> None:
        """Set these values for some of the steps."""
        for number in numbers:
            step = self.program.steps[number]
            if isinstance(step, SpacePart):
                for place, slot in enumerate(step.slots):
                    self.runs[number].values.row[place] = slots[slot]

    def take(self, outs: Sequence[Array]) -> None:
        """Run all parts and transforms once. outs: of each output, this rank's own cells, to be filled."""
        self._valid.clear()
        self._take_steps(range(len(self.program.steps)), outs)
        for number, check in enumerate(self.program.checks):
            failed = self._failed[number : number + 1]
            self.world.xp.logical_or(failed, self.values[check.count.value] == 0, out=failed)

    def _take_steps(self, numbers: range, outs: Sequence[Array]) -> None:
        """Run some of the steps, each loop with its body."""
        following = numbers.start
        under_way: list[DeviceTransform] = []  # the last transform, while its cells travel
        target_of: int | None = None  # the array that it fills
        for number in numbers:
            step = self.program.steps[number]
            if number < following:
                continue  # of a loop that has run
            follows = isinstance(step, TransformStep) and step.source != target_of
            if not follows:
                _finish(under_way)
            if isinstance(step, LoopStep):
                following = number + 1 + step.steps
                decided = step.again is not None or step.first is not None
                with self.world.operations.waits.of_line(step.line) if decided else nullcontext():
                    self._take_loop(step, range(number + 1, following), outs)
                continue
            if isinstance(step, SpacePart):
                self._take_part(number, step, outs)
            elif isinstance(step, ProductStep):
                self._multiply(step)
            else:
                self._transform(number, step, under_way)
                target_of = step.target
        _finish(under_way)

    def _take_loop(self, loop: LoopStep, body: range, outs: Sequence[Array]) -> None:
        """Run a loop. body: the numbers of its steps."""
        tape, numbers, given = self.program.tape, loop.numbers, self.host.given
        by_host = bool(tape.slots) and (bool(numbers.carried) or numbers.index is not None)
        for one in loop.state:
            self._pass_on(one.initial, one.found)
        if by_host:
            before = tape.numbers(self.host.step, given)
            for carried in numbers.carried:
                given[carried.number] = before[carried.initial] if carried.on_tape[0] else carried.initial
        written = {SharedPlace(number) for number in written_by(self.program.steps[n] for n in body)}
        items, most = numbers.items, self.host.rules.most_iterations - numbers.unrolled
        self._tallies[loop].compared.clear()
        wanted, count = loop.first is None or self._answer(loop, loop.first, 0), 0
        while wanted and count < (most if items is None else len(items)):
            # The numbers that the host makes for this iteration.
            if items is not None and numbers.index is not None:
                given[numbers.index] = items[count]
            values = tape.numbers(self.host.step, given) if by_host else []
            if by_host:
                self._set_slots(tape.row_of(values), body)

            # What the last iteration has written is not what this one writes.
            self._valid = {key for key in self._valid if key[0] not in written}
            self._take_steps(body, outs)
            for one in loop.state:
                if one.final is not None and one.found in self._changing_places:
                    self._change_places(one.final, one.found)
                elif one.final is not None:
                    self._pass_on(one.final, one.found)
            for carried in numbers.carried if by_host else ():
                given[carried.number] = values[carried.final] if carried.on_tape[1] else carried.final
            count += 1
            wanted = loop.again is None or self._answer(loop, loop.again, count)
        if wanted and items is None and loop.kind == "while":
            raise not_ended(loop.line, self.host.rules.most_iterations, self._tallies[loop].compared)
        self._tallies[loop].add(count)

    def _answer(self, loop: LoopStep, condition: int, count: int) -> bool:
        """Return whether there is another iteration after so many; watch what the condition compares."""
        known = self._conditions.get(condition)
        if known is None:
            return bool(self.world.waited_for(self.values[condition]))
        # One wait, for the condition and what it compares.
        run, backend, tally = self.runs[known.part], self.world.backend, self._tallies[loop]
        row = backend.host_empty(run.values.row.shape, run.values.row.dtype)
        backend.download(run.values.row, row)
        if backend.asynchronous:
            with self.world.operations.waits:
                backend.passed(backend.mark())
        values = {n: slot_of(row, n, dtype) for n, dtype in run.program.dtypes.items()}
        text = partial(compared_text, known.compared, values)
        done = count + loop.numbers.unrolled
        if not tally.has_nan and compares_nan(known.compared, values):
            tally.has_nan = True
            at = Iteration(loop.line, done, self.host.step, self.host.saved)
            report_nan(self.world, at, text(), self._state_of(loop), fails=self.host.rules.check_finite)
        if count:
            self.host.rules.progress(loop.line, done, text)
        if count > self.host.rules.most_iterations - loop.numbers.unrolled - KEPT:
            tally.compared.append(text())
        return bool(values[known.value])

    def _state_of(self, loop: LoopStep) -> list[tuple[str, DistributedArray]]:
        """Return the arrays of a loop's state, with their names."""
        found = []
        for one in loop.state:
            shared = self.program.shared[one.found]
            if shared.shape:
                grid = slab_grid(shared.shape, self.layouts.arrays[one.found], self.world.size)
                found.append((shared.name, self._array(SharedPlace(one.found), grid)))
        return found

    def _pass_on(self, source: int | None, target: int) -> None:
        """Copy a shared array or value to another one. source: None: zeros."""
        one = self.program.shared[target]
        if not one.shape:
            value = self._value(SharedPlace(target))
            value[...] = 0 if source is None else self.values[source]
            return
        place, grid = SharedPlace(target), slab_grid(one.shape, self.layouts.arrays[target], self.world.size)
        cells = 0 if source is None else self._array(SharedPlace(source), grid).interior
        self._valid = {key for key in self._valid if key[0] != place}
        array = self._target(place, grid)
        array.interior[...] = cells
        array.written()

    def _change_places(self, source: int, target: int) -> None:
        """Let a shared array have the block of another one, which is written before it is read again."""
        grid = slab_grid(self.program.shared[target].shape, self.layouts.arrays[target], self.world.size)
        before, after = (SharedPlace(target), grid), (SharedPlace(source), grid)
        array = self._array(*after)
        self._valid = {key for key in self._valid if key[0] not in (before[0], after[0])}
        self._held[after] = self._target(*before)
        self._held[before] = array

    def _transform(self, number: int, step: TransformStep, under_way: list[DeviceTransform]) -> None:
        """Transform an array; on GPUs up to its first exchange: then it is all that is under way."""
        transform, ranks = self.layouts.transforms[number], self.world.size
        source = self._array(SharedPlace(step.source), slab_grid(transform.shape, transform.split, ranks))
        grid = slab_grid(transform.result_shape, transform.result_split, ranks)
        target = self._target(SharedPlace(step.target), grid)
        prepared = self._device_transform(number, source, target)
        if prepared is None:
            with nullcontext() if self.world.backend.asynchronous else self.phases("transform"):
                target.interior[...] = transform.carry_out(self.world, source.interior)
        else:
            if self._rooms is None or self._rooms.sets == 1:
                _finish(under_way)
            prepared.begin()
            _finish(under_way)
            under_way.append(prepared)
        target.written()
        self.moved += transform.exchanges if self.is_split else 0

    def _multiply(self, step: ProductStep) -> None:
        """Multiply two fields. All three are split by rows."""
        world, shared = self.world, self.program.shared
        blocks, shapes = [], []
        for number, turned in zip(step.sources, step.product.turned, strict=True):
            shape = shared[number].shape
            block = self._array(SharedPlace(number), slab_grid(shape, 0, world.size)).interior
            blocks.append(transposed_rows(world, block, shape) if turned else block)
            shapes.append(shape[::-1] if turned else shape)
        target = self._target(SharedPlace(step.target), slab_grid(shared[step.target].shape, 0, world.size))
        with nullcontext() if world.backend.asynchronous else self.phases("product"):
            left, right = blocks
            target.interior[...] = multiply(world, left, right, (*shapes[0], shapes[1][1]))
        target.written()
        self.moved += sum(step.product.turned) + 1 if self.is_split else 0

    def _device_transform(
        self, number: int, source: DistributedArray, target: DistributedArray
    ) -> DeviceTransform | None:
        """Return what transforms between arrays on GPUs; None on CPUs, and for arrays of one axis."""
        world, transform = self.world, self.layouts.transforms[number]
        if not self._on_gpu or len(transform.shape) == 1:
            return None
        if number in self._changes and number not in self._exchanges:
            assert self._rooms is not None
            turn, in_loops = [*self._changes].index(number), bool(self.program.loop_steps)
            self._exchanges[number] = self._rooms.exchanges(turn, self._changes[number], in_loops=in_loops)
        key = number, id(source), id(target)
        if key not in self._device_transforms:
            exchanges = self._exchanges.get(number, [])
            made = DeviceTransform(world, transform, source.interior, target.interior, self._kept, exchanges)
            self._device_transforms[key] = made
        return self._device_transforms[key]

    def _take_part(self, number: int, step: SpacePart, outs: Sequence[Array]) -> None:
        run = self.runs[number]
        held: list[Any] = []
        for place, one in enumerate(step.reads):
            if step.program.inputs[place].shape:
                run.arrays[place] = self._array(one, run.partition.grid)
                held.append(run.arrays[place])
            else:
                held.append(Held(self._value(one)))
        run.set_inputs(held)
        targets, later = [], list[tuple[int, Array]]()
        for one, output in zip(step.writes, step.program.outputs, strict=True):
            if not output.shape:
                targets.append(outs[one.number] if one.of_function else self._value(one))
            elif not one.of_function:
                targets.append(self._target(one, run.partition.grid).interior)
            elif self._is_own(number, step):
                targets.append(outs[one.number])
            else:
                if (number, one) not in self._results:
                    shape = (*run.region.shape, *output.shape[len(step.program.space) :])
                    self._results[number, one] = self.world.backend.empty(shape, output.dtype)
                targets.append(self._results[number, one])
                later.append((one.number, targets[-1]))
        run.take(targets)
        for one in step.writes:
            if not one.of_function and self.program.shared[one.number].shape:
                self._target(one, run.partition.grid).written()
        for result, block in later:
            self._fill(outs[result], block, run.partition)

    def _value(self, place: SharedPlace) -> Array:
        if not place.of_function:
            return self.values[place.number]
        array = self.arrays[place.number]
        assert array is not None
        return array.interior

    def _target(self, place: SharedPlace, grid: Shape) -> DistributedArray:
        """Return the array that is written; its other copies are stale."""
        key = place, grid
        if key not in self._held:
            dtype = self.program.shared[place.number].dtype
            if place.of_function:
                dtype = self.program.inputs[place.number].dtype
            self._held[key] = self._block(place, self._plan(place, grid), dtype)
        self._valid.add(key)
        return self._held[key]

    def _block(self, place: SharedPlace, plan: HaloPlan, dtype: np.dtype[Any]) -> DistributedArray:
        """Return a block for an array: one of its layout that is free while it is needed, or a new one."""
        whole = range(len(self.program.steps))
        needed = whole if place.of_function else self._lifetimes[place.number]
        for array, users in self._users:
            free = all(needed.stop <= one.start or one.stop <= needed.start for one in users)
            layout = array.layout
            if free and array.dtype == dtype and layout.serves_for(plan) and plan.serves_for(layout):
                users.append(needed)
                return array
        array = empty_array(self.world, plan, dtype, self.allocator)
        poison(array.block)
        self._users.append((array, [needed]))
        return array

    def _array(self, place: SharedPlace, grid: Shape) -> DistributedArray:
        """Return an array under a partition, to which it is moved if it is split otherwise."""
        own = self.arrays[place.number] if place.of_function else None
        if own is not None and self.partition.grid == grid:
            return own
        if (place, grid) in self._valid:
            return self._held[place, grid]
        source = own
        if source is None:
            other = next(layout for one, layout in self._valid if one == place)
            source = self._held[place, other]
        target = self._target(place, grid)
        boxes = source.partition, target.partition
        self._move((place, grid), source.shape, boxes, source.interior, target.interior)
        target.written()
        self.moved += self.is_split
        return target

    def _fill(self, out: Array, block: Array, partition: Partition) -> None:
        """Fill a result from a block of another partition, of a space that may have fewer cells."""
        rest = block.shape[len(partition.shape) :]
        zero = (0,) * len(rest)

        def boxes(of: Partition, limit: Shape) -> list[Region]:
            whole = Region((0,) * len(limit), limit)
            parts = [overlap(of[rank], whole) for rank in range(self.world.size)]
            return [Region((*one.start, *zero), (*one.stop, *rest)) for one in parts]

        limit = tuple(map(min, partition.shape, self.partition.shape))
        ends = boxes(partition, limit), boxes(self.partition, limit)
        before, after = (one[self.world.rank] for one in ends)
        given, own = (
            array[tuple(slice(0, n) for n in region.shape)]
            for array, region in ((block, before), (out, after))
        )
        self._move(id(block), (*limit, *rest), ends, given, own)
        self.moved += self.is_split

    def _move(
        self, name: Hashable, shape: Shape, boxes: tuple[Boxes, Boxes], source: Array, target: Array
    ) -> None:
        """Move cells between the ranks' boxes, before and after. On GPUs it is prepared once.

        name: of the move; its arrays may be others in the next step.
        """
        world = self.world
        if self._copies is None:
            move(world, RedistributionPlan(*boxes, world.size), source, target)
            return
        key = name, address_of(source), address_of(target)
        if key not in self._moves:
            before, after = (tuple(one[rank] for rank in range(world.size)) for one in boxes)
            change = BoxChange(shape, np.dtype(source.dtype), before, after, 0, most=1)
            self._moves[key] = MessageExchange(change, world, (source, target), self._copies)
        exchange = self._moves[key]
        for number in range(len(exchange.parts)):
            exchange.send(number)
        exchange.wait()

    @property
    def loops(self) -> dict[tuple[int, int], LoopRun]:
        """The loops of the parts, by the numbers of part and stage."""
        return {(part, one): loop for part, run in self.runs.items() for one, loop in run.loops.items()}

    def every_loop(self) -> Iterator[LoopRun]:
        """Yield the loops, and those within them."""
        for run in self.runs.values():
            yield from run.every_loop()

    @property
    def loop_counts(self) -> list[LoopCount]:
        """How often the loops ran, in the order of their lines."""
        counts = []
        for loop, tally in self._tallies.items():
            if loop.kind != "if":
                before, waits = loop.numbers.unrolled, loop.again is not None
                total = tally.iterations + before * tally.runs
                counts.append(LoopCount(loop.line, total, tally.last + before, waits))
        return sorted(counts, key=lambda count: count.line)

    @property
    def misaligned(self) -> Misaligned | None:
        """Why coarse grids of a part are computed at all positions, if they are."""
        reasons = (run.misaligned for run in self.runs.values())
        return next((one for one in reasons if one is not None), None)

    def series(self, number: int) -> Array | None:
        """Return None: no series reads points; those of values are the stepper's."""
        return None

    def value(self, node: Node) -> Any:
        """Return a shared value, or what is computed of shared values."""
        assert node.op == "scalar"
        return self.values[node.value]

    def reset_checks(self) -> None:
        """Forget which checks of values have failed."""
        self._failed.fill(False)

    def failed_check(self) -> ValueCheck | None:
        """Return the first check of a value that failed in some step so far; None if none did."""
        return next((one for n, one in enumerate(self.program.checks) if bool(self._failed[n])), None)


def _finish(under_way: list[DeviceTransform]) -> None:
    """Finish the transforms that are under way."""
    for transform in under_way:
        transform.finish()
    under_way.clear()
