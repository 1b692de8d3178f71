"""Hosts as users and batch systems list them: `--hosts node[01-03,7]:8`, or a file with hosts on lines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

NAME = re.compile(r"(?!-)[\w.-]+@?[\w.-]*")  # a host, optionally with a user
RANGES = re.compile(r"\[([^\[\]]*)\]")  # numbers in a name, as in node[01-03,7]
RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
MOST_HOSTS = 1 << 16  # Slurm's own limit for a list
SLOTS = ("slots", "max_slots", "max-slots")  # in files of Open MPI; only the first counts here


@dataclass(frozen=True)
class HostSlots:
    """A host's name for ssh, and its number of ranks; 0: as in the specification."""

    name: str
    slots: int = 0


def parse_hosts(text: str) -> list[HostSlots]:
    """Parse "a:8,b:8", "a,b" or "node[01-03,7]:8". Raises ValueError for an invalid or repeated name."""
    words = RANGES.sub(lambda ranges: ranges[0].replace(",", "\n"), text).split(",")  # outside brackets
    hosts = [host for word in words for host in parse_host(word.replace("\n", ","), "--hosts")]
    return distinct(hosts)


def read_hostfile(path: Path) -> list[HostSlots]:
    """Read the hosts in a file.

    A line has a name, or a range of names, and its slots: "a slots=8" (Open MPI), "a:8" (MPICH), or "a"; #
    begins a comment. A host on several lines without slots has as many slots as lines, as in the files of PBS
    and LSF ($PBS_NODEFILE, $LSB_DJOB_HOSTFILE).

    Raises ValueError with the line number for anything else, OSError if the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # editors on Windows put a mark first
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
    found: list[HostSlots] = []
    for number, line in enumerate(lines, 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        where = f"{path}, line {number}"
        hosts = parse_host(words[0], where)
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key not in SLOTS or not value.isdecimal():
                raise ValueError(f"{where}: expected HOST slots=N or HOST:N, not {line.strip()!r}")
            if key == SLOTS[0]:
                hosts = [HostSlots(host.name, positive(value, where)) for host in hosts]
        found += hosts
    if not found:
        raise ValueError(f"{path} contains no hosts")
    return distinct(_counted(found))


def _counted(hosts: Sequence[HostSlots]) -> list[HostSlots]:
    """The hosts with repeated lines as slots, if no line has slots; in the order of their first lines."""
    lines = Counter(host.name for host in hosts)
    if len(lines) == len(hosts) or any(host.slots for host in hosts):
        return list(hosts)
    return [HostSlots(name, count) for name, count in lines.items()]


def parse_host(word: str, where: str) -> list[HostSlots]:
    """Parse a host, or a range of hosts, with its slots. where: for the message of a ValueError."""
    if is_ipv6(word):
        raise ValueError(
            f"{where}: {word} is an IPv6 address, which MPI launchers do not take. Use a name for it, from "
            "/etc/hosts or ~/.ssh/config on all hosts, or an IPv4 address"
        )
    name, colon, slots = word.rpartition(":")
    if not colon:
        name, slots = word, ""
    if not NAME.fullmatch(RANGES.sub("0", name)) or (colon and slots and not slots.isdecimal()):
        raise ValueError(f"{where}: {word!r} is not a host")
    count = positive(slots, where) if slots else 0
    return [HostSlots(each, count) for each in _expanded(name, where)]


def _expanded(name: str, where: str) -> list[str]:
    """The names of a range such as node[01-03,7]: numbers have as many digits as the first of their range."""
    texts = RANGES.split(name)  # every second one is in brackets
    numbers = [[_range(part, name, where) for part in inner.split(",")] for inner in texts[1::2]]
    count = math.prod(sum(len(span) for span, _ in spans) for spans in numbers)
    if count > MOST_HOSTS:
        raise ValueError(f"{where}: {name} is {count:,} hosts; a list has at most {MOST_HOSTS:,}")
    choices = [[f"{number:0{digits}}" for span, digits in spans for number in span] for spans in numbers]
    return [
        "".join(text for pair in zip(texts[::2], (*chosen, ""), strict=True) for text in pair)
        for chosen in product(*choices)
    ]


def _range(text: str, name: str, where: str) -> tuple[range, int]:
    """The numbers of "7" or "01-03", and their least number of digits."""
    match = RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{where}: {text!r} in {name} is no number or range such as 01-03")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{where}: {name} has no hosts: {text} goes from {first} down to {last}")
    return range(first, last + 1), len(match[1])


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
    """The hosts, of which none may be listed twice. Raises ValueError."""
    known: dict[str, int] = {}
    for host in hosts:
        before = known.get(host.name)
        known[host.name] = host.slots
        if before is not None and before != host.slots:
            slots = " and ".join(f"{count} slots" if count else "none" for count in (before, host.slots))
            raise ValueError(f"host {host.name} is listed twice, with different slots: {slots}")
        if before is not None:
            raise ValueError(f"host {host.name} is listed twice")
    return list(hosts)
