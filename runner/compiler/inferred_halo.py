"""The halo that a job's function needs, if its decorator names none."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.function_key import instructions
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import MOST_COMPONENTS, NotTraceable, trace
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import ArrayType, Task, halo_hint

# Whose functions are not looked into for slices: they slice what is theirs, or return whole blocks.
LIBRARIES = {"numpy", "cupy", "scipy", *sys.stdlib_module_names}
NAMES = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")


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


def halo_too_small(task: Task, shorter: tuple[int, ...]) -> UserError:
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
