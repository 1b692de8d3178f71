"""Exchange halos by messages.

Where only rows are split and few fields are exchanged, whole rows (or planes) are sent from one block into
the halo of the other. They include the cells beyond the other axes, which the sender has filled. No cell is
copied within a device.

Elsewhere there is one message for each neighbour, for all fields and faces. A kernel launch (kernels/halo.cu)
before the messages copies all cells that the neighbours need into buffers. A second launch copies the
received cells into the halo, and fills the halo cells that need no other rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import FieldHalos, HaloBox
from meshrun.runner.arrays.halo.direct import only_rows_are_split
from meshrun.runner.comm.api import Message
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.plan.halo import wraps
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables

FEW_FIELDS = 4  # of which each has messages of its own; more are packed into one


class PackedHalos:
    """Fill the halos of a rank's blocks by messages: as `DirectHalos`, but for memory of any kind.

    fields: of each fed input. pairs: its two blocks. cells: the boundary's constant.
    """

    def __init__(
        self,
        world: World,
        fields: Sequence[FieldHalos],
        pairs: Sequence[tuple[Array, Array]],
        cells: Sequence[Array],
        tables: DeviceTables,
    ) -> None:
        self._arrays, self._cells, self._address = world.arrays, cells, tables.address
        rank, empty = world.rank, world.backend.empty
        byte = np.dtype(np.uint8)
        self._whole_rows = whole_rows_are_sent(fields)
        packed_messages = [
            [(peer, empty((size,), byte)) for peer, size in sorted(sizes.items())]
            for sizes in (
                {} if self._whole_rows else _message_sizes(fields, rank, sends=sends)
                for sends in (True, False)
            )
        ]
        move = tables.kernel(halo_boxes.KERNELS, "move_cells")
        self._exchanges: dict[int, _Exchange] = {}
        for parity in (0, 1):
            arrays = [pair[parity] for pair in pairs]
            blocks = [tables.address(block) for block in arrays]
            own = halo_boxes.own_boxes(fields, rank, blocks, [tables.address(cell) for cell in cells])
            fill_own = halo_boxes.launch(tables, move, own)
            if self._whole_rows:
                self._exchanges[blocks[0]] = _Exchange(*row_messages(fields, rank, arrays, tables), fill_own)
                continue
            packed, unpacked = (
                _message_boxes(
                    fields, rank, blocks, {peer: tables.address(one) for peer, one in messages}, sends=sends
                )
                for messages, sends in zip(packed_messages, (True, False), strict=True)
            )
            outgoing, incoming = packed_messages
            pack, unpack, unpack_and_fill = (
                halo_boxes.launch(tables, move, boxes) for boxes in (packed, unpacked, [*unpacked, *own])
            )
            self._exchanges[blocks[0]] = _Exchange(
                outgoing, incoming, fill_own, pack, unpack, unpack_and_fill
            )
        world.backend.synchronize()

    def fill(self, blocks: Sequence[Array]) -> None:
        """Fill the whole halos."""
        one = self._exchanges[self._address(blocks[0])]
        if self._whole_rows:
            one.fill_own()
            self._exchange(one)
            return
        one.pack()
        self._exchange(one)
        one.unpack_and_fill()

    def fill_from_others(self, blocks: Sequence[Array], *, beyond: bool = False) -> None:
        """Exchange halos; the cells that other ranks need must be computed, the other own cells need not.

        beyond: whether the cells beyond the array beside those cells are filled. Else all own cells that are
        not computed may be filled with anything: `fill_own` is to follow.
        """
        one = self._exchanges[self._address(blocks[0])]
        if self._whole_rows:
            if not beyond:
                one.fill_own()
            self._exchange(one)
            return
        one.pack()
        self._exchange(one)
        one.unpack()

    def fill_own(self, blocks: Sequence[Array]) -> None:
        """Fill the halo cells that need no other rank."""
        self._exchanges[self._address(blocks[0])].fill_own()

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold exchanges."""
        return self._arrays.capturable

    def check(self) -> None:
        """Do nothing: messages report their failures themselves."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _exchange(self, one: _Exchange) -> None:
        with named(self._arrays, "the halo exchange"):
            self._arrays.exchange(one.outgoing, one.incoming).wait()


def _nothing() -> None:
    """Launch nothing: whole rows are neither packed nor unpacked."""


@dataclass(frozen=True)
class _Exchange:
    """Messages and launches for one of the two blocks of all fields. fill_own: of the cells that need no
    other rank."""

    outgoing: Sequence[Message]
    incoming: Sequence[Message]
    fill_own: Callable[[], None]
    pack: Callable[[], None] = _nothing
    unpack: Callable[[], None] = _nothing
    unpack_and_fill: Callable[[], None] = _nothing


def bind_fill(world: World, arrays: Sequence[DistributedArray], tables: DeviceTables) -> Callable[[], None]:
    """Return what fills the halos of arrays, with 0 beyond the ends, and allocates nothing: for graphs."""
    fields, pairs = [FieldHalos.of(one) for one in arrays], [(one.block, one.block) for one in arrays]
    cells = halo_boxes.constant_cells(world.backend, [one.dtype for one in arrays], "constant", 0)
    halos, blocks = PackedHalos(world, fields, pairs, cells, tables), [one.block for one in arrays]
    is_split = any(parts > 1 for one in arrays for parts in one.layout.partition.grid)
    fill = halos.fill if is_split else halos.fill_own

    def fill_all() -> None:
        fill(blocks)
        for array in arrays:
            array.valid = array.layout.filled.declared

    return fill_all


def whole_rows_are_sent(fields: Sequence[FieldHalos]) -> bool:
    """Return whether messages are whole rows of blocks: the same on every rank.

    Only rows are split, each halo lies within the neighbouring block, and few fields are exchanged.
    """
    size = fields[0].partition.size
    exchanged = sum(field.filled[0] != (0, 0) for field in fields)
    return (
        exchanged <= FEW_FIELDS
        and only_rows_are_split(fields)
        and all(
            max(field.filled[0]) <= min(field.partition[rank].shape[0] for rank in range(size))
            for field in fields
        )
    )


def row_messages(
    fields: Sequence[FieldHalos], rank: int, blocks: Sequence[Array], tables: DeviceTables
) -> tuple[list[Message], list[Message]]:
    """Return the whole rows that a rank sends and receives, as bytes of its blocks.

    Two ranks that are neighbours on both sides have messages in the same order: the halo after a block first.
    """
    outgoing: list[Message] = []
    incoming: list[Message] = []
    for field, block in zip(fields, blocks, strict=True):
        layout, size = field.layout(rank), field.partition.size
        own, pitch, (low, high) = layout.core[0], layout.strides(field.itemsize)[0], field.filled[0]
        meet = wraps(field.boundary, 0)

        def rows(first: int, count: int, block: Array = block, pitch: int = pitch) -> Array:
            return tables.bytes_of(block, first * pitch, count * pitch)

        before = (rank - 1) % size if meet or rank > 0 else None
        after = (rank + 1) % size if meet or rank + 1 < size else None
        if high and before is not None:
            outgoing.append((before, rows(own.start, high)))
        if low and after is not None:
            outgoing.append((after, rows(own.stop - low, low)))
        if high and after is not None:
            incoming.append((after, rows(own.stop, high)))
        if low and before is not None:
            incoming.append((before, rows(own.start - low, low)))
    return outgoing, incoming


def _message_sizes(fields: Sequence[FieldHalos], rank: int, *, sends: bool) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for field in fields:
        for moved in field.sent(rank) if sends else field.received(rank):
            peer = moved.receiver if sends else moved.sender
            sizes[peer] = sizes.get(peer, 0) + halo_boxes.message_bytes(field, moved)
    return sizes


def _message_boxes(
    fields: Sequence[FieldHalos], rank: int, blocks: Sequence[int], messages: dict[int, int], *, sends: bool
) -> list[HaloBox]:
    """Return the copies between blocks and messages, all given by their addresses; sender and receiver of a
    message go through the same fields and faces in the same order."""
    found, places = [], dict(messages)
    for field, block in zip(fields, blocks, strict=True):
        for moved in field.sent(rank) if sends else field.received(rank):
            peer = moved.receiver if sends else moved.sender
            if sends:
                found.append(halo_boxes.to_message(field, moved, block, places[peer]))
            else:
                found.append(halo_boxes.from_message(field, moved, places[peer], block))
            places[peer] += halo_boxes.message_bytes(field, moved)
    return found
