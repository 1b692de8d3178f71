"""Bodies in the flow: which cells are solid, and where exactly the surface lies.

Coordinates are indices of cells in the order of the array's axes: (row, column), or (depth, row, column). The
centre of a cell has whole coordinates. Rows count downwards, as in a picture: row 0 is at the top of every
array, picture and film, and nothing is flipped on the way. The flow goes along the last axis.

A body is computed for any box of cells without the whole domain, so that each rank makes its own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from meshrun.runner.region import HostArray, Region, Shape, overlap

CELLS = 2**24  # of a slab that is looked at in one go
NEARLY = 1e-9  # cells by which two computations of the same place may differ


@dataclass(frozen=True)
class Body:
    """Nothing in the flow, and what all bodies have in common.

    name: for messages. shape: cells of the domain. length: characteristic length in cells, of Reynolds
    numbers. reference: what force coefficients refer to, in cells for a domain of two axes, in cells squared
    for three.
    """

    name: str
    shape: Shape
    length: float
    reference: float

    @cached_property
    def box(self) -> Region:
        """A box, within the domain, that holds all solid cells."""
        return Region((0,) * len(self.shape), (0,) * len(self.shape))

    def solid(self, region: Region) -> HostArray:
        """Whether the cells of `region` are solid: bool.

        A cell beyond the domain is that at the opposite end, as steps with the boundary "wrap" see it.
        """
        found = np.zeros(region.shape, bool)
        for shift in product(*map(_turns, region.start, region.stop, self.shape)):
            moved = Region(*(tuple(np.subtract(at, shift).tolist()) for at in (region.start, region.stop)))
            for slab in slabs(overlap(moved, self.box)):
                inside = (np.subtract(at, moved.start).tolist() for at in (slab.start, slab.stop))
                found[tuple(map(slice, *inside))] = self._solid(slab)
        return found

    def _solid(self, region: Region) -> HostArray:
        """`solid` of a box within the domain."""
        return np.zeros(region.shape, bool)

    def intersect(self, points: HostArray, directions: HostArray) -> HostArray:
        """Return where links from fluid to solid cells cross the surface.

        points: (n, axes) cells of the fluid. directions: (n, axes), each to a neighbour that is solid.
        Returns (n,) float64: the distance to the surface as a fraction of the link, in [0, 1]; NaN where the
        surface is not known more exactly than by its cells.
        """
        return np.full(len(points), np.nan)


def _turns(start: int, stop: int, length: int) -> list[int]:
    """Return the multiples of `length` by which a range lies beyond 0 .. length - 1, or not."""
    return [length * turn for turn in range(start // length, -(-stop // length))]


def slabs(region: Region) -> list[Region]:
    """Cut a box along its first axis into parts of about CELLS cells; none of an empty box."""
    count, others = region.shape[0], math.prod(region.shape[1:])
    rows = max(1, CELLS // max(1, others))
    return [region.rows(first, min(first + rows, count)) for first in range(0, count if others else 0, rows)]


def box_around(low: HostArray, high: HostArray, shape: Shape) -> Region:
    """Return the box of cells between two corners in the last axes, within the domain; all of its other
    axes."""
    others = len(shape) - len(low)
    start = np.clip(np.ceil(low - NEARLY), 0, shape[others:]).astype(int)
    stop = np.clip(np.floor(high + NEARLY) + 1, start, shape[others:]).astype(int)
    return Region((0,) * others + tuple(start.tolist()), shape[:others] + tuple(stop.tolist()))


@dataclass(frozen=True)
class Round(Body):
    """A sphere or, where `centre` has fewer coordinates than the domain has axes, a cylinder along the first
    axis.

    A cell whose centre is on the surface is solid.
    """

    centre: tuple[float, ...]
    radius: float

    @cached_property
    def box(self) -> Region:
        centre = np.array(self.centre)
        return box_around(centre - self.radius, centre + self.radius, self.shape)

    def _solid(self, region: Region) -> HostArray:
        axes = len(self.centre)
        places = np.ogrid[region.slices[-axes:]]
        square = sum((at - middle) ** 2 for at, middle in zip(places, self.centre, strict=True))
        found: HostArray = np.broadcast_to(square <= self.radius**2, region.shape)
        return found

    def intersect(self, points: HostArray, directions: HostArray) -> HostArray:
        axes = len(self.centre)
        from_centre = points[:, -axes:] - np.array(self.centre)
        along = directions[:, -axes:].astype(float)
        a, b = (along**2).sum(1), (from_centre * along).sum(1)
        c = (from_centre**2).sum(1) - self.radius**2
        with np.errstate(invalid="ignore", divide="ignore"):
            found = c / (-b + np.sqrt(b * b - a * c))  # the smaller root, without cancellation
        return _fractions(found)


def _fractions(found: HostArray) -> HostArray:
    """Fractions of links as they should be; NaN for those that are not on the link."""
    kept = (found >= -NEARLY) & (found <= 1 + NEARLY)
    return np.where(kept, np.clip(found, 0, 1), np.nan)


@dataclass(frozen=True)
class CellBody(Body):
    """A body that is known by its cells only: a picture, or an array in a file.

    read: returns whether the cells of a region within the domain are solid. extent: a box that holds all
    solid cells.
    """

    read: Callable[[Region], HostArray]
    extent: Region

    @cached_property
    def box(self) -> Region:
        return self.extent

    def _solid(self, region: Region) -> HostArray:
        return self.read(region)


@dataclass(frozen=True)
class ShadedBody(CellBody):
    """A body drawn with smooth edges: its surface is where the brightness is one half.

    light: brightness of each cell, float32 of the shape of the domain; solid cells are below one half.
    """

    light: HostArray

    def intersect(self, points: HostArray, directions: HostArray) -> HostArray:
        ends = points + directions
        fluid, solid = (self.light[tuple(cells.T)].astype(float) for cells in (points, ends % self.shape))
        return _fractions((fluid - 0.5) / (fluid - solid))


@dataclass(frozen=True)
class Silhouette:
    """What a body looks like along the flow. box: around its solid cells. frontal: number of lines along the
    flow that it stands in. lines: which ones, bool, of the shape of the domain without the last axis."""

    box: Region
    frontal: int
    lines: HostArray

    @property
    def across(self) -> int:
        """Cells from one side to the other, across the flow: the largest such extent."""
        return max(self.box.shape[:-1])


def silhouette(body: Body) -> Silhouette:
    """Look at all solid cells of a body, in slabs."""
    lines = np.zeros(body.shape[:-1], bool)
    columns = np.zeros(body.shape[-1], bool)
    for slab in slabs(body.box):
        found = body.solid(slab)
        lines[slab.slices[:-1]] |= found.any(-1)
        columns[slab.slices[-1]] |= found.any(tuple(range(found.ndim - 1)))
    seen = [
        lines.any(tuple(other for other in range(lines.ndim) if other != axis)) for axis in range(lines.ndim)
    ]
    ends = [np.flatnonzero(one) for one in (*seen, columns)]
    start = tuple(int(one[0]) if len(one) else 0 for one in ends)
    stop = tuple(int(one[-1]) + 1 if len(one) else 0 for one in ends)
    return Silhouette(Region(start, stop), int(np.count_nonzero(lines)), lines)


def of_cells(
    name: str, shape: Shape, read: Callable[[Region], HostArray], length: float | None = None
) -> CellBody:
    """Return a body of cells with its extent across the flow as the length, and its frontal extent or
    area."""
    whole = Region((0,) * len(shape), shape)
    body = CellBody(name, shape, 1.0, 1.0, read, whole)
    seen = silhouette(body)
    return replace(body, extent=seen.box, length=length or float(seen.across), reference=float(seen.frontal))
