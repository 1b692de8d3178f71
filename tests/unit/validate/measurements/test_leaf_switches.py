"""Leaf switches are named by the hosts behind them, in any host order, and nothing else is named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.measurements import leaf_switches
from meshrun.jobs.validate.measurements.leaf_switches import LeafSwitchResult, measure_leaf_switches
from meshrun.jobs.validate.measurements.schedule import all_at_once_rounds, partners
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Seconds
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import topology_of
from meshrun.jobs.validate.verdict import describe_part


class LeafFleet(ToyFleet):
    """leaf: of each host. slow: (leaf, rail) whose uplinks carry `factor` of their hosts' rate."""

    leaf: np.ndarray
    slow: Sequence[tuple[int, int]] = ()
    factor = 0.6

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        ways = np.array([[self.leaf[self.places[rank].host] for rank in flow] for flow in flows])
        rail = np.array([self.places[a].gpu for a, _ in flows])
        out = ways[:, 0] != ways[:, 1]
        rate = np.full(len(flows), 48e9)
        for leaf, gpu in self.slow:
            uplinks = self.factor * 48e9 * (self.leaf == leaf).sum()
            for side in (0, 1):
                through = out & (rail == gpu) & (ways[:, side] == leaf)
                rate[through] = np.minimum(rate[through], uplinks / max(through.sum(), 1))
        return self.noisy((nbytes / rate).tolist(), samples)


def judged(fleet: ToyFleet) -> LeafSwitchResult:
    return measure_leaf_switches(fleet, topology_of(fleet), Plan(), {})


def leaf_fleet(hosts: int, leaf: np.ndarray, slow: Sequence[tuple[int, int]], rails: int = 4) -> LeafFleet:
    fleet = LeafFleet([rails] * hosts)
    fleet.leaf, fleet.slow = leaf, slow
    return fleet


@pytest.mark.parametrize("gpus", [[2] * 8, [1, 2, 3, 2, 1, 1, 1, 1, 2]])
def test_everyone_sends_to_another_and_receives_from_another(gpus: list[int]) -> None:
    fleet = topology_of(ToyFleet(gpus))
    many = [rank for rank in range(fleet.ranks) if len(fleet.rail(int(fleet.gpu[rank]))) > 1]
    for flows in all_at_once_rounds(fleet, 5, np.random.default_rng(0)):
        assert sorted(flows[:, 0].tolist()) == sorted(flows[:, 1].tolist()) == many
        assert (fleet.host[flows[:, 0]] != fleet.host[flows[:, 1]]).all()
        assert (fleet.gpu[flows[:, 0]] == fleet.gpu[flows[:, 1]]).all()


@pytest.mark.parametrize("order", ["in order", "in turn", "at random"])
@pytest.mark.parametrize("count", [4, 6])
def test_a_slow_leaf_is_named_by_its_hosts(order: str, count: int) -> None:
    leaf = np.repeat(np.arange(count), 8)
    if order == "in turn":
        leaf = np.tile(np.arange(count), 8)
    if order == "at random":
        leaf = np.random.default_rng(1).permutation(leaf)
    fleet = leaf_fleet(len(leaf), leaf, [(2, 1)])
    (found,) = judged(fleet).findings
    assert (found.kind, found.gpus) == ("leaf", (1,))
    assert found.hosts == tuple(f"n{host}" for host in np.flatnonzero(leaf == 2))
    assert 0.55 < found.factor < 0.9  # fewer flows through the uplinks get more each


def test_two_leaves_on_two_rails_are_two() -> None:
    leaf = np.repeat(np.arange(5), 6)
    found = judged(leaf_fleet(30, leaf, [(1, 0), (4, 3)])).findings
    assert [(one.gpus, one.hosts[0], len(one.hosts)) for one in found] == [((0,), "n6", 6), ((3,), "n24", 6)]


