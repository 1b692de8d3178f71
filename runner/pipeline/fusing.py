"""Decide whether a task's function becomes one kernel, and build that kernel for this rank's device."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from runner.errors import UserError
from runner.fuse.evaluate import evaluate
from runner.fuse.graph import Operand, Program
from runner.fuse.trace import MOST_COMPONENTS, NotTraceable, trace
from runner.pipeline.result_type import hide_output
from runner.plan.task import ArrayType, Task, TaskKernel
from runner.region import HostArray
from runner.world.world import World

CHECKED = 11  # cells along each axis of the block on which a trace is compared with the function
# Functions that the platform's libraries round each in their own way.
INEXACT = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "power", "float_power", "hypot"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2"),
        *("sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
    )
)


@dataclass(frozen=True)
class Fusion:
    """What became of a task's function, for the record.

    compiler: of its kernel; None if the function is called as it is. why: then; line and hint: where in the
    user's file (0: unknown), and what to write instead. operations: for each cell. inexact: functions whose
    last bits depend on the device.
    """

    compiler: str | None = None
    why: str | None = None
    line: int = 0
    hint: str | None = None
    operations: int = 0
    inexact: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        return asdict(self)


def fused(world: World, task: Task, mode: str | None, math: str, steps: int = 1) -> tuple[Task, Fusion]:
    """Return the task with a kernel in place of its function, where that can be had. Collective.

    mode: one of FUSE; None: as the job declares. math: one of FUSE_MATH. steps: how often the kernel is
    called on the whole arrays. The kernel's results are the function's to the bit (but see Fusion.inexact). Raises UserError on every rank if "require"
    cannot be met.
    """
    wanted = mode or task.job.fuse
    if wanted == "off" or 0 in task.shape:
        return task, Fusion(why="--fuse off" if wanted == "off" else "an array without cells")
    kernel: TaskKernel | None = None
    fusion = Fusion()
    try:
        program = traced(task)
        typed = replace(task, results=result_types(task, program))
        inexact = tuple(sorted({node.op for node in program.nodes} & INEXACT))
        kernel, compiler = _kernel(world, typed, program, math, required=wanted == "require", steps=steps)
        fusion = Fusion(compiler, operations=program.operations, inexact=inexact)
    except NotTraceable as reason:
        fusion = Fusion(None, reason.reason, reason.line, reason.hint)
    failed = next((one for one in world.control.allgather(fusion) if one.compiler is None), None)
    if failed is None:
        return replace(typed, kernel=kernel), fusion
    if wanted == "require":
        raise _required(task, failed)
    return task, failed


def _required(task: Task, fusion: Fusion) -> UserError:
    function = inspect.unwrap(task.job.function)
    place = f"{function.__code__.co_filename}, line {fusion.line}: " if fusion.line else ""
    return UserError(
        f"job {task.job.name} cannot be one kernel",
        got=f"{place}{fusion.why}",
        expected="a function that --fuse require can trace",
        hint=fusion.hint,
        everywhere=True,
    )


def traced(task: Task) -> Program:
    """Return what the task's function computes for each own cell; raises NotTraceable.

    The trace is checked: on a small block, NumPy computes the same by it as by the function.
    """
    job = task.job
    axes = grid_axes(task)
    inputs = tuple(
        Operand(field.name, np.dtype(field.dtype.newbyteorder("=")), field.shape[axes:])
        for field in task.fields
    )
    declared = None
    if job.out is not None or "out" in job.services:
        declared = [
            Operand(name, dtype, shape[axes:])
            for name, (shape, dtype) in zip(job.output_names, task.declared(task.shape) or (), strict=True)
        ]
    widths = task.widths[:axes]
    with hide_output(failures=False):
        outs = declared if "out" in job.services else None
        names = job.output_names
        program = trace(job.function, inputs, widths, task.parameters, job.services, names, outs)
        if declared is not None and tuple(declared) != program.outputs:
            raise NotTraceable("returns another dtype or shape than out= declares")
        _check(task, program)
    return program


def grid_axes(task: Task) -> int:
    """Return how many leading axes have their cells computed alike; raises NotTraceable.

    The other axes are short: each of their elements is computed by operations of its own.
    """
    common = min(len(field.shape) for field in task.fields)
    first = task.fields[0].shape
    for axes in range(max(task.leading, 1), common + 1):
        shapes = [field.shape for field in task.fields]
        if any(shape[:axes] != first[:axes] for shape in shapes):
            break
        if all(math.prod(shape[axes:]) <= MOST_COMPONENTS for shape in shapes):
            return axes
    raise NotTraceable(f"has inputs of different shapes, or more than {MOST_COMPONENTS} elements per cell")


def result_types(task: Task, program: Program) -> tuple[ArrayType, ...]:
    """Return shape and dtype of each output array."""
    return tuple((task.shape[: program.axes] + one.trailing, one.dtype) for one in program.outputs)


def _check(task: Task, program: Program) -> None:
    """Raise NotTraceable if the function and its trace disagree on a small block."""
    rng = np.random.default_rng(0)
    widths = task.widths[: program.axes]
    cells = tuple(CHECKED + axis + sum(width) for axis, width in enumerate(widths))
    blocks = [_sample(rng, cells + one.trailing, one.dtype) for one in program.inputs]
    own = tuple(n - sum(width) for n, width in zip(cells, widths, strict=True))
    outs = [np.zeros(own + one.trailing, one.dtype) for one in program.outputs]
    expected = evaluate(program, blocks, widths)
    services = {"out": outs[0] if len(outs) == 1 else tuple(outs), "xp": np}
    wanted = {name: services[name] for name in task.job.services}
    with np.errstate(all="ignore"):
        try:
            found = task.job.function(*blocks, **wanted, **task.parameters)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # a user's function may raise anything
            raise NotTraceable(f"raises {type(reason).__name__} on a small block: {reason}") from None
    if found is None:
        found = tuple(outs)
    results = found if isinstance(found, (tuple, list)) else (found,)
    if len(results) != len(expected) or not all(map(_same, results, expected)):
        raise NotTraceable("computes something else when it is traced")


def _sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    if dtype.kind == "f":
        return rng.normal(0.5, 2, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _same(found: Any, expected: HostArray) -> bool:
    return (
        isinstance(found, np.ndarray)
        and found.dtype == expected.dtype
        and found.shape == expected.shape
        and bool(np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"))
    )


def _kernel(
    world: World, task: Task, program: Program, math: str, *, required: bool, steps: int
) -> tuple[TaskKernel, str]:
    """Return the kernel for this rank's device, and what compiled it; raises NotTraceable if none can."""
    raise NotTraceable("no compiler")
