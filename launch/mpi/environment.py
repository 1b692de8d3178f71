"""Environment variables of the launcher and the ranks: how MPI reaches hosts, what is forwarded.

MPI carries control messages, and data only on CPUs; between GPUs NCCL does. So MPI is restricted to TCP and
shared memory, on the interface of NCCL and UCX, and kept off the adapters that NCCL drives.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from launch.mpi.launcher import AS_ROOT, Launcher
from launch.spec import LaunchSpec

# Variables that ranks on other hosts need too. Open MPI forwards none of them.
FORWARDED = ("NCCL_", "UCX_", "FI_", "CUDA_", "MPI4PY_", "MESHRUN_")
FORWARDED_WHOLE = ("LD_LIBRARY_PATH", "PYTHONFAULTHANDLER")

# Open MPI: ob1 moves bytes itself; the other engines take the fastest adapter.
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,openib,uct"}
INTEL_OVER_TCP = {"I_MPI_OFI_PROVIDER": "tcp"}
# The only variable of MPICH. It applies to every user of libfabric, such as NCCL's plugin for it.
MPICH_OVER_TCP = {"FI_PROVIDER": "tcp"}


def environment(spec: LaunchSpec, launcher: Launcher, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what the launcher and MPI need to reach other hosts; values in it take precedence.

    Except for the network of the specification, so that MPI, UCX and NCCL use one interface.
    """
    ssh = f"-o BatchMode=yes -o ConnectTimeout=10 -o ConnectionAttempts=3 {keepalive(spec)}"
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
    return {**defaults, **base, **required_variables(spec)}


def required_variables(spec: LaunchSpec) -> dict[str, str]:
    """Variables that override the environment: the settings, and one interface for all libraries."""
    return {**spec.settings, **(on_interface(spec.network) if spec.network else {})}


def keepalive(spec: LaunchSpec) -> str:
    """Options of ssh to detect a host that is silent for too long."""
    return f"-o ServerAliveInterval={max(int(spec.host_timeout // 3), 1)} -o ServerAliveCountMax=3"


def on_interface(name: str) -> dict[str, str]:
    """Variables that restrict every library to one interface."""
    return {
        "NCCL_SOCKET_IFNAME": f"={name}",  # "=": this one, not every one that begins so
        "UCX_NET_DEVICES": name,
        "FI_TCP_IFACE": name,
        "OMPI_MCA_btl_tcp_if_include": name,
        "OMPI_MCA_oob_tcp_if_include": name,  # Open MPI 4's daemons
        "PRTE_MCA_prte_if_include": name,  # Open MPI 5's
    }


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that ranks on other hosts need."""
    return {name: value for name, value in environment.items() if is_forwarded(name)}


def is_forwarded(name: str) -> bool:
    return name.startswith(FORWARDED) or name in FORWARDED_WHOLE


def shell_command(variables: Mapping[str, str], *words: Sequence[str]) -> str:
    """A command for a shell in this process's environment, its parts on separate lines.

    variables: the environment for the command.
    """
    removed = [f"-u {name}" for name in sorted(os.environ.keys() - variables.keys())]
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assigned = ["env " + " ".join(removed)] if removed else []
    assigned += [f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())]
    return " \\\n    ".join([*assigned, *map(shlex.join, words)])
