"""Counters: NVML replaced by an object with its functions, sysfs and procfs by trees of files."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import pytest
from nvml import UUID, NotSupported, NVMLError, loaded
from nvml_counters import VALUE_TYPES, Nvml

from meshrun.runner.system.counters import gpu as counters_gpu
from meshrun.runner.system.counters.gpu import gpu_counters, nvlink_traffic
from meshrun.runner.system.counters.network import RDMA, ip_traffic, network_counters, rdma_traffic
from meshrun.runner.system.counters.processor import processor_counters, stolen_seconds
from meshrun.runner.system.counters.read import read_counters

NOWHERE = Path("/nonexistent")
CALLS: dict[object, int] = {
    ("clock", 1): 1980,
    ("most", 1): 1980,
    ("clock", 2): 3201,
    ("most", 2): 3201,
    ("temperature", 0): 41,
    "power": 123_456,
    "power limit": 700_000,
    "performance state": 0,
    "width": 16,
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


# GPUs.


def read(uuid: str, local: int, module: Nvml) -> dict[tuple[str, str], float | str]:
    with loaded(module):
        return gpu_counters(uuid, local)


def test_a_hopper() -> None:
    """Two links, one down: errors by the function of each link; the fields of later NVLinks are not there."""
    fields: dict[object, float] = {94: 7, 3: 2, 4: 1, 142: 3, 143: 0, 144: 0, 145: 0, 230: 0}
    times: dict[object, float] = {74: 2.5e9, 75: 1e9, 76: 0, 77: 0, 269: 1e9, 270: 0, 271: 0}
    errors = {(link, counter): 10 * link + counter for link in (0, 1) for counter in (0, 1, 2)}
    found = read(UUID, 3, Nvml([1, 0], fields | times, errors, CALLS))
    own = {counter: value for (part, counter), value in found.items() if part == "GPU 3"}
    assert own == {
        "PCIe replays": 7,
        "ECC corrected": 2,
        "ECC uncorrected": 1,
        "remapped rows, corrected": 3,
        "remapped rows, uncorrected": 0,
        "remapped rows, pending": 0,
        "remapped rows, failure": 0,
        "recovery action": 0,
        "slowed by power cap": 2.5,
        "slowed by sync boost": 0,
        "slowed by board limit": 0,
        "slowed by heat, driver": 1.0,
        "slowed by heat, hardware": 0,
        "slowed by power brake": 0,
        "SM clock": 1980,
        "SM clock, most": 1980,
        "memory clock": 3201,
        "memory clock, most": 3201,
        "temperature": 41,
        "power": 123.456,
        "power limit": 700,
        "performance state": "P0",
        "PCIe width": 16,
    }
    links = {key: value for key, value in found.items() if key[0] != "GPU 3"}
    assert links == {
        ("GPU 3, NVLink 0", "state"): "up",
        ("GPU 3, NVLink 0", "replays"): 0,
        ("GPU 3, NVLink 0", "recoveries"): 1,
        ("GPU 3, NVLink 0", "CRC flit errors"): 2,
        ("GPU 3, NVLink 1", "state"): "down",
        ("GPU 3, NVLink 1", "replays"): 10,
        ("GPU 3, NVLink 1", "recoveries"): 11,
        ("GPU 3, NVLink 1", "CRC flit errors"): 12,
    }


def test_later_nvlinks_have_fields_of_each_link() -> None:
    numbers = (221, 219, 213, 214, 208, 209, 206, 207, 211, 212)
    fields: dict[object, float] = {(field, link): 1000 * link + field for field in numbers for link in (0, 1)}
    found = read(UUID, 0, Nvml([1, 1], fields))
    second = {name: value for (part, name), value in found.items() if part == "GPU 0, NVLink 1"}
    assert second == {
        "state": "up",
        **dict(zip(counters_gpu.LINK_FIELDS, (1000 + field for field in numbers), strict=True)),
    }


def test_heat_counts_once() -> None:
    """Older drivers have one time for heat, newer ones two more, which are parts of it."""
    old = read(UUID, 0, Nvml(fields={75: 3e9}))
    new = read(UUID, 0, Nvml(fields={75: 3e9, 270: 2e9}))
    assert old == {("GPU 0", "slowed by heat"): 3.0}
    assert new == {("GPU 0", "slowed by heat, hardware"): 2.0}


def test_reasons_of_the_moment_where_there_are_no_times() -> None:
    found = read(UUID, 0, Nvml(calls={"reasons": 0x1 | 0x4 | 0x40}))  # idle says nothing
    on = {counter for (_, counter), value in found.items() if value == 1.0}
    off = {counter for (_, counter), value in found.items() if value == 0.0}
    assert on == {"slowed now by power cap", "slowed now by heat, hardware"}
    assert len(off) == 3
    timed = read(UUID, 0, Nvml(fields={74: 0}, calls={"reasons": 0x4}))
    assert timed == {("GPU 0", "slowed by power cap"): 0.0}


@pytest.mark.parametrize("member", VALUE_TYPES)
def test_a_field_tells_which_of_its_values_counts(member: str) -> None:
    nvml = Nvml(fields={94: 5})
    nvml.type = member
    assert read(UUID, 0, nvml) == {("GPU 0", "PCIe replays"): 5.0}


def test_a_module_that_does_not_know_a_field_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
    assert read(UUID, 0, Nvml(fields={230: 1, 94: 5})) == {("GPU 0", "PCIe replays"): 5.0}


@pytest.mark.parametrize(
    ("failing", "missing", "left"),
    [
        ("handle", "", ()),
        ("fields", "PCIe replays", ("SM clock", "state")),
        ("call", "SM clock", ("PCIe replays", "state")),
        ("state", "state", ("SM clock", "PCIe replays")),
    ],
)
@pytest.mark.parametrize("error", [NVMLError("GPU is lost"), NotSupported("Not Supported")])
def test_what_cannot_be_read_is_absent(
    failing: str, missing: str, left: tuple[str, ...], error: NVMLError
) -> None:
    nvml = Nvml([1], {94: 7}, {(0, 0): 1}, CALLS, {failing: error})
    found = {counter for _, counter in read(UUID, 0, nvml)}
    assert missing not in found
    assert found >= set(left)
    assert bool(found) == bool(left)


def test_xid_errors_are_kept_in_their_order() -> None:
    nvml = Nvml(xids=[])
    with loaded(nvml):
        first = gpu_counters(UUID, 3)
        assert nvml.xids is not None
        nvml.xids += [63, 94]
        second = gpu_counters(UUID, 3)
        nvml.xids += [63]
        third = gpu_counters(UUID, 3)
    found = [one["GPU 3", "Xid errors"] for one in (first, second, third)]
    assert found == ["none", "63, 94", "63, 94, 63"]


def traffic(module: Nvml | None, uuid: str = UUID) -> dict[str, tuple[float, float]]:
    with loaded(module):
        return nvlink_traffic(uuid)


def test_bytes_through_nvlinks() -> None:
    """Up to Hopper a field counts KiB, later ones another one bytes; links that are down have none."""
    hopper: dict[object, float] = {
        (138, 0): 3,
        (139, 0): 4,
        (138, 2): 5,
        (139, 2): 6,
        (138, 1): 9,
        (139, 1): 9,
    }
    assert traffic(Nvml([1, 0, 1], hopper)) == {"NVLink 0": (3072, 4096), "NVLink 2": (5120, 6144)}
    assert traffic(Nvml([1, 1], {(202, 1): 77, (204, 1): 88})) == {"NVLink 1": (77, 88)}
    assert traffic(Nvml([1], {(138, 0): 3})) == {}  # one way is no traffic


@pytest.mark.parametrize("failing", ["init", "handle", "fields", "state"])
def test_bytes_that_nvml_does_not_tell(failing: str) -> None:
    fields: dict[object, float] = {(138, 0): 3, (139, 0): 4}
    assert traffic(Nvml([1], fields, failing={failing: NVMLError("Lost")})) == {}
    assert traffic(None) == {}


def test_a_gpu_that_nvml_does_not_know() -> None:
    assert traffic(Nvml([1], {(138, 0): 3, (139, 0): 4}), "GPU-other") == {}
    assert read("GPU-other", 0, Nvml([1], {94: 7})) == {}


def test_the_names_are_those_of_the_module() -> None:
    """The object stands for pynvml: whatever it has, pynvml has, with the same numbers."""
    pynvml = pytest.importorskip("pynvml")
    ours = [name for name in vars(Nvml) if name.lower().startswith("nvml")]
    assert len(ours) > 40
    for name in ours:
        value = getattr(pynvml, name)
        assert callable(value) or value == getattr(Nvml, name), name
    tables = (counters_gpu.FIELDS, counters_gpu.TIMES, counters_gpu.REASONS, counters_gpu.LINK_ERRORS)
    used = [name for table in (*tables, counters_gpu.LINK_FIELDS) for name in table.values()]
    used += [name for _, *names in counters_gpu.LINK_TRAFFIC for name in names]
    assert [name for name in used if not hasattr(Nvml, name)] == []
    members = [name for name, _ in pynvml.c_nvmlValue_t._fields_]
    assert tuple(members) == counters_gpu.MEMBERS
    assert [getattr(pynvml, f"NVML_VALUE_TYPE_{name}") for name in ("DOUBLE", "UNSIGNED_SHORT")] == [0, 6]


# NVML's start, which takes long.


def test_nvml_is_initialised_once() -> None:
    nvml = Nvml(fields={94: 7})
    with loaded(nvml):
        first, second = (read_counters(UUID, 1, NOWHERE, NOWHERE) for _ in range(2))
    assert nvml.initialized == 1
    assert first["GPU 1", "PCIe replays"] == second["GPU 1", "PCIe replays"] == 7


@pytest.mark.parametrize("module", [None, Nvml(failing={"init": NVMLError("Driver Not Loaded")})])
def test_without_nvml(module: Nvml | None) -> None:
    with loaded(module):
        assert list(read_counters(UUID, 0, NOWHERE, NOWHERE)) == [("clock", "seconds")]


def test_a_cpu_asks_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.system.nvml._start", lambda: pytest.fail("NVML was asked"))
    before = time.monotonic()
    assert before <= float(read_counters(None, 0, NOWHERE, NOWHERE)["clock", "seconds"])


# The network.


def test_an_rdma_port_with_all_its_counters(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE")
    write(port / "phys_state", "5: LinkUp")
    write(port / "rate", "400 Gb/sec (4X NDR)")
    wanted = {
        (folder, name): number
        for number, (folder, name) in enumerate((folder, name) for folder in RDMA for name in RDMA[folder])
    }
    for (folder, name), number in wanted.items():
        write(port / folder / name, str(number))
    write(port / "counters/port_xmit_data", "123")  # traffic is no error
    assert network_counters(tmp_path, NOWHERE) == {
        ("mlx5_0 port 1", "state"): "4: ACTIVE",
        ("mlx5_0 port 1", "physical state"): "5: LinkUp",
        ("mlx5_0 port 1", "rate"): "400 Gb/sec (4X NDR)",
        **{("mlx5_0 port 1", name): float(number) for (_, name), number in wanted.items()},
    }


def test_ports_that_tell_little(tmp_path: Path) -> None:
    ports = tmp_path / "class/infiniband"
    write(ports / "efa_0/ports/1/hw_counters/retrans_pkts", "4")
    write(ports / "mlx5_1/ports/2/counters/symbol_error", "N/A (no PMA)")
    (ports / "mlx5_1/ports/2/counters/link_downed").mkdir()  # reading it fails
    assert network_counters(tmp_path, NOWHERE) == {("efa_0 port 1", "retrans_pkts"): 4.0}


def test_bytes_through_rdma_ports(tmp_path: Path) -> None:
    """InfiniBand and RoCE count words of four bytes, EFA bytes; what is missing or no number is absent."""
    ports = tmp_path / "class/infiniband"
    write(ports / "mlx5_0/ports/1/counters/port_xmit_data", "1000")
    write(ports / "mlx5_0/ports/1/counters/port_rcv_data", "3")
    write(ports / "efa_0/ports/1/hw_counters/tx_bytes", "70")
    write(ports / "efa_0/ports/1/hw_counters/rx_bytes", "80")
    write(ports / "mlx5_1/ports/1/counters/port_xmit_data", "1000")
    write(ports / "mlx5_2/ports/1/counters/port_xmit_data", "N/A (no PMA)")
    write(ports / "mlx5_2/ports/1/counters/port_rcv_data", "N/A (no PMA)")
    assert rdma_traffic(tmp_path) == {"mlx5_0 port 1": (4000, 12), "efa_0 port 1": (70, 80)}
    assert rdma_traffic(NOWHERE) == {}


DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       5       1    0    0    0     0          0         0        5       1    0    0    0     0       0          0
  eth0:     100       1    0    0    0     0          0         0      200       1    0    0    0     0       0          0
 br-12:     100       1    0    0    0     0          0         0      200       1    0    0    0     0       0          0
   ib0:       7       1    0    0    0     0          0         0        8       1    0    0    0     0       0          0
"""  # noqa: E501


