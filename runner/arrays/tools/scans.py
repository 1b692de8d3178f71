"""Cumulative sums and products along an axis, also one that is split: the same bits on any number of ranks.

An axis is cut into chunks of `CHUNK` cells, counted from its first cell. NumPy accumulates each chunk, then
the chunks' totals in the same way, and what comes before a chunk is added to its cells. No rank has part of a
chunk, so the shape alone determines the order. A sum of n floats has about CHUNK * log(n) / log(CHUNK)
roundings instead of NumPy's n, and agrees with NumPy's within rounding. Sums of integers are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import in_balance, in_order, like, normal_axis, refuse, taken
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, packed
from meshrun.runner.world.world import World

CHUNK = 1024  # cells
COMBINE = {"cumsum": "add", "cumprod": "multiply"}


def cumsum(
    a: DistributedArray, axis: int | None = None, dtype: npt.DTypeLike | None = None
) -> DistributedArray:
    """Return the cumulative sum along an axis. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of numbers or bool.
    axis : int, optional
        Along which to add; it may be split. None: all cells in C order, as an array of one axis.
    dtype : dtype, optional
        Of the sums. None: NumPy's, which is int64 for shorter integers.

    Returns
    -------
    DistributedArray
        With the partition and halo of `a`, the halo stale; an array of one axis is split evenly. Integers
        have NumPy's bits. Floats have the same bits on any number of ranks, and agree with NumPy's within
        rounding; float16 is added in float32 and rounded once. A partial sum overflows where that of 1024
        cells does.

    Raises
    ------
    UserError
        On every rank, if the array has no such axis, or NumPy has no sum of this dtype.

    Examples
    --------
    >>> total_so_far = meshrun.cumsum(meshrun.load(world, "u.npy"), axis=0)
    """
    return _scanned("cumsum", a, axis, dtype)


def cumprod(
    a: DistributedArray, axis: int | None = None, dtype: npt.DTypeLike | None = None
) -> DistributedArray:
    """Return the cumulative product along an axis, as `cumsum` does the sum. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of numbers or bool.
    axis : int, optional
        Along which to multiply; it may be split. None: all cells in C order, as an array of one axis.
    dtype : dtype, optional
        Of the products. None: NumPy's.

    Returns
    -------
    DistributedArray
        As of `cumsum`.

    Raises
    ------
    UserError
        On every rank, if the array has no such axis, or NumPy has no product of this dtype.

    Examples
    --------
    >>> growth = meshrun.cumprod(meshrun.load(world, "rates.npy"))
    """
    return _scanned("cumprod", a, axis, dtype)


def _scanned(
    function: str, a: DistributedArray, axis: int | None, dtype: npt.DTypeLike | None
) -> DistributedArray:
    a = taken(function, a)
    try:
        result = getattr(np, function)(np.ones(1, a.dtype), dtype=dtype).dtype
    except (TypeError, ValueError) as failure:
        raise refuse(function, failure) from failure
    exact = np.dtype(np.float32) if result == np.float16 else result
    if axis is None:
        cells, partition = in_order(a)
        scanned = _scan(a.world, partition, 0, cells, exact, function)
        return in_balance(a.world, scanned.astype(result, copy=False), partition)
    axis = normal_axis(function, axis, len(a.shape))
    scanned = _scan(a.world, a.partition, axis, a.interior, exact, function)
    return like(a, scanned.astype(result, copy=False))


def _scan(
    world: World, partition: Partition, axis: int, cells: Array, dtype: np.dtype[Any], function: str
) -> Array:
    """Return this rank's scan along an axis of an array. cells: this rank's, split by `partition`."""
    aligned = _with_whole_chunks(partition, axis)
    moved = cells
    if aligned != partition:
        moved = world.redistribute(packed(cells), partition, aligned)
    place = aligned.coordinates(world.rank)
    bounds = [aligned.bounds(axis, part) for part in range(aligned.grid[axis])]
    start = bounds[place[axis]][0]

    # Each chunk by itself, and the totals of the chunks of all ranks along the axis.
    scanned, totals = _chunks(world.xp, moved.astype(dtype, copy=False), axis, function)
    if aligned.grid[axis] > 1:
        totals = _of_all(world, aligned, axis, totals, bounds)
        first = start // CHUNK
    else:
        first = 0

    # What comes before each own chunk.
    if totals.shape[axis] > 1 and scanned.shape[axis]:
        sums = _scan_of_own(world.xp, totals, axis, function)
        _combine_earlier(world.xp, scanned, sums, axis, first, function)
    return scanned if aligned == partition else world.redistribute(scanned, aligned, partition)


def _with_whole_chunks(partition: Partition, axis: int) -> Partition:
    """Return a partition like another, whose cuts along an axis are between chunks."""
    if partition.grid[axis] == 1:
        return partition
    starts = []
    for other in range(len(partition.shape)):
        firsts = [partition.bounds(other, part)[0] for part in range(partition.grid[other])]
        length = partition.shape[other]
        if other == axis:
            firsts = [min(-(-first // CHUNK) * CHUNK, length) for first in firsts]
        starts.append(tuple(firsts))
    aligned = Partition(partition.shape, partition.grid, starts=tuple(starts))
    same = all(aligned[rank] == partition[rank] for rank in range(partition.size))
    return partition if same else aligned


def _along(axis: int, *index: Any) -> Any:
    """Return an index that has all cells of the axes before `axis`, and `index` from there on."""
    return (slice(None),) * axis + index


def _chunks(xp: Any, cells: Array, axis: int, function: str) -> tuple[Array, Array]:
    """Return the scan of each chunk by itself, as a new array, and the chunks' totals."""
    before, length, after = cells.shape[:axis], cells.shape[axis], cells.shape[axis + 1 :]
    whole, rest = divmod(length, CHUNK)
    scan, scanned = getattr(xp, function), xp.empty(cells.shape, cells.dtype)
    end = whole * CHUNK
    for part, shape in (
        (slice(0, end), (*before, whole, CHUNK, *after)),
        (slice(end, length), (*before, 1, rest, *after)),
    ):
        if 0 not in shape:
            chunks = packed(cells[_along(axis, part)])
            result = scan(chunks.reshape(shape), axis=axis + 1, dtype=cells.dtype)
            scanned[_along(axis, part)] = result.reshape(chunks.shape)
    totals = scanned[_along(axis, slice(CHUNK - 1, end, CHUNK))]
    if rest:
        totals = xp.concatenate([totals, scanned[_along(axis, slice(length - 1, length))]], axis=axis)
    return scanned, totals


