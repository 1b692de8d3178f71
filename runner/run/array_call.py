"""Apply a job to arrays in memory, in this process alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.device.cpu import CpuBackend
from runner.errors import UserError
from runner.job.declaration import Job
from runner.pipeline.in_memory import Pipeline, no_progress
from runner.plan.task import plan_task
from runner.report.phases import Phases
from runner.report.units import counted
from runner.run.execute import call
from runner.run.options import Options, RunContext
from runner.storage.formats import MemorySource
from runner.storage.transaction import OutputTransaction
from runner.world.world import World, single_rank_world


def apply(job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Return a job's result for NumPy or CuPy arrays, as an array of the same module.

    A job with several outputs returns a tuple. Raises UserError for another number of arrays than the job
    has inputs.
    """
    if len(arrays) != len(job.arrays):
        raise UserError(
            f"job {job.name} takes {counted(len(job.arrays), 'array')}",
            got=len(arrays),
            expected=", ".join(job.arrays),
        )
    if any(hasattr(array, "__cuda_array_interface__") for array in arrays):
        from runner.device.cuda import borrowed

        with borrowed(arrays[0]) as backend:
            return _apply(single_rank_world(backend), job, arrays, parameters)
    return _apply(single_rank_world(CpuBackend()), job, [np.asarray(array) for array in arrays], parameters)


def _apply(world: World, job: Job, arrays: Sequence[Any], parameters: dict[str, Any]) -> Any:
    parameters = job.complete(parameters)
    phases = Phases(world.backend.synchronize)
    if job.kind != "map":
        source = MemorySource(arrays[0])
        return call(
            RunContext(
                world, job, parameters, [source], [], Options(), OutputTransaction(), no_progress, phases
            )
        )
    types = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    task = plan_task(job, parameters, types, 1)
    pipeline = Pipeline(world, task, phases)
    blocks = []
    for plan, field, array in zip(pipeline.halos.plans, task.fields, arrays, strict=True):
        block = world.backend.empty(plan.shape, field.dtype)
        block[plan.core] = array
        blocks.append(block)
    task = pipeline.prepare(blocks)
    wholes = [world.backend.empty(*known) for known in task.known]
    for region, results in pipeline.results(blocks):
        for number, (whole, result) in enumerate(zip(wholes, results, strict=True)):
            whole[task.output_region(region, number).slices] = result
    return wholes[0] if len(wholes) == 1 else tuple(wholes)
