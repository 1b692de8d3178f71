"""The preflight checks: pure functions from the surveys of all ranks to problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from meshrun.runner.spelling import option
from meshrun.runner.system.launcher import Started
from meshrun.runner.world.preflight import consistency, host_checks
from meshrun.runner.world.preflight.problem import (
    Problem,
    abbreviate,
    by_host,
    describe_groups,
    describe_hosts,
    describe_ranks,
    group_by_value,
    rank_numbers,
)
from meshrun.runner.world.preflight.survey import Survey

__all__ = ["Problem", "check_surveys"]


def check_surveys(
    surveys: Sequence[Survey], expected: Started, *, oversubscribe: bool = False
) -> list[Problem]:
    """All problems, failures before warnings, one of each kind.

    surveys: of every rank. expected: the planned layout. oversubscribe: ranks may share a GPU.
    """
    found = [
        *_plan(surveys, expected),
        *_identity(surveys),
        *([] if oversubscribe else _gpus(surveys)),
        *consistency.versions(surveys),
        *consistency.settings(surveys),
        *host_checks.network(surveys, expected.network),
        *host_checks.shared_memory(surveys),
        *host_checks.locked_memory(surveys),
        *host_checks.nvlinks(surveys),
        *host_checks.pcie(surveys),
        *_binding(surveys),
    ]
    return sorted(found, key=lambda problem: problem.warning)


def _plan(surveys: Sequence[Survey], expected: Started) -> Iterator[Problem]:
    everyone, hosts = rank_numbers(surveys), by_host(surveys)
    if expected.ranks not in (None, len(surveys)):
        yield Problem(
            "the launcher started a different number of ranks than planned",
            got=f"{len(surveys)} on {describe_hosts(surveys)}",
            expected=str(expected.ranks),
            hint="the launcher's -n or --ntasks, and slots in the hostfile; the MPI of the launcher must be "
            "the one that mpi4py loads",
            ranks=everyone,
        )
    if expected.hosts not in (None, len(hosts)):
        yield Problem(
            "the ranks are on a different number of hosts than planned",
            got=f"{len(hosts)}: {abbreviate([host[0].host for host in hosts])}",
            expected=str(expected.hosts),
            hint="the hostfile (Open MPI 5 reads mpirun --hostfile or PRTE_MCA_prte_default_hostfile, and no "
            "OMPI_MCA_* variable), or srun --nodes",
            ranks=everyone,
        )
    planned = expected.per_host
    counts = planned if isinstance(planned, tuple) else (planned,) * len(hosts)
    uneven = [host for host, count in zip(hosts, counts, strict=False) if len(host) != count]
    if planned is not None and uneven:
        found = group_by_value((f"{len(host)} per host", survey) for host in uneven for survey in host)
        yield Problem(
            "hosts have a different number of ranks than planned",
            got=describe_groups(found),
            expected=f"{', '.join(map(str, counts))} on the hosts in this order"
            if isinstance(planned, tuple)
            else f"{planned} per host",
            hint="slots=N (Open MPI) or HOST:N (MPICH) for every host, srun --ntasks-per-node",
            ranks=rank_numbers(survey for host in uneven for survey in host),
        )


def _identity(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """Hosts with the same name, which MPI may take for one host, or with the same identity (meshrun too)."""
    clones = [host for host in by_host(surveys) if len({_addresses(survey) for survey in host}) > 1]
    if clones:
        mixed = [survey for host in clones for survey in host]
        seen = group_by_value((_addresses(survey), survey) for survey in clones[0])
        yield Problem(
            f"two hosts or network namespaces have the same identity ({describe_hosts(mixed)})",
            got=describe_groups(
                {" ".join(addresses) or "no address": ranks for addresses, ranks in seen.items()}
            ),
            expected="one set of network addresses for a hostname and kernel boot id",
            hint="set a unique hostname on each host; a unique NCCL_HOSTID on each helps only NCCL",
            ranks=rank_numbers(mixed),
        )
    identities = group_by_value((host[0].host, host[0]) for host in by_host(surveys))
    shared = [name for name, hosts in identities.items() if len(hosts) > 1]
    if shared:
        alike = [survey for survey in surveys if survey.host in shared]
        yield Problem(
            "different hosts have the same name",
            got=f"{abbreviate(shared)} on {len(by_host(alike))} hosts, {describe_ranks(alike)}",
            expected="a unique hostname for each host",
            hint="hostnamectl set-hostname: meshrun and NCCL tell them apart by the kernel's boot id, but "
            "MPI and hostfiles go by the name",
            ranks=rank_numbers(alike),
            warning=True,
        )


def _addresses(survey: Survey) -> tuple[str, ...]:
    return tuple(
        f"{interface.name}={interface.address}"
        for interface in survey.interfaces
        if interface.address and interface.name != "lo"
    )


def _gpus(surveys: Sequence[Survey]) -> Iterator[Problem]:
    without = [survey for survey in surveys if survey.gpu is None]
    if len(without) == len(surveys):
        return
    if without:
        yield Problem(
            "some ranks have no GPU, others have one",
            got=f"none on {describe_ranks(without)}",
            expected="a GPU for each rank",
            hint=f"nvidia-smi and CUDA_VISIBLE_DEVICES on those hosts, or {option('device', 'cpu')} for all",
            ranks=rank_numbers(without),
        )
    crowded, doubled = [], []
    for host in by_host(survey for survey in surveys if survey.gpu):
        bound = Counter(survey.gpu.uuid for survey in host if survey.gpu)
        # A container with one GPU counts one, and each rank of a host may have its own container.
        there = max(len(bound), *(survey.gpu.on_host or 0 for survey in host if survey.gpu))
        if len(host) > there and any(survey.gpu.on_host for survey in host if survey.gpu):
            crowded.append((host, there))
        else:
            doubled += [survey for survey in host if survey.gpu and bound[survey.gpu.uuid] > 1]
    if crowded:
        counts = group_by_value(
            (f"{len(host)} ranks for {there} GPU(s)", s) for host, there in crowded for s in host
        )
        yield Problem(
            "more ranks than GPUs on a host",
            got=describe_groups(counts),
            expected="a GPU for each rank",
            hint="fewer ranks per host (-n, slots, --ntasks-per-node), or "
            f"{option('oversubscribe', True)} to share GPUs",
            ranks=rank_numbers(survey for host, _ in crowded for survey in host),
        )
    if doubled:
        shared = group_by_value((f"{s.gpu.uuid} (bus {s.gpu.bus_id})", s) for s in doubled if s.gpu)
        yield Problem(
            "two ranks are bound to one GPU",
            got=describe_groups(shared),
            expected="a GPU for each rank",
            hint="all GPUs visible to every rank (srun --gpus-per-node, no CUDA_VISIBLE_DEVICES), or "
            f"{option('oversubscribe', True)} to share",
            ranks=rank_numbers(doubled),
        )


def _binding(surveys: Sequence[Survey]) -> Iterator[Problem]:
    one_core = [survey for survey in surveys if survey.one_core]
    if one_core:
        yield Problem(
            "ranks are bound to a single core, which their MPI, NCCL and CuPy threads share",
            got=describe_ranks(one_core),
            expected="several cores near the rank's GPU",
            hint="mpirun --bind-to none, srun --cpus-per-task=N or --cpu-bind=none",
            ranks=rank_numbers(one_core),
            warning=True,
        )
    far = [survey for survey in surveys if _far(survey)]
    if far:
        placed = group_by_value(
            (f"GPU on NUMA node {s.gpu.numa_node}, cores on {abbreviate([*map(str, s.numa)])}", s)
            for s in far
            if s.gpu
        )
        yield Problem(
            "ranks are bound to cores that are far from their GPU",
            got=describe_groups(placed),
            expected="cores of the GPU's NUMA node",
            hint="mpirun --bind-to none, srun --cpu-bind=none: meshrun then binds by itself",
            ranks=rank_numbers(far),
            warning=True,
        )


def _far(survey: Survey) -> bool:
    if survey.gpu is None:
        return False
    if survey.gpu.cpus:
        return set(survey.gpu.cpus).isdisjoint(survey.cpus)
    return survey.gpu.numa_node is not None and bool(survey.numa) and survey.gpu.numa_node not in survey.numa
