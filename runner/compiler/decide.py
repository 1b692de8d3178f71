"""Decide whether a task's function becomes one kernel, and compile it for this rank's device."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import INEXACT
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.function_key import instructions
from meshrun.runner.compiler.trace.graph import Extents, Node, Operand, Program, in_order
from meshrun.runner.compiler.trace.trace import MOST_COMPONENTS, NotTraceable, trace
from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.spelling import option
from meshrun.runner.plan.task import ArrayType, Task, halo_hint
from meshrun.runner.region import HostArray
from meshrun.runner.system.compiler import NotCompiled
from meshrun.runner.world.world import World

WORTH_COMPILING = 2 << 30  # bytes of arrays, times steps: NumPy takes seconds for them on one CPU rank
# Whose functions are not looked into for slices: they slice what is theirs, or return whole blocks.
LIBRARIES = {"numpy", "cupy", "scipy", *sys.stdlib_module_names}
NAMES = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")
OPERATED = 4  # times as many bytes of results of operations take NumPy as long
WORTH_TRACING = 1 / 64  # of these bytes: from so many on, the operations are counted
CHECKED = 11  # cells along each axis of the block on which a trace is compared with the function


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


def fused(world: World, task: Task, mode: str | None, arithmetic: str, steps: int = 1) -> tuple[Task, Fusion]:
    """Return the task with a kernel in place of its function, where possible. Collective.

    The kernel's results equal the function's to the bit, except for Fusion.inexact and "fast" arithmetic.
    mode: one of FUSE; None: as the job declares. arithmetic: one of FUSE_MATH. steps: number of calls on the
    whole arrays. Raises UserError on every rank if the mode is "require" and there is no kernel.
    """
    wanted = mode or task.job.fuse
    if task.job.fuse == "off" and wanted == "auto":  # a function with kernels of its own, or to be called
        wanted = "off"
    if wanted == "off" or any(0 in field.shape for field in task.fields):
        return task, Fusion(why="off" if wanted == "off" else "an array without cells", quiet=True)
    on_host = world.backend.device.kind != "cuda"
    if on_host and wanted == "auto" and not _is_worth_compiling(world, task, steps):
        return task, Fusion(why="too little work for a compiler", quiet=True)
    typed, fusion = _fused_here(world.backend.device, task, arithmetic, steps)
    failed = next((one for one in world.control.allgather(fusion) if one.compiler is None), None)
    if failed is None:
        from meshrun.runner.compiler.compiled import DeviceKernel

        if steps > 1 and isinstance(typed.kernel, DeviceKernel):
            shape, kernel = task.partition[0].shape, typed.kernel
            kernel.choice = world.on_root(lambda: kernel.measured(world.backend, shape, steps))
        return typed, fusion
    if wanted == "require":
        raise not_one_kernel(task, failed)
    return task, failed


def _whole_row(task: Task, axes: int) -> int:
    """Return the cells of the last of so many axes; 0 if the grid cuts it, or if inputs differ in length."""
    lengths = {field.shape[-1] if len(field.shape) == axes else 0 for field in task.fields}
    return lengths.pop() if len(lengths) == 1 and task.partition.grid[axes - 1] == 1 else 0


def _is_worth_compiling(world: World, task: Task, steps: int) -> bool:
    """Return whether NumPy takes longer on one CPU than a compiler and its kernel. Collective.

    The number of ranks does not count: a kernel and NumPy may round functions such as `exp` differently, and
    a run, also a resumed one, has the same bits on any number of ranks.
    """
    bytes_of_arrays = sum(math.prod(field.shape) * field.dtype.itemsize for field in task.fields)
    if bytes_of_arrays * steps < WORTH_TRACING * WORTH_COMPILING:
        return False
    if bytes_of_arrays * steps >= WORTH_COMPILING:
        return True
    try:
        program = traced(task)
        operated = program.operations * math.prod(task.shape) * task.dtype.itemsize
    except NotTraceable:
        operated = 0
    return all(one * steps >= OPERATED * WORTH_COMPILING for one in world.control.allgather(operated))


def _fused_here(device: Device, task: Task, arithmetic: str, steps: int) -> tuple[Task, Fusion]:
    """Return the task with a kernel for this rank's device, or as it is, and why. Raises UserError if the
    task's halo is too small."""
    from meshrun.runner.compiler.compiled import compile_for

    try:
        program = traced(task)
        typed = replace(task, results=result_types(task, program))
        inexact = tuple(sorted({node.op for node in program.nodes} & INEXACT))
        kernel, compiler = compile_for(
            device,
            program,
            task.widths[: program.axes],
            arithmetic,
            task.feed_numbers,
            task.boundary,
            task.cval,
            typed.known[0][0],
            _whole_row(task, program.axes) if steps > 1 else 0,
        )
    except NotTraceable as reason:
        if any(cells > 0 for cells in reason.shorter):
            raise _halo_too_small(task, reason.shorter) from None
        return task, Fusion(None, reason.reason, reason.line, reason.hint)
    except NotCompiled as reason:
        return task, Fusion(None, reason.reason, reason.line, refused=True)
    fusion = Fusion(compiler, operations=program.operations, inexact=inexact)
    return replace(typed, kernel=kernel, reads=reads_of(task, program)), fusion


