"""GPU pairs inside each host: the NVLink (or what there is instead) of a GPU, of a pair, of a host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from jobs.measure.outliers import healthy_pairs
from jobs.validate.localize.explained import Known, explained
from jobs.validate.localize.observations import Siblings, Table, tabulate
from jobs.validate.localize.retest import Scope
from jobs.validate.localize.set_cover import Kind, Mask, Name, kind_of
from jobs.validate.measurements.repeats import first_look, second_look
from jobs.validate.measurements.schedule import apart, inside
from jobs.validate.measurements.single_gpu import MANY
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Fleet, Ints

Moved = Literal["copies", "flows"]  # by a copy engine, by the communication library


class Inside(Scope):
    """The scope of one operation of the rung. bad: what findings of lower rungs explain."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, what: Moved, bad: Known) -> None:
        self.fleet, self.plan, self.bad = fleet, plan, bad
        self.move = probe.copies if what == "copies" else probe.flows
        self.random = np.random.default_rng(plan.seed)
        self.asked: set[int] = set()  # hosts

    def first(self, longer: bool = False) -> Table:
        rounds = list(inside(self.fleet))
        seconds, self.noise = first_look(self.measured, rounds, self.plan.samples, self.plan, longer)
        return tabulate(rounds, seconds, self.alike, self.plan)

    def again(self, suspects: Sequence[Name]) -> Table:
        """All pairs of the hosts in question, and of a few others: one flow a host at a time."""
        self.asked |= {host for name in suspects for host in self.hosts(name)}
        others = [
            host for host in self.random.permutation(self.fleet.hosts).tolist() if host not in self.asked
        ]
        chosen = [*sorted(self.asked), *others[:MANY]]
        flows = [
            (int(a), int(b))
            for host in chosen
            for a in self.fleet.on(host)
            for b in self.fleet.on(host)
            if a != b
        ]
        rounds = [np.array(met, np.int64) for met in apart(flows, self.fleet, len(flows))]
        seconds = second_look(self.measured, rounds, self.noise, self.plan)
        return tabulate(rounds, seconds, self.alike, self.plan, again=True)

    def measured(self, flows: Ints, samples: int) -> Seconds:
        return self.move([(a, b) for a, b in flows.tolist()], self.plan.pair_bytes, samples)

    def alike(self, a: Ints, b: Ints) -> Siblings:
        """With many hosts, the same pair of GPUs on all hosts; else all pairs."""
        fleet = self.fleet
        hosts = len(np.unique(fleet.host[a]))
        if hosts >= MANY:
            return Siblings(fleet.gpu[a] * fleet.rails + fleet.gpu[b], None, (hosts - 2) / hosts)
        largest = math.ceil(fleet.ranks / fleet.hosts)
        clean = max(hosts - 1, 1) / hosts * healthy_pairs(largest, 1)
        return Siblings(np.zeros(len(a), np.int64), None, clean)

    def kinds(self, table: Table) -> list[Kind]:
        a, b = table.a, table.b
        return [
            kind_of("nvlink", a, b),
            kind_of("nvlink send", a),
            kind_of("nvlink receive", b),
            kind_of("pair", np.minimum(a, b) * self.fleet.ranks + np.maximum(a, b)),
            kind_of("host", self.fleet.host[a]),
        ]

    def hosts(self, name: Name) -> list[int]:
        kind, key = name
        if kind == "host":
            return [key]
        return [int(self.fleet.host[key // self.fleet.ranks if kind == "pair" else key])]

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        return explained(self.bad, table, self.plan.pair_bytes)
