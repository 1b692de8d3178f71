"""Turn confirmed parts into findings: names, locations and evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from meshrun.jobs.measure.outliers import is_late
from meshrun.jobs.validate.localize.retest import Confirmed, Localization
from meshrun.jobs.validate.localize.set_cover import PartName
from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.topology import Ints, Topology
from meshrun.jobs.validate.verdict import Evidence, Finding, FindingKind, describe_part, unit_of

WITH_PARTNERS = ("flows",)  # operations whose evidence lists the partners
OF_NICS = ("nic", "both", "send", "receive", "flap")  # both: slow only while it sends and receives
HOST_DIRECTIONS = {"host send": "send", "host receive": "receive"}  # of all NICs of a host
ALIKE = 0.15  # largest difference between the factors of findings that are merged


def location(name: PartName, topology: Topology) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Return hosts, GPUs and ranks of a part. A rail has no hosts; a host or a link has no GPUs."""
    kind, key = name
    names, host, gpu = topology.names, topology.host, topology.number
    if kind in ("host", "ring"):
        return (names[key],), (), tuple(topology.on(key).tolist())
    if kind in HOST_DIRECTIONS:
        return (names[key],), tuple(gpu[topology.on(key)].tolist()), tuple(topology.on(key).tolist())
    if kind in ("rail", "leaf"):
        return (), (key,), tuple(np.flatnonzero(gpu_of_nic(topology) == key).tolist())
    if kind in OF_NICS:
        sharing = topology.sharing(key)
        return (names[host[key]],), tuple(gpu[sharing].tolist()), tuple(sharing.tolist())
    if kind in ("link", "link one way"):
        left, right = divmod(key, topology.hosts)
        return (names[left], names[right]), (), ()
    if kind == "path":
        a, b = divmod(key, topology.ranks)
        return (names[host[a]], names[host[b]]), (int(topology.gpu[a]),), ()  # a rail
    if kind == "pair":
        a, b = divmod(key, topology.ranks)
        return (names[host[a]],), (int(gpu[a]), int(gpu[b])), ()
    return (names[host[key]],), (int(gpu[key]),), (key,)


def gpu_of_nic(topology: Topology) -> Ints:
    """Return (ranks,): the rail of each rank's NIC, that of the first rank that has it."""
    return np.asarray(topology.gpu[topology.owner])


def findings(found: Localization, topology: Topology, rung: RungName, what: str, work: int) -> list[Finding]:
    """Return a finding for each confirmed part. work: bytes, or operations of a product."""
    return [
        finding(part, found, topology, rung, what, work)
        for one in found.confirmed
        for part in parts_of(one, found, topology)
    ]


def parts_of(one: Confirmed, found: Localization, topology: Topology) -> list[Confirmed]:
    """Return the NICs of a host that is slow in one direction, each with its own rows; otherwise the part."""
    kind, key = one.name
    if kind not in HOST_DIRECTIONS:
        return [one]
    side = topology.owner[found.table.a if kind == "host send" else found.table.b]
    owners = [rank for rank in topology.on(key).tolist() if topology.owner[rank] == rank]
    parts = [
        replace(one, name=(HOST_DIRECTIONS[kind], rank), rows=one.rows & (side == rank)) for rank in owners
    ]
    return [part for part in parts if part.rows.any()]


def finding(
    one: Confirmed, found: Localization, topology: Topology, rung: RungName, what: str, work: int
) -> Finding:
    table = found.table
    late = one.rows & is_late(table.slow, table.count) if one.flaps is not None else one.rows
    siblings = float(np.median(work / table.siblings[one.rows]))
    hosts, gpus, ranks = location(one.name, topology)
    if one.ranks is not None:
        hosts, ranks = tuple(topology.names[host] for host in topology.host[list(one.ranks)]), one.ranks
    kind = cast(FindingKind, "stall" if one.stalls else kind_on(rung, one.name))
    met = set(table.a[one.rows].tolist()) | set(table.b[one.rows].tolist())
    partners = tuple(
        f"{topology.names[topology.host[rank]]}:{topology.number[rank]}"
        for rank in sorted(met - set(ranks))
        if what in WITH_PARTNERS
    )
    slow = float((table.level[late] > table.threshold[late]).mean()) if late.any() else 0.0
    rate = siblings / math.exp(one.effect)
    evidence = Evidence(
        f"{what} in both directions at once" if one.name[0] == "both" else what,
        rate,
        siblings,
        int(table.count[one.rows].sum()),
        partners,
        slow,
        unit_of(what),
        one.p99,
    )
    instead = tuple(
        dict.fromkeys(
            part_text(tie, topology, rung)
            for tie in one.ties
            if location(tie, topology)[2] != ranks or not ranks
        )
    )
    if one.or_ranks:
        others = tuple(topology.names[host] for host in topology.host[list(one.or_ranks)])
        instead += (describe_part(kind, others, gpus, topology.unit),)
    factor = math.exp(-one.effect)
    return Finding(kind, hosts, gpus, factor, rung, evidence, ranks, one.flaps, instead, topology.unit)


