"""Facts about one GPU from NVML and sysfs: driver, links, and the cores near it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.system import sysfs
from meshrun.runner.system.links import nvlink_states
from meshrun.runner.system.nvml import handle


@dataclass(frozen=True)
class GpuFacts:
    """One rank's GPU; None or "" where a value is not available.

    index: among the GPUs visible to the process. driver: version of the kernel driver. cuda: version of the
    CUDA runtime in use; cuda_driver: the newest that the driver supports. on_host: number of GPUs that NVML
    sees, regardless of CUDA_VISIBLE_DEVICES. nvlinks: number of links; nvlinks_up: number of active links.
    pcie_generation, pcie_width: current values (an idle link runs at a lower generation); *_max: the highest
    that both GPU and slot support. numa_node, cpus: the memory node and the cores near the GPU.
    """

    name: str
    uuid: str
    bus_id: str
    index: int
    driver: str = ""
    cuda: str = ""
    cuda_driver: str = ""
    on_host: int | None = None
    nvlinks_up: int | None = None
    nvlinks: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()


def read_gpu(
    name: str, uuid: str, bus_id: str, index: int, cuda_runtime: int, root: Path, cpu_count: int
) -> GpuFacts:
    """Add the facts from NVML and sysfs to those that CUDA reports.

    cuda_runtime: CUDA's version number, 12090 for 12.9; 0 if unknown. root: sysfs. cpu_count: the highest CPU
    number + 1.
    """
    known: dict[str, Any] = {
        "name": name,
        "uuid": uuid,
        "bus_id": bus_id,
        "index": index,
        "cuda": dotted(cuda_runtime),
        "numa_node": numa_node(bus_id, root),
    }
    # sysfs first: NVML reports the cores too, but is slow when many ranks query it at once.
    near = sysfs.numbers(sysfs.text(_pci(bus_id, root) / "local_cpulist"))
    reported = _nvml_facts(uuid, 0 if near else cpu_count)
    return GpuFacts(**{**known, **reported, "cpus": near or reported.get("cpus", ())})


def driver_version(uuid: str) -> str:
    """The version of the kernel driver; "" if NVML does not start or does not know the GPU."""
    return str(_nvml_facts(uuid, 0).get("driver", ""))


def _nvml_facts(uuid: str, cpu_count: int) -> dict[str, Any]:
    """The fields of GpuFacts that NVML reports; empty if NVML does not start or does not know the GPU.

    cpu_count: the highest CPU number + 1; 0: do not query the cores near the GPU.
    """
    try:
        nvml, device = handle(uuid)
    except UserError:
        return {}
    up, links = _nvlinks(device, nvml)
    return {
        "driver": _ask(nvml, nvml.nvmlSystemGetDriverVersion) or "",
        "cuda_driver": dotted(_ask(nvml, nvml.nvmlSystemGetCudaDriverVersion) or 0),
        "on_host": _ask(nvml, nvml.nvmlDeviceGetCount),
        "nvlinks_up": up,
        "nvlinks": links,
        "pcie_generation": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, device),
        "pcie_generation_max": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, device),
        "pcie_width": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, device),
        "pcie_width_max": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, device),
        "cpus": _near(device, cpu_count, nvml) if cpu_count else (),
    }


def _ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an NVML function; None if this GPU or machine does not support it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _nvlinks(device: Any, nvml: Any) -> tuple[int | None, int | None]:
    """Number of active links, and of all links."""
    try:
        states = list(nvlink_states(device, nvml))
    except nvml.NVMLError:
        return None, None
    return sum(states), len(states)


def _near(device: Any, cpu_count: int, nvml: Any) -> tuple[int, ...]:
    return _cpus(_ask(nvml, nvml.nvmlDeviceGetCpuAffinity, device, -(-cpu_count // 64)))


def _cpus(words: Any) -> tuple[int, ...]:
    """CPU numbers in a mask of 64-bit words, least significant word first."""
    return tuple(
        64 * position + bit
        for position, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )


def numa_node(bus_id: str, root: Path) -> int | None:
    """The NUMA node of a PCI device; None if the machine has one node or does not report it (-1).

    NVML's NUMA node is a different one: that of the GPU's own memory, on systems that expose it as a node.
    """
    node = sysfs.text(_pci(bus_id, root) / "numa_node")
    return int(node) if node.isdecimal() else None


def _pci(bus_id: str, root: Path) -> Path:
    return root / "bus" / "pci" / "devices" / bus_id.lower()


def dotted(number: int) -> str:
    """A CUDA version as text: "12.9" for 12090; "" for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""
