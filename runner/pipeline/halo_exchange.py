"""Halo exchange in memory: from the block itself, from other ranks, or with the constant.

Along cut axes, cells are exchanged with the ranks that own them. Along whole axes no message is needed:
their halo is copied within the block, including the exchanged cells, so that a block cut along one axis
costs two messages, however many axes have a halo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.comm.api import Arrays, Message, Pending
from runner.device.api import poison
from runner.plan.grid import Partition
from runner.plan.halo import AxisCopy, Slices, Transfer, Widths, axis_copies, sends, transfers
from runner.region import Array, Region, Shape

Arrival = tuple[Transfer, Array]  # cells received beside the place they go to


@dataclass
class Exchange:
    """An exchange in progress: of each block, the cells that arrive beside the place they go to."""

    pending: Pending
    arriving: list[tuple[HaloPlan, Array, list[Arrival]]]

    def finish(self) -> None:
        """Wait until the halos are complete (for work issued to the current stream afterwards).

        The cells that need no other rank must be filled by then.
        """
        self.receive()
        self.fill_corners()

    def receive(self) -> None:
        """Wait until the other ranks' cells are in place."""
        self.pending.wait()
        for plan, block, arrivals in self.arriving:
            inner = block[plan.inner]
            for transfer, buffer in arrivals:
                inner[transfer.target] = _flip(buffer, transfer.flip)

    def fill_corners(self) -> None:
        """Copy the halo of the uncut axes beside the halo of the cut ones, when that is complete."""
        for plan, block, _ in self.arriving:
            for slab in plan.halo_slabs:
                plan.fill_whole_axes(block[slab])


class Halos:
    """The halos of several blocks of one rank, exchanged together: one group of messages for all.

    plans: per block. An item of `blocks` below belongs to the plan at its place.
    """

    def __init__(self, plans: Sequence[HaloPlan]) -> None:
        self.plans = tuple(plans)

    @property
    def region(self) -> Region:
        """The rank's own cells, in the first array's indices."""
        return self.plans[0].region

    def received_bytes(self, blocks: Sequence[Array]) -> int:
        """Bytes that arrive from other ranks in one exchange; as many are sent."""
        pairs = zip(self.plans, blocks, strict=True)
        return sum(plan.received_cells * int(block.dtype.itemsize) for plan, block in pairs)

    def fill_own(self, blocks: Sequence[Array]) -> None:
        """Fill the halo cells that need no other rank. The blocks' own cells must be filled."""
        for plan, block in zip(self.plans, blocks, strict=True):
            plan.fill_own(block)

    def pack(self, blocks: Sequence[Array]) -> list[list[Message]]:
        """Copy what other ranks need, for a `start` during which the blocks' cells may change."""
        return [plan.pack(block) for plan, block in zip(self.plans, blocks, strict=True)]

    def start(
        self, blocks: Sequence[Array], arrays: Arrays, packed: Sequence[list[Message]] | None = None
    ) -> Exchange:
        """Start sending what others need and receiving what these blocks need; `fill_own` is separate.

        packed: messages to send. Without it the blocks' own cells must not change until `finish`.
        """
        outgoing: list[Message] = []
        incoming: list[Message] = []
        arriving = []
        for number, (plan, block) in enumerate(zip(self.plans, blocks, strict=True)):
            outgoing += packed[number] if packed else plan.messages(block)
            received, arrivals = plan.arrivals(block)
            incoming += received
            arriving.append((plan, block, arrivals))
        return Exchange(arrays.exchange(outgoing, incoming), arriving)

    def fill(self, blocks: Sequence[Array], arrays: Arrays) -> None:
        """Fill the whole halos."""
        exchange = self.start(blocks, arrays)
        self.fill_own(blocks)
        exchange.finish()

    def connect(self, arrays: Arrays, one_byte: Array) -> None:
        """Send a byte along every link of the exchange: NCCL connects at the first message."""
        to = sorted({transfer.receiver for plan in self.plans for transfer in plan.sends})
        from_ = sorted({transfer.sender for plan in self.plans for transfer in plan.receives})
        arrays.exchange(
            [(peer, one_byte[:1]) for peer in to], [(peer, one_byte[1:]) for peer in from_]
        ).wait()


