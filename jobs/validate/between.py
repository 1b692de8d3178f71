"""Host pairs, rail by rail: NICs, hosts, rails and the links between hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from jobs.validate.cover import Cover, Kind, Mask, Name, Suspect, kind_of, numbered
from jobs.validate.fleet import Fleet, Ints
from jobs.validate.known import Known, explained
from jobs.validate.plan import Plan
from jobs.validate.probe import Probe
from jobs.validate.robust import clean_pairs, spread
from jobs.validate.rounds import apart, between
from jobs.validate.table import Siblings, Table, tabulate

PARTNERS = 4  # of each suspect that is asked
VISITS = 5  # to each partner, at different times
ENOUGH = 64  # ranks to see from them how far shares are spread
BURST = 10  # samples that a flapping part may stay slow for: so many count as one observation


def together(table: Table, ranks: int) -> Ints:
    """Slow samples of each flow, of a pair's first meeting no more than in the other direction at the same
    time.

    A NIC that flaps is slow in both; flows that collide in the network are so in one.
    """
    slow = table.slow.copy()
    first = np.flatnonzero(~table.again)
    there, back = (table.a * ranks + table.b)[first], (table.b * ranks + table.a)[first]
    order = np.argsort(there)
    found = order[np.minimum(np.searchsorted(there, back, sorter=order), max(len(order) - 1, 0))]
    met = there[found] == back
    slow[first[met]] = np.minimum(slow[first[met]], slow[first[found[met]]])
    return np.asarray(slow)


class Between:
    """The scope of the rung. bad: what findings of lower rungs explain."""

    def __init__(self, probe: Probe, fleet: Fleet, plan: Plan, bad: Known) -> None:
        self.probe, self.fleet, self.plan, self.bad = probe, fleet, plan, bad
        self.random = np.random.default_rng(plan.seed)
        self.suspects = set(bad)  # ranks
        self.met: tuple[Table, Ints] | None = None
        self.flows: list[Ints] = []
        self.seconds: list[np.ndarray] = []

    # --- measuring

    def first(self) -> Table:
        rounds = list(between(self.fleet, self.plan))
        samples = max(self.plan.samples, math.ceil(self.plan.enough / len(rounds)))
        return tabulate(rounds, [self.measured(flows, samples) for flows in rounds], self.alike, self.plan)

    def again(self, suspects: Sequence[Name]) -> Table:
        """Suspects, one flow a host at a time, and good ranks in the same rounds: their new siblings."""
        self.suspects |= {rank for name in suspects for rank in self.ranks(name)}
        flows = [flow for name in suspects for flow in self.questions(name, self.suspects)]
        flows += self.controls(
            self.suspects, cross=any(self.fleet.gpu[a] != self.fleet.gpu[b] for a, b in flows)
        )
        asked = list(dict.fromkeys(flows))
        samples = max(self.plan.again // VISITS, 3)
        for _ in range(VISITS):
            # In another company each time: who collided by chance on the way will not again.
            mixed = [asked[number] for number in self.random.permutation(len(asked))]
            for met in apart(mixed, self.fleet, max(1, self.fleet.hosts // 4)):
                table = np.array(met, np.int64)
                self.flows.append(table)
                self.seconds.append(self.measured(table, samples))
        return tabulate(self.flows, self.seconds, self.alike_again, self.plan, again=True)

    def measured(self, flows: Ints, samples: int) -> np.ndarray:
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
            return Siblings(cross, None, clean_pairs(hosts, 2))
        low, high = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        return Siblings(cross, low * hosts + high, clean_pairs(hosts, 2) if hosts > 3 else 0.0)

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
        table, ranks = cover.table, self.fleet.ranks
        if self.met is None or self.met[0] is not table:
            self.met = (table, together(table, ranks))
        both = self.met[1][cover.open]
        slow, count = np.zeros(ranks), np.zeros(ranks)
        for side in (table.a[cover.open], table.b[cover.open]):
            slow += np.bincount(side, both, ranks)
            count += np.bincount(side, table.count[cover.open], ranks)
        for rank in (key for kind, key in cover.out if kind == "flap"):
            slow[rank] = 0
        seen = count > 0
        share = np.divide(slow, count, out=np.zeros(ranks), where=seen)
        usual = float(np.median(share[seen])) if seen.any() else 0.0
        # Standard error of a share of count / BURST independent observations, four of them.
        noise = 4 * np.sqrt(max(usual, 0.01) * BURST / np.maximum(count, BURST))
        if seen.sum() >= ENOUGH:
            noise = np.minimum(noise, 5 * spread(share[seen]))
        over = np.where(share > usual + 0.05 + noise, share, 0.0)
        if not over.any():
            return None
        rank = int(over.argmax())
        ties = tuple(
            ("flap", int(other)) for other in np.flatnonzero(over > 0.8 * over[rank]) if other != rank
        )
        rows = (table.a == rank) | (table.b == rank)
        return Suspect("flap", rank, rows, np.inf, ties[: max(PARTNERS, self.fleet.hosts // 16)])

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
        order = self.random.permutation(ranks).tolist()
        return sorted(order, key=lambda rank: rank in suspects)[:count]

    def controls(self, suspects: set[int], cross: bool) -> list[tuple[int, int]]:
        """Flows between ranks without suspicion (or with, when there are no others)."""
        found = []
        for rank in self.chosen(np.arange(self.fleet.ranks), suspects, 8):
            away = self.fleet.host != self.fleet.host[rank]
            rail = self.fleet.gpu == self.fleet.gpu[rank]
            for alike in (away & rail, away & ~rail & cross):
                found += [(rank, other) for other in self.chosen(np.flatnonzero(alike), suspects, 1)]
        return found
