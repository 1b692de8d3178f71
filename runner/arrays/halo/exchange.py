"""Halo exchange in memory: from the block itself, from other ranks, or with the constant.

Along cut axes, cells are exchanged with the ranks that own them. Along whole axes no message is needed:
their halo is copied within the block, including the exchanged cells. So a block that is cut along one axis
needs two messages, no matter how many axes have a halo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.arrays.block_layout import BlockLayout, PaddedBlock, reverse
from meshrun.runner.comm.api import Message, Pending
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.comm.staged import StagedComm
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import Constants, Modes, Slices, Transfer, Widths, sends, transfers
from meshrun.runner.region import Array, packed
from meshrun.runner.world.world import World

STAGED_BYTES = 64 << 20  # of halos, at most, that go through host memory rather than open a communicator
Arrival = tuple[Transfer, Array]  # cells received in a buffer, to be moved to the halo


def exchange(arrays: Sequence[HaloBlock], *, once: bool = False) -> None:
    """Fill what is stale of the arrays' halos, in one group of messages. Collective.

    once: as of `start_exchange`.
    """
    stale = [array for array in arrays if array.is_stale]
    if stale and stale[0].world.size == 1:
        fill_own(stale)
        for array in stale:
            array.valid = array.layout.filled.declared
    elif stale:
        started = start_exchange(stale, once=once)
        fill_own(stale)
        started.finish()


def start_exchange(
    arrays: Sequence[HaloBlock], packed: Sequence[list[Message]] | None = None, *, once: bool = False
) -> Exchange:
    """Start sending the cells that others need and receiving those of these halos; see also `fill_own`.

    packed: messages to send, from `pack`. Without it the own cells must not change until the exchange ends.
    once: the run exchanges no others. Then these go through host memory, unless they are large or the
    communicator of devices is open: to open it takes longer.
    """
    outgoing: list[Message] = []
    incoming: list[Message] = []
    arriving = []
    for number, array in enumerate(arrays):
        plan = array.layout.filled
        sent, received = plan.stale(array.valid)
        outgoing += packed[number] if packed else plan.messages(array.interior, sent)
        messages, arrivals = plan.arrivals(array.filled, received)
        incoming += messages
        arriving.append((array, arrivals))
    world = arrays[0].world
    through_host = once and is_staged(arrays)
    communicator = StagedComm(world.control, world.backend) if through_host else world.arrays
    with named(communicator, "the halo exchange") if world.checksums else nullcontext():
        return Exchange(communicator.exchange(outgoing, incoming), arriving)


def is_staged(arrays: Sequence[HaloBlock]) -> bool:
    """Return whether halos that are exchanged once go through host memory: the same on every rank.

    Not if the communicator of devices is open, or the halos of a rank are large.
    """
    if arrays[0].world.arrays.is_open:
        return False
    total = 0
    for array in arrays:
        plan = array.layout
        own = plan.partition[0].shape
        padded = math.prod(n + sum(width) for n, width in zip(own, plan.declared, strict=True))
        total += (padded - math.prod(own)) * array.dtype.itemsize
    return total <= STAGED_BYTES


def pack(arrays: Sequence[HaloBlock]) -> list[list[Message]]:
    """Copy the cells that other ranks need, for an exchange during which the own cells may change."""
    return [
        [
            (t.receiver, array.interior[t.source].copy(order="C"))
            for t in array.layout.filled.stale(array.valid)[0]
        ]
        for array in arrays
    ]


def fill_own(arrays: Sequence[HaloBlock]) -> None:
    """Fill the halo cells that need no other rank. The own cells must be there."""
    for array in arrays:
        array.layout.filled.fill_own(array.filled)


def connect(world: World, plans: Sequence[HaloPlan]) -> None:
    """Send a byte along every link of an exchange, at which NCCL opens and connects. Collective."""
    to = sorted({transfer.receiver for plan in plans for transfer in plan.filled.sends})
    from_ = sorted({transfer.sender for plan in plans for transfer in plan.filled.receives})
    one_byte = world.backend.empty((2,), np.dtype(np.uint8))
    world.arrays.exchange(
        [(peer, one_byte[:1]) for peer in to], [(peer, one_byte[1:]) for peer in from_]
    ).wait()


def received_bytes(arrays: Sequence[HaloBlock]) -> int:
    """Return the bytes that arrive from other ranks in one exchange of whole halos; as many are sent."""
    return sum(array.layout.filled.received_cells * array.dtype.itemsize for array in arrays)


@dataclass
class Exchange:
    """An exchange in progress: for each array, the cells that are received in buffers."""

    pending: Pending
    arriving: list[tuple[HaloBlock, list[Arrival]]]

    def finish(self) -> None:
        """Wait until the halos are complete (for work issued to the current stream afterwards).

        The cells that need no other rank must be filled by then.
        """
        self.receive()
        self.fill_corners()

    def receive(self) -> None:
        """Wait until the other ranks' cells are in place."""
        self.pending.wait()
        for array, arrivals in self.arriving:
            inner = array.filled[array.layout.filled.inner]
            for transfer, buffer in arrivals:
                inner[transfer.target] = reverse(buffer, transfer.flip)

    def fill_corners(self) -> None:
        """Copy the halo of the uncut axes next to the halo of the cut ones, which must be complete."""
        for array, _ in self.arriving:
            plan = array.layout.filled
            for slab in plan.halo_slabs:
                plan.fill_whole_axes(array.filled[slab])
            array.valid = plan.declared


