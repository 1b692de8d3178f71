"""Which flows between hosts are measured together: rounds that neither NICs nor uplinks limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from meshrun.jobs.measure.outliers import MANY_MEASUREMENTS
from meshrun.jobs.validate.localize.findings import gpu_of_nic
from meshrun.jobs.validate.localize.flow_network import LEAST_NEAR, LINKS, FlowNetwork
from meshrun.jobs.validate.localize.set_cover import PartName
from meshrun.jobs.validate.measurements.schedule import (
    both_ways,
    matched_rounds,
    one_rank_per_nic,
    split_round,
)
from meshrun.jobs.validate.topology import Ints, Topology

PARTNERS = 4  # of each suspect in a retest
WITNESS_PARTNERS = 2  # of the NIC that is measured with a suspect of the same host: one may be loaded
CONTROLS = 8  # healthy flows of each class that are measured with the suspects
CANDIDATES = 32  # ranks from which these are drawn
NEAR_ROUNDS = MANY_MEASUREMENTS  # of flows inside groups, at most: enough that a median shows a NIC


class FlowSchedule:
    """Rounds and partners of flows between hosts. subrounds: into which each round is split; 0: not known
    yet."""

    def __init__(self, topology: Topology, network: FlowNetwork, seed: int) -> None:
        self.topology, self.network = topology, network
        self.random = np.random.default_rng(seed)
        self.subrounds = 0

    def near_rounds(self, rounds: Sequence[Ints]) -> Iterator[Ints]:
        """Yield rounds of flows inside the groups of hosts, of pairs of ranks that have not met in `rounds`.

        Only these flows show NICs, and where each two hosts meet on one rail, a NIC has met few or none of
        its group. No uplink limits them, so all are measured at once. At most NEAR_ROUNDS, in each of which a
        rank has one partner.
        """
        topology = self.topology
        near = ~self.network.far & np.triu(np.ones_like(self.network.far), 1)
        pairs = [topology.at[np.argwhere(near), rail] for rail in range(topology.rails)]
        wanted = np.concatenate([each[(each >= 0).all(axis=1)] for each in pairs])
        wanted = wanted[~topology.over_nvlink(*wanted.T)]
        size = topology.ranks
        if len(rounds):
            wanted = wanted[~np.isin(wanted @ [size, 1], np.concatenate(rounds) @ [size, 1])]
        for each in islice(matched_rounds(wanted, np.arange(size), self.random), NEAR_ROUNDS):
            yield from one_rank_per_nic(both_ways(each), topology)

    def split(self, flows: Ints) -> list[Ints]:
        """Split a round so that neither shared NICs nor uplinks limit its flows."""
        return [
            part
            for each in one_rank_per_nic(flows, self.topology)
            for part in split_round(each, self.topology, max(self.subrounds, 1))
        ]

    def separate_rounds(self, pairs: Ints, suspects: set[int], with_controls: bool = False) -> Iterator[Ints]:
        """Yield rounds of these pairs of ranks, both ways, whose flows neither NICs nor uplinks limit.

        If groups of hosts are known, so are the flows that share uplinks: then each group has as many at once
        as a subround of the first measurement has on average, and pairs inside groups need no uplinks.
        """
        everything = np.arange(self.topology.ranks)
        if not self.network.far.any():
            for met in matched_rounds(pairs, everything, self.random):
                flows = self.with_controls(met, everything, suspects) if with_controls else met
                yield from self.split(both_ways(flows))
            return
        far = self.network.far[tuple(self.topology.host[pairs].T)]
        for met in matched_rounds(pairs[~far], self.topology.owner, self.random):
            yield both_ways(met)
        uplink = self.uplinks()
        for met in matched_rounds(pairs[far], uplink, self.random):
            yield both_ways(self.with_controls(met, uplink, suspects) if with_controls else met)

    def uplinks(self) -> Ints:
        """Return (ranks,): a number of the uplinks that the hosts of each rank's group have on its rail.

        As many hosts as there are subrounds share a number.
        """
        hosts = np.arange(self.topology.hosts)
        first = np.argmin(self.network.far, axis=1)  # host of each group
        place = np.array([np.count_nonzero(first[:host] == first[host]) for host in hosts])
        part = first * self.topology.hosts + place // max(self.subrounds, 1)
        return np.unique(
            part[self.topology.host] * self.topology.rails + gpu_of_nic(self.topology), return_inverse=True
        )[1].reshape(-1)

    def with_controls(self, pairs: Ints, place: Ints, suspects: set[int]) -> Ints:
        """Return pairs with pairs of other ranks to compare them with. place: as of `matched_rounds`."""
        idle = ~np.isin(place, place[pairs])
        idle[list(suspects)] = False
        ranks = self.random.permutation(np.flatnonzero(idle))
        ranks = ranks[np.unique(place[ranks], return_index=True)[1]]  # one of each place
        ranks = self.random.permutation(ranks)
        ranks = ranks[np.argsort(self.topology.gpu[ranks], kind="stable")]
        others = np.stack([ranks[:-1], ranks[1:]], axis=1)[::2]  # of one rail, nearly all
        others = others[self.topology.gpu[others[:, 0]] == self.topology.gpu[others[:, 1]]]
        count = max(CONTROLS, len(pairs) // 4)
        return np.concatenate([pairs, self.random.permutation(others)[:count]])

    def suspect_flows(
        self, name: PartName, suspects: set[int], few_flaps: bool = False
    ) -> list[tuple[int, int]]:
        """Return flows in both directions through a suspect. few_flaps: of a flap, with more partners."""
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
            ranks = self.network.ranks(name)
            few = ranks if len(ranks) <= 8 else self.random.choice(ranks, 8, replace=False).tolist()
            far, over_nvlink = kind == "leaf", kind.startswith("nvlink")
            count = 2 * PARTNERS if kind == "flap" and few_flaps else PARTNERS
            pairs = [
                (rank, other)
                for rank in few
                for other in self.partners(rank, suspects, count, far, over_nvlink)
            ]
        return [flow for a, b in pairs for flow in ((a, b), (b, a))]

    def witness_flows(self, host: int, slow: set[int], suspects: set[int]) -> list[tuple[int, int]]:
        """Return flows, in both directions, of a NIC of this host that may not be slow; [] if there is none.

        They are slow in the looks in which others load the host. slow: ranks of parts that are no links.
        """
        own = self.topology.on(host)
        own = own[self.topology.owner[own] == own]
        healthy = own[~np.isin(own, list(slow))]
        if not len(healthy):
            return []
        rank = int(self.random.choice(healthy))
        pairs = [(rank, other) for other in self.partners(rank, suspects, WITNESS_PARTNERS)]
        return [flow for a, b in pairs for flow in ((a, b), (b, a))]

    def partners(
        self, rank: int, suspects: set[int], count: int, far: bool = False, over_nvlink: bool = False
    ) -> list[int]:
        """Return healthy ranks of other hosts on the same rail.

        far: beyond slower uplinks, if there are any. over_nvlink: in the same NVLink network.
        If there are few, across rails too, which separates the two sides of a flow.
        """
        topology = self.topology
        away = topology.host != topology.host[rank]
        if over_nvlink:
            away &= topology.domain == topology.domain[rank]
        elif (others := topology.domain != topology.domain[rank]).any():
            away &= others
        rail = away & (topology.gpu == topology.gpu[rank])
        distant = self.network.far[topology.host[rank], topology.host]
        if far and (rail & distant).any():
            rail &= distant
        elif not far and (rail & ~distant).sum() >= LEAST_NEAR:
            rail &= ~distant
        shows = ~self.network.hidden[topology.nic_kind[rank], topology.nic_kind]
        if not over_nvlink and (rail & shows).any():  # a slower partner hides the suspect
            rail &= shows
        found = self.chosen(np.flatnonzero(rail), suspects, count)
        if rail.sum() < PARTNERS:
            found += self.chosen(np.flatnonzero(away & ~rail), suspects, count)
        return found

    def chosen(self, ranks: Ints, suspects: set[int], count: int) -> list[int]:
        """Return up to `count` of the ranks in random order, healthy ones first."""
        order = self.random.permutation(ranks)
        last = np.isin(order, list(suspects))
        return list(np.concatenate([order[~last], order[last]])[:count].tolist())

    def control_flows(self, suspects: set[int], wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return flows between healthy ranks (or suspects, if there are no others), of each class wanted.

        Drawn from each model of NIC, however few hosts have it.
        """
        topology, found = self.topology, list[tuple[int, int]]()
        models = [topology.nic_kind == model for model in range(int(topology.nic_kind.max()) + 1)]
        needed = set(self.network.flow_kind(*np.array(wanted, np.int64).T).tolist())
        host = topology.host
        pairs = [
            (rank, other)
            for model in models
            for rank in self.chosen(np.flatnonzero(model), suspects, CANDIDATES)
            for rail in (topology.gpu == topology.gpu[rank], topology.gpu != topology.gpu[rank])
            # Of many hosts, few are near.
            for distant in ((False, True) if self.network.far.any() else (False,))
            for of_partner in models
            for other in self.chosen(
                np.flatnonzero(
                    (host != host[rank]) & rail & of_partner & (self.network.far[host[rank], host] == distant)
                ),
                suspects,
                CONTROLS,
            )
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        kinds = self.network.flow_kind(*table.T)
        good = np.asarray(~np.isin(table, list(suspects)).any(axis=1))
        for kind in sorted(needed):
            some = self.random.permutation(np.flatnonzero(kinds == kind))
            some = some[np.argsort(~good[some], kind="stable")][:CONTROLS]
            found += [pairs[number] for number in some.tolist()]
        return found

    def of_classes(
        self, flows: Sequence[tuple[int, int]], like: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the flows of the same classes as some other flows."""
        wanted, own = (
            self.network.flow_kind(*np.array(some, np.int64).reshape(-1, 2).T) for some in (like, flows)
        )
        return [flow for flow, kind in zip(flows, own.tolist(), strict=True) if kind in set(wanted.tolist())]
