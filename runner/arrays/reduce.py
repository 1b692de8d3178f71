"""Reductions of an array with the same bits on any number of ranks.

What is exact is combined in any order: extremes, sums of integers, and on CPUs sums of all cells of an array,
which are rounded once (`exact_sum`). The rest is combined in a tree that depends on the array's shape alone.

In the tree, neighbouring parts of equal size are combined if their pair starts at a multiple of the pair's
size. A rank combines as many as possible of its own; those that are left over of all ranks are combined in
the same tree.
The cuts between ranks determine which rank combines two parts, never which parts are combined.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrun.runner.arrays import exact_sum
from meshrun.runner.comm.api import UFUNCS
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, HostArray, real_dtype
from meshrun.runner.world.world import World

Nodes = Sequence[tuple[int, int]]  # subtrees: the number of the first cell, and how many
Combine = Callable[[Any, Any], Any]
Reduction = Literal["sum", "min", "max"]
WHOLE = {ufunc: operation for operation, ufunc in UFUNCS.items()}
COMBINED = {name: "maximum" if name == "take" else name for name in (*WHOLE, "take")}
NO_INDEX = np.iinfo(np.int64).max
DEVICE_SLAB = 1 << 30  # likewise on a device, whose launches take long
SLAB = 4 << 20  # bytes of cells that are combined at a time


@dataclass(frozen=True)
class Subtree:
    """Combined partial result of leaves first .. first + count - 1; count is a power of two."""

    first: int
    count: int
    partial: Any


def fold(subtrees: Iterable[Subtree], combine: Combine) -> list[Subtree]:
    """Combine neighbouring subtrees that are a pair of the tree; return the remaining ones."""
    roots: list[Subtree] = []
    for subtree in subtrees:
        roots.append(subtree)
        while len(roots) > 1 and _are_pair(roots[-2], roots[-1]):
            right, left = roots.pop(), roots.pop()
            roots.append(Subtree(left.first, 2 * left.count, combine(left.partial, right.partial)))
    return roots


def _are_pair(left: Subtree, right: Subtree) -> bool:
    return left.count == right.count and left.first % (2 * left.count) == 0


def finish(roots: list[Subtree], combine: Combine) -> Any:
    """Combine the remaining roots: more than one if the number of leaves is not a power of two."""
    if not roots:
        return None
    result = roots[-1].partial
    for root in reversed(roots[:-1]):
        result = combine(root.partial, result)
    return result


def reduce_cells(world: World, partition: Partition, reduction: Reduction, *factors: Array) -> Array:
    """Return a reduction of an array over all axes, or of the products of two arrays. Collective.

    factors: this rank's cells of one or two arrays, split by `partition`. Returns an array of no axes on
    every rank's device, of the dtype of NumPy's reduction. Sums of float16 are rounded once, at the end.

    The last axis is reduced first. Along an axis that is split, the ranks of a line send each other what is
    left over: about 2 log2(n) times the cells of the axes before it.
    """
    if 0 in partition.shape and reduction != "sum":
        raise UserError(
            f"{reduction} of an array without cells", got=f"shape {partition.shape}", everywhere=True
        )
    # NumPy's dtype of the result, and the dtype in which to add.
    sample = np.ones(1, np.result_type(*(factor.dtype for factor in factors)))
    result = np.sum(sample).dtype if reduction == "sum" else sample.dtype
    dtype = np.dtype(np.float32) if result == np.float16 and reduction == "sum" else result
    if reduction == "sum" and has_exact_sums(world, dtype):
        return np.asarray(exact_total(world, dtype, *factors).astype(result))
    combine = getattr(world.xp, UFUNCS[reduction])
    for axis in reversed(range(len(partition.shape))):
        factors = (_without_axis(world, partition, axis, factors, dtype, combine),)
    return factors[0].astype(result).reshape(())


def has_exact_sums(world: World, dtype: np.dtype[Any]) -> bool:
    """Return whether sums of all cells are rounded once. dtype: in which they are added.

    The parts of complex numbers are added by themselves.
    """
    return world.xp is np and real_dtype(dtype) in exact_sum.PLACES


def exact_total(world: World, dtype: np.dtype[Any], *factors: HostArray) -> Any:
    """Return the sum of all cells of an array, or of the products of two, rounded once. Collective.

    factors: this rank's cells, which no other rank has. dtype: of the sum and of the products, as of
    `has_exact_sums`.
    """
    is_complex, cells = dtype.kind == "c", factors[0]
    words = np.stack([exact_sum.zero_words() for _ in range(1 + is_complex)])
    rows = max(len(cells), 1) if cells.ndim else 1
    if len(factors) > 1 and cells.size and cells.ndim:  # some products at a time
        rows = max(SLAB // (cells[:1].size * dtype.itemsize), 1)
    for first in range(0, len(cells) if cells.ndim else 1, rows):
        part = slice(first, first + rows) if cells.ndim else ...
        own, *others = (factor[part].astype(dtype, copy=False) for factor in factors)
        for other in others:
            own = np.asarray(own * other)
        for total, one in zip(words, (own.real, own.imag) if is_complex else (own,), strict=True):
            exact_sum.add_cells(total, np, one)
    world.sum_words(words)
    real, *imaginary = (exact_sum.rounded(one, real_dtype(dtype)) for one in words)
    return dtype.type(complex(real, *imaginary)) if is_complex else real


def reduce_axes(world: World, partition: Partition, axes: Sequence[int], cells: Array, ufunc: str) -> Array:
    """Return this rank's cells of an array, combined along some axes. Collective.

    Parameters
    ----------
    partition: of the array; ranks may have no cells.
    axes: to combine, in ascending order.
    cells: this rank's.
    ufunc: "add", "multiply", "maximum" or "minimum"; or "take", of an array that is one cell. What is exact
        is combined in any order, the rest in the tree.
    """
    whole, order = in_any_order(cells.dtype, ufunc), list(range(len(partition.shape)))
    combine = getattr(world.xp, COMBINED[ufunc])
    if whole and axes and len(axes) == len(partition.shape) and max(partition.grid) == world.size:
        return _without_negative_zeros(_of_all_cells(world, partition, cells, whole, combine), ufunc)
    for axis in reversed(axes):
        last = world.xp.moveaxis(cells, order.index(axis), -1)
        order.remove(axis)
        cells = _without_axis(world, partition, axis, (last,), cells.dtype, combine, whole)
    return _without_negative_zeros(cells, ufunc)


def _of_all_cells(world: World, partition: Partition, cells: Array, whole: str, combine: Combine) -> Array:
    """Return the combination of all cells, of shape (), of an array that is split along one axis at most.

    whole, combine: as of `_without_axis`.
    """
    holders = _holders(partition, world.size)
    partials = world.backend.empty((max(len(holders), 1),), cells.dtype)
    if not holders:
        partials[...] = 0
        return partials[0, ...]
    if cells.size:
        partials[holders.index(world.rank), ...] = getattr(world.xp, whole)(cells)
    if holders == (world.rank,) and world.size == 1:
        return partials[0, ...]
    own = [partials[at, ...] for at, holder in enumerate(holders) if holder == world.rank]
    with world.operations.waits:
        world.exchange(
            [(rank, one) for one in own for rank in range(world.size) if rank != world.rank],
            [(holder, partials[at, ...]) for at, holder in enumerate(holders) if holder != world.rank],
        )
    found = partials[0, ...]
    for at in range(1, len(holders)):
        found = combine(found, partials[at, ...])
    return world.xp.asarray(found, cells.dtype)


@functools.lru_cache(1024)
def _holders(partition: Partition, ranks: int) -> tuple[int, ...]:
    """Return the ranks that have cells."""
    return tuple(rank for rank in range(ranks) if partition[rank].size)


def reduce_own(backend: Backend, axes: Sequence[int], cells: Array, ufunc: str) -> Array:
    """Return cells combined along axes of which this rank has all cells, as `reduce_axes` does.

    axes: of `cells`. Not collective.
    """
    whole, combine = in_any_order(cells.dtype, ufunc), getattr(backend.xp, COMBINED[ufunc])
    for axis in reversed(axes):
        last = backend.xp.moveaxis(cells, axis, -1)
        count = last.shape[-1]
        nodes = [(0, count)] if whole else list(_nodes(0, count))
        partials = backend.empty((len(nodes), *last.shape[:-1]), cells.dtype)
        _combine_nodes(backend.xp, (last,), nodes, 0, partials, combine, whole)
        cells = _total([(nodes, partials)], combine)
    return _without_negative_zeros(cells, ufunc)


def in_any_order(dtype: np.dtype[Any], ufunc: str) -> str:
    """Return NumPy's name of a reduction whose order does not change its bits; "" if it does."""
    return WHOLE[COMBINED[ufunc]] if dtype.kind not in "fc" or ufunc not in ("add", "multiply") else ""


