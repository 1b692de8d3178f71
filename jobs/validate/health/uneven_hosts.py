"""Hosts with another number of GPUs, NICs or NVLinks than their siblings, or than --expect-gpus says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.jobs.validate.verdict import Alarm, HostPart, UnevenHost, Unit
from meshrun.runner.report.units import counted

SHOWN = 8  # hosts in a sentence


@dataclass(frozen=True)
class HostParts:
    """The parts of a host that take part in a run.

    Attributes
    ----------
    host : str
    model : str
        Model of most of its GPUs, or of its processors; hosts of other models are no siblings.
    counts : mapping from str to int
        Number of parts of each kind; a kind that is not known is missing.
    """

    host: str
    model: str
    counts: Mapping[HostPart, int]


def count_parts(places: Sequence[RankPlace], hosts: Sequence[str], unit: Unit) -> list[HostParts]:
    """Count the parts of each host.

    Ranks that share a GPU count as one GPU. Ranks on CPUs are parts themselves.

    Parameters
    ----------
    places : sequence of RankPlace
        In rank order.
    hosts : sequence of str
        Names, by `RankPlace.host`.
    unit : {"GPU", "CPU"}
        What the ranks compute on.

    Returns
    -------
    list of HostParts
        In the order of `hosts`.
    """
    on_host: list[list[RankPlace]] = [[] for _ in hosts]
    for place in places:
        on_host[place.host].append(place)

    found = []
    for name, ranks in zip(hosts, on_host, strict=True):
        counts: dict[HostPart, int] = {"rank": len(ranks)}
        if unit == "GPU":
            gpus = {(place.number is None, place.rank if place.number is None else place.number): place
                    for place in ranks}  # fmt: skip
            ports = {port for place in ranks for port in place.nic.split(", ") if port}
            links = [place.nvlinks for place in gpus.values() if place.nvlinks is not None]
            counts = {"GPU": len(gpus), "NIC": len(ports)}
            if len(links) == len(gpus):
                counts["NVLink"] = sum(links)
        model = Counter(place.model for place in ranks).most_common(1)[0][0] if ranks else ""
        found.append(HostParts(name, model, counts))
    return found


def compare_hosts(
    parts: Sequence[HostParts], expected_gpus: int | None = None
) -> tuple[tuple[UnevenHost, ...], list[str]]:
    """Compare each host's numbers of parts with those of most hosts of its model.

    A number is usual if more than half of the hosts have it. Without such a number, no host is uneven, and a
    note lists the numbers. NICs and NVLinks are compared between hosts with equally many GPUs, because a host
    without one of its GPUs does without its NIC and NVLinks as well.

    Parameters
    ----------
    parts : sequence of HostParts
    expected_gpus : int, optional
        The number of GPUs that each host must have, whatever the others have.

    Returns
    -------
    tuple of UnevenHost
        In the order of `parts`, GPUs first.
    list of str
        Notes on numbers that differ although none of them is usual.

    Examples
    --------
    >>> hosts = [HostParts(f"h{n}", "H200", {"GPU": count}) for n, count in enumerate((8, 7, 8))]
    >>> [(one.host, one.count, one.usual) for one in compare_hosts(hosts)[0]]
    [('h1', 7, 8)]
    """
    uneven, notes = list[UnevenHost](), list[str]()
    if expected_gpus is not None:
        uneven += [
            UnevenHost(one.host, "GPU", count, expected_gpus, None)
            for one in parts
            if (count := one.counts.get("GPU", 0)) != expected_gpus
        ]
    for part in ("rank", "GPU", "NIC", "NVLink"):
        if part == "GPU" and expected_gpus is not None:
            continue
        siblings: dict[tuple[str, int | None], list[HostParts]] = {}
        for one in parts:
            if part in one.counts:
                gpus = one.counts["GPU"] if part in ("NIC", "NVLink") else None
                siblings.setdefault((one.model, gpus), []).append(one)
        for alike in siblings.values():
            odd, note = odd_ones(part, alike)
            uneven += odd
            notes += [note] if note else []
    return tuple(uneven), notes


def odd_ones(part: HostPart, siblings: Sequence[HostParts]) -> tuple[list[UnevenHost], str]:
    """Return the siblings without the usual number of a part, and a note if there is no usual number."""
    numbers = Counter(one.counts[part] for one in siblings)
    usual, hosts = numbers.most_common(1)[0]
    if 2 * hosts > len(siblings):
        odd = [one for one in siblings if one.counts[part] != usual]
        return [UnevenHost(one.host, part, one.counts[part], usual, hosts) for one in odd], ""
    names = {
        number: [one.host for one in siblings if one.counts[part] == number]
        for number in sorted(numbers, reverse=True)
    }
    listed = "; ".join(f"{counted(number, part)}: {listing(some)}" for number, some in names.items())
    setting = "; --expect-gpus N says how many each must have" if part == "GPU" else ""
    note = f"hosts have different numbers of {part}s ({listed}), none of them in the majority"
    return [], f"{note}, so no host counts as odd{setting}"


def listing(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def uneven_alarm(one: UnevenHost, unit: Unit) -> Alarm:
    """Return the alarm of an uneven host: critical if it misses a stated number, otherwise a warning."""
    severity: Literal["critical", "warning"] = "warning"
    reason = f"{counted(one.siblings or 0, 'other host')} of its kind have {one.usual}"
    if one.siblings is None:
        severity, reason = "critical", f"--expect-gpus expects {one.usual}"
        if unit == "CPU":
            reason += "; its ranks run on CPUs"
    return Alarm(severity, f"host {one.host} has {counted(one.count, one.part)}; {reason}")
