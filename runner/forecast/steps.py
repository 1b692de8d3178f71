"""Plan time steps: of a map job, or of a job that gets the service `simulate`, which runs up to its steps.

The floor in time is that of the memory that a step reads and writes, or the steps of one kernel: halo
exchanges, arithmetic, forces and frames are not in it, as their rates are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.compiler.block_function import BlockFunction
from meshrun.runner.compiler.compiled import DeviceKernel, HostKernel
from meshrun.runner.compiler.passes.branches import common_operations
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.traced import reads_of, traced
from meshrun.runner.compiler.whole.point_kernel import PointKernel
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.model import loop_bytes
from meshrun.runner.forecast.place import Place
from meshrun.runner.forecast.record import plan_envelope
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.plan_options import PlanOptions
from meshrun.runner.options.run_options import RANKS_MOST
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.plan.grid import parse_grid
from meshrun.runner.plan.steps import fields_memory, halo_bytes, kept_memory, moved_bytes, step_memory
from meshrun.runner.plan.task import Task, check_feeds, plan_task
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import option
from meshrun.runner.steps.observers.additions import Additions
from meshrun.runner.steps.steps_per_kernel import StepCounts, choose_steps
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.world import open_world

LONG_LOOK = 1 << 40  # bytes of fields of a domain whose cells a job would look at for long


class _StepsKnownError(Exception):
    """The job has called `simulate`."""


@dataclass(frozen=True)
class _KnownSteps:
    """What a job calls `simulate` with. one_by_one: cells are set before each step."""

    step: Job
    parameters: dict[str, Any]
    sources: Sequence[Source]
    options: StepOptions
    one_by_one: bool


@dataclass
class _StepsToPlan:
    """In place of `runner.run.services.simulation.Simulate`: keeps what it is called with, and ends the
    job there. film: none, as a plan has no OUTPUT; filmed: options of the film are accepted."""

    options: StepOptions
    place: Place
    film: None = field(default=None, init=False)
    filmed: bool = field(default=True, init=False)
    known: _KnownSteps | None = field(default=None, init=False)

    def check_memory(self, total: int, smaller: str) -> None:
        """Raise UserError if fields of `total` bytes are far too large, before the job looks at their domain.

        The forecast says what others need, and how many ranks would be enough.
        """
        place, needed = self.place, -(-total // self.place.ranks)
        if total >= LONG_LOOK and needed > place.memory:
            part = place.memory * (1 if place.gpu else place.ranks_of_host)
            hint = f"{_more(-(-total // max(part, 1)), gpu=place.gpu)}, or {smaller}"
            raise _too_large(f"fields of {total:,} bytes", place, needed, hint)

    def __call__(
        self,
        step: Job,
        parameters: dict[str, Any],
        sources: Sequence[Source],
        options: StepOptions,
        additions: Additions,
    ) -> Record:
        one_by_one = additions.before_step is not None
        self.known = _KnownSteps(step, step.complete(parameters), sources, options, one_by_one)
        raise _StepsKnownError


def plan_steps(
    job: Job, argument: str, parameters: dict[str, Any], options: PlanOptions, place: Place
) -> Record:
    """Return the forecast of a job's time steps as plain values: memory, operations, bytes, a floor in time.

    options: without `steps`, the job chooses their number. Raises UserError for what the job refuses, and for
    a domain that the memory of so many ranks does not hold.
    """
    gpu, limit, copies = place.gpu, place.memory, options.steps.copies
    known = _steps(job, argument, parameters, _StepsToPlan(StepOptions(options.steps.steps), place))
    types = [(source.shape, source.dtype) for source in known.sources]
    cut = plan_task(known.step, known.parameters, types, place.ranks, grid=options.grid)
    task, program = _understood(cut, gpu=gpu)

    def least(count: int) -> int:
        """Return the least bytes of one of so many ranks in these copies of the fields."""
        one, two = _memory(replace(_on_ranks(cut, count), kernel=task.kernel))
        return {"one": one, "two": two, "auto": min(one, two)}[copies]

    one, two = _memory(task)
    wanted = {"one": one, "two": two, "auto": two if two <= limit else min(one, two)}
    needed = wanted[copies]
    if gpu:
        enough = next((n for n in range(1, RANKS_MOST) if least(n) <= limit), None)
    else:  # ranks of one host share its memory
        enough = -(-least(1) // (limit * place.ranks_of_host)) if limit else None
    if needed > limit:
        hint = _more(enough, gpu=gpu) + (
            f", or {option('copies', 'one')}" if copies == "two" and one <= limit else ""
        )
        shown = "x".join(map(str, reversed(task.shape)))
        raise _too_large(f"{shown} cells", place, needed, hint)
    memory = {
        "memory": needed,
        "copies": 2 if needed == two and copies != "one" else 1,
        "memory_limit": limit,
        **_enough(enough, gpu=gpu),
    }
    count = known.options.steps or 0
    grouped = choose_steps(task, one_by_one=known.one_by_one, one_copy=memory["copies"] == 1, on_device=gpu)
    return _record(job, parameters, task, program, count, grouped, place, memory)


def plan_map_steps(
    job: Job, parameters: dict[str, Any], cut: Task, options: PlanOptions, place: Place
) -> Record:
    """Return `plan_steps` of a map job. cut: into a block for each rank, its results known.

    Raises UserError for results that cannot become inputs, and for fields that the memory of so many ranks
    does not hold: a run passes these through it in chunks, which is not forecast.
    """
    gpu, local, limit = place.gpu, place.ranks_of_host, place.memory
    once = options.steps.copies == "one"

    def needs(task: Task) -> int:
        """Return the bytes of a rank."""
        region = task.partition[0]
        if once:
            return step_memory(task, region, one_copy=True) + kept_memory(task, region, observed=False)
        return fields_memory(task, region, asynchronous=gpu)

    task, program = _understood(cut, gpu=gpu)
    check_feeds(task)
    needed = needs(task)
    counts = range(1, RANKS_MOST) if gpu else range(local, RANKS_MOST, local)
    others = (replace(_on_ranks(cut, count), kernel=task.kernel) for count in counts)
    enough = next((number for number, one in enumerate(others, 1) if needs(one) <= limit), None)
    if needed > limit:
        hint = _more(enough, gpu=gpu)
        if not once and _memory(task)[0] <= limit:
            hint += f", or {option('copies', 'one')}"
        what = f"fields of {'x'.join(map(str, task.shape))}"
        raise _too_large(what, place, needed, hint, "" if once else ", and steps in chunks have no plan")
    memory = {
        "inputs": {field.name: type_record((field.stored, field.dtype)) for field in task.fields},
        "memory": needed,
        "copies": 1 if once else 2,
        "memory_limit": limit,
        **_enough(enough, gpu=gpu),
    }
    grouped = choose_steps(task, one_copy=once, on_device=gpu)
    return _record(job, parameters, task, program, options.steps.steps or 0, grouped, place, memory)


def _on_ranks(task: Task, count: int) -> Task:
    """Return the task on so many ranks, its rows cut."""
    return task.with_grid(parse_grid(str(count), task.shape, count))


def _record(
    job: Job,
    parameters: dict[str, Any],
    task: Task,
    program: Program | None,
    steps: int,
    grouped: StepCounts,
    place: Place,
    memory: Record,
) -> Record:
    """Return the forecast. grouped: its steps. memory: its part about memory."""
    machine, region = place.machine, task.partition[0]
    one, two = _memory(task)
    several = max(min(grouped.at_once, steps), 1)
    moved = moved_bytes(task, region, grouped.handed_on) + loop_bytes(task, region)
    rate = machine.rates["kernel"]
    seconds = moved / rate.value
    if not place.gpu:
        seconds = max(seconds, moved * place.ranks_of_host / machine.rates["host memory"].value)
    found = {
        "grid": list(task.partition.grid),
        "steps": steps,
        "cells": math.prod(task.shape),
        "bytes_per_cell": memory["memory"] / max(region.size, 1),
        "memory_by_copies": {"one": one, "two": two},
        "operations": None if program is None else common_operations(program),
        "steps_per_kernel": several,
        "moved_bytes": moved,
        "rate": rate.value,
        "rate_source": rate.source,
        "exchange_bytes": halo_bytes(task, region),
        "step_seconds": seconds / several,
        "seconds": seconds / several * steps,
    }
    array = task.shape, task.dtype
    return plan_envelope(job, parameters, array, machine, place.ranks, place.hosts, memory | found)


def _memory(task: Task) -> tuple[int, int]:
    """Return a rank's bytes with one copy of the fields, and with two."""
    one, two = (step_memory(task, task.partition[0], one_copy=once) for once in (True, False))
    return one, two


