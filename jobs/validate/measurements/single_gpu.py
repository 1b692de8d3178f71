"""Each GPU by itself, and its copies from and to the host: finds slow GPUs, PCIe links and hosts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.localize.retest import RungMeasurement
from meshrun.jobs.validate.localize.set_cover import KnownFaults, PartKind, PartName, part_kind, rows_through
from meshrun.jobs.validate.measurements.repeats import RetestSamples, joined, look_until_clear, measure_first
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import TENSOR_SAMPLE, Probe, Seconds, SingleRankOp
from meshrun.jobs.validate.topology import Ints, Topology

MANY_HOSTS = 5  # from this many on, a GPU's siblings are those with its number on other hosts


def tensor_samples(plan: Plan) -> int:
    """Return the samples of a first measurement of "tensor"."""
    return max(plan.samples, math.ceil(plan.tensor_seconds / TENSOR_SAMPLE))


class SingleGpu(RungMeasurement):
    """One operation that every rank does by itself, one row each."""

    def __init__(
        self, probe: Probe, topology: Topology, plan: Plan, what: SingleRankOp, faults: KnownFaults
    ) -> None:
        self.probe, self.topology, self.plan, self.what, self.faults = probe, topology, plan, what, faults
        sizes = {
            "memory": plan.memory_bytes,
            "product": plan.product_bytes,
            "tensor": plan.tensor_bytes,
        }
        self.nbytes = sizes.get(what, plan.copy_bytes)
        self.samples = tensor_samples(plan) if what == "tensor" else plan.samples
        self.retested: Observations | None = None

    def measure(self, longer: bool = False) -> Observations:
        seconds, self.noise = measure_first(self.sample, [self.what], self.samples, self.plan, longer)
        ranks = np.arange(self.topology.ranks, dtype=np.int64)
        return tabulate([np.stack([ranks, ranks], axis=1)], seconds, self.siblings, self.plan)

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Measure all ranks: they do not disturb each other, and the others are the suspects' siblings."""
        ranks = np.arange(self.topology.ranks, dtype=np.int64)
        rows = np.stack([ranks, ranks], axis=1)

        def look(found: RetestSamples, samples: int) -> None:
            found.add(rows, self.sample(self.what, samples))

        table, left = look_until_clear(
            look, self.siblings, self.part_kinds, suspects, self.noise, self.plan, self.probe, self.named
        )
        kinds = self.part_kinds(table)
        own = np.logical_or.reduce([rows_through(kinds, name) for name in suspects])
        self.retested = joined(self.retested, table.of(own))
        return self.retested, left

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        """Measure all ranks, as at first, and yield those of these pairs (of a rank with itself)."""
        yield pairs, self.sample(self.what, samples)[pairs[:, 0]]

    def sample(self, what: SingleRankOp, samples: int) -> Seconds:
        if what not in ("to_device", "to_host"):
            return self.probe.single_rank(what, self.nbytes, samples)
        # GPUs behind one PCIe switch share its link: one GPU of each host at a time.
        found = np.full((self.topology.ranks, samples), np.nan)
        for gpu in range(self.topology.rails):
            ranks = self.topology.rail(gpu)
            found[ranks] = self.probe.single_rank(what, self.nbytes, samples, ranks.tolist())[ranks]
        return found

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        """Compare GPUs of the same model, those with the same number on other hosts if there are many."""
        topology = self.topology
        kind = topology.kind[a]
        hosts = int(min(len(np.unique(topology.host[a][kind == one])) for one in np.unique(kind)))
        if hosts >= MANY_HOSTS:
            return Siblings(kind * topology.rails + topology.gpu[a], None, (hosts - 2) / hosts)
        # One host and one GPU may be slow.
        healthy = max(hosts - 1, 1) / hosts - 1 / topology.ranks
        return Siblings(kind, None, max(healthy, 0.0))

    def part_kinds(self, table: Observations) -> list[PartKind]:
        return [part_kind("gpu", table.a), part_kind("host", self.topology.host[table.a])]
