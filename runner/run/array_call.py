"""Apply a job to arrays in memory, in this process only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray, array_of, empty_array
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.operations.parts import BoxParts, as_partition
from meshrun.runner.arrays.operations.split_array import begin, cells_for
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.result_type import hide_output, with_known_results
from meshrun.runner.compiler.traced import check_tables
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.whole_call import call_whole
from meshrun.runner.maps.in_memory import Pipeline, call_once, fits_one_call, halo_plans
from meshrun.runner.options.run_options import Options
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.values import whole_number
from meshrun.runner.plan.task import Task, check_feeds, masked_cells
from meshrun.runner.region import HostArray, Subgrid, own_cells
from meshrun.runner.report.units import counted
from meshrun.runner.run.main_program.prepared_function import call_job, value_of
from meshrun.runner.run.main_program.remote_array import ranks_of
from meshrun.runner.run.prepare import PlannedTask, RunContext, agreed_kernel, plan_alone
from meshrun.runner.run.services.job_run import call, usable_memory
from meshrun.runner.spelling import python_caller
from meshrun.runner.steps.observers.series import SeriesRows
from meshrun.runner.steps.program_steps import ProgramStepper
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.registry import MemorySource
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World, single_rank_world

ONE_PASS = Options()
MOST_KEPT = 64  # functions that are known to be traceable
_TRACEABLE: dict[Hashable, Job] = {}
_LOCK = threading.Lock()
_HERE = threading.local()  # the world of this process alone, one for each thread


def apply(job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Return a job's result for NumPy or CuPy arrays, as an array of the same module.

    Returns a tuple for a job with several outputs. Raises UserError unless there is one array per input.
    """
    _check_arrays(job, arrays)
    if (ranks := ranks_of(arrays)) is not None:
        return ranks.call(job, *arrays, **parameters)
    if any(isinstance(one, DistributedArray) for one in arrays):
        if not job.whole:
            return _apply_to_distributed(job, arrays, job.complete(parameters))
        return call_job(job, arrays, job.complete(parameters))
    if job.whole:  # in this process the arrays are whole
        wholes = [one if hasattr(one, "__cuda_array_interface__") else _whole_array(one) for one in arrays]
        completed = job.complete(parameters)
        _check_traceable(job, wholes, completed)
        return call_whole(job, wholes, completed)
    if any(hasattr(array, "__cuda_array_interface__") for array in arrays):
        from meshrun.runner.device.cuda import borrowed

        with borrowed(arrays[0]) as backend:
            return _apply(single_rank_world(backend), job, arrays, parameters)
    return _apply(_host_world(), job, [host_array(array) for array in arrays], parameters)


