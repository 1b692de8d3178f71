"""Environment variables of the launcher and the ranks: MPI's transport, and forwarded variables.

MPI carries control messages, and data only on CPUs; NCCL carries data between GPUs. Therefore MPI is
restricted to TCP and shared memory, on the interface of NCCL and UCX, and does not use the adapters that NCCL
drives.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from launch.mpi.launcher import AS_ROOT, Launcher
from launch.spec import LaunchSpec

# Variables that ranks on other hosts need too. Open MPI forwards none of them.
FORWARDED = ("NCCL_", "UCX_", "FI_", "CUDA_", "MPI4PY_", "MESHRUN_")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of a variable
FORWARDED_WHOLE = ("LD_LIBRARY_PATH", "PYTHONFAULTHANDLER")

# Open MPI: ob1 uses the btl components; the other pml components use the fastest adapter.
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,openib,uct"}
INTEL_OVER_TCP = {"I_MPI_OFI_PROVIDER": "tcp"}
# MPICH has no other variable. It affects every user of libfabric, such as NCCL's plugin for it.
MPICH_OVER_TCP = {"FI_PROVIDER": "tcp"}


def environment(spec: LaunchSpec, launcher: Launcher, base: Mapping[str, str]) -> dict[str, str]:
    """`base` plus variables that the launcher and MPI need to reach other hosts; `base` takes precedence.

    Only the spec's settings and network override `base`, so that MPI, UCX and NCCL use one interface.
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
    """ssh options to detect a host that does not respond within the time-out."""
    return f"-o ServerAliveInterval={max(int(spec.host_timeout // 3), 1)} -o ServerAliveCountMax=3"


def on_interface(name: str) -> dict[str, str]:
    """Variables that restrict every library to one interface."""
    return {
        "NCCL_SOCKET_IFNAME": f"={name}",  # "=": exact match instead of prefix
        "UCX_NET_DEVICES": name,
        "FI_TCP_IFACE": name,
        "OMPI_MCA_btl_tcp_if_include": name,
        "OMPI_MCA_oob_tcp_if_include": name,  # Open MPI 4's daemons
        "PRTE_MCA_prte_if_include": name,  # Open MPI 5's
    }


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that ranks on other hosts need.

    Raises UserError for a name that a shell on another host would not take as one.
    """
    from runner.errors import UserError

    found = {name: value for name, value in environment.items() if is_forwarded(name)}
    if wrong := next((name for name in found if not NAME.fullmatch(name)), None):
        raise UserError(
            "a variable's name cannot be forwarded to other hosts",
            got=repr(wrong),
            expected="letters, digits and _",
            hint="unset it: env -u NAME meshrun ...",
        )
    return found


def is_forwarded(name: str) -> bool:
    return name.startswith(FORWARDED) or name in FORWARDED_WHOLE


def shell_command(variables: Mapping[str, str], *words: Sequence[str]) -> str:
    """A shell command that runs `words` with the environment `variables`, its parts on separate lines."""
    removed = [f"-u {name}" for name in sorted(os.environ.keys() - variables.keys())]
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assigned = ["env " + " ".join(removed)] if removed else []
    assigned += [f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())]
    return " \\\n    ".join([*assigned, *map(shlex.join, words)])
