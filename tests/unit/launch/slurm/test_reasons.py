"""What Slurm's words mean: how tasks end, and what to type."""

from __future__ import annotations

import signal

import pytest

from meshrun.launch.slurm.reasons import NO_GPUS, remedy, task_end
from meshrun.launch.supervise.judge import HINTS, MEMORY, USER_SIGNAL


@pytest.mark.parametrize(
    ("end", "hint"),
    [
        ("Killed", MEMORY),
        ("Out Of Memory", MEMORY),
        ("Exited with exit code 137", MEMORY),
        ("User defined signal 1", USER_SIGNAL),
        ("User defined signal 2", USER_SIGNAL),
        ("Exited with exit code 138", USER_SIGNAL),
        ("Segmentation fault (core dumped)", HINTS[signal.SIGSEGV]),
        ("Bus error", HINTS[signal.SIGBUS]),
        ("Exited with exit code 1", None),
        ("Exited with exit code 2", None),
        ("Real-time signal 3", None),
        ("Something new", None),
    ],
)
def test_the_hint_is_of_the_signal_that_ended_a_task(end: str, hint: str | None) -> None:
    told = task_end(f"srun: error: c1: tasks 0-1: Terminated\nsrun: error: c2: task 3: {end}\n")
    assert told == (f"[rank 3, host c2] ended too early: {end}", hint)


@pytest.mark.parametrize(
    ("errors", "reason", "hint"),
    [
        (
            "srun: error: Step requested GRES but job doesn't have GRES\n"
            "srun: error: Unable to create step for job 45: Invalid generic resource (gres) specification\n",
            "Invalid generic resource (gres) specification",
            NO_GPUS,
        ),
        (
            "srun: error: Only allocated 1 nodes asked for 2\n",
            "Only allocated 1 nodes asked for 2",
            "a smaller -j",
        ),
        (
            "srun: error: Unable to create step for job 47: More processors requested than permitted\n",
            "More processors requested than permitted",
            "a smaller -j",
        ),
        (
            "srun: error: Unable to confirm allocation for job 9: Invalid job id specified\n",
            "Invalid job id specified",
            "scontrol show job",
        ),
    ],
)
def test_a_step_that_srun_does_not_create(errors: str, reason: str, hint: str) -> None:
    told = task_end(errors)
    assert told is not None
    assert told[0] == f"srun cannot start the ranks: {reason}"
    assert told[1] is not None
    assert told[1].startswith(hint)


def test_nothing_to_tell() -> None:
    assert (
        task_end("srun: job 7 queued and waiting for resources\nsrun: error: c1: task 0: Terminated\n")
        is None
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
            "--no-gpus",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "a smaller",
        ),
        ("Invalid feature specification", "another --constraint"),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
            "another",
        ),
        ("Requested time limit is invalid", "a shorter --time"),
        ("sbatch: option '--requeue' doesn't allow an argument", "--requeue without =expedite"),
        ("Invalid qos specification", "another --qos"),
        ("Requested reservation is invalid", "another --reservation"),
        ("Invalid node name specified", "another --nodelist or --exclude"),
        ("sbatch: error: Invalid --signal specification", "--signal USR1@60"),
        ("sbatch: error: invalid number of nodes (-N 2-1)", "as many hosts for -j as in --nodelist"),
        (
            "sbatch: error: Memory specification can not be satisfied\n"
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "a smaller --mem",
        ),
        ("Invalid partition name specified", "sinfo"),
    ],
)
def test_a_job_that_sbatch_rejects(error: str, hint: str) -> None:
    line = f"sbatch: error: Batch job submission failed: {error}"
    assert remedy(line, "sinfo; --print shows the script").startswith(hint)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("PartitionConfig", "a smaller -j"),
        ("PartitionNodeLimit", "a smaller -j"),
        ("PartitionTimeLimit", "a shorter --time"),
        ("ReqNodeNotAvail,", "sinfo --list-reasons"),
        ("Reservation", "another --reservation"),
        ("InvalidQOS", "another --qos"),
        ("QOSMaxNodePerUserLimit", "another --account"),
        ("AssocGrpCPUMinutesLimit", "another --account"),
        ("MaxMemPerLimit", "a smaller --mem"),
        ("BadConstraints", "another --constraint"),
        ("JobHeldUser", "scontrol release"),
        ("SomethingNew", "scontrol show job 7"),
    ],
)
def test_a_reason_for_which_a_job_does_not_start(reason: str, hint: str) -> None:
    assert remedy(reason, "scontrol show job 7").startswith(hint)


def test_addresses_that_pmi2_damaged() -> None:
    told = task_end(
        "slurmstepd-c1: error: mpi/pmi2: value not properly terminated in client request\n"
        "srun: error: c1: task 0: Exited with exit code 15\n"
    )
    assert told is not None
    assert told[0].startswith("MPICH's ranks could not exchange their addresses")
    assert "PMIx" in str(told[1])
