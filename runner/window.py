"""What a padded block needs of the file that holds the whole array: pure arithmetic.

Along each axis the block's cells are copies of cells of the array (`halo.AxisCopy`). The ranges that they
are copied from are read, in pieces that follow one another in a packed array. A block in the middle of the
array is one piece, which is the padded block itself; at an edge, what lies beyond is copied from what was
read or, where a boundary wraps round, from a second piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from runner.comm import Array
from runner.halo import AxisCopy, Slices, Widths, copies_beyond
from runner.partition import Region, Shape

Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """The padded block of `region` in an array of `whole` cells.

    shape: of the padded block. staged: of what is read, packed.
    """

    region: Region
    whole: Shape
    widths: Widths
    boundary: str
    cval: float = 0.0

    @property
    def shape(self) -> Shape:
        return tuple(low + n + high for (low, high), n in zip(self.widths, self.region.shape, strict=True))

    @property
    def staged(self) -> Shape:
        return tuple(sum(b - a for a, b in pieces) for pieces in self._pieces)

    @property
    def direct(self) -> bool:
        """Whether what is read is the padded block already."""
        return self.staged == self.shape and all(len(copies) == 1 for copies in self._copies)

    @property
    def inside(self) -> Slices | None:
        """Where in the padded block all that is read belongs; None where other cells are read too.

        What is read to there needs `fill` instead of `assemble`.
        """
        pairs = zip(self._pieces, self._copies, strict=True)
        if any(pieces != [copies[0].source_range] for pieces, copies in pairs):
            return None
        return tuple(slice(copies[0].target, copies[0].target + copies[0].count) for copies in self._copies)

    def reads(self) -> Iterator[tuple[Region, Slices]]:
        """The parts of the array to read, each with its place in the packed array."""
        for box in product(*(_placed(pieces) for pieces in self._pieces)):
            region = Region(tuple(a for (a, _), _ in box), tuple(b for (_, b), _ in box))
            yield region, tuple(slice(at, at + b - a) for (a, b), at in box)

    def assemble(self, staged: Array, block: Array) -> None:
        """Fill `block` from what was read. Not needed where `direct`."""
        self._fill(staged, block, list(product(*self._copies)))

    def fill(self, block: Array) -> None:
        """Fill what lies beyond the array's edges of a `block` that was read to `inside`."""
        inside = self.inside
        assert inside is not None
        self._fill(block[inside], block, list(product(*self._copies))[1:])

    def _fill(self, staged: Array, block: Array, boxes: list[tuple[AxisCopy, ...]]) -> None:
        for outside in self._outside:
            block[outside] = self.cval
        for box in boxes:
            target = tuple(slice(copy.target, copy.target + copy.count) for copy in box)
            source = tuple(_staged(copy, pieces) for copy, pieces in zip(box, self._pieces, strict=True))
            block[target] = staged[source]

    @cached_property
    def _copies(self) -> list[list[AxisCopy]]:
        axes = zip(self.region.start, self.region.stop, self.widths, self.whole, strict=True)
        return [_axis_copies(a, b, width, length, self.boundary) for a, b, width, length in axes]

    @cached_property
    def _pieces(self) -> list[list[Range]]:
        return [_joined(copy.source_range for copy in copies) for copies in self._copies]

    @property
    def _outside(self) -> Iterator[Slices]:
        """The cells beyond the array that are no copies."""
        if self.boundary != "constant":
            return
        everything = [slice(None)] * len(self.whole)
        for axis, ((low, high), length) in enumerate(zip(self.widths, self.whole, strict=True)):
            before = max(low - self.region.start[axis], 0)
            after = max(self.region.stop[axis] + high - length, 0)
            size = self.shape[axis]
            for part in (slice(0, before), slice(size - after, size)):
                if part.stop > part.start:
                    yield (*everything[:axis], part, *everything[axis + 1 :])


def _axis_copies(start: int, stop: int, width: Range, length: int, boundary: str) -> list[AxisCopy]:
    """The copy of the cells inside the array, then those of the cells beyond either end."""
    first, last = start - width[0], stop + width[1]
    inside = range(max(first, 0), min(last, length))
    found = [AxisCopy(inside.start - first, len(inside), inside.start, 1, 0)]
    for beyond in (range(first, 0), range(max(length, first), last)):
        found += copies_beyond(length, 1, beyond, beyond.start - first, boundary)
    return found


def _joined(ranges: Iterator[Range]) -> list[Range]:
    """The union of ranges, as few as possible, ascending."""
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
    """Where the source cells of a copy lie in the packed array, in the copy's order."""
    low, high = copy.source_range
    at = next(at + low - a for (a, b), at in _placed(pieces) if a <= low and high <= b)
    if copy.step < 0:
        last = at + high - low - 1
        return slice(last, at - 1 if at else None, -1)
    return slice(at, at + high - low)
