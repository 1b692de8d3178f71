"""What launchers' environment variables say. The variables are those that each launcher really sets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from meshrun.runner.system.launcher import (
    DetectedLauncher,
    allocated_tasks,
    detect_launcher,
    environment_of_helper,
    singleton_fix,
    temporary_folder,
)

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "7"}
SBATCH = {"SLURM_JOB_ID": "71", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SRUN = {**SBATCH, "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
SIMILAR = "torchrun or a similar launcher"
# The launcher's daemon on each node is a Slurm task of its own: these variables are the daemon's.
DAEMON = {**SBATCH, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (OPEN_MPI, DetectedLauncher("Open MPI's mpirun", 4, 2)),
        (HYDRA, DetectedLauncher("a PMI launcher (mpiexec or srun)", 4, 2)),
        (SRUN, DetectedLauncher("srun", 8, 5)),
        (SBATCH, None),
        ({**DAEMON, **OPEN_MPI}, DetectedLauncher("Open MPI's mpirun", 4, 2)),
        ({**DAEMON, **HYDRA}, DetectedLauncher("a PMI launcher (mpiexec or srun)", 4, 2)),
        ({"PMIX_RANK": "3"}, DetectedLauncher("a PMIx launcher", None, 3)),
        ({**SRUN, "PMIX_RANK": "5"}, DetectedLauncher("srun", 8, 5)),
        ({"PALS_RANKID": "1"}, DetectedLauncher("PALS", None, 1)),
        ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"}, DetectedLauncher("Flux", 2, 1)),
        (
            {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"},
            DetectedLauncher("MVAPICH's mpirun", 2, 1),
        ),
        ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"}, DetectedLauncher("jsrun", 2, 1)),
        ({"ALPS_APP_PE": "1"}, DetectedLauncher("aprun", None, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "", "PMI_SIZE": "four"}, None),
        (TORCHRUN, DetectedLauncher(SIMILAR, 2, 1, "WORLD_SIZE")),
        ({"WORLD_SIZE": "2", "RANK": "0"}, DetectedLauncher(SIMILAR, 2, 0, "WORLD_SIZE")),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "3", "NODE_RANK": "0"},
            DetectedLauncher(SIMILAR, 4, 3, "WORLD_SIZE"),
        ),
        (
            {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"},
            DetectedLauncher("horovodrun", 2, 1, "HOROVOD_SIZE"),
        ),
        (
            {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "0"},
            DetectedLauncher("Paddle's launcher", 2, 0, "PADDLE_TRAINERS_NUM"),
        ),
        # torchrun in a job of one task; a job's own variables beside mpirun.
        ({**TORCHRUN, "SLURM_STEP_NUM_TASKS": "1"}, DetectedLauncher(SIMILAR, 2, 1, "WORLD_SIZE")),
        ({**TORCHRUN, **OPEN_MPI}, DetectedLauncher("Open MPI's mpirun", 4, 2)),
        ({**TORCHRUN, "PMIX_RANK": "3"}, DetectedLauncher("a PMIx launcher", None, 3)),
        # One process, or variables of something else; a job array.
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "1", "LOCAL_RANK": "1"}, None),
        ({"WORLD_SIZE": "big", "RANK": "0"}, None),
        ({"SGE_TASK_ID": "2", "SGE_TASK_FIRST": "1", "SGE_TASK_LAST": "8"}, None),
        ({"PBS_ARRAY_INDEX": "3", "SLURM_ARRAY_TASK_COUNT": "8"}, None),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, DetectedLauncher("a PMI launcher (mpiexec or srun)", 1, 0)),
    ],
)
def test_who_launched(environment: dict[str, str], expected: DetectedLauncher | None) -> None:
    assert detect_launcher(environment) == expected


def test_a_helper_of_a_rank_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TORCHRUN, **OPEN_MPI, **SRUN}.items():
        monkeypatch.setenv(name, value)
    assert detect_launcher(environment_of_helper()) is None
    assert environment_of_helper()["MASTER_ADDR"] == "n1"


def test_tasks_of_an_allocation() -> None:
    assert allocated_tasks({}) == 1
    assert allocated_tasks(SBATCH) == 8
    assert allocated_tasks({"SLURM_NTASKS": "(null)"}) == 1


def test_the_advice_fits_the_place() -> None:
    assert "srun --mpi=pmix" in singleton_fix(SBATCH)
    assert "--mpi-lib-version" in singleton_fix(OPEN_MPI)


@pytest.mark.parametrize(
    "named", [{}, {"TMPDIR": "a"}, {"TEMP": "a", "TMP": "b"}, {"TMPDIR": "none", "TMP": "b"}]
)
def test_the_temporary_folder_is_pythons_without_a_trial_file(
    named: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in named.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        os.utime(tmp_path / folder, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", None)
    found = temporary_folder()
    assert [(tmp_path / folder).stat().st_mtime for folder in ("a", "b")] == [0, 0]
    assert str(found) == tempfile.gettempdir()