def _apply_to_distributed(job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Return the results of a function of blocks as distributed arrays. Collective."""
    if job.kind != "map":
        raise UserError(
            f"job {job.name} is not called with distributed arrays",
            expected="a job made by distribute or map_blocks",
            hint=f"{job.name}.run with files",
            everywhere=True,
        )
    world = next(one.world for one in arrays if isinstance(one, DistributedArray))
    begin(world, job.name, *arrays, *parameters.values())
    planned = _planned(world, job, arrays, parameters)
    task, plans = planned.alone, halo_plans(planned.alone, world.rank)
    pipeline = Pipeline(world, task, world.new_phases(), plans=plans)
    task = pipeline.prepare(_distributed(world, task, plans, arrays))
    numbers = range(len(task.known))
    regions = [[task.output_region(box, number) for box in task.partition] for number in numbers]
    own = [every[world.rank] for every in regions]
    blocks = [world.backend.empty(box.shape, dtype) for box, (_, dtype) in zip(own, task.known, strict=True)]
    for region, results in pipeline.results():
        for number, (block, result) in enumerate(zip(blocks, results, strict=True)):
            block[task.output_region(region, number).slices_in(own[number])] = result
    found = []
    for (shape, _), every, block in zip(task.known, regions, blocks, strict=True):
        grid = (*task.partition.grid, *(1,) * len(shape))[: len(shape)]
        found.append(array_of(world, as_partition(BoxParts(shape, tuple(every)), grid), block))
    return found[0] if len(found) == 1 else tuple(found)


def _check_traceable(job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> None:
    """Raise UserError for a function of whole arrays that a run refuses, once for arrays of these types.

    What a function computes for other numbers differs in no way that is refused.
    """
    types = [(tuple(one.shape), np.dtype(one.dtype).newbyteorder("=")) for one in arrays]
    given = [value if isinstance(value, (str, bool)) else type(value) for value in parameters.values()]
    key = (id(job), tuple(types), tuple(given))
    if key in _TRACEABLE:
        return
    with hide_output():
        with_inferred_halo(job, types, parameters)
    with _LOCK:
        _TRACEABLE[key] = job  # so that no other one has its id
        while len(_TRACEABLE) > MOST_KEPT:
            del _TRACEABLE[next(iter(_TRACEABLE))]


def _host_world() -> World:
    """Return a world of this process alone, for host arrays; kept for the thread's next call."""
    kept: World | None = getattr(_HERE, "world", None)
    if kept is None or kept.here.pid != os.getpid():
        kept = _HERE.world = single_rank_world(CpuBackend())
    return kept


def host_array(array: Any) -> HostArray:
    """Return an input as a plain array in the machine's byte order, as a file's are read.

    Raises UserError for an array with masked cells, whose mask a job does not see.
    """
    found = _whole_array(array)
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _whole_array(array: Any) -> HostArray:
    """Return a plain array with the memory of an input, which may be of a subclass such as np.matrix."""
    if count := masked_cells(array):
        raise UserError(
            "the input is a masked array, and a job does not see its mask",
            got=counted(count, "masked cell"),
            hint="array.filled(value), or the mask as another input",
        )
    return np.asarray(array)


def iterate(
    job: Job, arrays: Sequence[Any], parameters: dict[str, Any], steps: int, every: int | None
) -> Any:
    """Return the results after `steps` steps on arrays in memory; with `every`, an iterator over results.

    Results are tuples for a job with several outputs. Raises UserError like `apply`, and for a job that takes
    no steps.
    """
    steps = _number_of_steps("steps", steps)
    every = None if every is None else _number_of_steps("every", every)
    _check_arrays(job, arrays)
    if job.kind != "map":
        raise UserError(f"job {job.name} takes no steps", expected="a job made by map_blocks")
    if (ranks := ranks_of(arrays)) is not None:
        return ranks.call(cast(Any, job).iterate, *arrays, **parameters, steps=steps, every=every)
    stages = _iterated(job, arrays, parameters, steps, every or steps)
    return stages if every is not None else next(stages)


def _number_of_steps(name: str, value: Any) -> int:
    number = whole_number(value)
    if number is None or number < 1:
        expected = "a number of steps, 1 or more"
        raise UserError(f"Invalid value for {name!r}", got=repr(value), expected=expected)
    return number


def _iterated(
    job: Job, arrays: Sequence[Any], parameters: dict[str, Any], steps: int, every: int
) -> Iterator[Any]:
    """Yield results after every `every` steps. In between, the device's current stream is the caller's."""
    split = next((one for one in arrays if isinstance(one, DistributedArray)), None)
    on_device = any(hasattr(array, "__cuda_array_interface__") for array in arrays) and split is None
    with contextlib.ExitStack() as stack, python_caller():
        if split is not None:
            begin(split.world, f"{job.name}.iterate", *arrays, *parameters.values(), steps, every)
            world = split.world
        elif on_device:
            from meshrun.runner.device.cuda import borrowed, on_own_stream

            backend: Any = stack.enter_context(borrowed(arrays[0]))
            world = single_rank_world(backend)
        else:
            world, arrays = single_rank_world(CpuBackend()), [host_array(array) for array in arrays]
        stepper = _stepper(world, job, arrays, job.complete(parameters), steps)
    while stepper.done < steps:
        with on_own_stream(backend) if on_device else contextlib.nullcontext(), python_caller():
            count = min(every - stepper.done % every, steps - stepper.done)
            points = job.series and not isinstance(stepper, ProgramStepper)
            rows = _advance_to_row(stepper, count) if points else []
            stepper.advance(1 if points else count)
            stepper.settle()
            if job.series and isinstance(stepper, ProgramStepper):
                series = SeriesRows(stepper.world, stepper.task, ())
                rows = [
                    series.row_of(number, row) for number, row in enumerate(series.row_of_stages(stepper))
                ]
            result = _result if split is None else _distributed_result
            found = tuple(result(stepper, number) for number in range(len(job.output_names)))
            if job.series and split is not None:  # rank 0 has the rows
                rows = stepper.world.control.broadcast(rows)
            found = (*found, *rows)
        yield found[0] if len(found) == 1 else found


def _advance_to_row(stepper: Stepper, steps: int) -> list[Any]:
    """Take all of some steps but the last; return what that one returns besides fields."""
    if steps > 1:
        stepper.advance(steps - 1)
    series = SeriesRows(stepper.world, stepper.task, ())
    rows = series.take(stepper.windows(), stepper.region, stepper.cut, step=stepper.done)
    return [series.row_of(number, row) for number, row in enumerate(rows)]


def _stepper(
    world: World, job: Job, arrays: Sequence[Any], parameters: dict[str, Any], steps: int
) -> Stepper:
    task = with_known_results(_planned(world, job, arrays, parameters, steps).alone, world.backend)
    check_tables(task, steps)
    check_feeds(task)
    one_by_one = task.job.series_pass is not None and task.job.series_pass.reads_halo(after=False)
    phases = world.new_phases()
    of_task = Stepper if task.job.program is None else ProgramStepper
    stepper = of_task(world, task, phases, keep_finals=True, one_by_one=one_by_one)
    stepper.start(_distributed(world, task, stepper.plans, arrays))
    return stepper


def _result(stepper: Stepper, number: int) -> Any:
    """Return a copy of output `number`, after the last step."""
    return own_cells(stepper.result(number), stepper.task.subgrid(number)).copy()


def _distributed_result(stepper: Stepper, number: int) -> Any:
    """Return a copy of output `number` as a distributed array, or of one without axes as a number."""
    world, task, own = stepper.world, stepper.task, stepper.result(number)
    subgrid = task.subgrid(number)
    shape = task.known[number][0] if subgrid is None else subgrid.shape
    if not shape:
        return value_of(world, own.copy())
    regions = [task.output_region(region, number) for region in task.partition]
    if subgrid is not None:
        own = own[subgrid.places(regions[world.rank])]
        regions = [subgrid.cells(region) for region in regions]
    grid = task.partition.grid + (1,) * (len(shape) - len(task.partition.grid))
    return array_of(world, as_partition(BoxParts(shape, tuple(regions)), grid[: len(shape)]), own.copy())


def _planned(
    world: World, job: Job, arrays: Sequence[Any], parameters: dict[str, Any], steps: int = 1
) -> PlannedTask:
    """Return the planned task, with a kernel where the job's function becomes one."""
    types = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    options = ONE_PASS if steps == 1 else replace(ONE_PASS, steps=StepOptions(steps))
    if world.size > 1:
        known = world.collective_call(lambda: plan_alone(world, job, parameters, types, options))
        world.on_root(lambda: known.try_splits(world, known.alone))
        if known.fusion is not None:
            fusions = world.control.allgather(known.fusion)
            known.alone, known.fusion = agreed_kernel(world, known.task, known.alone, fusions, None, steps)
        return known
    known = plan_alone(world, job, parameters, types, options)
    if not known.tried and known.fusion is not None:
        agreed_kernel(world, known.task, known.alone, [known.fusion], None, steps)
    known.try_splits(world, known.alone)
    return known


def _distributed(
    world: World, task: Task, plans: Sequence[HaloPlan], arrays: Sequence[Any]
) -> list[DistributedArray]:
    """Return distributed arrays whose own cells are the arrays, and those that the function uses besides."""
    found = []
    every = [*arrays, *(world.xp.asarray(one.values) for one in task.job.constants)]
    for field, plan, array in zip(task.fields, plans, every, strict=True):
        found.append(empty_array(world, plan, np.dtype(array.dtype)))
        if field.subgrid is not None:
            found[-1].interior[...] = 0
        if world.size == 1 and not isinstance(array, DistributedArray):
            own_cells(found[-1].interior, field.subgrid)[...] = array
            continue
        _fill_own(found[-1], field.subgrid, array)
    return found


def _fill_own(target: DistributedArray, subgrid: Subgrid | None, array: Any) -> None:
    """Fill this rank's cells from a distributed array, or from one that every rank has whole. Collective."""
    world, regions, own = target.world, list(target.partition), target.interior
    if subgrid is not None:
        own = own[subgrid.places(target.region)]
        regions = [subgrid.cells(region) for region in regions]
    shape = target.shape if subgrid is None else subgrid.shape
    parts = as_partition(BoxParts(shape, tuple(regions)), target.partition.grid)
    if not isinstance(array, DistributedArray) and np.shape(array) == shape:
        own[...] = array[regions[world.rank].slices]
    else:
        own[...] = cells_for(world, array, parts, on_device=True)


def _check_arrays(job: Job, arrays: Sequence[Any]) -> None:
    if len(arrays) != len(job.arrays):
        raise UserError(
            f"job {job.name} takes {counted(len(job.arrays), 'array')}",
            got=len(arrays),
            expected=", ".join(job.arrays),
        )
    if paths := [str(one) for one in arrays if isinstance(one, str | os.PathLike)]:
        raise UserError(
            f"a call of job {job.name} takes arrays, not files",
            got=", ".join(paths),
            hint=f"{job.name}.run(INPUT, ..., OUTPUT)",
        )


def _apply(world: World, job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    parameters = job.complete(parameters)
    if "create" in job.services:
        raise UserError(f"job {job.name} takes files", hint=f"{job.name}.run(INPUT, ..., OUTPUT)")
    if job.kind != "map":
        source = MemorySource(arrays[0])
        run = RunContext(world, job, parameters, Options(), OutputTransaction(), sources=[source])
        return call(run, memory=usable_memory(run))
    planned = _planned(world, job, arrays, parameters)
    task, plans = planned.alone, planned.whole_plans
    blocks = _distributed(world, task, plans, arrays)
    if fits_one_call(world, task):
        wholes = []
        for result in call_once(world, task, blocks):
            wholes.append(world.backend.empty(result.shape, result.dtype))
            wholes[-1][...] = result
        return wholes[0] if len(wholes) == 1 else tuple(wholes)
    pipeline = Pipeline(world, task, world.new_phases(), plans=plans)
    task = pipeline.prepare(blocks)
    wholes = [world.backend.empty(*known) for known in task.known]
    for region, results in pipeline.results():
        for number, (whole, result) in enumerate(zip(wholes, results, strict=True)):
            whole[task.output_region(region, number).slices] = result
    return wholes[0] if len(wholes) == 1 else tuple(wholes)
