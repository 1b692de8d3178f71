"""Error counters and states of a host's network: RDMA ports, interfaces, TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshrun.runner.system.sysfs import text as read

Part = tuple[str, str]  # part such as "mlx5_0 port 1", "eth0" or "TCP", counter

# In counters/ (InfiniBand's own, which RoCE ports have too) and in hw_counters/ (the driver's).
RDMA = {
    "counters": (
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_rcv_constraint_errors",
        "port_xmit_discards",
        "port_xmit_constraint_errors",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
    ),
    "hw_counters": (
        "out_of_sequence",
        "packet_seq_err",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "out_of_buffer",
        "rx_icrc_encapsulated",
        "roce_adp_retrans",
        "roce_slow_restart",
        "np_cnp_sent",
        "np_ecn_marked_roce_packets",
        "rp_cnp_handled",
        "rx_drops",  # this one and the next two: EFA
        "retrans_pkts",
        "retrans_timeout_events",
    ),
}
STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
TCP = {"net/snmp": ("OutSegs", "RetransSegs", "InErrs"), "net/netstat": ("TCPLostRetransmit", "TCPTimeouts")}
# Bytes of a unit, sent, received: InfiniBand and RoCE count words of 4 bytes; EFA has its driver's counters.
RDMA_TRAFFIC = (
    (4, "counters/port_xmit_data", "counters/port_rcv_data"),
    (1, "hw_counters/tx_bytes", "hw_counters/rx_bytes"),
)
INFINIBAND = "32"  # of an interface's type: IP over InfiniBand, whose bytes the RDMA port counts too
TABLES = ("Tcp:", "TcpExt:")


def network_counters(root: Path, proc: Path) -> dict[Part, float | str]:
    """Read the counters that this host's kernel has."""
    return dict([*_rdma(root / "class" / "infiniband"), *_interfaces(root / "class" / "net"), *_tcp(proc)])


def _rdma(devices: Path) -> Iterator[tuple[Part, float | str]]:
    for port in sorted(devices.glob("*/ports/*")):
        part = f"{port.parts[-3]} port {port.name}"
        for name, counter in (("state", "state"), ("phys_state", "physical state"), ("rate", "rate")):
            if value := read(port / name):
                yield (part, counter), value
        for folder, names in RDMA.items():
            yield from _numbers(part, port / folder, names)


def _interfaces(interfaces: Path) -> Iterator[tuple[Part, float | str]]:
    """Counters of hardware interfaces, and of virtual ones that are up, such as a container's.

    Only hardware has a link state here: virtual interfaces come and go with their users.
    """
    for path in sorted(interfaces.glob("*")):
        state = read(path / "operstate")
        if (path / "device").exists():
            if state:
                yield (path.name, "state"), state
            yield from _numbers(path.name, path, ("carrier_changes",))
            yield from _numbers(path.name, path / "statistics", ("rx_crc_errors",))
        elif state != "up":
            continue
        yield from _numbers(path.name, path / "statistics", STATISTICS)


def _numbers(part: str, folder: Path, names: tuple[str, ...]) -> Iterator[tuple[Part, float]]:
    for name in names:
        value = read(folder / name)
        if value.isdecimal():
            yield (part, name), float(value)


def _tcp(proc: Path) -> Iterator[tuple[Part, float]]:
    """TCP counters of this process's network namespace. Each table is a line of names and a line of
    values."""
    for file, wanted in TCP.items():
        lines = [line.split() for line in read(proc / file).splitlines()]
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            if names[:1] == values[:1] and names[:1] and names[0] in TABLES:
                table = dict(zip(names[1:], values[1:], strict=False))
                yield from ((("TCP", name), float(table[name])) for name in wanted if name in table)


def rdma_traffic(root: Path = Path("/sys")) -> dict[str, tuple[float, float]]:
    """Bytes sent and received so far by each RDMA port of this host, by "mlx5_0 port 1"."""
    found = {}
    for port in sorted((root / "class" / "infiniband").glob("*/ports/*")):
        for unit, *names in RDMA_TRAFFIC:
            sent, received = (read(port / name) for name in names)
            if sent.isdecimal() and received.isdecimal():
                found[f"{port.parts[-3]} port {port.name}"] = (unit * float(sent), unit * float(received))
                break
    return found


def ip_traffic(root: Path = Path("/sys"), proc: Path = Path("/proc")) -> dict[str, tuple[float, float]]:
    """Bytes sent and received so far by the interfaces of this process's network namespace, by name.

    Those of hardware and the loopback; without hardware, as in a container, all. Bridges and bonds would
    count their members' bytes a second time, IP over InfiniBand those of the RDMA port.
    """
    counts = {}
    for line in read(proc / "net" / "dev").splitlines():  # "  eth0: 16 numbers", received first
        name, colon, numbers = line.partition(":")
        if colon:
            counts[name.strip()] = (float(numbers.split()[8]), float(numbers.split()[0]))
    folder = root / "class" / "net"
    counts = {name: both for name, both in counts.items() if read(folder / name / "type") != INFINIBAND}
    hardware = {name for name in counts if (folder / name / "device").exists()}
    return {name: both for name, both in counts.items() if not hardware or name in hardware | {"lo"}}
