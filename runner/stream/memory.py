"""How much memory a rank may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runner.chunks import Need
from runner.stream.options import StreamOptions
from runner.world import World

HOST_SHARE = 4  # one part in so many of the host's memory is for its ranks together
DEVICE_SHARE = 0.8  # of what is free: the function's own arrays need some
CGROUP = Path("/sys/fs/cgroup")


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


def host_memory(proc: Path = Path("/proc"), cgroup: Path = CGROUP) -> int:
    """Bytes of this host's memory, or those that its container or job may have, if fewer."""
    with open(proc / "meminfo") as lines:
        found = next(line for line in lines if line.startswith("MemTotal"))
    return min([int(found.split()[1]) << 10, *_limits_of_groups(proc, cgroup)])


def _limits_of_groups(proc: Path, cgroup: Path) -> list[int]:
    """What this process's control group and those that it is in may have, of version 2 and of version 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, kinds, name = line.split(":", 2)
        if number == "0":
            top, limit = cgroup, "memory.max"
        elif "memory" in kinds.split(","):
            top, limit = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / name.lstrip("/")
        for path in (group, *group.parents):
            if path == top.parent:
                break
            with suppress(OSError, ValueError):  # "max" is no number
                found.append(int((path / limit).read_text()))
    return found
