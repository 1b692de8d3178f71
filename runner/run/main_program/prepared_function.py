"""Call a function of whole arrays with distributed arrays: traced once, then launched again and again.

The first call with arrays of these shapes traces the function, plans its stages and makes the blocks that
they use. A further call copies the cells of its arrays into these blocks, runs the stages, and copies the
results out of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray, array_of, empty_array
from meshrun.runner.arrays.operations import parts as geometry
from meshrun.runner.arrays.operations.split_array import SplitArray, begin, cells_for
from meshrun.runner.compiler.decide import WORTH_COMPILING, WORTH_TRACING
from meshrun.runner.compiler.function_key import key_of
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.block_form import not_in_blocks, whole_program
from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram
from meshrun.runner.errors import RunError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.whole_call import call_whole
from meshrun.runner.plan.grid import Partition
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.reducing import prepared_for_kernels
from meshrun.runner.programs.spectral.spectral_run import SpectralRun
from meshrun.runner.programs.stages import plan_program, with_packed_arrays
from meshrun.runner.region import Array, Shape, Subgrid
from meshrun.runner.steps import halo_path
from meshrun.runner.steps.step_scalars import StepScalars
from meshrun.runner.world.world import World

MOST_KEPT = 64  # calls that are prepared in a world


@dataclass(frozen=True)
class FieldPlace:
    """Where the cells of an array of a call lie in its block, which has a cell at each position of space.

    parts: of the array, as the block's are. cells: this rank's cells in its block.
    """

    parts: geometry.Parts
    cells: tuple[slice, ...]


def place_of(partition: Partition, subgrid: Subgrid | None, rank: int) -> FieldPlace:
    """Return where the own cells of an array lie. partition: of its cells in memory. subgrid: None: all."""
    if subgrid is None:
        return FieldPlace(partition, (slice(None),) * len(partition.shape))
    cells = subgrid.places(partition[rank])
    boxes = tuple(subgrid.cells(region) for region in partition)
    parts = geometry.as_partition(geometry.BoxParts(subgrid.shape, boxes), partition.grid)
    return FieldPlace(parts, cells)


class PreparedFunction:
    """A function of whole arrays on a world's ranks, for arrays of known shapes. Every method is collective.

    is_plain: NumPy computes the same by a call of the function itself: one rank has all cells, there is too
    little work for a compiler, and nothing is reduced, transformed or multiplied as matrices.

    Parameters
    ----------
    world: whose ranks compute.
    job: of a function of whole arrays.
    types: shape and dtype of each array.
    parameters: of the job, complete.
    grid: number of blocks along each axis.
    """

    def __init__(
        self,
        world: World,
        job: Job,
        types: Sequence[tuple[Shape, np.dtype[Any]]],
        parameters: dict[str, Any],
        grid: Shape,
    ) -> None:
        self.world, self.job, kind = world, job, world.backend.device.kind
        self.program = traced(job, types, parameters, kind)
        transforms = isinstance(self.program, SpectralProgram)
        nbytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in types)
        compiled = kind == "cuda" or nbytes >= WORTH_TRACING * WORTH_COMPILING
        reduces = bool(self.program.values or self.program.reduced or self.program.series)
        self.is_plain = world.size == 1 and not (compiled or reduces or transforms)
        if self.is_plain:
            return
        self._run: ProgramRun | SpectralRun
        if isinstance(self.program, SpectralProgram):
            self._run = SpectralRun(world, self.program, grid, world.new_phases(), compiled)
            shapes = [one.shape for one in self.program.inputs] + [one.shape for one in self.program.shared]
            most_axes = max(map(len, shapes))
        else:
            self.program = with_packed_arrays(self.program)
            staged = plan_program(self.program)
            if compiled and kind == "cuda":
                staged = prepared_for_kernels(staged)
            self._run = ProgramRun(world, staged, grid, world.new_phases(), compiled)
            most_axes = max(len(one.shape) for one in staged.arrays)
        self._run.tables = halo_path.find_tables(world, most_axes)
        for number, reason, _ in self._run.prepare():
            world.warn(f"stage {number + 1} of job {job.name} has no kernel: {reason}")
        tape = self.program.tape
        self._scalars = StepScalars(tape, world.xp, 1) if tape.slots else None

        # The blocks of what it takes, and of the arrays that it uses besides.
        space, run = self.program.space, self._run
        self._inputs: list[DistributedArray] = []
        self._places: list[FieldPlace | None] = []
        sizes = self.program.sizes
        for number, (plan, one) in enumerate(zip(run.plans, self.program.inputs, strict=False)):
            if plan is None:
                own = world.backend.empty((), one.dtype)
                block, place = array_of(world, geometry.even_parts((), world.size), own), None
            else:
                block = empty_array(world, plan, one.dtype)
                block.block[...] = 0
                cells = None if sizes is None else sizes.inputs[number].in_memory(space)
                place = place_of(plan.partition, cells, world.rank)
            self._inputs.append(block)
            self._places.append(place)
            if one.constant is not None:
                values = (
                    one.constant.values[plan.partition[world.rank].slices] if plan else one.constant.values
                )
                block.interior[...] = world.xp.asarray(values)
        # Programs in stages take values that are inputs by `set_inputs`, those with transforms here.
        run.arrays[: len(self._inputs)] = [
            None if place is None and not transforms else block
            for block, place in zip(self._inputs, self._places, strict=True)
        ]

        self._make_results()

    def _make_results(self) -> None:
        """Allocate the blocks of the results."""
        sizes, space = self.program.sizes, self.program.space
        self._outs: list[Array] = []
        self._results: list[FieldPlace | None] = []
        for number, output in enumerate(self.program.outputs):
            if not output.shape:
                self._outs.append(self.world.backend.empty((), output.dtype))
                self._results.append(None)
                continue
            partition = self._run.result_partition(number).with_axes(output.shape[len(space) :])
            self._outs.append(self.world.backend.empty(partition[self.world.rank].shape, output.dtype))
            own = None if sizes is None else sizes.outputs[number].in_memory(space)
            self._results.append(place_of(partition, own, self.world.rank))

    def _fill(self, number: int, value: Any) -> None:
        """Fill the block of an input. value: a distributed array, or what every rank has whole."""
        block, place = self._inputs[number], self._places[number]
        if place is None:
            own = value.interior if isinstance(value, SplitArray) else value
            block.interior[...] = self.world.xp.asarray(own)
            return
        cells = cells_for(self.world, value, place.parts, on_device=True)
        block.interior[place.cells] = cells
        block.written()

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results, distributed arrays and numbers; change the arrays that the function changes."""
        run, program = self._run, self.program
        for number, value in enumerate(arrays):
            self._fill(number, value if hasattr(value, "dtype") else np.asarray(value))
        run.forget()
        run.set_inputs(self._inputs)
        if self._scalars is not None:
            self._scalars.provide(0, 1, 1)
            run.set_step(self._scalars.rows(0, 1)[0])
        run.take(self._outs)
        self.world.operations.waits.note_caller()
        if program.checks and (failed := run.failed_check()) is not None:
            run.reset_checks()
            raise RunError(f"line {failed.line}: job {self.job.name} {failed.what}", everywhere=True)
        results: list[Any] = []
        for output, out, place in zip(program.outputs, self._outs, self._results, strict=True):
            given = arrays[output.origin] if output.origin >= 0 else None
            if given is not None and output.shape == given.shape:
                # The result is the caller's array, which the function may have changed.
                if output.origin in program.changed:
                    given[...] = array_of_result(self.world, out, place)
                results.append(given)
            else:
                results.append(array_of_result(self.world, out, place, copy=True))
        results += [self._number(one.nodes, one.shape) for one in program.series]
        return results

    def _number(self, nodes: Sequence[Any], shape: Shape) -> Any:
        """Return a result that is no field."""
        values = [self._run.value(node).reshape(()) for node in nodes]
        return value_of(self.world, self.world.xp.stack(values).reshape(shape))