def _enough(enough: int | None, *, gpu: bool) -> Record:
    return {"enough_ranks": enough if gpu else None, "enough_hosts": None if gpu else enough}


def _more(enough: int | None, *, gpu: bool) -> str:
    what = "GPU" if gpu else "host"
    return f"at least {enough} {what}s" if enough else f"a {what} with more memory"


def _too_large(what: str, place: Place, needed: int, hint: str, more: str = "") -> UserError:
    return UserError(
        f"{what} do not fit the memory of {counted(place.ranks, 'rank')}{more}",
        got=f"{needed:,} bytes a rank",
        expected=f"at most {place.memory:,} bytes a rank",
        hint=hint,
    )


def _understood(task: Task, *, gpu: bool) -> tuple[Task, Program | None]:
    """Return the task with its kernel, not compiled, and the program of its function; None if it is none."""
    if task.job.fuse == "off" or task.job.program is not None:
        return task, None
    try:
        program = traced(task)
    except NotTraceable:
        return task, None
    widths = task.widths[: program.axes]
    kernel: DeviceKernel | HostKernel = HostKernel(program, widths)
    if gpu:
        kernel = DeviceKernel(program, widths, "strict", task.feed_numbers, task.boundary_read, task.cval)
    points = task.job.function.points if isinstance(task.job.function, BlockFunction) else None
    if points is not None or task.job.series_pass is not None:
        chosen = kernel if points is None else PointKernel(kernel, points)
        return replace(task, reads=None, kernel=chosen), program
    return replace(task, reads=reads_of(task, program), kernel=kernel), program


def _steps(job: Job, argument: str, parameters: dict[str, Any], simulate: _StepsToPlan) -> _KnownSteps:
    """Call the job's function up to its call of `simulate`, in a world of one rank on the CPU."""
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
