"""A submitted job: what is said while it waits, and what it leaves in the working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshrun.launch.slurm import job as slurm_job
from meshrun.launch.slurm import queries
from meshrun.launch.slurm.batch_script import JobRequest
from meshrun.launch.slurm.job import PENDING, SubmittedJob
from meshrun.launch.slurm.queries import JobState
from meshrun.runner.errors import UserError

WAITING = (("17", "17"), ("17_[0-3]", "17_[2-3]"))  # a job; an array's tasks, fewer later


class Queue:
    """Slurm, and the time: what is said when a job has a state."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.job = SubmittedJob("17", "0123", JobRequest("pmix", str(folder)), folder)
        self.state, self.now, self.capsys = JobState("17", "PENDING"), 100.0, capsys
        monkeypatch.setattr(queries, "query_job", lambda _: [self.state])
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def says(self, state: JobState, seconds: float = 0.0) -> str:
        self.state, self.now = state, self.now + seconds
        self.job._query()
        return self.capsys.readouterr().err


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Queue:
    return Queue(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(("first", "later"), WAITING)
@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("PartitionConfig", "a smaller -j or --cpus-per-task, or another --partition"),
        ("PartitionNodeLimit", "a smaller -j or --cpus-per-task, or another --partition"),
        ("PartitionTimeLimit", "a shorter --time"),
        ("ReqNodeNotAvail,_UnavailableNodes:c1", "sinfo --list-reasons"),
        ("JobHeldUser", "scontrol release"),
        ("AssocMaxJobsLimit", "another --account"),
        ("SomethingNew", "scontrol show job 17"),
    ],
)
def test_a_reason_that_does_not_pass_is_explained_once(
    queue: Queue, reason: str, hint: str, first: str, later: str
) -> None:
    waits = JobState(first, "PENDING", reason)
    assert queue.says(waits) == f"meshrun: job {first}: waiting: {reason}\n"
    assert queue.says(waits, PENDING - 1) == ""
    fewer = JobState(later, "PENDING", reason)
    said = queue.says(fewer, 2)
    assert said.startswith(f"meshrun: job {later} does not start, because of {reason}. Try: {hint}")
    assert said.endswith("; Ctrl-C cancels the job\n")
    assert queue.says(fewer, 100) == ""


@pytest.mark.parametrize("reason", ["Resources", "Priority", "Dependency", "BeginTime", "JobArrayTaskLimit"])
def test_a_reason_that_passes_is_told_once(queue: Queue, reason: str) -> None:
    assert queue.says(JobState("17", "PENDING", "None")) == ""
    assert queue.says(JobState("17", "PENDING", reason)) == f"meshrun: job 17: waiting: {reason}\n"
    assert queue.says(JobState("17", "PENDING", reason), 1000) == ""
    assert queue.says(JobState("17", "PENDING", "None"), 1) == ""
    assert queue.says(JobState("17", "PENDING", reason), 1) == ""
    running = JobState("17", "RUNNING", nodes="c1")
    assert queue.says(running, 1) == "meshrun: job 17: RUNNING on c1\n"


def test_each_reason_has_its_time(queue: Queue) -> None:
    queue.says(JobState("17", "PENDING", "Resources"))
    said = queue.says(JobState("17", "PENDING", "PartitionDown"), 100)
    assert said == "meshrun: job 17: waiting: PartitionDown\n"
    assert "does not start" in queue.says(JobState("17", "PENDING", "PartitionDown"), PENDING + 1)


def test_the_notes_of_a_job_are_removed_with_those_that_were_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("meshrun-17.lost", "meshrun-17_3.lost", ".meshrun-17_3.lost.0123456789abcdef.partial"):
        (tmp_path / name).touch()
    slurm_job._remove_notes("17", "17_*")
    assert os.listdir(tmp_path) == []


def test_variables_of_sbatch_that_would_hide_the_output_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\nenv | grep ^SBATCH_ >{tmp_path}/told\necho "$@" >>{tmp_path}/told\necho 17\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in (*slurm_job.FOLLOWED, "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "x")
    for requeue, mode in ((False, "truncate"), (True, "append")):
        assert slurm_job._submit("", JobRequest("pmix", "/work", requeue=requeue)) == "17"
        told = (tmp_path / "told").read_text().splitlines()
        assert told == ["SBATCH_ACCOUNT=x", f"--parsable --open-mode={mode}"]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        (
            "sbatch: option '--requeue' doesn't allow an argument\n"
            'Try "sbatch --help" for more information',
            "got sbatch: option '--requeue' doesn't allow an argument. Try: --requeue without =expedite, ",
        ),
        (
            "sbatch: error: Memory specification can not be satisfied\n"
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "Requested node configuration is not available. Try: a smaller --mem;",
        ),
        ("", "got exit status 1. Try: sinfo"),
    ],
)
def test_what_sbatch_rejects_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str, told: str
) -> None:
    (tmp_path / "errors").write_text(errors)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ncat {tmp_path}/errors >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError) as rejected:
        slurm_job._submit("", JobRequest("pmix", "/work"))
    assert told in str(rejected.value)
