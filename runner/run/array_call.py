"""Apply a job to an array in memory, in this process alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.device.cpu import CpuBackend
from runner.job.declaration import Job
from runner.pipeline.in_memory import Pipeline, no_progress
from runner.plan.task import plan_task
from runner.report.phases import Phases
from runner.run.execute import call
from runner.run.options import Options, RunContext
from runner.storage.formats import MemorySource
from runner.storage.transaction import OutputTransaction
from runner.world.world import World, single_rank_world


def apply(job: Job, array: Any, parameters: dict[str, Any]) -> Any:
    """Return a job's result for a NumPy or CuPy array, as an array of the same module."""
    if hasattr(array, "__cuda_array_interface__"):
        from runner.device.cuda import borrowed

        with borrowed(array) as backend:
            return _apply(single_rank_world(backend), job, array, parameters)
    return _apply(single_rank_world(CpuBackend()), job, np.asarray(array), parameters)


def _apply(world: World, job: Job, array: Any, parameters: dict[str, Any]) -> Any:
    parameters = job.complete(parameters)
    phases = Phases(world.backend.synchronize)
    if job.kind != "map":
        source = MemorySource(array)
        return call(
            RunContext(
                world, job, parameters, source, None, Options(), OutputTransaction(), no_progress, phases
            )
        )
    task = plan_task(job, parameters, tuple(array.shape), np.dtype(array.dtype), 1)
    pipeline = Pipeline(world, task, phases)
    block = world.backend.empty(pipeline.plan.shape, task.dtype)
    block[pipeline.plan.core] = array
    task = pipeline.prepare(block)
    assert task.result is not None
    whole = world.backend.empty(*task.result)
    for region, result in pipeline.results(block):
        whole[region.slices] = result
    return whole
