"""Compute the boxes of cells that fill halos, as bytes in memory: the rows of the table of kernels/halo.cu.

A halo cell is a copy of one cell that some rank owns, or the constant, as `runner.plan.halo` determines.
Along axes that are whole, and in corners too, it is a copy of an own cell, never of another halo cell. The
copies of one exchange may therefore be made in any order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.arrays.block_layout import BlockLayout
from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.device.api import Backend
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import AxisCopy, Modes, Slices, Transfer, Widths, sends, transfers
from meshrun.runner.region import Array, Shape

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables

KERNELS = Path(__file__).parent / "kernels" / "halo.cu"
THREADS = 256  # of a block
AXES = 6  # of a box in the table, as in kernels/halo.cu
UNITS = 4 * THREADS  # of a row, at most
WIDEST = 16  # bytes of a unit
MOST = 1 << 31  # units of a box
EXCHANGE = 1 << 32  # the sum of the marks of an exchange's rows for one neighbour, as in kernels/halo.cu
PEER, ARRIVED, MARK, COLUMNS = 5, 7, 8, 9 + 3 * AXES  # of the table
Axis = tuple[int, int, int]  # cells, and bytes between two of them at the source and at the target


@dataclass(frozen=True)
class HaloBox:
    """Cells to copy. source, target: addresses of the first one. axes: the outermost first; the last one is
    of the bytes of a cell. peer: rank whose memory `target` is; -1 for this rank's own."""

    source: int
    target: int
    axes: tuple[Axis, ...]
    peer: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(count for count, _, _ in self.axes)


@dataclass(frozen=True)
class FieldHalos:
    """One field's halos: the partition of its array, and the halo of every rank's block.

    aligned: as of `BlockLayout`. read: the part of each side's width that is filled; None: all.
    """

    partition: Partition
    widths: Widths
    boundary: str | Modes
    itemsize: int
    aligned: int = 0
    read: Widths | None = None

    @property
    def filled(self) -> Widths:
        """The widths that an exchange fills."""
        return self.widths if self.read is None else self.read

    @classmethod
    def of(cls, array: DistributedArray) -> FieldHalos:
        """Return the halos of an array."""
        plan, itemsize = array.layout, array.dtype.itemsize
        return cls(plan.partition, plan.declared, plan.boundary, itemsize, plan.aligned, plan.filled.declared)

    def layout(self, rank: int) -> BlockLayout:
        """Return the place of a rank's cells. Transfers count in the part that is filled."""
        return _layout(self, rank)

    def sent(self, rank: int) -> list[Transfer]:
        """Return the transfers of a rank's cells to its neighbours."""
        return list(sends(self.partition, rank, self.filled, self.boundary))

    def received(self, rank: int) -> list[Transfer]:
        """Return the transfers of neighbours' cells to a rank, those of each in the order of sending."""
        return [one for one in self._needed(rank) if one.sender != rank]

    def kept(self, rank: int) -> list[Transfer]:
        """Return the transfers from a rank to itself."""
        return [one for one in self._needed(rank) if one.sender == rank]

    def _needed(self, rank: int) -> list[Transfer]:
        return list(transfers(self.partition, rank, self.filled, self.boundary))


def neighbours(fields: Sequence[FieldHalos], rank: int) -> list[int]:
    """Return the ranks with which `rank` exchanges cells in either direction: a symmetric relation."""
    to = {one.receiver for field in fields for one in field.sent(rank)}
    return sorted(to | {one.sender for field in fields for one in field.received(rank)})


def launch(
    tables: DeviceTables,
    kernel: Callable[..., None],
    boxes: Iterable[HaloBox],
    *more: Any,
    arrived: Mapping[int, int] | None = None,
) -> Callable[[], None]:
    """Return a call that launches `kernel` on these boxes, with more arguments. arrived: as of `table`.

    A copy within a device has a thread for each unit: small halos then take more of its processors. A row for
    a neighbour is longer, as each is announced.
    """
    rows = tables.upload(table(boxes, arrived, UNITS if arrived else THREADS))
    grid, block, arguments = (len(rows),), (THREADS,), (rows, *more)
    return lambda: kernel(grid, block, arguments)


def constant_cells(
    backend: Backend, dtypes: Iterable[Any], boundary: str | Modes, cval: float
) -> list[Array]:
    """Return the boundary's constant as a cell of each dtype on the device; of other boundaries, unset."""
    cells = [backend.empty((1,), np.dtype(dtype)) for dtype in dtypes]
    for cell in cells if boundary == "constant" else ():
        cell[...] = cval
    return cells


