"""Rounds of simultaneous flows, in each of which a rank sends to one rank and receives from one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import Ints, Topology

Pairs = Ints  # (pairs, 2)


def round_robin(count: int) -> list[Pairs]:
    """Return a tournament in which each pair of `count` meets once, in count - 1 rounds (odd: count).

    The circle method (Kirkman 1847): one player stays, the others rotate. If count is odd, one sits out in
    each round.
    """
    seats = count + count % 2
    if count < 2:
        return []
    rounds = []
    for step in range(seats - 1):
        ring = (np.arange(seats - 1) + step) % (seats - 1)
        left = np.concatenate([[seats - 1], ring[1 : seats // 2]])
        right = np.concatenate([ring[:1], ring[: seats // 2 - 1 : -1]])
        met = np.stack([left, right], axis=1)
        rounds.append(met[(met < count).all(axis=1)])
    return rounds


def both_ways(pairs: Pairs) -> Pairs:
    """Return each pair (a, b) as the flows a -> b and b -> a."""
    return np.concatenate([pairs, pairs[:, ::-1]])


def intra_node_rounds(topology: Topology) -> Iterator[Pairs]:
    """Yield rounds of all GPU pairs of each host, all hosts at once; see `one_pcie_pair_a_host`."""
    largest = max(len(topology.on(host)) for host in range(topology.hosts))
    table = np.full((topology.hosts, largest), -1, np.int64)
    for host in range(topology.hosts):
        table[host, : len(topology.on(host))] = topology.on(host)
    for met in round_robin(largest):
        pairs = np.stack([table[:, met[:, 0]].ravel(), table[:, met[:, 1]].ravel()], axis=1)
        yield from one_pcie_pair_a_host(pairs[(pairs >= 0).all(axis=1)], topology)


def one_pcie_pair_a_host(pairs: Pairs, topology: Topology) -> Iterator[Pairs]:
    """Split a round of pairs inside hosts into rounds of flows in both directions.

    Pairs without NVLink share the links above their PCIe switches, so each host has one of them at a time.
    """
    pcie = topology.over_pcie[pairs[:, 0], topology.gpu[pairs[:, 1]]]
    of_host = topology.host[pairs[:, 0]]
    turn = np.zeros(len(pairs), np.int64)
    for number in np.unique(of_host[pcie]).tolist():
        own = np.flatnonzero(pcie & (of_host == number))
        turn[own] = np.arange(len(own)) + bool((~pcie & (of_host == number)).any())
    for number in np.unique(turn).tolist():
        yield both_ways(pairs[turn == number])


def inter_node_rounds(topology: Topology, plan: Plan) -> Iterator[Pairs]:
    """Yield rounds of host pairs, all rails at once, as flows in both directions.

    Few hosts: all pairs, the same on every rail, in hosts - 1 rounds. More: each pair on one rail, in
    (hosts - 1) / rails rounds. Many: random partners on each rail, in 2 log2(hosts) rounds.

    In random order: a host meets its neighbours at different times, so that others do not load it at all of
    them.
    """
    rails, random = range(topology.rails), np.random.default_rng(plan.seed)
    order = round_robin(topology.hosts) if topology.hosts <= plan.all_pairs_hosts else []
    order = [order[number] for number in random.permutation(len(order)).tolist()]
    if topology.hosts <= plan.full_mesh_hosts:
        rounds = ([met for _ in rails] for met in order)
    elif topology.hosts <= plan.all_pairs_hosts:
        rounds = (
            [order[(first + rail) % len(order)] for rail in rails]
            for first in range(0, len(order), topology.rails)
        )
    else:
        count = math.ceil(2 * math.log2(topology.hosts))
        rounds = ([random_pairs(topology.hosts, random) for _ in rails] for _ in range(count))
    for met in rounds:
        pairs = np.concatenate([topology.at[pairs, rail] for rail, pairs in enumerate(met)])
        pairs = pairs[(pairs >= 0).all(axis=1)]
        if len(pairs):
            yield both_ways(pairs)


def random_pairs(count: int, random: np.random.Generator) -> Pairs:
    """Return one round of random pairs; if count is odd, one sits out."""
    order = random.permutation(count).astype(np.int64)
    return order[: count - count % 2].reshape(-1, 2)


def matched_rounds(flows: Pairs, place: Ints, random: np.random.Generator) -> Iterator[Pairs]:
    """Distribute the pairs of ranks of these flows over rounds in which each place is in one pair at most.

    place: (ranks,), a number of what each rank uses alone; the rank itself, or what several share.

    Rounds are maximal matchings: of a random order, each takes the pairs that are first at both of their
    places, again and again (Luby 1986).
    """
    low, high, ranks = flows.min(axis=1), flows.max(axis=1), len(place)
    left = random.permutation(np.unique(low * ranks + high))
    while len(left):
        taken, free = np.zeros(len(left), bool), np.ones(1 + place.max(), bool)
        a, b = (place[side] for side in np.divmod(left, ranks))
        while len(some := np.flatnonzero(free[a] & free[b])):
            first = np.full(len(free), len(left))
            np.minimum.at(first, a[some], some)
            np.minimum.at(first, b[some], some)
            now = some[(first[a[some]] == some) & (first[b[some]] == some)]
            taken[now], free[a[now]], free[b[now]] = True, False, False
        yield np.stack(np.divmod(left[taken], ranks), axis=1)
        left = left[~taken]


def split_round(flows: Pairs, topology: Topology, count: int) -> list[Pairs]:
    """Split a round into up to `count`, each with as many flows of every rail; those between two hosts on a
    rail stay together.

    Rails have uplinks of their own. On each, pairs of hosts are dealt out in order of their lower host, so
    that neighbours, which often share a leaf switch, are apart. Rails with the same pairs deal them alike.
    """
    if count == 1:
        return [flows]
    ends, rail = topology.host[flows], topology.gpu[flows].min(axis=1)
    low, high = ends.min(axis=1), ends.max(axis=1)
    pairs, pair = np.unique(np.stack([rail, low, high]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0])  # of its rail
    part = ((np.arange(len(first)) - first) % count)[pair.reshape(-1)]
    return [flows[part == number] for number in np.unique(part)]


def one_rank_per_nic(flows: Pairs, topology: Topology) -> list[Pairs]:
    """Split a round so that ranks which share a NIC send in turn: together, each would get a part of it."""
    order = np.argsort(topology.nic, kind="stable")
    first = np.searchsorted(topology.nic[order], topology.nic[order])
    place = np.empty(topology.ranks, np.int64)
    place[order] = np.arange(topology.ranks) - first
    part = place[flows].min(axis=1)
    return [flows[part == number] for number in np.unique(part)]


def turns_of_rings(rings: Sequence[Ints], topology: Topology) -> Ints:
    """Return (rings,): the turn in which to measure each, so that rings do not share some of their NICs only.

    If each ring has a NIC that as many rings use, all are in one turn: they are alike. But where a host lacks
    some of its NICs, only the rings of the GPUs that share one would be slower.
    """
    nics = [np.unique(topology.nic[ranks]) for ranks in rings]
    users = np.bincount(np.concatenate(nics), minlength=len(topology.nic_names))
    turns = np.zeros(len(rings), np.int64)
    if len({int(users[own].max()) for own in nics}) == 1:
        return turns
    busy = list[set[int]]()  # NICs of each turn
    for number, own in enumerate(nics):
        turn = next((turn for turn, known in enumerate(busy) if known.isdisjoint(own)), len(busy))
        busy += [set()] * (turn == len(busy))
        busy[turn] |= {*own.tolist()}
        turns[number] = turn
    return turns


Distance = Literal["any", "quarter", "half"]
DISTANCES: tuple[Distance, ...] = ("half", "any", "quarter", "any")  # of one round after the other


def partners(count: int, random: np.random.Generator, distance: Distance) -> Pairs:
    """Return flows in which each of `count` members exchanges data with one other, drawn at random.

    quarter: partners are at least a quarter of the members apart. half: one of the first half of them and one
    of the other.

    Pairs, because a slow flow slows what its two ranks do next, and in a longer cycle all other ranks. If
    their number is odd, three form a cycle.
    """
    order, half, quarter = np.arange(count), count // 2, count // 4
    if distance == "any":
        order = random.permutation(count)
    elif distance == "quarter":
        order = np.roll(order, int(random.integers(count)))
    left, right = order[:half], order[half : 2 * half].copy()
    for some in (slice(0, quarter), slice(quarter, half)) if distance == "quarter" else (slice(0, half),):
        right[some] = random.permutation(right[some])
    flows = both_ways(np.stack([left, right], axis=1))
    if count % 2:
        last, a, b = order[-1], flows[0, 0], flows[0, 1]
        flows = flows[~((flows == [b, a]).all(axis=1))]
        flows = np.concatenate([flows, [[b, last], [last, a]]])
    return flows.astype(np.int64)


def senders_of_rail(topology: Topology, rail: int) -> Ints:
    """Return the ranks of a rail that send when all do, ordered by host: of ranks that share a NIC, one."""
    ranks = topology.rail(rail)
    return np.asarray(ranks[topology.owner[ranks] == ranks])


def all_at_once_rounds(topology: Topology, count: int, random: np.random.Generator) -> list[Pairs]:
    """Return rounds in which every rank sends to one of its rail and receives from one (`partners`).

    Rails with the same hosts have the same partners, so that each flow has siblings. In half of the rounds
    these are far apart, as neighbours often share a leaf switch. In the other half any two may meet, in case
    the order of hosts is not that of the network.
    """
    rails = [ranks for rail in range(topology.rails) if len(ranks := senders_of_rail(topology, rail)) > 1]
    of_hosts = [topology.host[ranks].tobytes() for ranks in rails]
    rounds = []
    for number in range(count):
        distance = DISTANCES[number % len(DISTANCES)]
        sizes = dict(zip(of_hosts, map(len, rails), strict=True))
        met = {hosts: partners(size, random, distance) for hosts, size in sizes.items()}
        rounds.append(
            np.concatenate([ranks[met[hosts]] for hosts, ranks in zip(of_hosts, rails, strict=True)])
        )
    return rounds


def isolated_rounds(
    flows: Sequence[tuple[int, int]], topology: Topology, most: int
) -> list[list[tuple[int, int]]]:
    """Distribute flows over rounds in which each host takes part in at most one.

    most: flows in a round; at most a quarter of them on one rail, where they may share a switch.
    """
    rounds: list[list[tuple[int, int]]] = []
    busy: list[Counter[tuple[str, int]]] = []
    limits = {"host": 1, "rail": max(most // 4, 1), "flows": most}
    full: Counter[tuple[str, int]] = Counter()  # rounds from the first on that a part has no room in
    for a, b in flows:
        parts = [("host", int(topology.host[rank])) for rank in (a, b)]
        parts = list(dict.fromkeys([*parts, ("rail", int(topology.gpu[a])), ("flows", 0)]))
        for part in parts:
            while full[part] < len(busy) and busy[full[part]][part] >= limits[part[0]]:
                full[part] += 1
        number = max(full[part] for part in parts)
        while number < len(busy) and any(busy[number][part] >= limits[part[0]] for part in parts):
            number += 1
        if number == len(rounds):
            rounds.append([])
            busy.append(Counter())
        rounds[number].append((a, b))
        busy[number].update(parts)
    return rounds
