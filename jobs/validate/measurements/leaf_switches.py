"""Leaf switches: hosts that are slow together on one rail when everything sends at once, and not alone.

Nobody tells which hosts share a switch. In each round every NIC of the fleet sends and receives, to and
from a quarter of the fleet away or more: hosts near each other in order often share a leaf switch, so nearly
all its uplinks are in use; in any other order most of them are. Hosts behind a slow one are slow with all
partners but those that are behind it too. Hosts elsewhere are slow only with these, which acquits them. Where
there are only two leaf switches, too few ways lead through them, and none is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jobs.measure.outliers import Floats, column_quantiles, group_threshold, row_medians
from jobs.validate.localize.explained import Known
from jobs.validate.measurements.repeats import VISITS, visited
from jobs.validate.measurements.schedule import across, apart
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Fleet, Ints
from jobs.validate.verdict import Evidence, Finding

LEAST = 8  # hosts: fewer say nothing about switches
ROUNDS = 16
ASKED = 8  # hosts of a cluster that are asked alone
SETTLED = 8  # steps in which a cluster settles, or never


@dataclass
class Leaves:
    """rate: median of all flows when everything sends at once, bytes per second. lost: ranks of which
    something could not be measured. notes: what is left open.
    """

    findings: list[Finding] = field(default_factory=list)
    rate: float = math.nan
    lost: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Load:
    """One measurement of everything at once. Of each rail, in the order of its ranks: log of the time over
    the fleet's of each flow that they send or receive, and the place on the rail of whom with.

    level, partner: (2 rounds, ranks of the rail). limit: of a level that is slow.
    """

    level: dict[int, Floats]
    partner: dict[int, Ints]
    limit: float
    siblings: float  # seconds of a typical flow
    samples: int

    def and_then(self, later: Load) -> Load:
        level = {rail: np.concatenate([rows, later.level[rail]]) for rail, rows in self.level.items()}
        partner = {rail: np.concatenate([rows, later.partner[rail]]) for rail, rows in self.partner.items()}
        return replace(later, level=level, partner=partner, limit=max(self.limit, later.limit))


def leaves(probe: Probe, fleet: Fleet, plan: Plan, bad: Known) -> Leaves:
    """bad: ranks that findings explain, whose flows do not count."""
    found = Leaves()
    random = np.random.default_rng(plan.seed)
    first = loaded(probe, fleet, plan, bad, random, found)
    found.rate = plan.nic_bytes / first.siblings
    clusters = {rail: slow_together(first, rail) for rail in first.level}
    suspects = [rail for rail, hosts in clusters.items() if hosts.any()]
    if not suspects:
        return found
    again = loaded(probe, fleet, plan, bad, random, found)
    both = first.and_then(again)
    for rail in suspects:
        now = slow_together(again, rail)
        agree = (clusters[rail] & now).sum() / (clusters[rail] | now).sum()
        if agree < plan.share:
            continue
        members = slow_together(both, rail)
        if not members.any():
            continue
        if slow_alone(probe, fleet, plan, rail, members, random):
            found.notes.append(f"all: {members.sum()} hosts are slow on rail {rail}, each alone too")
            continue
        found.findings.append(finding(both, fleet, plan, rail, members, float(agree)))
    return found


def loaded(
    probe: Probe, fleet: Fleet, plan: Plan, bad: Known, random: np.random.Generator, found: Leaves
) -> Load:
    """Rounds of everything at once."""
    rounds = across(fleet, ROUNDS, random)

    def measured(flows: Ints, samples: int) -> Seconds:
        return probe.flows([(a, b) for a, b in flows.tolist()], plan.nic_bytes, samples)

    seconds = visited(measured, rounds, plan.samples)
    for flows, times in zip(rounds, seconds, strict=True):
        found.lost |= set(flows[np.isnan(times).any(axis=1)].ravel().tolist())
    logs = np.log(row_medians(np.concatenate(seconds)))
    flows = np.concatenate(rounds)
    logs[np.isin(flows, list(bad)).any(axis=1)] = np.nan
    level, partner = by_rail(fleet, flows, logs)
    middles = np.concatenate([column_quantiles(rows, 0.5) for rows in level.values()])
    middles = middles[~np.isnan(middles)]
    # Of ranks, not of flows: where uplinks are scarce, flows that need none are faster than most.
    base = float(np.median(middles)) if len(middles) else math.nan
    limit = group_threshold(middles - base, plan.tolerance)
    level = {rail: rows - base for rail, rows in level.items()}
    return Load(level, partner, limit, math.exp(base), plan.samples)


def by_rail(fleet: Fleet, flows: Ints, level: Floats) -> tuple[dict[int, Floats], dict[int, Ints]]:
    """What each rank of a rail sent, then what it received; a row for each round."""
    place = np.zeros(fleet.ranks, np.int64)  # on its rail
    for rail in range(fleet.rails):
        place[fleet.rail(rail)] = np.arange(len(fleet.rail(rail)))
    levels, partners = {}, {}
    for rail in range(fleet.rails):
        count = len(fleet.rail(rail))
        rows = np.flatnonzero(fleet.gpu[flows[:, 0]] == rail)
        if not len(rows):
            continue
        sent, received = place[flows[rows]].T
        # Rounds follow each other, and each rank sends once in each, and receives once: a stable order.
        there, back = np.argsort(sent, kind="stable"), np.argsort(received, kind="stable")
        levels[rail] = np.concatenate([level[rows[order]].reshape(count, -1).T for order in (there, back)])
        partners[rail] = np.concatenate(
            [received[there].reshape(count, -1).T, sent[back].reshape(count, -1).T]
        )
    return levels, partners


def slow_together(load: Load, rail: int) -> np.ndarray:
    """Which ranks of the rail are slow with nearly all that are not slow themselves; none of fewer than 2."""
    level, partner = load.level[rail], load.partner[rail]
    inside = column_quantiles(level, 0.25) > load.limit
    for _ in range(SETTLED):
        middle = column_quantiles(np.where(inside[partner], np.nan, level), 0.5)
        # Who met nobody outside: as before.
        new = np.where(np.isnan(middle), inside, middle > load.limit)
        if (new == inside).all():
            break
        inside = new
    if 2 * inside.sum() > len(inside):
        return np.ones(len(inside), bool)  # which side of the switches between them is slow cannot be told
    return np.asarray(inside & (inside.sum() > 1))


def slow_alone(
    probe: Probe, fleet: Fleet, plan: Plan, rail: int, members: np.ndarray, random: np.random.Generator
) -> bool:
    """Whether flows of single members are slow too, against the same hosts' on another rail (or others' on
    this one).
    """
    ranks = fleet.rail(rail)
    inside, outside = ranks[members], ranks[~members]
    senders = random.permutation(inside)[:ASKED]
    receivers = random.choice(outside, len(senders)) if len(outside) else np.roll(senders, 1)
    flows = list(zip(senders.tolist(), receivers.tolist(), strict=True))
    controls = list(siblings(fleet, flows, rail)) or pairs(outside, random)
    asked = list(dict.fromkeys([*flows, *controls]))
    rounds = apart(asked, fleet, 1)

    def measured(met: Sequence[tuple[int, int]], samples: int) -> Seconds:
        return probe.flows(met, plan.nic_bytes, samples)

    seconds = visited(measured, rounds, max(plan.again // VISITS, 3), VISITS)
    times = dict(zip([met[0] for met in rounds], np.log(row_medians(np.concatenate(seconds))), strict=True))
    usual = np.median([times[flow] for flow in controls]) if controls else math.nan
    return bool(np.median([times[flow] for flow in flows]) - usual > plan.tolerance)


def siblings(fleet: Fleet, flows: Iterable[tuple[int, int]], rail: int) -> Iterable[tuple[int, int]]:
    """The same hosts' flows on the next rail that both have."""
    for a, b in flows:
        for other in np.roll(np.arange(fleet.rails), -rail - 1)[:-1]:
            there = int(fleet.at[fleet.host[a], other]), int(fleet.at[fleet.host[b], other])
            if min(there) >= 0:
                yield there
                break


