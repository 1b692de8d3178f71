"""Memory of the GPUs of one host that every rank can write: whether there is any, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.region import Array, address_of
from meshrun.runner.spelling import option
from meshrun.runner.world.binding import open_peers
from meshrun.runner.world.world import World, clashes

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays

Direct = TypeVar("Direct")


def find_peers(world: World) -> PeerArrays | str:
    """Return memory of GPUs that all ranks can open, or why there is none; the same on every rank.

    Collective.
    """
    if world.size == 1:
        return "there is one rank"
    if world.here.device.kind != "cuda":
        return "the ranks compute on CPUs"
    if len(world.hosts) > 1:
        return f"the ranks are on {len(world.hosts)} hosts"
    if world.checksums is not None:
        return f"{option('checksum')}, which checks messages"
    if clashes(world.ranks):
        return "ranks share a GPU"
    return open_peers(world.control, [rank.device for rank in world.ranks])


def open_everywhere(
    world: World, peers: PeerArrays, cells: int, dtype: np.dtype[Any]
) -> tuple[Array, list[int]]:
    """Return an array of this rank, and the addresses of the same array of every rank. Collective.

    Raises Unreachable, on the ranks that cannot open another's; if one has no memory, its error on all.
    """
    array = world.collective_call(lambda: peers.empty((cells,), dtype))
    others = peers.open([array], [rank for rank in range(world.size) if rank != world.rank])
    own = address_of(array)
    return array, [own if rank == world.rank else others[rank][0] for rank in range(world.size)]


def opened(world: World, peers: PeerArrays, make: Callable[[], Direct]) -> Direct | str:
    """Return what `make` opens, or the first rank's reason why it is Unreachable: then `peers` is closed.

    The same on every rank. Collective.
    """
    direct, reason = None, ""
    try:
        direct = make()
    except Unreachable as problem:
        reason = str(problem)
    reason = next(filter(None, world.control.allgather(reason)), "")
    if direct is not None and not reason:
        return direct
    peers.close()
    return reason