@pytest.mark.parametrize(
    ("order", "rails"), [("in order", 1), ("in order", 4), ("in turn", 4), ("at random", 4)]
)
def test_of_two_switches_either_is_named(order: str, rails: int) -> None:
    leaf = np.repeat([0, 1], 16)
    if order == "in turn":
        leaf = np.tile([0, 1], 16)
    if order == "at random":
        leaf = np.random.default_rng(1).permutation(leaf)
    fleet = leaf_fleet(32, leaf, [(0, rails // 2)], rails)
    fleet.factor = 0.3
    (found,) = judged(fleet).findings
    sides = [tuple(f"n{host}" for host in np.flatnonzero(leaf == one)) for one in (leaf[0], 1 - leaf[0])]
    assert (found.gpus, found.hosts) == ((rails // 2,), sides[0])
    assert found.instead == (describe_part("leaf", sides[1], (rails // 2,)),)


@pytest.mark.parametrize("oversubscription", [1, 2])
@pytest.mark.parametrize("factor", [0.6, 0.8])
def test_of_two_switches_full_load_shows_a_slow_one(oversubscription: int, factor: float) -> None:
    spec = parse_fleet(f"hosts=16,gpus=8,leaf=8,oversubscription={oversubscription},fault=leaf:9:{factor}")
    for seed in range(4):
        fleet = SimulatedFleet(spec, seed=seed)
        (found,) = measure_leaf_switches(fleet, topology_of(fleet), Plan(seed=seed), {}).findings
        assert (found.gpus, found.hosts) == ((1,), tuple(f"h{host}" for host in range(8)))
        assert found.instead


def test_hosts_that_others_load_hide_no_switch_and_are_not_blamed_with_it() -> None:
    spec = parse_fleet("hosts=48,gpus=8,leaf=8,neighbours=0.05,fault=leaf:9:0.636")
    found = []
    for seed in range(10):
        fleet = SimulatedFleet(spec, seed=seed)
        found += measure_leaf_switches(fleet, topology_of(fleet), Plan(seed=seed), {}).findings
    assert len(found) >= 9
    assert {(one.gpus, one.hosts) for one in found} == {((1,), tuple(f"h{host}" for host in range(8, 16)))}


def test_a_load_that_is_over_costs_a_few_rounds() -> None:
    """What was slow at first is measured over the whole span only if a short look does not clear it."""

    class Loaded(LeafFleet):
        loads = 0

        def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
            self.loads += 1
            self.slow = [(2, 1)] if self.loads <= leaf_switches.ROUNDS else []
            return super().flows(flows, nbytes, samples)

    fleet = Loaded([4] * 32)
    fleet.leaf = np.repeat(np.arange(4), 8)
    assert judged(fleet).findings == []
    assert fleet.loads == leaf_switches.ROUNDS + leaf_switches.QUICK_ROUNDS


def test_slow_uplinks_that_have_no_name_are_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_switches, "slow_together", lambda load, rail: np.zeros(32, bool))
    fleet = leaf_fleet(32, np.repeat(np.arange(4), 8), [(0, 2)])
    fleet.factor = 0.3
    verdict = climb_ladder(fleet, Plan(rungs=("all",)))
    assert verdict.status == "unknown"
    assert "rail 2" in verdict.line


@pytest.mark.parametrize("count", [2, 3, 8, 9, 31])
def test_partners_under_full_load_are_pairs_far_apart(count: int) -> None:
    """A slow flow slows what its two ranks do next; in a longer cycle it would slow them all."""
    random = np.random.default_rng(0)
    for _ in range(20):
        flows = {(int(a), int(b)) for a, b in partners(count, random, "quarter")}
        alone = [flow for flow in flows if flow[::-1] not in flows]
        assert len(alone) == (3 if count % 2 else 0)
        apart = [min((a - b) % count, (b - a) % count) for a, b in flows - set(alone)]
        assert min(apart, default=count) >= count // 4


def test_a_healthy_fleet_and_its_rate() -> None:
    found = judged(leaf_fleet(32, np.repeat(np.arange(4), 8), []))
    assert (found.findings, found.notes, found.failed) == ([], [], set())
    assert found.rate == pytest.approx(48e9, rel=0.02)


def test_nics_that_are_slow_alone_are_no_leaf() -> None:
    fleet = ToyFleet([2] * 16, flow_factor=lambda a, b: 0.6 if {a.rank, b.rank} & {4, 8} else 1.0)
    found = judged(fleet)
    assert found.findings == []
    assert found.notes == ["all: 2 hosts are slow on rail 0, each alone too"]


def test_ranks_that_are_explained_do_not_count() -> None:
    fleet = ToyFleet([2] * 16, flow_factor=lambda a, b: 0.6 if {a.rank, b.rank} & {4, 8} else 1.0)
    found = measure_leaf_switches(fleet, topology_of(fleet), Plan(), {4: [], 8: []})
    assert (found.findings, found.notes) == ([], [])


def test_what_could_not_be_measured_is_told() -> None:
    fleet = ToyFleet([2] * 8, flow_factor=lambda a, b: np.nan if 5 in (a.rank, b.rank) else 1.0)
    found = judged(fleet)
    assert 5 in found.failed
    assert found.findings == []


@pytest.mark.parametrize("oversubscription", [1, 2, 4])
def test_scarce_uplinks_are_no_fault(oversubscription: int) -> None:
    spec = parse_fleet(f"hosts=100,gpus=4,leaf=16,oversubscription={oversubscription}")
    for seed in range(10):
        fleet = SimulatedFleet(spec, seed=seed)
        assert measure_leaf_switches(fleet, topology_of(fleet), Plan(seed=seed), {}).findings == []


def test_a_rank_that_a_finding_explains_hides_no_leaf_switch() -> None:
    """Rank 7 has no flows that count; 0 and 1 are slow with all but each other."""
    rng = np.random.default_rng(2)
    partner = np.array([rng.permutation(8) for _ in range(32)])
    level = rng.normal(0, 0.01, (32, 8))
    level[:, :2] += np.where(partner[:, :2] < 2, 0, 0.5)
    level[(partner == 7) | (np.arange(8) == 7)] = np.nan
    load = leaf_switches.FullLoad({0: level}, {0: partner}, 0.07, 1e-3, 5)
    assert leaf_switches.slow_together(load, 0).tolist() == [True, True, *[False] * 6]
