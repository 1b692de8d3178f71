"""Ring all-reduces over each host or rail: finds slow parts that only show under joint load."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from jobs.measure.outliers import clear_threshold, ratio_threshold, row_medians
from jobs.validate.localize.observations import Observations, Siblings, tabulate
from jobs.validate.localize.retest import Confirmed, RungMeasurement
from jobs.validate.localize.set_cover import KnownFaults, Mask, PartKind, PartName, part_kind
from jobs.validate.measurements.repeats import RetestSamples, joined, look_until_clear, looks, measure_first
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Ints, Topology

OTHERS = 5  # siblings that are retested with a suspect
LOCATE_SPAN = 0.25  # of a retest's span: what is located has been slow for all of it


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

    def measure(self, longer: bool = False) -> Observations:
        keys = list(self.groups)
        groups = [self.groups[key] for key in keys]
        seconds, self.noise = measure_first(self.sample, [groups], self.plan.samples, self.plan, longer)
        return tabulate([pairs_of(keys)], seconds, self.siblings, self.plan)

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Retest suspects and a few others, one ring at a time."""
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

    def others(self, suspects: Sequence[int]) -> list[int]:
        """Return a few groups to compare the suspects with."""
        found = []
        for one in sorted({self.classes[key] for key in suspects}):
            siblings = [key for key, kind in self.classes.items() if kind == one and key not in suspects]
            found += siblings[:OTHERS]
        return found

    def sample(self, groups: Sequence[Ints], samples: int) -> Seconds:
        """Return (groups, samples) seconds, scaled to `ring_bytes` on each link.

        In a ring of n ranks, 2 (n - 1) / n of the data pass each link.
        """
        share = np.array([2 * (len(ranks) - 1) / len(ranks) for ranks in groups])
        seconds = self.probe.rings([ranks.tolist() for ranks in groups], self.nbytes, samples)
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
        if self.kind != "rail" or len(self.groups) < 2:
            return found
        hosts, effect = self.topology.host[self.groups[rail]], found.effect
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
            seconds = np.concatenate([np.concatenate(part, axis=1) for part in parts])
            own, *siblings = row_medians(seconds).tolist()
            slower = math.log(own / np.median(siblings)) if siblings else 0.0
            count = seconds.shape[1]
            limit = clear_threshold(math.sqrt(2) * self.noise, count, -math.log(self.plan.critical))
            if self.plan.quick_looks and slower < limit:
                return 0.0
        return 0.0 if slower <= ratio_threshold(self.noise, count, self.plan.tolerance) else slower


def pairs_of(keys: Sequence[int]) -> Ints:
    """Return (keys, 2): each key as both ends of a row."""
    return np.stack([np.array(keys, np.int64)] * 2, axis=1)
