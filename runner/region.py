"""Boxes of an array's cells, and the aliases by which all rooms name arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Array = Any  # numpy.ndarray or cupy.ndarray: a protocol over both would promise more than it checks
HostArray = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Region:
    """A box of an array: start and stop per axis, in the whole array's indices."""

    start: Shape
    stop: Shape

    @cached_property
    def shape(self) -> Shape:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def slices_in(self, outer: Region) -> tuple[slice, ...]:
        """Return the slices of this box in an array that holds the cells of `outer`."""
        axes = zip(self.start, self.stop, outer.start, strict=True)
        return tuple(slice(start - origin, stop - origin) for start, stop, origin in axes)

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    def check(self, array: HostArray, dtype: np.dtype[Any]) -> None:
        """Raise ValueError, for a caller's mistake, unless an array has this shape and a dtype."""
        if (array.dtype, array.shape) != (dtype, self.shape):
            raise ValueError(f"{array.dtype} {array.shape} is not {dtype} {self.shape}, region {self}")

    def rows(self, first: int, last: int) -> Region:
        """Return rows first .. last - 1 of this region along axis 0, counted from its start."""
        begin = self.start[0]
        if begin + last == self.stop[0] and first == 0:
            return self
        return Region((begin + first, *self.start[1:]), (begin + last, *self.stop[1:]))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


@dataclass(frozen=True)
class Subgrid:
    """Where the cells of an array lie in a space of positions.

    Its first cell is at position 0. An array of n faces beside n - 1 cells, or n + 1, has every position; a
    coarse one every second or fourth. Positions that it does not have hold zeros.

    shape: of the array. every: per axis of space, the positions from one of its cells to the next; further
    axes are no axes of space. packed: whether the array has no other cells in memory than those `every` so
    many positions, rather than one at each position.
    """

    shape: Shape
    every: Shape
    packed: bool = False

    def in_space(self, space: Shape) -> Shape:
        """Return the shape of the array in memory; of a value, which has no positions, its own."""
        if not self.shape:
            return ()
        steps = self.every if self.packed else (1,) * len(space)
        cells = tuple(-(-n // step) for n, step in zip(space, steps, strict=True))
        return cells + self.shape[len(space) :]

    def in_memory(self, space: Shape) -> Subgrid | None:
        """Return where the cells lie in the array in memory; None if it has no others."""
        if not self.shape or self.fills(space):
            return None
        return Subgrid(self.shape, (1,) * len(self.every)) if self.packed else self

    def fills(self, space: Shape) -> bool:
        """Return whether all cells in memory are the array's own."""
        return self.shape == self.in_space(space)

    def spread(self, cells: Shape) -> Shape:
        """Return the positions of so many cells along each axis."""
        steps = (*self.every, *(1,) * len(cells))
        return tuple(length * step for length, step in zip(cells, steps, strict=False))

    def cells(self, region: Region) -> Region:
        """Return the array's cells among some positions."""
        start, stop = list(region.start), list(region.stop)
        for axis, (step, length) in enumerate(zip(self.every, self.shape, strict=False)):
            start[axis] = min(-(-region.start[axis] // step), length)
            stop[axis] = min(max(-(-region.stop[axis] // step), start[axis]), length)
        return Region(tuple(start), tuple(stop))

    def places(self, region: Region) -> tuple[slice, ...]:
        """Return where these cells are in an array of all these positions."""
        found, cells = [], self.cells(region)
        for axis, (first, start, stop) in enumerate(zip(region.start, cells.start, cells.stop, strict=True)):
            step = self.every[axis] if axis < len(self.every) else 1
            low = step * start - first
            high = low + step * (stop - start - 1) + 1
            found.append(slice(low, high, step) if stop > start else slice(0, 0, 1))
        return tuple(found)


@dataclass(frozen=True)
class Sizes:
    """Where the cells of a job's arrays of several sizes lie in one space.

    In memory an array has a cell at every position, so that all are cut alike, and a neighbour is at the same
    distance in each; or it is packed, where the stages of a program compute it as a coarse grid. Files have
    an array's own cells alone.

    space: lengths of the axes that are split. inputs, outputs: of each array.
    """

    space: Shape
    inputs: tuple[Subgrid, ...]
    outputs: tuple[Subgrid, ...]


def own_cells(array: Array, subgrid: Subgrid | None) -> Array:
    """Return the cells of a subgrid in an array with a cell at each position; a view. None: all."""
    return array if subgrid is None else array[subgrid.places(Region((0,) * array.ndim, array.shape))]


def overlap(one: Region, other: Region) -> Region:
    """Return what two boxes have in common; an empty box where that is nothing."""
    start = tuple(map(max, one.start, other.start))
    return Region(start, tuple(map(max, start, map(min, one.stop, other.stop))))


def overlapping_chunks(region: Region, chunks: Shape) -> Iterator[Shape]:
    """Yield the chunks that a non-empty region overlaps, by their places in the grid of chunks."""
    spans = zip(region.start, region.stop, chunks, strict=True)
    return itertools.product(*(range(start // n, -(-stop // n)) for start, stop, n in spans))


def chunk_region(place: Shape, chunks: Shape, shape: Shape) -> Region:
    """Return the cells of the chunk at a place in the grid of chunks of an array of `shape`."""
    start = tuple(i * n for i, n in zip(place, chunks, strict=True))
    stop = tuple(min(a + n, length) for a, n, length in zip(start, chunks, shape, strict=True))
    return Region(start, stop)


def packed(array: Array) -> Array:
    """Return the array itself if it is C-contiguous, else a copy that is."""
    return array if array.flags.c_contiguous else array.copy(order="C")


def address_of(array: Array, index: Sequence[int] = ()) -> int:
    """Return the address of a cell, in host or device memory: by default, of the first one."""
    pointer = getattr(array.data, "ptr", None)
    start = int(array.ctypes.data if pointer is None else pointer)
    return start + sum(int(at * stride) for at, stride in zip(index, array.strides, strict=False))


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a number's real part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
