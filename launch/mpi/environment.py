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

from meshrun.launch.mpi.launcher import AS_ROOT, Launcher
from meshrun.launch.spec import LaunchSpec

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

    Only the spec's settings and network override `base`, the settings first.
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
    required = required_variables(spec)
    replaced = set(map(opposite, required))
    return {**defaults, **{n: value for n, value in base.items() if n not in replaced}, **required}


def required_variables(spec: LaunchSpec) -> dict[str, str]:
    """Variables that override the environment: one interface for all libraries, and the settings.

    A setting counts more than the interface for its own variable: NCCL's may be "^docker0,lo".
    """
    chosen = on_interface(spec.network) if spec.network else {}
    free = {name: value for name, value in chosen.items() if opposite(name) not in spec.settings}
    return {**free, **spec.settings}


def own_interfaces(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a user's variables that choose the interface of a library."""
    names = on_interface("").keys()
    return {name: value for name, value in variables.items() if name in names or opposite(name) in names}


def opposite(name: str) -> str | None:
    """Open MPI's variable that excludes the interfaces which `name` includes, or the reverse; it takes only
    one of them. None for other variables."""
    for end, other in (("_if_include", "_if_exclude"), ("_if_exclude", "_if_include")):
        if name.endswith(end):
            return name.removesuffix(end) + other
    return None


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
    from meshrun.runner.errors import UserError

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
