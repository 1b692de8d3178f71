"""Where values belong in a sorted array, and which values an array has."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import (
    in_balance,
    in_order,
    in_shape,
    lengths_of,
    like,
    of_lengths,
    order_of,
    taken,
)
from meshrun.runner.arrays.tools.routes import routes_to
from meshrun.runner.arrays.tools.sorting import sort_cells, sort_with_indices
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

Side = Literal["left", "right"]


def searchsorted(
    a: DistributedArray | Array, v: DistributedArray | npt.ArrayLike, side: Side = "left"
) -> Any:
    """Return the indices at which to insert values into a sorted array. Collective.

    Parameters
    ----------
    a : DistributedArray or array
        Sorted, of one axis. An array that is not distributed is the same on every rank.
    v : DistributedArray or array_like
        The values, of any shape; likewise.
    side : {"left", "right"}
        Whether an index is that of the first equal cell, or after the last one.

    Returns
    -------
    DistributedArray, numpy.ndarray or cupy.ndarray
        NumPy's int64 indices: split as `v` is, or the same on every rank, on its device.

    Raises
    ------
    UserError
        On every rank, if neither is distributed, if `a` has not one axis, and for another side.

    Examples
    --------
    >>> index = meshrun.searchsorted(meshrun.sort(keys), [0.5, 1.5])
    """
    a = taken("searchsorted", a) if isinstance(a, DistributedArray) else a
    if isinstance(v, DistributedArray) or not isinstance(a, DistributedArray):
        v = taken("searchsorted", v)
    if side not in ("left", "right"):
        raise UserError("searchsorted: unknown side", got=side, expected="left or right", everywhere=True)
    if len(np.shape(a)) != 1:
        raise UserError(
            "searchsorted takes a sorted array of one axis", got=f"shape {np.shape(a)}", everywhere=True
        )
    if not isinstance(a, DistributedArray):
        assert isinstance(v, DistributedArray)
        xp = v.world.xp
        return like(v, xp.searchsorted(xp.asarray(a), v.interior, side=side).astype(np.int64, copy=False))
    world, xp = a.world, a.world.xp
    cells, partition = in_order(a)
    if isinstance(v, DistributedArray):
        return like(v, _from_owners(world, cells, partition, v, side))
    # Every rank counts its own cells before each value.
    index = xp.asarray(xp.searchsorted(cells, xp.asarray(v), side=side)).astype(np.int64, copy=False)
    return world.all_reduce(index.reshape(-1)).reshape(index.shape)[()]


def _from_owners(world: World, cells: Array, partition: Partition, v: DistributedArray, side: Side) -> Array:
    """Return the indices of this rank's values, from the ranks whose cells are next to them. Collective."""
    xp, values = world.xp, v.interior.reshape(-1)
    if not partition.shape[0]:
        return xp.zeros(v.interior.shape, np.int64)
    # The owner is the last rank whose first cell comes before the value.
    holders = [rank for rank, length in enumerate(lengths_of(partition, world.size)) if length]
    firsts = world.all_gather(cells[:1])
    nearest = xp.searchsorted(firsts, values, side=side) - 1
    owners = xp.asarray(np.array(holders))[xp.maximum(nearest, 0)]
    routes = routes_to(world, owners)
    index = xp.searchsorted(cells, routes.send(values), side=side).astype(np.int64, copy=False)
    return routes.send_back(index + partition[world.rank].start[0]).reshape(v.interior.shape)


def unique(
    a: DistributedArray,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """Return the different cells of an array, sorted. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of any shape. NaNs count as one cell.
    return_index : bool
        Whether to return the index, in C order, at which each first occurs.
    return_inverse : bool
        Whether to return, for each cell of `a`, the index of its value in the result.
    return_counts : bool
        Whether to return how often each occurs.

    Returns
    -------
    DistributedArray or tuple of DistributedArray
        NumPy's values; then what else was asked for, in the order of the arguments. The inverse is split as
        `a`; the others have one axis that is split evenly. Of zeros of both signs, the first is returned.

    Raises
    ------
    UserError
        On every rank, for what is not a distributed array.

    Examples
    --------
    >>> labels, counts = meshrun.unique(meshrun.load(world, "labels.npy"), return_counts=True)
    """
    a = taken("unique", a)
    world, xp = a.world, a.world.xp
    cells, partition = in_order(a)
    indices: Array = None
    if return_index or return_inverse:
        ordered, indices, even = sort_with_indices(world, cells, partition)
    else:
        ordered, even = sort_cells(world, cells, partition)

    # Which cells differ from the one before, which may be the last cell of the previous rank.
    last_cells = world.all_gather(ordered[-1:])
    start, stop = even.bounds(0, world.rank)
    is_first = xp.ones(stop - start, bool)
    is_first[1:] = _differ(xp, ordered[1:], ordered[:-1])
    if start and stop > start:
        is_first[:1] = _differ(xp, ordered[:1], last_cells[world.rank - 1 : world.rank])
    numbers = world.control.allgather(int(is_first.sum()))
    among = of_lengths(numbers)

    # The values, and what was asked for.
    results = [in_balance(world, ordered[is_first], among)]
    if return_index:
        results.append(in_balance(world, indices[is_first], among))
    if return_inverse:
        number = xp.cumsum(is_first, dtype=np.int64) + (among[world.rank].start[0] - 1)
        results.append(_to_places(a, indices, number))
    if return_counts:
        places = xp.nonzero(is_first)[0] + start
        firsts = [first for of_rank in world.control.allgather(places[:1].tolist()) for first in of_rank]
        later = [first for first in firsts if first >= stop]
        end = xp.asarray(np.array([min(later, default=even.shape[0])], np.int64))
        results.append(in_balance(world, xp.diff(places, append=end).astype(np.int64, copy=False), among))
    return results[0] if len(results) == 1 else tuple(results)


def _differ(xp: Any, cells: Array, others: Array) -> Array:
    """Return which cells differ from others; a NaN is equal to another."""
    unequal = cells != others
    if cells.dtype.kind in "fcmM":
        unequal &= ~(xp.isnan(cells) & xp.isnan(others))
    return unequal


def _to_places(a: DistributedArray, indices: Array, values: Array) -> DistributedArray:
    """Return an array like `a` with values at indices in C order of the whole array. Collective.

    Each rank has indices and values of any cells.
    """
    world, xp = a.world, a.world.xp
    partition = order_of(a)
    starts = np.array([partition[rank].start[0] for rank in range(world.size)])
    routes = routes_to(world, xp.searchsorted(xp.asarray(starts), indices, side="right") - 1)
    mine = xp.empty(partition[world.rank].shape, values.dtype)
    mine[routes.send(indices) - partition[world.rank].start[0]] = routes.send(values)
    return like(a, in_shape(a, mine))
