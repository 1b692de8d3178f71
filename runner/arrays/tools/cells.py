"""A rank's cells of an array in the order of the whole array, and new arrays that are made of such cells."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.operations.split_array import begin
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, split_along
from meshrun.runner.region import Array, HostArray, packed
from meshrun.runner.world.world import World


def taken(function: str, array: object) -> DistributedArray:
    """Return an argument that is a distributed array, with a partition; UserError if it is none. Collective.

    The cells of a view, of which ranks have boxes that are no partition, are split evenly.
    """
    if not isinstance(array, DistributedArray):
        raise UserError(
            f"{function} takes arrays that are split over the ranks",
            got=type(array).__name__,
            expected="a meshrun.DistributedArray",
            hint=f"np.{function}(u)" if hasattr(array, "ranks") else "meshrun.load(world, path)",
            everywhere=True,
        )
    if not array.shape:
        raise UserError(f"{function} takes an array with axes", got="shape ()", everywhere=True)
    begin(array.world, function, array)
    parts: object = array.partition
    if isinstance(parts, Partition):
        return array
    return moved_to(array, split_along(array.shape, 0, array.world.size))


def moved_to(array: DistributedArray, partition: Partition) -> DistributedArray:
    """Return an array under another partition: itself if ranks have the same cells there. Collective."""
    if all(array.partition[rank] == partition[rank] for rank in range(array.world.size)):
        return array
    return made_of(
        array.world, partition, array.world.redistribute(array.interior, array.partition, partition)
    )


def taken_beside(function: str, array: DistributedArray, other: object, name: str) -> DistributedArray:
    """Return an argument, split as `array` is; UserError if its shape differs. Collective.

    name: of the argument.
    """
    other = taken(function, other)
    if other.shape != array.shape:
        raise UserError(
            f"{function}: {name} has not the shape of the array",
            got=f"shape {other.shape}",
            expected=f"shape {array.shape}",
            everywhere=True,
        )
    return moved_to(other, array.partition)


def refuse(function: str, failure: Exception) -> UserError:
    """Return the error for arguments that NumPy refuses, in NumPy's words."""
    return UserError(f"{function} cannot take these arguments", why=str(failure), everywhere=True)


def normal_axis(function: str, axis: Any, ndim: int) -> int:
    """Return an axis counted from the first; UserError if the array has no such axis."""
    try:
        number = operator.index(axis)
    except TypeError:
        number = ndim
    if not -ndim <= number < ndim:
        raise UserError(
            f"{function}: the array has no such axis",
            got=axis,
            expected=f"an axis of {ndim}",
            everywhere=True,
        )
    return number % ndim


def on_host(array: Array) -> HostArray:
    """Return an array in host memory: a copy of one of a device."""
    host: HostArray = array.get() if hasattr(array, "get") else array
    return host


def made_of(world: World, partition: Partition, cells: Array) -> DistributedArray:
    """Return an array without a halo, whose block is `cells`."""
    widths = ((0, 0),) * len(partition.shape)
    return DistributedArray(
        HaloPlan(partition, world.rank, widths, "reflect", padded=True), packed(cells), world
    )


def like(array: DistributedArray, cells: Array) -> DistributedArray:
    """Return an array with the partition, halo and boundary of another; its halo is stale.

    cells: this rank's. They become the block if there is no halo.
    """
    layout = array.layout
    if layout.shape == cells.shape and cells.flags.c_contiguous:
        return DistributedArray(layout, cells, array.world)
    result = array.empty_like(cells.dtype)
    result.interior[...] = cells
    return result


def of_lengths(lengths: Sequence[int], shape: Sequence[int] = ()) -> Partition:
    """Return the partition along axis 0 in which each rank has so many rows. shape: of a row."""
    starts = tuple(accumulate(lengths, initial=0))
    rest = tuple(shape)
    return Partition(
        (starts[-1], *rest), (len(lengths), *(1,) * len(rest)), starts=(starts[:-1], *((0,),) * len(rest))
    )


def lengths_of(partition: Partition, ranks: int) -> list[int]:
    """Return the number of each rank's rows."""
    return [partition[rank].shape[0] for rank in range(ranks)]


def order_of(array: DistributedArray) -> Partition:
    """Return how the cells of an array are split in C order, as one axis: by whole rows of axis 0."""
    rows = rows_of(array)
    return of_lengths([rows[rank].size for rank in range(array.world.size)])


def in_order(array: DistributedArray) -> tuple[Array, Partition]:
    """Return this rank's cells as one axis, in C order of the whole array, and how they are split. Collective
    if the array is split along other axes than the first."""
    cells, rows = array.interior, rows_of(array)
    if rows != array.partition:
        cells = array.world.redistribute(cells, array.partition, rows)
    return packed(cells).reshape(-1), order_of(array)


def in_shape(array: DistributedArray, cells: Array) -> Array:
    """Return cells that `in_order` split in the shape of this rank's part; likewise collective."""
    rows = rows_of(array)
    cells = cells.reshape(rows[array.world.rank].shape)
    return cells if rows == array.partition else array.world.redistribute(cells, rows, array.partition)


def rows_of(array: DistributedArray) -> Partition:
    """Return the partition that splits an array along axis 0 alone: its own, if that does."""
    is_split = any(parts > 1 for parts in array.partition.grid[1:])
    return split_along(array.shape, 0, array.world.size) if is_split else array.partition


def in_balance(world: World, cells: Array, partition: Partition) -> DistributedArray:
    """Return an array of one axis, of which each rank has as many cells. Collective.

    cells: this rank's. partition: how they are split.
    """
    even = Partition(partition.shape, (world.size,))
    if lengths_of(even, world.size) != lengths_of(partition, world.size):
        cells = world.redistribute(cells, partition, even)
    return made_of(world, even, cells)


def with_whole_lines(array: DistributedArray, axis: int) -> tuple[Array, Partition]:
    """Return this rank's cells under a partition that does not split an axis. Collective if the array's does.

    The array has more than one axis. The longest other axis is split.
    """
    if array.partition.grid[axis] == 1:
        return array.interior, array.partition
    others = [other for other in range(len(array.shape)) if other != axis]
    split = max(others, key=lambda other: array.shape[other])
    partition = split_along(array.shape, split, array.world.size)
    return array.world.redistribute(array.interior, array.partition, partition), partition


def without_axis(partition: Partition, axis: int, before: Sequence[int] = ()) -> Partition:
    """Return the partition of the axes but `axis`, which is not split. before: further first axes."""
    kept = [other for other in range(len(partition.shape)) if other != axis]
    starts = tuple(partition.starts[other] for other in kept) if partition.starts else ()
    units = tuple(partition.unit(other) for other in kept) if partition.units else ()
    return Partition(
        (*before, *(partition.shape[other] for other in kept)),
        (*(1,) * len(before), *(partition.grid[other] for other in kept)),
        units=(*(1,) * len(before), *units) if units else (),
        starts=(*((0,),) * len(before), *starts) if starts else (),
    )


def as_device_array(world: World, values: npt.ArrayLike) -> Array:
    """Return values, which every rank has, as an array of this rank's device."""
    return world.xp.asarray(np.asarray(values))