def _without_negative_zeros(cells: Array, ufunc: str) -> Array:
    """Return extremes in which all zeros are positive: which of two zeros is larger depends on the device."""
    extreme = cells.dtype.kind == "f" and ufunc in ("maximum", "minimum")
    return cells + cells.dtype.type(0) if extreme else cells


def first_extreme(world: World, partition: Partition, axes: Sequence[int], cells: Array, name: str) -> Array:
    """Return the index of the first largest or smallest cell along some axes, as NumPy counts. Collective.

    name: "argmax" or "argmin". The other arguments are those of `reduce_axes`. NaN is the largest and the
    smallest.
    """
    xp, start = world.xp, partition[world.rank].start
    kept = [axis for axis in range(len(partition.shape)) if axis not in axes]
    moved = xp.moveaxis(cells, axes, range(-len(axes), 0))
    rest, lengths = moved.shape[: len(kept)], moved.shape[len(kept) :]
    flat = moved.reshape(*rest, math.prod(lengths))
    # The best own cell, and its index in the whole array.
    if flat.shape[-1]:
        at = getattr(xp, name)(flat, axis=-1)
        best = xp.take_along_axis(flat, at[..., None], -1)[..., 0]
        places = xp.unravel_index(at, lengths)
        index = xp.zeros(rest, np.int64)
        for axis, place in zip(axes, places, strict=True):
            index = index * partition.shape[axis] + (place + start[axis])
    else:
        best, index = xp.zeros(rest, cells.dtype), xp.full(rest, NO_INDEX, np.int64)
    # Of each line of ranks along an axis, the best.
    for axis in axes:
        for other, mine in _of_line(world, partition, axis, [best, index]):
            best, index = _better(xp, name, (best, index), (other, mine))
    return index


