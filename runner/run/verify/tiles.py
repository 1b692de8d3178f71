"""Steps of one tile in a plain loop: calls of the job's own function in NumPy, on cells with their halo.

What lies beyond an edge is looked up by the formulas of `sources`. The cells that decide
a tile after n steps are those within n halos of it; each step computes those that the following steps need.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from meshrun.runner.device.api import poisoned
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.plan.halo import AxisModes, along
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region, Shape


@dataclass(frozen=True)
class Cells:
    """Cells of one input from `start` on. own: a call of the function may have the memory.

    Along an axis that wraps around they may begin before the array and end after it.
    """

    array: HostArray
    start: Shape
    own: bool = False


@dataclass(frozen=True)
class Placed:
    """Cells of an array from `start` to `stop`, `offset` bytes behind the begin of a shared memory."""

    offset: int
    start: Shape
    stop: Shape
    dtype: np.dtype[Any]

    @property
    def shape(self) -> Shape:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, memory: HostArray) -> HostArray:
        """Return the cells. memory: bytes."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Tile:
    """So many steps of the cells from `start` to `stop`: read from `fields` and written to `results`.

    done: steps before the first of them.
    """

    fields: tuple[Placed, ...]
    results: tuple[Placed, ...]
    start: Shape
    stop: Shape
    steps: int
    done: int = 0

    def take(self, task: Task, memory: HostArray) -> None:
        """Take the steps. memory: bytes."""
        fields = [Cells(one.array(memory), one.start) for one in self.fields]
        into = []
        for one in self.results:
            axes = zip(self.start, self.stop, one.start[: task.leading], strict=False)
            cut = tuple(slice(a - origin, b - origin) for a, b, origin in axes)
            into.append(one.array(memory)[cut])
        take_steps(task, fields, self.start, self.stop, self.steps, into, self.done)


def needed(task: Task, start: Shape, stop: Shape, steps: int) -> tuple[Shape, Shape]:
    """Return start and stop of the cells that decide a range after so many steps."""
    ends = [
        _decisive(a, b, n, width, _modes_along(task, axis), steps)
        for axis, (a, b, n, width) in enumerate(zip(start, stop, task.shape, task.widths, strict=True))
    ]
    return tuple(a for a, _ in ends), tuple(b for _, b in ends)


def _modes_along(task: Task, axis: int) -> set[str]:
    """Return the modes of the inputs along an axis."""
    found = set[str]()
    for number, field in enumerate(task.fields):
        if axis < len(field.shape) and field.widths[axis] != (0, 0):
            modes = along(task.beyond(number)[0], axis)
            found |= {modes} if isinstance(modes, str) else set(modes)
    return found


def of_field(task: Task, place: int, start: Shape, stop: Shape) -> tuple[Shape, Shape]:
    """Return start and stop of a range in input `place`, which is whole along the axes of its own."""
    if place == 0:
        return start, stop
    shared, tail = task.leading, task.fields[place].shape[task.leading :]
    return start[:shared] + (0,) * len(tail), stop[:shared] + tuple(tail)


def of_result(task: Task, number: int, start: Shape, stop: Shape) -> tuple[Shape, Shape]:
    """Return start and stop of a range in output `number`."""
    tail = task.known[number][0][task.leading :]
    return start[: task.leading] + (0,) * len(tail), stop[: task.leading] + tail


def fed(task: Task, fields: Sequence[Cells], results: Sequence[HostArray], start: Shape) -> list[Cells]:
    """Return the fields after a step whose results begin at `start`."""
    found = list(fields)
    for feed, result in zip(task.feed_numbers, results, strict=True):
        if feed is not None:
            found[feed] = Cells(result, of_field(task, feed, start, start)[0], True)
    return found


def take_steps(
    task: Task,
    fields: Sequence[Cells],
    start: Shape,
    stop: Shape,
    steps: int,
    into: Sequence[HostArray],
    done: int = 0,
) -> None:
    """Take so many steps of one tile, after `done` others; write the results."""
    ranges = [(start, stop)]
    while len(ranges) < steps:
        ranges.append(needed(task, *ranges[-1], 1))
    with np.errstate(all="ignore"):
        for step, (first, last) in enumerate(reversed(ranges[1:]), done):
            fields = fed(task, fields, _step(task, fields, first, last, step), first)
        _step(task, fields, start, stop, done + steps - 1, into)


def _step(
    task: Task,
    fields: Sequence[Cells],
    start: Shape,
    stop: Shape,
    step: int,
    into: Sequence[HostArray] | None = None,
) -> Sequence[HostArray]:
    """Compute step number `step` of a range, in parts where the array wraps around; return the results.

    into: memory for them; the function's own arrays are returned without it, where that is safe.
    """
    leading = task.leading
    parts = list(wrapped(start, stop, task.shape))
    for place, region in parts:
        low = tuple(a + part.start for a, part in zip(start, place, strict=True))
        high = tuple(a + part.stop for a, part in zip(start, place, strict=True))
        blocks = [_padded(task, number, cells, low, high, step) for number, cells in enumerate(fields)]
        here = BlockContext(0, 1, "", region.start, region.shape, task.shape, None, np, step)
        # No variable holds the results that a function fills: see _is_free.
        found = task.call(blocks, here, poisoned(CpuBackend(), task.filled(region.shape), other=True))
        if into is None:
            cells = tuple(b - a for a, b in zip(start, stop, strict=True))[:leading]
            types = [(cells + shape[leading:], dtype) for shape, dtype in task.known]
            if len(parts) == 1 and _is_free(found, types):
                return found
            into = [np.empty(*one) for one in types]
        for result, one in zip(into, found, strict=True):
            result[place[:leading]] = one
    assert into is not None
    return into


