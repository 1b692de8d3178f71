"""A rank's facts: of this machine, of sysfs as a tree of files, of NVML as an object with its functions."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml import UUID, NotSupported, NVMLError, load, loaded

from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.system import network, sysfs
from meshrun.runner.system.gpu import _nvml_facts, dotted, read_gpu
from meshrun.runner.system.network import KernelInterface, interfaces, kernel_interfaces, ports
from meshrun.runner.world.preflight.survey import (
    Interface,
    Port,
    may_lock_all,
    numa_nodes,
    on_one_core,
    settings,
    survey,
)
from meshrun.runner.world.world import Rank

GPU = Device("cuda", "NVIDIA H200", 1, UUID, "0000:1A:00.0")
CPU = Device("cpu", "some CPU")
HERE = Rank(0, "n1", "n1/boot", 0, os.getpid(), CPU)
NOWHERE = Path("/nonexistent")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


# This machine.


def test_this_machine() -> None:
    found = survey(Rank(3, "n1", "n1/boot", 0, os.getpid(), CPU), "Some MPI 1.0")
    assert (found.rank, found.host, found.host_id, found.local_rank) == (3, "n1", "n1/boot", 0)
    assert found.mpi == "Some MPI 1.0"
    assert found.pid == os.getpid()
    assert found.gpu is None
    assert found.nccl is None
    assert found.python == sys.version.split()[0]
    assert set(found.cpus) == os.sched_getaffinity(0)
    space = os.statvfs("/dev/shm")
    assert found.shm_total == space.f_blocks * space.f_frsize
    assert 0 <= found.shm_free <= found.shm_total
    assert {one.name for one in found.interfaces} == {name for _, name in socket.if_nameindex()}
    assert found.settings == settings(os.environ)


def test_a_cpu_is_no_gpu() -> None:
    assert survey(HERE).gpu is None


def test_the_environment_given_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert survey(HERE).settings["NCCL_DEBUG"] == "INFO"
    assert survey(HERE).visible == "7"
    bare = survey(HERE, environment={})
    assert (bare.settings, bare.visible) == ({}, None)
    assert survey(HERE, environment={"CUDA_VISIBLE_DEVICES": ""}).visible == ""


def test_values_that_look_secret_are_hidden() -> None:
    found = settings({"NCCL_API_TOKEN": "hunter2", "UCX_password": "hunter2", "NCCL_ALGO": "Ring"})
    assert found == {"NCCL_API_TOKEN": "(hidden)", "UCX_password": "(hidden)", "NCCL_ALGO": "Ring"}


def test_settings_are_those_of_communication_and_cuda() -> None:
    wanted = {"NCCL_ALGO": "Ring", "UCX_TLS": "tcp", "FI_PROVIDER": "efa", "CUDA_LAUNCH_BLOCKING": "1"}
    others = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_HOME": "/usr", "PATH": "/bin", "MY_NCCL_KEY": "secret"}
    assert settings({**others, **wanted}) == wanted


def test_only_the_first_rank_of_a_host_asks_for_what_is_the_hosts(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", 1, "400 Gb/sec (4X NDR)")
    for number, name in socket.if_nameindex():
        write(tmp_path / "class/net" / name / "speed", "1000")
        write(tmp_path / "class/net" / name / "ifindex", str(number))
    first, second = (survey(replace(HERE, local=local), root=tmp_path) for local in (0, 1))
    assert [one.mbit for one in first.interfaces] == [1000] * len(first.interfaces)
    assert [one.mbit for one in second.interfaces] == [None] * len(first.interfaces)
    assert [one.name for one in second.interfaces] == [one.name for one in first.interfaces]
    assert (len(first.ports), second.ports) == (1, ())


def test_where_nothing_can_be_read(tmp_path: Path) -> None:
    found = survey(HERE, root=NOWHERE, proc=NOWHERE, shm=NOWHERE)
    assert (found.numa, found.ports, found.shm_total, found.shm_free) == ((), (), 0, 0)
    assert found.cpus


def test_a_process_bound_to_one_core() -> None:
    """In a process of its own, where the machine has more than one."""
    code = (
        "import os; from meshrun.runner.device.cpu import CpuBackend\n"
        "from meshrun.runner.world.preflight.survey import survey\n"
        "from meshrun.runner.world.world import single_rank_world\n"
        "here = single_rank_world(CpuBackend()).here\n"
        "before = survey(here).one_core\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "after = survey(here)\n"
        "print(before, after.one_core, len(after.cpus))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    ours, online = os.sched_getaffinity(0), numbers(Path("/sys/devices/system/cpu/online"))
    siblings = Path(f"/sys/devices/system/cpu/cpu{min(ours)}/topology/thread_siblings_list")
    before = ours <= numbers(siblings) < online
    assert found.stdout.split() == [str(before), "True", "1"]


def numbers(file: Path) -> set[int]:
    """Of a list as the kernel writes it: 0-3,8."""
    ranges = [part.split("-") for part in file.read_text().strip().split(",")]
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}


# Cores and NUMA nodes.


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ()), ("0", (0,)), ("0-2,8", (0, 1, 2, 8)), ("0,2-3\n", (0, 2, 3)), ("0-1,48-49", (0, 1, 48, 49))],
)
def test_lists_of_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert sysfs.numbers(text) == expected


@given(st.sets(st.integers(0, 300)))
def test_lists_of_numbers_are_read_back(wanted: set[int]) -> None:
    from meshrun.runner.world.watchdog.report import MAX_RANGES, ranges

    if ranges(sorted(wanted)).count(",") < MAX_RANGES:
        assert sysfs.numbers(ranges(sorted(wanted)).replace(" ", "")) == tuple(sorted(wanted))


def test_numa_nodes(tmp_path: Path) -> None:
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15", "")):  # the last has memory only
        write(tmp_path / f"devices/system/node/node{node}/cpulist", cpus)
    assert numa_nodes((0, 8), tmp_path) == (0,)
    assert numa_nodes((12,), tmp_path) == (1,)
    assert numa_nodes((3, 4), tmp_path) == (0, 1)


@pytest.mark.parametrize(
    ("cpus", "online", "expected"),
    [
        ((2,), range(8), True),
        ((2, 6), range(8), True),  # both hardware threads
        ((2, 3), range(8), False),
        ((2, 6), (2, 6), False),  # the machine has no other core
        (tuple(range(8)), range(8), False),
    ],
)
def test_one_core(tmp_path: Path, cpus: tuple[int, ...], online: range, expected: bool) -> None:
    for cpu in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        write(folder / "thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    assert on_one_core(cpus, tuple(online), tmp_path) == expected


# Limits.


@pytest.mark.parametrize(
    ("capabilities", "users", "expected"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("00000000a80425fb", "0 0 4294967295", False),  # a container's, without IPC_LOCK
        ("00000000a80465fb", "0 0 4294967295", True),  # with
        ("000001ffffffffff", "0 1000 1", False),  # root of a user namespace
        ("", "", False),
    ],
)
def test_who_may_lock_all_memory(tmp_path: Path, capabilities: str, users: str, expected: bool) -> None:
    write(tmp_path / "self/status", f"Name:\tpython\nCapEff:\t{capabilities}" if capabilities else "Name: x")
    write(tmp_path / "self/uid_map", users)
    assert may_lock_all(tmp_path) == expected


def test_the_limit_on_locked_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
        assert survey(HERE, proc=tmp_path).memlock == 65536
        write(tmp_path / "self/status", "CapEff:\t0000000000004000")
        write(tmp_path / "self/uid_map", "0 0 4294967295")
        assert survey(HERE, proc=tmp_path).memlock is None
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


# Network.


def test_loopback_as_the_kernel_has_it() -> None:
    loopback = {one.name: one for one in kernel_interfaces()}["lo"]
    assert loopback.address == "127.0.0.1"
    assert loopback.up


def test_an_interface_that_is_not_there_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes between the list and the question."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(99, "gone0")])
    assert kernel_interfaces() == [KernelInterface("gone0", 99, "", False)]


def test_ipv6_where_there_is_no_ipv4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "fe800000000000000000000000000001 02 40 20 80     six0",
        "fd000000000000000000000000000002 02 40 00 82     six0",
        "fd000000000000000000000000000003 02 40 00 82     six0",
        "fe800000000000000000000000000001 03 40 20 80     link0",
        "fd000000000000000000000000000009 01 40 00 82     lo",
    )
    write(tmp_path / "net/if_inet6", "\n".join(lines))
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "six0"), (3, "link0")])
    addresses = {one.name: one.address for one in kernel_interfaces(tmp_path)}
    assert addresses == {"lo": "127.0.0.1", "six0": "fd00::2", "link0": ""}


def test_up_is_switched_on_and_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"up0": 0x1043, "off0": 0x1002, "unplugged0": 0x1003}

    def ioctl(asking: object, what: int, request: bytes) -> bytes:
        name = request.partition(b"\0")[0].decode()
        if what != network.SIOCGIFFLAGS:
            raise OSError("Cannot assign requested address")
        return request[:16] + answers[name].to_bytes(2, sys.byteorder) + bytes(22)

    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(answers)))
    monkeypatch.setattr(network.fcntl, "ioctl", ioctl)
    assert {one.name: one.up for one in kernel_interfaces(NOWHERE)} == {
        "up0": True,
        "off0": False,
        "unplugged0": False,
    }


@pytest.mark.parametrize(
    ("speed", "number", "expected"),
    [("100000", "2", 100000), ("-1", "2", None), (None, "2", None), ("100000", "7", None)],
    ids=["told", "virtual", "driver silent", "another namespace's sysfs"],
)
def test_speeds(tmp_path: Path, speed: str | None, number: str, expected: int | None) -> None:
    write(tmp_path / "class/net/eth0/ifindex", number)
    if speed is not None:
        write(tmp_path / "class/net/eth0/speed", speed)
    kernel = [KernelInterface("eth0", 2, "10.0.0.1", True)]
    assert interfaces(kernel, tmp_path, speeds=True) == (Interface("eth0", "10.0.0.1", True, expected),)
    assert interfaces(kernel, tmp_path, speeds=False) == (Interface("eth0", "10.0.0.1", True),)


def add_port(
    root: Path, device: str, port: int, rate: str, state: str = "4: ACTIVE", layer: str = "InfiniBand"
) -> None:
    folder = root / "class/infiniband" / device / "ports" / str(port)
    for name, text in (("rate", rate), ("state", state), ("link_layer", layer)):
        write(folder / name, text)


def test_rdma_ports(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_1", 1, "40 Gb/sec (4X QDR)", "1: DOWN", "Ethernet")
    add_port(tmp_path, "mlx5_0", 2, "odd", "2: INIT")
    add_port(tmp_path, "mlx5_0", 1, "400 Gb/sec (4X NDR)")
    assert ports(tmp_path) == (
        Port("mlx5_0", 1, "ACTIVE", 400.0, "InfiniBand"),
        Port("mlx5_0", 2, "INIT", None, "InfiniBand"),
        Port("mlx5_1", 1, "DOWN", 40.0, "Ethernet"),
    )


# The GPU.


CUDA = (GPU.name, GPU.uuid, GPU.bus_id, GPU.index)


class Nvml(nvml.Nvml):
    """One of eight GPUs on a host."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._answer("driver", "580.95.05"))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return int(self._answer("cuda", 13000))

    def nvmlDeviceGetCount(self) -> int:
        return int(self._answer("count", 8))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: str) -> int:
        return int(self._answer("pcie", 1))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: str) -> int:
        return int(self._answer("pcie", 5))

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: str) -> int:
        return int(self._answer("pcie", 8))

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: str) -> int:
        return int(self._answer("pcie", 16))

    def nvmlDeviceGetCpuAffinity(self, device: str, words: int) -> list[int]:
        assert words == 2
        return list(self._answer("affinity", [0b101 | 1 << 63, 0b10]))


