"""The job fft: the Fourier transform of an array, from a file to a file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

import meshrun
from meshrun.jobs.transforms.axes import parse_axes
from meshrun.jobs.transforms.forecast import forecast_transform, precision_text
from meshrun.jobs.transforms.projections import Direction, check_projections
from meshrun.runner.arrays.load import read_block
from meshrun.runner.arrays.store import write_block
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.jobs import JobForecast
from meshrun.runner.forecast.place import Place
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.region import Shape
from meshrun.runner.report.units import bytes_text
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.transforms.fourier import (
    Local,
    carry_out,
    checked_axes,
    half_length,
    has_scipy,
    result_type,
    working_type,
)
from meshrun.runner.transforms.plan import Decomposition, Real, TransformPlan, enough_ranks, plan_transform
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World

# Copies of a block at the same time: before and after a transform, and as messages on both sides; without an
# exchange, before and after, and what the library needs between.
EXCHANGED, KEPT = 4, 3
NUMPY_SINGLE = 4  # more: numpy.fft converts single precision to double, and back


def _verify(
    world: World,
    inputs: Sequence[Source],
    output: Source,
    mode: str,
    *,
    axes: str | None,
    inverse: bool,
    real: bool,
    norm: str,
    length: int | None,
    decomposition: Decomposition,
    keep_order: bool,
) -> dict[str, Any]:
    source, kind = inputs[0], _real(inverse, real)
    chosen = checked_axes(source.shape, parse_axes(axes), kind, length)
    order = _order(_plan(world, source, chosen, kind, length, decomposition), keep_order)
    direction = Direction(chosen, inverse, kind, norm, half_length(source.shape, chosen, kind, length))
    return check_projections(world, source, output, direction, order, mode)


def _forecast(
    place: Place,
    inputs: Sequence[ArrayType],
    *,
    axes: str | None,
    inverse: bool,
    real: bool,
    length: int | None,
    decomposition: Decomposition,
) -> JobForecast:
    (shape, stored), kind = inputs[0], _real(inverse, real)
    chosen = checked_axes(shape, parse_axes(axes), kind, length)
    dtype = working_type(np.dtype(stored), kind)
    n = half_length(shape, chosen, kind, length)
    plan = plan_transform(shape, chosen, place.ranks, real=kind, length=n, decomposition=decomposition)
    result = result_type(dtype, kind)
    itemsize = max(dtype.itemsize, result.itemsize)
    copies = _copies(plan, dtype, gpu=place.gpu)
    _check_memory(place.ranks, plan, copies, itemsize, place.memory, chosen, kind, n, decomposition)
    return forecast_transform(place, plan, np.dtype(stored), dtype, result, copies)


@meshrun.job(verify=_verify, forecast=_forecast)
def fft(
    world: World,
    input: Source,
    create: Any,
    memory: int,
    *,
    axes: str | None = None,
    inverse: bool = False,
    real: bool = False,
    norm: Literal["backward", "ortho", "forward"] = "backward",
    length: int | None = None,
    decomposition: Literal["auto", "slab", "pencil"] = "auto",
    keep_order: bool = True,
) -> dict[str, Any]:
    """Discrete Fourier transform of an array along any of its axes, with numpy.fft's conventions.

    Single precision stays single: complex64 of float16, float32 and complex64. Integers and bool become
    float64. The array is split over the ranks along one axis or two, and redistributed in between.

    axes: axes to transform: 0,2 or -1. Default: all.
    inverse: transform back.
    real: leave out the half of the last axis that follows from the other half, as numpy.fft.rfftn; with
        `inverse`, take such an array to real numbers, as numpy.fft.irfftn.
    norm: what is divided by the number of cells: the inverse (backward), the other direction (forward), or
        both by its root (ortho).
    length: cells of the result along the last axis, of `inverse` with `real`. Default: 2 * (m - 1) of m.
    decomposition: split the array along one axis (slab), two (pencil), or as a model of time has it.
    keep_order: write the result's axes in their order; otherwise the axis along which it is split in the end
        comes first, which saves writing in short pieces.
    """
    kind = _real(inverse, real)
    chosen = world.collective_call(lambda: checked_axes(input.shape, parse_axes(axes), kind, length))
    dtype = world.collective_call(lambda: working_type(input.dtype, kind))
    plan = world.collective_call(lambda: _plan(world, input, chosen, kind, length, decomposition))
    last = half_length(input.shape, chosen, kind, length)
    local = Local(world.xp, inverse, kind, norm, last, world.cores)
    result = result_type(dtype, kind)
    itemsize = max(dtype.itemsize, result.itemsize)
    copies = _copies(plan, dtype, gpu=world.backend.device.kind == "cuda")
    world.collective_call(
        lambda: _check_memory(world.size, plan, copies, itemsize, memory, chosen, kind, last, decomposition)
    )
    if plan.busy < world.size and 0 not in plan.shape:
        world.warn(
            f"the array has too few planes for {world.size} ranks: up to {world.size - plan.busy} have none"
        )
    order = _order(plan, keep_order)
    sink = create(tuple(plan.last_shape[axis] for axis in order), result)
    with ExitStack() as stack:
        groups = _groups(world, plan, stack)
        block = read_block(world, input, plan.first).astype(dtype, copy=False)
        begin = world.phases.seconds("transform")
        with world.phases("transform"):
            block = carry_out(plan, groups, local, block, overwrite=True)
        seconds = max(world.control.allgather(world.phases.seconds("transform") - begin))
    ordered = world.xp.ascontiguousarray(block.transpose(order)) if order != sorted(order) else block
    write_block(world, ordered, sink, plan.last.transposed(order))
    return {
        "axes": list(chosen),
        "precision": precision_text(input.dtype, dtype, result),
        "decomposition": plan.name,
        "process_grid": list(plan.grid),
        "exchanges": len(plan.exchanges),
        "order": order,
        "library": local.library,
        "transform_seconds": seconds,
    }


def _real(inverse: bool, real: bool) -> Real:
    return "" if not real else "inverse" if inverse else "forward"


def _plan(
    world: World, source: Source, axes: Shape, real: Real, length: int | None, decomposition: Decomposition
) -> TransformPlan:
    n = half_length(source.shape, axes, real, length)
    return plan_transform(source.shape, axes, world.size, real=real, length=n, decomposition=decomposition)


def _order(plan: TransformPlan, keep_order: bool) -> list[int]:
    """Return the result's axes in the order in which they are written."""
    axes = range(len(plan.last_shape))
    if keep_order:
        return list(axes)
    return [*plan.last_splits, *(axis for axis in axes if axis not in plan.last_splits)]


