"""The facts of one rank that the preflight checks: host, GPU, libraries, cores, network, limits."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.report.versions import installed_version
from meshrun.runner.system import launcher, sysfs
from meshrun.runner.system.gpu import GpuFacts, read_gpu
from meshrun.runner.system.network import Interface, Port, interfaces, kernel_interfaces, ports
from meshrun.runner.world.world import Rank

__all__ = ["GpuFacts", "Interface", "Port", "Survey", "survey"]

HIDDEN = "(hidden)"  # the value of a variable that may be secret
PREFIXES = ("NCCL_", "UCX_", "FI_")
# Variables that change how CUDA runs; other CUDA_* variables are paths.
CUDA = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
)
IPC_LOCK = 14  # the capability that lifts the limit on locked memory


@dataclass(frozen=True)
class Survey:
    """One rank's facts.

    host_id: unique id of the host. visible: CUDA_VISIBLE_DEVICES. nccl: version and file, if the rank has a
    GPU. mpi: name and version. cpus: those it may run on; one_core: they are the hardware threads of one
    core, and the host has more. numa: the nodes of `cpus`. interfaces: with speeds only on local rank 0.
    ports: RDMA ports, only on local rank 0. memlock: bytes that may be locked; None for no limit, or the
    capability to exceed it. shm_total, shm_free: bytes of /dev/shm, 0 without it. settings: variables of
    NCCL, UCX, libfabric and CUDA.
    """

    rank: int
    host: str
    host_id: str
    local_rank: int
    pid: int
    gpu: GpuFacts | None = None
    visible: str | None = None
    nccl: tuple[str, str] | None = None
    mpi: str = ""
    meshrun: str = ""
    python: str = ""
    cpus: tuple[int, ...] = ()
    one_core: bool = False
    numa: tuple[int, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()
    memlock: int | None = None
    shm_total: int = 0
    shm_free: int = 0
    settings: dict[str, str] = field(default_factory=dict)


def survey(
    here: Rank,
    mpi: str = "",
    *,
    cuda_runtime: int = 0,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    shm: Path = Path("/dev/shm"),
) -> Survey:
    """This process's facts; unknown ones are None, 0 or empty, never guessed.

    mpi: name and version. cuda_runtime: CUDA's version number
    (12090 is 12.9). environment: by default this process's variables. root: sysfs.

    Raises UserError if two copies of libnccl are loaded.
    """
    environment = launcher.environment() if environment is None else environment
    gpu = here.device if here.device.kind == "cuda" else None
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    online = _online(root)
    total, free = _room(shm)
    return Survey(
        rank=here.number,
        host=here.host,
        host_id=here.host_id,
        local_rank=here.local,
        pid=here.pid,
        gpu=read_gpu(gpu.name, gpu.uuid, gpu.bus_id, gpu.index, cuda_runtime, root, online[-1] + 1)
        if gpu
        else None,
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
        nccl=_nccl() if gpu else None,
        mpi=mpi,
        meshrun=installed_version("meshrun") or "",
        python=sys.version.split()[0],
        cpus=cpus,
        one_core=on_one_core(cpus, online, root),
        numa=numa_nodes(cpus, root),
        interfaces=interfaces(kernel_interfaces(proc), root, speeds=here.local == 0),
        ports=ports(root) if here.local == 0 else (),
        memlock=_memlock(proc),
        shm_total=total,
        shm_free=free,
        settings=settings(environment),
    )


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how NCCL, UCX, libfabric and CUDA run, by name; secret values hidden."""
    names = sorted(name for name in environment if name.startswith(PREFIXES) or name in CUDA)
    return {name: HIDDEN if launcher.is_secret(name) else environment[name] for name in names}


def _nccl() -> tuple[str, str] | None:
    """Version and file; None without NCCL, which a single GPU rank does not need."""
    from meshrun.runner.comm import nccl

    try:
        nccl.load()
    except UserError:
        return None
    return nccl.version(), nccl.library_path()


def _online(root: Path) -> tuple[int, ...]:
    listed = sysfs.numbers(sysfs.text(root / "devices" / "system" / "cpu" / "online"))
    return listed or tuple(range(os.cpu_count() or 1))


def on_one_core(cpus: tuple[int, ...], online: tuple[int, ...], root: Path) -> bool:
    """Whether `cpus` are hardware threads of one core while `online` has other cores."""
    topology = root / "devices" / "system" / "cpu" / f"cpu{cpus[0]}" / "topology"
    core = {cpus[0], *sysfs.numbers(sysfs.text(topology / "thread_siblings_list"))}
    return core.issuperset(cpus) and not core.issuperset(online)


def numa_nodes(cpus: tuple[int, ...], root: Path) -> tuple[int, ...]:
    """The NUMA nodes that `cpus` belong to, ascending."""
    wanted = set(cpus)
    return tuple(
        sorted(
            int(path.parent.name.removeprefix("node"))
            for path in (root / "devices" / "system" / "node").glob("node[0-9]*/cpulist")
            if not wanted.isdisjoint(sysfs.numbers(sysfs.text(path)))
        )
    )


def _memlock(proc: Path) -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or may_lock_all(proc) else soft


def may_lock_all(proc: Path) -> bool:
    """Whether this process has CAP_IPC_LOCK in the initial user namespace, the only one where it is
    effective."""
    effective = "0"
    for line in sysfs.text(proc / "self" / "status").splitlines():
        if line.startswith("CapEff:"):
            effective = line.split()[1]
    whole = sysfs.text(proc / "self" / "uid_map").split() == ["0", "0", str(2**32 - 1)]
    return whole and bool(int(effective, 16) >> IPC_LOCK & 1)


def _room(shm: Path) -> tuple[int, int]:
    """Total and free bytes of a file system."""
    try:
        found = shutil.disk_usage(shm)
    except OSError:
        return 0, 0
    return found.total, found.free