def test_bytes_through_interfaces(tmp_path: Path) -> None:
    """No byte twice: not by a bridge, where there is hardware, and not by IP over InfiniBand."""
    write(tmp_path / "net/dev", DEV)
    write(tmp_path / "class/net/ib0/type", "32")
    everything = {"lo": (5, 5), "eth0": (200, 100), "br-12": (200, 100)}
    assert ip_traffic(tmp_path, tmp_path) == everything  # a container: no hardware
    (tmp_path / "class/net/eth0/device").mkdir(parents=True)
    assert ip_traffic(tmp_path, tmp_path) == {"lo": (5, 5), "eth0": (200, 100)}
    assert ip_traffic(NOWHERE, NOWHERE) == {}


def test_the_kernel_counts_what_is_sent() -> None:
    """A real message through the loopback."""
    before = ip_traffic()["lo"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sender = stack.enter_context(socket.create_connection(server.getsockname()))
        receiver = stack.enter_context(server.accept()[0])
        sender.sendall(bytes(50_000))
        left = 50_000
        while left:
            left -= len(receiver.recv(left))
    after = ip_traffic()["lo"]
    assert after[0] - before[0] >= 50_000
    assert after[1] - before[1] >= 50_000


def add_interface(root: Path, name: str, state: str, hardware: bool) -> None:
    folder = root / "class/net" / name
    write(folder / "operstate", state)
    write(folder / "carrier_changes", "2")
    for number, counter in enumerate(("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors")):
        write(folder / "statistics" / counter, str(number))
    if hardware:
        (folder / "device").mkdir()


def test_interfaces(tmp_path: Path) -> None:
    """Hardware's whether up or not; of the others those that are up, whose links mean nothing."""
    add_interface(tmp_path, "eth0", "up", hardware=True)
    add_interface(tmp_path, "eth1", "down", hardware=True)
    add_interface(tmp_path, "veth3", "up", hardware=False)
    add_interface(tmp_path, "docker0", "down", hardware=False)
    add_interface(tmp_path, "lo", "unknown", hardware=False)
    found = network_counters(tmp_path, NOWHERE)
    errors = {"rx_errors": 0.0, "tx_errors": 1.0, "rx_dropped": 2.0, "tx_dropped": 3.0}
    parts = {
        part: {counter: value for (other, counter), value in found.items() if other == part}
        for part, _ in found
    }
    assert parts == {
        "eth0": {"state": "up", "carrier_changes": 2.0, "rx_crc_errors": 4.0, **errors},
        "eth1": {"state": "down", "carrier_changes": 2.0, "rx_crc_errors": 4.0, **errors},
        "veth3": errors,
    }


def test_tcp(tmp_path: Path) -> None:
    ours = "Tcp: RtoMin MaxConn OutSegs RetransSegs InErrs\nTcp: 200 -1 1000 7 1"
    write(tmp_path / "net/snmp", f"Ip: Forwarding OutSegs\nIp: 1 99\n{ours}")
    write(tmp_path / "net/netstat", "TcpExt: TCPTimeouts TCPLostRetransmit\nTcpExt: 5 6\nIpExt: A\nIpExt: 1")
    assert network_counters(NOWHERE, tmp_path) == {
        ("TCP", "OutSegs"): 1000.0,
        ("TCP", "RetransSegs"): 7.0,
        ("TCP", "InErrs"): 1.0,
        ("TCP", "TCPLostRetransmit"): 6.0,
        ("TCP", "TCPTimeouts"): 5.0,
    }


@pytest.mark.parametrize("text", ["", "Tcp: OutSegs", "Tcp:\nTcp:", "Tcp: A\n\nTcpExt: 1"])
def test_tables_cut_short(tmp_path: Path, text: str) -> None:
    write(tmp_path / "net/snmp", text)
    assert network_counters(NOWHERE, tmp_path) == {}


# The processors.

STAT = """cpu  1000 20 300 4000 50 6 7 800 30 4
cpu0 600 10 200 1500 25 3 4 500 30 4
cpu1 400 10 100 2500 25 3 3 300 0 0
intr 1 2 3"""


def test_stolen_time(tmp_path: Path) -> None:
    write(tmp_path / "stat", STAT)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    found = processor_counters(tmp_path)
    # Guests' time is in that of user and nice already.
    assert found == pytest.approx(
        {("processors", "seconds"): 6183 * tick, ("processors", "stolen"): 800 * tick}
    )
    assert found.items() <= read_counters(None, 0, NOWHERE, tmp_path).items()
    of_cores = [stolen_seconds(cores, tmp_path) for cores in ({0}, {1}, {0, 1}, {7}, set())]
    assert of_cores == pytest.approx([500 * tick, 300 * tick, 400 * tick, 0, 0])


@pytest.mark.parametrize("text", ["", "cpu  1 2 3", "intr 5", "\n"])
def test_kernels_that_tell_of_no_stolen_time(tmp_path: Path, text: str) -> None:
    write(tmp_path / "stat", text)
    assert processor_counters(tmp_path) == {}
    assert stolen_seconds({0}, tmp_path) == 0


def test_this_machine() -> None:
    """Counters only grow between two readings, and the clock by the time between them."""
    begin = time.monotonic()
    before, after = (read_counters(None, 0) for _ in range(2))
    taken = time.monotonic() - begin
    assert {("TCP", "OutSegs"), ("processors", "seconds"), ("clock", "seconds")} <= before.keys()
    both = [(before[key], after[key]) for key in before if key in after]
    assert all(old <= new for old, new in both if isinstance(old, float) and isinstance(new, float))
    assert 0 < float(after["clock", "seconds"]) - float(before["clock", "seconds"]) <= taken