FACTS = {
    "driver": "580.95.05",
    "cuda_driver": "13.0",
    "on_host": 8,
    "nvlinks_up": 16,
    "nvlinks": 18,
    "pcie_generation": 1,
    "pcie_generation_max": 5,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "cpus": (0, 2, 63, 65),
}


def facts(uuid: str, cpu_count: int, module: Nvml) -> dict[str, object]:
    with loaded(module):
        return _nvml_facts(uuid, cpu_count)


def test_nvml() -> None:
    nvml = Nvml([1] * 16 + [0, 0])
    assert facts(UUID, 66, nvml) == FACTS
    assert nvml.initialized == 1


@pytest.mark.parametrize("cpus", [65, 128])
def test_the_mask_of_cores_has_room_for_all(cpus: int) -> None:
    assert facts(UUID, cpus, Nvml([]))["cpus"] == (0, 2, 63, 65)


@pytest.mark.parametrize(
    ("call", "error", "lost"),
    [
        ("state", NVMLError("GPU is lost"), {"nvlinks_up": None, "nvlinks": None}),
        ("state", NotSupported(), {"nvlinks_up": 0, "nvlinks": 0}),
        ("driver", NVMLError(), {"driver": ""}),
        ("cuda", NVMLError(), {"cuda_driver": ""}),
        ("count", NVMLError(), {"on_host": None}),
        ("affinity", NotSupported(), {"cpus": ()}),
        ("pcie", NotSupported(), {name: None for name in FACTS if name.startswith("pcie")}),
    ],
)
def test_what_nvml_lacks_is_none_and_the_rest_is_told(
    call: str, error: NVMLError, lost: dict[str, object]
) -> None:
    nvml = Nvml([1] * 16 + [0, 0], {call: error})
    assert facts(UUID, 66, nvml) == {**FACTS, **lost}
    assert nvml.initialized == 1


