"""Which cells of an array, or of a view of one, each rank has: integer arithmetic, without cells.

A view of an array has its cells where the array has them. Its parts are boxes, too: a slice in steps leaves
each rank a range of its elements, and one that is reversed leaves the last range to the first rank.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.plan.grid import Partition, split_along
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Region, Shape

UNEVEN = 2  # times its share of the cells, at most, for one rank, or a result is split evenly


@dataclass(frozen=True)
class Taken:
    """What an index takes along one axis: elements `first`, `first + step`, ..., `length` of them."""

    first: int
    step: int
    length: int

    def elements(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of these elements that are among cells `start` to before `stop`."""
        if self.step > 0:
            low, high = -(-(start - self.first) // self.step), -(-(stop - self.first) // self.step)
        else:
            low = -(-(self.first - stop + 1) // -self.step)
            high = (self.first - start) // -self.step + 1
        low = min(max(low, 0), self.length)
        return low, min(max(high, low), self.length)

    def within(self, start: int, stop: int) -> slice:
        """Return the slice of these elements in the cells `start` to before `stop`."""
        low, high = self.elements(start, stop)
        if low == high:
            return slice(0, 0)
        first = self.first + low * self.step - start
        last = self.first + (high - 1) * self.step - start
        end = last + (1 if self.step > 0 else -1)
        return slice(first, None if end < 0 else end, self.step)


Item = Taken | int | None  # of an index: a slice, one element, a new axis
Items = tuple[Item, ...]


@dataclass(frozen=True)
class BoxParts:
    """An array's shape and a box of it for each rank. grid: of no meaning, for a layout without a halo."""

    shape: Shape
    boxes: tuple[Region, ...]

    @property
    def grid(self) -> Shape:
        return (1,) * len(self.shape)

    def __getitem__(self, rank: int) -> Region:
        return self.boxes[rank]


Parts = Partition | BoxParts


def items_of(index: Any, shape: Shape) -> Items:
    """Return what an index takes along each axis. Raises IndexError as NumPy does.

    index: of slices, whole numbers, `...` and `None`.
    """
    given = index if isinstance(index, tuple) else (index,)
    taken = sum(one is not None and one is not Ellipsis for one in given)
    if sum(one is Ellipsis for one in given) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if taken > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {taken} were indexed"
        )
    full = [slice(None)] * (len(shape) - taken)
    at = next((number for number, one in enumerate(given) if one is Ellipsis), None)
    every = [*given, *full] if at is None else [*given[:at], *full, *given[at + 1 :]]
    items: list[Item] = []
    axis = 0
    for one in every:
        if one is None:
            items.append(None)
            continue
        length = shape[axis]
        if isinstance(one, slice):
            first, stop, step = one.indices(length)
            items.append(Taken(first, step, len(range(first, stop, step))))
        else:
            number = operator.index(one)
            if not -length <= number < length:
                raise IndexError(f"index {number} is out of bounds for axis {axis} with size {length}")
            items.append(number % length)
        axis += 1
    return tuple(items)


def own_slices(items: Items, region: Region) -> tuple[Any, ...] | None:
    """Return the index of a view's cells among a rank's own; None if one element is another rank's."""
    index: list[Any] = []
    axis = 0
    for one in items:
        if one is None:
            index.append(None)
            continue
        start, stop = region.start[axis], region.stop[axis]
        if isinstance(one, int):
            if not start <= one < stop:
                return None
            index.append(one - start)
        else:
            index.append(one.within(start, stop))
        axis += 1
    return tuple(index)


@functools.lru_cache(4096)
def viewed(parts: Parts, items: Items, ranks: int) -> Parts:
    """Return the parts of a view."""
    shape, boxes = _shape_of(items), []
    for rank in range(ranks):
        region, start, stop, axis = parts[rank], list[int](), list[int](), 0
        holds = own_slices(items, region) is not None
        for one in items:
            if one is None:
                low, high = 0, 1
            else:
                a, b = region.start[axis], region.stop[axis]
                low, high = (0, 1) if isinstance(one, int) else one.elements(a, b)
                axis += 1
            if not isinstance(one, int):
                start.append(low)
                stop.append(high if holds else low)
        boxes.append(Region(tuple(start), tuple(stop)))
    return regular(BoxParts(shape, tuple(boxes)), getattr(parts, "grid", ()), items)


def _shape_of(items: Items) -> Shape:
    return tuple(1 if one is None else one.length for one in items if not isinstance(one, int))


def regular(parts: BoxParts, grid: Shape, items: Items) -> Parts:
    """Return a view's parts as a partition if they are one: of slices that are not reversed."""
    axis, kept = 0, []
    for one in items:
        if one is None:
            kept.append(1)
            continue
        blocks = grid[axis]
        axis += 1
        if isinstance(one, int):
            if blocks > 1:
                return parts
        elif one.step < 0 and blocks > 1:
            return parts
        else:
            kept.append(blocks)
    return as_partition(parts, tuple(kept))


def as_partition(parts: BoxParts, grid: Shape) -> Parts:
    """Return boxes as a partition with a grid of ranks, if its product is the number of ranks."""
    if math.prod(grid) != len(parts.boxes) or not grid:
        return parts
    even = Partition(parts.shape, grid)
    starts = []
    for axis in range(len(grid)):
        firsts = {even.coordinates(rank)[axis]: box.start[axis] for rank, box in enumerate(parts.boxes)}
        starts.append(tuple(firsts[place] for place in range(grid[axis])))
    found = Partition(parts.shape, grid, starts=tuple(starts))
    if any(found[rank] != box for rank, box in enumerate(parts.boxes)):
        return parts
    return even if all(even[rank] == box for rank, box in enumerate(parts.boxes)) else found


def transposed(parts: Parts, order: Shape, ranks: int) -> Parts:
    """Return the parts of an array with its axes in another order."""
    shape = tuple(parts.shape[axis] for axis in order)
    boxes = []
    for rank in range(ranks):
        region = parts[rank]
        start, stop = (tuple(ends[axis] for axis in order) for ends in (region.start, region.stop))
        boxes.append(Region(start, stop))
    grid = getattr(parts, "grid", ())
    moved = BoxParts(shape, tuple(boxes))
    return as_partition(moved, tuple(grid[axis] for axis in order)) if grid else moved


@functools.lru_cache(4096)
def projected(parts: Parts, shape: Shape, ranks: int) -> Parts:
    """Return what each rank needs of an operand of `shape` that broadcasts to an array with these parts."""
    if shape == parts.shape:
        return parts
    offset, boxes = len(parts.shape) - len(shape), []
    for rank in range(ranks):
        region, start, stop = parts[rank], [], []
        for axis, length in enumerate(shape):
            whole = length == 1 and parts.shape[axis + offset] != 1
            start.append(0 if whole else region.start[axis + offset])
            stop.append(1 if whole else region.stop[axis + offset])
        boxes.append(Region(tuple(start), tuple(stop)))
    return BoxParts(shape, tuple(boxes))


@functools.lru_cache(4096)
def plan_between(before: Parts, after: Parts, ranks: int) -> RedistributionPlan | None:
    """Return which cells move; None if every rank has its own already."""
    if before == after or all(before[rank] == after[rank] for rank in range(ranks)):
        return None
    return RedistributionPlan(before, after, ranks)


@functools.lru_cache(4096)
def is_even(parts: Parts, ranks: int) -> bool:
    """Return whether a result may have these parts: none much larger than the others."""
    if not isinstance(parts, Partition):
        return False
    most = max(parts[rank].size for rank in range(ranks))
    return most <= max(UNEVEN * -(-math.prod(parts.shape) // ranks), 1)


@functools.lru_cache(4096)
def even_parts(shape: Shape, ranks: int) -> Partition:
    """Return the parts of a new array: along the first axis, or the longest if the first is short."""
    if not shape:
        return Partition((), ())
    axis = 0 if shape[0] >= ranks else shape.index(max(shape))
    return split_along(shape, axis, ranks)


@functools.lru_cache(4096)
def everywhere(shape: Shape, ranks: int) -> BoxParts:
    """Return parts of which every rank has all cells."""
    return BoxParts(shape, (Region((0,) * len(shape), shape),) * ranks)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape to which shapes broadcast; None if they do not."""
    found: list[int] = []
    for back in range(1, max(map(len, shapes), default=0) + 1):
        lengths = {shape[-back] for shape in shapes if len(shape) >= back} - {1}
        if len(lengths) > 1:
            return None
        found.append(lengths.pop() if lengths else 1)
    return tuple(reversed(found))