def pairs(ranks: Ints, random: np.random.Generator) -> list[tuple[int, int]]:
    few = random.permutation(ranks)[: 2 * ASKED]
    return [(int(a), int(b)) for a, b in few[: len(few) // 2 * 2].reshape(-1, 2)]


def finding(load: Load, fleet: Fleet, plan: Plan, rail: int, members: np.ndarray, agree: float) -> Finding:
    """agree: share of the hosts that both measurements name, of those that either does."""
    level = load.level[rail][:, members]
    through = np.where(members[load.partner[rail][:, members]], np.nan, level)  # the way leads out
    through = level if np.isnan(through).all() else through
    through = through[~np.isnan(through)]
    slow = through[through > load.limit]
    effect = float(np.median(slow))
    rate = plan.nic_bytes / load.siblings
    evidence = Evidence(
        "flows of all at once",
        rate * math.exp(-effect),
        rate,
        len(through) * load.samples,
        (),
        len(slow) / len(through),
    )
    ranks = tuple(fleet.rail(rail)[members].tolist())
    return Finding(
        "leaf",
        tuple(fleet.names[fleet.host[rank]] for rank in ranks),
        (rail,),
        math.exp(-effect),
        len(slow) / len(through) * agree,
        "all",
        evidence,
        ranks,
    )