@pytest.mark.parametrize("call", ["init", "handle"])
def test_without_nvml_or_the_gpu_in_it(call: str) -> None:
    nvml = Nvml([1], {call: NVMLError("Driver Not Loaded")})
    assert facts(UUID, 66, nvml) == {}
    assert nvml.initialized == (call != "init")


def test_a_gpu_with_all_links_that_nvml_counts() -> None:
    found = facts(UUID, 66, Nvml([1] * 36))
    assert (found["nvlinks_up"], found["nvlinks"]) == (36, 36)


@pytest.mark.parametrize(("told", "node"), [("1", 1), ("-1", None), (None, None)])
def test_the_numa_node_of_a_gpu(
    tmp_path: Path, told: str | None, node: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, None)
    if told is not None:
        write(tmp_path / "bus/pci/devices/0000:1a:00.0/numa_node", told)
    found = read_gpu(*CUDA, 12090, tmp_path, 8)
    assert (found.numa_node, found.cuda, found.driver, found.nvlinks) == (node, "12.9", "", None)
    assert (found.name, found.uuid, found.bus_id, found.index) == ("NVIDIA H200", UUID, "0000:1A:00.0", 1)


def test_the_cores_near_a_gpu_are_the_systems_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, Nvml([1] * 4, {"affinity": NVMLError("asked")}))
    write(tmp_path / "bus/pci/devices/0000:1a:00.0/local_cpulist", "0-2,8\n")
    found = read_gpu(*CUDA, 12090, tmp_path, 66)
    assert (found.cpus, found.nvlinks_up) == ((0, 1, 2, 8), 4)


