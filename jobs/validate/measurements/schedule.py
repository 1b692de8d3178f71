"""Who meets whom: rounds of flows at the same time, each rank sending to one and receiving from one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from jobs.validate.plan import Plan
from jobs.validate.topology import Fleet, Ints

Pairs = Ints  # (pairs, 2)


def circle(count: int) -> list[Pairs]:
    """A round-robin tournament: every two of `count` meet once, in count - 1 rounds (count, when odd: one
    sits out).

    The circle method (Kirkman 1847): one player stays, the others move on by one place around the circle.
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
    """Each pair (a, b) as the flows a -> b and b -> a."""
    return np.concatenate([pairs, pairs[:, ::-1]])


def inside(fleet: Fleet) -> Iterator[Pairs]:
    """GPU pairs of each host, all hosts at once, as flows in both directions."""
    largest = max(len(fleet.on(host)) for host in range(fleet.hosts))
    table = np.full((fleet.hosts, largest), -1, np.int64)
    for host in range(fleet.hosts):
        table[host, : len(fleet.on(host))] = fleet.on(host)
    for met in circle(largest):
        pairs = np.stack([table[:, met[:, 0]].ravel(), table[:, met[:, 1]].ravel()], axis=1)
        pairs = pairs[(pairs >= 0).all(axis=1)]
        if len(pairs):
            yield both_ways(pairs)


def between(fleet: Fleet, plan: Plan) -> Iterator[Pairs]:
    """Host pairs, rail by rail, all rails at once, as flows in both directions.

    Few hosts: all pairs, the same pairs on every rail: hosts - 1 rounds. More: every pair on one rail, (hosts
    - 1) / rails rounds. Many: partners drawn at random for each rail, 2 log2(hosts) rounds.
    """
    rails = range(fleet.rails)
    if fleet.hosts <= plan.full:
        rounds = ([met for _ in rails] for met in circle(fleet.hosts))
    elif fleet.hosts <= plan.cover:
        order = circle(fleet.hosts)
        rounds = (
            [order[(first + rail) % len(order)] for rail in rails]
            for first in range(0, len(order), fleet.rails)
        )
    else:
        random = np.random.default_rng(plan.seed)
        count = math.ceil(2 * math.log2(fleet.hosts))
        rounds = ([drawn(fleet.hosts, random) for _ in rails] for _ in range(count))
    for met in rounds:
        pairs = np.concatenate([fleet.at[pairs, rail] for rail, pairs in enumerate(met)])
        pairs = pairs[(pairs >= 0).all(axis=1)]
        if len(pairs):
            yield both_ways(pairs)


def drawn(count: int, random: np.random.Generator) -> Pairs:
    """One round of random pairs; one sits out when odd."""
    order = random.permutation(count).astype(np.int64)
    return order[: count - count % 2].reshape(-1, 2)


def across(fleet: Fleet, count: int, random: np.random.Generator) -> list[Pairs]:
    """Rounds in which every rank sends to one of its rail and receives from another, all at the same time.

    Each goes a quarter of the fleet away or more in the order of hosts: a cyclic shift, drawn for each rail.
    """
    rails = [ranks for rail in range(fleet.rails) if len(ranks := fleet.rail(rail)) > 1]
    rounds = []
    for _ in range(count):
        flows = []
        for ranks in rails:
            low, high = math.ceil(len(ranks) / 4), math.floor(3 * len(ranks) / 4)
            shift = int(random.integers(low, max(low, high) + 1))
            flows.append(np.stack([ranks, np.roll(ranks, -shift)], axis=1))
        rounds.append(np.concatenate(flows))
    return rounds


def apart(flows: Sequence[tuple[int, int]], fleet: Fleet, most: int) -> list[list[tuple[int, int]]]:
    """Rounds in which each host takes part in one flow at most, `most` flows a round, and of each rail a
    quarter of these (they may share a switch): suspects are asked alone.
    """
    rounds: list[list[tuple[int, int]]] = []
    busy: list[Counter[tuple[str, int]]] = []
    limits = {"host": 1, "rail": max(most // 4, 1), "flows": most}
    for a, b in flows:
        parts = [("host", int(fleet.host[rank])) for rank in (a, b)]
        parts = list(dict.fromkeys([*parts, ("rail", int(fleet.gpu[a])), ("flows", 0)]))
        number = next(
            (n for n, use in enumerate(busy) if all(use[part] < limits[part[0]] for part in parts)), -1
        )
        if number < 0:
            number = len(rounds)
            rounds.append([])
            busy.append(Counter())
        rounds[number].append((a, b))
        busy[number].update(parts)
    return rounds
