"""An array that is split over the ranks: this rank's padded block, and how much of its halo is valid."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.block_layout import Allocator
from meshrun.runner.arrays.halo.exchange import HaloBlock, HaloPlan, exchange
from meshrun.runner.arrays.operations import cells, reductions, shapes
from meshrun.runner.arrays.operations.parts import Parts
from meshrun.runner.arrays.operations.reductions import Axes
from meshrun.runner.arrays.operations.split_array import SplitArray, begin
from meshrun.runner.arrays.redistribute import redistribute
from meshrun.runner.arrays.reduce import Reduction, reduce_cells
from meshrun.runner.device.api import poison
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, split_over
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.world.world import World

FUNCTION_MODULES = (cells, reductions, shapes)  # which enter NumPy's functions of arrays in the table


@dataclass(eq=False, repr=False)
class DistributedArray(HaloBlock, SplitArray):
    """An array that is split over the ranks of a world; from `world.load`, `world.zeros` or `meshrun.load`.

    It is used as NumPy's arrays are: with operators, slices, masks and NumPy's functions. Every rank calls
    the same operations in the same order.

    Attributes
    ----------
    world : World
        The ranks.
    block : numpy.ndarray or cupy.ndarray
        This rank's cells with their halo, on its device. A rank without cells has a halo too, so that slices
        of its block fit each other.
    interior : numpy.ndarray or cupy.ndarray
        The view of `block` without the halo: the cells that this rank owns.
    shape : tuple of int
        Of the whole array.
    dtype : numpy.dtype
        Of its cells.
    region : Region
        This rank's box of the whole array: `region.start` and `region.stop`, an index per axis.
    partition : Partition
        `partition[rank]` is the box of any rank.
    valid : tuple of (int, int)
        Per axis, how many cells of the halo before and after the interior are as their owners have them. An
        exchange sets it to the halo's widths, `written` to zero. The same on every rank.

    Examples
    --------
    >>> u = meshrun.load(world, "u.npy", halo=1, boundary="reflect")
    >>> u.exchange()
    >>> smooth = u.empty_like()
    >>> smooth.interior[...] = (u.block[:-2] + u.block[1:-1] + u.block[2:])[:, 1:-1] / 3
    >>> meshrun.save(world, "smooth.npy", smooth)
    """

    __repr__ = SplitArray.__repr__

    @property
    def shape(self) -> Shape:
        return self.layout.partition.shape

    @property
    def partition(self) -> Partition:
        return self.layout.partition

    @property
    def region(self) -> Region:
        return self.layout.region

    def made(self, parts: Parts, own: Array) -> DistributedArray:
        return array_of(self.world, parts, own)

    def exchange(self) -> None:
        """Fill the whole halo from the cells of other ranks and by the boundary's rule. Collective.

        It does not matter what has been written since the last exchange. Work that is issued to the device
        afterwards finds the halo filled.
        """
        self.written()
        exchange([self])

    def empty_like(self, dtype: npt.DTypeLike | None = None) -> DistributedArray:
        """Return another array with the same partition, halo and boundary; its cells are to be filled.

        Parameters
        ----------
        dtype : dtype, optional
            Of the new array's cells. None: of this array's.
        """
        array = empty_array(self.world, self.layout, self.dtype if dtype is None else np.dtype(dtype))
        poison(array.block)
        return array

    def redistribute(self, split: int | Sequence[int]) -> DistributedArray:
        """Return the same array under another partition, with the same halo, not yet filled. Collective.

        Parameters
        ----------
        split : int or sequence of int
            The axis to split, or the number of parts along each of the first axes, whose product is the
            number of ranks.

        Raises
        ------
        UserError
            On every rank, if the array has no such axis, or the parts are not one for each rank.
        """
        layout, world = self.layout, self.world
        partition = world.collective_call(lambda: split_over(self.shape, split, world.size))
        plan = HaloPlan(partition, world.rank, layout.declared, layout.boundary, layout.cval, padded=True)
        moved = replace(self, layout=plan, block=plan.empty(world.backend, self.dtype))
        plan.poison(moved.block)
        redistribute(RedistributionPlan(self.partition, partition, world.size), self, moved)
        return moved

    def sum(self, axis: Axes = None, **options: Any) -> Array:
        """Return the sum of all cells, on every rank, or sums along some axes. Collective.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Along which to add; then the result is a distributed array. None: all.
        **options : object
            Others of `numpy.sum`.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            Of shape `()`, on this rank's device, and of the dtype of `numpy.sum`. The bits are the same on
            any number of ranks. On CPUs, sums of floats are exact and rounded once; other sums are added in
            a tree that depends on the array's shape alone.
        """
        return np.sum(self, axis, **options) if axis is not None or options else self._reduced("sum")

    def min(self, axis: Axes = None, **options: Any) -> Array:
        """Return the smallest cell, of shape `()`, on every rank; NaN if there is one. Collective.

        Parameters
        ----------
        axis : int or tuple of int, optional
            As of `sum`.
        **options : object
            As of `sum`.

        Raises
        ------
        UserError
            On every rank, for an array without cells.
        """
        return np.min(self, axis, **options) if axis is not None or options else self._reduced("min")

    def max(self, axis: Axes = None, **options: Any) -> Array:
        """Return the largest cell, of shape `()`, on every rank; NaN if there is one. Collective.

        Parameters
        ----------
        axis : int or tuple of int, optional
            As of `sum`.
        **options : object
            As of `sum`.

        Raises
        ------
        UserError
            On every rank, for an array without cells.
        """
        return np.max(self, axis, **options) if axis is not None or options else self._reduced("max")

    def dot(self, other: DistributedArray) -> Array:
        """Return the sum of the products of the cells of two arrays, as `sum` does. Collective.

        Parameters
        ----------
        other : DistributedArray
            Of the same shape and partition; of any dtype and halo.

        Raises
        ------
        UserError
            On every rank, if the shapes or the partitions differ.
        """
        if other.partition != self.partition:
            raise UserError(
                "dot of two arrays that are split differently",
                got=f"shape {self.shape} in parts {self.partition.grid}, and "
                f"shape {other.shape} in parts {other.partition.grid}",
                hint="array.redistribute(split) for one of two arrays of one shape",
                everywhere=True,
            )
        return self._reduced("sum", other)

    def _reduced(self, reduction: Reduction, *others: DistributedArray) -> Array:
        begin(self.world, reduction, self, *others)
        first, *rest = (reductions.partitioned(one) for one in (self, *others))
        factors = (one.interior for one in (first, *rest))
        found = reduce_cells(self.world, first.partition, reduction, *factors)
        self.world.operations.waits.note_caller()
        return found


@functools.lru_cache(4096)
def plain_layout(parts: Parts, rank: int) -> HaloPlan:
    """Return the layout of a rank's cells without a halo. parts: a partition, or boxes of a view."""
    # Without a halo, a layout asks nothing of boxes that a partition alone has.
    return HaloPlan(cast(Partition, parts), rank, ((0, 0),) * len(parts.shape), "constant")


def array_of(world: World, parts: Parts, own: Array) -> DistributedArray:
    """Return an array without a halo. own: this rank's cells, which it shares."""
    return DistributedArray(plain_layout(parts, world.rank), own, world)


def empty_array(
    world: World, layout: HaloPlan, dtype: np.dtype[Any], allocator: Allocator | None = None
) -> DistributedArray:
    """Return an array with uninitialised blocks. allocator: of this rank's; by default the back end."""
    return DistributedArray(layout, layout.empty(allocator or world.backend, dtype), world)
