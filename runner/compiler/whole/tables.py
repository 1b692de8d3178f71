"""Tables: arrays of NumPy's among traced ones, each of whose axes is an axis of space, or will be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshrun.runner.region import HostArray, Shape


@dataclass(frozen=True)
class Line:
    """How a line meets an axis.

    axis: of space; below 0: another line. Element number `first` + `step` * j is at place
    `there` + `step_there` * j. length: the number of elements.
    """

    axis: int
    first: int
    step: int
    there: int
    step_there: int
    length: int

    @property
    def further(self) -> int:
        """The number of the element at place 0, where both have the same step."""
        return self.first - self.there


def root_of(part: HostArray) -> tuple[HostArray, list[int]]:
    """Return the array of which a part is a slice, and where the part begins; the part itself for others.

    Slices of one array, such as those of neighbours, are then one table.
    """
    root = part.base
    alone = part, [0] * part.ndim
    if not isinstance(root, np.ndarray) or root.ndim != part.ndim or root.dtype != part.dtype:
        return alone
    if root.strides != part.strides or min(root.strides, default=1) <= 0:
        return alone
    left = part.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    starts = [0] * part.ndim
    for axis in sorted(range(part.ndim), key=lambda number: -root.strides[number]):
        starts[axis], left = divmod(left, root.strides[axis])
    inside = (start + n <= most for start, n, most in zip(starts, part.shape, root.shape, strict=True))
    return (root, starts) if left == 0 and all(inside) else alone


def spread(root: HostArray, axis: int, start: int, line: Line, length: int) -> HostArray:
    """Return a table whose elements along an axis are at the places of space that they have.

    start: element of the table with which the line begins. length: of space.
    """
    shape: Shape = (*root.shape[:axis], length, *root.shape[axis + 1 :])
    found, elements = np.zeros(shape, root.dtype), np.arange(line.length)
    taken = np.take(root, start + line.first + line.step * elements, axis)
    np.moveaxis(found, axis, 0)[line.there + line.step_there * elements] = np.moveaxis(taken, axis, 0)
    return found
