"""Halo exchange in memory: from the block itself, from other ranks, or with the constant.

Along cut axes, cells are exchanged with the ranks that own them. Along whole axes no message is needed:
their halo is copied within the block, including the exchanged cells. So a block that is cut along one axis
needs two messages, no matter how many axes have a halo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshrun.runner.arrays.block_layout import BlockLayout, reverse
from meshrun.runner.comm.api import Arrays, Message, Pending
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import Slices, Transfer, Widths, sends, transfers
from meshrun.runner.region import Array, Region, packed

Arrival = tuple[Transfer, Array]  # cells received in a buffer, to be moved to the halo


@dataclass
class Exchange:
    """An exchange in progress: for each block, the cells that are received in buffers."""

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
                inner[transfer.target] = reverse(buffer, transfer.flip)

    def fill_corners(self) -> None:
        """Copy the halo of the uncut axes next to the halo of the cut ones, which must be complete."""
        for plan, block, _ in self.arriving:
            for slab in plan.halo_slabs:
                plan.fill_whole_axes(block[slab])


class Halos:
    """The halos of several blocks of one rank, exchanged together in one group of messages.

    plans: one per block. `blocks` below are in the order of the plans.
    """

    def __init__(self, plans: Sequence[HaloPlan]) -> None:
        self.plans = tuple(plans)

    @property
    def region(self) -> Region:
        """The rank's own cells, in the first array's indices."""
        return self.plans[0].region

    def received_bytes(self, blocks: Sequence[Array]) -> int:
        """Return the bytes that arrive from other ranks in one exchange; as many are sent."""
        pairs = zip(self.plans, blocks, strict=True)
        return sum(plan.received_cells * int(block.dtype.itemsize) for plan, block in pairs)

    def fill_own(self, blocks: Sequence[Array]) -> None:
        """Fill the halo cells that need no other rank. The blocks' own cells must be filled."""
        for plan, block in zip(self.plans, blocks, strict=True):
            plan.fill_own(block)

    def pack(self, blocks: Sequence[Array]) -> list[list[Message]]:
        """Copy the cells that other ranks need, for a `start` during which the blocks' cells may change."""
        return [plan.pack(block) for plan, block in zip(self.plans, blocks, strict=True)]

    def start(
        self, blocks: Sequence[Array], arrays: Arrays, packed: Sequence[list[Message]] | None = None
    ) -> Exchange:
        """Start sending the cells that others need and receiving those of these halos; see also `fill_own`.

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
        with named(arrays, "the halo exchange"):
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


class HaloPlan(BlockLayout):
    """Plan that fills one rank's padded block, for one partition, halo and boundary."""

    def __init__(
        self, partition: Partition, rank: int, widths: Widths, boundary: str, cval: float = 0.0
    ) -> None:
        cut = tuple(parts > 1 for parts in partition.grid)
        super().__init__(partition[rank], partition.shape, cut, widths, boundary, cval)
        # Whole axes without their halo: the part that the exchange works on.
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
        self.halo_slabs = [slab for axis, is_cut in enumerate(cut) if is_cut for slab in self._slabs(axis)]

    @property
    def received_cells(self) -> int:
        """Cells that arrive from other ranks."""
        return sum(_size(transfer.source) for transfer in self.receives)

    def fill_own(self, block: Array) -> None:
        """Fill the halo cells that need no other rank. The block's own cells must be filled."""
        self.fill_outside(block)
        inner, core = block[self.inner], block[self.core]
        for transfer in self._own:
            inner[transfer.target] = reverse(core[transfer.source], transfer.flip)
        self.fill_whole_axes(block[self._own_rows])

    def pack(self, block: Array) -> list[Message]:
        """Copy the cells that other ranks need, for a `start` during which the block's cells may change."""
        core = block[self.core]
        return [(t.receiver, core[t.source].copy(order="C")) for t in self.sends]

    def messages(self, block: Array) -> list[Message]:
        """Return the cells of the block that other ranks need, as views if possible."""
        core = block[self.core]
        return [(t.receiver, packed(core[t.source])) for t in self.sends]

    def arrivals(self, block: Array) -> tuple[list[Message], list[Arrival]]:
        """Return the messages to receive, and those whose cells must be moved to the halo afterwards."""
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


def _size(slices: Slices) -> int:
    cells = 1
    for part in slices:
        cells *= part.stop - part.start
    return cells