class HaloPlan(BlockLayout):
    """Plan that fills one rank's padded block, for one partition, halo and boundary.

    declared: the widths, also where the block is empty and has no halo. read: the widths that are filled;
    None: all. sends, receives: of a whole halo.
    """

    filled: HaloPlan

    def __init__(
        self,
        partition: Partition,
        rank: int,
        widths: Widths,
        boundary: str | Modes,
        cval: float | Constants = 0.0,
        read: Widths | None = None,
        *,
        padded: bool = False,
    ) -> None:
        cut = tuple(parts > 1 for parts in partition.grid)
        super().__init__(partition[rank], partition.shape, cut, widths, boundary, cval, padded=padded)
        self.partition, self.declared = partition, widths
        if read is not None and read != widths:
            self.filled = HaloPlan(partition, rank, read, boundary, cval, padded=partition.empty_halos)
        # Whole axes without their halo: the part that the exchange works on.
        self.inner: Slices = tuple(
            slice(None) if is_cut else core for is_cut, core in zip(cut, self.core, strict=True)
        )
        # The opposite: whole axes with their halo, cut axes without.
        self._own_rows: Slices = tuple(
            core if is_cut else slice(None) for is_cut, core in zip(cut, self.core, strict=True)
        )
        needed = list(transfers(partition, rank, self._exchanged, boundary)) if any(cut) else []
        self.receives = [transfer for transfer in needed if transfer.sender != rank]
        self.sends = list(sends(partition, rank, self._exchanged, boundary)) if any(cut) else []
        self._own = [transfer for transfer in needed if transfer.sender == rank]
        self.halo_slabs = [slab for axis, is_cut in enumerate(cut) if is_cut for slab in self._slabs(axis)]

    @property
    def _exchanged(self) -> Widths:
        """The widths of the halo that other ranks send."""
        grid = zip(self.partition.grid, self.declared, strict=True)
        return tuple(width if parts > 1 else (0, 0) for parts, width in grid)

    @property
    def received_cells(self) -> int:
        """Cells that arrive from other ranks."""
        return sum(_size(transfer.source) for transfer in self.receives)

    def serves_for(self, other: HaloPlan) -> bool:
        """Return whether a block of this plan can be used where one of another is expected.

        It has the same own cells, and at least the halo, whose cells are filled at least as far.
        """
        wider = all(
            low >= before and high >= after
            for mine, theirs in ((self, other), (self.filled, other.filled))
            for (low, high), (before, after) in zip(mine.declared, theirs.declared, strict=True)
        )
        same = (self.partition, self.region) == (other.partition, other.region)
        aligned = other.aligned in (0, self.aligned)
        # Beyond the ends, cells are read only where these meet.
        return wider and same and aligned and other.boundary in ("constant", self.boundary)

    def fill_own(self, block: Array) -> None:
        """Fill the halo cells that need no other rank. The block's own cells must be filled."""
        self.fill_outside(block)
        inner, core = block[self.inner], block[self.core]
        for transfer in self._own:
            inner[transfer.target] = reverse(core[transfer.source], transfer.flip)
        self.fill_whole_axes(block[self._own_rows])

    def stale(self, valid: Widths) -> tuple[list[Transfer], list[Transfer]]:
        """Return the transfers to other ranks and from them whose cells lie beyond the valid halo.

        valid: the widths that are, on every rank.
        """
        if not any(map(any, valid)):
            return self.sends, self.receives
        sends = [transfer for transfer in self.sends if self._is_stale(transfer, valid)]
        return sends, [transfer for transfer in self.receives if self._is_stale(transfer, valid)]

    def _is_stale(self, transfer: Transfer, valid: Widths) -> bool:
        lengths = self.partition[transfer.receiver].shape
        return any(
            target.start < low - before or target.stop > low + length + after
            for target, (low, _), (before, after), length in zip(
                transfer.target, self._exchanged, valid, lengths, strict=True
            )
        )

    def messages(self, own: Array, sent: Sequence[Transfer]) -> list[Message]:
        """Return the own cells that other ranks need, as views if possible."""
        return [(transfer.receiver, packed(own[transfer.source])) for transfer in sent]

    def arrivals(self, block: Array, received: Sequence[Transfer]) -> tuple[list[Message], list[Arrival]]:
        """Return the messages to receive, and those whose cells must be moved to the halo afterwards."""
        inner = block[self.inner]
        incoming: list[Message] = []
        arrivals: list[Arrival] = []
        for transfer in received:
            buffer = inner[transfer.target]
            shape = tuple(part.stop - part.start for part in transfer.source)
            # Receive in place if the cells are contiguous in the order of the message.
            if transfer.flip or buffer.shape != shape or not buffer.flags.c_contiguous:
                buffer = np.empty_like(buffer, shape=shape, order="C")
                arrivals.append((transfer, buffer))
            incoming.append((transfer.sender, buffer))
        return incoming, arrivals


@dataclass(eq=False)
class HaloBlock(PaddedBlock):
    """A rank's padded block of an array that is split over the ranks of `world`.

    valid: the widths of the halo whose cells are as their owners' are; the same on every rank.
    """

    layout: HaloPlan
    world: World
    valid: Widths = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written()

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.block.dtype
        return dtype

    @property
    def is_stale(self) -> bool:
        """Whether cells of the halo that are to be filled are not valid."""
        wanted = zip(self.layout.filled.declared, self.valid, strict=True)
        return any(low > before or high > after for (low, high), (before, after) in wanted)

    def written(self) -> None:
        """Note that cells of the interior have changed, here or on another rank: the halo is stale."""
        self.valid = ((0, 0),) * len(self.layout.declared)


def _size(slices: Slices) -> int:
    cells = 1
    for part in slices:
        cells *= part.stop - part.start
    return cells