def own_boxes(
    fields: Sequence[FieldHalos], rank: int, blocks: Sequence[int], cells: Sequence[int]
) -> list[HaloBox]:
    """Return the copies to halo cells that need no other rank. blocks, cells: addresses, of each field."""
    found: list[HaloBox] = []
    for field, block, cell in zip(fields, blocks, cells, strict=True):
        found += constants(field, rank, cell, block)
        found += [between_blocks(field, kept, block, block) for kept in field.kept(rank)]
    return found


def boxes_within(
    per_axis: Sequence[Sequence[AxisCopy]], strides: Sequence[int], itemsize: int, address: int
) -> list[HaloBox]:
    """Return the copies within one block that fill cells along all axes, corners included.

    per_axis: the cells that are there, then the copies of some of them; targets and sources count in the
    block. strides: bytes from one cell to the next. address: of the block's first cell.
    """
    found = []
    for copies in product(*per_axis):
        if any(copy is not of_axis[0] for copy, of_axis in zip(copies, per_axis, strict=True)):
            source, target = (
                address
                + sum(getattr(copy, end) * stride for copy, stride in zip(copies, strides, strict=True))
                for end in ("source", "target")
            )
            axes = [(c.count, c.step * stride, stride) for c, stride in zip(copies, strides, strict=True)]
            found.append(HaloBox(source, target, (*axes, (itemsize, 1, 1))))
    return found


def constant_boxes(slabs: Iterable[Array], cell: int, address: Callable[[Array], int]) -> list[HaloBox]:
    """Return the copies of the constant, at address `cell`, to all cells of some views."""
    found = []
    for slab in slabs:
        axes = [(length, 0, stride) for length, stride in zip(slab.shape, slab.strides, strict=True)]
        found.append(HaloBox(cell, address(slab), (*axes, (slab.dtype.itemsize, 1, 1))))
    return found


def between_blocks(field: FieldHalos, moved: Transfer, source: int, target: int, peer: int = -1) -> HaloBox:
    """Return the copy from the sender's block at address `source` into the receiver's at `target`."""
    start, steps = _own_cells(field, moved, field.layout(moved.sender))
    place, strides = _cells(field, moved.target, moved.receiver)
    return HaloBox(source + start, target + place, _axes(moved.target, steps, strides, field.itemsize), peer)


def to_message(field: FieldHalos, moved: Transfer, source: int, message: int) -> HaloBox:
    """Return the copy from the sender's block at address `source` to a C-contiguous message."""
    start, steps = _own_cells(field, moved, field.layout(moved.sender))
    strides = _strides(_lengths(moved.target), field.itemsize)
    return HaloBox(source + start, message, _axes(moved.target, steps, strides, field.itemsize))


def from_message(field: FieldHalos, moved: Transfer, message: int, target: int) -> HaloBox:
    """Return the copy from that message into the receiver's block at address `target`."""
    place, strides = _cells(field, moved.target, moved.receiver)
    steps = _strides(_lengths(moved.target), field.itemsize)
    return HaloBox(message, target + place, _axes(moved.target, steps, strides, field.itemsize))


