"""Rings: all GPUs of each host, all NICs of each rail, everything. What only many together show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from jobs.measure.outliers import ratio_threshold, row_medians
from jobs.validate.localize.explained import Known
from jobs.validate.localize.observations import Siblings, Table, tabulate
from jobs.validate.localize.retest import Confirmed, Scope
from jobs.validate.localize.set_cover import Kind, Mask, Name, kind_of
from jobs.validate.measurements.repeats import first_look, second_look
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Fleet, Ints

OTHERS = 5  # siblings that are measured again with a suspect


class Rings(Scope):
    """The scope of one ring a group, `kind` naming what a group is. bad: ranks that a finding explains."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, kind: str, bad: Known) -> None:
        self.probe, self.fleet, self.plan, self.kind, self.bad = probe, fleet, plan, kind, bad
        groups = (
            {host: fleet.on(host) for host in range(fleet.hosts)}
            if kind == "ring"
            else {gpu: fleet.rail(gpu) for gpu in range(fleet.rails)}
        )
        self.groups = {key: ranks for key, ranks in groups.items() if len(ranks) > 1}
        self.asked: list[int] = []

    def first(self, longer: bool = False) -> Table:
        keys = list(self.groups)
        together = [self.groups[key] for key in keys]
        seconds, self.noise = first_look(self.measured, [together], self.plan.samples, self.plan, longer)
        return tabulate([pairs_of(keys)], seconds, self.alike, self.plan)

    def again(self, suspects: Sequence[Name]) -> Table:
        """Suspects and a few others, one ring at a time."""
        self.asked += [key for _, key in suspects if key not in self.asked]
        keys = [*self.asked, *self.others(self.asked)]
        seconds = self.in_turn([self.groups[key] for key in keys])
        return tabulate([pairs_of([key]) for key in keys], seconds, self.alike, self.plan, again=True)

    def others(self, asked: Sequence[int]) -> list[int]:
        return [key for key in self.groups if key not in asked][:OTHERS]

    def in_turn(self, groups: Sequence[Ints]) -> list[Seconds]:
        """One ring at a time, over and over."""
        return second_look(self.measured, [[ranks] for ranks in groups], self.noise, self.plan)

    def measured(self, groups: Sequence[Ints], samples: int) -> Seconds:
        """Seconds in which one byte of each GPU's data would pass a link: of n ranks, 2 (n - 1) / n pass
        (ring).
        """
        share = np.array([2 * (len(ranks) - 1) / len(ranks) for ranks in groups])
        seconds = self.probe.rings([ranks.tolist() for ranks in groups], self.plan.ring_bytes, samples)
        return np.asarray(seconds / share[:, None])

    def alike(self, a: Ints, b: Ints) -> Siblings:
        return Siblings(np.zeros(len(a), np.int64), None, max(len(a) - 2, 0) / len(a))

    def kinds(self, table: Table) -> list[Kind]:
        return [kind_of(self.kind, table.a)]

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        for key, ranks in self.groups.items():
            if any(rank in self.bad for rank in ranks.tolist()):
                yield table.a == key, np.inf

    # --- which part of a rail

    def located(self, found: Confirmed) -> Confirmed | None:
        """A slow rail is halved until both halves of a part are slow, or it is too short for that.

        Where neither half is slow, the part is asked once more: what is slow may lie between them.
        """
        rail = found.name[1]
        if self.kind != "rail" or len(self.groups) < 2:
            return found
        hosts, effect = self.fleet.host[self.groups[rail]], found.effect
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
        return replace(found, effect=effect, ranks=tuple(self.fleet.at[hosts, rail].tolist()))

    def effect(self, rail: int, hosts: Ints) -> float:
        """Log of the time of the ring through these hosts over those of the same hosts on other rails; 0
        where that is not slow.
        """
        others = self.others(self.asked) or self.others([rail])
        rings = [self.fleet.at[hosts, key] for key in [rail, *others]]
        seconds = self.in_turn([ranks[ranks >= 0] for ranks in rings if (ranks >= 0).sum() > 1])
        own, *siblings = row_medians(np.concatenate(seconds)).tolist()
        slower = math.log(own / np.median(siblings)) if siblings else 0.0
        threshold = ratio_threshold(self.noise, seconds[0].shape[1], self.plan.tolerance)
        return 0.0 if slower <= threshold else slower


def pairs_of(keys: Sequence[int]) -> Ints:
    return np.stack([np.array(keys, np.int64)] * 2, axis=1)
