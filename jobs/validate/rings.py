"""Rings: all GPUs of each host, all NICs of each rail, everything. What only many together show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobs.validate.cover import Cover, Kind, Mask, Name, Suspect, kind_of
from jobs.validate.fleet import Fleet, Ints
from jobs.validate.known import Known
from jobs.validate.plan import Plan
from jobs.validate.probe import Probe
from jobs.validate.table import Siblings, Table, tabulate


class Rings:
    """The scope of one ring a group, `kind` naming what a group is. bad: ranks that a finding explains."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, kind: str, bad: Known) -> None:
        self.probe, self.fleet, self.plan, self.kind, self.bad = probe, fleet, plan, kind, bad
        groups = (
            {host: fleet.on(host) for host in range(fleet.hosts)}
            if kind == "ring"
            else {gpu: fleet.rail(gpu) for gpu in range(fleet.rails)}
        )
        self.groups = {key: ranks for key, ranks in groups.items() if len(ranks) > 1}
        self.rows: list[Ints] = []
        self.seconds: list[np.ndarray] = []

    def first(self) -> Table:
        keys = list(self.groups)
        return tabulate([pairs_of(keys)], [self.measured(keys, self.plan.samples)], self.alike, self.plan)

    def again(self, suspects: Sequence[Name]) -> Table:
        """Suspects and a few others, one ring at a time."""
        asked = [key for _, key in suspects]
        for key in [*asked, *[key for key in self.groups if key not in asked][:5]]:
            self.rows.append(pairs_of([key]))
            self.seconds.append(self.measured([key], self.plan.again))
        return tabulate(self.rows, self.seconds, self.alike, self.plan, again=True)

    def measured(self, keys: list[int], samples: int) -> np.ndarray:
        """Seconds in which one byte of each GPU's data would pass a link: of n ranks, 2 (n - 1) / n pass
        (ring).
        """
        groups = [self.groups[key].tolist() for key in keys]
        share = np.array([2 * (len(group) - 1) / len(group) for group in groups])
        return np.asarray(self.probe.rings(groups, self.plan.ring_bytes, samples) / share[:, None])

    def alike(self, a: Ints, b: Ints) -> Siblings:
        return Siblings(np.zeros(len(a), np.int64), None, max(len(a) - 2, 0) / len(a))

    def kinds(self, table: Table) -> list[Kind]:
        return [kind_of(self.kind, table.a)]

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        for key, ranks in self.groups.items():
            if any(rank in self.bad for rank in ranks.tolist()):
                yield table.a == key, np.inf

    def flapping(self, cover: Cover) -> Suspect | None:
        return None


def pairs_of(keys: Sequence[int]) -> Ints:
    return np.stack([np.array(keys, np.int64)] * 2, axis=1)
