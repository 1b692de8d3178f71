"""Hosts as users list them: `--hosts a:8,b:8`, or a file with a host on each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"(?!-)[\w.-]+@?[\w.-]*")  # a host, optionally with a user


@dataclass(frozen=True)
class HostSlots:
    """A host's name for ssh, and its number of ranks; 0: as in the specification."""

    name: str
    slots: int = 0


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
