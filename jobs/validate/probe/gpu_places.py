"""How a host's GPUs are connected: the paths between them, and the network ports that each one uses.

Path types are those of `nvidia-smi topo -m`: NV# (that many NVLinks), PIX (one PCIe switch), PXB (several),
PHB (the host bridge), NODE (several host bridges of a NUMA node), SYS (several NUMA nodes).
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.runner.errors import UserError
from meshrun.runner.system import nvml, sysfs
from meshrun.runner.system.launcher import environment
from meshrun.runner.system.links import nvlink_states
from meshrun.runner.system.network import Port, ports

NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")  # nearest first


@dataclass(frozen=True)
class GpuPlace:
    """One GPU on its host. number: as nvidia-smi counts; None if unknown. rail: position of its first port
    among the host's, by name; None without ports.

    ports: names of the network ports that it uses, such as "mlx5_3 port 1". port_model: their kind and rate.
    paths: type of the path to each GPU asked for, "X" to itself; () if unknown. domain: the NVLink network of
    several hosts that it belongs to; "" without one. pxn: NCCL may use the NICs of other GPUs for it.
    nvlinks: that are up; None if unknown.
    """

    number: int | None = None
    rail: int | None = None
    ports: tuple[str, ...] = ()
    port_model: str = ""
    paths: tuple[str, ...] = ()
    domain: str = ""
    pxn: bool = False
    nvlinks: int | None = None


def gpu_place(uuid: str, bus_id: str, gpus: Sequence[str], root: Path = Path("/sys")) -> GpuPlace:
    """Describe a GPU among those of this host that a run uses. gpus: their PCI bus ids, also of this one."""
    number, links = nvml_place(uuid)
    paths = tuple("X" if one == bus_id else path(bus_id, one, links, root) for one in gpus)
    if any(not one for one in paths):
        paths = ()
    of_run = network_ports(root)
    used = ports_of(bus_id, number, gpus, of_run, root)
    names = tuple(port_name(one) for one in used)
    models = {port_model(one, root) for one in used}
    rail = of_run.index(used[0]) if used else None
    pxn = bool(used) and environment().get("NCCL_P2P_PXN_LEVEL", "2") != "0"  # as NCCL without the variable
    nvlinks = None if links is None else links.total()
    return GpuPlace(number, rail, names, ", ".join(sorted(models)), paths, nvlink_domain(uuid), pxn, nvlinks)


def nvml_place(uuid: str) -> tuple[int | None, Counter[str] | None]:
    """Return a GPU's number, and its active NVLinks by the peer's bus id ("switch" for NVSwitches).

    Both are None if NVML does not report them.
    """
    try:
        module, device = nvml.handle(uuid)
    except UserError:
        return None, None
    try:
        number = int(module.nvmlDeviceGetIndex(device))
    except module.NVMLError:
        number = None
    links: Counter[str] = Counter()
    try:
        for link, up in enumerate(nvlink_states(device, module)):
            if not up:
                continue
            if (
                module.nvmlDeviceGetNvLinkRemoteDeviceType(device, link)
                == module.NVML_NVLINK_DEVICE_TYPE_SWITCH
            ):
                links["switch"] += 1
            else:
                links[short_bus_id(module.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId)] += 1
    except module.NVMLError:
        return number, None
    return number, links


def nvlink_domain(uuid: str) -> str:
    """Return a GPU's cluster and clique, as the manager of NVLink networks of several hosts gives them.

    "" without such a network (the cluster's id is zero on a single host), or if NVML does not report it.
    """
    try:
        module, device = nvml.handle(uuid)
    except UserError:
        return ""
    try:
        fabric = module.c_nvmlGpuFabricInfo_t()
        module.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(fabric))
    except (module.NVMLError, AttributeError):
        return ""
    cluster = bytes(fabric.clusterUuid)
    joined = fabric.state == module.NVML_GPU_FABRIC_STATE_COMPLETED and any(cluster)
    return f"{cluster.hex()} clique {fabric.cliqueId}" if joined else ""


def short_bus_id(text: str | bytes) -> str:
    """Return a PCI bus id as sysfs writes it: NVML may write the domain with 8 digits."""
    words = text.decode() if isinstance(text, bytes) else text
    domain, _, rest = words.strip("\0").lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def path(one: str, other: str, links: Counter[str] | None, root: Path) -> str:
    """Return the type of the path between two GPUs; "" if unknown."""
    if links is None:
        return ""
    direct = links["switch"] or links[short_bus_id(other)]
    return f"NV{direct}" if direct else pcie_path(device(one, root), device(other, root))


def device(bus_id: str, root: Path) -> Path:
    return root / "bus" / "pci" / "devices" / short_bus_id(bus_id)


def pcie_path(one: Path, other: Path) -> str:
    """Return the type of the PCIe path between two devices of sysfs; "" if one is not there."""
    try:
        two = [entry.resolve(strict=True).parts for entry in (one, other)]
    except OSError:
        return ""
    first, second = (
        parts[next((n for n, part in enumerate(parts) if part.startswith("pci")), 0) :] for parts in two
    )
    common = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    if common == 0:
        nodes = {sysfs.text(entry / "numa_node") for entry in (one, other)}
        return "NODE" if len(nodes) == 1 else "SYS"
    if common == 1:  # the host bridge
        return "PHB"
    # Below the common bridge, a device of the same switch has one more bridge: the switch's port to it.
    return "PIX" if max(len(first), len(second)) - common <= 2 else "PXB"


def network_ports(root: Path) -> list[Port]:
    """Return the active RDMA ports with the highest rate, by name: slower ones serve storage or login."""
    active = [one for one in ports(root) if one.state == "ACTIVE" and one.rate_gbit]
    fastest = max((one.rate_gbit or 0.0 for one in active), default=0.0)
    return sorted((one for one in active if one.rate_gbit == fastest), key=port_order)


def port_order(port: Port) -> tuple[str, int, int]:
    """Order mlx5_10 after mlx5_9."""
    name = port.device.rstrip("0123456789")
    return name, int(port.device[len(name) :] or 0), port.port


def port_name(port: Port) -> str:
    return f"{port.device} port {port.port}"


def port_model(port: Port, root: Path) -> str:
    kind = sysfs.text(root / "class" / "infiniband" / port.device / "hca_type")
    return ", ".join(filter(None, (kind, port.link_layer, f"{port.rate_gbit:g} Gb/s")))


def ports_of(
    bus_id: str, number: int | None, gpus: Sequence[str], candidates: Sequence[Port], root: Path
) -> list[Port]:
    """Return the ports that a GPU uses, first the one of its first channel.

    NCCL's rule (`ncclTopoGetLocalNet`): of its nearest ports, the one at its number (bits mirrored if their
    number is a power of 2), and the following ones if there are more ports than GPUs nearest to them.
    """

    def near(gpu: str, port: Port) -> int:
        kind = pcie_path(device(gpu, root), root / "class" / "infiniband" / port.device / "device")
        return NEAR.index(kind) if kind else len(NEAR)

    distances = [near(bus_id, port) for port in candidates]
    if not distances or min(distances) == len(NEAR):
        return []
    local = [port for port, far in zip(candidates, distances, strict=True) if far == min(distances)]
    each = [near(gpu, local[0]) for gpu in gpus]
    sharing = max(each.count(min(each)), 1)
    place = gpus.index(bus_id) if number is None else number
    if len(local) & (len(local) - 1) == 0:
        place = mirrored(place, len(local))
    return [local[(place + step) % len(local)] for step in range(-(-len(local) // sharing))]


def mirrored(value: int, count: int) -> int:
    """Reverse the bits of `value` within `count`, a power of 2."""
    bits = count.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if value >> bit & 1)


def rank_places(
    hosts: Sequence[int], local: Sequence[int], models: Sequence[str], gpus: Sequence[GpuPlace]
) -> list[RankPlace]:
    """Return the places of all ranks, in rank order. hosts: number of each host; local: of the rank on it.

    Columns follow the network ports, so that a column is a rail even where hosts number their GPUs
    otherwise, or a run uses some of them; without ports they follow the local ranks.
    """
    keys: list[tuple[int, int]] = [(0, number) for number in local]
    if all(one.rail is not None for one in gpus):
        seen: Counter[tuple[int, int]] = Counter()
        order = sorted(range(len(gpus)), key=lambda rank: (hosts[rank], gpus[rank].number or 0, local[rank]))
        for rank in order:
            rail = gpus[rank].rail or 0
            keys[rank] = rail, seen[hosts[rank], rail]
            seen[hosts[rank], rail] += 1
    column = {key: number for number, key in enumerate(sorted(set(keys)))}
    on_host: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        on_host.setdefault(host, []).append(rank)
    found = []
    for rank, (host, key, model, gpu) in enumerate(zip(hosts, keys, models, gpus, strict=True)):
        by_rank = zip(on_host[host], gpu.paths, strict=False)
        paths = tuple(way for _, way in sorted(by_rank, key=lambda one: column[keys[one[0]]]))
        ports_text = ", ".join(gpu.ports)
        place = RankPlace(
            rank,
            host,
            column[key],
            gpu.number,
            model,
            ports_text,
            gpu.port_model,
            paths,
            gpu.domain,
            gpu.pxn,
            gpu.nvlinks,
        )
        found.append(place)
    return found
