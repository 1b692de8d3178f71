"""The specification of a launch, for any launcher: what to run on which hosts."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from meshrun.launch.host_list import HostSlots

HOST_TIMEOUT = 15.0  # seconds
START_TIMEOUT = 60.0  # seconds
SHAPE = re.compile(r"(?:(\d+)x)?(\d+)")


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is noted of a run while it runs.

    stall_timeout: seconds without progress after which the run ends, 0: never; None if the user chose none.
    metrics: address ("": all of a host's) and port (0: any free one) at which hosts serve metrics; None: they
    do not. operations: file for the record of all operations (`recorder.operations`); None if none is wanted.
    watch: whether slow ranks, GPUs and hosts are named.
    """

    stall_timeout: float | None = None
    metrics: tuple[str, int] | None = None
    operations: str | None = None
    watch: bool = False


UNWATCHED = Watching()


@dataclass(frozen=True)
class LaunchSpec(Watching):
    """Ranks on hosts, one GPU each.

    words: the command of every rank. hosts: number of hosts. per_host: ranks on each. names: of the hosts, in
    the order of ranks; empty if the launcher chooses. slots: ranks on each of `names` if they are not the
    same on all, in place of per_host; otherwise empty. settings: environment variables of every rank.
    network: the interface between hosts; None for the route to them. host_timeout: seconds for which a
    host may not respond.
    """

    words: tuple[str, ...]
    hosts: int = 1
    per_host: int = 1
    names: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    host_timeout: float = HOST_TIMEOUT
    slots: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of ranks of each host, in the order of hosts."""
        return self.slots or (self.per_host,) * self.hosts

    @property
    def ranks(self) -> int:
        return sum(self.counts)

    def without(self, lost: Sequence[str], rank: int | None) -> LaunchSpec | None:
        """The launch without the `lost` hosts, or without the host of a lost rank, in blocks host after host;
        on a single host, with a rank less. None if nothing is left, or if the host is not known.
        """
        if self.hosts == 1:
            return None if lost or self.per_host == 1 else replace(self, per_host=self.per_host - 1)
        if not lost and rank is not None:
            before = list(accumulate(self.counts))  # ranks up to and on each host
            lost = [self.names[bisect_right(before, rank)]]
        left = [number for number, name in enumerate(self.names) if name not in lost]
        if not 0 < len(left) < self.hosts:
            return None
        names = tuple(self.names[number] for number in left)
        slots = tuple(self.slots[number] for number in left) if self.slots else ()
        return replace(self, names=names, hosts=len(left), slots=slots)


def parse_shape(text: str) -> tuple[int | None, int]:
    """Parse "2x8" as 2 hosts with 8 ranks each, "8" as None and 8. Raises ValueError."""
    match = SHAPE.fullmatch(text)
    if not match or not int(match[2]) or (match[1] and not int(match[1])):
        raise ValueError(f"expected HOSTSxGPUS such as 2x8, or GPUS, not {text!r}")
    return (int(match[1]) if match[1] else None), int(match[2])


def parse_endpoint(text: str) -> tuple[str, int]:
    """Parse "9400" as the port of all addresses, "127.0.0.1:9400" and "[::1]:9400" as that of one. Raises
    ValueError."""
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (":" in address and address[0] + address[-1] != "[]"):
        raise ValueError(f"expected PORT, 0 to 65535, or ADDRESS:PORT such as 127.0.0.1:9400, not {text!r}")
    return address.strip("[]"), int(port)


def endpoint_text(endpoint: tuple[str, int]) -> str:
    """Return what `parse_endpoint` parses as `endpoint`."""
    address, port = endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}" if address else str(port)


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

    Without `wanted`: all known hosts with their slots. Without `known`: the launcher chooses the hosts.
    """
    slots = () if wanted else tuple(host.slots for host in known)
    if not wanted and (not slots or 0 in slots):
        raise ValueError("the number of ranks is missing: -j HOSTSxGPUS, or slots for every host")
    hosts, per_host = wanted if wanted else (None, max(slots))
    if hosts is None:
        hosts = len(known) or 1
    if known and hosts > len(known):
        raise ValueError(f"{hosts} hosts requested, but only {len(known)} listed")
    chosen = known[:hosts]
    small = next((host for host in chosen if 0 < host.slots < per_host), None)
    if small and wanted:
        raise ValueError(f"host {small.name} has {small.slots} slots, but {per_host} ranks are requested")
    names = tuple(host.name for host in chosen)
    uneven = slots if len(set(slots)) > 1 else ()
    return LaunchSpec(
        tuple(words), hosts, per_host, names, settings or {}, network, host_timeout, slots=uneven
    )