def reads_of(task: Task, program: Program) -> tuple[tuple[Extents, ...], ...]:
    """Return for each output how far from the own cell each input is read, per axis of the input."""

    def of(results: Sequence[Node], place: int) -> Extents:
        loads = [node for node in in_order(results) if node.op == "load" and node.input == place]
        read = tuple(
            (max([0, *(-at for at in offsets)]), max([0, *offsets]))
            for offsets in ([one.offset[axis] for one in loads] for axis in range(program.axes))
        )
        return read + ((0, 0),) * (len(task.fields[place].shape) - program.axes)

    return tuple(
        tuple(of(results, place) for place in range(len(task.fields))) for results in program.results
    )


class ImageKernels:
    """Kernels for a job's images: one for all that have the same dtype, channels and axes. Not collective.

    must_fuse: raise UserError for an image whose function cannot become one.
    """

    def __init__(self, device: Device, arithmetic: str, *, must_fuse: bool) -> None:
        self._device, self._arithmetic, self._must_fuse = device, arithmetic, must_fuse
        self._made: dict[Any, Task] = {}

    def fuse(self, task: Task) -> Task:
        """Return an image's task with a kernel in place of its function, where possible."""
        if 0 in task.shape:
            return task
        try:
            axes = grid_axes(task)
        except NotTraceable:
            axes = 0  # never one kernel
        key = task.dtype, axes, len(task.shape), task.shape[axes:] if axes else (), task.widths
        if key not in self._made:
            made, fusion = _fused_here(self._device, task, self._arithmetic, 1)
            if fusion.compiler is None and self._must_fuse:
                raise not_one_kernel(task, fusion)
            self._made[key] = made
        made = self._made[key]
        if made.kernel is None:
            return task
        results = tuple((task.shape[:axes] + shape[axes:], dtype) for shape, dtype in made.known)
        return replace(task, kernel=made.kernel, results=results)


def _halo_too_small(task: Task, shorter: tuple[int, ...]) -> UserError:
    widths = task.widths[: len(shorter)]
    needed = [sum(width) + cells for width, cells in zip(widths, shorter, strict=True)]
    return UserError(
        f"job {task.job.name}: its halo is too small",
        got=f"a result that is {_per_axis(shorter)} cells shorter than the block without its halo",
        expected=f"a halo of {_per_axis(needed)} cells in all along these axes",
        hint=halo_hint(needed),
        everywhere=True,
    )


