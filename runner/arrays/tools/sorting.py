"""Sorting of arrays that are split over the ranks.

Each rank sorts its cells. The ranks find where to cut the sorted runs, and each part of a run moves once, to
the rank that has it in the result. That rank merges the runs that have arrived, two at a time; a CPU sorts
them again, which is faster there.

What bandwidth allows, for a radix sort of n keys of b bytes on p GPUs, each with the memory rate M (read plus
written) and the link rate L (sent): each digit of 8 bits reads and writes the keys, and one more pass reads
them to count the digits. So a sort takes n/p * b * (2 b + 1) / M. Each rank then sends
n/p * b * (p - 1)/p bytes at the rate L, and each of log2(p) merges takes n/p * 2 b / M. For 2^30 float32 on
two GPUs with M = 4 TB/s and L = 400 GB/s that is 4.8 + 2.7 + 1.1 = 8.6 ms, or 125 Gkeys/s. One GPU takes
9.7 ms.

The cuts are exact. The cells before a cut are the first ones in the order of key, rank and position there, so
equal keys are divided between ranks, and each rank gets as many cells as the result's partition gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import (
    in_order,
    lengths_of,
    like,
    made_of,
    normal_axis,
    on_host,
    taken,
    with_whole_lines,
)
from meshrun.runner.arrays.tools.merging import can_merge, merge_runs
from meshrun.runner.arrays.tools.routes import exchange_runs
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, packed
from meshrun.runner.world.world import World

SAMPLES = 2048  # keys of a cut's window, of all ranks together, that are compared in one round
FEWEST_SAMPLES = 16  # likewise, of each rank: so many narrow a window by at least a factor of four


def sort(
    a: DistributedArray, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
) -> DistributedArray:
    """Return a sorted copy of an array. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of any dtype that NumPy sorts: NaN and NaT come last, complex numbers are ordered by their real part
        first.
    axis : int, optional
        Along which to sort. None: all cells, as an array of one axis.
    kind : str, optional
        Any name that `numpy.sort` takes: every sort is stable.
    stable : bool, optional
        Likewise, any value.

    Returns
    -------
    DistributedArray
        With the bits of `numpy.sort(..., kind="stable")`. Of the partition and halo of `a`, the halo stale;
        with axis=None, and for an array of one axis that is split unevenly, each rank has as many cells.

    Raises
    ------
    UserError
        On every rank, if the array has no such axis.

    Examples
    --------
    >>> ordered = meshrun.sort(meshrun.load(world, "keys.npy"))
    """
    a = taken("sort", a)
    if axis is not None:
        axis = normal_axis("sort", axis, len(a.shape))
        if len(a.shape) > 1:
            cells, partition = with_whole_lines(a, axis)
            ordered = a.world.xp.sort(cells, axis=axis, kind=_kind(cells.dtype))
            return like(a, _back(a, ordered, partition))
    cells, partition = in_order(a)
    ordered, even = sort_cells(a.world, cells, partition)
    return like(a, ordered) if even == a.partition else made_of(a.world, even, ordered)


def argsort(
    a: DistributedArray, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
) -> DistributedArray:
    """Return the indices that sort an array, equal cells in their order. Collective.

    Parameters
    ----------
    a : DistributedArray
        As of `sort`.
    axis : int, optional
        Along which to sort. None: all cells, whose indices are those in C order.
    kind : str, optional
        Any name that `numpy.argsort` takes: every sort is stable.
    stable : bool, optional
        Likewise, any value.

    Returns
    -------
    DistributedArray
        The int64 indices of `numpy.argsort(..., kind="stable")`, with the partition that `sort` gives.

    Raises
    ------
    UserError
        On every rank, if the array has no such axis.

    Examples
    --------
    >>> order = meshrun.argsort(meshrun.load(world, "keys.npy"))
    """
    a = taken("argsort", a)
    if axis is not None:
        axis = normal_axis("argsort", axis, len(a.shape))
        if len(a.shape) > 1:
            cells, partition = with_whole_lines(a, axis)
            indices = a.world.xp.argsort(_with_one_nan(a.world, cells), axis=axis, kind="stable")
            return like(a, _back(a, indices.astype(np.int64, copy=False), partition))
    cells, partition = in_order(a)
    _, indices, even = sort_with_indices(a.world, cells, partition)
    return like(a, indices) if even == a.partition else made_of(a.world, even, indices)


def _back(a: DistributedArray, cells: Array, partition: Partition) -> Array:
    """Return cells under the partition of `a`."""
    return cells if partition == a.partition else a.world.redistribute(cells, partition, a.partition)


def sort_cells(world: World, cells: Array, partition: Partition) -> tuple[Array, Partition]:
    """Return this rank's cells of the sorted array, and their partition, which is even. Collective.

    cells: this rank's, of one axis. partition: how they are split.
    """
    ordered, has_twins = sort_own(world.xp, cells)
    even = Partition(partition.shape, (world.size,))
    if world.size == 1:
        return ordered, even
    sent, received = _runs(world, ordered, partition, even)
    arrived = exchange_runs(world, ordered, sent, received)
    if can_merge(world.backend, arrived.dtype):
        return merge_runs(world.backend, arrived, received), even
    has_twins = any(world.control.allgather(has_twins))
    return sort_own(world.xp, arrived, in_place=not has_twins)[0], even


def sort_with_indices(world: World, cells: Array, partition: Partition) -> tuple[Array, Array, Partition]:
    """Return this rank's cells of the sorted array, their indices before, and their partition. Collective.

    The arguments are those of `sort_cells`. On a GPU, the bits of all NaNs are the same.
    """
    xp, even = world.xp, Partition(partition.shape, (world.size,))
    cells = _with_one_nan(world, cells)
    order = xp.argsort(cells, kind="stable").astype(np.int64, copy=False)
    ordered, indices = cells[order], order + partition[world.rank].start[0]
    if world.size == 1:
        return ordered, indices, even
    sent, received = _runs(world, ordered, partition, even)
    ordered = exchange_runs(world, ordered, sent, received)
    indices = exchange_runs(world, indices, sent, received)
    order = xp.argsort(ordered, kind="stable")
    return ordered[order], indices[order], even


def sort_own(xp: Any, cells: Array, *, in_place: bool = False) -> tuple[Array, bool]:
    """Return cells of one axis sorted, and whether equal cells may have different bits: zeros of both signs,
    NaNs, and complex numbers.

    These keep their order, as in a stable sort. in_place: whether `cells` may change: it has no such cells.

    The bits of a float, as a signed integer, are in the order of floats from 0 on, and in the opposite order
    below. Integers are sorted by digits on a GPU, and by vector instructions on a CPU.
    """
    dtype = cells.dtype
    if dtype.kind in "biumM":
        return _sorted(xp, cells, in_place), False
    if dtype.kind != "f" or dtype.itemsize > 8 or not dtype.isnative:
        return xp.sort(cells, kind="stable"), True
    integer = np.dtype(f"i{dtype.itemsize}")
    bits = _sorted(xp, packed(cells).view(integer), in_place)

    # Where -0, -1, ... -infinity, negative NaNs, 0, 1, ... infinity and NaNs end.
    least = np.iinfo(integer).min
    infinities = np.array([-np.inf, np.inf], dtype).view(integer)
    limits = xp.asarray(np.array([least, infinities[0], -1, 0, infinities[1]], integer))
    minus_zeros, finite, negative, zeros, ordered = on_host(
        xp.searchsorted(bits, limits, side="right")
    ).tolist()

    # The negative floats in their order; negative NaNs last.
    nans = negative - finite
    if nans:
        bits = xp.concatenate([bits[:finite][::-1], bits[negative:], bits[finite:negative]])
    else:
        bits[:negative] = bits[:negative][::-1].copy()
    result = bits.view(dtype)

    # Equal cells with different bits, in their order.
    zeros -= negative
    if minus_zeros and zeros:
        result[finite - minus_zeros : finite + zeros] = cells[cells == 0]
    nans += len(bits) - ordered
    if nans:
        result[len(bits) - nans :] = cells[xp.isnan(cells)]
    return result, bool(minus_zeros or nans)


def _sorted(xp: Any, cells: Array, in_place: bool) -> Array:
    """Return integers, or what is ordered as integers are, sorted."""
    if not in_place:
        return xp.sort(cells)
    cells.sort()
    return cells


def _kind(dtype: np.dtype[Any]) -> Any:
    """Return the kind of sort that keeps equal cells in order: any, if equal cells have the same bits."""
    return None if dtype.kind in "biumM" else "stable"


def _with_one_nan(world: World, cells: Array) -> Array:
    """Return cells whose NaNs a device sorts to the end: those with a sign come first there."""
    if world.backend.asynchronous and cells.dtype.kind == "f":
        return world.xp.where(world.xp.isnan(cells), cells.dtype.type(np.nan), cells)
    return cells


def _runs(world: World, ordered: Array, before: Partition, after: Partition) -> tuple[list[int], list[int]]:
    """Return how many of the sorted cells go to each rank, and come from each. Collective."""
    lengths = lengths_of(before, world.size)
    targets = [after.bounds(0, rank)[0] for rank in range(1, world.size)]
    inner = find_cuts(world, ordered, lengths, targets)
    cuts = np.vstack([np.zeros_like(lengths), inner, lengths])
    counts = np.diff(cuts, axis=0)
    return counts[:, world.rank].tolist(), counts[world.rank].tolist()


def find_cuts(
    world: World, ordered: Array, lengths: Sequence[int], targets: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return, for each target and rank, how many of the rank's cells are among the first `target`.

    Collective. ordered: this rank's cells, sorted. lengths: the number of each rank's cells. targets: numbers
    of cells of all ranks; equal keys count by rank and position.

    Each round compares a few keys of each rank. For each, how many cells come before it is known within the
    distance of the keys. That decides which side of a cut it is on, unless the cut is within that distance.
    """
    ranks, count = len(lengths), max(SAMPLES // len(lengths), FEWEST_SAMPLES)
    low = np.zeros((len(targets), ranks), np.int64)
    high = np.tile(np.array(lengths, np.int64), (len(targets), 1))
    while (low < high).any():
        # Positions of the samples: (targets, ranks, count); positions in a short window repeat.
        width = (high - low)[..., None]
        spaced = np.arange(count) * width // np.maximum(np.minimum(width, count), 1)
        positions = low[..., None] + np.minimum(spaced, np.maximum(width - 1, 0))
        open_windows = (low < high)[..., None] & (np.arange(count) < width)

        # The keys of all ranks, for each target in turn.
        mine = positions[:, world.rank][open_windows[:, world.rank]]
        keys = on_host(world.all_gather(ordered[world.xp.asarray(mine)]))
        sampled_by = [open_windows[:, rank].sum(axis=1) for rank in range(ranks)]
        starts = np.cumsum([0, *(number.sum() for number in sampled_by)])
        ends = [start + np.cumsum([0, *number]) for start, number in zip(starts, sampled_by, strict=False)]
        for target, needed in enumerate(targets):
            sampled = [keys[end[target] : end[target + 1]] for end in ends]
            order = np.argsort(np.concatenate(sampled), kind="stable")
            if not len(order):
                continue
            rank = np.repeat(np.arange(ranks), [len(part) for part in sampled])[order]
            position = positions[target][open_windows[target]][order]
            _narrow(low[target], high[target], rank, position, needed)
    return low


def _narrow(
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    rank: npt.NDArray[np.int64],
    position: npt.NDArray[np.int64],
    needed: int,
) -> None:
    """Narrow one cut's windows, in place.

    low, high: per rank, between which of its cells the cut is. rank, position: of the samples, in the order
    of their keys. needed: number of cells before the cut.
    """
    # Per rank and sample, at least and at most how many of the window's cells come before the sample.
    own = rank[None] == np.arange(len(low))[:, None]
    passed = np.maximum.accumulate(np.where(own, position + 1, low[:, None]), axis=1)
    least = np.concatenate([low[:, None], passed[:, :-1]], axis=1)
    least = np.where(own, position, least)
    most = np.minimum.accumulate(np.where(own, position, high[:, None])[:, ::-1], axis=1)[:, ::-1]
    needed -= int(low.sum())
    before = (most - low[:, None]).sum(axis=0) < needed
    after = (least - low[:, None]).sum(axis=0) >= needed
    np.maximum.at(low, rank[before], position[before] + 1)
    np.minimum.at(high, rank[after], position[after])
