"""Reductions of an array in a tree that depends on its shape alone: the same bits on any number of ranks.

Neighbouring parts of equal size are combined if their pair starts at a multiple of the pair's size. A rank
combines as many as possible of its own; those that are left over of all ranks are combined in the same tree.
The cuts between ranks determine which rank combines two parts, never which parts are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

Combine = Callable[[Any, Any], Any]
Reduction = Literal["sum", "min", "max"]
COMBINE = {"sum": "add", "min": "minimum", "max": "maximum"}
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
    combine = getattr(world.xp, COMBINE[reduction])
    for axis in reversed(range(len(partition.shape))):
        factors = (_without_axis(world, partition, axis, factors, dtype, combine),)
    return factors[0].astype(result).reshape(())


def _without_axis(
    world: World, partition: Partition, axis: int, factors: tuple[Array, ...], dtype: Any, combine: Combine
) -> Array:
    """Return the cells of the axes before `axis`, the last one of the factors, after its reduction."""
    # The ranks of this one's line along the axis, and the subtrees that each has.
    place = partition.coordinates(world.rank)
    parts = range(partition.grid[axis])
    line = [partition.rank((*place[:axis], other, *place[axis + 1 :])) for other in parts]
    nodes = [list(_nodes(*partition.bounds(axis, other))) for other in parts]
    mine, rest = nodes[place[axis]], factors[0].shape[:-1]
    # Combine the own cells.
    partials = [world.backend.empty((len(of_rank), *rest), dtype) for of_rank in nodes]
    start, _ = partition.bounds(axis, place[axis])
    for number, (first, count) in enumerate(mine):
        cells = tuple(factor[..., first - start : first - start + count] for factor in factors)
        _combine_cells(cells, partials[place[axis]][number, ...], combine)
    # Exchange what is left over, and combine it on every rank of the line.
    others = [other for other in parts if other != place[axis]]
    world.exchange(
        [(line[other], partials[place[axis]]) for other in others],
        [(line[other], partials[other]) for other in others],
    )
    subtrees = (
        Subtree(first, count, of_rank[number, ...])
        for found, of_rank in zip(nodes, partials, strict=True)
        for number, (first, count) in enumerate(found)
    )
    total = finish(fold(subtrees, combine), combine)
    return world.xp.zeros(rest, dtype) if total is None else total


def _combine_cells(factors: tuple[Array, ...], out: Array, combine: Combine) -> None:
    """Combine 2^k cells along the last axis, pair by pair, into `out`: some rows of other axes at a time."""
    rows = max(SLAB // max(out[:1].size * factors[0].shape[-1] * out.itemsize, 1), 1) if out.ndim else 1
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
