"""Rounds of flows."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.measurements.schedule import (
    both_ways,
    inter_node_rounds,
    intra_node_rounds,
    isolated_rounds,
    matched_rounds,
    round_robin,
    split_round,
    turns_of_rings,
)
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import topology_of


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64])
def test_the_circle_lets_every_two_meet_once(count: int) -> None:
    rounds = round_robin(count)
    assert len(rounds) == count - 1 + count % 2
    met = [tuple(sorted(pair)) for one in rounds for pair in one.tolist()]
    assert sorted(met) == list(combinations(range(count), 2))
    for one in rounds:
        assert len(set(one.ravel().tolist())) == 2 * len(one) == count - count % 2


@pytest.mark.parametrize("count", [0, 1])
def test_one_alone_meets_nobody(count: int) -> None:
    assert round_robin(count) == []


@pytest.mark.parametrize("gpus", [[8], [1, 2, 3], [4, 4, 4], [1, 1]])
def test_inside_every_two_gpus_of_a_host_meet_in_both_directions(gpus: list[int]) -> None:
    fleet = topology_of(ToyFleet(gpus))
    flows = [tuple(flow) for one in intra_node_rounds(fleet) for flow in one.tolist()]
    wanted = [
        (a, b)
        for a in range(fleet.ranks)
        for b in range(fleet.ranks)
        if a != b and fleet.host[a] == fleet.host[b]
    ]
    assert sorted(flows) == wanted


@pytest.mark.parametrize("gpus", [[8, 8], [2, 3, 1], [2] * 7])
def test_few_hosts_meet_on_every_rail(gpus: list[int]) -> None:
    fleet = topology_of(ToyFleet(gpus))
    flows = [tuple(flow) for one in inter_node_rounds(fleet, Plan()) for flow in one.tolist()]
    wanted = [
        (a, b)
        for a in range(fleet.ranks)
        for b in range(fleet.ranks)
        if fleet.host[a] != fleet.host[b] and fleet.gpu[a] == fleet.gpu[b]
    ]
    assert sorted(flows) == wanted


def test_more_hosts_meet_on_one_rail_each() -> None:
    fleet = topology_of(ToyFleet([4] * 17))
    rounds = list(inter_node_rounds(fleet, Plan(full_mesh_hosts=16)))
    assert len(rounds) == 5  # 17 rounds of the circle, on 4 rails
    pairs = {tuple(sorted(fleet.host[flow].tolist())) for one in rounds for flow in one}
    assert pairs == set(combinations(range(17), 2))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_part_of_a_split_round_loads_every_rail_alike(count: int) -> None:
    """Rails have uplinks of their own, which all flows of one rail would share as those of the round do."""
    fleet = topology_of(ToyFleet([4] * 32))
    for one in inter_node_rounds(fleet, Plan(full_mesh_hosts=16)):
        for part in split_round(one, fleet, count):
            flows = np.bincount(fleet.gpu[part[:, 0]], minlength=4)
            assert flows.min() >= 32 // count - 2
            assert flows.max() <= 32 // count + 2


def test_many_hosts_need_rounds_like_the_logarithm_of_their_number() -> None:
    fleet = topology_of(ToyFleet([2] * 256))
    rounds = list(inter_node_rounds(fleet, Plan(full_mesh_hosts=4, all_pairs_hosts=8)))
    assert len(rounds) == 16
    for one in rounds:  # each rank sends to one and receives from one
        assert sorted(one[:, 0].tolist()) == sorted(one[:, 1].tolist()) == list(range(512))


def test_apart_is_one_flow_a_host() -> None:
    fleet = topology_of(ToyFleet([2] * 6))
    flows = [(a, b) for a in range(12) for b in range(12) if fleet.host[a] != fleet.host[b]]
    rounds = isolated_rounds(flows, fleet, 2)
    assert sorted(flow for one in rounds for flow in one) == flows
    for one in rounds:
        hosts = [int(fleet.host[rank]) for flow in one for rank in flow]
        assert len(hosts) == len(set(hosts)) <= 4


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize(("ranks", "count"), [(8, 5), (64, 300), (6, 15)])
def test_matched_rounds_have_each_pair_once_and_each_place_once_a_round(
    ranks: int, count: int, shared: int
) -> None:
    random = np.random.default_rng(1)
    flows = np.array([random.choice(ranks, 2, replace=False) for _ in range(count)])
    place = np.arange(ranks) // shared
    rounds = list(matched_rounds(both_ways(flows), place, random))
    for pairs in rounds:
        used = [one for pair in place[pairs].tolist() for one in set(pair)]
        assert len(set(used)) == len(used)
    found = [tuple(pair) for pairs in rounds for pair in pairs.tolist()]
    assert sorted(found) == sorted({tuple(sorted(flow)) for flow in flows.tolist()})
    most = max(np.bincount([one for pair in place[found].tolist() for one in set(pair)]))
    assert most <= len(rounds) <= 2 * most


@pytest.mark.parametrize("hosts", [24, 128])
def test_a_host_meets_its_neighbours_at_different_times(hosts: int) -> None:
    """One load of a few rounds must not slow all flows between a host and those behind its switch."""
    topology = topology_of(ToyFleet([8] * hosts))
    rounds = list(inter_node_rounds(topology, Plan()))
    for host in (0, 5, hosts - 1):
        near = [other for other in range(host // 8 * 8, host // 8 * 8 + 8) if other != host]
        met = [
            {
                number
                for number, flows in enumerate(rounds)
                if (topology.host[flows] == [host, other]).all(axis=1).any()
            }
            for other in near
        ]
        assert all(met)
        assert len(set.union(*met)) >= 4
        first, last = min(set.union(*met)), max(set.union(*met))
        assert last - first >= len(rounds) / 3


@pytest.mark.parametrize(
    ("nics", "turns"),
    [
        (((0, 1, 2, 3), (0, 1, 2, 3)), [0, 0, 0, 0]),  # one each
        (((0, 0, 1, 1), (0, 0, 1, 1)), [0, 0, 0, 0]),  # all share alike
        (((0, 1, 2, 3), (0, 0, 2, 3)), [0, 1, 0, 0]),  # GPU 1 of the second host uses GPU 0's
        (((0, 1, 2, 3), (0, 0, 0, 3)), [0, 1, 2, 0]),
        (((0, 0, 2, 3), (0, 1, 1, 3)), [0, 1, 0, 0]),
    ],
)
def test_rings_that_would_share_nics_take_turns(nics: tuple[tuple[int, ...], ...], turns: list[int]) -> None:
    fleet = ToyFleet((4, 4))
    fleet.places = [replace(place, nic=f"mlx5_{nics[place.host][place.gpu]}") for place in fleet.places]
    topology = topology_of(fleet)
    rings = [topology.rail(gpu) for gpu in range(topology.rails)]
    assert turns_of_rings(rings, topology).tolist() == turns
