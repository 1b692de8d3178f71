"""A job of whole arrays as a job of blocks, for arrays of known shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.block_function import BlockFunction
from meshrun.runner.compiler.trace.graph import Extents
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.point_pass import PointWrites, SeriesPass, point_writes, without_points
from meshrun.runner.compiler.whole.sizes import MOST_FEWER, unlike_axis
from meshrun.runner.compiler.whole.trace import WholeInput, WholeProgram, trace_whole
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.region import Shape, Subgrid

ArrayType = tuple[Shape, np.dtype[Any]]


def block_form(job: Job, inputs: Sequence[ArrayType], parameters: dict[str, Any], kind: str = "cpu") -> Job:
    """Return the job whose blocks, put together, are what the function returns for whole arrays.

    If that takes several stages, return the job with its program.

    Parameters
    ----------
    job: its function takes whole arrays.
    inputs: shape and dtype of each.
    parameters: of the run.
    kind: of the device, "cpu" or "cuda".

    Raises UserError, with the line, for what cannot be computed in blocks.
    """
    try:
        program = whole_program(job, inputs, parameters, kind)
        halo = _halo_of(program)
        points = None if program.staged else point_writes(program.program, halo)
    except NotTraceable as reason:
        raise not_in_blocks(job, reason) from reason
    wraps = program.wraps[: len(program.inputs)] if program.staged else program.wraps
    found = replace(
        job,
        halo=halo,
        boundary="wrap" if any(wraps) else "constant",
        out=types_of(program),
        sizes=program.sizes,
        series_pass=SeriesPass.of(program) if program.series else None,
        tape=program.tape,
        arrays=tuple(one.name for one in program.inputs),
        constants=program.constants,
    )
    if program.staged:
        return replace(found, program=program)
    return _with_function(found, program, halo, points)


def block_job(job: Job, program: WholeProgram) -> Job:
    """Return a job that computes a program of one stage, without points."""
    halo = _halo_of(program)
    found = replace(
        job,
        halo=halo,
        boundary="wrap" if any(program.wraps) else "constant",
        out=types_of(program),
        tape=program.tape,
    )
    return _with_function(found, program, halo, None)


def _with_function(job: Job, program: WholeProgram, halo: Extents, points: PointWrites | None) -> Job:
    return replace(
        job,
        function=BlockFunction(job.function, without_points(program.program), halo, points, program),
        services=frozenset({"here", "xp", "out"}),
        strided_out=True,
    )


def whole_program(
    job: Job, inputs: Sequence[ArrayType], parameters: dict[str, Any], kind: str = "cpu"
) -> WholeProgram:
    """Return what the function of a job of whole arrays computes. Parameters are those of `block_form`.

    Raises NotTraceable, with the line, for what is not traced, and UserError for arrays that share no grid.
    """
    arrays = [
        WholeInput(name, tuple(shape), dtype) for name, (shape, dtype) in zip(job.arrays, inputs, strict=True)
    ]
    _check_sizes(job, arrays)
    names, services = job.output_names, job.services
    program = trace_whole(
        job.function, arrays, parameters, names, services=services, series=job.series, kind=kind
    )
    for number, change in program.changed.items():
        if not change.returned and job.arrays[number] not in job.feeds:
            refusal = NotTraceable(
                f"changes its input {job.arrays[number]}, which is no result and which no result feeds",
                f"a copy, {job.arrays[number]}.copy(), or return it",
            )
            refusal.line = change.line
            raise refusal
    return program


def not_in_blocks(job: Job, reason: NotTraceable) -> UserError:
    """Return the error for a function of whole arrays that cannot be traced."""
    at = f", line {reason.line}" if reason.line else ""
    file = job.function.__code__.co_filename if hasattr(job.function, "__code__") else ""
    return UserError(
        f"job {job.name} cannot be computed in blocks",
        why=f"it {reason.reason}{f' ({file}{at})' if at else ''}",
        hint=reason.hint,
    )


def _halo_of(program: WholeProgram) -> Extents:
    """Return how far from the own position some input is read, per axis."""
    footprints = [program.footprint(number) for number in range(len(program.inputs))]
    return tuple(
        (max(0, *(one[axis][0] for one in footprints)), max(0, *(one[axis][1] for one in footprints)))
        for axis in range(len(program.space))
    )


def _check_sizes(job: Job, arrays: Sequence[WholeInput]) -> None:
    """Refuse arrays whose lengths along an axis are those of no common grid."""
    axis = unlike_axis([one.shape for one in arrays])
    if axis is None:
        return
    fields = [one for one in arrays if one.shape]
    length = max(one.shape[axis] for one in fields)
    coarse = -(-length // 2)
    raise UserError(
        f"job {job.name}: its arrays share no grid along axis {axis}",
        got=", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in fields),
        expected=f"beside {length} cells, {length - MOST_FEWER} to {length}, "
        f"or {coarse - 1} or {coarse} of a grid that is twice as coarse",
    )


def types_of(program: WholeProgram) -> Callable[..., Any]:
    """Return the function `out` of the job: shape and dtype of each result for a block of the first input."""
    dimensions = len(program.space)

    def out(shape: Shape, dtype: Any, **parameters: Any) -> Any:
        grids = [Subgrid(one.shape, one.every, one.packed) for one in program.outputs]
        pairs = zip(grids, program.outputs, strict=True)
        types = [(grid.in_space(shape[:dimensions]), one.dtype) for grid, one in pairs]
        return types[0] if len(types) == 1 else types

    return out
