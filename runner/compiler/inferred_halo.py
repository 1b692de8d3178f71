"""The halo that a job's function needs, if its decorator names none."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from meshrun.runner.compiler.function_key import instructions
from meshrun.runner.compiler.lint.source import dotted, reached_by, source_of
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.series import Series
from meshrun.runner.job.signature import STEP
from meshrun.runner.plan.task import ArrayType, Task, halo_hint


def with_inferred_halo(
    job: Job, inputs: Sequence[ArrayType], parameters: dict[str, Any], kind: str = "cpu"
) -> Job:
    """Return the job with the halo that its function needs, if its decorator names none.

    Trace the function on blocks without halo. The halo is the number of cells by which the result is shorter,
    half of it before and half after the own cells. A function that cannot be traced gets no halo. inputs:
    shape and dtype of each. kind: of the device, "cpu" or "cuda". Raises UserError for a result that is
    shorter by an odd number of cells.
    """
    if any(isinstance(value, Series) for value in parameters.values()):
        parameters = job.arguments(parameters)
    if job.whole and job.halo is None:
        from meshrun.runner.compiler.whole.block_form import block_form

        return block_form(job, inputs, parameters, kind)
    if job.halo is not None or job.kind != "map" or not job.services <= {"xp", "here", STEP}:
        return job
    if any(0 in shape for shape, _ in inputs) or not _may_slice(job.function):
        return job
    from meshrun.runner.compiler.trace.array import MOST_COMPONENTS
    from meshrun.runner.compiler.trace.graph import Operand
    from meshrun.runner.compiler.trace.trace import trace

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
                names, shape = job.output_names, inputs[0][0]
                trace(job.function, operands, no_halo, parameters, job.services, names, shape=shape)
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


def _may_slice(function: Any) -> bool:
    """Return whether a function, or what it reaches, takes or is a slice. Without slices it needs no halo."""
    reached = reached_by(function, attributes=True)
    return any(
        isinstance(value, slice) or (isinstance(value, FunctionType) and _is_sliced(value.__code__))
        for value in reached
    )


def _is_sliced(code: CodeType) -> bool:
    """Return whether code takes a slice, or names what takes one: by its source; if there is none, as for
    what was typed, by its instructions."""
    source = source_of(code)
    if source is None:
        return any(
            one.opname.endswith("_SLICE") or isinstance(one.argval, slice) or one.argval in ("diff", "slice")
            for one in instructions(code)
        )
    return any(
        isinstance(node, ast.Slice) or dotted(node)[-1:] in (["diff"], ["slice"])
        for node in ast.walk(source.tree)
    )
