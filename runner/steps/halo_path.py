"""How the halos of a run that takes steps are exchanged between GPUs, and why.

`direct`: by stores into the neighbours' memory, between GPUs of one host. `nccl`: by packed messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import FieldHalos
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.arrays.halo.packed import PackedHalos
from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import HaloChoice
from meshrun.runner.region import Array
from meshrun.runner.spelling import option
from meshrun.runner.world.binding import open_peers
from meshrun.runner.world.world import World, clashes

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables, PeerArrays

DeviceHalos = DirectHalos | PackedHalos


def find_peers(world: World, choice: HaloChoice, ndim: int) -> PeerArrays | str:
    """Return where blocks are allocated so that other ranks can store into them, or why they cannot.

    choice: auto, nccl or direct. ndim: most axes of a field. The same on every rank. Collective.
    """
    if choice == "nccl":
        return option("halo", "nccl")
    if world.here.device.kind != "cuda":
        return "the ranks compute on CPUs"
    if world.checksums is not None:
        return f"{option('checksum')}, which checks messages"
    if ndim >= halo_boxes.AXES:
        return f"an array has more than {halo_boxes.AXES - 1} axes"
    if len(world.hosts) > 1:
        return f"the ranks are on {len(world.hosts)} hosts"
    if choice == "auto" and clashes(world.ranks):
        return "ranks share a GPU"
    return open_peers(world.control, [rank.device for rank in world.ranks])


def find_tables(world: World, ndim: int) -> DeviceTables | None:
    """Return how kernels are given tables; None where NumPy or CuPy copies: on a CPU, or of many axes."""
    if world.here.device.kind != "cuda" or ndim >= halo_boxes.AXES:
        return None
    from meshrun.runner.comm.peer_arrays import DeviceTables

    return DeviceTables()


def open_halos(
    world: World,
    fields: Sequence[FieldHalos],
    pairs: Sequence[tuple[Array, Array]],
    cval: float,
    tables: DeviceTables,
    peers: PeerArrays | str,
    *,
    handshake: bool,
) -> tuple[DeviceHalos, str]:
    """Prepare the exchange, directly if `peers` allows it. Returns with it why it is not direct, or "".

    pairs: the two blocks of each field. Collective.
    """
    cells = halo_boxes.constant_cells(
        world.backend, [one.dtype for one, _ in pairs], fields[0].boundary, cval
    )
    reason = peers if isinstance(peers, str) else ""
    if not isinstance(peers, str):
        halos = None
        try:
            halos = DirectHalos(world, fields, pairs, cells, tables, peers, handshake=handshake)
        except (Unreachable, ValueError) as problem:
            reason = str(problem)
        reason = next(filter(None, world.control.allgather(reason)), "")
        if halos is not None and not reason:
            return halos, ""
        peers.close()
    return PackedHalos(world, fields, pairs, cells, tables), reason


def refuse(reason: str) -> UserError:
    """Return the error of a run for which a direct halo is not possible."""
    return UserError(
        f"{option('halo', 'direct')} is not possible here",
        why=reason,
        expected="GPUs of one host that reach each other's memory",
        hint=option("halo", "auto"),
        everywhere=True,
    )