def _of_line(world: World, partition: Partition, axis: int, arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield the arrays of the other ranks along an axis. Collective."""
    place = partition.coordinates(world.rank)
    line = [partition.rank((*place[:axis], part, *place[axis + 1 :])) for part in range(partition.grid[axis])]
    others = [rank for rank in line if rank != world.rank]
    sent = [world.xp.ascontiguousarray(array) for array in arrays]
    received = [[world.backend.empty(array.shape, array.dtype) for array in sent] for _ in others]
    world.exchange(
        [(rank, array) for rank in others for array in sent],
        [(rank, array) for rank, of_rank in zip(others, received, strict=True) for array in of_rank],
    )
    yield from received


def _better(xp: Any, name: str, one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the better of two cells and its index; of equal ones, the first."""
    (a, i), (b, j) = one, other
    larger = (b > a) if name == "argmax" else (b < a)
    equal = b == a
    if a.dtype.kind == "f":
        larger = (larger & ~xp.isnan(a)) | (xp.isnan(b) & ~xp.isnan(a))
        equal = equal | (xp.isnan(a) & xp.isnan(b))
    chosen = (j != NO_INDEX) & ((i == NO_INDEX) | larger | (equal & (j < i)))
    return xp.where(chosen, b, a), xp.where(chosen, j, i)


def _without_axis(
    world: World,
    partition: Partition,
    axis: int,
    factors: tuple[Array, ...],
    dtype: Any,
    combine: Combine,
    whole: str = "",
) -> Array:
    """Return the cells of the other axes after the reduction of `axis`, the last one of the factors.

    whole: NumPy's name of the reduction, if the order does not change its bits.
    """
    # The ranks of this one's line along the axis, and the subtrees that each has.
    place = partition.coordinates(world.rank)
    parts = range(partition.grid[axis])
    line = [partition.rank((*place[:axis], other, *place[axis + 1 :])) for other in parts]
    nodes = [list(_nodes(*partition.bounds(axis, other))) for other in parts]
    if whole:
        bounds = [partition.bounds(axis, other) for other in parts]
        nodes = [[(first, last - first)] if last > first else [] for first, last in bounds]
    mine, rest = nodes[place[axis]], factors[0].shape[:-1]
    # Combine the own cells.
    partials = [world.backend.empty((len(of_rank), *rest), dtype) for of_rank in nodes]
    start, _ = partition.bounds(axis, place[axis])
    _combine_nodes(world.xp, factors, mine, start, partials[place[axis]], combine, whole)
    # Exchange what is left over, and combine it on every rank of the line.
    others = [other for other in parts if other != place[axis]]
    world.exchange(
        [(line[other], partials[place[axis]]) for other in others],
        [(line[other], partials[other]) for other in others],
    )
    total = _total(zip(nodes, partials, strict=True), combine)
    return world.xp.zeros(rest, dtype) if total is None else total


def _total(parts: Iterable[tuple[Nodes, Array]], combine: Combine) -> Any:
    """Return the combination of partial results, in the tree; None if there are none."""
    subtrees = (
        Subtree(first, count, partials[number, ...])
        for nodes, partials in parts
        for number, (first, count) in enumerate(nodes)
    )
    return finish(fold(subtrees, combine), combine)


def _combine_nodes(
    xp: Any,
    factors: tuple[Array, ...],
    nodes: Nodes,
    start: int,
    out: Array,
    combine: Combine,
    whole: str,
) -> None:
    """Combine the own cells of each subtree along the last axis. start: number of the first own cell."""
    for number, (first, count) in enumerate(nodes):
        cells = tuple(factor[..., first - start : first - start + count] for factor in factors)
        if whole:
            out[number, ...] = getattr(xp, whole)(cells[0], axis=-1)
        else:
            _combine_cells(cells, out[number, ...], combine)


def _combine_cells(factors: tuple[Array, ...], out: Array, combine: Combine) -> None:
    """Combine 2^k cells along the last axis, pair by pair, into `out`: some rows of other axes at a time."""
    slab = SLAB if isinstance(out, np.ndarray) else DEVICE_SLAB
    rows = max(slab // max(out[:1].size * factors[0].shape[-1] * out.itemsize, 1), 1) if out.ndim else 1
    for first in range(0, len(out) if out.ndim else 1, rows):
        part = slice(first, first + rows) if out.ndim else ...
        cells = factors[0][part].astype(out.dtype, copy=False)
        if len(factors) > 1:
            cells = cells * factors[1][part].astype(out.dtype, copy=False)
        while cells.shape[-1] > 1:
            cells = combine(cells[..., ::2], cells[..., 1::2])
        out[part] = cells[..., 0]


def _nodes(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the largest subtrees, (first, count), that make up cells start .. stop - 1, in order."""
    while start < stop:
        count = 1 << (stop - start).bit_length() - 1
        if start:
            count = min(count, start & -start)
        yield start, count
        start += count
