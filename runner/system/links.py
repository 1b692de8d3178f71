"""Nominal rates of a rank's links: NVLink and PCIe from NVML, NICs from sysfs.

All rates are GB/s (1e9 bytes) of data in one direction, net of line codes but not of packet headers.
An unknown rate is None, and its source gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshrun.runner.errors import UserError, first_line
from meshrun.runner.system.nvml import handle
from meshrun.runner.system.sysfs import text as read

# NVML's MB/s of one link in one direction, including the line code -> GB/s of data: NVLink 1 (8b/10b, already
# excluded), 2 and 3 (64b/66b), 4 and 5 (256b/257b and the Reed-Solomon code RS(544, 514): 16/17 together).
NVLINK_RATES = {20000: 20.0, 25781: 25.0, 26562: 25.0, 53125: 50.0}
# PCIe generation -> GB/s of one lane: 8b/10b up to 2, 128b/130b up to 5, 242 of a flit's 256 bytes in 6.
LANE_RATES = {1: 0.25, 2: 0.5, 3: 8 / 8 * 128 / 130, 4: 16 / 8 * 128 / 130, 5: 32 / 8 * 128 / 130, 6: 7.5625}


@dataclass(frozen=True)
class Reading:
    """A rate in GB/s and its source, or None and the reason."""

    rate: float | None
    source: str


@dataclass(frozen=True)
class GpuLinks:
    """Links of one GPU. nvlink: all active links together.

    pcie: at the current width and the highest generation that GPU and slot support (an idle link runs at
    a lower one). pcie_generation, pcie_width: these two values; None if unknown.
    """

    nvlink: Reading
    pcie: Reading
    nvlinks_active: int = 0
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True)
class Nic:
    """A port of a network adapter. active: the link is up."""

    name: str
    kind: Literal["rdma", "ethernet"]
    active: bool
    rate: Reading


def gpu_links(uuid: str) -> GpuLinks:
    """Links of the GPU with this UUID ("GPU-...")."""
    try:
        nvml, device = handle(uuid)
    except UserError as reason:
        missing = Reading(None, str(reason))
        return GpuLinks(missing, missing)
    active, nvlink = _nvlink(device, nvml)
    generation, width, pcie = _pcie(device, nvml)
    return GpuLinks(nvlink, pcie, active, generation, width)


def _nvlink(device: Any, nvml: Any) -> tuple[int, Reading]:
    states: list[bool] = []
    try:
        for state in nvlink_states(device, nvml):
            states.append(state)
    except nvml.NVMLError as reason:
        return 0, Reading(None, f"NVML: state of NVLink {len(states)}: {first_line(reason)}")
    active = sum(states)
    if not active:
        return 0, Reading(None, "NVML: no active NVLink")
    raw = _nvlink_speed(device, nvml)
    if raw is None:
        return active, Reading(None, "NVML: no NVLink speed")
    if raw not in NVLINK_RATES:
        return active, Reading(None, f"NVML: unknown NVLink generation with {raw} MB/s per link")
    rate = active * NVLINK_RATES[raw]
    return active, Reading(rate, f"NVML: {active} active NVLinks of {NVLINK_RATES[raw]:g} GB/s")


def nvlink_states(device: Any, nvml: Any) -> Iterator[bool]:
    """Whether each link of a GPU is up. Raises NVMLError if a link's state cannot be read."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(device, link)
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            return  # no more links, or none at all
        yield state == nvml.NVML_FEATURE_ENABLED


def _nvlink_speed(device: Any, nvml: Any) -> int | None:
    """NVML's MB/s of one link: one value for all links or, from Hopper on, by link number."""
    for field in (nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, (nvml.NVML_FI_DEV_NVLINK_GET_SPEED, 0)):
        (speed,) = nvml.nvmlDeviceGetFieldValues(device, [field])
        if speed.nvmlReturn == nvml.NVML_SUCCESS and speed.value.uiVal:
            return int(speed.value.uiVal)
    return None


def _pcie(device: Any, nvml: Any) -> tuple[int | None, int | None, Reading]:
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(device)
        width = nvml.nvmlDeviceGetCurrPcieLinkWidth(device)
    except nvml.NVMLError as reason:
        return None, None, Reading(None, f"NVML: PCIe: {first_line(reason)}")
    lane = LANE_RATES.get(generation)
    source = f"NVML: PCIe generation {generation}, x{width}"
    if lane is None:
        return generation, width, Reading(None, f"{source}: unknown generation")
    return generation, width, Reading(lane * width, source)


def nics(sysfs: Path = Path("/sys")) -> list[Nic]:
    """This host's network ports: first those of RDMA devices, then hardware interfaces without RDMA."""
    return [*_rdma(sysfs / "class" / "infiniband"), *_ethernet(sysfs / "class" / "net")]


def _rdma(devices: Path) -> list[Nic]:
    return [
        Nic(
            f"{port.parts[-3]}:{port.name}",
            "rdma",
            "ACTIVE" in read(port / "state"),
            _rdma_rate(port / "rate"),
        )
        for port in sorted(devices.glob("*/ports/*"))
    ]


def _rdma_rate(path: Path) -> Reading:
    text = read(path)
    rate = gigabits(text)
    return Reading(None if rate is None else rate / 8, f"{path}: {text or 'cannot be read'}")


def gigabits(rate: str) -> float | None:
    """Gb/s from the text that sysfs has for an RDMA port, such as "400 Gb/sec (4X NDR)"."""
    match = re.match(r"([\d.]+) Gb/sec", rate)
    return float(match[1]) if match else None


def _ethernet(interfaces: Path) -> list[Nic]:
    # Bridges and tunnels have no device; those with RDMA are among the RDMA devices.
    hardware = (path for path in sorted(interfaces.glob("*")) if (path / "device").exists())
    return [
        Nic(path.name, "ethernet", read(path / "operstate") == "up", _ethernet_rate(path / "speed"))
        for path in hardware
        if not (path / "device" / "infiniband").exists()
    ]


def _ethernet_rate(path: Path) -> Reading:
    """From a number of Mb/s; interfaces of virtual machines have -1 or no text."""
    text = read(path)
    if not text.isdecimal():
        return Reading(None, f"{path}: {text or 'cannot be read'}")
    return Reading(int(text) / 8000, f"{path}: {text} Mb/s")


def network_rate(ports: Sequence[Nic], ranks: int) -> Reading:
    """A rank's share of its host's network, with `ranks` ranks on the host.

    Counts the active ports with the highest rate, and only RDMA ports if there are any: slower ports serve
    storage or login.
    """
    active = [nic for nic in ports if nic.active]
    kind = [nic for nic in active if nic.kind == "rdma"] or active
    rated = [(nic.rate.rate, nic) for nic in kind if nic.rate.rate is not None]
    if not rated:
        why = [nic.rate.source for nic in kind] or ["no active network port in sysfs"]
        return Reading(None, "; ".join(why))
    fastest = max(rate for rate, _ in rated)
    chosen = [nic for rate, nic in rated if rate == fastest]
    names = ", ".join(nic.name for nic in chosen)
    return Reading(
        len(chosen) * fastest / ranks, f"sysfs: {names}, {fastest:g} GB/s each, shared by {ranks} rank(s)"
    )
