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
from meshrun.runner.region import Region, Shape, overlap

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

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.boxes))

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


@dataclass(frozen=True)
class ViewPlan:
    """What an index takes of an array, on one rank.

    items: along each axis. parts: of the view. own: index of the view's cells among this rank's own; None if
    one element is another rank's.
    """

    items: Items
    parts: Parts
    own: tuple[Any, ...] | None

    @functools.cached_property
    def is_cell(self) -> bool:
        """Whether the index takes one cell of an array that has axes."""
        return bool(self.items) and all(isinstance(one, int) for one in self.items)


@functools.lru_cache(4096)
def view_plan(parts: Parts, items: Items, ranks: int, rank: int) -> ViewPlan:
    """Return which cells of an array with these parts an index takes."""
    return ViewPlan(items, viewed(parts, items, ranks), own_slices(items, parts[rank]))


def index_key(index: Any) -> tuple[Any, ...] | None:
    """Return an index in a form that can be a key: of Python's own numbers, slices, ... and None.

    None for others: numbers of other types, such as True or 1.0, are equal to these and mean something else.
    """
    key: list[Any] = []
    for one in index if type(index) is tuple else (index,):
        if type(one) is slice:
            ends = one.start, one.stop, one.step
            for end in ends:
                if end is not None and type(end) is not int:
                    return None
            key.append(ends)
        elif type(one) is int or one is None or one is Ellipsis:
            key.append(one)
        else:
            return None
    return tuple(key)


@functools.lru_cache(4096)
def indexed(parts: Parts, key: tuple[Any, ...], ranks: int, rank: int) -> ViewPlan:
    """Return what an index takes. key: as of `index_key`. Raises IndexError as NumPy does."""
    index = tuple(slice(*one) if isinstance(one, tuple) else one for one in key)
    return view_plan(parts, items_of(index, parts.shape), ranks, rank)


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


@dataclass(frozen=True)
class OperandPlan:
    """How an operation of each cell is computed, on one rank.

    shape: to which the operands broadcast; None if they do not. parts: of the result, or of the array that it
    is written to. own: shape of this rank's cells. stays: of each operand, whether it is a distributed array
    of which every rank has the cells that it needs, and no others.
    """

    shape: Shape | None
    parts: Parts
    own: Shape
    stays: tuple[bool, ...]


@functools.lru_cache(4096)
def operand_plan(
    operands: tuple[Parts | Shape, ...], result: Parts | None, ranks: int, rank: int
) -> OperandPlan:
    """Return how an operation of each cell is computed.

    operands: the parts of each distributed array, the shape of others. result: the parts of the array that is
    written to. None: a new one, split as the first operand of its shape that is split evenly.
    """
    shapes = [one if isinstance(one, tuple) else one.shape for one in operands]
    shape = broadcast_shape(shapes)
    if shape is None or (result is not None and broadcast_shape([shape, result.shape]) != result.shape):
        return OperandPlan(shape, even_parts((), ranks), (), ())
    parts = result
    if parts is None:
        split = (one for one in operands if not isinstance(one, tuple))
        even = (one for one in split if one.shape == shape and is_even(one, ranks))
        parts = next(even, even_parts(shape, ranks))
    stays = tuple(
        not isinstance(one, tuple) and plan_between(one, projected(parts, whole, ranks), ranks) is None
        for one, whole in zip(operands, shapes, strict=True)
    )
    return OperandPlan(shape, parts, parts[rank].shape, stays)


@dataclass(frozen=True)
class RollPlan:
    """Which cells a rank sends, and where it puts those that it receives, as (rank, slices).

    parts: of the result. crosses: whether cells move between ranks, the same on every rank.
    """

    parts: Parts
    crosses: bool
    sends: tuple[tuple[int, tuple[slice, ...]], ...]
    receives: tuple[tuple[int, tuple[slice, ...]], ...]


@functools.lru_cache(1024)
def roll_plan(parts: Parts, axis: int, distance: int, ranks: int, rank: int) -> RollPlan:
    """Return how cells move `distance` cells along an axis, those at its end to its start."""
    result = parts if is_even(parts, ranks) else even_parts(parts.shape, ranks)
    length = parts.shape[axis]

    def moved(region: Region, by: int) -> Region:
        start, stop = list(region.start), list(region.stop)
        start[axis] += by
        stop[axis] += by
        return Region(tuple(start), tuple(stop))

    # From each rank to each: the cells that stay in order, and those that come from the other end.
    sends, receives = [], []
    for other in range(ranks):
        for by in (distance, distance - length):
            sent = overlap(moved(parts[rank], by), result[other])
            if sent.size:
                sends.append((other, moved(sent, -by).slices_in(parts[rank])))
            received = overlap(moved(parts[other], by), result[rank])
            if received.size:
                receives.append((other, received.slices_in(result[rank])))
    regions = [(parts[one], result[one]) for one in range(ranks)]
    crosses = any(a != b or (a.size and a.shape[axis] < length) for a, b in regions)
    return RollPlan(result, crosses, tuple(sends), tuple(receives))


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
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0] if shapes else ()
    found: list[int] = []
    for back in range(1, max(map(len, shapes), default=0) + 1):
        lengths = {shape[-back] for shape in shapes if len(shape) >= back} - {1}
        if len(lengths) > 1:
            return None
        found.append(lengths.pop() if lengths else 1)
    return tuple(reversed(found))
