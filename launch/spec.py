"""The specification of a launch, for any launcher: what to run on which hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshrun.launch.host_list import HostSlots

HOST_TIMEOUT = 15.0  # seconds
START_TIMEOUT = 60.0  # seconds
SHAPE = re.compile(r"(?:(\d+)x)?(\d+)")


@dataclass(frozen=True)
class LaunchSpec:
    """Ranks on hosts, one GPU each.

    words: the command of every rank. hosts: number of hosts. per_host: ranks on each. names: of the hosts, in
    the order of ranks; empty if the launcher chooses. settings: environment variables of every rank.
    network: the interface between hosts; None for the route to them. host_timeout: seconds for which a
    host may not respond. stall_timeout: seconds without progress after which the run ends, 0: never; None if
    the user chose none.
    """

    words: tuple[str, ...]
    hosts: int = 1
    per_host: int = 1
    names: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    host_timeout: float = HOST_TIMEOUT
    stall_timeout: float | None = None

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host

    def without(self, lost: Sequence[str], rank: int | None) -> LaunchSpec | None:
        """The launch without the `lost` hosts, or without the host of a lost rank, in blocks host after host;
        on a single host, with a rank less. None if nothing is left, or if the host is not known.
        """
        if self.hosts == 1:
            return None if lost or self.per_host == 1 else replace(self, per_host=self.per_host - 1)
        if not lost and rank is not None:
            lost = [self.names[rank // self.per_host]]
        left = tuple(name for name in self.names if name not in lost)
        return replace(self, names=left, hosts=len(left)) if 0 < len(left) < self.hosts else None


def parse_shape(text: str) -> tuple[int | None, int]:
    """Parse "2x8" as 2 hosts with 8 ranks each, "8" as None and 8. Raises ValueError."""
    match = SHAPE.fullmatch(text)
    if not match or not int(match[2]) or (match[1] and not int(match[1])):
        raise ValueError(f"expected HOSTSxGPUS such as 2x8, or GPUS, not {text!r}")
    return (int(match[1]) if match[1] else None), int(match[2])


def make_spec(
    words: Sequence[str],
    wanted: tuple[int | None, int] | None = None,
    known: Sequence[HostSlots] = (),
    *,
    settings: Mapping[str, str] | None = None,
    network: str | None = None,
    host_timeout: float = HOST_TIMEOUT,
) -> LaunchSpec:
    """The specification of HOSTSxGPUS ranks on the first known hosts. Raises ValueError if they do not fit.

    Without `wanted`: all known hosts with their slots, which must be equal. Without `known`: the launcher
    chooses the hosts.
    """
    hosts, per_host = wanted if wanted else (None, _common_slots(known))
    if hosts is None:
        hosts = len(known) or 1
    if known and hosts > len(known):
        raise ValueError(f"{hosts} hosts requested, but only {len(known)} listed")
    chosen = known[:hosts]
    small = next((host for host in chosen if 0 < host.slots < per_host), None)
    if small:
        raise ValueError(f"host {small.name} has {small.slots} slots, but {per_host} ranks are requested")
    names = tuple(host.name for host in chosen)
    return LaunchSpec(tuple(words), hosts, per_host, names, settings or {}, network, host_timeout)


def _common_slots(known: Sequence[HostSlots]) -> int:
    slots = {host.slots for host in known}
    if len(slots) > 1 or 0 in slots or not slots:
        raise ValueError("the number of ranks is missing: -j HOSTSxGPUS, or the same slots for every host")
    return slots.pop()
