"""Hosts without NVSwitch, and hosts of several models: what differs in kind is not a sibling."""

from __future__ import annotations

import pytest

from meshrun.jobs.validate.ladder.budget import quick
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan, RungName
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.verdict import Verdict
from meshrun.launch.cli.main import main


def verdict(fleet: str, *rungs: RungName) -> Verdict:
    plan = quick()
    return climb_ladder(SimulatedFleet(parse_fleet(fleet)), Plan(**{**vars(plan), "rungs": rungs}))


@pytest.mark.parametrize("nvlink", ["mesh", "bridge", "none", "switch"])
@pytest.mark.parametrize("hosts", [1, 3, 6])
def test_healthy_hosts_of_any_kind_are_ok(nvlink: str, hosts: int) -> None:
    found = verdict(f"hosts={hosts},gpus=8,seed=2,nvlink={nvlink}", "gpu", "host", "pairs")
    assert (found.status, found.findings) == ("ok", ())


def test_gpus_of_other_models_are_no_siblings() -> None:
    found = verdict("hosts=6,gpus=4,seed=2,models=H200/A100", "gpu", "host", "pairs")
    assert (found.status, found.findings) == ("ok", ())


def test_rings_of_hosts_with_other_models_are_no_siblings() -> None:
    fleet = "hosts=8,gpus=4,seed=2,models=H200/A100"
    found = verdict(fleet, "node", "rails")
    assert (found.status, found.findings) == ("ok", ())


def test_a_slow_rail_is_named_on_hosts_of_two_models() -> None:
    fleet = "hosts=8,gpus=4,seed=2,models=H200/A100,fault=rail:1:0.3"
    (found,) = verdict(fleet, "rails").findings
    assert (found.kind, found.gpus) == ("rail", (1,))


@pytest.mark.parametrize("models", ["A100", "H200/A100"])
def test_a_healthy_fleet_is_held_to_the_rates_of_its_own_links(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = f"hosts=6,gpus=4,seed=2,models={models}"
    assert main(["validate", "--quick", "--simulate", fleet]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("hosts", [8, 16])
def test_a_slow_nic_is_named_among_nics_of_two_models(hosts: int) -> None:
    fleet = f"hosts={hosts},gpus=4,seed=2,models=H200/A100,fault=nic:h3:1:0.6"
    (found,) = verdict(fleet, "host pairs").findings
    assert (found.kind, found.hosts, found.gpus) == ("nic", ("h3",), (1,))


@pytest.mark.parametrize("nvlink", ["mesh", "bridge", "none"])
def test_a_slow_pair_of_gpus_is_named_among_its_kind(nvlink: str) -> None:
    fleet = f"hosts=6,gpus=8,seed=2,nvlink={nvlink},fault=nvpair:h3:0:1:0.6"
    (found,) = verdict(fleet, "pairs").findings
    assert (found.kind, found.hosts, found.gpus) == ("pair", ("h3",), (0, 1))


def test_the_nvlinks_of_a_gpu_in_a_mesh_are_one_part() -> None:
    """It has them to four others; the paths to the other three are healthy."""
    (found,) = verdict("hosts=6,gpus=8,seed=2,nvlink=mesh,fault=nvlink:h3:4:0.6", "pairs").findings
    assert (found.kind, found.hosts, found.gpus) == ("nvlink", ("h3",), (4,))


@pytest.mark.parametrize("nvlink", ["mesh", "none"])
def test_a_pair_across_sockets_is_seen_beside_others_that_share_their_link(nvlink: str) -> None:
    fleet = f"hosts=6,gpus=8,seed=2,nvlink={nvlink},fault=nvpair:h3:2:5:0.8"
    (found,) = verdict(fleet, "pairs").findings
    assert (found.kind, found.hosts, found.gpus) == ("pair", ("h3",), (2, 5))


@pytest.mark.parametrize("gpu", [2, 3])
def test_a_gpu_that_shares_a_pcie_switch_is_named_alone(gpu: int) -> None:
    (found,) = verdict(f"hosts=6,gpus=4,seed=2,pcie=2,fault=pcie:h3:{gpu}:0.7", "host").findings
    assert (found.kind, found.hosts, found.gpus) == ("pcie", ("h3",), (gpu,))
