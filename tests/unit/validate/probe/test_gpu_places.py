"""Paths and network ports of GPUs, from sysfs as a tree of files and links, and from a made NVML."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import nvml
import pytest
from nvml import UUID, loaded

from meshrun.jobs.validate.probe.gpu_places import GpuPlace, gpu_place, mirrored, path, pcie_path, rank_places


class Host:
    """A tree of sysfs. Devices are placed by their PCI parents."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, *parts: str, numa: int = 0) -> Path:
        place = self.root / "devices" / Path(*parts)
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{numa}\n")
        link = self.root / "bus" / "pci" / "devices" / parts[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(place)
        return link

    def port(self, name: str, *parts: str, gbit: int = 400, state: str = "4: ACTIVE", numa: int = 0) -> None:
        pci = self.device(*parts, numa=numa).resolve()
        folder = self.root / "class" / "infiniband" / name
        port = folder / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
        (port / "rate").write_text(f"{gbit} Gb/sec (4X NDR)")
        (port / "link_layer").write_text("InfiniBand")
        (folder / "hca_type").write_text("MT4129")
        (folder / "device").symlink_to(pci)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def switch(root: str, number: int) -> tuple[str, str, str, str]:
    """Return root complex, root port, and the ports up and down of a PCIe switch, down port `number`."""
    return f"pci0000:{root}", f"0000:{root}:01.0", f"0000:{root}:02.0", f"0000:{root}:1{number}.0"


@pytest.mark.parametrize(
    ("one", "other", "numa", "expected"),
    [
        ((*switch("17", 0), "0000:1b:00.0"), (*switch("17", 1), "0000:1c:00.0"), (0, 0), "PIX"),
        ((*switch("17", 0), "0000:00:a", "0000:00:b", "0000:1b:00.0"), (*switch("17", 1), "0000:1c:00.0"),
         (0, 0), "PXB"),
        (("pci0000:17", "0000:17:01.0", "0000:1b:00.0"), ("pci0000:17", "0000:17:02.0", "0000:1c:00.0"),
         (0, 0), "PHB"),
        (("pci0000:17", "0000:17:01.0", "0000:1b:00.0"), ("pci0000:38", "0000:38:01.0", "0000:1c:00.0"),
         (0, 0), "NODE"),
        (("pci0000:17", "0000:17:01.0", "0000:1b:00.0"), ("pci0000:97", "0000:97:01.0", "0000:1c:00.0"),
         (0, 1), "SYS"),
    ],
)  # fmt: skip
def test_paths_as_nvidia_smi_names_them(
    host: Host, one: tuple[str, ...], other: tuple[str, ...], numa: tuple[int, int], expected: str
) -> None:
    first, second = host.device(*one, numa=numa[0]), host.device(*other, numa=numa[1])
    assert pcie_path(first, second) == pcie_path(second, first) == expected


def test_a_device_that_is_not_there_has_no_path(host: Host) -> None:
    assert pcie_path(host.device("pci0000:17", "0000:1b:00.0"), host.root / "none") == ""


def test_nvlinks_come_before_pcie(host: Host) -> None:
    for bus in ("1b", "1c", "1d"):
        host.device("pci0000:17", f"0000:17:{bus}.0", f"0000:{bus}:00.0")
    bridged = Counter({"0000:1c:00.0": 4})
    assert path("0000:1b:00.0", "0000:1C:00.0", bridged, host.root) == "NV4"
    assert path("0000:1b:00.0", "0000:1d:00.0", bridged, host.root) == "PHB"
    assert path("0000:1b:00.0", "0000:1d:00.0", Counter(switch=18), host.root) == "NV18"
    assert path("0000:1b:00.0", "0000:1d:00.0", None, host.root) == ""


def eight(host: Host, nics_per_switch: int) -> list[str]:
    """Four switches with two GPUs each, and NICs; one more that is slow, and one that is down."""
    gpus = []
    for number, root in enumerate(("17", "38", "97", "b8")):
        for side in range(2):
            gpus.append(f"0000:{root[0]}{side}:00.0")
            host.device(*switch(root, side), gpus[-1], numa=number // 2)
        for nic in range(nics_per_switch):
            where = (*switch(root, 5 + nic), f"0000:{root[0]}{5 + nic}:00.0")
            host.port(f"mlx5_{8 + number * nics_per_switch + nic}", *where, numa=number // 2)
    host.port("mlx5_0", "pci0000:00", "0000:00:01.0", "0000:02:00.0", gbit=100)
    host.port("mlx5_1", "pci0000:00", "0000:00:03.0", "0000:03:00.0", state="1: DOWN")
    return gpus


def places(host: Host, gpus: list[str]) -> list[GpuPlace]:
    return [gpu_place("GPU-none", gpu, gpus, host.root) for gpu in gpus]


def test_a_nic_for_each_gpu(host: Host) -> None:
    found = places(host, eight(host, 2))
    assert [one.ports for one in found] == [(f"mlx5_{8 + gpu} port 1",) for gpu in range(8)]
    assert [one.rail for one in found] == list(range(8))
    assert {one.port_model for one in found} == {"MT4129, InfiniBand, 400 Gb/s"}


def test_two_gpus_share_a_nic(host: Host) -> None:
    found = places(host, eight(host, 1))
    assert [one.ports for one in found] == [(f"mlx5_{8 + gpu // 2} port 1",) for gpu in range(8)]
    assert [one.rail for one in found] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_several_nics_for_a_gpu(host: Host) -> None:
    found = places(host, eight(host, 4))
    assert [len(one.ports) for one in found] == [2] * 8
    assert found[0].ports == ("mlx5_8 port 1", "mlx5_9 port 1")
    assert found[1].ports == ("mlx5_10 port 1", "mlx5_11 port 1")


def test_rails_follow_the_nic_where_a_run_sees_other_gpus(host: Host) -> None:
    gpus = eight(host, 2)[2:4]
    assert [one.rail for one in places(host, gpus)] == [2, 3]


def test_without_nics_nothing_is_said(host: Host) -> None:
    gpu = "0000:1b:00.0"
    host.device("pci0000:17", gpu)
    assert gpu_place("GPU-none", gpu, [gpu], host.root) == GpuPlace(paths=("X",))


def test_the_number_and_the_peers_are_nvmls(host: Host) -> None:
    class Nvml(nvml.Nvml):
        NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

        def nvmlDeviceGetIndex(self, device: str) -> int:
            return 5

        def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: str, link: int) -> int:
            return 0

        def nvmlDeviceGetNvLinkRemotePciInfo(self, device: str, link: int) -> SimpleNamespace:
            return SimpleNamespace(busId=b"00000000:1C:00.0")

    gpus = ["0000:1b:00.0", "0000:1c:00.0"]
    for gpu in gpus:
        host.device("pci0000:17", f"0000:17:{gpu[5:7]}.0", gpu)
    with loaded(Nvml([1, 1, 0, 1])):
        found = gpu_place(UUID, gpus[0], gpus, host.root)
    assert (found.number, found.paths, found.nvlinks) == (5, ("X", "NV3"), 3)


def test_bits_are_mirrored_within_a_power_of_two() -> None:
    assert [mirrored(value, 4) for value in range(6)] == [0, 2, 1, 3, 0, 2]
    assert [mirrored(value, 1) for value in range(3)] == [0, 0, 0]


def columns(hosts: list[int], local: list[int], gpus: list[GpuPlace]) -> list[int]:
    return [one.gpu for one in rank_places(hosts, local, [""] * len(hosts), gpus)]


def test_columns_follow_the_ports_not_the_local_ranks() -> None:
    """The second host numbers its GPUs backwards."""
    gpus = [GpuPlace(number, number) for number in (0, 1, 2, 2, 1, 0)]
    assert columns([0] * 3 + [1] * 3, [0, 1, 2] * 2, gpus) == [0, 1, 2, 2, 1, 0]


def test_a_host_of_some_gpus_is_on_its_own_rails() -> None:
    gpus = [GpuPlace(number, number) for number in (0, 1, 2, 3, 2, 3)]
    assert columns([0] * 4 + [1] * 2, [0, 1, 2, 3, 0, 1], gpus) == [0, 1, 2, 3, 2, 3]


def test_gpus_that_share_a_port_have_columns_of_their_own() -> None:
    gpus = [GpuPlace(number, number // 2) for number in (0, 1, 2, 3)]
    assert columns([0] * 4, [0, 1, 2, 3], gpus) == [0, 1, 2, 3]


def test_without_ports_columns_are_local_ranks() -> None:
    gpus = [GpuPlace(3), GpuPlace(2), GpuPlace(1)]
    assert columns([0, 0, 1], [0, 1, 0], gpus) == [0, 1, 0]


def test_a_place_says_what_its_gpu_says_with_paths_by_column() -> None:
    gpus = [
        GpuPlace(1, 1, ("mlx5_1 port 1",), "MT4129", ("X", "NV18"), nvlinks=18),
        GpuPlace(0, 0, ("mlx5_0 port 1", "mlx5_2 port 1"), "MT4129", ("NV18", "X")),
    ]
    first, second = rank_places([0, 0], [0, 1], ["NVIDIA H200"] * 2, gpus)
    assert (first.gpu, first.number, first.nic, first.paths) == (1, 1, "mlx5_1 port 1", ("NV18", "X"))
    assert (first.nvlinks, second.nvlinks) == (18, None)
    assert (second.gpu, second.nic) == (0, "mlx5_0 port 1, mlx5_2 port 1")
    assert second.paths == ("X", "NV18")
    assert (second.model, second.nic_model) == ("NVIDIA H200", "MT4129")
