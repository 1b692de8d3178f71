"""Decide whether a task's function becomes one kernel, and compile it for the device of this rank alone."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.plan.task import Task, TaskKernel
from meshrun.runner.spelling import option
from meshrun.runner.system.compiler import NotCompiled

if TYPE_CHECKING:
    from meshrun.runner.compiler.trace.graph import Program

WORTH_COMPILING = 2 << 30  # bytes of arrays, times steps: NumPy takes seconds for them on one CPU rank
OPERATED = 4  # times as many bytes of results of operations take NumPy as long
WORTH_TRACING = 1 / 64  # of these bytes: from so many on, the operations are counted


@dataclass(frozen=True)
class Fusion:
    """Whether a task's function became one kernel, for the record.

    compiler: of the kernel; None if the function is called as it is. why: reason for having no kernel. line:
    of the user's file, to which the reason applies; 0 if unknown. hint: what to write instead. operations:
    for each cell. inexact: functions whose last bits depend on the device. quiet: whether the summary leaves
    the reason out. refused: whether a compiler failed on the kernel.
    """

    compiler: str | None = None
    why: str | None = None
    line: int = 0
    hint: str | None = None
    operations: int = 0
    inexact: tuple[str, ...] = ()
    quiet: bool = False
    refused: bool = False


def fused_alone(
    device: Device, task: Task, mode: str | None, arithmetic: str, steps: int = 1
) -> tuple[Task, Fusion]:
    """Return the task with a kernel in place of its function, where this rank alone would have one, and why.

    The kernel's results equal the function's to the bit, except for Fusion.inexact and "fast" arithmetic. All
    ranks of a run must compute by kernels, or none.

    mode: one of FUSE; None: as the job declares. arithmetic: one of FUSE_MATH. steps: number of calls on the
    whole arrays. Raises UserError if the task's halo is too small.
    """
    wanted = mode or task.job.fuse
    if task.job.fuse == "off" and wanted == "auto":  # a function with kernels of its own, or to be called
        wanted = "off"
    if wanted == "off" or any(0 in field.shape for field in task.fields):
        return task, Fusion(why="off" if wanted == "off" else "an array without cells", quiet=True)

    # A small array, or few operations, take NumPy less time than a compiler takes for the kernel. The number
    # of ranks does not count: a kernel and NumPy may round functions such as `exp` differently, and a run,
    # also a resumed one, has the same bits on any number of ranks.
    nbytes = steps * sum(math.prod(field.shape) * field.dtype.itemsize for field in task.fields)
    too_little = Fusion(why="too little work for a compiler", quiet=True)
    program, staged = None, task.job.program
    if device.kind != "cuda" and wanted == "auto" and nbytes < WORTH_COMPILING:
        if nbytes < WORTH_TRACING * WORTH_COMPILING:
            return task, too_little
        from meshrun.runner.compiler.passes.ends import interior
        from meshrun.runner.compiler.traced import traced

        try:
            program = traced(task) if staged is None else None
        except NotTraceable:
            return task, too_little
        operations = staged.operations if program is None else interior(program).operations
        operated = operations * math.prod(task.shape) * task.dtype.itemsize
        if operated * steps < OPERATED * WORTH_COMPILING:
            return task, too_little
    if staged is not None:  # its stages have kernels of their own
        compiler = "CUDA" if device.kind == "cuda" else "C++"
        return replace(task, compiled=True), Fusion(compiler, operations=staged.operations)
    return _with_kernel(device, task, arithmetic, steps, program)


def _with_kernel(
    device: Device, task: Task, arithmetic: str, steps: int, program: Program | None = None
) -> tuple[Task, Fusion]:
    """Return the task with a kernel for a rank's device, or as it is, and why.

    program: of the task, if it has been traced. Raises UserError if the task's halo is too small.
    """
    from meshrun.runner.compiler.block_function import BlockFunction
    from meshrun.runner.compiler.compiled import compile_for
    from meshrun.runner.compiler.inferred_halo import halo_too_small
    from meshrun.runner.compiler.operations import inexact_operations
    from meshrun.runner.compiler.passes.ends import interior
    from meshrun.runner.compiler.traced import output_types, reads_of, traced

    points = task.job.function.points if isinstance(task.job.function, BlockFunction) else None
    try:
        program = program or traced(task)
        typed = replace(task, results=output_types(task, program))
        inexact = tuple(inexact_operations(program.nodes))
        kernel, compiler = compile_for(
            device,
            program,
            task.widths[: program.axes],
            arithmetic,
            task.feed_numbers,
            task.boundary_read,
            task.cval,
            typed.known[0][0],
            _whole_row(task, program.axes) if steps > 1 and points is None else 0,
        )
        chosen: TaskKernel = kernel
        if points is not None:
            from meshrun.runner.compiler.whole.point_kernel import PointKernel

            chosen = beside = PointKernel(kernel, points)
            beside.compile()
            inexact = tuple(inexact_operations([*program.nodes, *points.nodes]))
    except NotTraceable as reason:
        if any(cells > 0 for cells in reason.shorter):
            raise halo_too_small(task, reason.shorter) from None
        return task, Fusion(None, reason.reason, reason.line, reason.hint)
    except NotCompiled as reason:
        return task, Fusion(None, reason.reason, reason.line, refused=True)
    fusion = Fusion(compiler, operations=interior(program).operations, inexact=inexact)
    # What is computed at points may be read from further than by all other cells.
    further = points is not None or task.job.series_pass is not None
    job = replace(task.job, tape=program.tape) if program.scalars else task.job
    reads = None if further else reads_of(task, program)
    return replace(typed, job=job, kernel=chosen, reads=reads), fusion


def _whole_row(task: Task, axes: int) -> int:
    """Return the cells of the last of so many axes; 0 if the grid cuts it, or if inputs differ in length."""
    lengths = {field.shape[-1] if len(field.shape) == axes else 0 for field in task.fields}
    return lengths.pop() if len(lengths) == 1 and task.partition.grid[axes - 1] == 1 else 0


class ImageKernels:
    """Kernels for a job's images: one for all that have the same dtype, channels and axes. Not collective.

    A function of whole arrays has one for each shape.

    must_fuse: raise UserError for an image whose function cannot become one.
    """

    def __init__(self, device: Device, arithmetic: str, *, must_fuse: bool) -> None:
        self._device, self._arithmetic, self._must_fuse = device, arithmetic, must_fuse
        self._made: dict[Any, Task] = {}

    def fuse(self, task: Task) -> Task:
        """Return an image's task with a kernel in place of its function, where possible."""
        from meshrun.runner.compiler.traced import grid_axes

        if 0 in task.shape:
            return task
        try:
            axes = grid_axes(task)
        except NotTraceable:
            axes = 0  # never one kernel
        # The kernel knows the shape.
        placed = task.job.whole or task.declared_boundary or "here" in task.job.services
        shape = task.shape if placed else task.shape[axes:] if axes else ()
        key = task.dtype, axes, len(task.shape), shape, task.widths
        if key not in self._made:
            made, fusion = _with_kernel(self._device, task, self._arithmetic, 1)
            if fusion.compiler is None and self._must_fuse:
                raise not_one_kernel(task, fusion)
            self._made[key] = made
        made = self._made[key]
        if made.kernel is None:
            return task
        results = tuple((task.shape[:axes] + shape[axes:], dtype) for shape, dtype in made.known)
        return replace(task, job=made.job, kernel=made.kernel, results=results)


def not_one_kernel(task: Task, reason: Fusion | NotTraceable) -> UserError:
    """Return the error for a function that must become one kernel and cannot."""
    why = reason.reason if isinstance(reason, NotTraceable) else str(reason.why)
    if isinstance(reason, Fusion) and reason.refused:
        return not_compiled(task, why, reason.line)
    return UserError(
        f"job {task.job.name} cannot be one kernel",
        got=f"{_place(task, reason.line) if reason.line else ''}{why}",
        expected="a function that can be traced",
        hint=reason.hint,
        everywhere=True,
    )


def not_compiled(task: Task, why: str, line: int) -> UserError:
    """Return the error for a function that must become one kernel, which no compiler takes."""
    return UserError(
        f"job {task.job.name}: the kernel made of its function does not compile",
        got=f"{_place(task, line)}{why}",
        hint=f"{option('fuse', 'off')}, which calls the function as it is; "
        "`meshrun kernel` prints the kernel",
        everywhere=True,
    )


def _place(task: Task, line: int) -> str:
    """Return the function's file, and the line if it is not 0, to write before a reason."""
    code = getattr(inspect.unwrap(task.job.function), "__code__", None)
    return f"{code.co_filename}{f', line {line}' if line else ''}: " if code is not None else ""
