"""Detect the launcher from its environment variables.

Standard library only: the command reads it before it knows whether it is a rank.
The variables are a cross-check. Ranks, hosts and local ranks come from MPI itself
(`world`), because under `mpirun` inside a Slurm job, for example, SLURM_PROCID and
SLURM_LOCALID are those of the launcher daemon and are 0 on every rank.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import command_option

RESUME = "resume"  # the flag of a program that continues an earlier run
# (launcher, size, rank), most reliable first: variables of MPI's own launcher come before Slurm's.
VARIABLES = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("a PMI launcher (mpiexec or srun)", "PMI_SIZE", "PMI_RANK"),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
# Launchers that set a rank but no size.
RANK_ONLY = (("a PMIx launcher", "PMIX_RANK"), ("PALS", "PALS_RANKID"), ("aprun", "ALPS_APP_PE"))
# Launchers whose processes MPI does not connect, in the order of VARIABLES. The first sets RANK; Lightning's,
# LOCAL_RANK only. Tasks of a job array are not among them: each is a job of its own.
UNCONNECTED = (
    ("torchrun or a similar launcher", "WORLD_SIZE", "RANK"),
    ("torchrun or a similar launcher", "WORLD_SIZE", "LOCAL_RANK"),
    ("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ("Paddle's launcher", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"),
)
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "MV2_", "JSM_", "FLUX_", "SLURM_", "PALS_", "ALPS_")  # begins of names
UNCONNECTED_NAMES = {name for _, *names in UNCONNECTED for name in names}


@dataclass(frozen=True)
class DetectedLauncher:
    """The launcher according to the environment.

    size: number of ranks, None if not set. rank: this one's. unconnected: the variable with the size of a
    launcher whose processes MPI does not connect; "" for the others.
    """

    launcher: str
    size: int | None
    rank: int
    unconnected: str = ""


@dataclass(frozen=True)
class Started:
    """What `meshrun launch` passes to the ranks that it starts; the defaults for ranks started by other
    means.

    ranks: expected number. run: where the run's status is left, as in `runner.world.run_status.run_at`.
    host_timeout: seconds for which a host may send nothing. hosts, per_host, network: as planned; per_host is
    a tuple, with a number for each host in the order of ranks, if they differ. stall_timeout, metrics,
    operations, watch: as in `launch.spec.Watching`.
    """

    ranks: int | None = None
    run: str | None = None
    host_timeout: float = 15.0
    hosts: int | None = None
    per_host: int | tuple[int, ...] | None = None
    network: str | None = None
    stall_timeout: float | None = None
    metrics: tuple[str, int] | None = None
    operations: str | None = None
    watch: bool = False


BY_HAND = Started()
STARTED_IN = "MESHRUN_SLURM_JOB"  # variable of ranks that mpirun has started inside of a Slurm job
SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "PSK")  # in the names of variables


def environment() -> dict[str, str]:
    """A copy of this process's environment variables, to read a library's settings from."""
    return dict(os.environ)


def is_secret(name: str) -> bool:
    """Whether a variable's name looks as if its value must not be shown, such as NCCL_API_TOKEN."""
    return any(word in name.upper() for word in SECRET)


@contextmanager
def default_variable(name: str, value: str) -> Iterator[None]:
    """Set a variable that a library reads in this process, unless it is set."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables that a library reads in this process, None to unset; restore them at the end."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
            os.unsetenv(name)  # a library may have set it, such as NCCL from its nccl.conf
        else:
            os.environ[name] = value


def takes_colour() -> bool:
    """Whether standard output is a terminal, and NO_COLOR (no-color.org) is not set or empty."""
    return sys.stdout.isatty() and not environment().get("NO_COLOR")


def environment_of_helper() -> dict[str, str]:
    """Environment variables for a process that a rank starts and that is no rank: without its launcher's."""
    return {
        name: value
        for name, value in environment().items()
        if not (name.startswith(LAUNCHERS) or name in UNCONNECTED_NAMES)
    }


def temporary_folder() -> Path:
    """Return the folder of `tempfile.gettempdir()`, without its trial file, which a killed process leaves."""
    if tempfile.tempdir is not None:
        return Path(os.fsdecode(tempfile.tempdir))
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in filter(None, [*named, "/tmp", "/var/tmp", "/usr/tmp"]):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(os.path.abspath(folder))
    return Path.cwd()


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None


def detect_launcher(environment: Mapping[str, str] = os.environ) -> DetectedLauncher | None:
    """The launcher that started this process, or None if no variable names one.

    torchrun in a job of one task, or under `mpirun -n 1`, is the launcher.
    """
    sized = _sized(environment)
    if sized is not None and sized.size != 1:
        return sized
    if sized is None:
        for launcher, rank_name in RANK_ONLY:
            rank = _integer(environment, rank_name)
            if rank is not None:
                return DetectedLauncher(launcher, None, rank)
    for launcher, size_name, rank_name in UNCONNECTED:
        size, rank = _integer(environment, size_name), _integer(environment, rank_name)
        if size is not None and size > 1 and rank is not None:
            return DetectedLauncher(launcher, size, rank, unconnected=size_name)
    return sized


def _sized(environment: Mapping[str, str]) -> DetectedLauncher | None:
    """The launcher of MPI whose variable of the size is set."""
    for launcher, size_name, rank_name in VARIABLES:
        size = _integer(environment, size_name)
        if size is not None:
            return DetectedLauncher(launcher, size, _integer(environment, rank_name) or 0)
    return None


def check_connected(launched: DetectedLauncher | None) -> None:
    """Raise UserError for a launcher whose processes would each be a run of one rank."""
    if launched is not None and launched.unconnected:
        size, name = launched.size, launched.unconnected
        raise UserError(
            f"{launched.launcher} started {size} processes ({name}), which MPI does not connect: "
            f"they would be {size} runs of one rank",
            hint=f"mpirun -n {size} meshrun ..., srun, or meshrun launch; for a process that is not one of "
            f"several, env -u {name} meshrun ...",
        )


def allocated_tasks(environment: Mapping[str, str] = os.environ) -> int:
    """Number of tasks of the Slurm allocation; 1 outside Slurm. For a process that srun did not start."""
    return _integer(environment, "SLURM_NTASKS") or 1


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """This process's Slurm job as Slurm writes it: "17", or "17_3" for a task of a job array."""
    array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else environment.get("SLURM_JOB_ID")


def is_resumed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this program continues an earlier run: by the flag for it, or because Slurm has requeued it."""
    flag = command_option(RESUME, True)
    return flag in sys.argv[1:] or (_integer(environment, "SLURM_RESTART_COUNT") or 0) > 0


def check_expected(expected: int | None, size: int, launched: DetectedLauncher | None) -> None:
    """Raise UserError if -n differs from the number of ranks, or if MPI does not connect them."""
    check_connected(launched)
    if expected is not None and expected != size:
        source = launched.launcher if launched else "this process"
        raise UserError(
            f"meshrun -n {expected} contradicts {source}, which started {size} rank(s)",
            got=f"-n {expected}",
            expected=f"-n {size}, or no -n: the launcher sets the number of ranks",
            everywhere=True,
        )


def singleton_fix(environment: Mapping[str, str] = os.environ) -> str:
    """Remedy if N ranks were started and MPI sees only one."""
    if "SLURM_JOB_ID" in environment:
        return "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH, Intel MPI); srun --mpi=list shows all"
    return "the mpiexec of the MPI that mpi4py loads: python -m mpi4py --mpi-lib-version names it"
