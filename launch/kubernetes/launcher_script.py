"""The command of the launcher pod: mpiexec's arguments and variables, and the script that waits for the
hosts."""

from __future__ import annotations

from pathlib import Path

from meshrun.launch.kubernetes.pods import Implementation, Pods
from meshrun.launch.mpi.environment import (
    FORWARDED,
    FORWARDED_WHOLE,
    INTEL_OVER_TCP,
    MPICH_OVER_TCP,
    OVER_TCP,
    is_forwarded,
    keepalive,
    required_variables,
)
from meshrun.launch.mpi.launcher import AS_ROOT, Launcher, Vendor
from meshrun.launch.mpi.rank_command import spec_options
from meshrun.launch.spec import LaunchSpec

HOSTFILE = "/etc/mpi/hostfile"
VENDORS: dict[Implementation, Vendor] = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}

AWAIT = Path(__file__).with_name("await_hosts.sh")
HYDRA = 'exec "$@"\n'
# Open MPI forwards no variables by itself, and the image and the cluster may set some too.
OPEN_MPI = f"""\
mpiexec=$1
shift
variables=$(env | sed -nE 's/^(({"|".join(FORWARDED)})[A-Za-z0-9_]*|{"|".join(FORWARDED_WHOLE)})=.*/-x \\1/p')
exec "$mpiexec" $variables "$@"
"""


def script(mpi: Implementation) -> str:
    """A shell script whose arguments are the hostfile, the time-out in seconds, mpiexec and its arguments."""
    return AWAIT.read_text() + (OPEN_MPI if mpi == "openmpi" else HYDRA)


def write_hosts(spec: LaunchSpec, pods: Pods, before: str, after: str) -> str:
    """Shell commands that write the hostfile. before, after: the parts of a host's name around its number."""
    slots = f" slots={spec.per_host}" if pods.mpi == "openmpi" else f":{spec.per_host}"
    return f"""\
host=0
while [ "$host" -lt {spec.hosts} ]; do
  echo "{before}$host{after}{slots}"
  host=$((host + 1))
done >{HOSTFILE}
"""


def words_between_hosts(spec: LaunchSpec, pods: Pods) -> list[str]:
    """mpiexec and its arguments: ranks in blocks in the hostfile's order, not bound to single cores."""
    start = [pods.beside_python("mpiexec")]
    if pods.mpi == "openmpi":
        others = [name for name in spec.settings if not is_forwarded(name)]
        passed_on = [word for name in sorted(others) for word in ("-x", name)]
        place = ["--hostfile", HOSTFILE, "--map-by", "slot", "--bind-to", "none"]
        return [*start, *place, *passed_on, "-n", str(spec.ranks)]
    interface = ["-iface", spec.network] if spec.network else []
    return [*start, "-f", HOSTFILE, "-ppn", str(spec.per_host), *interface, "-n", str(spec.ranks)]


def variables_between_hosts(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """Variables of the launcher pod; the operator's values take precedence."""
    ssh = f"-o ConnectionAttempts=10 {keepalive(spec)}"
    defaults: dict[str, str]
    if pods.mpi == "openmpi":
        defaults = {
            # The operator sets Open MPI 4's OMPI_MCA_orte_* and OMPI_MCA_plm_rsh_args, which Open MPI 5
            # ignores: without these variables all ranks run in the launcher pod, and the job succeeds.
            "PRTE_MCA_prte_default_hostfile": HOSTFILE,
            "PRTE_MCA_plm_ssh_args": ssh,
            # The hostfile has full names, but the pods know their own names only in short form.
            "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
            **OVER_TCP,
            **(AS_ROOT if pods.root else {}),
        }
    elif pods.mpi == "mpich":
        # The operator sets HYDRA_LAUNCH_EXTRA_ARGS, which Hydra does not know.
        defaults = {"HYDRA_LAUNCHER_EXTRA_ARGS": ssh, **MPICH_OVER_TCP}
    else:
        defaults = {"I_MPI_PIN": "off", **INTEL_OVER_TCP}
    return {**defaults, **required_variables(spec)}


def launcher_on_one_host(pods: Pods) -> Launcher:
    return Launcher(Path(pods.beside_python("mpiexec")), VENDORS[pods.mpi], bundled=True)


def program(spec: LaunchSpec, pods: Pods, token: str | None) -> list[str]:
    """The command of every rank, with absolute paths, because PATH under ssh differs from the image's."""
    start = [pods.python, pods.beside_python("meshrun")]
    return [*start, *spec_options(spec, token), *spec.words]
