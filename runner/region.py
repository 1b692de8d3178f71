"""Boxes of an array's cells, and the aliases by which all rooms name arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
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

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def rows(self, first: int, last: int) -> Region:
        """Return rows first .. last - 1 of this region along axis 0, counted from its start."""
        begin = self.start[0]
        return Region((begin + first, *self.start[1:]), (begin + last, *self.stop[1:]))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


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
