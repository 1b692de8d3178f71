"""GPU pairs inside each host: finds slow NVLinks (or other links) of a GPU, a pair or a host."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np

from meshrun.jobs.measure.outliers import healthy_pairs
from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.localize.retest import RungMeasurement
from meshrun.jobs.validate.localize.set_cover import KnownFaults, PartKind, PartName, part_kind
from meshrun.jobs.validate.measurements.repeats import RetestSamples, joined, look_until_clear, measure_first
from meshrun.jobs.validate.measurements.schedule import (
    intra_node_rounds,
    isolated_rounds,
    matched_rounds,
    one_pcie_pair_a_host,
)
from meshrun.jobs.validate.measurements.single_gpu import MANY_HOSTS
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.topology import Ints, Topology

PairOperation = Literal["copies", "flows"]  # by a copy engine, by the communication library


class IntraNode(RungMeasurement):
    """One operation between the GPUs of each host: a row for each pair and direction."""

    def __init__(
        self, probe: Probe, topology: Topology, plan: Plan, what: PairOperation, faults: KnownFaults
    ) -> None:
        self.probe, self.topology, self.plan, self.faults = probe, topology, plan, faults
        self.nbytes = plan.pair_bytes
        self.move = probe.copies if what == "copies" else probe.flows
        self.random = np.random.default_rng(plan.seed)
        self.retested: Observations | None = None

    def measure(self, longer: bool = False) -> Observations:
        rounds = list(intra_node_rounds(self.topology))
        seconds, self.noise = measure_first(self.sample, rounds, self.plan.samples, self.plan, longer)
        return tabulate(rounds, seconds, self.siblings, self.plan)

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Retest all pairs of the suspects' hosts and of a few others, one flow per host at a time."""
        hosts = {host for name in suspects for host in self.hosts(name)}
        others = [host for host in self.random.permutation(self.topology.hosts).tolist() if host not in hosts]
        chosen = [*sorted(hosts), *others[:MANY_HOSTS]]
        flows = [
            (int(a), int(b))
            for host in chosen
            for a in self.topology.on(host)
            for b in self.topology.on(host)
            if a != b
        ]
        rounds = [np.array(met, np.int64) for met in isolated_rounds(flows, self.topology, len(flows))]

        def look(found: RetestSamples, samples: int) -> None:
            for flows in rounds:
                found.add(flows, self.sample(flows, samples))

        table, left = look_until_clear(
            look, self.siblings, self.part_kinds, suspects, self.noise, self.plan, self.probe, self.named
        )
        own = np.isin(self.topology.host[table.a], list(hosts))
        self.retested = joined(self.retested, table.of(own))
        return self.retested, left

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        """Measure these pairs, both ways, in rounds of distinct pairs as at first."""
        for met in matched_rounds(pairs, np.arange(self.topology.ranks), self.random):
            for flows in one_pcie_pair_a_host(met, self.topology):
                yield flows, self.sample(flows, samples)

    def sample(self, flows: Ints, samples: int) -> Seconds:
        return self.move(flows, self.nbytes, samples)

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        """Compare the same pair of GPUs on all hosts if there are many hosts, otherwise all pairs.

        Only pairs with the same type of path, between the same models.
        """
        topology = self.topology
        path = topology.path_kind(a, b)
        hosts = int(min(len(np.unique(topology.host[a][path == one])) for one in np.unique(path)))
        if hosts >= MANY_HOSTS:
            pair = topology.gpu[a] * topology.rails + topology.gpu[b]
            return Siblings(path * topology.rails**2 + pair, None, (hosts - 2) / hosts)
        largest = math.ceil(topology.ranks / topology.hosts)
        healthy = max(hosts - 1, 1) / hosts * healthy_pairs(largest, 1)
        return Siblings(path, None, healthy)

    def part_kinds(self, table: Observations) -> list[PartKind]:
        a, b = table.a, table.b
        topology = self.topology
        pcie = topology.over_pcie[a, topology.gpu[b]]
        # The NVLinks of a GPU that has them to one other only are those of the pair.
        here = topology.at[topology.host] >= 0
        bridged = ((here & ~topology.over_pcie).sum(axis=1) == 1) & (
            (here & topology.over_pcie).sum(axis=1) > 1  # beside itself
        )
        there, back = np.where(pcie | bridged[a], -1, a), np.where(pcie | bridged[b], -1, b)
        return [
            part_kind("nvlink", there, back),
            part_kind("nvlink send", there),
            part_kind("nvlink receive", back),
            part_kind("pcie", np.where(pcie, a, -1), np.where(pcie, b, -1)),
            part_kind("pair", np.minimum(a, b) * self.topology.ranks + np.maximum(a, b)),
            part_kind("host", self.topology.host[a]),
        ]

    def hosts(self, name: PartName) -> list[int]:
        kind, key = name
        if kind == "host":
            return [key]
        return [int(self.topology.host[key // self.topology.ranks if kind == "pair" else key])]
