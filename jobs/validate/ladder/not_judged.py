"""What a verdict leaves open, in sentences."""

from __future__ import annotations

from collections.abc import Collection

from jobs.validate.measurements.leaf_switches import LEAST_HOSTS
from jobs.validate.plan import Plan
from jobs.validate.topology import Topology


def failed_measurements(rung: str, what: str, ranks: Collection[int]) -> str:
    """ranks: with which something could not be measured."""
    listed = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{rung}: {what} could not be measured with rank {listed}"


def missing_siblings(topology: Topology, plan: Plan) -> list[str]:
    """What no measurement here can judge, because there is nothing to compare with."""
    notes = []
    if topology.ranks == 1:
        notes.append("one rank: nothing to compare it with; its figures are reported, not judged")
    elif topology.hosts == 1:
        notes.append(
            f"one host: what slows all its {topology.unit}s alike cannot be seen; its network is not measured"
        )
    elif topology.hosts == 2:
        notes.append(
            "two hosts: what slows all their NICs alike (the link, or either host's network) cannot be seen"
        )
    if 1 < topology.hosts < LEAST_HOSTS:
        notes.append(f"fewer than {LEAST_HOSTS} hosts: uplinks of leaf switches are not judged")
    if topology.hosts > plan.all_pairs_hosts:
        most = plan.all_pairs_hosts
        notes.append(f"more than {most} hosts: partners are sampled, so links between hosts are not judged")
    return notes
