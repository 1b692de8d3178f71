"""Several findings of one part become one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshrun.jobs.validate.localize.findings import merge
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import topology_of
from meshrun.jobs.validate.verdict import Evidence, Finding, FindingKind

TOPOLOGY = topology_of(SimulatedFleet(parse_fleet("hosts=4,gpus=4")))


def nic(kind: FindingKind, host: str, gpu: int, factor: float) -> Finding:
    evidence = Evidence("flows", 1e9, 2e9, 10, (), 1.0)
    return Finding(kind, (host,), (gpu,), factor, "host pairs", evidence)


@pytest.mark.parametrize("kind", ["nic", "send", "receive"])
def test_slow_episodes_of_a_slow_nic_are_no_second_fault(kind: FindingKind) -> None:
    slow, flap = nic(kind, "h2", 1, 0.83), nic("flap", "h2", 1, 0.51)
    assert merge([flap, slow], TOPOLOGY) == [slow]


def test_the_flapping_nic_of_another_gpu_stays() -> None:
    slow, flap = nic("nic", "h2", 1, 0.83), nic("flap", "h2", 3, 0.51)
    assert merge([slow, flap], TOPOLOGY) == [slow, flap]


@pytest.mark.parametrize(
    ("hosts", "rail", "stays"), [("h1 h2", 2, False), ("h0 h1", 2, True), ("h1 h2", 3, True)]
)
def test_a_path_over_slow_uplinks_is_no_second_fault(hosts: str, rail: int, stays: bool) -> None:
    leaf = replace(nic("leaf", "h0", 2, 0.84), hosts=("h0", "h1"))
    path = replace(nic("path", "h1", rail, 0.8), hosts=tuple(hosts.split()))
    assert (path in merge([path, leaf], TOPOLOGY)) == stays
