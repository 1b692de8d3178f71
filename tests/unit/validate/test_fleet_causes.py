"""Faults that one look at a fleet misjudges, on fleets with physics of their own (`fleet_physics`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleet_causes import CONDITIONS, run
from fleet_physics import Episode, Fleet, PhysicalFleet, fair_shares

from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.measurements.inter_node import InterNode
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.topology import topology_of

ONE_EACH = (
    "host receives", "host sends", "both at once", "two rates, NIC", "two rates, host", "shared NICs",
    "healthy, two NIC rates", "healthy, shared NICs", "two rates, host receives",
    "half a rail's leaf, ports", "flaps",
)  # fmt: skip


def test_flows_share_what_others_cannot_use() -> None:
    """Two flows share part 0; one of them is limited to 1 by part 1, so that the other has 3."""
    assert fair_shares(np.array([[0, 0], [1, -1]]), np.array([4.0, 1.0])) == pytest.approx([1, 3])


@pytest.mark.parametrize("condition", ONE_EACH)
@pytest.mark.parametrize("number", [2, 4])
def test_the_cause_is_named(condition: str, number: int) -> None:
    result, _, said, *_ = run(condition, number)
    assert result == "right", said


def test_hosts_that_share_nics_among_hosts_that_do_not() -> None:
    """Of 11 hosts, 8 have two GPUs to a NIC: rails have members of their own."""
    probe: Any = PhysicalFleet(Fleet([8] * 8 + [4] * 3, [48e9] * 11, [4] * 11, 1))
    assert climb_ladder(probe, Plan(rungs=("all",))).findings == ()


@pytest.mark.parametrize("left", [(0.6, 0.6), (0.5, 0.6, 0.75)])
def test_a_few_slow_nics_of_a_rail_are_no_leaf_switch(left: tuple[float, ...]) -> None:
    slow = {
        (way, 8 * host + 2): share for host, share in enumerate(left) for way in ("send", "receive")
    }  # of GPU 2 of the first hosts
    probe: Any = PhysicalFleet(Fleet([8] * 9, [48e9] * 9, [0] * 9, 3, slow=slow))
    found = climb_ladder(probe, Plan(rungs=("host pairs", "rails", "all"))).findings
    assert sorted((one.kind, *one.hosts, *one.gpus) for one in found) == [
        ("nic", f"h{host}", 2) for host in range(len(left))
    ]


@pytest.mark.parametrize(
    ("condition", "number", "hosts"),
    [
        ("others load 20 %", 1, 4),  # one is loaded for 190 s and another comes and goes
        ("others load 20 %", 2, 8),  # several
        ("others load 20 %, --quick", 15, 8),  # one for 120 s, one for 110 s, and one at first
        ("others load 20 %, --quick", 6, 12),  # paths and links of a loaded host
        ("others load 30 %", 4, 8),  # a link of a loaded host
    ],
)
def test_loads_that_outlast_the_first_looks_are_no_faults(condition: str, number: int, hosts: int) -> None:
    result, _, said, *_ = run(condition, number, (hosts,))
    assert result in ("right", "unknown"), said


@pytest.mark.parametrize(
    ("fast", "slow", "kind", "hosts"),
    [
        (2, {(way, gpu): 0.7 for gpu in range(24, 32) for way in ("send", "receive")}, "host", ("h3",)),
        (3, {("link", (3, 4)): 0.7}, "link", ("h3", "h4")),
    ],
)
def test_two_hosts_with_slower_nics_than_the_others(
    fast: int, slow: dict[Any, float], kind: str, hosts: tuple[str, ...]
) -> None:
    """The flows between the two have no siblings but flows to faster NICs."""
    fleet = Fleet([8] * (fast + 2), [48e9] * fast + [24e9] * 2, [0] * (fast + 2), 5)
    plan = Plan(rungs=("host pairs",))
    healthy = climb_ladder(PhysicalFleet(fleet), plan)
    assert healthy.status == "ok"
    assert any("only hosts" in note and f"h{fast} and h{fast + 1}" in note for note in healthy.not_judged)
    found = climb_ladder(PhysicalFleet(replace(fleet, slow=slow)), plan).findings
    assert [(one.kind, one.hosts) for one in found] == [(kind, hosts)]


def test_a_slow_nic_is_no_witness_of_a_load() -> None:
    """Another NIC of a suspect's host tells whether others load the host; not one that was found slow."""
    fleet = Fleet([4] * 4, [48e9] * 4, [0] * 4, 6, slow={("send", 2): 0.6, ("receive", 2): 0.6})
    probe = PhysicalFleet(fleet)
    topology = topology_of(probe)
    flows = InterNode(probe, topology, Plan(), {})
    flows.measure()
    assert flows.retest([("nic", 2)])[1] == [("nic", 2)]
    for gpu in (0, 1, 3):
        for host in (1, 2, 3):
            flows.retest([("path", gpu * topology.ranks + 4 * host + gpu)])
    assert max(level for level, _ in flows.witnessed[0].values()) < Plan().tolerance


@pytest.mark.parametrize(("condition", "number"), [("without a NIC", 0), ("few NICs", 1), ("no NICs", 2)])
def test_rails_of_a_host_that_lacks_nics_are_no_fault(condition: str, number: int) -> None:
    """Its GPUs share those that it has: only rings that share one at the same time would be slower."""
    result, _, said, *_ = run(condition, number)
    assert result == "right", said


def test_a_gpu_that_throttles_later_is_seen_by_a_soak_and_a_note_says_so() -> None:
    fleet = Fleet([8] * 2, [48e9] * 2, [0] * 2, 4, episodes=[Episode("gpu", 3, 30.0, 1e9, 0.7)])
    plan = Plan(rungs=("gpu",))

    def report(soak: float | None) -> Report:
        return measure_simulated(PhysicalFleet(fleet), ValidateOptions(plan, soak=soak), print, print)

    short, long = report(None).verdict, report(40.0).verdict
    assert short.status == "ok"
    assert any("begins later is not seen; --soak 10m" in note for note in short.not_judged)
    assert [(one.kind, one.gpus) for one in long.findings] == [("gpu", (3,))]
    assert not any("begins later" in note for note in long.not_judged)


@pytest.mark.parametrize(("left", "finds"), [(17 / 18, False), (0.9, True)])
def test_a_loss_below_the_tolerance_is_not_found_and_a_note_says_so(left: float, finds: bool) -> None:
    fleet = Fleet([8] * 2, [48e9] * 2, [0] * 2, 4, slow={("nvlink", 3): left}, spread=0.0)
    plan = Plan(rungs=("pairs",))
    verdict = measure_simulated(PhysicalFleet(fleet), ValidateOptions(plan), print, print).verdict
    assert bool(verdict.findings) == finds
    assert any("at 93 % or more of its siblings' rate counts as healthy" in one for one in verdict.not_judged)


@pytest.mark.nightly
@pytest.mark.parametrize("condition", [name for name in CONDITIONS if not name.startswith("others")])
def test_causes_by_condition(condition: str) -> None:
    results = [run(condition, number)[0] for number in range(44)]
    assert results.count("right") >= 0.95 * len(results), results


@pytest.mark.nightly
@pytest.mark.parametrize("condition", [name for name in CONDITIONS if name.startswith("others")])
def test_loads_by_condition(condition: str) -> None:
    results = [run(condition, number)[0] for number in range(44)]
    assert results.count("alarm") <= 0.05 * len(results), results
