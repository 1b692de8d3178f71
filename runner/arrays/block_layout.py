"""The padded block of a region: where its cells are in memory, and how its halo is filled from itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from meshrun.runner.device.api import poison
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import (
    AxisCopy,
    Constants,
    Modes,
    Slices,
    Widths,
    along,
    axis_copies,
    outside_slabs,
)
from meshrun.runner.region import Array, Region, Shape


class Allocator(Protocol):
    """Makes uninitialised arrays on a rank's device."""

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return a C-contiguous array."""


class BlockLayout:
    """The padded block of `region` in an array of `whole` cells.

    cut: whether the region is only part of each axis; the halo of a whole axis is filled from the block
    itself. filled: the layout of the part of the block whose halo is filled; its widths are `read`, by
    default all. part: slices of that part. shape: of the padded block. core: slices of its own cells.
    outside: of those with a constant, each with it. padded: whether an empty block has a halo too, whose
    cells are not filled. within: the copies of own cells that fill the halo of each axis that is not cut.
    aligned: bytes; in memory from `empty` the own cells of each row begin at a multiple of them. 0: at any.
    rows_before: rows of memory from `empty` that lie before the block.
    """

    def __init__(
        self,
        region: Region,
        whole: Shape,
        cut: Sequence[bool],
        widths: Widths,
        boundary: str | Modes,
        cval: float | Constants = 0.0,
        read: Widths | None = None,
        *,
        padded: bool = False,
    ) -> None:
        if region.size == 0 and not padded:
            widths = tuple((0, 0) for _ in widths)
        self.region, self.widths, self.whole = region, widths, whole
        self.boundary, self.cval = boundary, cval
        self.aligned, self.rows_before = 0, 0
        self._memory: Array | None = None
        one_block = Partition(whole, (1,) * len(whole))
        # Copies within the block, along axes that are not cut; the first one is of own cells to themselves.
        self.within: list[tuple[int, AxisCopy]] = [
            (axis, copy)
            for axis, is_cut in enumerate(cut)
            if not is_cut
            for copy in axis_copies(one_block, axis, 0, widths[axis], along(boundary, axis))[1:]
        ]
        self.filled = self
        if read is not None and read != widths:
            self.filled = BlockLayout(region, whole, cut, read, boundary, cval, padded=padded)

    @cached_property
    def core(self) -> Slices:
        pairs = zip(self.widths, self.region.shape, strict=True)
        return tuple(slice(low, low + n) for (low, _), n in pairs)

    @cached_property
    def outside(self) -> list[tuple[Slices, float]]:
        return outside_slabs(self.region, self.whole, self.widths, self.boundary, self.cval)

    @cached_property
    def shape(self) -> Shape:
        lengths = zip(self.widths, self.region.shape, strict=True)
        return tuple(low + n + high for (low, high), n in lengths)

    @cached_property
    def _within_cells(self) -> list[tuple[int, AxisCopy]]:
        """The copies `within`, counted from the first own cell along their axis."""
        return [
            (axis, replace(copy, target=copy.target - self.widths[axis][0])) for axis, copy in self.within
        ]

    @cached_property
    def part(self) -> Slices:
        return self.filled.inside(self)

    def empty(self, allocator: Allocator, dtype: np.dtype[Any]) -> Array:
        """Return memory for a block; if rows are aligned, a view of an array of one axis."""
        if not self.shape:
            return allocator.empty((), dtype)
        lengths = (self.rows_before + self.shape[0], *self.shape[1:])
        if self.aligned:
            before, pitch = self.row(dtype.itemsize)
            rows = (*lengths[:-1], pitch) if len(lengths) > 1 else lengths
            flat = allocator.empty((before + math.prod(rows),), dtype)
            whole = flat[before:].reshape(rows)[..., : lengths[-1]]
        else:
            whole = allocator.empty(lengths, dtype)
        if self.rows_before == 0:
            return whole
        self._memory = whole
        return whole[self.rows_before :]

    def earlier(self) -> Array:
        """Return the block `rows_before` rows before the one that `empty` returned, which it overlaps."""
        assert self._memory is not None
        return self._memory[: self.shape[0]]

    def inside(self, layout: BlockLayout) -> Slices:
        """Return the place of this block in the block of `layout`: of the same cells, with a wider halo."""
        return tuple(
            slice(core.start - low, core.stop + high)
            for core, (low, high) in zip(layout.core, self.widths, strict=True)
        )

    def row(self, itemsize: int) -> tuple[int, int]:
        """Return the elements that lie in memory before the block's first row, and those from one row to the
        next: what rounds a row up to whole lines lies between its own cells and those of the next one."""
        if not self.aligned:
            return 0, self.shape[-1]
        unit = max(self.aligned // itemsize, 1)
        return -self.widths[-1][0] % unit, -(-self.shape[-1] // unit) * unit

    def strides(self, itemsize: int) -> list[int]:
        """Return the bytes from one cell to the next, per axis."""
        lengths = (*self.shape[:-1], self.row(itemsize)[1])
        return [itemsize * math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]

    def poison(self, block: Array) -> None:
        """Poison every halo cell, so that unfilled cells are visible in the result."""
        for axis in range(len(self.shape)):
            for slab in self._slabs(axis):
                poison(block[slab])

    def fill_outside(self, block: Array) -> None:
        """Fill the cells beyond the array that have a constant."""
        for slab, value in self.outside:
            block[slab] = value

    def set_constants(self, cval: Constants) -> None:
        """Set the constants of each axis before and after the array, of the block and of its filled part."""
        for layout in {self, self.filled}:
            layout.cval = cval
            if "outside" in vars(layout):
                del layout.outside

    def fill_whole_axes(self, block: Array) -> None:
        """Copy the halo of the uncut axes, in the block or a part of it that includes those axes whole."""
        for axis, copy in self._within_cells:
            self.copy_along(block, axis, copy, self.widths[axis][0])

    def copy_along(self, block: Array, axis: int, copy: AxisCopy, shift: int) -> None:
        """Copy cells along one axis. shift: from the copy's indices to the block's."""
        first, last = copy.source_range
        source = _along(block, axis, slice(first + shift, last + shift))
        if copy.step < 0:
            source = reverse(source, (axis,))
        target = copy.target + shift
        _along(block, axis, slice(target, target + copy.count))[...] = source

    def _slabs(self, axis: int) -> list[Slices]:
        low, high = self.widths[axis]
        length = self.shape[axis]
        ranges = [slice(0, low), slice(length - high, length)]
        whole = [slice(None)] * len(self.shape)
        return [(*whole[:axis], s, *whole[axis + 1 :]) for s in ranges if s.stop > s.start]


@dataclass(eq=False)
class PaddedBlock:
    """A padded block in memory. interior: view of its own cells. filled: of the part with a filled halo."""

    layout: BlockLayout
    block: Array
    interior: Array = field(init=False)
    filled: Array = field(init=False)

    def __post_init__(self) -> None:
        # Views, also of a block without axes. Without a halo, all is the block.
        if self.block.shape == self.layout.region.shape and self.block.shape:
            self.interior = self.filled = self.block
            return
        core, part = (*self.layout.core, ...), (*self.layout.part, ...)
        self.interior, self.filled = self.block[core], self.block[part]


def reverse(array: Array, axes: Iterable[int]) -> Array:
    """Return a view of the array with the given axes reversed."""
    steps = [slice(None)] * array.ndim
    for axis in axes:
        steps[axis] = slice(None, None, -1)
    return array[tuple(steps)]


def _along(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]