class HaloPlan:
    """Plan that fills one rank's padded block, for one partition, halo and boundary.

    shape: of the padded block. core: slices of its own cells. An empty block has no halo.
    """

    def __init__(
        self, partition: Partition, rank: int, widths: Widths, boundary: str, cval: float = 0.0
    ) -> None:
        self.region = partition[rank]
        if self.region.size == 0:
            widths = tuple((0, 0) for _ in widths)
        own = self.region.shape
        cut = tuple(parts > 1 for parts in partition.grid)
        self.widths, self.cval = widths, cval
        self.shape: Shape = tuple(low + n + high for (low, high), n in zip(widths, own, strict=True))
        self.core: Slices = tuple(slice(low, low + n) for (low, _), n in zip(widths, own, strict=True))
        # Whole axes without their halo: what the exchange works on.
        self.inner: Slices = tuple(
            slice(None) if is_cut else core for is_cut, core in zip(cut, self.core, strict=True)
        )
        # The opposite: whole axes with their halo, cut axes without.
        self._own_rows: Slices = tuple(
            core if is_cut else slice(None) for is_cut, core in zip(cut, self.core, strict=True)
        )
        exchanged = tuple(width if is_cut else (0, 0) for is_cut, width in zip(cut, self.widths, strict=True))
        needed = list(transfers(partition, rank, exchanged, boundary))
        self.receives = [transfer for transfer in needed if transfer.sender != rank]
        self.sends = list(sends(partition, rank, exchanged, boundary))
        self._own = [transfer for transfer in needed if transfer.sender == rank]
        self._within: list[tuple[int, AxisCopy]] = [
            (axis, copy)
            for axis, is_cut in enumerate(cut)
            if not is_cut
            for copy in axis_copies(partition, axis, 0, self.widths[axis], boundary)[1:]
        ]
        self.halo_slabs = [slab for axis, is_cut in enumerate(cut) if is_cut for slab in self._slabs(axis)]
        self._outside = list(self._outside_slabs(partition.shape)) if boundary == "constant" else []

    @property
    def received_cells(self) -> int:
        """Cells that arrive from other ranks."""
        return sum(_size(transfer.source) for transfer in self.receives)

    def poison(self, block: Array) -> None:
        """Poison every halo cell: unfilled cells show in the result."""
        for axis in range(len(self.shape)):
            for slab in self._slabs(axis):
                poison(block[slab])

    def fill_own(self, block: Array) -> None:
        """Fill the halo cells that need no other rank. The block's own cells must be filled."""
        self.fill_outside(block)
        inner, core = block[self.inner], block[self.core]
        for transfer in self._own:
            inner[transfer.target] = _flip(core[transfer.source], transfer.flip)
        self.fill_whole_axes(block[self._own_rows])

    def pack(self, block: Array) -> list[Message]:
        """Copy what other ranks need, for a `start` during which the block's cells may change."""
        core = block[self.core]
        return [(t.receiver, core[t.source].copy(order="C")) for t in self.sends]

    def messages(self, block: Array) -> list[Message]:
        """Return what other ranks need of the block, as views where that is possible."""
        core = block[self.core]
        return [(t.receiver, _packed(core[t.source])) for t in self.sends]

    def arrivals(self, block: Array) -> tuple[list[Message], list[Arrival]]:
        """Return where cells are received, and those of them that must be moved to the halo afterwards."""
        inner = block[self.inner]
        incoming: list[Message] = []
        arrivals: list[Arrival] = []
        for transfer in self.receives:
            buffer = inner[transfer.target]
            shape = tuple(part.stop - part.start for part in transfer.source)
            # Receive in place if the cells are contiguous in the order of the message.
            if transfer.flip or buffer.shape != shape or not buffer.flags.c_contiguous:
                buffer = np.empty_like(buffer, shape=shape, order="C")
                arrivals.append((transfer, buffer))
            incoming.append((transfer.sender, buffer))
        return incoming, arrivals

    def fill_outside(self, block: Array) -> None:
        """Fill the cells beyond the array with the constant, for that boundary."""
        for slab in self._outside:
            block[slab] = self.cval

    def fill_whole_axes(self, block: Array) -> None:
        """Copy the halo of the uncut axes, in any part of the block that holds those axes whole."""
        for axis, copy in self._within:
            low = self.widths[axis][0]
            self.copy_along(block, axis, replace(copy, target=copy.target - low), low)

    def copy_along(self, block: Array, axis: int, copy: AxisCopy, shift: int) -> None:
        """Copy cells along one axis. shift: from the copy's indices to the block's."""
        first, last = copy.source_range
        source = _along(block, axis, slice(first + shift, last + shift))
        if copy.step < 0:
            source = _flip(source, (axis,))
        target = copy.target + shift
        _along(block, axis, slice(target, target + copy.count))[...] = source

    def _slabs(self, axis: int) -> list[Slices]:
        low, high = self.widths[axis]
        length = self.shape[axis]
        ranges = [slice(0, low), slice(length - high, length)]
        whole = [slice(None)] * len(self.shape)
        return [(*whole[:axis], s, *whole[axis + 1 :]) for s in ranges if s.stop > s.start]

    def _outside_slabs(self, shape: Shape) -> Iterable[Slices]:
        whole = [slice(None)] * len(self.shape)
        for axis, (low, high) in enumerate(self.widths):
            before = max(low - self.region.start[axis], 0)
            after = max(self.region.stop[axis] + high - shape[axis], 0)
            for outside in (slice(0, before), slice(self.shape[axis] - after, None)):
                yield (*whole[:axis], outside, *whole[axis + 1 :])


def _along(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]


def _flip(array: Array, axes: Iterable[int]) -> Array:
    steps = [slice(None)] * array.ndim
    for axis in axes:
        steps[axis] = slice(None, None, -1)
    return array[tuple(steps)]


def _packed(cells: Array) -> Array:
    return cells if cells.flags.c_contiguous else cells.copy(order="C")


def _size(slices: Slices) -> int:
    cells = 1
    for part in slices:
        cells *= part.stop - part.start
    return cells