def _per_axis(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def with_inferred_halo(job: Job, inputs: Sequence[ArrayType], parameters: dict[str, Any]) -> Job:
    """Return the job with the halo that its function needs, if its decorator names none.

    Trace the function on blocks without halo. The halo is the number of cells by which the result is shorter,
    half of it before and half after the own cells. A function that cannot be traced gets no halo. inputs:
    shape and dtype of each. Raises UserError for a result that is shorter by an odd number of cells.
    """
    if job.halo is not None or job.kind != "map" or not job.services <= {"xp"}:
        return job
    if any(0 in shape for shape, _ in inputs) or not _slices(inspect.unwrap(job.function)):
        return job
    common = min(len(shape) for shape, _ in inputs)
    for axes in range(common, 0, -1):
        operands = [
            Operand(name, dtype, shape[axes:])
            for name, (shape, dtype) in zip(job.arrays, inputs, strict=True)
        ]
        if any(one.components > MOST_COMPONENTS for one in operands):
            break
        try:
            with hide_output(failures=False):
                no_halo = ((0, 0),) * axes
                trace(job.function, operands, no_halo, parameters, job.services, job.output_names)
        except NotTraceable as reason:
            needed = reason.shorter
            if not any(needed):
                continue
            if any(cells < 0 or cells % 2 for cells in needed):
                raise UserError(
                    f"job {job.name} needs a halo, and its decorator names none",
                    got=f"a result that is {_per_axis(needed)} cells shorter than its block",
                    hint=halo_hint(needed),
                ) from None
            return replace(job, halo=tuple(cells // 2 for cells in needed))
        break
    return job


def _slices(function: Any) -> bool:
    """Return whether a function, or what it names, takes or is a slice. Without slices it needs no halo."""
    seen: set[int] = set()
    reached: list[Any] = [function]
    while reached:
        value = reached.pop()
        if isinstance(value, (FunctionType, MethodType)) and _top(value.__module__) in LIBRARIES:
            continue
        code = getattr(value, "__code__", None)
        if isinstance(value, slice) or (isinstance(code, CodeType) and _code_slices(code)):
            return True
        key = id(value if code is None else code)  # a method is another object each time
        if key not in seen:
            seen.add(key)
            reached += _held(value)
    return False


def _top(module: str | None) -> str:
    return (module or "").split(".")[0]


def _code_slices(code: CodeType) -> bool:
    return any(
        one.opname.endswith("_SLICE") or isinstance(one.argval, slice) or one.argval in ("diff", "slice")
        for one in instructions(code)
    )


def _held(value: Any) -> list[Any]:
    """Return the parts of a tuple, list, dictionary, partial or static function; of a function the variables
    around it, its defaults, the globals that it names, the object that it is bound to, and of these the
    attributes that it names."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, MethodType):
        return _held_by_function(value.__func__, value.__self__)
    return _held_by_function(value, None) if isinstance(value, FunctionType) else []


def _held_by_function(function: Any, bound: Any) -> list[Any]:
    names = {one.argval for one in instructions(function.__code__) if one.opname in NAMES}
    around = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    owners = [*around, *map(function.__globals__.get, names), bound]
    found = [(owner, inspect.getattr_static(owner, name, None)) for owner in owners for name in names]
    attributes = [MethodType(one, owner) if _is_method(one, owner) else one for owner, one in found]
    return [*owners, function.__defaults__, function.__kwdefaults__, *attributes]


def _is_method(value: Any, owner: Any) -> bool:
    return isinstance(value, FunctionType) and not isinstance(owner, (ModuleType, type))


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


def traced(task: Task) -> Program:
    """Return the program that the task's function computes for each own cell. Raises NotTraceable.

    Check the program: on a small block, NumPy's results for it must equal the function's.
    """
    with hide_output(failures=False):
        program = trace_of(task)
        _check(task, program)
    return program


def trace_of(task: Task) -> Program:
    """Return the program that a call of the task's function on traced arrays records. Raises NotTraceable.

    It may be wrong for a function that takes more than its arguments; see `traced`.
    """
    job = task.job
    axes = grid_axes(task)
    if any(
        shape[: task.leading] != task.shape[: task.leading] for shape, _ in task.declared(task.shape) or ()
    ):
        raise NotTraceable("returns a result of another size than its input")
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
    outs = declared if "out" in job.services else None
    names = job.output_names
    program = trace(job.function, inputs, task.widths[:axes], task.parameters, job.services, names, outs)
    if any(one.components == 0 for one in program.outputs):
        raise NotTraceable("returns no elements")
    if declared is not None and tuple(declared) != program.outputs:
        raise NotTraceable("returns another dtype or shape than out= declares")
    return program


def stage_lines(task: Task) -> list[int]:
    """Return the lines of a function that compute a stage beyond the array's edges, and those that read it.

    Cells of a first stage beyond an edge are not made by the boundary, but computed from cells that are: that
    is the user's scheme if opposite edges meet. A function that cannot be traced has none.
    """
    if task.boundary == "wrap" or max(map(max, task.widths)) < 2:
        return []
    try:
        with hide_output(failures=False):
            stages = trace_of(task).stages
    except NotTraceable:
        return []
    return sorted({line for pair in stages for line in pair if line})


def grid_axes(task: Task) -> int:
    """Return the number of grid axes: leading axes along which all cells are computed alike.

    The other axes are short: each of their elements has operations of its own. Raises NotTraceable.
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
    """Return the shape and dtype of each output array."""
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
