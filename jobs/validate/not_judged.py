"""What a verdict leaves open, in sentences."""

from __future__ import annotations

from collections.abc import Collection

from jobs.validate.measurements.leaf_switches import LEAST
from jobs.validate.plan import Plan
from jobs.validate.topology import Fleet


def unmeasured(name: str, what: str, lost: Collection[int]) -> str:
    ranks = ", ".join(map(str, sorted(lost)[:8])) + (", ..." if len(lost) > 8 else "")
    return f"{name}: {what} could not be measured with rank {ranks}"


def siblings_missing(fleet: Fleet, plan: Plan) -> list[str]:
    """What no measurement here can judge, because there is nothing to compare with."""
    notes = []
    if fleet.ranks == 1:
        notes.append("one rank: nothing to compare it with; its figures are told, not judged")
    elif fleet.hosts == 1:
        notes.append(
            f"one host: what slows all its {fleet.unit}s alike cannot be seen; its network is not measured"
        )
    elif fleet.hosts == 2:
        notes.append(
            "two hosts: what slows all their NICs alike (the link, or either host's network) cannot be seen"
        )
    if 1 < fleet.hosts < LEAST:
        notes.append(f"fewer than {LEAST} hosts: uplinks of leaf switches are not judged")
    if fleet.hosts > plan.cover:
        notes.append(
            f"more than {plan.cover} hosts: partners are sampled, so links between two hosts are not judged"
        )
    return notes
