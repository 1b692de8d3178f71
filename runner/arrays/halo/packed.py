"""Exchange halos by messages: one for each neighbour, for all fields and faces.

A kernel launch (kernels/halo.cu) before the messages copies all cells that the neighbours need into buffers.
A second launch copies the received cells into the halo, and fills the halo cells that need no other rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import FieldHalos, HaloBox
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables


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
        self._outgoing, self._incoming = (
            [(peer, empty((size,), byte)) for peer, size in sorted(sizes.items())]
            for sizes in (_message_sizes(fields, rank, sends=sends) for sends in (True, False))
        )
        move = tables.kernel(halo_boxes.KERNELS, "move_cells")
        self._launches: dict[int, _Launches] = {}
        for parity in (0, 1):
            blocks = [tables.address(pair[parity]) for pair in pairs]
            packed, unpacked = (
                _message_boxes(
                    fields, rank, blocks, {peer: tables.address(one) for peer, one in messages}, sends=sends
                )
                for messages, sends in ((self._outgoing, True), (self._incoming, False))
            )
            own = halo_boxes.own_boxes(fields, rank, blocks, [tables.address(cell) for cell in cells])
            self._launches[blocks[0]] = _Launches(
                *(
                    halo_boxes.launch(tables, move, boxes)
                    for boxes in (packed, unpacked, own, [*unpacked, *own])
                )
            )
        world.backend.synchronize()

    def fill(self, blocks: Sequence[Array]) -> None:
        """Fill the whole halos."""
        launches = self._launches[self._address(blocks[0])]
        self._exchange(launches.pack, launches.unpack_and_fill)

    def fill_from_others(self, blocks: Sequence[Array]) -> None:
        """Exchange halos; the cells that other ranks need must be computed, the other own cells need not."""
        launches = self._launches[self._address(blocks[0])]
        self._exchange(launches.pack, launches.unpack)

    def fill_own(self, blocks: Sequence[Array]) -> None:
        """Fill the halo cells that need no other rank."""
        self._launches[self._address(blocks[0])].fill_own()

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold exchanges."""
        return self._arrays.capturable

    def check(self) -> None:
        """Do nothing: messages report their failures themselves."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _exchange(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        before()
        with named(self._arrays, "the halo exchange"):
            self._arrays.exchange(self._outgoing, self._incoming).wait()
        after()


@dataclass(frozen=True)
class _Launches:
    """Launches for one of the two blocks of all fields. fill_own: of the cells that need no other rank."""

    pack: Callable[[], None]
    unpack: Callable[[], None]
    fill_own: Callable[[], None]
    unpack_and_fill: Callable[[], None]


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
