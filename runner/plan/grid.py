"""Partition of an array into blocks: pure integer arithmetic, without arrays or running ranks.

A grid such as (4,) or (2, 3) gives the number of blocks along each leading axis. Blocks are
balanced: of p blocks for n elements, the first n % p have one element more. A block may be
empty (more blocks than elements). Ranks number the blocks in C order, the last grid axis fastest.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, SupportsIndex

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import is_length
from meshrun.runner.region import Region, Shape
from meshrun.runner.spelling import option

BLOCKS_MOST = 1 << 20  # blocks of a grid of chunks: every rank lists them all


def bounds(length: int, parts: int, index: int, unit: int = 1) -> tuple[int, int]:
    """Return start and stop of block `index` of `length` elements cut into `parts`.

    unit: both are multiples of it, as `length` is.
    """
    quotient, remainder = divmod(length // unit, parts)
    start = index * quotient + min(index, remainder)
    return unit * start, unit * (start + quotient + (index < remainder))


def owner(length: int, parts: int, position: int, unit: int = 1) -> int:
    """Return the block that holds element `position`: the inverse of `bounds`."""
    quotient, remainder = divmod(length // unit, parts)
    position //= unit
    in_long_blocks = remainder * (quotient + 1)
    if position < in_long_blocks:
        return position // (quotient + 1)
    return remainder + (position - in_long_blocks) // quotient


class Parts(Protocol):
    """An array's shape cut into a part for each rank."""

    @property
    def shape(self) -> Shape: ...

    def __getitem__(self, rank: int) -> Region:
        """Return a rank's region."""


