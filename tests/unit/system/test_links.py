"""Nominal rates: NVML replaced by an object with its functions, sysfs by a tree of files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import nvml
import pytest
from nvml import UUID, NotSupported, NVMLError, loaded

from meshrun.runner.system.links import GpuLinks, Nic, Reading, gpu_links, network_rate, nics


class Nvml(nvml.Nvml):
    """With a link speed, and PCIe (generation, width), too."""

    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_SUCCESS = 0

    def __init__(self, links: list[int], speed: int = 26562, pcie: tuple[int, int] = (5, 16)) -> None:
        super().__init__(links)
        self.speed, self.pcie = speed, pcie
        self.told: set[object] = {90}  # the fields that have the speed

    def nvmlDeviceGetFieldValues(self, device: str, fields: list[object]) -> list[SimpleNamespace]:
        value = SimpleNamespace(uiVal=self.speed)
        return [SimpleNamespace(nvmlReturn=0 if field in self.told else 3, value=value) for field in fields]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: str) -> int:
        self._answer("pcie")
        return self.pcie[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: str) -> int:
        return self.pcie[1]


def read(uuid: str, module: Nvml | None) -> GpuLinks:
    with loaded(module):
        return gpu_links(uuid)


@pytest.mark.parametrize(
    ("links", "speed", "rate"),
    [
        ([1] * 18, 26562, 450.0),  # H100, H200
        ([1] * 18, 53125, 900.0),  # B200
        ([1] * 12, 25781, 300.0),  # A100
        ([1] * 6, 25781, 150.0),  # V100
        ([1] * 16 + [0, 0], 26562, 400.0),  # two links down
    ],
)
def test_nvlink(links: list[int], speed: int, rate: float) -> None:
    found = read(UUID, Nvml(links, speed))
    assert found.nvlink.rate == rate
    assert found.nvlinks_active == sum(links)
    assert f"{sum(links)} active NVLinks" in found.nvlink.source


@pytest.mark.parametrize(("raw", "rate"), [(25.78125 * 64 / 66, 25), (26.5625 * 256 / 257 * 514 / 544, 25)])
def test_the_line_codes_give_the_data_rates(raw: float, rate: float) -> None:
    assert raw == pytest.approx(rate)


@pytest.mark.parametrize(
    ("pcie", "rate"), [((3, 16), 15.75), ((4, 16), 31.5), ((5, 16), 63.0), ((5, 8), 31.5), ((2, 16), 8.0)]
)
def test_pcie(pcie: tuple[int, int], rate: float) -> None:
    found = read(UUID, Nvml([], pcie=pcie))
    assert found.pcie.rate == pytest.approx(rate, rel=1e-3)
    assert (found.pcie_generation, found.pcie_width) == pcie
    assert found.nvlink == Reading(None, "NVML: no active NVLink")


def test_an_unknown_generation_is_not_guessed() -> None:
    found = read(UUID, Nvml([1] * 18, speed=99999, pcie=(9, 16)))
    assert found.nvlink == Reading(None, "NVML: unknown NVLink generation with 99999 MB/s per link")
    assert found.nvlinks_active == 18
    assert found.pcie == Reading(None, "NVML: PCIe generation 9, x16: unknown generation")


@pytest.mark.parametrize(
    ("call", "error", "nvlink", "pcie"),
    [
        ("init", NVMLError("Driver Not Loaded"), "Driver Not Loaded", "Driver Not Loaded"),
        ("handle", NVMLError("Unknown Error"), "Unknown Error", "Unknown Error"),
        ("state", NotSupported("Not Supported"), "no active NVLink", "PCIe generation 5, x16"),
        ("state", NVMLError("GPU is lost"), "state of NVLink 0: GPU is lost", "PCIe generation 5, x16"),
        ("pcie", NVMLError("Not Supported"), "18 active NVLinks", "PCIe: Not Supported"),
    ],
)
def test_what_fails_is_told(call: str, error: NVMLError, nvlink: str, pcie: str) -> None:
    nvml = Nvml([1] * 18)
    nvml.failing[call] = error
    found = read(UUID, nvml)
    assert nvlink in found.nvlink.source
    assert pcie in found.pcie.source
    assert (found.nvlink.rate is None) == (call != "pcie")
    assert (found.pcie.rate is None) == (call != "state")
    assert nvml.initialized == (call != "init")


def test_no_speed() -> None:
    nvml = Nvml([1] * 18)
    nvml.told = set()
    assert read(UUID, nvml).nvlink == Reading(None, "NVML: no NVLink speed")


def test_the_speed_of_a_link_by_its_number_where_the_common_one_is_not_supported() -> None:
    nvml = Nvml([1] * 18)
    nvml.told = {(164, 0)}
    assert read(UUID, nvml).nvlink.rate == 450.0


def test_a_gpu_that_nvml_does_not_know() -> None:
    found = read("GPU-other", Nvml([1] * 18))
    assert found.nvlink == found.pcie == Reading(None, "NVML, GPU-other: Not Found")


def test_without_the_module() -> None:
    found = read(UUID, None)
    assert found.nvlink.rate is None
    assert "pip install nvidia-ml-py" in found.nvlink.source


def test_the_names_are_those_of_the_module() -> None:
    """The object above stands for pynvml: whatever it has, pynvml has."""
    pynvml = pytest.importorskip("pynvml")
    ours = [
        name for name in [*dir(Nvml), *Nvml.__init__.__code__.co_names] if name.lower().startswith("nvml")
    ]
    assert len(ours) > 10
    assert [name for name in ours if not hasattr(pynvml, name)] == []
    fields = ("NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", "NVML_FI_DEV_NVLINK_GET_SPEED")
    for name in ("NVML_FEATURE_ENABLED", *fields, "NVML_SUCCESS"):
        assert getattr(pynvml, name) == getattr(Nvml, name)


# NICs.


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_rdma(sysfs: Path, name: str, rate: str, state: str = "4: ACTIVE", port: int = 1) -> None:
    folder = sysfs / "class" / "infiniband" / name / "ports" / str(port)
    write(folder / "rate", rate)
    write(folder / "state", state)


def add_interface(
    sysfs: Path, name: str, speed: str | None, state: str = "up", hardware: bool = True, rdma: bool = False
) -> None:
    folder = sysfs / "class" / "net" / name
    write(folder / "operstate", state)
    if speed is not None:
        write(folder / "speed", speed)
    if hardware:
        device = sysfs / "devices" / name
        (device / "infiniband" if rdma else device).mkdir(parents=True)
        (folder / "device").symlink_to(device)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400 Gb/sec (4X NDR)", 50.0), ("2.5 Gb/sec (1X SDR)", 0.3125), ("200 Gb/sec (4X HDR)", 25.0)],
)
def test_rdma_ports(tmp_path: Path, text: str, rate: float) -> None:
    add_rdma(tmp_path, "mlx5_0", text)
    (found,) = nics(tmp_path)
    path = tmp_path / "class/infiniband/mlx5_0/ports/1/rate"
    assert found == Nic("mlx5_0:1", "rdma", True, Reading(rate, f"{path}: {text}"))


def test_a_port_that_is_down_or_odd(tmp_path: Path) -> None:
    add_rdma(tmp_path, "mlx5_0", "10 Gb/sec (4X SDR)", "1: DOWN")
    add_rdma(tmp_path, "mlx5_0", "fast", port=2)
    down, odd = nics(tmp_path)
    assert not down.active
    assert odd.active
    assert odd.rate.rate is None
    assert odd.rate.source.endswith("rate: fast")


def test_interfaces(tmp_path: Path) -> None:
    add_interface(tmp_path, "eth0", "100000")
    add_interface(tmp_path, "eth1", "-1")
    add_interface(tmp_path, "eth2", None, state="down")
    add_interface(tmp_path, "docker0", "10000", hardware=False)
    add_interface(tmp_path, "ib0", "400000", rdma=True)  # one with mlx5_0
    found = {nic.name: nic for nic in nics(tmp_path)}
    assert list(found) == ["eth0", "eth1", "eth2"]
    assert found["eth0"].rate.rate == 12.5
    assert found["eth1"].rate.rate is None
    assert found["eth1"].rate.source.endswith("speed: -1")
    assert not found["eth2"].active
    assert found["eth2"].rate.source.endswith("speed: cannot be read")


def test_a_host_without_any(tmp_path: Path) -> None:
    assert nics(tmp_path) == []
    assert network_rate([], 8) == Reading(None, "no active network port in sysfs")


def test_this_machine_can_be_read() -> None:
    ports = {f"{path.parts[-3]}:{path.name}" for path in Path("/sys/class/infiniband").glob("*/ports/*")}
    hardware = {path.parent.name for path in Path("/sys/class/net").glob("*/device")}
    found = nics()
    assert {nic.name for nic in found if nic.kind == "rdma"} == ports
    assert {nic.name for nic in found if nic.kind != "rdma"} <= hardware
    assert ports or {nic.name for nic in found} == hardware
    assert all(nic.rate.source.startswith("/sys/class/") for nic in found)


def test_a_ranks_share(tmp_path: Path) -> None:
    """Eight 400G ports among a slower one for storage, one that is down, and Ethernet."""
    for number in range(8):
        add_rdma(tmp_path, f"mlx5_{number}", "400 Gb/sec (4X NDR)")
    add_rdma(tmp_path, "mlx5_8", "200 Gb/sec (4X HDR)")
    add_rdma(tmp_path, "mlx5_9", "400 Gb/sec (4X NDR)", "1: DOWN")
    add_interface(tmp_path, "eth0", "800000")
    ports = nics(tmp_path)
    assert network_rate(ports, 8).rate == 50.0
    assert network_rate(ports, 4).rate == 100.0
    assert "mlx5_7:1, 50 GB/s each, shared by 8 rank(s)" in network_rate(ports, 8).source


def test_ethernet_counts_where_there_is_no_rdma(tmp_path: Path) -> None:
    add_interface(tmp_path, "eth0", "100000")
    add_interface(tmp_path, "eth1", "-1")
    assert network_rate(nics(tmp_path), 2).rate == 6.25


def test_ports_without_a_rate_are_not_guessed(tmp_path: Path) -> None:
    add_interface(tmp_path, "eth0", "-1")
    found = network_rate(nics(tmp_path), 2)
    assert found.rate is None
    assert "eth0/speed: -1" in found.source