def array_of_result(world: World, out: Array, place: FieldPlace | None, *, copy: bool = False) -> Any:
    """Return a result's cells as a distributed array; one without axes as a number."""
    if place is None:
        return value_of(world, out.copy())
    own = out[place.cells]
    return array_of(world, place.parts, own.copy() if copy else own)


def value_of(world: World, values: Array) -> Any:
    """Return a result that every rank has whole: on a device, a distributed array if it is a number."""
    if world.xp is np or values.ndim:
        return values[()]
    return array_of(world, geometry.even_parts((), world.size), values)


def traced(
    job: Job, types: Sequence[tuple[Shape, np.dtype[Any]]], parameters: dict[str, Any], kind: str
) -> WholeProgram:
    """Return what a job's function computes. Raises UserError, with the line, for what is not traced."""
    try:
        program = whole_program(job, types, job.arguments(parameters), kind)
        for number, change in program.changed.items():
            fits = any(one.origin == number and one.shape == types[number][0] for one in program.outputs)
            if not fits:
                name = job.arrays[number]
                reason = NotTraceable(
                    f"changes its input {name} and does not return it", f"{name}.copy(), or return {name}"
                )
                reason.line = change.line
                raise reason
        for series in program.series:
            if series.listed or program.graph.vary(series.nodes):
                raise NotTraceable(
                    f"returns values at points as the series {series.name}",
                    f"{job.name}.iterate, or {job.name}.run with files",
                )
    except NotTraceable as reason:
        found = not_in_blocks(job, reason)
        found.everywhere = True
        raise found from reason
    return program