@dataclass(frozen=True)
class Partition:
    """An array's shape cut by a grid; `partition[rank]` is that rank's region.

    `grid` has one entry per axis of `shape`; their product is the number of ranks. units: per leading axis,
    what lengths of blocks are multiples of, as the array's is; 1 along the other axes. starts: per axis,
    where the blocks begin; (): they are balanced. empty_halos: whether an empty block has a halo to fill: its
    rank has cells of other arrays there.
    """

    shape: Shape
    grid: Shape
    units: Shape = ()
    starts: tuple[Shape, ...] = ()
    empty_halos: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.grid, self.units, self.starts, self.empty_halos))

    @cached_property
    def size(self) -> int:
        return math.prod(self.grid)

    def unit(self, axis: int) -> int:
        return self.units[axis] if axis < len(self.units) else 1

    def bounds(self, axis: int, coordinate: int) -> tuple[int, int]:
        """Return start and stop along `axis` of the blocks at a grid coordinate."""
        if self.starts:
            start, stop = (*self.starts[axis], self.shape[axis])[coordinate : coordinate + 2]
            return start, stop
        return bounds(self.shape[axis], self.grid[axis], coordinate, self.unit(axis))

    def owner(self, axis: int, position: int) -> int:
        """Return the grid coordinate of the blocks that hold cell `position` of `axis`."""
        if self.starts:
            return bisect_right(self.starts[axis], position) - 1
        return owner(self.shape[axis], self.grid[axis], position, self.unit(axis))

    def of_size(self, shape: Shape, every: Shape) -> Partition:
        """Return the partition of another array on the same space, for arrays that are computed together.

        every: per axis, the cells of this array from one cell of the other to the next. Cell i of the other
        is on the rank of cell `i * every` here, or of the last one here. So an array of n + 1 faces is split
        as its n cells are, and a coarse grid as the fine one. Blocks may be empty.
        """
        starts = []
        for axis, (length, step) in enumerate(zip(shape, every, strict=True)):
            firsts = [self.bounds(axis, number)[0] for number in range(1, self.grid[axis])]
            cuts = [length if a == self.shape[axis] else min(-(-a // step), length) for a in firsts]
            starts.append((0, *cuts))
        return Partition(shape, self.grid, starts=tuple(starts))

    def with_axes(self, lengths: Shape) -> Partition:
        """Return the partition of an array with further axes of such lengths, which are not cut."""
        starts = (*self.starts, *((0,) for _ in lengths)) if self.starts else ()
        return replace(self, shape=self.shape + lengths, grid=self.grid + (1,) * len(lengths), starts=starts)

    def coordinates(self, rank: int) -> Shape:
        place = []
        for parts in reversed(self.grid):
            rank, coordinate = divmod(rank, parts)
            place.append(coordinate)
        return tuple(reversed(place))

    def rank(self, coordinates: Sequence[int]) -> int:
        rank = 0
        for parts, coordinate in zip(self.grid, coordinates, strict=True):
            rank = rank * parts + coordinate
        return rank

    def __getitem__(self, rank: int) -> Region:
        if rank not in self._regions:
            cuts = [self.bounds(axis, coordinate) for axis, coordinate in enumerate(self.coordinates(rank))]
            self._regions[rank] = Region(tuple(a for a, _ in cuts), tuple(b for _, b in cuts))
        return self._regions[rank]

    @cached_property
    def _regions(self) -> dict[int, Region]:
        """The regions of the ranks that have been asked for."""
        return {}

    def __iter__(self) -> Iterator[Region]:
        return (self[rank] for rank in range(self.size))


def split_along(shape: Shape, axis: int, parts: int) -> Partition:
    """Return the partition along one axis, which may count from the end; UserError if there is none such."""
    if not -len(shape) <= axis < len(shape):
        raise UserError(
            "the array cannot be split along this axis", got=axis, expected=f"an axis of shape {shape}"
        )
    axis %= len(shape)
    return Partition(shape, tuple(parts if n == axis else 1 for n in range(len(shape))))


def parts_of(shape: Shape, split: SupportsIndex | Parts, parts: int) -> Parts:
    """Return the partition along an axis, or the one that is given as `split`."""
    return split_along(shape, operator.index(split), parts) if isinstance(split, SupportsIndex) else split


def split_over(shape: Shape, split: int | Sequence[int], ranks: int) -> Partition:
    """Return the partition along an axis, or with so many parts along each of the first axes.

    Raises UserError if the array has no such axes, or if the parts are not one for each rank.
    """
    if isinstance(split, SupportsIndex):
        return split_along(shape, operator.index(split), ranks)
    grid = tuple(operator.index(parts) for parts in split)
    if len(grid) > len(shape) or min(grid, default=1) < 1 or math.prod(grid) != ranks:
        raise UserError(
            "the array cannot be split into such parts",
            got=f"{'x'.join(map(str, grid)) or 'none'} for shape {shape} on {ranks} rank(s)",
            expected=f"numbers of parts that multiply to {ranks}, one for each of the first axes",
        )
    return Partition(shape, grid + (1,) * (len(shape) - len(grid)))


def parse_grid(text: str, shape: Shape, ranks: int) -> Shape:
    """Parse the option grid ("4", "2x3", "0x0") for an array of `shape` on `ranks` ranks.

    One number per leading axis; a 0 is replaced by a choice, as in MPI_Dims_create, that minimises the
    surface between blocks. Further axes stay whole.

    Raises UserError if the text does not parse, has more axes than the array, or if its product is not the
    number of ranks.
    """
    words = text.lower().split("x")
    if not all(map(is_length, words)):
        raise UserError(
            f"{option('grid')} does not parse",
            got=repr(text),
            expected="numbers joined by x, one per axis, 0 for 'choose'",
            hint=f"{option('grid', 4)}, {option('grid', '2x2')} or {option('grid', '0x0')}",
        )
    wanted = [int(word) for word in words]
    if len(wanted) > len(shape):
        raise UserError(
            f"{option('grid')} names more axes than the array has",
            got=f"{text} ({len(wanted)} axes)",
            expected=f"at most {len(shape)}: the array is {'x'.join(map(str, shape))}",
        )
    fixed = math.prod(n for n in wanted if n)
    free = [axis for axis, n in enumerate(wanted) if n == 0]
    if ranks % fixed or (not free and fixed != ranks):
        raise UserError(
            f"{option('grid')} does not use every rank exactly once",
            got=f"{text} on {ranks} rank(s)",
            expected=f"blocks that multiply to {ranks}",
            hint=option("grid", "x".join("0" for _ in wanted)),
        )
    choices = []
    for factors in factorizations(ranks // fixed, len(free)):
        grid = [*wanted, *[1] * (len(shape) - len(wanted))]
        for axis, factor in zip(free, factors, strict=True):
            grid[axis] = factor
        choices.append(tuple(grid))
    return min(choices, key=lambda grid: (_surface(shape, grid), grid[::-1]))


def grid_size(text: str) -> int | None:
    """Return the number of blocks of a grid without zeros; None for other texts."""
    words = text.lower().split("x")
    if not all(is_length(word) and int(word) for word in words):
        return None
    return math.prod(int(word) for word in words)


def check_blocks(text: str) -> None:
    """Raise UserError if a grid of chunks, which is independent of the ranks, has too many blocks."""
    blocks = grid_size(text) or 0
    if blocks > BLOCKS_MOST:
        raise UserError(
            f"{option('grid')} cuts the array into too many blocks",
            got=f"{text} ({blocks:,} blocks)",
            expected=f"at most {BLOCKS_MOST:,}",
        )


def factorizations(number: int, parts: int) -> Iterator[Shape]:
    """Yield all ways to write `number` as a product of so many factors, in order."""
    if parts == 0:
        if number == 1:
            yield ()
        return
    for factor in range(1, number + 1):
        if number % factor == 0:
            for rest in factorizations(number // factor, parts - 1):
                yield (factor, *rest)


def _surface(shape: Shape, grid: Shape) -> float:
    """Return the number of elements next to a cut, which a halo exchange moves.

    A cut of an axis with more parts than elements costs as much as the whole array, so that empty blocks
    are avoided where possible.
    """
    total = math.prod(shape)
    return sum((parts - 1) * total / max(length, 1) for parts, length in zip(grid, shape, strict=True))
