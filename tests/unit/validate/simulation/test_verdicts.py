"""The referee: what it counts as right, by hand, and that its runs are decided by their seeds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scripts import load

from meshrun.jobs.validate.simulation.spec import FORMS, parse_fleet
from meshrun.jobs.validate.verdict import Evidence, Finding

referee = load(Path(__file__).parents[4] / "benchmarks" / "verdicts.py")
FLEET = "hosts=32,gpus=8,leaf=8"


LEAVES = [" ".join(f"h{host}" for host in range(first, first + 8)) for first in (0, 8)]


def found(kind: str, hosts: str, gpus: tuple[int, ...] = (), instead: tuple[str, ...] = ()) -> Finding:
    evidence = Evidence("flows", 1.0, 2.0, 3, (), 1.0)
    return Finding(kind, tuple(hosts.split()), gpus, 0.5, "host pairs", evidence, instead=instead)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "said", "right"),
    [
        ("nic:h3:1:0.6", found("nic", "h3", (1,)), True),
        ("nic:h3:1:0.6", found("nic", "h3", (2,)), False),
        ("nic:h3:1:0.6", found("nic", "h2", (1,)), False),
        ("nic:h3:1:0.6", found("send", "h3", (1,)), False),
        ("nic:h3:1:0.6", found("nic", "h2", (1,), ("host h3, GPU 1: its NIC",)), True),
        ("stall:h3:1:10", found("nic", "h3", (1,)), True),
        ("link:h3:h1:0.6", found("link", "h1 h3"), True),
        ("nvpair:h3:4:2:0.6", found("pair", "h3", (2, 4)), True),
        ("rail:3:0.6", found("rail", "", (3,)), True),
        ("leaf:9:0.6", found("leaf", LEAVES[1], (1,)), True),
        ("leaf:9:0.6", found("leaf", " ".join(f"h{host}" for host in range(8, 15)), (1,)), False),
    ],
)
def test_what_is_right(fault: str, said: Finding, right: bool) -> None:
    fleet = parse_fleet(f"{FLEET},fault={fault}")
    assert referee.named(said, fleet.faults[0], fleet) == right


@pytest.mark.parametrize("other", ["h8 to h15", "h8 to h14"])
def test_of_two_leaf_switches_either_may_be_given(other: str) -> None:
    fleet = parse_fleet(f"{FLEET},fault=leaf:9:0.6")
    said = found("leaf", LEAVES[0], (1,), (f"rail 1, 8 hosts ({other}): their leaf switch",))
    assert referee.named(said, fleet.faults[0], fleet) == (other == "h8 to h15")


def test_a_link_one_way_has_its_direction() -> None:
    fleet = parse_fleet(f"{FLEET},fault=oneway:h3:h1:0.6")
    forth, back = found("link one way", "h3 h1"), found("link one way", "h1 h3")
    assert referee.named(forth, fleet.faults[0], fleet)
    assert not referee.named(back, fleet.faults[0], fleet)


def test_gpus_that_share_a_nic_are_the_nic() -> None:
    fleet = parse_fleet(f"{FLEET},nics=4,fault=nic:h3:1:0.6")
    assert referee.named(found("nic", "h3", (0,)), fleet.faults[0], fleet)
    assert not referee.named(found("nic", "h3", (2,)), fleet.faults[0], fleet)


@pytest.mark.parametrize("kind", [*FORMS, "tcp"])
def test_each_kind_is_drawn_on_any_fleet(kind: str) -> None:
    for words in ("hosts=2,gpus=8", FLEET, "hosts=3,gpus=4,nics=2,nvlink=none"):
        fleet = referee.draw(kind, np.random.default_rng(1), parse_fleet(words))
        replace(fleet, seed=1)  # refuses a fault that is not on this fleet
        assert fleet.faults or fleet.fallback == "tcp"


def test_conditions_are_fleets() -> None:
    for words in referee.CONDITIONS.values():
        parse_fleet(",".join(filter(None, [FLEET, words])))


def test_a_run_is_decided_by_its_seed() -> None:
    one, again, other = (
        {name: value for name, value in asdict(referee.run(task, 4)).items() if name != "analysis_seconds"}
        for task in (("plain", "gpu", 2, 5), ("plain", "gpu", 2, 5), ("plain", "gpu", 2, 6))
    )
    assert one == again
    assert one["result"] == other["result"] == "right"
    assert one["fleet"] != other["fleet"]
