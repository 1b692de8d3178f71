"""Checks of one host: network, shared and locked memory, links of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrun.runner.spelling import command_option
from meshrun.runner.world.preflight.problem import (
    Problem,
    by_host,
    describe_groups,
    describe_hosts,
    group_by_value,
    rank_numbers,
)
from meshrun.runner.world.preflight.survey import Survey

MIB = 1 << 20
# MPICH 5: 8 ranks die of SIGBUS with 48 MiB of /dev/shm and run with 64. Intel MPI shares its code.
MPICH_SHM = 8 * MIB
# NCCL's shared-memory transport takes 9.6 MB per connection, and a rank has at least one.
NCCL_SHM = 10 * MIB
# Recent releases take another 33 MB per rank, for the queue of its proxy.
NCCL_SHM_ROOMY = 44 * MIB
# NCCL pins 10 MB per channel and direction where the network cannot access GPU memory: at least two
# channels, which exceeds the defaults of distributions (64 KiB, 8 MiB), and at most 32 channels.
MEMLOCK = 40 * MIB
MEMLOCK_ROOMY = 1 << 30


def network(surveys: Sequence[Survey], name: str | None) -> Iterator[Problem]:
    """Problems of the interface `name` that was chosen for the traffic between hosts."""
    if name is None:
        return
    faults, addresses = [], []
    for host in by_host(surveys):
        chosen = [i for i in host[0].interfaces if i.name == name]
        if not chosen:
            others = ", ".join(i.name for i in host[0].interfaces if i.name != "lo" and i.address)
            faults.append((f"missing (there are: {others or 'none'})", host[0]))
        elif not chosen[0].up:
            faults.append(("down", host[0]))
        elif not chosen[0].address:
            faults.append(("up, without an address", host[0]))
        else:
            addresses.append((chosen[0].address, host[0]))
    if faults:
        bad = {survey.host_id for _, survey in faults}
        yield Problem(
            f"hosts cannot be reached on the chosen network, {name}",
            got="; ".join(f"{fault} on {describe_hosts(on)}" for fault, on in group_by_value(faults).items()),
            expected=f"{name} up and with an address on every host",
            hint=f"ip -br address on that host; pass {command_option('network')} an interface of all "
            "hosts, or omit it to use the route between them",
            ranks=rank_numbers(survey for survey in surveys if survey.host_id in bad),
        )
    same = {address: on for address, on in group_by_value(addresses).items() if len(on) > 1}
    if same:
        bad = {survey.host_id for on in same.values() for survey in on}
        yield Problem(
            f"hosts have the same address on the chosen network, {name}",
            got="; ".join(f"{address} on {describe_hosts(on)}" for address, on in same.items()),
            expected="a unique address for each host",
            hint=f"another {command_option('network')}: bridges such as docker0 have one address everywhere",
            ranks=rank_numbers(survey for survey in surveys if survey.host_id in bad),
        )


def shared_memory(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """Too little /dev/shm; a warning if it has the known minimum."""
    small = [(host, *_shm_wanted(host)) for host in by_host(surveys)]
    lacking = [(host, size, why, warning) for host, size, why, warning in small if size]
    for warning in (False, True):
        chosen = [(host, size, why) for host, size, why, mild in lacking if mild == warning]
        if not chosen:
            continue
        had = group_by_value((_shm_had(host), survey) for host, _, _ in chosen for survey in host)
        size, why = max((size, why) for _, size, why in chosen)
        yield Problem(
            f"/dev/shm is {'small' if warning else 'too small'} for the ranks on a host",
            got=describe_groups(had),
            expected=f"{size // MIB} MiB: {why}",
            hint="docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory on "
            "/dev/shm; else rm what an aborted run left there (nccl-*, mpich_shm_*)",
            ranks=rank_numbers(survey for host, _, _ in chosen for survey in host),
            warning=warning,
        )


def _shm_wanted(host: Sequence[Survey]) -> tuple[int, str, bool]:
    """Bytes needed, for what, and whether a run may work with less; 0 bytes if there is enough."""
    ranks, gpus = len(host), sum(survey.gpu is not None for survey in host)
    total, free = (min(getattr(survey, name) for survey in host) for name in ("shm_total", "shm_free"))
    if ranks > 1 and _is_mpich(host[0].mpi) and total < ranks * MPICH_SHM:
        return ranks * MPICH_SHM, f"MPICH takes up to {MPICH_SHM // MIB} MiB per rank", False
    if gpus > 1 and free < gpus * NCCL_SHM:
        return gpus * NCCL_SHM, f"NCCL takes {NCCL_SHM // MIB} MiB per rank at least", False
    if gpus > 1 and free < gpus * NCCL_SHM_ROOMY:
        return gpus * NCCL_SHM_ROOMY, f"NCCL may take {NCCL_SHM_ROOMY // MIB} MiB per rank", True
    return 0, "", False


def _shm_had(host: Sequence[Survey]) -> str:
    total, free = (min(getattr(survey, name) for survey in host) for name in ("shm_total", "shm_free"))
    return f"{total // MIB} MiB, {free // MIB} MiB of it free," if total else "none"


def _is_mpich(mpi: str) -> bool:
    return any(word in mpi.lower() for word in ("mpich", "intel"))


def locked_memory(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """A low limit on locked memory between hosts with InfiniBand or RoCE."""
    hosts = by_host(surveys)
    fabric = [host for host in hosts if any(port.state == "ACTIVE" for s in host for port in s.ports)]
    limited = [s for host in fabric for s in host if s.memlock is not None and s.memlock < MEMLOCK_ROOMY]
    if len(hosts) > 1 and limited:
        least = min(survey.memlock or 0 for survey in limited)
        yield Problem(
            "the limit on locked memory is low for InfiniBand or RoCE",
            got=describe_groups(group_by_value((f"{(s.memlock or 0) // 1024} KiB", s) for s in limited)),
            expected="unlimited",
            hint="ulimit -l unlimited (/etc/security/limits.conf), LimitMEMLOCK=infinity for slurmd and "
            "sshd, docker run --ulimit memlock=-1, in Kubernetes the capability IPC_LOCK",
            ranks=rank_numbers(limited),
            warning=least >= MEMLOCK,
        )


def nvlinks(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """GPUs with links down, or with fewer active links than another GPU of their model.

    Cards joined by bridges may have unconnected links: if all have as many active, it only warns.
    """
    most: dict[str, int] = {}
    for survey in surveys:
        if survey.gpu and survey.gpu.nvlinks_up:
            most[survey.gpu.name] = max(most.get(survey.gpu.name, 0), survey.gpu.nvlinks_up)
    down, fault = [], False
    for survey in surveys:
        gpu = survey.gpu
        if gpu and gpu.nvlinks is not None and gpu.nvlinks_up is not None and gpu.name in most:
            expected = max(most[gpu.name], gpu.nvlinks)
            if gpu.nvlinks_up < expected:
                down.append((f"{gpu.nvlinks_up} of {expected} up", survey))
                bridged = any(word in gpu.name for word in ("PCIe", "PCIE", "NVL"))
                fault |= gpu.nvlinks_up < most[gpu.name] or not bridged
    if down:
        yield Problem(
            "NVLinks are down",
            got=describe_groups(group_by_value(down)),
            expected="all links up",
            hint="nvidia-smi nvlink --status, dmesg | grep -i xid, systemctl status nvidia-fabricmanager; "
            "then reset the GPU or use another host",
            ranks=rank_numbers(survey for _, survey in down),
            warning=not fault,
        )


def pcie(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """GPUs whose PCIe link is narrower or slower than both GPU and slot support."""
    narrow, slow = [], []
    for survey in surveys:
        gpu = survey.gpu
        if gpu and _below(gpu.pcie_width, gpu.pcie_width_max):
            narrow.append((f"x{gpu.pcie_width} of x{gpu.pcie_width_max}", survey))
        if gpu and _below(gpu.pcie_generation, gpu.pcie_generation_max):
            slow.append((f"generation {gpu.pcie_generation} of {gpu.pcie_generation_max}", survey))
    if narrow:
        yield Problem(
            "GPUs use fewer PCIe lanes than they support",
            got=describe_groups(group_by_value(narrow)),
            expected="the full width",
            hint="nvidia-smi -q -d PERFORMANCE and lspci -vv on that host; reseat the card or riser",
            ranks=rank_numbers(survey for _, survey in narrow),
        )
    if slow:
        yield Problem(
            "PCIe links of GPUs run at a lower generation than they support",
            got=describe_groups(group_by_value(slow)),
            expected="the highest generation while the GPU is busy (an idle link runs slower to save power)",
            hint="nvidia-smi --query-gpu=pcie.link.gen.current --format=csv under load",
            ranks=rank_numbers(survey for _, survey in slow),
            warning=True,
        )


def _below(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most
