"""A job's task for arrays as a rank plans it alone; the next run or call in this process uses it again."""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.compiler.decide import Fusion, fused_alone
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.lint.edge_stages import stage_lines
from meshrun.runner.compiler.trace.function_key import key_of
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.in_memory import halo_plans
from meshrun.runner.maps.same_values import ValueSummary, summary_of
from meshrun.runner.maps.split_probe import refuse_split
from meshrun.runner.options.run_options import Options
from meshrun.runner.plan.chunking import block_memory
from meshrun.runner.plan.task import ArrayType, Task, plan_task
from meshrun.runner.region import Shape
from meshrun.runner.world.world import World

MOST_KEPT = 64  # tasks
_KEPT: dict[Hashable, PlannedTask] = {}
_LOCK = threading.Lock()


@dataclass
class PlannedTask:
    """What a rank finds out alone about a job and its arrays.

    declared: the job as it was given. task: of the job with its halo, without a kernel. alone: with a kernel
    in place of the function, where this rank has one. needed: bytes of this rank's block, whole in memory.
    fusion: why it has a kernel or none; None: it was not to have one. checked: the grids for which
    `check_split` has passed, each with whether the task had a kernel. summarized: of `summary`.
    """

    declared: Job
    task: Task
    alone: Task
    needed: int
    fusion: Fusion | None
    checked: set[tuple[Shape, bool]] = field(default_factory=set)
    summarized: ValueSummary | None = None

    @cached_property
    def stages(self) -> list[int]:
        """The lines that compute or read a stage beyond the array's edges; see `stage_lines`."""
        return stage_lines(self.task)

    @cached_property
    def whole_plans(self) -> list[HaloPlan]:
        """The layout of each input's block if one rank has all of it."""
        return halo_plans(self.alone, 0)

    def summary(self, world: World) -> ValueSummary:
        """Return what ranks compare, so that all of them compute the same function."""
        if self.summarized is None:
            # A function that became a kernel has been compared with it in NumPy.
            backend = world.backend if self.alone.kernel is None else CpuBackend()
            self.summarized = summary_of(self.alone, backend)
        return self.summarized

    def check_split(self, world: World, task: Task) -> None:
        """Raise UserError if the result of a task depends on how its array is cut. On one rank.

        task: this one, perhaps with another grid or without its kernel.
        """
        cut = task.partition.grid, task.kernel is not None
        if cut not in self.checked:
            refuse_split(world, task)
            self.checked.add(cut)


def plan_alone(
    world: World,
    job: Job,
    parameters: dict[str, Any],
    inputs: Sequence[ArrayType],
    options: Options,
    grid: str | None = None,
) -> PlannedTask:
    """Return a job's task for arrays, with a block for each rank and a kernel if this rank can have one.

    Tracing, trial calls and compilation take milliseconds to seconds. What an earlier run or call found is
    used if all that the job's functions read is as it was then (`function_key`). If that cannot be known,
    everything is found anew.

    Parameters
    ----------
    parameters: of the job, complete.
    inputs: shape and dtype of each array.
    options: of the run.
    grid: blocks along each axis, as of `plan_task`.

    Raises
    ------
    UserError
        The arrays, parameters or options do not fit the job.
    """
    device, mode, steps = world.backend.device, options.fuse, options.steps.steps or 1
    # Look for a task that was planned for the same.
    read = key_of([job.function, job.halo, job.out, job.check, job.boundary, job.cval, parameters])
    ranks = world.rank, world.size, device.kind, device.index
    chosen = grid, options.boundary, options.cval, mode, options.fuse_math, steps
    key = None if read is None else (read, id(job), tuple(inputs), ranks, chosen)
    with _LOCK:
        kept = None if key is None else _KEPT.get(key)
    if kept is not None:
        return kept
    if key is not None:  # the caller may change its lists and arrays
        parameters = copy.deepcopy(parameters)
    # Infer the halo, cut the arrays into blocks, and compile the kernel.
    found = with_inferred_halo(job, inputs, parameters, device.kind)
    boundary, cval = options.boundary, options.cval
    task = alone = plan_task(found, parameters, inputs, world.size, grid=grid, boundary=boundary, cval=cval)
    fusion = None
    if (mode or job.fuse) != "off":
        alone, fusion = fused_alone(device, task, mode, options.fuse_math, steps)
    needed = block_memory(alone, alone.partition[world.rank], asynchronous=world.backend.asynchronous)
    planned = PlannedTask(job, task, alone, needed, fusion)
    # Keep it, unless another attempt may succeed.
    if key is not None and not (fusion is not None and fusion.refused):
        with _LOCK:
            _KEPT[key] = planned
            while len(_KEPT) > MOST_KEPT:
                del _KEPT[next(iter(_KEPT))]
    return planned


def forget_tasks() -> None:
    """Forget all tasks, as a new process has none."""
    with _LOCK:
        _KEPT.clear()
