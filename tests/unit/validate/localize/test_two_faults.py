"""Two faults at once: what one explains does not hide the other, and is not blamed on a third part."""

from __future__ import annotations

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.ladder import Ladder, climb_ladder
from meshrun.jobs.validate.localize.set_cover import explained_rows
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.verdict import Verdict


def climb(words: str) -> Verdict:
    fleet = SimulatedFleet(parse_fleet(words))
    return climb_ladder(fleet, Plan(seed=fleet.spec.seed))


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (  # in different rungs; the ring of host h2 passes the pair
            "nvpair:h2:6:7:0.62",
            "nic:h4:1:0.583",
            [("pair", ("h2",), (6, 7)), ("nic", ("h4",), (1,))],
        ),
        (  # of the NIC's flows, all that the host explains are faster than the NIC would allow
            "receive:h5:1:0.772",
            "host:h5:0.701",
            [("host", ("h5",), ()), ("receive", ("h5",), (1,))],
        ),
        (
            "send:h7:4:0.656",
            "nic:h7:4:0.751",
            [("send", ("h7",), (4,)), ("nic", ("h7",), (4,))],
        ),
        (  # flows that pass both are slowed by both
            "link:h6:h3:0.585",
            "rail:4:0.806",
            [("link", ("h3", "h6"), ()), ("rail", (), (4,))],
        ),
        (  # flows of a NIC that is always slow in one direction are not slow at times
            "send:h3:2:0.522",
            "stall:h1:3:10.0:0.05",
            [("send", ("h3",), (2,)), ("stall", ("h1",), (3,))],
        ),
    ],
)
def test_both_are_named_and_nothing_else(first: str, second: str, named: list[object]) -> None:
    verdict = climb(f"hosts=8,gpus=8,seed=5,fault={first},fault={second}")
    found = [(one.kind, one.hosts, one.gpus) for one in verdict.findings]
    assert sorted(found, key=str) == sorted(named, key=str)
    if first.startswith("send:h7"):  # each by its own factor
        factors = {one.kind: one.factor for one in verdict.findings}
        assert factors["nic"] == pytest.approx(0.751, rel=0.05)
        assert factors["send"] == pytest.approx(0.751 * 0.656, rel=0.05)


def test_what_crosses_a_slow_rail_is_not_blamed_beside_it() -> None:
    """Of two hosts with scarce uplinks, flows across rails are slower, and show no NIC."""
    verdict = climb(
        "hosts=2,gpus=8,seed=5010,noise=0.06,oversubscription=2,ecmp=8,spread=0.02,fault=rail:5:0.732"
    )
    (found,) = verdict.findings
    assert "rail 5" in (found.part.rstrip(":"), *found.instead)


def test_a_slow_core_is_named_once() -> None:
    """All that a rank on a CPU does takes its core."""
    fleet = ToyFleet(
        [4, 4],
        unit="CPU",
        single_rank_factor=lambda what, place: 0.5 if (place.host, place.gpu) == (0, 1) else 1.0,
        flow_factor=lambda a, b: 0.5 if (0, 1) in ((a.host, a.gpu), (b.host, b.gpu)) else 1.0,
    )
    verdict = climb_ladder(fleet)
    assert [(one.kind, one.hosts, one.gpus) for one in verdict.findings] == [("gpu", ("n0",), (1,))]


def test_where_all_is_slow_a_fault_explains_what_is_as_fast_as_itself() -> None:
    """Two hosts: NICs of one at 38 of 48 GB/s, a GPU's PCIe in the other at 35 GB/s: flows at 35 are its."""
    fleet = SimulatedFleet(parse_fleet("hosts=2,gpus=8,seed=3,fault=pcie:h1:4:0.639,fault=host:h0:0.797"))
    verdict = climb_ladder(fleet, Plan(seed=3))
    assert {(one.kind, one.hosts, one.gpus) for one in verdict.findings} == {
        ("pcie", ("h1",), (4,)),
        ("host", ("h0",), ()),
    }


def test_no_measurement_has_nothing_to_explain() -> None:
    fleet = ToyFleet([2, 2])
    table = climb_and_take_table(fleet).of(np.zeros(0, np.int64))
    assert list(explained_rows({0: [(0.3, 1e9)]}, table, 1)) == []


def climb_and_take_table(fleet: ToyFleet):  # type: ignore[no-untyped-def]
    ladder = Ladder(fleet, Plan())
    ladder.measure_rung("gpu")
    return ladder.tables["gpu", "memory"][0]


def test_a_ring_of_two_hosts_does_not_tell_a_rail_from_its_nics() -> None:
    fleet = SimulatedFleet(parse_fleet("hosts=2,gpus=8,seed=3,fault=nic:h1:4:0.7"))
    ladder = Ladder(fleet, Plan(seed=3))
    ladder.measure_rung("rails")
    (found,) = ladder.findings
    assert (found.kind, found.gpus) == ("rail", (4,))
    assert found.instead == ("host h0, GPU 4: its NIC", "host h1, GPU 4: its NIC")
