"""The product of two matrices that are split by rows: the same bits on any number of ranks.

Rows are computed in tiles, and products are added in chunks of the inner axis, both of which depend on the
shapes alone. A rank that has some rows of a tile computes the tile with zeros for the others. Each chunk of
the right matrix is sent to all ranks when it is needed: none has more of it than that.
"""

from __future__ import annotations

import numpy as np

from meshrun.runner.plan.grid import bounds, split_along
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.world.group import Group, move

TILE, CHUNK = 256, 512  # rows of a tile, cells of the inner axis in a chunk


def multiply(group: Group, left: Array, right: Array, shape: Shape) -> Array:
    """Return this rank's rows of the product. Collective.

    left, right: this rank's rows of both, of one dtype. shape: rows, inner length and columns of the product.
    """
    rows, inner, columns = shape
    backend, xp, dtype = group.backend, group.xp, np.dtype(left.dtype)
    first, last = bounds(rows, group.size, group.rank)
    tiles = range(first // TILE, -(-last // TILE)) if last > first else range(0)
    sums = [backend.empty((min(TILE, rows), columns), dtype) for _ in tiles]
    for one in sums:
        one.fill(0)
    before = split_along((inner, columns), 0, group.size)
    for start in range(0, inner, CHUNK):
        stop = min(start + CHUNK, inner)
        box = Region((start, 0), (stop, columns))
        chunk = backend.empty((stop - start, columns), dtype)
        move(group, RedistributionPlan(before, [box] * group.size, group.size), right, chunk)
        for tile, total in zip(tiles, sums, strict=True):
            low, high = max(tile * TILE, first), min(tile * TILE + TILE, last)
            own = backend.empty((len(total), stop - start), dtype)
            own.fill(0)
            own[low - tile * TILE : high - tile * TILE] = left[low - first : high - first, start:stop]
            xp.add(total, xp.matmul(own, chunk), out=total)
    result = backend.empty((last - first, columns), dtype)
    for tile, total in zip(tiles, sums, strict=True):
        low, high = max(tile * TILE, first), min(tile * TILE + TILE, last)
        result[low - first : high - first] = total[low - tile * TILE : high - tile * TILE]
    return result


def transposed_rows(group: Group, block: Array, shape: Shape) -> Array:
    """Return this rank's rows of the transpose of a matrix. Collective. block: its rows of the matrix."""
    return group.xp.ascontiguousarray(group.redistribute(block, 0, 1, shape).T)
