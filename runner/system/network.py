"""Facts about a host's network: the interfaces of this process's network namespace, and RDMA ports."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from meshrun.runner.system import sysfs
from meshrun.runner.system.links import gigabits

# From linux/sockios.h and linux/if.h.
SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915
UP_AND_RUNNING = 0x1 | 0x40  # IFF_UP: enabled; IFF_RUNNING: the link is up, or there is no physical link


@dataclass(frozen=True)
class Interface:
    """address: IPv4, else a global IPv6 address, else "". mbit: Mb/s; None if unknown or not queried."""

    name: str
    address: str
    up: bool
    mbit: int | None = None


@dataclass(frozen=True)
class Port:
    """Of an RDMA device. state: "ACTIVE", "DOWN"...; link_layer: "InfiniBand" or "Ethernet" (RoCE)."""

    device: str
    port: int
    state: str
    rate_gbit: float | None
    link_layer: str


class KernelInterface(NamedTuple):
    """An interface according to the kernel, which unlike sysfs always reports this process's namespace."""

    name: str
    number: int
    address: str
    up: bool


def kernel_interfaces(proc: Path = Path("/proc")) -> list[KernelInterface]:
    """All interfaces that this process can use."""
    addresses = _ipv6(sysfs.text(proc / "net" / "if_inet6"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        return [
            KernelInterface(name, number, _ipv4(kernel, name) or addresses.get(name, ""), _up(kernel, name))
            for number, name in socket.if_nameindex()
        ]


def _request(kernel: socket.socket, request: int, name: str) -> bytes:
    """The 24 bytes after the name in the kernel's ifreq; empty if the request fails."""
    try:
        return fcntl.ioctl(kernel, request, struct.pack("16s24x", name.encode()))[16:]
    except OSError:  # no such address, or the interface no longer exists
        return b""


def _ipv4(kernel: socket.socket, name: str) -> str:
    answer = _request(kernel, SIOCGIFADDR, name)  # a sockaddr_in: family, port, address
    return socket.inet_ntoa(answer[4:8]) if answer else ""


def _up(kernel: socket.socket, name: str) -> bool:
    answer = _request(kernel, SIOCGIFFLAGS, name)
    return bool(answer) and struct.unpack_from("H", answer)[0] & UP_AND_RUNNING == UP_AND_RUNNING


def _ipv6(table: str) -> dict[str, str]:
    """The first address of global scope (00) of each interface, from the text of /proc/net/if_inet6."""
    found: dict[str, str] = {}
    for line in table.splitlines():
        address, _, _, scope, _, name = line.split()
        if scope == "00":
            found.setdefault(name, str(ipaddress.IPv6Address(bytes.fromhex(address))))
    return found


def interfaces(kernel: Iterable[KernelInterface], root: Path, speeds: bool) -> tuple[Interface, ...]:
    """Interfaces, with speeds from sysfs (`root`) if `speeds`: each read blocks other readers in the
    kernel."""
    return tuple(
        Interface(one.name, one.address, one.up, _speed(one, root) if speeds else None) for one in kernel
    )


def _speed(one: KernelInterface, root: Path) -> int | None:
    """Mb/s; None if the driver reports -1 or nothing, or if sysfs shows another network namespace."""
    folder = root / "class" / "net" / one.name
    speed = sysfs.text(folder / "speed") if sysfs.text(folder / "ifindex") == str(one.number) else ""
    return int(speed) if speed.isdecimal() else None


def ports(root: Path) -> tuple[Port, ...]:
    """RDMA ports, from sysfs (`root`)."""
    return tuple(
        Port(
            device=port.parts[-3],
            port=int(port.name),
            state=sysfs.text(port / "state").rpartition(": ")[2],  # "4: ACTIVE"
            rate_gbit=gigabits(sysfs.text(port / "rate")),
            link_layer=sysfs.text(port / "link_layer"),
        )
        for port in sorted((root / "class" / "infiniband").glob("*/ports/*"))
    )
