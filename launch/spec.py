"""The specification of a launch, for any launcher: what to run on which hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HOST_TIMEOUT = 15.0  # seconds
START_TIMEOUT = 60.0  # seconds
NAME = re.compile(r"(?!-)[\w.-]+@?[\w.-]*")  # a host, optionally with a user
SHAPE = re.compile(r"(?:(\d+)x)?(\d+)")


@dataclass(frozen=True)
class HostSlots:
    """A host's name for ssh, and its number of ranks; 0: as in the specification."""

    name: str
    slots: int = 0


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


def parse_hosts(text: str) -> list[HostSlots]:
    """Parse "a:8,b:8" or "a,b". Raises ValueError for an invalid or repeated name."""
    return distinct([parse_host(word, "--hosts") for word in text.split(",")])


def read_hostfile(path: Path) -> list[HostSlots]:
    """The hosts in a file, one per line: "a slots=8" (Open MPI), "a:8" (MPICH), or "a"; # begins a comment.

    Raises ValueError with the line number for anything else, OSError if the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # editors on Windows put a mark first
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        host = parse_host(words[0], where)
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key not in ("slots", "max_slots", "max-slots") or not value.isdecimal():
                raise ValueError(f"{where}: expected HOST slots=N or HOST:N, not {line.strip()!r}")
            if key == "slots":
                host = HostSlots(host.name, positive(value, where))
        found.append(host)
    if not found:
        raise ValueError(f"{path} contains no hosts")
    return distinct(found)


def parse_host(word: str, where: str) -> HostSlots:
    if is_ipv6(word):
        raise ValueError(
            f"{where}: {word} is an IPv6 address, which MPI launchers do not take. Use a name for it, from "
            "/etc/hosts or ~/.ssh/config on all hosts, or an IPv4 address"
        )
    name, colon, slots = word.rpartition(":")
    if not colon:
        name, slots = word, ""
    if not NAME.fullmatch(name) or (colon and slots and not slots.isdecimal()):
        raise ValueError(f"{where}: {word!r} is not a host")
    return HostSlots(name, positive(slots, where) if slots else 0)


def is_ipv6(word: str) -> bool:
    """Whether a word of a host list is an IPv6 address, also in brackets, with a user, a zone or slots."""
    from ipaddress import AddressValueError, IPv6Address  # takes longer to import than the rest of this file

    address = word.rpartition("@")[2].removeprefix("[").partition("]")[0].partition("%")[0]
    for text in (address, address.rpartition(":")[0]):
        try:
            IPv6Address(text)
        except AddressValueError:
            continue
        return True
    return False


def positive(number: str, where: str) -> int:
    if not int(number):
        raise ValueError(f"{where}: a host with 0 slots gets no rank")
    return int(number)


def distinct(hosts: Sequence[HostSlots]) -> list[HostSlots]:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"host {twice} is listed twice")
    return list(hosts)


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
