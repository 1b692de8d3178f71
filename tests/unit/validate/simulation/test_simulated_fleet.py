"""The model of a fleet: its formulas by hand, what each fault touches, its noise, and how a fleet is written.

Without noise, and with so many bytes that latency vanishes, seconds give the rates of parts exactly.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshrun.jobs.validate.probe.api import SINGLE_RANK_OPS, Probe, RankPlace
from meshrun.jobs.validate.simulation.fleet import Seconds, SimulatedFleet
from meshrun.jobs.validate.simulation.noise import Noise
from meshrun.jobs.validate.simulation.spec import (
    FORMS,
    SHARES,
    Fault,
    FleetSpec,
    form,
    parse_fault,
    parse_fleet,
    random_fault,
)
from meshrun.runner.errors import UserError

BIG = 1 << 50  # bytes
GB = 1e9
INSIDE, OUTSIDE = 390 * GB, 48 * GB

ALONE = [what for what in SINGLE_RANK_OPS if what != "tensor"]  # a model has no tensor cores


def fleet(text: str, seed: int = 0) -> SimulatedFleet:
    """Flows of this fleet do not wait for each other, so that each shows its own path."""
    return SimulatedFleet(replace(parse_fleet(text), coupling=False), seed)


def flow_rates(fleet: SimulatedFleet, flows: list[tuple[int, int]]) -> list[float]:
    return [float(rate) for rate in BIG / fleet.flows(flows, BIG, 1)[:, 0]]


def busbw(fleet: SimulatedFleet, groups: list[list[int]]) -> list[float]:
    factors = np.array([2 * (len(group) - 1) / len(group) for group in groups])
    return [float(rate) for rate in factors * BIG / fleet.rings(groups, BIG, 1)[:, 0]]


# What it is like


@pytest.mark.parametrize("method", ["single_rank", "flows", "copies", "rings"])
def test_a_fleet_is_asked_as_any_probe(method: str) -> None:
    names = [list(inspect.signature(getattr(kind, method)).parameters) for kind in (Probe, SimulatedFleet)]
    assert names[0] == names[1]


def test_hosts_and_places_with_unequal_hosts() -> None:
    few = fleet("gpus=2/1/3")
    assert list(few.hosts) == ["h0", "h1", "h2"]
    places = [RankPlace(place.rank, place.host, place.gpu) for place in few.places]
    expected = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert places == [RankPlace(rank, host, gpu) for rank, (host, gpu) in enumerate(expected)]


def test_shapes_also_of_nothing() -> None:
    few = fleet("hosts=2,gpus=3")
    assert few.single_rank("memory", 100, 4).shape == (6, 4)
    assert few.flows([(0, 1), (1, 4)], 100, 5).shape == (2, 5)
    assert few.rings([[0, 1], [3, 4, 5]], 100, 6).shape == (2, 6)
    assert few.flows([], 100, 5).shape == few.rings([], 100, 5).shape == (0, 5)
    assert few.flows([(0, 1)], 100, 0).shape == (1, 0)


# Formulas, by hand


def test_each_gpu_alone() -> None:
    few = fleet("hosts=1,gpus=2,noise=0")
    nbytes = 1 << 26
    seconds = {what: few.single_rank(what, nbytes, 1)[1, 0] for what in ALONE}
    assert seconds == pytest.approx(
        {
            "memory": 5e-6 + 2 * nbytes / 3.9e12,
            "product": 5e-6 + 2 * 4096**3 / 50e12,  # 64 MiB hold 4096 x 4096 of 4 bytes
            "to_device": 8e-6 + nbytes / 55e9,
            "to_host": 8e-6 + nbytes / 55e9,
        }
    )


def test_latency_of_a_flow_by_its_way() -> None:
    few = fleet("hosts=3,gpus=2,leaf=2,noise=0")
    ways = [(0, 1), (0, 2), (0, 3), (0, 4)]  # in the host, same leaf, another rail, another group
    alone = [few.flows([way], 0, 1)[0, 0] for way in ways]
    assert alone == pytest.approx([10e-6, 15e-6, 16e-6, 16e-6])


@pytest.mark.parametrize(
    ("flows", "rates"),
    [
        ([(0, 1)], [390]),
        ([(0, 4)], [48]),
        ([(0, 4), (4, 0)], [48, 48]),  # both directions of a NIC at once
        ([(0, 1), (0, 4)], [390, 48]),  # NVLink and the NIC do not share
        ([(0, 4), (0, 8)], [24, 24]),  # one NIC sends both
        ([(0, 8), (4, 8), (5, 9)], [24, 24, 48]),  # one NIC receives two
        ([(0, 1), (0, 2), (3, 2)], [195, 195, 195]),
        ([(0, 4), (0, 8), (0, 9), (4, 8)], [16, 16, 16, 24]),  # 4 -> 8 shares its receiver with one other
    ],
)
def test_flows_share_what_they_cross(flows: list[tuple[int, int]], rates: list[float]) -> None:
    assert flow_rates(fleet("hosts=4,gpus=4,noise=0"), flows) == pytest.approx([rate * GB for rate in rates])


def test_uplinks_are_shared_by_all_that_leaves_a_leaf() -> None:
    half = fleet("hosts=8,gpus=1,leaf=4,oversubscription=2,noise=0")  # 4 x 50 / 2 = 100 GB/s up
    assert flow_rates(half, [(0, 4), (1, 5)]) == pytest.approx([48 * GB] * 2)
    assert flow_rates(half, [(0, 4), (1, 5), (2, 6)]) == pytest.approx([100 / 3 * GB] * 3)
    assert flow_rates(half, [(0, 4), (1, 5), (2, 6), (3, 7)]) == pytest.approx([25 * GB] * 4)
    assert flow_rates(half, [(0, 1), (1, 2), (2, 3), (3, 0)]) == pytest.approx([48 * GB] * 4)
    full = fleet("hosts=8,gpus=1,leaf=4,noise=0")
    assert flow_rates(full, [(0, 4), (1, 5), (2, 6), (3, 7)]) == pytest.approx([48 * GB] * 4)


def test_rails_cross_the_spine_to_each_other_only() -> None:
    narrow = fleet("hosts=2,gpus=2,leaf=2,oversubscription=8,noise=0")  # 2 x 50 / 8 = 12.5 GB/s up
    assert flow_rates(narrow, [(0, 2)]) == pytest.approx([48 * GB])
    assert flow_rates(narrow, [(0, 3)]) == pytest.approx([12.5 * GB])


def test_rings() -> None:
    few = fleet("hosts=2,gpus=4,noise=0")
    inside, both, rail = [0, 1, 2, 3], list(range(8)), [0, 4]
    assert busbw(few, [inside]) == pytest.approx([390 * GB])
    assert busbw(few, [both]) == pytest.approx([48 * GB])  # enters and leaves each host once
    assert busbw(few, [rail, [1, 5]]) == pytest.approx([48 * GB] * 2)
    assert busbw(few, [[0, 4, 1, 5, 2, 6, 3, 7]]) == pytest.approx([48 * GB])
    seconds = few.rings([inside], 1 << 20, 1)[0, 0]
    assert seconds == pytest.approx(5e-6 + 6 * 4e-6 + 1.5 * (1 << 20) / 390e9)
    seconds = few.rings([[0, 1, 4]], 1 << 20, 1)[0, 0]  # hops: NVLink, to another rail, back by the same rail
    assert seconds == pytest.approx(5e-6 + 4 * (4e-6 + 9e-6 + 8e-6) / 3 + 4 / 3 * (1 << 20) / 48e9)
    assert few.rings([[3]], BIG, 1)[0, 0] == pytest.approx(5e-6)


# What a fault touches, and what not: 4 hosts x 3 GPUs in two groups, rank = 3 x host + GPU

FLEET = "hosts=4,gpus=3,leaf=2,noise=0"
QUARTER_PCIE = 55 / 4  # GB/s
Touched = Callable[[int, int], bool]
EFFECTS: list[tuple[str, set[str], Touched, float]] = [
    # fault, what its rank 5 (or all of host 1) does slower alone, flows (sender, receiver), their GB/s
    ("gpu:h1:2:0.25", {"memory", "product"}, lambda a, b: False, 0),
    ("pcie:h1:2:0.25", {"to_device", "to_host"}, lambda a, b: 5 in (a, b) and a // 3 != b // 3, QUARTER_PCIE),
    ("nvlink:h1:2:0.25", set(), lambda a, b: 5 in (a, b) and a // 3 == b // 3, 97.5),
    ("nvpair:h1:0:2:0.25", set(), lambda a, b: {a, b} == {3, 5}, 97.5),
    ("nic:h1:2:0.25", set(), lambda a, b: 5 in (a, b) and a // 3 != b // 3, 12),
    ("flap:h1:2:0.25:1", set(), lambda a, b: 5 in (a, b) and a // 3 != b // 3, 12),
    ("send:h1:2:0.25", set(), lambda a, b: a == 5 and b // 3 != 1, 12),
    ("receive:h1:2:0.25", set(), lambda a, b: b == 5 and a // 3 != 1, 12),
    ("host:h1:0.25", {"to_device", "to_host"}, lambda a, b: (a // 3 == 1) != (b // 3 == 1), 12),
    ("oneway:h1:h3:0.25", set(), lambda a, b: a // 3 == 1 and b // 3 == 3, 12),
    ("all-nics:0.25", set(), lambda a, b: a // 3 != b // 3, 12),
    ("stall:h1:2:4:1", set(), lambda a, b: 5 in (a, b) and a // 3 != b // 3, 12),
    ("link:h1:h3:0.25", set(), lambda a, b: {a // 3, b // 3} == {1, 3}, 12),
    ("rail:2:0.25", set(), lambda a, b: a // 3 != b // 3 and 2 in (a % 3, b % 3), 12),
    # leaf 5: rail 2 of hosts h2 and h3; 25 of 100 GB/s are left towards the spine
    ("leaf:5:0.25", set(), lambda a, b: (a in (8, 11)) != (b in (8, 11)) and a // 3 != b // 3, 25),
]


@pytest.mark.parametrize(("text", "alone", "touched", "rate"), EFFECTS)
def test_a_fault_touches_its_part_only(text: str, alone: set[str], touched: Touched, rate: float) -> None:
    good, bad = fleet(FLEET), fleet(f"{FLEET},fault={text}")
    ranks = range(3, 6) if text.startswith("host") else [5]
    for what in ALONE:
        expected = np.ones((12, 1))
        expected[ranks] = 4 if what in alone else 1
        assert bad.single_rank(what, BIG, 1) / good.single_rank(what, BIG, 1) == pytest.approx(expected)
    pairs = list(itertools.permutations(range(12), 2))
    one_by_one = [flow_rates(bad, [pair])[0] for pair in pairs]
    assert one_by_one == pytest.approx(
        [rate * GB if touched(a, b) else INSIDE if a // 3 == b // 3 else OUTSIDE for a, b in pairs]
    )


@pytest.mark.parametrize(
    ("text", "hosts", "rails"),
    [  # GB/s of the rings of the four hosts, and of the three rails
        ("gpu:h1:2:0.25", [390, 150, 390, 390], [48, 48, 48]),  # its cores cannot sum up faster
        ("gpu:h1:2:0.7", [390, 390, 390, 390], [48, 48, 48]),  # they can still
        ("nvpair:h1:0:2:0.5", [390, 195, 390, 390], [48, 48, 48]),
        ("nvlink:h1:1:0.5", [390, 195, 390, 390], [48, 48, 48]),
        ("receive:h1:2:0.5", [390, 390, 390, 390], [48, 48, 24]),
        ("host:h1:0.5", [390, 390, 390, 390], [24, 24, 24]),
        ("link:h2:h1:0.5", [390, 390, 390, 390], [24, 24, 24]),
        ("link:h0:h2:0.5", [390, 390, 390, 390], [48, 48, 48]),  # not neighbours in the ring
        ("rail:1:0.5", [390, 390, 390, 390], [48, 24, 48]),
        ("leaf:0:0.25", [390, 390, 390, 390], [25, 48, 48]),
    ],
)
def test_what_rings_see_of_a_fault(text: str, hosts: list[float], rails: list[float]) -> None:
    bad = fleet(f"{FLEET},fault={text}")
    in_hosts = [[3 * host + gpu for gpu in range(3)] for host in range(4)]
    in_rails = [[3 * host + gpu for host in range(4)] for gpu in range(3)]
    assert busbw(bad, in_hosts) == pytest.approx([rate * GB for rate in hosts])
    assert busbw(bad, in_rails) == pytest.approx([rate * GB for rate in rails])


def test_lost_uplinks_show_under_load_only() -> None:
    bad = fleet("hosts=8,gpus=1,leaf=4,noise=0,fault=leaf:0:0.6")  # 120 of 200 GB/s
    assert flow_rates(bad, [(0, 4), (1, 5)]) == pytest.approx([48 * GB] * 2)
    assert flow_rates(bad, [(0, 4), (1, 5), (2, 6), (3, 7)]) == pytest.approx([30 * GB] * 4)
    assert flow_rates(bad, [(4, 0), (5, 1), (6, 2), (7, 3)]) == pytest.approx([30 * GB] * 4)


def test_faults_on_one_part_multiply_and_in_a_row_the_slowest_decides() -> None:
    same = fleet(f"{FLEET},fault=nic:h1:2:0.5,fault=send:h1:2:0.5")
    assert flow_rates(same, [(5, 2), (2, 5)]) == pytest.approx([12 * GB, 24 * GB])
    both = fleet(f"{FLEET},fault=send:h1:2:0.5,fault=host:h1:0.5")
    assert flow_rates(both, [(5, 2), (4, 1)]) == pytest.approx([12 * GB, 24 * GB])
    row = fleet(f"{FLEET},fault=nic:h1:2:0.5,fault=link:h0:h1:0.75,fault=rail:2:0.9")
    assert flow_rates(row, [(5, 2)]) == pytest.approx([24 * GB])
    assert flow_rates(row, [(4, 1), (4, 1)]) == pytest.approx([18 * GB] * 2)  # one path, twice
    assert flow_rates(row, [(3, 0), (4, 1), (11, 8)]) == pytest.approx([36 * GB, 36 * GB, 43.2 * GB])
    assert [fault.name for fault in row.spec.faults] == ["nic h1:2", "link h0:h1", "rail 2"]


# How flows of a round wait for each other, as the ranks of the real probe


def test_flows_of_a_cycle_wait_for_its_slowest_if_repeated() -> None:
    text = "hosts=20,gpus=1,leaf=32,noise=0,fault=oneway:h0:h1:0.25"
    cycle = [(rank, (rank + 1) % 20) for rank in range(20)]
    nbytes = 64 << 20  # 16 repeats in a sample
    one, slow = 15e-6 + nbytes / 48e9, 15e-6 + nbytes / 12e9
    seconds = SimulatedFleet(parse_fleet(text)).flows(cycle, nbytes, 1)[:, 0]
    # A flow sees the slow one d flows away in 16 - d of its 16 repeats, on its nearer rank.
    away = [0, *range(1, 10), 10, *range(9, 0, -1)]
    late = [16 - max(distance - 1, 0) for distance in away]
    assert seconds == pytest.approx([(slow * k + one * (16 - k)) / 16 for k in late])


def test_flows_in_pairs_wait_for_the_flow_back_only() -> None:
    text = "hosts=4,gpus=1,leaf=32,noise=0,fault=oneway:h0:h1:0.25"
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2)]
    alone = SimulatedFleet(parse_fleet(f"{text},coupling=off"))
    assert flow_rates(alone, pairs) == pytest.approx([12 * GB, 48 * GB, 48 * GB, 48 * GB])
    assert flow_rates(SimulatedFleet(parse_fleet(text)), pairs) == pytest.approx(
        [12 * GB, 12 * GB, 48 * GB, 48 * GB]
    )
    assert flow_rates(SimulatedFleet(parse_fleet(text)), [(1, 0), (2, 3)]) == pytest.approx([48 * GB] * 2)


# Conditions of real fleets, each by hand


def test_pxn_leaves_through_the_nic_on_the_destinations_rail() -> None:
    text = "hosts=2,gpus=2,leaf=2,noise=0,fault=send:h0:1:0.5"
    flows = [(0, 3), (1, 2)]  # across rails
    assert flow_rates(fleet(text), flows) == pytest.approx([48 * GB, 24 * GB])
    assert flow_rates(fleet(f"{text},pxn=on"), flows) == pytest.approx([24 * GB, 48 * GB])
    assert flow_rates(fleet(f"{text},pxn=on"), [(0, 2), (1, 3)]) == pytest.approx([48 * GB, 24 * GB])


def test_hashed_paths_collide_for_good() -> None:
    some = fleet("hosts=16,gpus=1,leaf=8,ecmp=8,noise=0", seed=1)  # a path of 50 GB/s for each hash
    flows = [(rank, rank + 8) for rank in range(8)]
    rates = flow_rates(some, flows)
    shares = np.array([48, 25, 50 / 3, 12.5, 10, 50 / 6, 50 / 7]) * GB
    assert all(np.isclose(rate, shares, rtol=1e-6).any() for rate in rates)
    assert min(rates) < 26 * GB
    assert flow_rates(some, flows) == rates
    assert [flow_rates(some, [flow])[0] for flow in flows] == pytest.approx([48 * GB] * 8)
    assert flow_rates(fleet("hosts=16,gpus=1,leaf=8,ecmp=8,noise=0", seed=2), flows) != rates


def test_several_gpus_share_a_nic_and_a_gpu_has_several() -> None:
    half = fleet("hosts=2,gpus=4,nics=2,noise=0,fault=nic:h1:3:0.5")
    assert flow_rates(half, [(0, 4)]) == pytest.approx([48 * GB])
    assert flow_rates(half, [(0, 4), (1, 5)]) == pytest.approx([24 * GB] * 2)
    assert flow_rates(half, [(0, 4), (2, 6)]) == pytest.approx([48 * GB, 24 * GB])  # GPU 2 has GPU 3's NIC
    assert flow_rates(fleet("hosts=2,gpus=1,nics=2,noise=0,leaf=2"), [(0, 1)]) == pytest.approx([55 * GB])


def test_gpus_behind_one_pcie_switch_share_its_link() -> None:
    rates = BIG / fleet("hosts=1,gpus=6,pcie=4,noise=0").single_rank("to_host", BIG, 1)[:, 0]
    assert rates == pytest.approx([55 / 4 * GB] * 4 + [55 / 2 * GB] * 2)


@pytest.mark.parametrize(
    ("nvlink", "flows", "rates"),
    [
        ("switch", [(0, 1)], [390]),
        ("mesh", [(0, 1), (0, 2), (0, 4)], [44, 22, 44]),
        ("mesh", [(0, 5), (1, 6), (2, 7), (3, 4)], [9] * 4),  # between the sockets together
        ("bridge", [(0, 1), (2, 3)], [90, 90]),
        ("bridge", [(1, 2)], [20]),
        ("none", [(0, 1), (0, 4)], [20, 12]),
        ("none", [(4, 0), (5, 1), (6, 2), (7, 3), (0, 4)], [9, 9, 9, 9, 12]),
    ],
)
def test_hosts_without_nvswitch(nvlink: str, flows: list[tuple[int, int]], rates: list[float]) -> None:
    some = fleet(f"hosts=1,gpus=8,noise=0,nvlink={nvlink}")
    assert flow_rates(some, flows) == pytest.approx([rate * GB for rate in rates])


def test_slow_nvlinks_of_a_mesh() -> None:
    some = fleet("hosts=2,gpus=8,noise=0,nvlink=mesh,fault=nvlink:h1:1:0.5")
    flows = [(8, 9), (9, 11), (8, 11), (0, 1), (9, 14)]
    rates = [flow_rates(some, [flow])[0] for flow in flows]
    assert rates == pytest.approx([22 * GB, 11 * GB, 44 * GB, 44 * GB, 12 * GB])


def test_places_have_the_kinds_of_their_links_nics_and_gpus() -> None:
    some = fleet("hosts=2,gpus=4,nics=2,nvlink=bridge,models=H200/A100")
    first, last = some.places[0], some.places[-1]
    assert first.paths == ("X", "NV4", "SYS", "SYS")
    assert last.paths == ("SYS", "SYS", "NV4", "X")
    assert [place.nic for place in some.places[:4]] == ["nic0", "nic0", "nic2", "nic2"]
    assert (first.model, last.model) == ("NVIDIA H200 NVL", "NVIDIA A100 80GB PCIe")


def test_an_nvlink_domain_of_several_hosts() -> None:
    some = fleet("hosts=4,gpus=2,domain=2,noise=0,fault=nic:h0:0:0.5")
    assert flow_rates(some, [(0, 2), (1, 5)]) == pytest.approx([390 * GB, 48 * GB])
    assert flow_rates(some, [(0, 4)]) == pytest.approx([24 * GB])


def test_models_of_gpus_host_by_host() -> None:
    some = fleet("hosts=3,gpus=1,models=H200/A100,noise=0")
    rates = 2 * BIG / some.single_rank("memory", BIG, 1)[:, 0]
    assert rates == pytest.approx([3.9e12, 1.6e12, 3.9e12])
    assert flow_rates(some, [(0, 1)]) == pytest.approx([24 * GB])
    assert flow_rates(some, [(0, 2)]) == pytest.approx([48 * GB])


def test_a_fleet_fallen_back_to_tcp() -> None:
    some = fleet("hosts=2,gpus=1,fallback=tcp,noise=0")
    assert flow_rates(some, [(0, 1)]) == pytest.approx([1.2 * GB])
    assert some.flows([(0, 1)], 0, 1)[0, 0] == pytest.approx(60e-6)


def test_spread_and_drift_by_themselves() -> None:
    some = fleet("hosts=64,gpus=8,noise=0,spread=0.03,drift=0")
    rates = np.array([BIG / some.single_rank("product", BIG, 1)[:, 0] for _ in range(2)])
    assert rates[0].std() / rates[0].mean() == pytest.approx(0.03, rel=0.15)
    assert (rates[0] == rates[1]).all()
    some = fleet("hosts=64,gpus=8,noise=0,spread=0,drift=0.02")
    rates = np.array([BIG / some.single_rank("product", BIG, 1)[:, 0] for _ in range(2)])
    assert rates[0].std() / rates[0].mean() == pytest.approx(0.02 * 2**0.5, rel=0.25)
    assert 0 < np.abs(rates[1] / rates[0] - 1).mean() < 0.02


def test_noise_of_a_host_is_common_to_its_gpus() -> None:
    seconds = fleet("hosts=2,gpus=4,noise=0,hostnoise=0.1").single_rank("memory", BIG, 4000)
    assert seconds[0].std() / seconds[0].mean() == pytest.approx(0.1, rel=0.1)
    assert (seconds[:4] == seconds[0]).all()
    assert abs(np.corrcoef(seconds[0], seconds[4])[0, 1]) < 0.1


def test_stalls_are_calls_of_a_sample() -> None:
    nbytes = 64 << 20  # 16 calls
    bad = fleet("hosts=2,gpus=1,noise=0,fault=stall:h1:0:10:0.05")
    usual = fleet("hosts=2,gpus=1,noise=0").flows([(0, 1)], nbytes, 1)[0, 0]
    seconds = bad.flows([(0, 1)], nbytes, 4000)[0]
    assert seconds.min() == pytest.approx(usual)
    assert (seconds < 1.01 * usual).mean() == pytest.approx(0.95**16, rel=0.1)
    assert seconds.mean() / usual == pytest.approx(1.45, rel=0.03)


def test_neighbours_load_parts_for_seconds() -> None:
    some = fleet("hosts=200,gpus=1,leaf=200,noise=0,neighbours=0.1")
    flows = [(rank, rank + 1) for rank in range(0, 200, 2)]

    def slow() -> np.ndarray:
        return BIG / some.flows(flows, BIG, 1)[:, 0] < 47 * GB

    some.now, loaded = 0.0, []
    for second in range(400):  # the measurements take no time of their own here
        some.now = float(second)
        loaded.append(slow())
    states = np.array(loaded)
    assert states.mean() == pytest.approx(1 - 0.9**2, rel=0.15)  # either end is loaded
    ends = (states[:-1] & ~states[1:]).sum() / states[:-1].sum()
    assert ends == pytest.approx(1 - np.exp(-1 / 4), rel=0.25)  # after 4 seconds


def test_the_models_clock() -> None:
    some = fleet("hosts=2,gpus=1,noise=0")
    nbytes = 64 << 20
    once = some.flows([(0, 1)], nbytes, 1)[0, 0]
    before = some.now
    some.flows([(0, 1)], nbytes, 5)
    assert some.now - before == pytest.approx(20e-3 + 5 * (16 * once + 100e-6))
    some.wait(20)
    assert some.now - before > 20


# Noise


def test_the_same_seed_gives_the_same_numbers() -> None:
    text = "hosts=4,gpus=2,leaf=2,fault=flap:h1:0:0.5"

    def measure(seed: int) -> list[Seconds]:
        some = fleet(text, seed)
        return [
            some.single_rank("memory", 1000, 3),
            some.flows([(0, 4)], 1000, 3),
            some.rings([[0, 2]], 1000, 3),
        ]

    for one, again, other in zip(measure(7), measure(7), measure(8), strict=True):
        assert (one == again).all()
        assert (one != other).any()
    spec = parse_fleet(f"{text},seed=7")
    assert (SimulatedFleet(spec).single_rank("memory", 1000, 3) == measure(7)[0]).all()


def test_noise_has_the_deviation_asked_for_and_a_tail_above() -> None:
    seconds = fleet("hosts=2,gpus=8,noise=0.03").single_rank("to_host", BIG, 20_000)
    relative = seconds / np.median(seconds, axis=1, keepdims=True)
    usual = relative[relative < 1.2]
    assert usual.std() / usual.mean() == pytest.approx(0.03, rel=0.05)
    assert ((usual - usual.mean()) ** 3).mean() / usual.std() ** 3 == pytest.approx(2 / 2**0.5, rel=0.1)
    assert (relative >= 1.2).mean() == pytest.approx(1 / 300 + 1 / 3000, rel=0.15)
    assert 2.5 < relative.max() < 3.5
    assert relative.min() > 1 - 0.03 * 2**0.5


def test_sometimes_a_whole_host_is_late() -> None:
    seconds = fleet("hosts=2,gpus=8").single_rank("to_device", BIG, 20_000)
    late = (seconds / np.median(seconds, axis=1, keepdims=True) > 1.15).reshape(2, 8, -1).sum(axis=1)
    assert (late == 8).mean() == pytest.approx(1 / 3000, rel=0.6)


def test_no_two_gpus_are_equal_and_they_stay_so_but_for_their_temperature() -> None:
    some = fleet("hosts=32,gpus=8")
    rates = np.array([BIG / np.median(some.single_rank("product", BIG, 999), axis=1) for _ in range(12)])
    assert rates[0].std() / rates[0].mean() == pytest.approx(0.01, rel=0.3)
    step = np.abs(rates[1] / rates[0] - 1).mean()
    assert 0.0003 < 1.5 * step < np.abs(rates[-1] / rates[0] - 1).mean() < 0.01
    assert np.corrcoef(rates[0], rates[1])[0, 1] > np.corrcoef(rates[0], rates[-1])[0, 1] > 0.5


def test_a_busy_fabric_is_busy_for_all_but_not_inside_hosts() -> None:
    some = fleet("hosts=400,gpus=2,leaf=400")
    outside = some.flows([(rank, rank + 2) for rank in range(0, 798, 2)], BIG, 200)
    inside = some.flows([(rank, rank + 1) for rank in range(0, 798, 2)], BIG, 200)
    together = [np.median(seconds, axis=0).std() / np.median(seconds) for seconds in (outside, inside)]
    assert together[0] > 0.01
    assert together[1] < 0.005


def test_collisions_hit_other_flows_each_round_and_take_half_at_most() -> None:
    noise = Noise(0.03, np.random.default_rng(1), 1, 1)
    ports = np.arange(32 * 16)
    leaf = ports // 32
    rounds = np.array([noise.collisions(leaf, np.roll(leaf, 32), 32) for _ in range(200)])
    assert 0.5 <= rounds.min() < 0.55
    assert rounds.max() == 1
    assert 0.05 < (rounds < 1).mean() < 0.15
    assert (rounds < 1).mean(axis=0).max() < 0.3  # no flow is hit by construction
    lonely = noise.collisions(np.arange(16), np.roll(np.arange(16), 1), 32)
    assert (lonely == 1).all()


def test_flows_that_stay_below_the_spine_do_not_collide() -> None:
    some = fleet("hosts=64,gpus=1,leaf=32,noise=0.000001")
    usual = BIG / OUTSIDE * 1.001

    def hit(distance: int) -> float:
        flows = [(host, (host + distance) % 32 + 32 * (distance == 32)) for host in range(32)]
        rounds = [np.median(some.flows(flows, BIG, 9), axis=1) for _ in range(50)]
        return float((np.array(rounds) > usual).mean())

    assert hit(1) == 0
    assert 0.05 < hit(32) < 0.15


@pytest.mark.parametrize(("share", "calls"), [(0.3, 1), (0.3, 20_000), (0.8, 1), (0.97, 1)])
def test_a_flapping_nic_is_slow_in_episodes_that_cross_calls(share: float, calls: int) -> None:
    bad = fleet(f"hosts=2,gpus=1,noise=0,fault=flap:h1:0:0.5:{share}", seed=3)
    samples = 20_000 // calls
    seconds = np.concatenate([bad.flows([(0, 1)], BIG, samples)[0] for _ in range(calls)])
    slow = seconds > 1.5 * BIG / OUTSIDE
    assert seconds[slow] == pytest.approx(2 * BIG / OUTSIDE)
    assert seconds[~slow] == pytest.approx(BIG / OUTSIDE)
    assert slow.mean() == pytest.approx(share, rel=0.15)
    episodes = np.count_nonzero(slow[1:] & ~slow[:-1])
    assert slow.sum() / episodes == pytest.approx(max(8, share / (1 - share)), rel=0.2)


def test_flapping_nics_flap_each_for_itself() -> None:
    bad = fleet("hosts=4,gpus=1,noise=0,fault=flap:h0:0:0.5:0.5,fault=flap:h1:0:0.8:0.5")
    rates = BIG / bad.flows([(0, 2), (1, 3)], BIG, 4000) / OUTSIDE
    seen = {(round(first, 3), round(second, 3)) for first, second in rates.T}
    assert seen == {(1, 1), (0.5, 1), (1, 0.8), (0.5, 0.8)}


# How a fleet is written


def test_a_fleet_is_read_with_all_its_words() -> None:
    spec = parse_fleet(
        "hosts=3,gpus=8/8/4,noise=0.05,seed=9,leaf=2,oversubscription=2,fault=nic:h2:3:0.6,fault=flap:h0:1:0.5"
    )
    assert spec == FleetSpec(
        gpus=(8, 8, 4),
        faults=(Fault("nic", (2, 3), 0.6), Fault("flap", (0, 1), 0.5, share=0.3)),
        noise=0.05,
        seed=9,
        leaf=2,
        oversubscription=2.0,
    )
    assert parse_fleet("hosts=2").gpus == (8, 8)
    assert parse_fleet("gpus=4/4") == parse_fleet("hosts=2,gpus=4")


def test_all_keys_are_written_and_read_again() -> None:
    text = (
        "gpus=4/4,coupling=off,ecmp=4,spread=0.02,drift=0.0,hostnoise=0.1,neighbours=0.05,nics=2,pcie=2,"
        "nvlink=mesh,domain=2,models=H200/A100,fallback=tcp"
    )
    spec = parse_fleet(text)
    assert (spec.coupling, spec.drift, spec.models) == (False, 0.0, ("H200", "A100"))
    assert parse_fleet(str(spec)) == spec
    spec = parse_fleet("hosts=2,pxn=on,nvlink=switch")
    assert spec.pxn
    assert parse_fleet(str(spec)) == spec


def test_a_fleet_from_a_file(tmp_path: Path) -> None:
    words = parse_fleet("gpus=8/4,noise=0.05,pxn=on,fault=nic:h0:3:0.6,fault=all-nics:0.5")
    path = tmp_path / "fleet.json"
    path.write_text('{"gpus": [8, 4], "noise": 0.05, "pxn": true, "fault": ["nic:h0:3:0.6", "all-nics:0.5"]}')
    assert parse_fleet(str(path)) == words
    path.write_text('{"hosts": 4, "oversubscribtion": 2}')
    with pytest.raises(UserError, match="Try: oversubscription="):
        parse_fleet(str(path))
    refused = [("{", "not valid json"), ("[1]", "not a table of keys")]
    for text, said in [*refused, ('{"hosts": 2, "gpus": 8, "hosts": 3}', "not valid json: hosts twice")]:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            parse_fleet(str(path))
    with pytest.raises(UserError, match="cannot read the fleet"):
        parse_fleet(str(tmp_path / "no.json"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_a_fleet_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('hosts = 2\nmodels = ["H200", "H100"]\nfault = ["oneway:h0:h1:0.5"]\n')
    assert parse_fleet(str(path)) == parse_fleet("hosts=2,models=H200/H100,fault=oneway:h0:h1:0.5")


@pytest.mark.parametrize("kind", FORMS)
def test_what_is_written_is_read_again(kind: str) -> None:
    fault = Fault(
        kind,
        tuple(range(1, 1 + len(FORMS[kind]))),
        8.5 if kind == "stall" else 0.625,
        0.25 if kind in SHARES else 1.0,
    )
    assert parse_fault(str(fault)) == fault
    spec = replace(parse_fleet("gpus=8/4/8,noise=0.015"), faults=(fault,))
    assert parse_fleet(str(spec)) == spec
    assert form(kind).startswith(f"{kind}:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["unknown key", "hosts=4"]),
        ("gpus=8", ["number of hosts", "hosts=4,gpus=8"]),
        ("host=8", ["unknown key", "'host=8'", "Try: hosts=..."]),
        ("hosts", ["KEY=VALUE", "got 'hosts'"]),
        ("hosts=2,hosts=3", ["hosts twice"]),
        ("hosts=0", ["hosts", "got '0'", "a whole number from 1"]),
        ("hosts=many", ["got 'many'"]),
        ("hosts=2.5", ["got '2.5'"]),
        ("hosts=3,gpus=8/8", ["gpus=8/8", "got 2", "expected 3"]),
        ("gpus=8/0", ["gpus", "got '0'"]),
        ("hosts=2,noise=-0.1", ["noise", "got '-0.1'", "a number from 0 to 0.5"]),
        ("hosts=2,noise=nan", ["got 'nan'"]),
        ("hosts=2,seed=-1", ["seed", "got '-1'"]),
        ("hosts=2,oversubscription=0.5", ["oversubscription", "from 1"]),
        ("hosts=2,fault=receives:h1:0:0.6", ["unknown kind", "'receives'", "Try: receive:HOST:GPU:FACTOR"]),
        ("hosts=2,fault=nic:h1:0", ["got 3", "expected nic:HOST:GPU:FACTOR"]),
        ("hosts=2,fault=nic:h1:0:0.6:0.3", ["expected nic:HOST:GPU:FACTOR"]),
        ("hosts=2,fault=flap:h1:0:0.6:0.3:1", ["expected flap:HOST:GPU:FACTOR[:SHARE]"]),
        ("hosts=2,fault=nic:1:0:0.6", ["got '1'", "such as h0"]),
        ("hosts=2,fault=nic:h1:x:0.6", ["got 'x'"]),
        ("hosts=2,fault=nic:h2:0:0.6", ["got h2", "expected h0 to h1"]),
        ("gpus=8/4,fault=nic:h1:4:0.6", ["got GPU 4", "expected 0 to 3 on h1"]),
        ("gpus=8/4,fault=rail:8:0.6", ["got GPU 8", "expected 0 to 7"]),
        ("hosts=3,leaf=2,fault=leaf:16:0.6", ["got leaf 16", "expected 0 to 15 (2 groups x 8 rails)"]),
        ("hosts=2,fault=link:h1:h1:0.6", ["one of the hosts twice"]),
        ("hosts=2,fault=nvpair:h1:3:3:0.6", ["one of the GPUs twice"]),
        ("hosts=2,fault=nvlink:h1:3:0.6,nvlink=none", ["no such part", "got nvlink=none", "mesh or bridge"]),
        ("hosts=2,fault=host:h1:0", ["got '0'", "more than 0, at most 1"]),
        ("hosts=2,fault=host:h1:60%", ["got '60%'", "more than 0"]),
        ("hosts=2,fault=host:h1:1.5", ["got '1.5'"]),
        ("hosts=2,fault=host:h1:nan", ["got 'nan'"]),
        ("hosts=2,fault=flap:h1:0:0.5:0", ["got '0'"]),
        ("hosts=2,fault=stall:h1:0:0.5", ["got '0.5'", "more than 1", "10 times as long"]),
        ("hosts=2,fault=oneway:h1:h1:0.5", ["one of the hosts twice"]),
        (
            "hosts=2,nvlink=meshes",
            ["nvlink", "got 'meshes'", "switch, mesh, bridge, none", "Try: nvlink=mesh"],
        ),
        ("hosts=2,neighbors=0.1", ["unknown key", "Try: neighbours=..."]),
        ("hosts=2,pxn=yes", ["pxn", "on, off"]),
        ("hosts=2,pxn=on,nvlink=none", ["pxn=on has no effect", "got nvlink=none", "expected nvlink=switch"]),
        ("hosts=2,nvlink=mesh,pxn=on", ["pxn=on has no effect", "got nvlink=mesh", "expected nvlink=switch"]),
        ("hosts=2,models=H200/A101", ["models", "got 'A101'", "Try: models=A100"]),
    ],
)
def test_bad_text_is_refused_with_what_to_write(text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        parse_fleet(text)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("text", ["hosts=2,gpus=1", "gpus=8/8/4", "hosts=512", "hosts=1,gpus=8"])
def test_random_faults_are_such_as_the_fleet_can_have(text: str) -> None:
    spec, rng = parse_fleet(text), np.random.default_rng(5)
    faults = [random_fault(rng, spec) for _ in range(3000)]
    replace(spec, faults=tuple(faults))  # refuses any that is not on this fleet
    factors = np.array([fault.factor for fault in faults])
    assert 0.5 <= factors.min() < 0.51
    assert 0.84 < factors.max() <= 0.85
    kinds = [fault.kind.replace("receive", "send") for fault in faults]
    expected = {"gpu", "host"} if spec.hosts == 1 else {"gpu", "host", "link", "nic", "flap", "send"}
    shares = {kind: kinds.count(kind) / len(kinds) for kind in expected}
    assert set(kinds) == expected
    assert shares == pytest.approx(dict.fromkeys(expected, 1 / len(expected)), rel=0.2)
    assert {fault.gpus[0] for fault in faults if fault.gpus} == set(range(spec.rails))
    assert random_fault(np.random.default_rng(1), spec) == random_fault(np.random.default_rng(1), spec)
