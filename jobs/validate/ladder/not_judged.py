"""Sentences on what a verdict could not judge."""

from __future__ import annotations

from collections.abc import Collection

from jobs.validate.measurements.leaf_switches import LEAST_HOSTS
from jobs.validate.plan import Plan
from jobs.validate.topology import Topology


def failed_measurements(rung: str, what: str, ranks: Collection[int]) -> str:
    """ranks: those with a failed measurement."""
    listed = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{rung}: {what} could not be measured with rank {listed}"


def missing_siblings(topology: Topology, plan: Plan) -> list[str]:
    """Return what cannot be judged on this topology because there is nothing to compare it with."""
    notes = []
    if topology.ranks == 1:
        notes.append("one rank: nothing to compare it with; its figures are reported, not judged")
    elif topology.hosts == 1:
        unit = topology.unit
        notes.append(
            f"one host: a slowdown of all its {unit}s cannot be detected; its network is not measured"
        )
    elif topology.hosts == 2:
        notes.append(
            "two hosts: a slowdown of all their NICs (the link, or either host's network) cannot be detected"
        )
    if 1 < topology.hosts < LEAST_HOSTS:
        notes.append(f"fewer than {LEAST_HOSTS} hosts: uplinks of leaf switches are not judged")
    if topology.hosts > plan.all_pairs_hosts:
        most = plan.all_pairs_hosts
        notes.append(f"more than {most} hosts: partners are sampled, so links between hosts are not judged")
    return notes
