"""Hardware limits of sample machines, calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshrun
from meshrun.jobs.validate.health import hardware_limits
from meshrun.jobs.validate.health.hardware_limits import NominalRate, RankFacts, compute_limits, gather_facts
from meshrun.jobs.validate.health.known_rates import known_rates, with_shares
from meshrun.jobs.validate.plan import RUNGS
from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.jobs.validate.report.model import HardwareLimit
from meshrun.runner.system.links import network_rate, nics

GB = 1e9
NONE = NominalRate(None, "NVML: no active NVLink")
CPU = NominalRate(None, "computes on a CPU")
H200 = RankFacts(
    memory=NominalRate(4.8e12, "memory clock x bus width"),
    nvlink=NominalRate(450 * GB, "NVML: 18 active NVLinks of 25 GB/s"),
    pcie=NominalRate(63 * GB, "NVML: PCIe generation 5, x16"),
    network=NominalRate(50 * GB, "sysfs: 8 ports, 50 GB/s each, shared by 8 rank(s)"),
    nvlinks=18,
    capability=90,
)
L4 = RankFacts(
    memory=NominalRate(300 * GB, "memory clock x bus width"),
    nvlink=NONE,
    pcie=NominalRate(31.5 * GB, "NVML: PCIe generation 4, x16"),
    network=NominalRate(3.125 * GB, "sysfs: eth0"),
    capability=89,
)
CPUS = RankFacts(CPU, CPU, CPU, NominalRate(12.5 * GB, "sysfs: eth0"))


def fleet(*hosts: list[RankFacts]) -> dict[tuple[str, str], HardwareLimit]:
    places = [
        (RankPlace(0, host, gpu), one)
        for host, members in enumerate(hosts)
        for gpu, one in enumerate(members)
    ]
    numbered = [replace(place, rank=rank) for rank, (place, _) in enumerate(places)]
    found = compute_limits([one for _, one in places], numbered)
    assert [one.rung for one in found] == sorted((one.rung for one in found), key=RUNGS.index)
    assert all(one.assumption for one in found)
    return {(one.rung, one.what): one for one in found}


def rates(found: dict[tuple[str, str], HardwareLimit]) -> dict[tuple[str, str], float | None]:
    return {key: one.rate and one.rate / GB for key, one in found.items()}


def test_one_host_of_eight_h200() -> None:
    found = fleet([H200] * 8)
    assert rates(found) == {
        ("gpu", "memory"): 4800,
        ("gpu", "product"): None,
        ("gpu", "tensor"): None,
        ("host", "to_device"): 63,
        ("host", "to_host"): 63,
        ("pairs", "copies"): 450,
        ("pairs", "flows"): 450,
        ("node", "ring"): pytest.approx(450 * 2 * 7 / 9),  # NVLS
        ("host pairs", "flows"): None,
        ("rails", "ring"): None,
        ("all", "ring"): pytest.approx(450 * 2 * 7 / 9),
    }
    assert "18 active NVLinks" in found["pairs", "flows"].assumption
    assert "NVSwitch" in found["pairs", "flows"].assumption
    assert "nvls assumed" in found["node", "ring"].assumption
    assert found["rails", "ring"].assumption == "no rail has two hosts"


def test_two_hosts_of_eight_h200() -> None:
    found = fleet([H200] * 8, [H200] * 8)
    assert rates(found)["host pairs", "flows"] == 50
    assert rates(found)["rails", "ring"] == 50
    assert rates(found)["all", "ring"] == 400  # all NICs of a host
    assert "ring assumed" in found["all", "ring"].assumption
    assert "SHARP" in found["rails", "ring"].assumption


@pytest.mark.parametrize(
    ("settings", "node", "everyone"),
    [
        ({"NCCL_NVLS_ENABLE": "0"}, 450, 400),
        ({"NCCL_ALGO": "Ring"}, 450, 400),
        ({"NCCL_ALGO": "Tree"}, None, 50 * 15),  # N (n - 1) / (k - 1); inside a host not known
        ({"NCCL_ALGO": "CollNetChain"}, None, 50 * 8 * 2 * 15 / 16),
    ],
)
def test_a_setting_that_chooses_the_algorithm(
    settings: dict[str, str], node: float | None, everyone: float
) -> None:
    chosen = replace(H200, settings=settings)
    found = rates(fleet([chosen] * 8, [chosen] * 8))
    assert found["node", "ring"] == node
    assert found["all", "ring"] == pytest.approx(everyone)


def test_few_gpus_of_a_host_make_a_ring() -> None:
    found = fleet([H200] * 4)
    assert rates(found)["node", "ring"] == 450
    assert "ring assumed" in found["node", "ring"].assumption


def test_nvlink_limits_a_ring_where_the_network_is_faster() -> None:
    fast = replace(H200, network=NominalRate(60 * GB, "sysfs: 8 ports"))
    found = fleet([fast] * 8, [fast] * 8)
    assert rates(found)["all", "ring"] == 450
    assert "NVLinks" in found["all", "ring"].assumption


def test_an_l4_box() -> None:
    found = fleet([L4] * 4)
    assert rates(found)["pairs", "flows"] == 31.5
    assert rates(found)["node", "ring"] == 31.5
    assert rates(found)["gpu", "memory"] == 300
    assert "over PCIe" in found["pairs", "flows"].assumption
    assert "NVSwitch" not in found["pairs", "flows"].assumption


def test_pcie_limits_the_way_to_a_fast_nic() -> None:
    behind = replace(L4, network=NominalRate(50 * GB, "sysfs: mlx5_0"))
    found = fleet([behind], [behind])
    assert rates(found)["host pairs", "flows"] == 31.5
    assert rates(found)["rails", "ring"] == 31.5
    assert rates(found)["all", "ring"] == 31.5
    assert found["host pairs", "flows"].assumption.startswith("NVML: PCIe generation 4")


def test_cpus() -> None:
    found = fleet([CPUS] * 2, [CPUS] * 2)
    known = {key: rate for key, rate in rates(found).items() if rate is not None}
    assert known == {("host pairs", "flows"): 12.5, ("rails", "ring"): 12.5}
    assert found["gpu", "memory"].assumption == "rank 0: computes on a CPU"
    assert found["node", "ring"].assumption == "rank 0: computes on a CPU"
    assert "MPI" in found["all", "ring"].assumption


def test_the_smallest_is_the_limit() -> None:
    """A host whose GPUs lost NVLinks, and one with fewer GPUs and slower NICs."""
    worn = replace(H200, nvlink=NominalRate(425 * GB, "NVML: 17 active NVLinks of 25 GB/s"), nvlinks=17)
    slow = replace(H200, network=NominalRate(25 * GB, "sysfs: 4 ports"))
    found = fleet([H200, worn, H200, H200], [slow, slow])
    assert rates(found)["pairs", "flows"] == 425
    assert "rank 1 has the least, others up to 450 GB/s" in found["pairs", "flows"].assumption
    assert rates(found)["node", "ring"] == 425
    assert rates(found)["host pairs", "flows"] == 25
    assert rates(found)["all", "ring"] == 50  # the smaller host's two NICs
    assert "17 active NVLinks" in found["node", "ring"].assumption


def test_mixed_hosts() -> None:
    found = fleet([H200, H200], [L4, L4])
    assert rates(found)["gpu", "memory"] == 300
    assert rates(found)["pairs", "flows"] == 31.5
    assert "where they have no NVLink" in found["pairs", "flows"].assumption
    assert rates(found)["all", "ring"] == 6.25


def test_a_rate_that_one_rank_does_not_report() -> None:
    dumb = replace(
        H200, memory=NominalRate(None, "not reported by CUDA"), network=NominalRate(None, "eth0/speed: -1")
    )
    found = fleet([H200, dumb], [H200, H200])
    for key, reason in {
        ("gpu", "memory"): "rank 1: not reported by CUDA",
        ("host pairs", "flows"): "rank 1: eth0/speed: -1",
        ("rails", "ring"): "rank 1: eth0/speed: -1",
        ("all", "ring"): "rank 1: eth0/speed: -1",
    }.items():
        assert found[key].rate is None
        assert reason in found[key].assumption
    assert rates(found)["pairs", "flows"] == 450


def test_one_rank() -> None:
    found = fleet([H200])
    assert rates(found)["gpu", "memory"] == 4800
    for key in (("pairs", "flows"), ("node", "ring"), ("host pairs", "flows"), ("all", "ring")):
        assert found[key].rate is None
    assert found["all", "ring"].assumption == "there is one rank"


def test_a_rail_that_one_host_lacks() -> None:
    """Only rails of two hosts count, regardless of other NICs."""
    slow = replace(H200, network=NominalRate(1 * GB, "sysfs: eth0"))
    assert rates(fleet([H200, slow], [H200]))["rails", "ring"] == 50


def test_a_tree_over_uneven_hosts_is_not_known() -> None:
    tree = replace(H200, settings={"NCCL_ALGO": "Tree"})
    found = fleet([tree, tree], [tree])["all", "ring"]
    assert found.rate is None
    assert "not spread evenly" in found.assumption


def test_gathered_on_this_machine() -> None:
    world = meshrun.open_world("cpu")
    try:
        (mine,) = gather_facts(world)
        nominal = network_rate(nics(), 1)
    finally:
        world.close()
    assert mine.memory == mine.nvlink == mine.pcie == CPU
    assert mine.network == NominalRate(nominal.rate and nominal.rate * GB, nominal.source)


def test_gathered_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes per second, from the runner's readings."""
    from meshrun.runner.device.api import Device
    from meshrun.runner.system.links import GpuLinks, Reading

    world = meshrun.open_world("cpu")
    device = Device("cuda", "NVIDIA H200", 0, "GPU-1", bandwidth=4.8e12, bandwidth_source="clock")
    ranks = (replace(world.ranks[0], device=replace(device, compute_capability=90)),)
    links = GpuLinks(Reading(450.0, "18 links"), Reading(63.0, "generation 5"), 18)
    monkeypatch.setattr(hardware_limits, "gpu_links", lambda uuid: links if uuid == "GPU-1" else None)
    monkeypatch.setattr(hardware_limits, "environment", lambda: {"NCCL_ALGO": "Ring", "HOME": "/"})
    monkeypatch.setattr(hardware_limits, "network_rate", lambda nics, ranks: Reading(50.0 / ranks, "8 ports"))
    try:
        (mine,) = gather_facts(replace(world, ranks=ranks))
    finally:
        world.close()
    assert mine == RankFacts(
        NominalRate(4.8e12, "clock"),
        NominalRate(450e9, "18 links"),
        NominalRate(63e9, "generation 5"),
        NominalRate(50e9, "8 ports"),
        18,
        90,
        {"NCCL_ALGO": "Ring"},
    )


def test_a_pair_of_a_mesh_has_only_the_links_between_the_two() -> None:
    paths = (("X", "NV4", "NV2"), ("NV4", "X", "NV2"), ("NV2", "NV2", "X"))
    places = [RankPlace(rank, 0, rank, paths=paths[rank]) for rank in range(3)]
    found = {(one.rung, one.what): one for one in compute_limits([replace(H200, nvlinks=6)] * 3, places)}
    assert found["pairs", "copies"].rate == 450 * GB * 2 / 6
    assert "2 to a peer" in found["pairs", "copies"].assumption


def test_a_host_with_a_bridge_for_some_pairs_is_limited_by_pcie() -> None:
    paths = (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))
    places = [RankPlace(rank, 0, rank, paths=paths[rank]) for rank in range(3)]
    found = {(one.rung, one.what): one for one in compute_limits([H200] * 3, places)}
    assert found["pairs", "copies"].rate == 63 * GB
    assert "SYS over PCIe" in found["pairs", "copies"].assumption
    (copies,) = (one for one in with_shares(list(found.values()), known_rates()) if one.what == "copies")
    assert copies.least is None  # PCIe trees differ too much
