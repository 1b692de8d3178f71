"""A Fourier transform between two arrays of one GPU, along one axis after the other, without further memory.

Arrays may be padded: cuFFT's advanced layout has strides. Everything is issued to the current stream; nothing
is allocated, so that a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from meshrun.runner.region import Array
from meshrun.runner.transforms.plan import Transform
from meshrun.runner.transforms.split import SplitTransform
from meshrun.runner.world.world import World


@dataclass(frozen=True)
class AxisBatches:
    """Transforms along one axis of an array, as batches of equal steps.

    length: of the transform, in real numbers if one side is real. cells: along the axis, in the source and in
    the result. strides: elements from a cell to the next. batch: number of transforms in a batch. distances:
    elements from one transform to the next. starts: indices at which the batches begin.
    """

    length: int
    cells: tuple[int, int]
    strides: tuple[int, int]
    batch: int
    distances: tuple[int, int]
    starts: tuple[tuple[int | slice, ...], ...]


def batches_of(source: Array, result: Array, axis: int) -> AxisBatches:
    """Return the fewest batches that transform all lines of an array along an axis."""
    steps = [[stride // array.dtype.itemsize for stride in array.strides] for array in (source, result)]
    strides = steps[0][axis], steps[1][axis]
    others = [other for other in range(source.ndim) if other != axis and source.shape[other] > 1]

    # Axes that lie behind each other in both arrays are one.
    groups: list[tuple[int, list[int], tuple[int, int]]] = []  # lines, axes, distances
    for other in reversed(others):
        own = steps[0][other], steps[1][other]
        if groups:
            lines, axes, (a, b) = groups[-1]
            if own == (lines * a, lines * b):
                groups[-1] = lines * source.shape[other], [other, *axes], (a, b)
                continue
        groups.append((source.shape[other], [other], own))
    lines, together, distances = max(groups, default=(1, [], (1, 1)), key=lambda one: one[0])
    whole = [other == axis or other in together or n == 1 for other, n in enumerate(source.shape)]
    pairs = zip(source.shape, whole, strict=True)
    indices: list[Sequence[int | slice]] = [[slice(None)] if kept else range(n) for n, kept in pairs]
    starts = product(*indices)
    real = source if source.dtype.kind == "f" else result
    cells = source.shape[axis], result.shape[axis]
    return AxisBatches(real.shape[axis], cells, strides, lines, distances, tuple(starts))


class DeviceTransform:
    """Transforms one array of this rank to another, of one GPU; both stay where they are.

    kept: plans and memory, which transforms that follow each other share.
    """

    def __init__(
        self, world: World, transform: SplitTransform, source: Array, target: Array, kept: dict[Any, Any]
    ) -> None:
        stages = transform.plan(1).stages
        # Real numbers last: what is before is complex, in memory of its own, as cuFFT may change it.
        work = target
        if transform.real == "inverse":
            key = tuple(source.shape), np.dtype(source.dtype)
            if key not in kept:
                kept[key] = world.backend.empty(*key)
            work = kept[key]
        self._passes: list[Callable[[], None]] = []
        current = source
        for number, stage in enumerate(stages):
            assert isinstance(stage, Transform)
            last = number == len(stages) - 1
            if last and transform.real == "inverse" and current is source:
                self._passes.append(_copy(source, work))
                current = work
            out = target if last else work
            self._passes.append(_axis_pass(current, out, stage.axes[0], transform.inverse, kept))
            current = out

    def __call__(self) -> None:
        for one in self._passes:
            one()


def _copy(source: Array, out: Array) -> Callable[[], None]:
    def copy() -> None:
        out[...] = source

    return copy


def _axis_pass(
    source: Array, out: Array, axis: int, inverse: bool, kept: dict[Any, Any]
) -> Callable[[], None]:
    """Return what transforms along one axis; by a kernel where that is faster than cuFFT."""
    from meshrun.runner.device.cufft import line_batches
    from meshrun.runner.device.fourier_lines import line_plan

    batches = batches_of(source, out, axis)
    dtypes = np.dtype(source.dtype), np.dtype(out.dtype)
    # Where batches begin makes no other plan.
    key = replace(batches, starts=()), dtypes, inverse
    execute = kept.get(key)
    side_by_side = batches.distances == (1, 1) and len(batches.starts) == 1
    if execute is None and side_by_side and dtypes[0] == dtypes[1]:
        execute = line_plan(batches.length, batches.batch, batches.strides, dtypes[0], inverse)
    if execute is None:
        one = batches
        execute = line_batches(one.length, one.cells, one.strides, one.batch, one.distances, dtypes, inverse)
    kept[key] = execute

    def transform() -> None:
        for start in batches.starts:
            execute(source[start], out[start])

    return transform