def _groups(world: World, plan: TransformPlan, stack: ExitStack) -> list[Group]:
    """Return the ranks along each axis of the plan's grid."""
    if len(plan.grid) == 1:
        return [world]
    grid = world.grid(*plan.grid)
    stack.callback(grid.close)
    return list(grid.groups)


def _copies(plan: TransformPlan, dtype: np.dtype[Any], *, gpu: bool) -> int:
    converted = not gpu and not has_scipy() and dtype in (np.float32, np.complex64)
    return (EXCHANGED if plan.exchanges else KEPT) + (NUMPY_SINGLE if converted else 0)


def _check_memory(
    ranks: int,
    plan: TransformPlan,
    copies: int,
    itemsize: int,
    memory: int,
    axes: Shape,
    real: Real,
    length: int,
    decomposition: Decomposition,
) -> None:
    needed = copies * plan.largest_block * itemsize
    if needed <= memory:
        return
    exchanged = copies if plan.exchanges else copies + EXCHANGED - KEPT
    most = memory // (exchanged * itemsize)
    enough = enough_ranks(
        plan.shape, axes, most, ranks, real=real, length=length, decomposition=decomposition
    )
    raise UserError(
        f"the transform does not fit the memory of {ranks} rank(s)",
        got=f"{bytes_text(memory)} a rank",
        expected=f"{bytes_text(needed)}: {copies} blocks of {plan.largest_block:,} cells",
        hint=f"{option('ranks', enough)}, each with as much memory"
        if enough
        else "more memory for each rank",
    )
