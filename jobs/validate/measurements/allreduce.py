"""Ring all-reduces over each host or rail: finds slow parts that only show under joint load.

A ring is as slow as its slowest hop, so the longer it is, the more often others load one of its hops: of a
rail of 128 hosts, 40 % of the time, if 3 % of each uplink's. A load passes, a fault stays. So slow rails,
and long ones that loads hide, are looked at again as several shorter rings (arcs), and the arc of the same
hosts on other rails, in their fastest look, is the reference. A fast arc clears its hosts. What no arc has
cleared is slow, after as many separate looks as loads do not last for (`outliers.looks_of_loaded`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshrun.jobs.measure.outliers import clear_threshold, looks_of_loaded, ratio_threshold, row_medians
from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.localize.retest import Confirmed, RungMeasurement
from meshrun.jobs.validate.localize.set_cover import KnownFaults, Mask, PartKind, PartName, part_kind
from meshrun.jobs.validate.measurements.repeats import (
    RETEST_REPEATS,
    RetestSamples,
    joined,
    look_until_clear,
    looks,
    measure_first,
    samples_of_look,
)
from meshrun.jobs.validate.measurements.schedule import turns_of_rings
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.topology import Ints, Topology

OTHERS = 5  # siblings that are retested with a suspect
LEAST_LOOKS, MOST_LOOKS = 4, 15  # at slow rails; before the first, all rails may be loaded
CUTS = 2  # at different hosts
LOOK_SAMPLES = 2  # times as many as of other looks: one fast look clears hosts
ARC = 16  # hosts of a shorter ring, about
WHOLE = 0.75  # share of a rail's hosts that are slow if the rail is
LOCATE_SPAN = 0.25  # of a retest's span: what is located has been slow for all of it


@dataclass(frozen=True, eq=False)
class Arc:
    """A ring through some hosts of a rail. place: equal for the same hosts. log: of its median seconds."""

    key: int
    look: int
    place: tuple[int, int]
    hosts: Ints
    seconds: Seconds
    log: float


class AllReduce(RungMeasurement):
    """One ring and one row for each group. kind: "ring" (groups are hosts) or "rail"."""

    def __init__(self, probe: Probe, topology: Topology, plan: Plan, kind: str, faults: KnownFaults) -> None:
        self.probe, self.topology, self.plan, self.kind, self.faults = probe, topology, plan, kind, faults
        self.nbytes = plan.ring_bytes
        groups = (
            {host: topology.on(host) for host in range(topology.hosts)}
            if kind == "ring"
            else {gpu: topology.rail(gpu) for gpu in range(topology.rails)}
        )
        self.groups = {key: ranks for key, ranks in groups.items() if len(ranks) > 1}
        # Groups of the same models are siblings.
        models = {key: tuple(sorted(topology.kind[ranks].tolist())) for key, ranks in self.groups.items()}
        numbers = {of_group: number for number, of_group in enumerate(sorted(set(models.values())))}
        self.classes = {key: numbers[of_group] for key, of_group in models.items()}
        self.retested: list[int] = []
        self.table: Observations | None = None  # of retests
        self.slow_hosts: dict[int, Mask] = {}  # by retested rail, those that no fast arc has cleared
        self.loaded: list[int] = []  # rails that were slow in all looks, as loaded ones may be
        self.is_long = kind == "rail" and len(self.groups) > 1 and topology.hosts >= 2 * ARC

    @property
    def gaps(self) -> Sequence[str]:
        count = len(self.loaded)
        if not count:
            return ()
        rings = f"{count} ring{'s'[: count > 1]}"
        return (f"{rings} slow in all looks, and others so often that a load of all looks is possible",)

    def measure(self, longer: bool = False) -> Observations:
        """Measure all rings at once. longer: rails in several looks, of which the fastest counts.

        Long rails are then measured as arcs, because in nearly all looks some host of a long ring is loaded.
        """
        keys = list(self.groups)
        if longer and self.is_long:
            table, _ = self.look_at_rails(keys, keys)
            return replace(table, retested=np.zeros(len(table), bool))
        groups = [self.groups[key] for key in keys]
        longer_call = longer and self.kind != "rail"
        seconds, self.noise = measure_first(self.sample, [groups], self.plan.samples, self.plan, longer_call)
        if longer and not longer_call:
            of_looks = [*seconds, *(self.sample(groups, seconds[0].shape[1]) for _ in self.separate_looks())]
            seconds = [fastest(of_looks)]
        return tabulate([pairs_of(keys)], seconds, self.siblings, self.plan)

    def separate_looks(self) -> Iterable[int]:
        """Yield the numbers of further looks, after waits that most loads do not outlast."""
        for number in range(RETEST_REPEATS - 1):
            self.probe.wait(self.plan.retest_span / RETEST_REPEATS)
            yield number

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Retest suspects and a few others, one ring at a time."""
        if self.kind == "rail":
            return self.retest_rails(suspects)
        self.retested += [key for _, key in suspects if key not in self.retested]
        keys = [*(key for _, key in suspects), *self.others(self.retested)]

        def look(found: RetestSamples, samples: int) -> None:
            for key in keys:
                found.add(pairs_of([key]), self.sample([self.groups[key]], samples))

        table, left = look_until_clear(
            look, self.siblings, self.part_kinds, suspects, self.noise, self.plan, self.probe
        )
        self.table = joined(self.table, table.of(np.isin(table.a, [key for _, key in suspects])))
        return self.table, left

    def retest_rails(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Look at suspects, and at all others to compare them with: rails do not wait for each other."""
        own = [key for _, key in suspects]
        self.retested += [key for key in own if key not in self.retested]
        table, left = self.look_at_rails(own, self.others(self.retested, len(self.groups)))
        self.loaded += [key for key in left if not left[key]]
        self.table = joined(self.table, table.of(np.isin(table.a, own)))
        return self.table, [name for name in suspects if name[1] in left]

    def look_at_rails(
        self, own: Sequence[int], siblings: Sequence[int]
    ) -> tuple[Observations, dict[int, bool]]:
        """Look at rails until all hosts of each are clear, or slow often enough.

        siblings: rails to compare them with, and to count how often loads slow them. An arc is fast if it is
        nearer to the usual one of these, in their fastest look, than to the critical share of it. Returns the
        table, and the rails with hosts that no fast arc has cleared: whether that is no load.
        """
        keys, samples = [*dict.fromkeys([*own, *siblings])], LOOK_SAMPLES * samples_of_look(self.plan)
        arcs, begin = list[Arc](), self.probe.clock()
        enough, looks = math.inf if siblings else RETEST_REPEATS, 0
        left, fast, late = [*own], -math.log(self.plan.critical) / 2, self.plan.tolerance
        while left and looks < min(enough, MOST_LOOKS):
            due = begin + looks * self.plan.retest_span / RETEST_REPEATS
            if due > self.probe.clock():
                self.probe.wait(due - self.probe.clock())
            arcs += self.look_at_arcs(keys, samples, looks)
            looks += 1
            if looks < LEAST_LOOKS:
                continue
            levels = levels_of(arcs, siblings or own)
            self.slow_hosts |= {key: unclear_hosts(key, arcs, levels, fast, self.topology) for key in keys}
            left = [key for key in own if self.slow_hosts[key].any()]
            alike = [level > late for one, level in zip(arcs, levels, strict=True) if one.key in siblings]
            figures = len(self.groups) * len({one.place for one in arcs})
            if siblings:
                enough = max(looks_of_loaded(sum(alike), len(alike), figures), RETEST_REPEATS)
        shown = [self.usual_arc(key, arcs, levels, fast) for key in keys]
        table = tabulate([pairs_of(keys)], [np.array(shown)], self.siblings, self.plan, retested=True)
        return table, dict.fromkeys(left, enough <= looks)

    def visible(self, table: Observations) -> float:
        """Return the share below which a ring is detectable; 1 for a ring without others to compare it with.

        Arcs show long rails that loads hide.
        """
        if len(self.groups) < 2:
            return 1.0
        known = self.is_long and all(key in self.cleared or key in self.retested for key in self.groups)
        return max(table.visible, self.plan.critical) if known else table.visible

    @property
    def cleared(self) -> set[int]:
        """Rails of which each host was in a fast arc."""
        return {key for key, hosts in self.slow_hosts.items() if not hosts.any()}

    def look_at_arcs(self, keys: Sequence[int], samples: int, number: int) -> list[Arc]:
        """Measure the arcs of these rails: every other one at once, then the others. number: of the look.

        Arcs side by side share the uplinks of the leaf switch between them. Every other look cuts in the
        middle of the arcs of the one before.
        """
        hosts, count = np.arange(self.topology.hosts), max(self.topology.hosts // ARC // 2 * 2, 1)
        shift = len(hosts) // count // CUTS * (number % CUTS) if count > 1 else 0
        cut = [np.sort(part) for part in np.array_split(np.roll(hosts, -shift), count)]
        found = []
        for turn in (range(0, count, 2), range(1, count, 2)):
            arcs = [(key, number, (shift, place), cut[place]) for key in keys for place in turn]
            rings = [ranks[ranks >= 0] for ranks in (self.topology.at[part, key] for key, *_, part in arcs)]
            known = [n for n, ranks in enumerate(rings) if len(ranks) > 1]
            if known:
                seconds = self.sample([rings[n] for n in known], samples)
                logs = np.log(row_medians(seconds)).tolist()
                found += [Arc(*arcs[n], row, log) for n, row, log in zip(known, seconds, logs, strict=True)]
        return found

    def usual_arc(self, key: int, arcs: Sequence[Arc], levels: Sequence[float], fast: float) -> Seconds:
        """Return the seconds of a rail's arc of median level: of those with unclear hosts, if any."""
        unclear = self.slow_hosts.get(key)
        own = [(level, one) for one, level in zip(arcs, levels, strict=True) if one.key == key]
        some = [(level, one) for level, one in own if unclear is not None and unclear[one.hosts].any()]
        if not some and unclear is not None:
            some = [(level, one) for level, one in own if level <= fast]
        ordered = sorted(some or own, key=lambda both: both[0])
        return ordered[(len(ordered) - 1) // 2][1].seconds

    def others(self, suspects: Sequence[int], most: int = OTHERS) -> list[int]:
        """Return up to `most` groups of each class to compare the suspects with."""
        found = []
        for one in sorted({self.classes[key] for key in suspects}):
            siblings = [key for key, kind in self.classes.items() if kind == one and key not in suspects]
            found += siblings[:most]
        return found

    def sample(self, groups: Sequence[Ints], samples: int) -> Seconds:
        """Return (groups, samples) seconds, scaled to `ring_bytes` on each link.

        In a ring of n ranks, 2 (n - 1) / n of the data pass each link.
        """
        share = np.array([2 * (len(ranks) - 1) / len(ranks) for ranks in groups])
        turns, seconds = turns_of_rings(groups, self.topology), np.empty((len(groups), samples))
        for turn in range(int(turns.max()) + 1):
            own = np.flatnonzero(turns == turn)
            rings = [groups[number].tolist() for number in own.tolist()]
            seconds[own] = self.probe.rings(rings, self.nbytes, samples)
        return np.asarray(seconds / share[:, None])

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        kind = np.array([self.classes[key] for key in a.tolist()])
        fewest = int(np.unique(kind, return_counts=True)[1].min())
        return Siblings(kind, None, max(fewest - 2, 0) / fewest)

    def part_kinds(self, table: Observations) -> list[PartKind]:
        return [part_kind(self.kind, table.a)]

    def explained(self, table: Observations) -> Iterable[tuple[Mask, float]]:
        for key, ranks in self.groups.items():
            if any(rank in self.faults for rank in ranks.tolist()):
                yield table.a == key, np.inf

    # --- the slow part of a rail

    def locate(self, found: Confirmed) -> Confirmed | None:
        """Bisect a slow rail until both halves are slow, or it is too short to split.

        If neither half is slow, the whole is measured again: the slow part may lie between the halves.
        """
        rail = found.name[1]
        if rail in self.loaded:
            return None
        if self.kind != "rail" or len(self.groups) < 2:
            return found
        hosts, effect = self.topology.host[self.groups[rail]], found.effect
        if len(hosts) >= 2 * ARC:
            unclear = self.slow_hosts[rail]
            if unclear.sum() > WHOLE * len(hosts):
                return found
            return replace(found, ranks=tuple(self.topology.at[unclear, rail].tolist()))
        if len(hosts) == 2:  # a ring of two does not tell the rail from the NIC of either
            return replace(found, ties=tuple(("nic", rank) for rank in self.groups[rail].tolist()))
        while len(hosts) > 3:
            halves = np.array_split(hosts, 2)
            effects = [self.effect(rail, half) for half in halves]
            if np.isnan(effects).any():
                return found  # not measured
            slow = [number for number in (0, 1) if effects[number]]
            if not slow and not self.effect(rail, hosts):
                return None
            if len(slow) != 1:
                break
            hosts, effect = halves[slow[0]], effects[slow[0]]
        if len(hosts) == len(self.groups[rail]):
            return found
        return replace(found, effect=effect, ranks=tuple(self.topology.at[hosts, rail].tolist()))

    def effect(self, rail: int, hosts: Ints) -> float:
        """Return log(time of the ring through these hosts / time of the same hosts on other rails).

        0 if it is not slow, NaN if it could not be measured.
        """
        others = self.others(self.retested) or self.others([rail])
        rings = [self.topology.at[hosts, key] for key in [rail, *others]]
        rings = [ranks[ranks >= 0] for ranks in rings if (ranks >= 0).sum() > 1]
        parts: list[list[Seconds]] = [[] for _ in rings]
        for samples in looks(self.noise, self.plan.retest_span * LOCATE_SPAN, self.plan, self.probe):
            for ranks, part in zip(rings, parts, strict=True):
                part.append(self.sample([ranks], samples))
            best = [row_medians(fastest(part)) for part in parts]
            own, *siblings = np.concatenate(best).tolist()
            slower = math.log(own / np.median(siblings)) if siblings else 0.0
            count = sum(each.shape[1] for each in parts[0])
            limit = clear_threshold(math.sqrt(2) * self.noise, count, -math.log(self.plan.critical))
            if self.plan.quick_looks and slower < limit:
                return 0.0
        return 0.0 if slower <= ratio_threshold(self.noise, count, self.plan.tolerance) else slower


def levels_of(arcs: Sequence[Arc], others: Collection[int]) -> list[float]:
    """Return the level of each arc: against the same hosts on other rails, in these rails' fastest look.

    A loaded host slows all of its rails, so one look alone would make a slow rail look like the others.
    """
    looks: dict[tuple[int, int], dict[int, list[float]]] = {}
    for one in arcs:
        if one.key in others:
            looks.setdefault(one.place, {}).setdefault(one.look, []).append(one.log)
    usual = {place: min(map(np.median, of_place.values())) for place, of_place in looks.items()}
    return [float(one.log - usual.get(one.place, one.log)) for one in arcs]


def unclear_hosts(
    key: int, arcs: Iterable[Arc], levels: Iterable[float], fast: float, topology: Topology
) -> Mask:
    """Return (hosts,): those of a rail that were in none of its fast arcs."""
    unclear = topology.at[:, key] >= 0
    for one, level in zip(arcs, levels, strict=True):
        if one.key == key and level <= fast:
            unclear[one.hosts] = False
    return np.asarray(unclear)


def fastest(looks: Sequence[Seconds]) -> Seconds:
    """Return (rows, samples): of each row, the look with the least median. looks: (rows, samples) each."""
    medians = np.array([row_medians(look) for look in looks])
    best = np.where(np.isnan(medians), np.inf, medians).argmin(axis=0)
    return np.array([looks[number][row] for row, number in enumerate(best.tolist())])


def pairs_of(keys: Sequence[int]) -> Ints:
    """Return (keys, 2): each key as both ends of a row."""
    return np.stack([np.array(keys, np.int64)] * 2, axis=1)
