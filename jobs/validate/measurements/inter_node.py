"""Host pairs, rail by rail: NICs, hosts, rails and the links between hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from jobs.measure.outliers import healthy_pairs
from jobs.validate.localize.explained import Known, explained
from jobs.validate.localize.intermittent import Shares
from jobs.validate.localize.observations import Siblings, Table, tabulate
from jobs.validate.localize.retest import Scope
from jobs.validate.localize.set_cover import Cover, Kind, Mask, Name, Suspect, kind_of, numbered
from jobs.validate.measurements.repeats import VISITS, effort, first_look, visits
from jobs.validate.measurements.schedule import apart, between
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Fleet, Ints

PARTNERS = 4  # of each suspect that is asked


class Between(Scope):
    """The scope of the rung. bad: what findings of lower rungs explain."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, bad: Known) -> None:
        self.probe, self.fleet, self.plan, self.bad = probe, fleet, plan, bad
        self.random = np.random.default_rng(plan.seed)
        self.at_once = max(fleet.hosts // 4, min(fleet.hosts // 2, 2))  # flows
        self.suspects = set(bad)  # ranks
        self.shares: Shares | None = None
        self.flows: list[Ints] = []
        self.seconds: list[Seconds] = []

    # --- measuring

    def first(self, longer: bool = False) -> Table:
        rounds = list(between(self.fleet, self.plan))
        samples = max(self.plan.samples, math.ceil(self.plan.enough / len(rounds)))
        seconds, self.noise = first_look(self.measured, rounds, samples, self.plan, longer)
        return tabulate(rounds, seconds, self.alike, self.plan)

    def again(self, suspects: Sequence[Name]) -> Table:
        """Suspects, one flow a host at a time, and good ranks in the same rounds: their new siblings."""
        self.suspects |= {rank for name in suspects for rank in self.ranks(name)}
        flows = [flow for name in suspects for flow in self.questions(name, self.suspects)]
        flows += self.controls(
            self.suspects, cross=any(self.fleet.gpu[a] != self.fleet.gpu[b] for a, b in flows)
        )
        asked = list(dict.fromkeys(flows))
        samples = max(self.plan.again // VISITS, 3) * effort(self.noise, self.plan.again, self.plan)
        for _ in visits(VISITS, self.plan.span):
            # In another company each time: who collided by chance on the way will not again.
            mixed = [asked[number] for number in self.random.permutation(len(asked))]
            for met in apart(mixed, self.fleet, self.at_once):
                table = np.array(met, np.int64)
                self.flows.append(table)
                self.seconds.append(self.measured(table, samples))
        return tabulate(self.flows, self.seconds, self.alike_again, self.plan, again=True)

    def measured(self, flows: Ints, samples: int) -> Seconds:
        return self.probe.flows([(a, b) for a, b in flows.tolist()], self.plan.nic_bytes, samples)

    def alike(self, a: Ints, b: Ints) -> Siblings:
        """Flows on one rail are alike, and flows across rails are. With three hosts or more, host pairs are
        compared.
        """
        host, gpu, hosts, rails = self.fleet.host, self.fleet.gpu, self.fleet.hosts, self.fleet.rails
        cross = (gpu[a] != gpu[b]).astype(np.int64)
        if hosts == 2:
            return Siblings(cross, None, (rails - 1) / rails)
        if hosts > self.plan.full:
            return Siblings(cross, None, healthy_pairs(hosts, 2))
        low, high = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        return Siblings(cross, low * hosts + high, healthy_pairs(hosts, 2) if hosts > 3 else 0.0)

    def alike_again(self, a: Ints, b: Ints) -> Siblings:
        cross = (self.fleet.gpu[a] != self.fleet.gpu[b]).astype(np.int64)
        asked = np.isin(np.arange(self.fleet.ranks), list(self.suspects))
        return Siblings(cross, None, 0.2, ~asked[a] & ~asked[b])

    # --- parts

    def kinds(self, table: Table) -> list[Kind]:
        """The parts on the way of each flow; of those that explain the same, the first is named."""
        a, b = table.a, table.b
        host, gpu, size = self.fleet.host, self.fleet.gpu, self.fleet.ranks
        low, high = np.minimum(a, b), np.maximum(a, b)
        first, second = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        same = gpu[a] == gpu[b]
        kinds = [
            numbered("nic", size, a, b),
            numbered("send", size, a),
            numbered("receive", size, b),
            numbered("host", self.fleet.hosts, host[a], host[b]),
            numbered("rail", self.fleet.rails, np.where(same, gpu[a], -1)),
        ]
        if self.fleet.hosts > self.plan.cover:
            return kinds  # partners are sampled: links are not judged
        if self.fleet.rails > 1:
            kinds.append(kind_of("path", low * size + high))
        return [*kinds, kind_of("link", first * self.fleet.hosts + second)]

    def ranks(self, name: Name) -> list[int]:
        """Ranks that a suspect consists of."""
        kind, key = name
        if kind == "host":
            return list(self.fleet.on(key).tolist())
        if kind == "rail":
            return list(self.fleet.rail(key).tolist())
        if kind == "link":
            return [rank for host in divmod(key, self.fleet.hosts) for rank in self.fleet.on(host).tolist()]
        return list(divmod(key, self.fleet.ranks)) if kind == "path" else [key]

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        return explained(self.bad, table, self.plan.nic_bytes)

    def flapping(self, cover: Cover) -> Suspect | None:
        """The NIC with the largest share of slow samples, when that is far above the usual share."""
        if self.shares is None or self.shares.cover is not cover:
            self.shares = Shares(cover, self.fleet.ranks)
        return self.shares.suspect(max(PARTNERS, self.fleet.hosts // 16))

    # --- questions

    def questions(self, name: Name, suspects: set[int]) -> list[tuple[int, int]]:
        kind, key = name
        fleet = self.fleet
        if kind == "link":
            left, right = divmod(key, fleet.hosts)
            pairs = [
                (int(a), int(b))
                for a, b in zip(fleet.at[left], fleet.at[right], strict=True)
                if min(a, b) >= 0
            ]
        elif kind == "path":
            pairs = [divmod(key, fleet.ranks)]
            if fleet.hosts <= PARTNERS:
                pairs += [
                    (rank, other) for rank in pairs[0] for other in self.partners(rank, suspects, PARTNERS)
                ]
        else:
            ranks = self.ranks(name)
            few = ranks if len(ranks) <= 8 else self.random.choice(ranks, 8, replace=False).tolist()
            pairs = [(rank, other) for rank in few for other in self.partners(rank, suspects, PARTNERS)]
        return [flow for a, b in pairs for flow in ((a, b), (b, a))]

    def partners(self, rank: int, suspects: set[int], count: int) -> list[int]:
        """Good ranks of other hosts on the same rail; across rails too where there are few, which tells the
        sides apart.
        """
        fleet = self.fleet
        away = fleet.host != fleet.host[rank]
        rail = away & (fleet.gpu == fleet.gpu[rank])
        found = self.chosen(np.flatnonzero(rail), suspects, count)
        if rail.sum() < PARTNERS:
            found += self.chosen(np.flatnonzero(away & ~rail), suspects, count)
        return found

    def chosen(self, ranks: Ints, suspects: set[int], count: int) -> list[int]:
        """Some of the ranks at random, those without suspicion first."""
        order = self.random.permutation(ranks)
        last = np.isin(order, list(suspects))
        return list(np.concatenate([order[~last], order[last]])[:count].tolist())

    def controls(self, suspects: set[int], cross: bool) -> list[tuple[int, int]]:
        """Flows between ranks without suspicion (or with, when there are no others)."""
        found = []
        for rank in self.chosen(np.arange(self.fleet.ranks), suspects, 8):
            away = self.fleet.host != self.fleet.host[rank]
            rail = self.fleet.gpu == self.fleet.gpu[rank]
            for alike in (away & rail, away & ~rail & cross):
                found += [(rank, other) for other in self.chosen(np.flatnonzero(alike), suspects, 1)]
        return found
