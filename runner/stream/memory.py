"""How much memory a rank may use."""

from __future__ import annotations

from runner.backend.host import host_memory
from runner.chunks import Need
from runner.errors import UserError
from runner.stream.options import StreamOptions
from runner.world import World

HOST_SHARE = 4  # one part in so many of the host's memory is for its ranks together
DEVICE_SHARE = 0.8  # of what is free: the function's own arrays need some


def limits(world: World, options: StreamOptions) -> Need:
    """Bytes that this rank's chunks may take in all: what the options say, else a share of what there is.

    UserError for an option that says more than there is.
    """
    here = world.here
    beside = [rank for rank in world.ranks if rank.host_id == here.host_id]
    there = host_memory()
    _check("--host-memory", options.host_memory, there, "this host")
    host = options.host_memory or there // HOST_SHARE // len(beside)
    device = 0
    if world.backend.asynchronous:
        _check("--device-memory", options.device_memory, here.device.memory, "this GPU")
        sharing = sum(rank.device.uuid == here.device.uuid for rank in beside)
        device = options.device_memory or int(DEVICE_SHARE * world.backend.free_memory() / sharing)
    return Need(host, device)


def _check(option: str, said: int | None, there: int, place: str) -> None:
    if said is not None and 0 < there < said:
        raise UserError(
            f"{option} is more than {place} has", got=f"{said:,} bytes", expected=f"at most {there:,}"
        )