def message_bytes(field: FieldHalos, moved: Transfer) -> int:
    """Return the bytes of that message, including those that align the next one."""
    return -(-math.prod(_lengths(moved.target)) * field.itemsize // WIDEST) * WIDEST


def constants(field: FieldHalos, rank: int, cell: int, target: int) -> Iterator[HaloBox]:
    """Yield the copies of the constant, at address `cell`, to the cells beyond the array."""
    layout = field.layout(rank).filled
    for slab, _ in layout.outside:
        whole = tuple(slice(*part.indices(n)) for part, n in zip(slab, layout.shape, strict=True))
        place, strides = _cells(field, whole, rank)
        yield HaloBox(cell, target + place, _axes(whole, [0] * len(whole), strides, field.itemsize))


def table(
    boxes: Iterable[HaloBox], arrived: Mapping[int, int] | None = None, most: int = UNITS
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of int64 for the kernel, at least one. Raises ValueError for a box it cannot copy.

    most: units of a row.
    arrived: of each neighbour, the address of its count of what arrived from this rank. Each has a row at
    least, and its rows' marks are EXCHANGE in all.
    """
    parts = [part for box in boxes if box.nbytes for part in _aligned(_simplified(box))]
    rows = [row for part in parts for row in _rows(part, most)]
    for peer, address in (arrived or {}).items():
        of_peer = [row for row in rows if row[PEER] == peer]
        if not of_peer:
            of_peer = [_nothing(peer)]
            rows += of_peer
        for row in of_peer:
            row[ARRIVED], row[MARK] = address, 1
        of_peer[0][MARK] = EXCHANGE - (len(of_peer) - 1)
    return np.array(rows or [_nothing(-1)], np.int64).reshape(-1, COLUMNS)


def _nothing(peer: int) -> list[int]:
    """Return a row that copies no cell."""
    return [0, 0, 1, 0, 0, peer, *[0] * (COLUMNS - PEER - 1)]


@functools.cache
def _layout(field: FieldHalos, rank: int) -> BlockLayout:
    partition = field.partition
    cut = [parts > 1 for parts in partition.grid]
    layout = BlockLayout(
        partition[rank],
        partition.shape,
        cut,
        field.widths,
        field.boundary,
        read=field.read,
        padded=partition.empty_halos,
    )
    layout.aligned = field.aligned
    return layout


def _rows(box: HaloBox, most: int) -> Iterator[list[int]]:
    length, *_ = box.axes[-1]
    outer = box.axes[:-1]
    parts = [length, box.source, box.target, WIDEST, *(part for axis in outer for part in axis[1:])]
    unit = math.gcd(*parts)
    axes = [*outer, (length // unit, unit, unit)]
    units = box.nbytes // unit
    if len(axes) > AXES or units >= MOST:
        raise ValueError(f"a face of {len(axes)} axes and {units:,} units")
    columns = [[axis[part] for axis in axes] + [0] * (AXES - len(axes)) for part in range(3)]
    ends = [*range(0, units, most), units]
    for first, last in pairwise(ends):
        yield [box.source, box.target, unit, first, last, box.peer, len(axes), 0, 0, *chain(*columns)]


def _simplified(box: HaloBox) -> HaloBox:
    """Return the same copy with as few axes as possible."""
    found: list[Axis] = []
    for axis in reversed(box.axes):
        count, source, target = axis
        if found:
            inner, *steps = found[-1]
            if count == 1:
                continue
            if [source, target] == [inner * step for step in steps]:
                found[-1] = (count * inner, steps[0], steps[1])
                continue
        found.append(axis)
    return replace(box, axes=tuple(reversed(found)))


def _aligned(box: HaloBox) -> Iterator[HaloBox]:
    """Yield the parts of a box: if possible, a middle part that is copied in the widest units."""
    (length, *steps), outer = box.axes[-1], box.axes[:-1]
    head = -box.source % WIDEST
    body = (length - head) // WIDEST * WIDEST
    alike = all(step % WIDEST == 0 for axis in outer for step in axis[1:])
    if head + length % WIDEST == 0 or body <= 0 or not alike or (box.source - box.target) % WIDEST:
        yield box
        return
    for first, count in ((0, head), (head, body), (head + body, length - head - body)):
        if count:
            axes = (*outer, (count, steps[0], steps[1]))
            yield HaloBox(box.source + first, box.target + first, axes, box.peer)


def _own_cells(field: FieldHalos, moved: Transfer, layout: BlockLayout) -> tuple[int, list[int]]:
    """Return the offset of the first cell to copy, in bytes, and the step to the next along each axis:
    negative along flipped axes, 0 where one cell is repeated."""
    strides = layout.strides(field.itemsize)
    offset, steps = 0, []
    for axis, (part, core, stride) in enumerate(zip(moved.source, layout.core, strides, strict=True)):
        first = part.stop - 1 if axis in moved.flip else part.start
        offset += (core.start + first) * stride
        step = -stride if axis in moved.flip else stride
        steps.append(0 if part.stop - part.start == 1 else step)
    return offset, steps


def _cells(field: FieldHalos, part: Slices, rank: int) -> tuple[int, list[int]]:
    """Return the offset of the first cell in a rank's block and the steps to the next ones, in bytes. part:
    counted in the part of the block that is filled."""
    layout = field.layout(rank)
    strides = layout.strides(field.itemsize)
    starts = (one.start + filled.start for one, filled in zip(part, layout.part, strict=True))
    return sum(start * stride for start, stride in zip(starts, strides, strict=True)), strides


def _axes(cells: Slices, steps: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[Axis, ...]:
    return (*zip(_lengths(cells), steps, strides, strict=True), (itemsize, 1, 1))


def _lengths(part: Slices) -> Shape:
    return tuple(one.stop - one.start for one in part)


def _strides(shape: Shape, itemsize: int) -> list[int]:
    return [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
