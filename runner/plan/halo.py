"""Halo cells of a block, and which rank owns the cells they copy. Pure arithmetic.

A block is processed with a halo: `low` more cells before it and `high` after it along each axis.
Halo cells inside the array belong to some rank's block. Those outside are defined by a boundary mode, with
the names and meanings of scipy.ndimage's filters (n = length):

    reflect    d c b a | a b c d | d c b a    period 2n
    mirror       d c b | a b c d | c b a      period 2n - 2
    nearest    a a a a | a b c d | d d d d
    wrap       a b c d | a b c d | a b c d    period n (scipy's filters: same as grid-wrap)
    constant   k k k k | a b c d | k k k k

So every halo cell is a copy of one cell of the array, which any rank may own: a halo may be wider than a
block. Along one axis, neighbouring cells are copied together if a slice can express it (forwards, backwards,
or one cell repeated: `AxisCopy`). A block's halo is the product of these over all axes, corners included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import index
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Region, Shape

Widths = tuple[tuple[int, int], ...]
AxisModes = str | tuple[str, str]  # the boundary of both ends of an axis, or those before and after it
Modes = tuple[tuple[str, str], ...]  # per axis, before and after the array
Constants = tuple[tuple[float, float], ...]  # of these, where the mode is "constant"
Slices = tuple[slice, ...]


def normalize(halo: int | Sequence[int | tuple[int, int]], ndim: int) -> Widths:
    """Return (low, high) pairs per axis of a declared halo: one int, or an int or pair per leading axis."""
    try:
        widths = [_pair(width) for width in (halo if isinstance(halo, list | tuple) else [halo] * ndim)]
    except (TypeError, ValueError):
        expected = "one number, or a number or a pair for each leading axis"
        raise UserError("a halo is of numbers of cells", got=repr(halo), expected=expected) from None
    if len(widths) > ndim:
        raise UserError(
            "the halo names more axes than the array has",
            got=f"{len(widths)} axes",
            expected=f"at most {ndim}",
        )
    widths += [(0, 0)] * (ndim - len(widths))
    if any(width < 0 for pair in widths for width in pair):
        raise UserError("a halo must be a number of cells", got=halo, expected="0 or more")
    return tuple(widths)


def _pair(width: Any) -> tuple[int, int]:
    """Return the (low, high) of one axis. Raises TypeError or ValueError."""
    low, high = width if isinstance(width, list | tuple) else (width, width)
    return index(low), index(high)


def check_boundary(boundary: str) -> None:
    """Raise UserError for a boundary that does not exist."""
    if boundary not in BOUNDARIES:
        raise UserError("unknown boundary", got=boundary, expected=", ".join(BOUNDARIES))


def check_widths(widths: Widths, shape: Shape) -> None:
    """Raise UserError for a halo wider than the array: its cells would be copies of copies."""
    for axis, ((low, high), length) in enumerate(zip(widths, shape, strict=True)):
        if max(low, high) > length and 0 not in shape:
            raise UserError(
                f"the halo is wider than the array along axis {axis}",
                got=f"{max(low, high)} cells",
                expected=f"at most {length}, the array's length there",
                hint="a smaller kernel or a larger array",
            )


def source_index(position: int, length: int, boundary: str) -> int | None:
    """Return the cell of an axis that `position`, inside or outside, copies; None: the constant."""
    if 0 <= position < length:
        return position
    if boundary == "constant":
        return None
    if boundary == "nearest":
        return 0 if position < 0 else length - 1
    if boundary == "wrap":
        return position % length
    if boundary == "reflect":
        position %= 2 * length
        return min(position, 2 * length - 1 - position)
    if length == 1:  # mirror's period 2n - 2 is 0 here
        return 0
    position %= 2 * length - 2
    return min(position, 2 * length - 2 - position)


def along(boundary: str | Modes, axis: int) -> AxisModes:
    """Return the boundary of one axis, of one for all sides or of the modes of each."""
    return boundary if isinstance(boundary, str) else boundary[axis]


def wraps(boundary: str | Modes, axis: int) -> bool:
    """Return whether both ends of an axis meet."""
    return along(boundary, axis) in ("wrap", ("wrap", "wrap"))


@dataclass(frozen=True)
class AxisCopy:
    """`count` neighbouring cells along one axis of a padded block, all copied from one block's own cells.

    target: first cell, counted in the padded block. source: first cell it copies, in the whole
    array. step: +1 forwards, -1 backwards, 0 one cell repeated. owner: grid coordinate.
    """

    target: int
    count: int
    source: int
    step: int
    owner: int

    @cached_property
    def source_range(self) -> tuple[int, int]:
        last = self.source + self.step * (self.count - 1)
        return min(self.source, last), max(self.source, last) + 1


def axis_copies(
    partition: Partition, axis: int, coordinate: int, width: tuple[int, int], boundary: AxisModes
) -> list[AxisCopy]:
    """Return the copies that fill block `coordinate` along `axis`; the first one is its own cells.

    None for an empty block, unless its halo is filled.
    """
    start, stop = partition.bounds(axis, coordinate)
    if start == stop and not partition.empty_halos:
        return []
    low, high = width
    found = [AxisCopy(low, stop - start, start, 1, coordinate)]
    for first, last in ((start - low, start), (stop, stop + high)):
        found += copies_beyond(partition, axis, range(first, last), first - (start - low), boundary)
    return found


def copies_beyond(
    partition: Partition, axis: int, positions: range, target: int, boundary: AxisModes
) -> Iterator[AxisCopy]:
    """Yield copies that fill `positions` of an axis, inside or outside, from `target` of a padded block."""
    open_copy: AxisCopy | None = None
    is_cut, length = partition.grid[axis] > 1, partition.shape[axis]
    for offset, position in enumerate(positions):
        mode = boundary if isinstance(boundary, str) else boundary[position >= length]
        source = source_index(position, length, mode)
        if source is None:
            continue
        place = partition.owner(axis, source) if is_cut else 0
        if open_copy is not None and place == open_copy.owner:
            step = source - (open_copy.source + open_copy.step * (open_copy.count - 1))
            if step in (-1, 0, 1) and (open_copy.count == 1 or step == open_copy.step):
                open_copy = AxisCopy(open_copy.target, open_copy.count + 1, open_copy.source, step, place)
                continue
        if open_copy is not None:
            yield open_copy
        open_copy = AxisCopy(target + offset, 1, source, 1, place)
    if open_copy is not None:
        yield open_copy


def outside_slabs(
    region: Region, whole: Shape, widths: Widths, boundary: str | Modes, cval: float | Constants
) -> list[tuple[Slices, float]]:
    """Return the slices of a region's padded block that hold a constant, and the constant.

    Where two overlap, beyond the ends of two axes, the later one counts.
    """
    found = []
    for axis, ((low, high), length) in enumerate(zip(widths, whole, strict=True)):
        modes, size = along(boundary, axis), low + region.shape[axis] + high
        before = max(low - region.start[axis], 0)
        after = max(region.stop[axis] + high - length, 0)
        for side, part in enumerate((slice(0, before), slice(size - after, size))):
            mode = modes if isinstance(modes, str) else modes[side]
            if mode == "constant" and part.stop > part.start:
                value = cval[axis][side] if isinstance(cval, tuple) else cval
                slab = [slice(None)] * len(whole)
                slab[axis] = part
                found.append((tuple(slab), value))
    return found


@dataclass(frozen=True)
class Transfer:
    """One box of cells that `sender` owns and `receiver` copies into its halo.

    target: where it goes, slices of the receiver's padded block. source: where it comes from,
    slices of the sender's own cells (its block without halo). flip: the axes to reverse. An axis
    along which one cell is repeated has a source slice of length 1.
    """

    sender: int
    receiver: int
    target: Slices
    source: Slices
    flip: tuple[int, ...]


def transfers(
    partition: Partition, receiver: int, widths: Widths, boundary: str | Modes
) -> Iterator[Transfer]:
    """Yield all transfers to `receiver`, in the order in which its senders yield them."""
    place = partition.coordinates(receiver)
    per_axis = [
        axis_copies(partition, axis, place[axis], widths[axis], along(boundary, axis))
        for axis in range(len(place))
    ]
    for box in product(*per_axis):
        is_halo = any(copy is not copies[0] for copy, copies in zip(box, per_axis, strict=True))
        if is_halo and all(copy.count for copy in box):
            yield _transfer(partition, receiver, box)


def sends(partition: Partition, sender: int, widths: Widths, boundary: str | Modes) -> Iterator[Transfer]:
    """Yield all transfers from `sender`; considers only blocks that touch its cells along every axis."""
    place = partition.coordinates(sender)
    neighbours = []
    for axis, parts in enumerate(partition.grid):
        near = [
            coordinate
            for coordinate in range(parts)
            if any(
                copy.owner == place[axis]
                for copy in axis_copies(partition, axis, coordinate, widths[axis], along(boundary, axis))
            )
        ]
        neighbours.append(near)
    for coordinates in product(*neighbours):
        receiver = partition.rank(coordinates)
        if receiver != sender:
            for transfer in transfers(partition, receiver, widths, boundary):
                if transfer.sender == sender:
                    yield transfer


def _transfer(partition: Partition, receiver: int, box: Sequence[AxisCopy]) -> Transfer:
    owners = [copy.owner for copy in box]
    source = []
    for axis, copy in enumerate(box):
        origin, _ = partition.bounds(axis, copy.owner)
        first, last = copy.source_range
        source.append(slice(first - origin, last - origin))
    return Transfer(
        sender=partition.rank(owners),
        receiver=receiver,
        target=tuple(slice(copy.target, copy.target + copy.count) for copy in box),
        source=tuple(source),
        flip=tuple(axis for axis, copy in enumerate(box) if copy.step < 0),
    )
