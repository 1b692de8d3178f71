"""A plan in the words of the MPI launcher that is installed: which hosts, which variables, which network.

MPI carries control messages here, and on CPUs the data; between GPUs NCCL does. So it is kept to TCP and
shared memory, on the interface that the other two use, and off the adapters that NCCL drives.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launch import hosts, local, mpi_library, mpiexec
from launch.mpiexec import AS_ROOT, Launcher
from launch.spec import Plan
from launch.supervise.cleanup import RUN_MARK
from launch.supervise.supervisor import conduct

# What ranks on other hosts must have too. Open MPI passes on none of it.
FORWARDED = ("NCCL_", "UCX_", "FI_", "CUDA_", "MPI4PY_", "MESHRUN_")
FORWARDED_WHOLE = ("LD_LIBRARY_PATH", "PYTHONFAULTHANDLER")

SWEEP = str(Path(__file__).with_name("supervise") / "cleanup.py")
# Open MPI: ob1 moves bytes itself; the other engines take the fastest adapter there is.
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,openib,uct"}
INTEL_OVER_TCP = {"I_MPI_OFI_PROVIDER": "tcp"}
# All that MPICH knows, and every other user of libfabric too: NCCL's plugin for it, where there is one.
MPICH_OVER_TCP = {"FI_PROVIDER": "tcp"}


def words(plan: Plan, launcher: Launcher, variables: Mapping[str, str]) -> list[str]:
    """The launcher's words before the program: ranks in blocks, host after host, bound to no single core.

    variables: what the ranks are to get of `environment`'s.
    """
    counted = [f"{name}:{plan.per_host}" for name in plan.names]
    start = [str(launcher.path)]
    if launcher.vendor == "Open MPI":
        passed_on = [word for name in sorted(variables) for word in ("-x", name)]
        place = ["--host", ",".join(counted), "--map-by", "slot", "--bind-to", "none"]
        return [*start, *place, *passed_on, "-n", str(plan.ranks)]
    # `-hosts` of Intel MPI takes no counts; -ppn does for both.
    place = ["-hosts", ",".join(plan.names), "-ppn", str(plan.per_host)]
    interface = ["-iface", plan.network] if plan.network else []
    return [*start, *place, *interface, "-n", str(plan.ranks)]


def environment(plan: Plan, launcher: Launcher, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what the launcher and MPI need to go to other hosts; what is set in it already stays.

    But the plan's own network wins, so that MPI, UCX and NCCL take one interface.
    """
    ssh = f"-o BatchMode=yes -o ConnectTimeout=10 -o ConnectionAttempts=3 {keepalive(plan)}"
    defaults: dict[str, str] = {}
    if launcher.vendor == "Open MPI":
        defaults |= {"PRTE_MCA_plm_ssh_args": ssh, "OMPI_MCA_plm_rsh_args": ssh}  # 5 and 4
        defaults |= OVER_TCP
        if os.geteuid() == 0:
            defaults |= AS_ROOT
    elif launcher.vendor == "MPICH":
        defaults |= {"HYDRA_LAUNCHER_EXTRA_ARGS": ssh, **MPICH_OVER_TCP}
    else:
        defaults |= {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ssh, "I_MPI_PIN": "off"}
        defaults |= {} if "FI_PROVIDER" in base else INTEL_OVER_TCP
    return {**defaults, **base, **wanted(plan)}


def wanted(plan: Plan) -> dict[str, str]:
    """What ranks get whatever the environment says: the plan's settings, and one interface for all."""
    return {**plan.settings, **(on_interface(plan.network) if plan.network else {})}


def keepalive(plan: Plan) -> str:
    """ssh's options by which it notices a host that is silent for too long."""
    return f"-o ServerAliveInterval={max(int(plan.host_timeout // 3), 1)} -o ServerAliveCountMax=3"


def on_interface(name: str) -> dict[str, str]:
    """Every library that opens connections on one interface."""
    return {
        "NCCL_SOCKET_IFNAME": f"={name}",  # "=": this one, not every one that begins so
        "UCX_NET_DEVICES": name,
        "FI_TCP_IFACE": name,
        "OMPI_MCA_btl_tcp_if_include": name,
        "OMPI_MCA_oob_tcp_if_include": name,  # Open MPI 4's daemons
        "PRTE_MCA_prte_if_include": name,  # Open MPI 5's
    }


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what ranks on other hosts must have."""
    return {name: value for name, value in environment.items() if is_forwarded(name)}


def is_forwarded(name: str) -> bool:
    return name.startswith(FORWARDED) or name in FORWARDED_WHOLE


def start(
    plan: Plan, columns: int | None = None, *, patience: float = hosts.PATIENCE, debug: bool = False
) -> int:
    """Run the plan on its hosts, once all of them answer, within `patience` seconds; the run's exit status.

    Raises UserError where there is no launcher, or where a host does not answer.
    """
    from runner.errors import tell

    launcher = mpiexec.find()
    if launcher.whole_lines:  # told to pass on less, it might cut the lines by which ranks tell their verdict
        columns = None
    found = hosts.answers(plan, sys.executable, patience)
    mpi_library.check(launcher, {answer.host: answer.mpi for answer in found})
    chosen = on_interface("").keys() & os.environ.keys()  # by the user, who knows better
    if plan.network is None and not chosen and (interface := hosts.common_interface(found)):
        plan = replace(plan, network=interface)
        tell(f"network: {interface}, by which {', '.join(plan.names)} are reached (--network for another)")
    token = secrets.token_hex(8)

    def started(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        whole = launcher.elsewhere(os.environ, sockets)
        variables = {**environment(plan, launcher, whole), RUN_MARK: str(run)}
        ours = [*local.rank_words(f"@{token}", columns), *local.plan_words(plan)]
        start = words(plan, launcher, {**forwarded(variables), **plan.settings})
        return [*start, *local.PROGRAM, *ours, *plan.words], variables

    def clean_up(run: Path, sockets: Path, seconds: float) -> list[str]:
        return hosts.sweep(
            plan.names, [sys.executable, "-I", SWEEP, str(run), str(sockets), f"{seconds + 1:.0f}", token]
        )

    return conduct(started, columns, token=token, debug=debug, elsewhere=clean_up, ran=plan.words)


def shown(plan: Plan) -> str:
    """What `start` runs, for a shell, without what only a run has; hosts are not asked."""
    launcher = mpiexec.find()
    here = launcher.elsewhere(os.environ)
    variables = environment(plan, launcher, here)
    start = words(plan, launcher, {**forwarded(variables), **plan.settings})
    return local.for_shell(variables, start, [*local.PROGRAM, *local.plan_words(plan), *plan.words])
