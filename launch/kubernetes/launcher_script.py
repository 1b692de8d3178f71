"""What runs in the pod that starts the ranks: mpiexec's words and variables, and what waits for the hosts."""

from __future__ import annotations

from pathlib import Path

from launch.kubernetes.pods import Implementation, Pods
from launch.mpi.environment import (
    FORWARDED,
    FORWARDED_WHOLE,
    INTEL_OVER_TCP,
    MPICH_OVER_TCP,
    OVER_TCP,
    is_forwarded,
    keepalive,
    required_variables,
)
from launch.mpi.launcher import AS_ROOT, Launcher, Vendor
from launch.mpi.rank_command import spec_options
from launch.spec import LaunchSpec

HOSTFILE = "/etc/mpi/hostfile"
VENDORS: dict[Implementation, Vendor] = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}

AWAIT = Path(__file__).with_name("await_hosts.sh")
HYDRA = 'exec "$@"\n'
# Open MPI hands no variable on by itself, and which ones there are, the image and the cluster decide too.
OPEN_MPI = f"""\
mpiexec=$1
shift
variables=$(env | sed -nE 's/^(({"|".join(FORWARDED)})[A-Za-z0-9_]*|{"|".join(FORWARDED_WHOLE)})=.*/-x \\1/p')
exec "$mpiexec" $variables "$@"
"""


def script(mpi: Implementation) -> str:
    """For a shell whose arguments are the hostfile, seconds of timeout, mpiexec and its words."""
    return AWAIT.read_text() + (OPEN_MPI if mpi == "openmpi" else HYDRA)


def words_between_hosts(spec: LaunchSpec, pods: Pods) -> list[str]:
    """mpiexec and its words: ranks in blocks by the hostfile's order, bound to no single core."""
    start = [pods.beside_python("mpiexec")]
    if pods.mpi == "openmpi":
        others = [name for name in spec.settings if not is_forwarded(name)]
        passed_on = [word for name in sorted(others) for word in ("-x", name)]
        place = ["--hostfile", HOSTFILE, "--map-by", "slot", "--bind-to", "none"]
        return [*start, *place, *passed_on, "-n", str(spec.ranks)]
    interface = ["-iface", spec.network] if spec.network else []
    return [*start, "-f", HOSTFILE, "-ppn", str(spec.per_host), *interface, "-n", str(spec.ranks)]


def variables_between_hosts(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """The launcher pod's; of one that the operator sets too, the operator's value wins."""
    ssh = f"-o ConnectionAttempts=10 {keepalive(spec)}"
    defaults: dict[str, str]
    if pods.mpi == "openmpi":
        defaults = {
            # The operator's OMPI_MCA_orte_* and OMPI_MCA_plm_rsh_args are Open MPI 4's. Open MPI 5 does not
            # read them: without these all ranks run in the launcher pod, and the job succeeds.
            "PRTE_MCA_prte_default_hostfile": HOSTFILE,
            "PRTE_MCA_plm_ssh_args": ssh,
            # The hostfile has full names, and the pods know themselves by short ones.
            "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
            **OVER_TCP,
            **(AS_ROOT if pods.root else {}),
        }
    elif pods.mpi == "mpich":
        # The operator sets HYDRA_LAUNCH_EXTRA_ARGS, which is no variable of Hydra's.
        defaults = {"HYDRA_LAUNCHER_EXTRA_ARGS": ssh, **MPICH_OVER_TCP}
    else:
        defaults = {"I_MPI_PIN": "off", **INTEL_OVER_TCP}
    return {**defaults, **required_variables(spec)}


def launcher_on_one_host(pods: Pods) -> Launcher:
    return Launcher(Path(pods.beside_python("mpiexec")), VENDORS[pods.mpi], bundled=True)


def program(spec: LaunchSpec, pods: Pods, token: str | None) -> list[str]:
    """What every rank runs: by absolute paths, because through ssh it has another PATH than the image."""
    start = [pods.python, pods.beside_python("meshrun")]
    return [*start, *spec_options(spec, token), *spec.words]
