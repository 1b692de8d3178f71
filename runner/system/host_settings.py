"""Settings of a host that must be the same on all hosts of a fleet: of its network ports and drivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshrun.runner.system.counters.kernel_log import has_nvswitches, nvswitch_errors
from meshrun.runner.system.sysfs import text as read

Setting = tuple[str, str]  # part such as "mlx5_0 port 1", "eth0" or "driver", and what is set
KERNEL_LOG: Setting = ("NVSwitch", "kernel log")
UNREADABLE = "unreadable"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def host_settings(root: Path = Path("/sys"), proc: Path = Path("/proc")) -> dict[Setting, str]:
    """Read settings that hosts must share to reach each other at their full rate.

    Parameters
    ----------
    root, proc : Path
        Where sysfs and procfs are.

    Returns
    -------
    dict
        Values by part and setting. What cannot be read is missing.

    Examples
    --------
    >>> host_settings()  # doctest: +SKIP
    {('mlx5_0 port 1', 'MTU'): '9000', ('mlx5_0 port 1', 'firmware'): '28.39.1002', ...}
    """
    found = [*_ports(root / "class" / "infiniband"), *_interfaces(root / "class" / "net"), *_drivers(root)]
    if has_nvswitches(proc):
        found.append((KERNEL_LOG, "readable" if nvswitch_errors() else UNREADABLE))
    return {setting: value for setting, value in found if value}


def _ports(devices: Path) -> Iterator[tuple[Setting, str]]:
    """Settings of RDMA ports."""
    for port in sorted(devices.glob("*/ports/*")):
        device = port.parents[1]
        part = f"{device.name} port {port.name}"
        yield (part, "link layer"), read(port / "link_layer")
        yield (part, "firmware"), read(device / "fw_ver")
        yield (part, "board"), read(device / "board_id")
        yield (part, "MTU"), _joined(read(file) for file in device.glob("device/net/*/mtu"))
        yield (part, "P_Keys"), _joined(_pkey(read(file)) for file in port.glob("pkeys/*"))
        yield (part, "GID indices of RoCE v2"), _joined(_roce_gids(port))


def _pkey(value: str) -> str:
    """A partition's key without the bit of a full member; "" of an empty row."""
    return f"0x{int(value, 16) & 0x7FFF:04x}" if value and int(value, 16) else ""


def _roce_gids(port: Path) -> Iterator[str]:
    """Rows of the table of GIDs that NCCL_IB_GID_INDEX chooses from: an address each."""
    for kind in port.glob("gid_attrs/types/*"):
        if read(kind) == "RoCE v2" and read(port / "gids" / kind.name) not in ("", NO_GID):
            yield kind.name


def _interfaces(interfaces: Path) -> Iterator[tuple[Setting, str]]:
    """MTU of Ethernet adapters that are up and are no RDMA port's, which is with the port."""
    for interface in sorted(interfaces.glob("*")):
        device = interface / "device"
        if device.exists() and not (device / "infiniband").exists() and read(interface / "operstate") == "up":
            yield (interface.name, "MTU"), read(interface / "mtu")


def _drivers(root: Path) -> Iterator[tuple[Setting, str]]:
    yield ("driver", "NVIDIA"), read(root / "module" / "nvidia" / "version")
    if (root / "module" / "nvidia").exists():
        loaded = (root / "module" / "nvidia_peermem").exists()
        yield ("driver", "nvidia_peermem"), "loaded" if loaded else "not loaded"
    yield ("driver", "mlx5_core"), read(root / "module" / "mlx5_core" / "version")


def _joined(values: Iterator[str]) -> str:
    return ", ".join(sorted(filter(None, set(values)), key=lambda value: (len(value), value)))
