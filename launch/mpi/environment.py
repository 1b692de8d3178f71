"""Variables that the launcher and ranks get: how MPI reaches other hosts, and what is handed on to them.

MPI carries control messages here, and on CPUs the data; between GPUs NCCL does. So it is kept to TCP and
shared memory, on the interface that the other two use, and off the adapters that NCCL drives.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from launch.mpi.launcher import AS_ROOT, Launcher
from launch.spec import LaunchSpec

# What ranks on other hosts must have too. Open MPI passes on none of it.
FORWARDED = ("NCCL_", "UCX_", "FI_", "CUDA_", "MPI4PY_", "MESHRUN_")
FORWARDED_WHOLE = ("LD_LIBRARY_PATH", "PYTHONFAULTHANDLER")

# Open MPI: ob1 moves bytes itself; the other engines take the fastest adapter there is.
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,openib,uct"}
INTEL_OVER_TCP = {"I_MPI_OFI_PROVIDER": "tcp"}
# All that MPICH knows, and every other user of libfabric too: NCCL's plugin for it, where there is one.
MPICH_OVER_TCP = {"FI_PROVIDER": "tcp"}


def environment(spec: LaunchSpec, launcher: Launcher, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what the launcher and MPI need to go to other hosts; what is set in it already stays.

    But the spec's own network wins, so that MPI, UCX and NCCL take one interface.
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
    """What ranks get whatever the environment says: the spec's settings, and one interface for all."""
    return {**spec.settings, **(on_interface(spec.network) if spec.network else {})}


def keepalive(spec: LaunchSpec) -> str:
    """ssh's options by which it notices a host that is silent for too long."""
    return f"-o ServerAliveInterval={max(int(spec.host_timeout // 3), 1)} -o ServerAliveCountMax=3"


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


def shell_command(variables: Mapping[str, str], *words: Sequence[str]) -> str:
    """A command for a shell with this process's environment, its parts on lines of their own.

    variables: the environment that the command is to have.
    """
    removed = [f"-u {name}" for name in sorted(os.environ.keys() - variables.keys())]
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assigned = ["env " + " ".join(removed)] if removed else []
    assigned += [f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())]
    return " \\\n    ".join([*assigned, *map(shlex.join, words)])
