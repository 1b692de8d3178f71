"""Bodies within a surface of segments (over two axes) or triangles (over three).

One routine finds where all lattice lines of one direction cross the surface: shear the surface along the
direction, so that the lines become points of a lattice with one axis less, and rasterise it there. Lines
along the flow tell which cells are inside, lines along the other directions where links cross the surface.

Whether a line crosses a triangle is decided by the edges alone, and for both triangles of an edge by the same
numbers: rounding can neither lose a crossing nor count one twice, and every line leaves a closed surface as
often as it enters it. So no ray has to be repeated at another place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshrun.jobs.airflow.shapes.bodies import NEARLY, Body, box_around
from meshrun.runner.region import HostArray, Region

LINES = 512  # across a body, that tell its frontal area to 1 in 1000
PAIRS = 2**21  # of an element and a line that are looked at in one go


@dataclass(frozen=True)
class Surface(Body):
    """Everything that the surface winds around is solid; overlapping parts are one body.

    elements: (n, k, k) float64, the k corners of segments (k = 2) or triangles (k = 3) with their last k
    coordinates. A segment is a prism along the first axis of a domain of three axes. oriented: all elements
    have their outer side on the same hand; otherwise, what is behind an odd number of elements is solid.
    """

    elements: HostArray
    oriented: bool = True

    @cached_property
    def box(self) -> Region:
        return box_around(self.elements.min((0, 1)), self.elements.max((0, 1)), self.shape)

    def _solid(self, region: Region) -> HostArray:
        axes = self.elements.shape[-1]
        start, stop = region.start[-axes:], region.stop[-axes:]
        along = np.array((0,) * (axes - 1) + (1,))
        length = stop[-1] - start[-1]
        winding = np.zeros((*np.subtract(stop, start)[:-1], length + 1), np.int32)
        for lines, position, sign in crossings(
            self.elements, along, start[:-1], tuple(n - 1 for n in stop[:-1])
        ):
            column = np.clip(np.ceil(position).astype(np.int64) - start[-1], 0, length)
            np.add.at(winding, (*(lines - start[:-1]).T, column), sign)
        np.cumsum(winding, axis=-1, out=winding)
        found = winding[..., :-1] != 0 if self.oriented else winding[..., :-1] % 2 != 0
        return np.broadcast_to(found, region.shape)

    def intersect(self, points: HostArray, directions: HostArray) -> HostArray:
        axes = self.elements.shape[-1]
        points, directions = points[:, -axes:].astype(np.int64), directions[:, -axes:].astype(np.int64)
        found = np.full(len(points), np.nan)
        different, which = np.unique(directions, axis=0, return_inverse=True)
        for number, direction in enumerate(different):
            mine = np.flatnonzero(which.reshape(-1) == number)
            if direction.any():
                found[mine] = _first_crossings(self.elements, points[mine], direction)
        return found


def _first_crossings(elements: HostArray, points: HostArray, direction: HostArray) -> HostArray:
    """For each point, the fraction of the step `direction` at which it first meets the surface; NaN: it does
    not."""
    axis = int(np.flatnonzero(direction)[-1])
    forward = int(direction[axis])
    slope = direction // forward
    of_points = np.delete(points - points[:, axis, None] * slope, axis, 1)
    low, high = of_points.min(0), of_points.max(0)
    first, last = points[:, axis].min() - 1, points[:, axis].max() + 1
    shape = (*(high - low + 1).tolist(), int(last - first + 1))
    keys, fractions = [np.zeros(0, np.int64)], [np.zeros(0)]
    for lines, position, _ in crossings(elements, direction, tuple(low.tolist()), tuple(high.tolist())):
        # From the last lattice point before the crossing; and from the next one, if that is where it is.
        before = np.ceil(position * forward - NEARLY) - 1
        fraction = position * forward - before
        for cell, part, valid in (
            (before, fraction, np.full(len(before), True)),
            (before + 1, np.zeros(len(before)), fraction > 1 - NEARLY),
        ):
            at = (cell * forward).astype(np.int64)
            kept = valid & (at >= first) & (at <= last)
            index = (*(lines[kept] - low).T, at[kept] - first)
            keys.append(np.ravel_multi_index(index, shape))
            fractions.append(np.clip(part[kept], 0, 1))
    key, fraction = np.concatenate(keys), np.concatenate(fractions)
    order = np.lexsort((fraction, key))
    key, fraction = key[order], fraction[order]
    wanted = np.ravel_multi_index((*(of_points - low).T, points[:, axis] - first), shape)
    place = np.searchsorted(key, wanted)
    there = place < len(key)
    there[there] = key[place[there]] == wanted[there]
    found = np.full(len(points), np.nan)
    found[there] = fraction[place[there]]
    return found


def crossings(
    elements: HostArray, direction: HostArray, low: tuple[int, ...], high: tuple[int, ...]
) -> Iterator[tuple[HostArray, HostArray, HostArray]]:
    """Find where lattice lines along `direction` cross the elements.

    The last axis that `direction` goes along, counted from its place on the line, is `position`; a line is
    named by the other coordinates of its point at position 0, whole numbers. low, high: first and last line
    per axis. Yields lines (m, k - 1), position (m,) and sign (m,): 1 where the line crosses the surface to
    one side, -1 where to the other.
    """
    axis = int(np.flatnonzero(direction)[-1])
    along = elements[..., axis]
    slope = direction // direction[axis]
    across = np.delete(elements - along[..., None] * slope, axis, -1)
    begin = np.clip(np.ceil(across.min(1)), low, np.add(high, 1)).astype(np.int64)
    end = np.clip(np.floor(across.max(1)), np.subtract(low, 1), high).astype(np.int64)
    lengths = np.maximum(end - begin + 1, 0)
    # Rows of lines, each with its element: an element may be in the way of more lines than fit into memory.
    rows_of = lengths[:, 0] * lengths.all(1)
    element = np.repeat(np.arange(len(elements)), rows_of)
    row = begin[element, 0] + _count_up(rows_of)
    per_row = lengths[element, 1] if lengths.shape[1] == 2 else np.ones_like(element)
    ends = np.cumsum(per_row)
    cuts = np.searchsorted(ends, np.arange(PAIRS, ends[-1] if len(ends) else 0, PAIRS), side="right")
    for part in np.split(np.arange(len(element)), cuts):
        which = np.repeat(element[part], per_row[part])
        coordinates = [np.repeat(row[part], per_row[part])]
        if lengths.shape[1] == 2:
            coordinates.append(begin[which, 1] + _count_up(per_row[part]))
        lines = np.stack(coordinates, 1)
        sign, position = _hits(across[which], along[which], lines)
        hit = sign != 0
        yield lines[hit], position[hit], sign[hit]


def _count_up(lengths: HostArray) -> HostArray:
    """Return 0, 1, ... length - 1 for each length, one after the other."""
    ends = np.cumsum(lengths)
    found: HostArray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return found


def _hits(across: HostArray, along: HostArray, lines: HostArray) -> tuple[HostArray, HostArray]:
    """Sign of the crossing of each pair (0: none), and its position along the line where there is one."""
    p = lines[:, 0]
    if across.shape[1] == 2:
        a, b = across[:, 0, 0], across[:, 1, 0]
        sign = (a <= p).astype(np.int32) - (b <= p)
        with np.errstate(invalid="ignore", divide="ignore"):
            position = along[:, 0] + (p - a) / (b - a) * (along[:, 1] - along[:, 0])
    else:
        sign = np.zeros(len(lines), np.int32)
        weights = np.zeros((len(lines), 3))
        for at in range(3):
            # An edge from the point of smaller first coordinate to that of larger: the same for both its
            # triangles.
            one, other = across[:, at], across[:, (at + 1) % 3]
            up = (one[:, 0] <= p).astype(np.int32) - (other[:, 0] <= p)
            lower, upper = (
                np.where(up[:, None] > 0, first, second) for first, second in ((one, other), (other, one))
            )
            side = _area(lower, upper, lines)
            sign += np.where(side >= 0, up, 0)
            weights[:, (at + 2) % 3] = np.where(up > 0, side, -side)
        straight = _area(across[:, 0], across[:, 1], across[:, 2])
        weights = np.abs(weights)  # of a point inside, all areas have one sign
        with np.errstate(invalid="ignore", divide="ignore"):
            position = (weights * along).sum(1) / weights.sum(1)
        position = np.where((straight == 0) | np.isnan(position), along.mean(1), position)
    return sign, np.clip(position, along.min(1), along.max(1))


def _area(a: HostArray, b: HostArray, p: HostArray) -> HostArray:
    """Twice the area of the triangles a, b, p in the plane, with the sign of their turn."""
    found: HostArray = (b[:, 0] - a[:, 0]) * (p[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (p[:, 0] - a[:, 0])
    return found


def frontal_area(triangles: HostArray) -> float:
    """Return the area that closed triangles cover as seen along the flow, in cells squared.

    triangles: (n, 3, 3) corners, (z, y, x) in cells. Lines along the flow, closer together than cells, are
    counted.

    >>> corners = np.array([[0, 0, 0], [0, 4, 0], [2, 0, 0], [0, 0, 1]], float)
    >>> frontal_area(corners[[[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]])
    4.0
    """
    low, high = triangles.min((0, 1)), triangles.max((0, 1))
    scale = LINES / float((high - low)[:2].max())
    placed = (triangles - low) * (scale, scale, 1) + (0.5, 0.5, 0)
    last = tuple(int(length) for length in np.ceil((high - low)[:2] * scale))
    seen = np.zeros((last[0] + 2, last[1] + 2), bool)
    for lines, _, _ in crossings(placed, np.array((0, 0, 1)), (0, 0), (last[0] + 1, last[1] + 1)):
        seen[tuple(lines.T)] = True
    return float(np.count_nonzero(seen)) / scale**2


def volume(triangles: HostArray) -> float:
    """Return the volume within closed, oriented triangles (n, 3, 3), by the divergence theorem."""
    a, b, c = np.moveaxis(triangles, 1, 0)
    return math.fabs(float((a * np.cross(b, c)).sum() / 6))
