"""Fourier transforms between two arrays on GPUs, along one axis after the other: all is prepared once.

Arrays may be padded: cuFFT's advanced layout has strides. Between ranks, the exchanges of `rooms` move the
split to an axis that is done. Everything is issued to streams; nothing is allocated and no host waits, so
that a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from meshrun.runner.region import Array
from meshrun.runner.transforms import rooms
from meshrun.runner.transforms.fourier import result_type
from meshrun.runner.transforms.plan import Redistribution, Transform
from meshrun.runner.transforms.rooms import BoxChange, Exchange, split_change
from meshrun.runner.transforms.split import SplitTransform
from meshrun.runner.world.world import World

Call = Callable[[], None]


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


def changes_of(
    transform: SplitTransform, dtype: np.dtype[Any], ranks: int, *, followed: bool
) -> list[BoxChange]:
    """Return the exchanges of a transform, in order.

    dtype: of its operand. followed: whether another transform begins before it is finished: while that is
    computed, the cells of the first exchange travel. Other exchanges are done in parts.
    """
    changes: list[BoxChange] = []
    for stage in transform.plan(ranks).stages:
        if isinstance(stage, Redistribution):
            most = 1 if followed and not changes else rooms.PARTS
            changes.append(split_change(stage.shape, dtype, (stage.old, stage.new), ranks, most))
        elif stage.half and not transform.inverse:
            dtype = result_type(dtype, "forward")
    return changes


class DeviceTransform:
    """Transforms one array of this rank to another; both stay where they are. Collective.

    `begin` issues what is done before the first exchange, and the exchange; `finish` the rest. Another
    transform may begin in between, whose exchanges have other rooms.

    kept: plans and memory, which transforms that follow each other share. exchanges: of `changes_of`.
    """

    def __init__(
        self,
        world: World,
        transform: SplitTransform,
        source: Array,
        target: Array,
        kept: dict[Any, Any],
        exchanges: Sequence[Exchange] = (),
    ) -> None:
        # The transforms before, between and after exchanges.
        runs: list[list[Transform]] = [[]]
        for stage in transform.plan(world.size).stages:
            if isinstance(stage, Transform):
                runs[-1].append(stage)
            else:
                runs.append([])
        calls: list[list[Call]] = []
        for number, run in enumerate(runs):
            before = exchanges[number - 1] if number else None
            after = exchanges[number] if number < len(exchanges) else None
            current, out = before.second if before else source, after.first if after else target
            calls.append([before.wait] if before else [])

            # Real numbers last: what is before is complex, in memory that cuFFT may change.
            work = out
            if run and run[-1].half and transform.inverse:
                work = current if before else _kept_like(world, source, kept)
                if before is None and len(run) == 1:
                    calls[-1].append(_copy(source, work))
                    current = work
            for stage in run[:-1]:
                calls[-1].append(_axis_pass(current, work, stage.axes[0], transform.inverse, kept))
                current = work
            calls[-1] += _last_passes(current, out, run, transform.inverse, kept, after)
        self._begin = calls[0] if exchanges else []
        self._finish = [call for passes in calls[1 if exchanges else 0 :] for call in passes]

    def begin(self) -> None:
        """Issue what is done before the first exchange, and the exchange; nothing if there is none."""
        for call in self._begin:
            call()

    def finish(self) -> None:
        """Issue the rest; later work of the current stream finds the result."""
        for call in self._finish:
            call()


def _last_passes(
    current: Array,
    out: Array,
    run: Sequence[Transform],
    inverse: bool,
    kept: dict[Any, Any],
    after: Exchange | None,
) -> Iterator[Call]:
    """Yield the last pass before an exchange, in parts: each is sent while the next one is computed.

    run: the transforms since the exchange before; if there are none, cells are copied. after: the exchange,
    if one follows.
    """
    parts: Sequence[tuple[slice, ...]] = after.parts if after else [()]
    for number, cells in enumerate(parts):
        ends = current[cells], out[cells]
        yield _axis_pass(*ends, run[-1].axes[0], inverse, kept) if run else _copy(*ends)
        if after:
            yield partial(after.send, number)


def _kept_like(world: World, array: Array, kept: dict[Any, Any]) -> Array:
    """Return memory of an array's shape and dtype, the same for all transforms."""
    key = tuple(array.shape), np.dtype(array.dtype)
    if key not in kept:
        kept[key] = world.backend.empty(*key)
    memory: Array = kept[key]
    return memory


def _copy(source: Array, out: Array) -> Call:
    def copy() -> None:
        out[...] = source

    return copy


def _nothing() -> None:
    """Transform no cells."""


def _axis_pass(source: Array, out: Array, axis: int, inverse: bool, kept: dict[Any, Any]) -> Call:
    """Return what transforms along one axis; by a kernel where that is faster than cuFFT."""
    if 0 in source.shape or 0 in out.shape:
        return _nothing
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

    # A view takes CuPy about as long as a launch.
    ends = [(source[start], out[start]) for start in batches.starts]

    def transform() -> None:
        for first, result in ends:
            execute(first, result)

    return transform
