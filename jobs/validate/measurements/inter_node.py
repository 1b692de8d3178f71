"""Flows between hosts, rail by rail: finds slow NICs, hosts, rails and links between hosts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from jobs.measure.outliers import healthy_pairs, row_medians, samples_to_clear
from jobs.validate.localize.intermittent import SlowShares
from jobs.validate.localize.observations import Observations, Siblings, tabulate
from jobs.validate.localize.retest import RungMeasurement
from jobs.validate.localize.set_cover import (
    Cover,
    KnownFaults,
    PartKind,
    PartName,
    Suspect,
    numbered_kind,
    part_kind,
)
from jobs.validate.measurements.repeats import (
    RETEST_REPEATS,
    joined,
    measure_first,
    repeats_needed,
    spaced_repeats,
    unclear_suspects,
)
from jobs.validate.measurements.schedule import (
    both_ways,
    inter_node_rounds,
    isolated_rounds,
    matched_rounds,
    split_round,
)
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Probe, Seconds
from jobs.validate.topology import Ints, Topology

PARTNERS = 4  # of each suspect in a retest
CONTROLS = 8  # healthy ranks that are measured with the suspects
LINKS = ("link", "link one way")
BETWEEN = (*LINKS, "path")  # kinds that may rest on a single pair of flows
SCREENED_HOSTS = 8  # from which on there are enough others
SCREENS = 4  # of suspects of these kinds, at most
SCREEN_SAMPLES = 1.5, 60  # times those that clear a healthy flow on average; at most
TRIAL_ROUNDS = 2  # with which it is decided how many flows to measure at once
LEAST_BYTES = 4 << 20
CROWDED = 0.25  # share of the flows that must be faster for fewer at once to be worth their time


def most_subrounds(topology: Topology, plan: Plan) -> int:
    """Return into how many subrounds a round may be split; 1 if not at all."""
    return min(plan.max_subrounds, topology.hosts // 2) if topology.hosts >= 4 else 1


class InterNode(RungMeasurement):
    """Flows between hosts, one row each."""

    def __init__(self, probe: Probe, topology: Topology, plan: Plan, faults: KnownFaults) -> None:
        self.probe, self.topology, self.plan, self.faults = probe, topology, plan, faults
        self.nbytes = plan.nic_bytes
        self.random = np.random.default_rng(plan.seed)
        self.at_once = max(topology.hosts // 4, min(topology.hosts // 2, 2))  # flows of a retest's round
        self.suspects = set(faults)  # ranks
        self.shares: SlowShares | None = None
        self.screened: Observations | None = None  # suspects that were cleared
        self.isolated: Observations | None = None
        self.flows: list[Ints] = []  # of `isolated`
        self.seconds: list[Seconds] = []
        self.first: Observations  # table, of the first measurement
        self.subrounds = 0  # into which each round is split; 0: not known yet
        self.crowded = False  # fewer flows at once than `max_subrounds` allows would be faster still

    @property
    def gaps(self) -> Sequence[str]:
        if not self.crowded:
            return ()
        return (
            f"flows between hosts are faster the fewer there are at once, even {self.subrounds} times fewer "
            "than all; NICs behind such uplinks cannot be judged",
        )

    # --- measuring

    def measure(self, longer: bool = False) -> Observations:
        rounds = list(inter_node_rounds(self.topology, self.plan))
        samples = max(self.plan.samples, math.ceil(self.plan.samples_per_nic / len(rounds)))
        if not self.subrounds:
            self.nbytes = self.bytes_in_time(rounds[0])
            self.subrounds = self.subrounds_needed(rounds)
        if self.subrounds > 1:  # flows of a retest must not share an uplink either: one on each rail
            self.at_once = min(self.at_once, 4)
        rounds = [some for each in rounds for some in split_round(each, self.topology, self.subrounds)]
        seconds, self.noise = measure_first(self.sample, rounds, samples, self.plan, longer)
        self.first = tabulate(rounds, seconds, self.siblings, self.plan)
        return self.first

    def bytes_in_time(self, flows: Ints) -> int:
        """Return how much a flow moves so that it takes no longer than the plan's `transfer_seconds`.

        The plan's size, or halves of it, but at least LEAST_BYTES: where the network is slow, a transfer of
        fewer bytes shows the rate as well.
        """
        measured = self.sample(flows, 1)
        if np.isnan(measured).all():
            return self.nbytes
        seconds = float(np.nanmedian(measured))
        halves = max(math.ceil(math.log2(max(seconds / self.plan.transfer_seconds, 1))), 0)
        return max(self.nbytes >> halves, min(self.nbytes, LEAST_BYTES))

    def subrounds_needed(self, rounds: Sequence[Ints]) -> int:
        """Return into how many each round must be split so that NICs, not shared uplinks, limit its flows.

        Doubles the number while at least CROWDED of the flows become faster by more than the tolerance, up to
        `max_subrounds`: a climb then takes that many times as long on this rung.
        """
        count, most = 1, most_subrounds(self.topology, self.plan)
        if most == 1:
            return 1
        some = rounds[:TRIAL_ROUNDS]
        usual = self.trial(some, count)
        while 2 * count <= most:
            fewer = self.trial(some, 2 * count)
            shared = usual.keys() & fewer.keys()
            if np.mean([usual[flow] - fewer[flow] > self.plan.tolerance for flow in shared]) < CROWDED:
                return count
            count, usual = 2 * count, fewer
        self.crowded = 4 * count <= self.topology.hosts  # fewer at once may be faster still
        return count

    def trial(self, rounds: Sequence[Ints], count: int) -> dict[tuple[int, int], float]:
        """Return the log of the median seconds of each flow, with each round split into `count`."""
        parts = [part for each in rounds for part in split_round(each, self.topology, count)]
        logs = [np.log(row_medians(self.sample(part, self.plan.samples))).tolist() for part in parts]
        return {
            (a, b): log
            for part, of_part in zip(parts, logs, strict=True)
            for (a, b), log in zip(part.tolist(), of_part, strict=True)
        }

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Screen pairs; retest what remains, and other suspects, one flow per host at a time over the span.

        Healthy ranks are their siblings in the same rounds.
        """
        # NICs that are slow for part of the time are not: a look at once may clear them.
        pairs = [name for name in suspects if name[0] in BETWEEN]
        others = [name for name in suspects if name[0] not in BETWEEN]
        self.suspects |= {rank for name in others for rank in self.ranks(name)}
        left = others + self.screen(pairs)
        self.suspects |= {rank for name in left for rank in self.ranks(name)}
        flows = {name: self.suspect_flows(name, self.suspects) for name in left}
        cross = any(self.topology.gpu[a] != self.topology.gpu[b] for of in flows.values() for a, b in of)
        controls = self.control_flows(self.suspects, cross)
        samples = max(self.plan.retest_samples // RETEST_REPEATS, 3) * repeats_needed(
            self.noise, self.plan.retest_samples, self.plan
        )
        for _ in spaced_repeats(RETEST_REPEATS, self.plan.retest_span, self.probe) if left else ():
            wanted = list(dict.fromkeys([*(flow for name in left for flow in flows[name]), *controls]))
            # A new order each time: flows that collided by chance will not collide again.
            mixed = [wanted[number] for number in self.random.permutation(len(wanted))]
            for met in isolated_rounds(mixed, self.topology, self.at_once):
                table = np.array(met, np.int64)
                self.flows.append(table)
                self.seconds.append(self.sample(table, samples))
            self.isolated = tabulate(self.flows, self.seconds, self.retest_siblings, self.plan, retested=True)
        if left:
            assert self.isolated is not None
            left = self.unclear(self.isolated, left)
        if self.isolated is None:
            assert self.screened is not None  # there were suspects
            return self.screened, left
        return joined(self.screened, self.isolated), left

    def unclear(self, table: Observations, names: Sequence[PartName]) -> list[PartName]:
        """Return the suspects that may be slow; those that may be slow for part of the time always may."""
        flaps = [name for name in names if name[0] == "flap"]
        others = [name for name in names if name[0] != "flap"]
        return [*flaps, *unclear_suspects(table, self.part_kinds(table), others, self.noise, self.plan)]

    def screen(self, names: Sequence[PartName]) -> list[PartName]:
        """Measure suspects again, many at once, with other neighbours each time. Returns those not cleared.

        Of flows that were slow once, nearly all collided by chance. Goes on while more than half are cleared.
        Without others to compare them with, all remain.
        """
        if self.topology.hosts < SCREENED_HOSTS or not self.plan.quick_looks:
            return list(names)
        size = self.topology.ranks
        flows = {name: self.suspect_flows(name, self.suspects) for name in names}
        times, most = SCREEN_SAMPLES
        needed = times * samples_to_clear(self.noise, -math.log(self.plan.critical))
        samples = min(max(math.ceil(needed), self.plan.samples), most)
        left = list(names)
        for _ in range(SCREENS):
            if not left:
                break
            wanted = np.array([flow for name in left for flow in flows[name]], np.int64)
            controls = np.array(self.control_flows(self.suspects, cross=False), np.int64)
            pairs = [*matched_rounds(controls, size, self.random)]
            pairs += [self.with_controls(each) for each in matched_rounds(wanted, size, self.random)]
            rounds = [
                part for each in pairs for part in split_round(both_ways(each), self.topology, self.subrounds)
            ]
            seconds = [self.sample(each, samples) for each in rounds]
            suspected = {a * size + b for a, b in wanted.tolist()}

            def siblings(a: Ints, b: Ints, suspected: set[int] = suspected) -> Siblings:
                trusted = ~np.isin(a * size + b, list(suspected))
                return Siblings(self.topology.flow_kind(a, b), None, 0.2, trusted)

            table = tabulate(rounds, seconds, siblings, self.plan, retested=True)
            before, left = left, self.unclear(table, left)
            cleared = {a * size + b for name in set(before) - set(left) for a, b in flows[name]}
            cleared -= {a * size + b for name in left for a, b in flows[name]}
            fine = table.of(np.isin(table.a * size + table.b, list(cleared)))
            self.screened = joined(self.screened, fine.with_slow_samples(self.first))
            if 2 * len(left) > len(before):
                break
        return left

    def with_controls(self, pairs: Ints) -> Ints:
        """Return pairs with pairs of other ranks to compare them with."""
        idle = np.ones(self.topology.ranks, bool)
        idle[pairs] = False
        idle[list(self.suspects)] = False
        ranks = self.random.permutation(np.flatnonzero(idle))
        ranks = ranks[np.argsort(self.topology.gpu[ranks], kind="stable")]
        others = np.stack([ranks[:-1], ranks[1:]], axis=1)[::2]  # of one rail, nearly all
        others = others[self.topology.gpu[others[:, 0]] == self.topology.gpu[others[:, 1]]]
        count = max(CONTROLS, len(pairs) // 4)
        return np.concatenate([pairs, self.random.permutation(others)[:count]])

    def sample(self, flows: Ints, samples: int) -> Seconds:
        return self.probe.flows([(a, b) for a, b in flows.tolist()], self.nbytes, samples)

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        """Compare flows between NICs of the same models, those on one rail and those across rails.

        From three hosts on, compare host pairs.
        """
        topology, kind = self.topology, self.topology.flow_kind(a, b)
        hosts, rails, host = topology.hosts, topology.rails, topology.host
        if hosts == 2:
            return Siblings(kind, None, (rails - 1) / rails)
        of_kind = [
            len(np.unique(host[topology.nic_kind == one])) for one in range(topology.nic_kind.max() + 1)
        ]
        fewest = min(of_kind)
        if hosts > self.plan.full_mesh_hosts:
            return Siblings(kind, None, healthy_pairs(fewest, 2))
        low, high = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        return Siblings(kind, low * hosts + high, healthy_pairs(fewest, 2) if fewest > 3 else 0.0)

    def retest_siblings(self, a: Ints, b: Ints) -> Siblings:
        suspect = np.isin(np.arange(self.topology.ranks), list(self.suspects))
        return Siblings(self.topology.flow_kind(a, b), None, 0.2, ~suspect[a] & ~suspect[b])

    # --- parts

    def part_kinds(self, table: Observations) -> list[PartKind]:
        """Return the parts on the path of each flow; of equally good explanations, the first is named."""
        a, b = table.a, table.b
        host, gpu, size = self.topology.host, self.topology.gpu, self.topology.ranks
        low, high = np.minimum(a, b), np.maximum(a, b)
        first, second = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        same = gpu[a] == gpu[b]
        kinds = [
            numbered_kind("nic", size, a, b),
            numbered_kind("send", size, a),
            numbered_kind("receive", size, b),
            numbered_kind("host", self.topology.hosts, host[a], host[b]),
            numbered_kind("rail", self.topology.rails, np.where(same, gpu[a], -1)),
        ]
        if self.topology.hosts > self.plan.all_pairs_hosts:
            return kinds  # partners are sampled: links are not judged
        if self.topology.rails > 1:
            kinds.append(part_kind("path", low * size + high))
        return [
            *kinds,
            part_kind("link", first * self.topology.hosts + second),
            part_kind("link one way", host[a] * self.topology.hosts + host[b]),
        ]

    def ranks(self, name: PartName) -> list[int]:
        """Return the ranks that a suspect consists of."""
        kind, key = name
        if kind == "host":
            return list(self.topology.on(key).tolist())
        if kind == "rail":
            return list(self.topology.rail(key).tolist())
        if kind in LINKS:
            return [
                rank for host in divmod(key, self.topology.hosts) for rank in self.topology.on(host).tolist()
            ]
        return list(divmod(key, self.topology.ranks)) if kind == "path" else [key]

    def intermittent(self, cover: Cover) -> Suspect | None:
        """Return the NIC with the largest share of slow samples, if that is far above the usual share."""
        if self.shares is None or self.shares.cover is not cover:
            self.shares = SlowShares(cover, self.topology.ranks)
        return self.shares.suspect(max(PARTNERS, self.topology.hosts // 16))

    # --- flows of a retest

    def suspect_flows(self, name: PartName, suspects: set[int]) -> list[tuple[int, int]]:
        """Return flows in both directions through a suspect."""
        kind, key = name
        topology = self.topology
        if kind in LINKS:
            left, right = divmod(key, topology.hosts)
            pairs = [
                (int(a), int(b))
                for a, b in zip(topology.at[left], topology.at[right], strict=True)
                if min(a, b) >= 0
            ]
        elif kind == "path":
            pairs = [divmod(key, topology.ranks)]
            if topology.hosts <= PARTNERS:
                pairs += [
                    (rank, other) for rank in pairs[0] for other in self.partners(rank, suspects, PARTNERS)
                ]
        else:
            ranks = self.ranks(name)
            few = ranks if len(ranks) <= 8 else self.random.choice(ranks, 8, replace=False).tolist()
            pairs = [(rank, other) for rank in few for other in self.partners(rank, suspects, PARTNERS)]
        return [flow for a, b in pairs for flow in ((a, b), (b, a))]

    def partners(self, rank: int, suspects: set[int], count: int) -> list[int]:
        """Return healthy ranks of other hosts on the same rail.

        If there are few, across rails too, which separates the two sides of a flow.
        """
        topology = self.topology
        away = topology.host != topology.host[rank]
        rail = away & (topology.gpu == topology.gpu[rank])
        found = self.chosen(np.flatnonzero(rail), suspects, count)
        if rail.sum() < PARTNERS:
            found += self.chosen(np.flatnonzero(away & ~rail), suspects, count)
        return found

    def chosen(self, ranks: Ints, suspects: set[int], count: int) -> list[int]:
        """Return up to `count` of the ranks in random order, healthy ones first."""
        order = self.random.permutation(ranks)
        last = np.isin(order, list(suspects))
        return list(np.concatenate([order[~last], order[last]])[:count].tolist())

    def control_flows(self, suspects: set[int], cross: bool) -> list[tuple[int, int]]:
        """Return flows between healthy ranks (or suspects, if there are no others)."""
        found = []
        for rank in self.chosen(np.arange(self.topology.ranks), suspects, CONTROLS):
            away = self.topology.host != self.topology.host[rank]
            rail = self.topology.gpu == self.topology.gpu[rank]
            for alike in (away & rail, away & ~rail & cross):
                found += [(rank, other) for other in self.chosen(np.flatnonzero(alike), suspects, 1)]
        return found
