"""Each GPU alone, and its copies from and to the host: GPUs, their PCIe, and hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobs.validate.localize.explained import Known, explained
from jobs.validate.localize.observations import Siblings, Table, tabulate
from jobs.validate.localize.retest import Scope
from jobs.validate.localize.set_cover import Kind, Mask, Name, kind_of
from jobs.validate.measurements.repeats import first_look, second_look
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Alone, Probe, Seconds
from jobs.validate.topology import Fleet, Ints

MANY = 5  # hosts from which on the siblings of a GPU are those at its place on other hosts


class AloneScope(Scope):
    """The scope of one operation that every rank does for itself: rows of one rank each."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, what: Alone, bad: Known) -> None:
        self.probe, self.fleet, self.plan, self.what, self.bad = probe, fleet, plan, what, bad
        sizes = {"memory": plan.memory_bytes, "product": plan.product_bytes}
        self.nbytes = sizes.get(what, plan.copy_bytes)

    def first(self, longer: bool = False) -> Table:
        seconds, self.noise = first_look(self.measured, [self.what], self.plan.samples, self.plan, longer)
        return self.table(seconds, again=False)

    def again(self, suspects: Sequence[Name]) -> Table:
        """All ranks once more: each is alone with itself in any case, and the others are the siblings."""
        return self.table(second_look(self.measured, [self.what], self.noise, self.plan), again=True)

    def measured(self, what: Alone, samples: int) -> Seconds:
        return self.probe.alone(what, self.nbytes, samples)

    def table(self, seconds: list[Seconds], again: bool) -> Table:
        ranks = np.arange(self.fleet.ranks, dtype=np.int64)
        return tabulate([np.stack([ranks, ranks], axis=1)], seconds, self.alike, self.plan, again)

    def alike(self, a: Ints, b: Ints) -> Siblings:
        hosts = self.fleet.hosts
        if hosts >= MANY:
            return Siblings(self.fleet.gpu[a], None, (hosts - 2) / hosts)
        # One host and one GPU may be slow.
        clean = max(hosts - 1, 1) / hosts - 1 / self.fleet.ranks
        return Siblings(np.zeros(len(a), np.int64), None, max(clean, 0.0))

    def kinds(self, table: Table) -> list[Kind]:
        return [kind_of("gpu", table.a), kind_of("host", self.fleet.host[table.a])]

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        return explained(self.bad, table, self.nbytes)