def _scan_of_own(xp: Any, cells: Array, axis: int, function: str) -> Array:
    """Return the scan along an axis of an array that is on this rank."""
    scanned, totals = _chunks(xp, cells, axis, function)
    if totals.shape[axis] > 1:
        _combine_earlier(xp, scanned, _scan_of_own(xp, totals, axis, function), axis, 0, function)
    return scanned


def _combine_earlier(xp: Any, scanned: Array, sums: Array, axis: int, first: int, function: str) -> None:
    """Combine each chunk's scan with the sum of the chunks before it, in place.

    sums: the scan of the totals of all chunks. first: number of the first own chunk.
    """
    combine, length = getattr(xp, COMBINE[function]), scanned.shape[axis]
    # Nothing comes before the first chunk.
    skipped = 0 if first else min(CHUNK, length)
    whole, rest = divmod(length - skipped, CHUNK)
    earlier = first - 1 if first else 0  # the number of the chunk before the first one that changes
    if whole:
        part = scanned[_along(axis, slice(skipped, skipped + whole * CHUNK))]
        chunks = part.reshape(*part.shape[:axis], whole, CHUNK, *part.shape[axis + 1 :])
        combine(sums[_along(axis, slice(earlier, earlier + whole), None)], chunks, out=chunks)
        if axis:  # the chunks are a copy
            part[...] = chunks.reshape(part.shape)
    if rest:
        part = scanned[_along(axis, slice(length - rest, length))]
        combine(sums[_along(axis, slice(earlier + whole, earlier + whole + 1))], part, out=part)


def _of_all(
    world: World, partition: Partition, axis: int, totals: Array, bounds: list[tuple[int, int]]
) -> Array:
    """Return the totals of all chunks along this rank's line of ranks. Collective."""
    place = partition.coordinates(world.rank)
    line = [partition.rank((*place[:axis], part, *place[axis + 1 :])) for part in range(len(bounds))]
    shapes = [
        (*totals.shape[:axis], -(-(stop - start) // CHUNK), *totals.shape[axis + 1 :])
        for start, stop in bounds
    ]
    gathered = [world.backend.empty(shape, totals.dtype) for shape in shapes]
    world.exchange([(rank, totals) for rank in line], [*zip(line, gathered, strict=True)])
    return world.xp.concatenate(gathered, axis=axis)
