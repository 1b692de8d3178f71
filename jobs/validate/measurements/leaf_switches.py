"""Leaf switches: find hosts that are slow together on one rail under full load, but not alone.

Which hosts share a switch is not known. In each round every NIC exchanges data with one other, in half of
the rounds far away: neighbours in host order often share a leaf switch, so nearly all of its uplinks are in
use; in any other order most are. Rails with the same hosts have the same partners, and each flow is compared
with those of the same hosts on other rails, whose uplinks have as much to carry. Hosts behind a slow switch
are slow with all partners except those behind the same switch. Other hosts are slow only with these, which
clears them. With only two leaf switches, either may be the slow one (`localize.two_sides`). If flows are slow
and no switch explains them, the run is not ok.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshrun.jobs.measure.outliers import (
    STANDARD_ERRORS,
    Floats,
    clear_threshold,
    column_quantiles,
    group_threshold,
    row_medians,
    spread,
)
from meshrun.jobs.validate.localize.set_cover import KnownFaults, Mask
from meshrun.jobs.validate.localize.two_sides import is_either, ranks_of_sides, two_sides
from meshrun.jobs.validate.measurements.repeats import RETEST_REPEATS, measure_repeatedly
from meshrun.jobs.validate.measurements.schedule import all_at_once_rounds, isolated_rounds, senders_of_rail
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.topology import Ints, Topology
from meshrun.jobs.validate.verdict import Evidence, Finding, describe_part

LEAST_HOSTS = 8  # fewer hosts do not show switches
ROUNDS, QUICK_ROUNDS = 32, 8  # QUICK_ROUNDS: of a later look that may clear what was slow at first
LEAST_ALIKE = 3  # rails with the same hosts, so that a flow is compared with those of other rails
CONTAINED = 0.5  # share of the hosts that are slow together, in each look: most of them
FULL = 0.9  # of the flows between two sides in the fullest round: their uplinks are in use
RETESTED_HOSTS = 8  # of a cluster, one at a time
SLOW_RAIL = 0.25  # share of a rail's flows, above the usual share, that makes the rail slow
TWO_SWITCHES = 512  # hosts of a rail: more need three leaf switches or more, whose slow one shows by itself
STEPS = 8  # iterations of the search for a cluster, at most


@dataclass
class LeafSwitchResult:
    """rate: median of all flows under full load, bytes per second.

    failed: ranks with failed measurements. notes: what could not be judged. unexplained: something is slow,
    and no part of it could be named.
    """

    findings: list[Finding] = field(default_factory=list)
    rate: float = math.nan
    failed: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    unexplained: bool = False


@dataclass(frozen=True, eq=False)
class FullLoad:
    """One measurement under full load, by rail, with a column for each of the rail's senders in order.

    level: (2 rounds, senders of the rail) float64, log(time / siblings' time) of each flow that it sends or
    receives. partner: same shape, the partner's index on the rail. limit: the level above which a flow is
    slow. siblings: seconds of a typical flow.
    """

    level: dict[int, Floats]
    partner: dict[int, Ints]
    limit: float
    siblings: float
    samples: int

    def joined(self, later: FullLoad) -> FullLoad:
        level = {rail: np.concatenate([rows, later.level[rail]]) for rail, rows in self.level.items()}
        partner = {rail: np.concatenate([rows, later.partner[rail]]) for rail, rows in self.partner.items()}
        return replace(later, level=level, partner=partner, limit=max(self.limit, later.limit))


def measure_leaf_switches(
    probe: Probe, topology: Topology, plan: Plan, faults: KnownFaults
) -> LeafSwitchResult:
    """Measure under full load; if something is slow, twice more over half of the plan's span each, and name
    the switches that are slow then too.

    faults: ranks that findings explain; their flows do not count.
    """
    found = LeafSwitchResult()
    random = np.random.default_rng(plan.seed)

    def load(rounds: int = ROUNDS) -> FullLoad:
        return measure_full_load(probe, topology, plan, faults, random, found, rounds)

    first = load()
    found.rate = plan.nic_bytes / first.siblings
    clusters = {rail: slow_together(first, rail) for rail in first.level}
    clusters = {rail: hosts for rail, hosts in clusters.items() if hosts.any()}
    crowded = slow_rails(first)
    if clusters or crowded:
        # Of hosts that others load now, nearly none are loaded both later times.
        probe.wait(plan.retest_span / 2)
        quick = load(QUICK_ROUNDS)
        clusters = {rail: hosts for rail, hosts in clusters.items() if not clears(quick, first, rail, hosts)}
        crowded &= slow_rails(quick)
    if not clusters and not crowded:
        return found
    second = quick.joined(load(ROUNDS - QUICK_ROUNDS))
    both = first.joined(second)
    clusters = {rail: hosts for rail in clusters if (hosts := slow_in_all(rail, both, first, second)).any()}
    crowded &= slow_rails(second)
    if not clusters and not crowded:
        return found
    probe.wait(plan.retest_span / 2)
    third = load()
    both = both.joined(third)
    for rail in clusters:
        members = slow_in_all(rail, both, first, second, third)
        if not members.any():
            continue
        if slow_alone(probe, topology, plan, rail, members, random):
            found.notes.append(f"all: {members.sum()} hosts are slow on rail {rail}, each alone too")
            continue
        found.findings.append(finding(both, topology, plan, rail, members))
    named = {one.gpus[0] for one in found.findings}
    for rail in sorted((crowded & slow_rails(third)) - named):
        share = f"{100 * float(np.nanmean(both.level[rail] > both.limit)):.0f} %"
        found.notes.append(
            f"all: {share} of the flows of rail {rail} are slow when all send at once, unlike those of other "
            "rails; which hosts' leaf switch is slow cannot be told"
        )
        found.unexplained = True
    return found


def slow_in_all(rail: int, both: FullLoad, *looks: FullLoad) -> Mask:
    """Return a mask of the hosts that are slow together in `both` and, most of them, in each look.

    Hosts that others load for one look are among the slow ones of all together: not if most looks show them
    fast. A host behind the switch may be as fast as its siblings in a look, if others load these as well.
    """
    members = slow_together(both, rail)
    if not is_either(members, np.zeros((len(members), len(members)))):
        votes = np.sum([slow_in_full(members, rail, look) for look in looks], axis=0)
        members = members & (2 * votes > len(looks))
    if members.sum() < 2:
        return np.zeros(len(members), bool)
    shares = [contained(members, slow_together(look, rail)) for look in looks]
    return members & (min(shares) > CONTAINED)


def slow_in_full(members: Mask, rail: int, look: FullLoad) -> Mask:
    """Return a mask of the hosts that are slow where the flows between members and others fill uplinks."""
    across = members != members[look.partner[rail]]
    count = across.sum(axis=1)
    full = np.where(across, look.level[rail], np.nan)[count >= FULL * count.max()]
    return np.asarray(column_quantiles(full, 0.5) > look.limit / 2)


def contained(some: Mask, others: Mask) -> float:
    """Return the share of some members that are among others; 0 without members.

    Of two sides that are as large, either may be the one that is given.
    """
    if not some.any() or not others.any():
        return 0.0
    sides = (some, ~some) if 2 * some.sum() == len(some) else (some,)
    return float(max((side & others).sum() for side in sides) / some.sum())


def clears(load: FullLoad, first: FullLoad, rail: int, members: Mask) -> bool:
    """Return whether these hosts, slow together at first, are not slow in a later load.

    Sequential test (`clear_threshold`) of the medians of rounds, which others' flows disturb alike. Others
    may have loaded half of the hosts at first: then the median of all is half as slow.
    """
    partner = (first.partner[rail], load.partner[rail])
    fullest = max(int((members != members[each]).sum(axis=1).max()) for each in partner)
    now, before = (across_by_round(each, rail, members, fullest) for each in (load, first))
    effect = float(np.median(before)) if len(before) else 0.0
    if effect <= 0 or len(now) < 2:
        return False
    # What a rank sends and what it receives in a round are one observation.
    return bool(np.median(now) < clear_threshold(spread(now), len(now) / 2, effect / 2))


def across_by_round(load: FullLoad, rail: int, members: Mask, fullest: int) -> Floats:
    """Return the median level of the flows between these hosts and others, of rounds that fill their uplinks.

    fullest: number of such flows in the fullest round; with fewer, uplinks have bandwidth to spare.
    """
    across = members != members[load.partner[rail]]
    rows = across.sum(axis=1) >= FULL * fullest
    middles = row_medians(np.where(across, load.level[rail], np.nan)[rows])
    return middles[~np.isnan(middles)]


def slow_rails(load: FullLoad) -> set[int]:
    """Return rails of which far more flows are slow than of the usual rail."""
    share = {rail: float(np.nanmean(rows > load.limit)) for rail, rows in load.level.items()}
    usual = float(np.median(list(share.values())))
    return {rail for rail, one in share.items() if one > usual + SLOW_RAIL}


def measure_full_load(
    probe: Probe,
    topology: Topology,
    plan: Plan,
    faults: KnownFaults,
    random: np.random.Generator,
    found: LeafSwitchResult,
    count: int,
) -> FullLoad:
    """Measure `count` rounds under full load; adds failed ranks to `found`."""
    rounds = all_at_once_rounds(topology, count, random)

    def sample(flows: Ints, samples: int) -> Seconds:
        return probe.flows(flows, plan.nic_bytes, samples)

    seconds = measure_repeatedly(sample, rounds, plan.samples)
    for flows, times in zip(rounds, seconds, strict=True):
        found.failed |= set(flows[np.isnan(times).any(axis=1)].ravel().tolist())
    logs = np.log(row_medians(np.concatenate(seconds)))
    flows = np.concatenate(rounds)
    logs[np.isin(flows, list(faults)).any(axis=1)] = np.nan
    level, partner = split_by_rail(topology, flows, logs)
    middles = np.concatenate([column_quantiles(rows, 0.5) for rows in level.values()])
    middles = middles[~np.isnan(middles)]
    # Median of ranks, not of flows: if uplinks are scarce, flows that need none are faster than most.
    base = float(np.median(middles)) if len(middles) else math.nan
    level = {rail: rows - base for rail, rows in level.items()}
    for rails in alike_rails(partner):
        if len(rails) >= LEAST_ALIKE:
            flows_of = np.stack([level[rail].ravel() for rail in rails], axis=1)
            usual = row_medians(flows_of).reshape(level[rails[0]].shape)
            level |= {rail: level[rail] - usual for rail in rails}
    middles = np.concatenate([column_quantiles(rows, 0.5) for rows in level.values()])
    limit = group_threshold(middles[~np.isnan(middles)], plan.tolerance)
    return FullLoad(level, partner, limit, math.exp(base), plan.samples)


def alike_rails(partner: Mapping[int, Ints]) -> list[list[int]]:
    """Return groups of rails in which the same hosts meet in the same rounds."""
    groups: dict[bytes, list[int]] = {}
    for rail, rows in partner.items():
        groups.setdefault(rows.tobytes(), []).append(rail)
    return list(groups.values())


def split_by_rail(
    topology: Topology, flows: Ints, level: Floats
) -> tuple[dict[int, Floats], dict[int, Ints]]:
    """Return levels and partners by rail: for each sender what it sent, then received; a row per round."""
    members = [senders_of_rail(topology, rail) for rail in range(topology.rails)]
    place = np.zeros(topology.ranks, np.int64)  # among the members of its rail
    for ranks in members:
        place[ranks] = np.arange(len(ranks))
    levels, partners = {}, {}
    for rail in range(topology.rails):
        count = len(members[rail])
        rows = np.flatnonzero(topology.gpu[flows[:, 0]] == rail)
        if not len(rows):
            continue
        sent, received = place[flows[rows]].T
        # Each rank sends and receives once a round; a stable sort keeps the order of rounds.
        there, back = np.argsort(sent, kind="stable"), np.argsort(received, kind="stable")
        levels[rail] = np.concatenate([level[rows[order]].reshape(count, -1).T for order in (there, back)])
        partners[rail] = np.concatenate(
            [received[there].reshape(count, -1).T, sent[back].reshape(count, -1).T]
        )
    return levels, partners


def slow_together(load: FullLoad, rail: int) -> np.ndarray:
    """Return a mask of the ranks that are slow with nearly all healthy partners; none if fewer than 2."""
    level, partner = load.level[rail], load.partner[rail]
    inside = column_quantiles(level, 0.25) > load.limit
    for _ in range(STEPS):
        middle = column_quantiles(np.where(inside[partner], np.nan, level), 0.5)
        # A rank without partners outside stays as it was.
        new = np.where(np.isnan(middle), inside, middle > load.limit)
        if (new == inside).all():
            break
        inside = new
    most = 2 * inside.sum() >= len(inside)
    if most or not inside.any() or not explains(inside, load, rail):
        sides = slow_sides(load, rail)
        # If most are slow and no sides show, the slow side of the switches is unknown.
        return sides if sides.any() else np.full(len(inside), most)
    if 0 < inside.sum() <= 2:
        # Where flows collide, levels are few: a median may jump to the next by chance, a mean does not.
        apart = np.where(inside[partner], np.nan, level)
        known = ~np.isnan(apart)  # not of ranks that findings explain
        means = np.where(known, apart, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)
        usual = means[~inside & ~np.isnan(means)]
        inside &= means > np.median(usual) + max(load.limit / 2, STANDARD_ERRORS * spread(usual))
    return np.asarray(inside & (inside.sum() > 1))


def explains(inside: Mask, load: FullLoad, rail: int) -> bool:
    """Return whether few of the flows among the others are slow."""
    level, partner = load.level[rail], load.partner[rail]
    others = level[~(inside | inside[partner]) & ~np.isnan(level)]
    return not len(others) or bool(np.mean(others > load.limit) <= SLOW_RAIL)


def slow_sides(load: FullLoad, rail: int) -> Mask:
    """Return a mask of the smaller of two sides that are slow with each other, but not among themselves.

    Slow where nearly all of them send to the other side: with fewer flows, uplinks have bandwidth to spare.
    """
    level, partner = load.level[rail], load.partner[rail]
    if level.shape[1] > TWO_SWITCHES:
        return np.zeros(level.shape[1], bool)
    good, late = ~np.isnan(level), level > load.limit
    # In other rounds flows between the sides are fast as well.
    busy = late.sum(axis=1) >= late.sum(axis=1).max() / 2
    slow, known = np.zeros((2, level.shape[1], level.shape[1]))
    rows, here = np.nonzero(good & busy[:, None])
    there = partner[rows, here]
    for one, other in ((here, there), (there, here)):
        np.add.at(slow, (one, other), late[rows, here])
        np.add.at(known, (one, other), 1)
    inside = two_sides(slow, known)
    across = (inside != inside[partner]) & good
    count, within = across.sum(axis=1), good & ~across
    if inside.sum() < 2 or not across.any() or not within.any():
        return np.zeros(len(inside), bool)
    full = across & (count >= FULL * count.max())[:, None]
    slow = np.median(level[full]) > load.limit and np.median(level[within]) <= load.limit / 2
    return np.asarray(inside & slow)


def slow_alone(
    probe: Probe,
    topology: Topology,
    plan: Plan,
    rail: int,
    members: np.ndarray,
    random: np.random.Generator,
) -> bool:
    """Return whether flows of single members are slow too.

    Compares them with the same hosts' flows on another rail, or with other hosts' flows on this one.
    """
    ranks = senders_of_rail(topology, rail)
    inside, outside = ranks[members], ranks[~members]
    senders = random.permutation(inside)[:RETESTED_HOSTS]
    receivers = random.choice(outside, len(senders)) if len(outside) else np.roll(senders, 1)
    flows = list(zip(senders.tolist(), receivers.tolist(), strict=True))
    controls = list(siblings(topology, flows, rail)) or pairs(outside, random)
    rounds = isolated_rounds(list(dict.fromkeys([*flows, *controls])), topology, 1)

    def sample(met: Sequence[tuple[int, int]], samples: int) -> Seconds:
        return probe.flows(met, plan.nic_bytes, samples)

    samples = max(plan.retest_samples // RETEST_REPEATS, 3)
    seconds = measure_repeatedly(sample, rounds, samples, RETEST_REPEATS)
    times = dict(zip([met[0] for met in rounds], np.log(row_medians(np.concatenate(seconds))), strict=True))
    usual = np.median([times[flow] for flow in controls]) if controls else math.nan
    return bool(np.median([times[flow] for flow in flows]) - usual > plan.tolerance)


def siblings(topology: Topology, flows: Iterable[tuple[int, int]], rail: int) -> Iterable[tuple[int, int]]:
    """Yield the same hosts' flows on the next rail that both have."""
    for a, b in flows:
        for other in np.roll(np.arange(topology.rails), -rail - 1)[:-1]:
            there = int(topology.at[topology.host[a], other]), int(topology.at[topology.host[b], other])
            if min(there) >= 0 and (topology.owner[list(there)] == there).all():
                yield there
                break


def pairs(ranks: Ints, random: np.random.Generator) -> list[tuple[int, int]]:
    """Return random pairs of these ranks."""
    few = random.permutation(ranks)[: 2 * RETESTED_HOSTS]
    return [(int(a), int(b)) for a, b in few[: len(few) // 2 * 2].reshape(-1, 2)]


def finding(load: FullLoad, topology: Topology, plan: Plan, rail: int, members: np.ndarray) -> Finding:
    level = load.level[rail][:, members]
    through = np.where(
        members[load.partner[rail][:, members]], np.nan, level
    )  # only flows that leave the group
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
    sides = ranks_of_sides(members, senders_of_rail(topology, rail), np.zeros((len(members), len(members))))
    hosts, others = (tuple(topology.names[host] for host in topology.host[side]) for side in sides)
    instead = (describe_part("leaf", others, (rail,), topology.unit),) if others else ()
    ranks = tuple(sides[0].tolist())
    factor = math.exp(-effect)
    return Finding("leaf", hosts, (rail,), factor, "all", evidence, ranks, instead=instead)
