"""Fourier transforms along the one axis of an array that is split along it.

The n cells are a matrix of n1 rows and n2 columns, n1 the largest divisor of n up to its root. With j = n2 j1
+ j2 and k = k1 + n1 k2, the transform is one along the columns, the factors exp(-2 pi i j2 k1 / n), and one
along the rows (Bailey, "FFTs in external or hierarchical memory", 1990). The matrix depends on n alone: so do
the bits. Where n is a prime, one rank has all cells.
"""

from __future__ import annotations

import math

import numpy as np

from meshrun.runner.plan.grid import bounds
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array, Region
from meshrun.runner.transforms.fourier import Local, result_type
from meshrun.runner.transforms.plan import Transform
from meshrun.runner.world.group import Group, move

LINE_EXCHANGES = 5


def transform_line(group: Group, local: Local, block: Array, cells: int, length: int) -> Array:
    """Return this rank's cells of a transform. Collective.

    block: this rank's cells of the operand, in the dtype that is transformed. cells: of the whole operand.
    length: of the result, if `local` is a transform of real numbers.
    """
    xp, size, rank = group.xp, group.size, group.rank
    dtype = np.dtype(block.dtype)
    kind = result_type(dtype, "") if dtype.kind == "f" else dtype
    half = local.real == "inverse"
    whole = length if half else cells
    rows = max(one for one in range(1, math.isqrt(whole) + 1) if whole % one == 0)
    columns = whole // rows
    shape = rows, columns

    # Of half a spectrum, the other half adds the same real parts.
    block = block.astype(kind)
    if half:
        first, last = bounds(cells, size, rank)
        place = xp.arange(first, last)
        block[(place > 0) & (2 * place != whole)] *= 2

    # Cells that follow each other, as rows of the matrix; then columns.
    matrix = group.backend.empty((_rows(rows, size, rank) * columns,), kind)
    matrix.fill(0)
    _move(
        group,
        [bounds(cells, size, one) for one in range(size)],
        _intervals(rows, columns, size),
        block,
        matrix,
    )
    matrix = group.redistribute(matrix.reshape(-1, columns), 0, 1, shape)

    along = Local(local.module, local.inverse, "", local.norm, 0, local.workers)
    matrix = along(matrix, Transform((0,), shape))
    first, last = bounds(columns, size, rank)
    turns = np.outer(np.arange(rows), np.arange(first, last)) % whole * (2j * np.pi / whole)
    matrix = matrix * xp.asarray(np.exp(turns if local.inverse else -turns).astype(kind))
    matrix = along(group.redistribute(matrix, 1, 0, shape), Transform((1,), shape))
    matrix = group.redistribute(matrix, 0, 1, shape)

    # Columns lie behind each other in the result.
    cells = length if local.real else whole
    result = group.backend.empty((_rows(cells, size, rank),), kind)
    line = xp.ascontiguousarray(matrix.T).reshape(-1)
    _move(
        group,
        _intervals(columns, rows, size),
        [bounds(cells, size, one) for one in range(size)],
        line,
        result,
    )
    return xp.ascontiguousarray(result.real) if half else result


def _rows(rows: int, size: int, rank: int) -> int:
    first, last = bounds(rows, size, rank)
    return last - first


def _intervals(rows: int, columns: int, size: int) -> list[tuple[int, int]]:
    """Return the first cell of each rank's rows, and the one after the last."""
    return [
        (first * columns, last * columns) for first, last in (bounds(rows, size, one) for one in range(size))
    ]


def _move(
    group: Group, before: list[tuple[int, int]], after: list[tuple[int, int]], block: Array, out: Array
) -> None:
    """Fill the cells of `out` that are cells of some block. Collective."""
    sent, received = ([Region((first,), (last,)) for first, last in cuts] for cuts in (before, after))
    move(group, RedistributionPlan(sent, received, group.size), block, out)
