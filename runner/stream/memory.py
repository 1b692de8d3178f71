"""How much memory a rank may use."""

from __future__ import annotations

from runner.backend.host import host_memory
from runner.chunks import Need
from runner.stream.options import StreamOptions
from runner.world import World

HOST_SHARE = 4  # one part in so many of the host's memory is for its ranks together
DEVICE_SHARE = 0.8  # of what is free: the function's own arrays need some


def limits(world: World, options: StreamOptions) -> Need:
    """Bytes that this rank's chunks may take in all: what the options say, else a share of what there is."""
    here = world.here
    beside = [rank for rank in world.ranks if rank.host_id == here.host_id]
    host = options.host_memory or host_memory() // HOST_SHARE // len(beside)
    device = 0
    if world.backend.asynchronous:
        sharing = sum(rank.device.uuid == here.device.uuid for rank in beside)
        device = options.device_memory or int(DEVICE_SHARE * world.backend.free_memory() / sharing)
    return Need(host, device)