def kind_on(rung: RungName, name: PartName) -> str:
    """Return the kind that a rung's reports name: on the rung "host", a slow GPU has a slow PCIe link."""
    if name[0] == "both":
        return "nic"
    return "pcie" if (rung, name[0]) == ("host", "gpu") else HOST_DIRECTIONS.get(name[0], name[0])


def part_text(name: PartName, topology: Topology, rung: RungName) -> str:
    """Return a part's name as it appears in reports."""
    hosts, gpus, _ = location(name, topology)
    return describe_part(kind_on(rung, name), hosts, gpus, topology.unit).rstrip(":")


def merge(found: Sequence[Finding], topology: Topology) -> list[Finding]:
    """Merge the findings of all operations into one for each part.

    If all NICs of a rail (or a host) are slow, the rail (or the host) replaces them.
    """
    by_part: dict[tuple[object, ...], Finding] = {}
    for new in found:
        key = (new.kind, new.hosts, new.gpus)
        old = by_part.get(key)
        worse = new if old is None or new.factor < old.factor else old
        if old is not None:
            what = f"{old.evidence.what}, {new.evidence.what}"
            worse = replace(worse, evidence=replace(worse.evidence, what=what))
        by_part[key] = worse
    parts = list(by_part.values())
    parts = [one for one in parts if not any(belongs_to(one, whole) for whole in parts)]
    return join_groups(parts, topology)


def belongs_to(one: Finding, whole: Finding) -> bool:
    """Return whether `whole` explains `one`: a GPU's slow host, the flapping NIC at a path's end, the leaf
    switch that a path leaves, or the slow NIC of which a load made some samples slower still."""
    if one.kind in ("flap", "stall"):
        return whole.kind in ("nic", "send", "receive") and (whole.hosts, whole.gpus) == (one.hosts, one.gpus)
    if one.factor < whole.factor * (1 - ALIKE):
        return False
    if one.kind in ("gpu", "pcie"):
        return whole.kind == "host" and one.hosts == whole.hosts
    if one.kind == "path" and whole.kind == "leaf":
        inside = [host in whole.hosts for host in one.hosts]
        return whole.gpus == one.gpus and inside.count(True) == 1
    return (
        one.kind == "path"
        and whole.kind in ("flap", "stall")
        and whole.gpus == one.gpus
        and whole.hosts[0] in one.hosts
    )


def join_groups(found: list[Finding], topology: Topology) -> list[Finding]:
    """Replace the findings of all ranks of a rail or host, if equally slow, by one of the rail or host."""
    groups = [("rail", gpu, topology.rail(gpu)) for gpu in range(topology.rails)]
    groups += [("host", host, topology.on(host)) for host in range(topology.hosts)]
    by_rank = {rank: one for one in found if one.kind in ("nic", "pcie", "gpu") for rank in one.ranks}
    for kind, key, ranks in groups:
        slow = [rank for rank in ranks.tolist() if rank in by_rank]
        if kind == "rail":
            slow = [rank for rank in slow if by_rank[rank].kind == "nic"]
        members = list({id(one): one for one in (by_rank[rank] for rank in slow)}.values())
        if (
            len(slow) < max(2, len(ranks))
            or len(members) < 2
            or np.ptp([one.factor for one in members]) > ALIKE
        ):
            continue
        hosts, gpus, all_ranks = location((kind, key), topology)
        whole = replace(members[0], kind=cast(FindingKind, kind), hosts=hosts, gpus=gpus, ranks=all_ranks)
        found = [one for one in found if one not in members] + [whole]
        for rank in all_ranks:
            by_rank.pop(rank, None)
    return found