def _references(arrays: Sequence[HostArray]) -> int:
    """Return the largest number of references to one of the arrays."""
    return max(sys.getrefcount(array) for array in arrays)


ALONE = _references((np.empty(0),))  # to an array that only its tuple holds


def _is_free(found: tuple[HostArray, ...], types: Sequence[tuple[Shape, np.dtype[Any]]]) -> bool:
    """Return whether the next step may have the results' memory: neither the function nor a view holds it."""
    return _references(found) <= ALONE and all(
        type(one) is np.ndarray
        and one.base is None
        and one.flags.carray
        and (one.shape, one.dtype) == (shape, dtype)
        for one, (shape, dtype) in zip(found, types, strict=True)
    )


def _padded(task: Task, place: int, cells: Cells, start: Shape, stop: Shape, step: int) -> HostArray:
    """Return the cells of a range with their halo; those beyond the array's ends follow the boundary."""
    field = task.fields[place]
    boundary, constants = task.beyond(place, step)
    first, last = of_field(task, place, start, stop)
    block, filled = cells.array, []
    for axis, (low, high) in enumerate(field.widths):
        origin, length = cells.start[axis], field.shape[axis]
        begin, end = first[axis] - low, last[axis] + high
        beyond = task.wraps_along(axis) and axis < task.leading and cells.array.shape[axis] < length
        if beyond or (begin >= 0 and end <= length):  # the cells are there, one beside the other
            block = block[(slice(None),) * axis + (slice(begin - origin, end - origin),)]
            continue
        wanted = np.arange(begin, end)
        index = sources(wanted, length, along(boundary, axis))
        if (index < 0).any():
            filled.append((axis, wanted, index < 0))
            index = np.where(index < 0, origin, index)
        block = np.take(block, index - origin, axis)
    if np.may_share_memory(block, cells.array) and not (cells.own and block.size == cells.array.size):
        block = np.array(block, order="C")  # the function's, which may change it
    block = np.ascontiguousarray(block)
    for axis, wanted, missing in filled:
        for side, beside in enumerate((wanted < 0, wanted >= 0)):
            value = constants[axis][side] if isinstance(constants, tuple) else constants
            block[(slice(None),) * axis + (missing & beside,)] = value
    return block


def sources(wanted: HostArray, length: int, boundary: AxisModes) -> HostArray:
    """Return the cells that the positions `wanted` of an axis copy; -1 for the constant.

    Follows scipy.ndimage's documentation of the modes, for positions up to `length` beyond either end.
    """
    last = length - 1
    if not isinstance(boundary, str):
        before, after = (sources(wanted, length, mode) for mode in boundary)
        return np.where(wanted < 0, before, after)
    if boundary == "constant":
        return np.where((wanted < 0) | (wanted > last), -1, wanted)
    if boundary == "wrap":
        return np.where(wanted < 0, wanted + length, np.where(wanted > last, wanted - length, wanted))
    if boundary == "reflect":
        return np.where(wanted < 0, -1 - wanted, np.where(wanted > last, 2 * length - 1 - wanted, wanted))
    if boundary == "mirror":
        below = np.abs(wanted)
        return np.minimum(np.abs(np.where(below > last, 2 * last - below, below)), last)
    return np.clip(wanted, 0, last)


def _decisive(
    start: int, stop: int, length: int, width: tuple[int, int], modes: set[str], steps: int
) -> tuple[int, int]:
    """Return the positions along an axis that decide a range after so many steps.

    Where the axis wraps around they may go beyond its ends, unless they are all. modes: of all inputs.
    """
    low, high = width
    if "wrap" in modes and len(modes) > 1:  # of some inputs
        return 0, length
    if modes == {"wrap"}:
        first, last = start - steps * low, stop + steps * high
        return (0, length) if last - first >= length else (first, last)
    for _ in range(steps):
        first, last = start - low, stop + high
        if not modes.isdisjoint(
            {"reflect", "mirror"}
        ):  # cells beyond an end are copies of those as far inside
            first, last = min(first, 2 * length - 1 - last), max(last, 1 - first)
        first, last = max(first, 0), min(last, length)
        if (first, last) == (start, stop):
            break
        start, stop = first, last
    return start, stop


def wrapped(start: Shape, stop: Shape, shape: Shape) -> Iterator[tuple[tuple[slice, ...], Region]]:
    """Yield the regions of an array that fill a range which may go beyond its ends, and where they go."""
    if min(start) >= 0 and all(b <= n for b, n in zip(stop, shape, strict=True)):
        yield tuple(slice(0, b - a) for a, b in zip(start, stop, strict=True)), Region(start, stop)
        return
    per_axis = []
    for a, b, n in zip(start, stop, shape, strict=True):
        pieces, at = [], a
        while at < b:
            end = min(b, (at // n + 1) * n)
            pieces.append((slice(at - a, end - a), at % n, at % n + end - at))
            at = end
        per_axis.append(pieces)
    for box in product(*per_axis):
        region = Region(tuple(low for _, low, _ in box), tuple(high for _, _, high in box))
        yield tuple(into for into, _, _ in box), region
