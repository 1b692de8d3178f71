"""Window: which regions of a file fill a padded block. Pure arithmetic.

Along each axis the block's cells are copies of cells of the array (`halo.AxisCopy`). Their source ranges
are read as pieces into a packed array. For a block in the middle of the array there is one piece: the padded
block itself. At an edge, cells beyond the array are copied from that piece or, if the boundary wraps around,
from a second piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import (
    AxisCopy,
    AxisModes,
    Constants,
    Modes,
    Slices,
    Widths,
    along,
    copies_beyond,
    outside_slabs,
)
from meshrun.runner.region import Array, Region, Shape

Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """The padded block of `region` in an array of `whole` cells.

    shape: of the padded block. staged: shape of the packed array that is read.
    """

    region: Region
    whole: Shape
    widths: Widths
    boundary: str | Modes
    cval: float | Constants = 0.0

    @property
    def shape(self) -> Shape:
        return tuple(low + n + high for (low, high), n in zip(self.widths, self.region.shape, strict=True))

    @property
    def staged(self) -> Shape:
        return tuple(sum(b - a for a, b in pieces) for pieces in self._pieces)

    @property
    def direct(self) -> bool:
        """Whether the packed array is the padded block already."""
        return self.staged == self.shape and all(len(copies) == 1 for copies in self._copies)

    @property
    def inside(self) -> Slices | None:
        """Slices of the padded block that all cells read belong to; None if other cells are read too.

        A block read in place at these slices needs `fill` instead of `assemble`.
        """
        pairs = zip(self._pieces, self._copies, strict=True)
        if any(pieces != [copies[0].source_range] for pieces, copies in pairs):
            return None
        return tuple(slice(copies[0].target, copies[0].target + copies[0].count) for copies in self._copies)

    def reads(self) -> Iterator[tuple[Region, Slices]]:
        """Yield the regions of the array to read, each with its slices of the packed array."""
        for box in product(*(_placed(pieces) for pieces in self._pieces)):
            region = Region(tuple(a for (a, _), _ in box), tuple(b for (_, b), _ in box))
            yield region, tuple(slice(at, at + b - a) for (a, b), at in box)

    def assemble(self, staged: Array, block: Array) -> None:
        """Fill `block` from the packed array. Not needed if `direct`."""
        self._fill(staged, block, list(product(*self._copies)))

    def fill(self, block: Array) -> None:
        """Fill the cells beyond the array's edges of a `block` that was read to `inside`."""
        inside = self.inside
        assert inside is not None
        self._fill(block[inside], block, list(product(*self._copies))[1:])

    def _fill(self, staged: Array, block: Array, boxes: list[tuple[AxisCopy, ...]]) -> None:
        for outside, value in self._outside:
            block[outside] = value
        for box in boxes:
            target = tuple(slice(copy.target, copy.target + copy.count) for copy in box)
            source = tuple(_staged(copy, pieces) for copy, pieces in zip(box, self._pieces, strict=True))
            block[target] = staged[source]

    @cached_property
    def _copies(self) -> list[list[AxisCopy]]:
        axes = zip(self.region.start, self.region.stop, self.widths, self.whole, strict=True)
        return [
            _axis_copies(a, b, width, length, along(self.boundary, axis))
            for axis, (a, b, width, length) in enumerate(axes)
        ]

    @cached_property
    def _pieces(self) -> list[list[Range]]:
        return [_pieces(copies) for copies in self._copies]

    @property
    def _outside(self) -> list[tuple[Slices, float]]:
        """The slices of cells beyond the array that hold a constant, and the constant."""
        return outside_slabs(self.region, self.whole, self.widths, self.boundary, self.cval)


def cells_read(start: int, stop: int, width: Range, length: int, boundary: AxisModes) -> int:
    """Return how many cells of an axis of `length` are read for cells `start` to `stop` and their halo."""
    return sum(b - a for a, b in _pieces(_axis_copies(start, stop, width, length, boundary)))


def _pieces(copies: Iterable[AxisCopy]) -> list[Range]:
    return _joined(copy.source_range for copy in copies)


def _axis_copies(start: int, stop: int, width: Range, length: int, boundary: AxisModes) -> list[AxisCopy]:
    """Return the copy of the cells inside the array, then the copies of those beyond either end."""
    first, last = start - width[0], stop + width[1]
    inside = range(max(first, 0), min(last, length))
    found = [AxisCopy(inside.start - first, len(inside), inside.start, 1, 0)]
    whole = Partition((length,), (1,))
    for beyond in (range(first, 0), range(max(length, first), last)):
        found += copies_beyond(whole, 0, beyond, beyond.start - first, boundary)
    return found


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ranges: as few as possible, ascending."""
    found: list[Range] = []
    for a, b in sorted(ranges):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return found


def _placed(pieces: list[Range]) -> Iterator[tuple[Range, int]]:
    at = 0
    for a, b in pieces:
        yield (a, b), at
        at += b - a


def _staged(copy: AxisCopy, pieces: list[Range]) -> slice:
    """Return the slice of a copy's source cells in the packed array, in the copy's order."""
    low, high = copy.source_range
    at = next(at + low - a for (a, b), at in _placed(pieces) if a <= low and high <= b)
    if copy.step < 0:
        last = at + high - low - 1
        return slice(last, at - 1 if at else None, -1)
    return slice(at, at + high - low)