def test_where_the_system_does_not_say_nvml_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, Nvml([1] * 4))
    assert read_gpu(*CUDA, 12090, tmp_path, 66).cpus == (0, 2, 63, 65)


def test_a_rank_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NVML, where NCCL is not installed."""
    write(tmp_path / "devices/system/cpu/online", "0-65")
    load(monkeypatch, Nvml([1] * 16 + [0, 0]))
    monkeypatch.setattr(
        "meshrun.runner.world.preflight.survey._nccl", lambda: ("2.28.9", "/lib/libnccl.so.2")
    )
    found = survey(replace(HERE, device=GPU), cuda_runtime=13000, root=tmp_path)
    assert found.nccl == ("2.28.9", "/lib/libnccl.so.2")
    assert found.gpu is not None
    assert {name: getattr(found.gpu, name) for name in FACTS} == FACTS
    assert found.gpu.cuda == "13.0"


class Nccl(ModuleType):
    """Stands for meshrun.runner.comm.nccl, which needs CuPy; `failing`: the function that raises."""

    def __init__(self, failing: str = "") -> None:
        super().__init__("meshrun.runner.comm.nccl")
        self.failing = failing

    def _answer(self, name: str) -> str:
        if name == self.failing:
            raise UserError(f"{name} failed")
        return name

    def load(self) -> str:
        return self._answer("load")

    def version(self) -> str:
        return self._answer("2.28.9")

    def library_path(self) -> str:
        return self._answer("/lib/libnccl.so.2")


@pytest.mark.parametrize(("failing", "expected"), [("", ("2.28.9", "/lib/libnccl.so.2")), ("load", None)])
def test_nccl(monkeypatch: pytest.MonkeyPatch, failing: str, expected: tuple[str, str] | None) -> None:
    monkeypatch.setitem(sys.modules, "meshrun.runner.comm.nccl", Nccl(failing))
    monkeypatch.setattr("meshrun.runner.comm.nccl", Nccl(failing), raising=False)
    assert survey(replace(HERE, device=GPU)).nccl == expected


def test_two_copies_of_nccl_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "meshrun.runner.comm.nccl", Nccl("/lib/libnccl.so.2"))
    monkeypatch.setattr("meshrun.runner.comm.nccl", Nccl("/lib/libnccl.so.2"), raising=False)
    with pytest.raises(UserError, match="failed"):
        survey(replace(HERE, device=GPU))


@pytest.mark.parametrize(("number", "text"), [(12090, "12.9"), (13000, "13.0"), (11080, "11.8"), (0, "")])
def test_cuda_versions(number: int, text: str) -> None:
    assert dotted(number) == text


def test_the_names_are_those_of_the_module() -> None:
    """The object above stands for pynvml: whatever it has, pynvml has."""
    pynvml = pytest.importorskip("pynvml")
    ours = [name for name in dir(Nvml) if name.lower().startswith("nvml")]
    assert len(ours) > 12
    assert [name for name in ours if not hasattr(pynvml, name)] == []
    assert pynvml.NVML_FEATURE_ENABLED == Nvml.NVML_FEATURE_ENABLED