def grid_like(arrays: Sequence[Any]) -> Shape:
    """Return the number of blocks along each axis: as the first array that has most axes is split."""
    split = [one for one in arrays if isinstance(one, SplitArray)]
    first = max(split, key=lambda one: one.ndim)
    ranks = first.world.size
    partition = first.partition
    if not isinstance(partition, Partition) or partition.size != ranks:
        return (ranks,) + (1,) * max(first.ndim - 1, 0)
    return partition.grid


def call_job(job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Return the result of a job's function of whole arrays; a tuple if there are several. Collective.

    arrays: distributed, of one world; some may be small arrays of NumPy's, or numbers. parameters: complete.
    """
    types, grid = types_of(arrays), grid_like(arrays)
    split = [one for one in arrays if isinstance(one, SplitArray)]
    plain = id(job), types, grid, tuple(parameters.items())
    kept: PreparedFunction | None = split[0].world.prepared.get(plain)
    if kept is not None:
        return call_plainly(kept, arrays, parameters)
    # What the function reads besides its arrays may have changed since the last call.
    read = key_of([job.function, parameters])
    prepared = prepare(job, arrays, parameters, None if read is None else (id(job), read))
    if prepared.is_plain:
        split[0].world.prepared[plain] = prepared
        return call_plainly(prepared, arrays, parameters)
    results = prepared(arrays)
    return results[0] if len(results) == 1 else tuple(results)


def call_plainly(prepared: PreparedFunction, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Return what the function returns for the arrays themselves, of which this rank has all cells.

    Of a function that returns nothing, return the arrays that it has changed.
    """
    for one in arrays:
        if isinstance(one, SplitArray):
            one.check_readable()
    own = [one.interior if isinstance(one, SplitArray) else one for one in arrays]
    returned = call_whole(prepared.job, own, parameters)
    for number in prepared.program.changed:
        arrays[number].note_write()
    if returned is None:
        changed = [arrays[one.origin] for one in prepared.program.outputs]
        return changed[0] if len(changed) == 1 else tuple(changed)
    if not isinstance(returned, (tuple, list)):
        return _wrapped(returned, arrays)
    return tuple(_wrapped(one, arrays) for one in returned)


def _wrapped(result: Any, arrays: Sequence[Any]) -> Any:
    """Return a result of NumPy's as a distributed array: one of the arrays, if it is that one."""
    split = [one for one in arrays if isinstance(one, SplitArray)]
    for one in split:
        if one.interior is result:
            return one
    world = split[0].world
    parts = geometry.even_parts(np.shape(result), world.size)
    for one in split:
        if np.may_share_memory(one.interior, result):
            return one.view_of(parts, result)
    return split[0].made(parts, np.asarray(result))


def types_of(arrays: Sequence[Any]) -> tuple[tuple[Shape, np.dtype[Any]], ...]:
    given = (one if hasattr(one, "dtype") else np.asarray(one) for one in arrays)
    return tuple((tuple(one.shape), np.dtype(one.dtype)) for one in given)


def prepare(
    job: Job, arrays: Sequence[Any], parameters: dict[str, Any], identity: Hashable
) -> PreparedFunction:
    """Return a call that is ready, of an earlier call where possible. Collective.

    identity: equal for equal functions and parameters; None: the function is traced again.
    """
    world = next(one.world for one in arrays if isinstance(one, SplitArray))
    begin(world, job.name, *arrays, *parameters.values())
    types, grid = types_of(arrays), grid_like(arrays)
    key = identity, types, grid
    prepared: PreparedFunction | None = None if identity is None else world.prepared.get(key)
    if prepared is None:
        prepared = world.collective_call(lambda: PreparedFunction(world, job, types, parameters, grid))
        world.prepared[key] = prepared
        while len(world.prepared) > MOST_KEPT:
            del world.prepared[next(iter(world.prepared))]
    return prepared
