"""What the launcher's environment variables say, and how far they can be believed.

Standard library only: the command reads it before it knows whether it is a rank.
The variables are a cross-check. Ranks, hosts and local ranks come from MPI itself
(`world`), because under `mpirun` inside a Slurm job, for example, SLURM_PROCID and
SLURM_LOCALID are the launcher daemon's and read 0 on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from runner.errors import UserError

# (launcher, size, rank), most trustworthy first: what MPI's own launcher set beats Slurm's.
VARIABLES = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("a PMI launcher (mpiexec or srun)", "PMI_SIZE", "PMI_RANK"),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
# Launchers that name a rank without a size in the environment.
RANK_ONLY = (("a PMIx launcher", "PMIX_RANK"), ("PALS", "PALS_RANKID"))


@dataclass(frozen=True)
class Announced:
    """What the environment says: who launched, how many ranks (None: not told), which one this is."""

    launcher: str
    size: int | None
    rank: int


@dataclass(frozen=True)
class Started:
    """What whoever started the ranks said of them; nothing where a person did, with a launcher of theirs.

    ranks: how many there are to be. run: where the verdict is left, as `runner.world.run_status.run_at` takes
    it. host_timeout: seconds that a host may be silent. hosts, per_host, network: as planned.
    """

    ranks: int | None = None
    run: str | None = None
    host_timeout: float = 15.0
    hosts: int | None = None
    per_host: int | None = None
    network: str | None = None


BY_HAND = Started()


def environment() -> dict[str, str]:
    """This process's variables, for those who look for a library's settings in them."""
    return dict(os.environ)


def working_directory() -> str:
    """Its path; UserError where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as reason:
        was = os.environ.get("PWD")
        hint = "cd to one that exists"
        raise UserError("the working directory is gone", got=was, hint=hint) from reason


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None


def announced(environment: Mapping[str, str] = os.environ) -> Announced | None:
    """The launcher that started this process, or None when nothing says there was one."""
    for launcher, size_name, rank_name in VARIABLES:
        size = _integer(environment, size_name)
        if size is not None:
            return Announced(launcher, size, _integer(environment, rank_name) or 0)
    for launcher, rank_name in RANK_ONLY:
        rank = _integer(environment, rank_name)
        if rank is not None:
            return Announced(launcher, None, rank)
    return None


def allocated_tasks(environment: Mapping[str, str] = os.environ) -> int:
    """Tasks of the Slurm allocation around a process that srun did not start; 1 outside Slurm."""
    return _integer(environment, "SLURM_NTASKS") or 1


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job that this process is part of, as Slurm writes it: "17", or "17_3" for a task of an array."""
    array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else environment.get("SLURM_JOB_ID")


def check_expected(expected: int | None, size: int, told: Announced | None) -> None:
    """UserError when -n asked for another number of ranks than there are."""
    if expected is not None and expected != size:
        source = told.launcher if told else "this process"
        raise UserError(
            f"meshrun -n {expected} contradicts {source}, which started {size} rank(s)",
            got=f"-n {expected}",
            expected=f"-n {size}, or no -n: the launcher has the say",
            everywhere=True,
        )


def singleton_fix(environment: Mapping[str, str] = os.environ) -> str:
    """What to type when N ranks were started and MPI sees only one."""
    if "SLURM_JOB_ID" in environment:
        return "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH, Intel MPI); srun --mpi=list shows all"
    return "the mpiexec of the MPI that mpi4py loads: python -m mpi4py --mpi-lib-version names it"
