"""Confirmed parts as findings: what a person calls them, with their figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from jobs.measure.outliers import confidence, is_late, spread
from jobs.validate.localize.retest import Answer, Confirmed
from jobs.validate.localize.set_cover import Name
from jobs.validate.plan import RungName
from jobs.validate.topology import Fleet
from jobs.validate.verdict import Evidence, Finding, Kind, part, unit_of


def place(name: Name, fleet: Fleet) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Hosts, GPUs and ranks of a part. Hosts of a rail: none; GPUs of a host or a link: none."""
    kind, key = name
    names, host, gpu = fleet.names, fleet.host, fleet.gpu
    if kind in ("host", "ring"):
        return (names[key],), (), tuple(fleet.on(key).tolist())
    if kind == "rail":
        return (), (key,), tuple(fleet.rail(key).tolist())
    if kind == "link":
        left, right = divmod(key, fleet.hosts)
        return (names[left], names[right]), (), ()
    if kind == "path":
        a, b = divmod(key, fleet.ranks)
        return (names[host[a]], names[host[b]]), (int(gpu[a]),), ()
    if kind == "pair":
        a, b = divmod(key, fleet.ranks)
        return (names[host[a]],), (int(gpu[a]), int(gpu[b])), ()
    return (names[host[key]],), (int(gpu[key]),), (key,)


def findings(
    answer: Answer, fleet: Fleet, rung: RungName, what: str, work: int, kinds: dict[str, str]
) -> list[Finding]:
    """work: bytes, of a product its operations. kinds: what this rung calls its parts, where it is not the
    search's name.
    """
    return [finding(one, answer, fleet, rung, what, work, kinds) for one in answer.confirmed]


def finding(
    one: Confirmed,
    answer: Answer,
    fleet: Fleet,
    rung: RungName,
    what: str,
    work: int,
    kinds: dict[str, str],
) -> Finding:
    table = answer.table
    late = one.rows & is_late(table.slow, table.count) if one.flaps is not None else one.rows
    siblings = float(np.median(work / table.siblings[one.rows]))
    hosts, gpus, ranks = place(one.name, fleet)
    if one.ranks is not None:
        hosts, ranks = tuple(fleet.names[host] for host in fleet.host[list(one.ranks)]), one.ranks
    kind = cast(Kind, kinds.get(one.name[0], one.name[0]))
    met = set(table.a[one.rows].tolist()) | set(table.b[one.rows].tolist())
    partners = tuple(
        f"{fleet.names[fleet.host[rank]]}:{fleet.gpu[rank]}"
        for rank in sorted(met - set(ranks))
        if what in WIRES
    )
    slow = float((table.level[late] > table.threshold[late]).mean()) if late.any() else 0.0
    rate = siblings / math.exp(one.effect)
    evidence = Evidence(what, rate, siblings, int(table.count[one.rows].sum()), partners, slow, unit_of(what))
    instead = tuple(
        dict.fromkeys(
            called(tie, fleet, kinds) for tie in one.ties if place(tie, fleet)[2] != ranks or not ranks
        )
    )
    certain = (1.0 if one.flaps is not None else slow) * surely(one, answer) / (1 + len(instead))
    factor = math.exp(-one.effect)
    return Finding(kind, hosts, gpus, factor, certain, rung, evidence, ranks, one.flaps, instead, fleet.unit)


WIRES = ("flows",)


def called(name: Name, fleet: Fleet, kinds: dict[str, str]) -> str:
    hosts, gpus, _ = place(name, fleet)
    return part(kinds.get(name[0], name[0]), hosts, gpus, fleet.unit).rstrip(":")


def surely(one: Confirmed, answer: Answer) -> float:
    """Probability that a good part's median stays below the threshold."""
    table = answer.table
    good = table.level[np.abs(table.level) < table.threshold]
    threshold = float(np.median(table.threshold[one.rows]))
    return confidence(one.effect, threshold, spread(good), int(one.rows.sum()))


def merged(found: Sequence[Finding], fleet: Fleet) -> list[Finding]:
    """One finding of each part: of several operations; all NICs of a rail (or of a host) are the rail (or the
    host).
    """
    by_part: dict[tuple[object, ...], Finding] = {}
    for new in found:
        key = (new.kind, new.hosts, new.gpus)
        old = by_part.get(key)
        worse = new if old is None or new.factor < old.factor else old
        if old is not None:
            worse = with_what(worse, f"{old.evidence.what}, {new.evidence.what}")
        by_part[key] = worse
    parts = list(by_part.values())
    return together([one for one in parts if not any(belongs(one, whole) for whole in parts)], fleet)


def belongs(one: Finding, whole: Finding) -> bool:
    """A GPU that is as slow as its host is, or a path that is as slow as the flapping NIC at its end was."""
    if one.factor < whole.factor * (1 - ALIKE):
        return False
    if one.kind in ("gpu", "pcie"):
        return whole.kind == "host" and one.hosts == whole.hosts
    return (
        one.kind == "path" and whole.kind == "flap" and whole.gpus == one.gpus and whole.hosts[0] in one.hosts
    )


def with_what(found: Finding, what: str) -> Finding:
    return replace(found, evidence=replace(found.evidence, what=what))


ALIKE = 0.15  # factors of parts that are one


def together(found: list[Finding], fleet: Fleet) -> list[Finding]:
    groups = [("rail", gpu, fleet.rail(gpu)) for gpu in range(fleet.rails)]
    groups += [("host", host, fleet.on(host)) for host in range(fleet.hosts)]
    ranks_found = {
        one.ranks[0]: one for one in found if one.kind in ("nic", "pcie", "gpu") and len(one.ranks) == 1
    }
    for kind, key, ranks in groups:
        inside = [ranks_found[rank] for rank in ranks.tolist() if rank in ranks_found]
        if kind == "rail":
            inside = [one for one in inside if one.kind == "nic"]
        if len(inside) < max(2, len(ranks)) or np.ptp([one.factor for one in inside]) > ALIKE:
            continue
        hosts, gpus, members = place((kind, key), fleet)
        whole = replace(inside[0], kind=cast(Kind, kind), hosts=hosts, gpus=gpus, ranks=members)
        found = [one for one in found if one not in inside] + [whole]
        for rank in members:
            ranks_found.pop(rank, None)
    return found
