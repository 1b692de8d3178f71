"""Plan the time steps of a job that gets the service `simulate`: the job runs up to its steps, without any.

The floor in time is that of the memory that each step reads and writes: halo exchanges, forces and frames are
not in it, as their rates are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.comm.threads import ThreadComm
from runner.errors import UserError
from runner.fuse.branches import common_operations
from runner.fuse.trace import NotTraceable
from runner.job.declaration import Job
from runner.pipeline.fusing import reads_of, traced
from runner.plan.forecast import limits_on
from runner.plan.machine import Machine
from runner.plan.step_options import Copies, StepOptions
from runner.plan.steps import halo_bytes, step_memory
from runner.plan.stream_options import StreamOptions
from runner.plan.task import Task, plan_task
from runner.report.record import Record
from runner.run.record.forecast_record import plan_envelope
from runner.storage.formats.registry import Source
from runner.world.world import open_world

RANKS_MOST = 1 << 17  # of those looked at for enough memory


class _StepsKnownError(Exception):
    """The job has called `simulate`."""


@dataclass
class _StepsToPlan:
    """In place of `runner.run.services.simulation.Simulate`: keeps what it is called with, and ends the
    job there. film: none, as a plan has no OUTPUT."""

    film: None = field(default=None, init=False)
    options: StepOptions = field(default_factory=StepOptions)
    known: tuple[Job, dict[str, Any], Sequence[Source], int] | None = field(default=None, init=False)

    def __call__(
        self,
        step: Job,
        parameters: dict[str, Any],
        sources: Sequence[Source],
        options: StepOptions,
        _: object,
    ) -> Record:
        self.known = step, step.complete(parameters), sources, options.steps or 0
        raise _StepsKnownError


def plan_steps(
    job: Job,
    argument: str,
    parameters: dict[str, Any],
    machine: Machine,
    ranks: int,
    hosts: int,
    grid: str | None,
    options: StreamOptions,
    copies: Copies = "auto",
) -> Record:
    """Return the forecast of a job's time steps as plain values: memory, operations, bytes, a floor in time.

    options: only its limits of memory apply. copies: of the fields, as in a run. Raises UserError for what
    the job refuses, and for a domain that the memory of so many ranks does not hold.
    """
    step, given, sources, steps = _steps(job, argument, parameters)
    types = [(source.shape, source.dtype) for source in sources]

    def cut(count: int, text: str | None = None) -> Task:
        return plan_task(step, given, types, count, grid=text)

    task = cut(ranks, grid)
    region, gpu = task.partition[0], machine.gpus > 0
    local = min(-(-ranks // hosts), ranks)
    limits = limits_on(machine, options, local)
    limit = limits.device if gpu else limits.host
    one, two = (step_memory(task, region, one_copy=once) for once in (True, False))
    wanted = {"one": one, "two": two, "auto": two if two <= limit else min(one, two)}
    needed = wanted[copies]
    if gpu:
        enough = next((n for n in range(1, RANKS_MOST) if _least(cut(n), copies) <= limit), None)
    else:  # ranks of one host share its memory
        one_host = _least(cut(1), copies)
        enough = -(-one_host // (limit * local)) if limit else None
    what = "GPU" if gpu else "host"
    if needed > limit:
        hint = f"at least {enough} {what}s" if enough else f"a {what} with more memory"
        raise UserError(
            f"{'x'.join(map(str, reversed(task.shape)))} cells do not fit the memory of {ranks} rank(s)",
            got=f"{needed:,} bytes a rank",
            expected=f"at most {limit:,} bytes a rank",
            hint=hint + (", or --copies one" if copies == "two" and one <= limit else ""),
        )
    moved = task.input_bytes(region) + task.result_bytes(region)
    rate = machine.rates["kernel"]
    seconds = moved / rate.value
    if not gpu:
        beside = moved * local / machine.rates["host memory"].value
        seconds = max(seconds, beside)
    operations: int | None = None
    try:
        program = traced(task)
        task = replace(task, reads=reads_of(task, program))
        operations = common_operations(program)
    except NotTraceable:
        pass  # the function is called as it is
    cells = math.prod(task.shape)
    return plan_envelope(
        job,
        parameters,
        (task.shape, task.dtype),
        machine,
        ranks,
        hosts,
        {
            "grid": list(task.partition.grid),
            "steps": steps,
            "cells": cells,
            "bytes_per_cell": needed / max(region.size, 1),
            "memory": needed,
            "copies": 2 if needed == two and copies != "one" else 1,
            "memory_by_copies": {"one": one, "two": two},
            "memory_limit": limit,
            "enough_ranks": enough if gpu else None,
            "enough_hosts": None if gpu else enough,
            "operations": operations,
            "moved_bytes": moved,
            "rate": rate.value,
            "rate_source": rate.source,
            "exchange_bytes": halo_bytes(task, region),
            "step_seconds": seconds,
            "seconds": seconds * steps,
        },
    )


def _steps(
    job: Job, argument: str, parameters: dict[str, Any]
) -> tuple[Job, dict[str, Any], Sequence[Source], int]:
    """Call the job's function up to its call of `simulate`, in a world of one rank on the CPU."""
    simulate = _StepsToPlan()
    world = open_world("cpu", control=ThreadComm())
    services = {"world": world, "argument": argument, "xp": world.xp, "simulate": simulate}
    try:
        job.function(
            **{name: one for name, one in services.items() if name in job.services},
            **job.complete(parameters),
        )
    except _StepsKnownError:
        pass
    finally:
        world.close()
    if simulate.known is None:
        raise UserError(f"job {job.name} cannot be planned", got="it takes no steps")
    return simulate.known


def _least(task: Task, copies: Copies) -> int:
    """Return the least bytes of a rank in these copies of the fields."""
    region = task.partition[0]
    allowed = [once for once, word in ((True, "one"), (False, "two")) if copies in ("auto", word)]
    return min(step_memory(task, region, one_copy=once) for once in allowed)
