"""What the output and the end of a job say of its run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshrun.launch.slurm import queries
from meshrun.launch.slurm.batch_script import JobRequest
from meshrun.launch.slurm.followed_job import AttemptStatusLines, FollowedJob
from meshrun.launch.slurm.output_file import OutputFile
from meshrun.launch.slurm.queries import JobState
from meshrun.runner.world.run_status import LINE, RunDirectory, signed_note


def followed(folder: Path, *states: JobState, restarts: bool = False) -> FollowedJob:
    """A job that has gone through these states."""
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    output = OutputFile(str(folder / "out"), {}, MARK.encode(), appends=restarts)
    lines = AttemptStatusLines(run, "77")
    request = JobRequest("pmix", str(folder), array="0-1", requeue=restarts)
    one = FollowedJob(lines, JobState("17", ""), output, request, "secret")
    for state in states:
        one.update(state)
        one.read_output()
    return one


def line(kind: str, content: str) -> str:
    return f"{LINE} 77 {kind} {content}\n"


RUNNING = JobState("17", "RUNNING", nodes="c[1-2]")
COMPLETED = JobState("17", "COMPLETED")
FAILED = JobState("17", "FAILED", "NonZeroExitCode", "137:0")
MARK = line("attempt", "17")
RECORD = line("record", '{"complete": true}')


def test_a_record_and_a_good_end(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(f"before\n{MARK}{RECORD}after\n")
    one = followed(tmp_path, RUNNING, COMPLETED)
    assert one.failure() is None
    assert one.output_tail == b"before\nafter\n"
    assert one.done


@pytest.mark.parametrize(
    ("text", "end", "sentence"),
    [
        ("", COMPLETED, "job 17 ended as COMPLETED (None): got exit status 0, no completion record"),
        (
            RECORD,
            FAILED,
            "job 17 ended as FAILED (NonZeroExitCode): got exit status 137, a completion record",
        ),
        ("srun: error: c2: task 3: Killed\n", FAILED, "[rank 3, host c2] ended too early: Killed: got"),
        (
            "srun: error: c2: tasks 2-3: Exited with exit code 143\nsrun: error: c1: tasks 0-1: Bus error\n",
            FAILED,
            "[rank 0, host c1] ended too early: Bus error",
        ),
        (
            "srun: error: task 0 launch failed: Unspecified error\nsrun: error: c2: tasks 2-3: Killed\n",
            FAILED,
            "rank 0 could not be started: Unspecified error: got exit status 137",
        ),
        ("srun: error: Node failure on c2\n", FAILED, "job 17 ended as FAILED (NonZeroExitCode): c2 failed"),
        (
            "",
            JobState("17", "TIMEOUT", "TimeLimit"),
            "job 17 ended as TIMEOUT (TimeLimit). Try: a longer --time",
        ),
        ("", JobState("17", "GONE"), "job 17 ended as GONE (None): got exit status 0, no completion record"),
    ],
)
def test_a_bad_end(tmp_path: Path, text: str, end: JobState, sentence: str) -> None:
    (tmp_path / "out").write_text(MARK + text)
    told = followed(tmp_path, RUNNING, end).failure()
    assert told
    assert told.startswith(sentence)


def test_a_loss_that_the_output_does_not_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "meshrun-17.lost"
    note.write_text(signed_note("17", "host c1 (ranks 0-1) silent for 15 s", "secret"))
    one = followed(tmp_path, replace(RUNNING, state="PENDING"))
    assert one.run.failure() is None, "of an earlier job with this number"
    one.update(RUNNING)
    one.read_output()
    failure = one.run.failure()
    assert failure is not None
    assert failure["sentence"] == "host c1 (ranks 0-1) silent for 15 s"
    assert failure["exit_code"] == 1
    assert not note.exists()


def _of_another_run(note: Path) -> None:
    note.write_text(signed_note("17", "all is lost", "guessed"))


def _of_another_job(note: Path) -> None:
    note.write_text(signed_note("18", "all is lost", "secret"))


def _without_proof(note: Path) -> None:
    note.write_text("meshrun: all is lost\n")


def _empty(note: Path) -> None:
    note.touch()


def _a_link(note: Path) -> None:
    other = note.with_name("other")
    other.write_text(signed_note("17", "all is lost", "secret"))
    note.symlink_to(other)


def _with_two_names(note: Path) -> None:
    _a_link(note)
    note.unlink()
    os.link(note.with_name("other"), note)


def _a_folder(note: Path) -> None:
    note.mkdir()


@pytest.mark.parametrize(
    "put",
    [_of_another_run, _of_another_job, _without_proof, _empty, _a_link, _with_two_names, _a_folder],
    ids=lambda put: put.__name__.strip("_"),
)
def test_a_note_that_is_not_of_a_rank_of_this_run_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "meshrun-17.lost")
    one = followed(tmp_path, RUNNING)
    assert one.run.failure() is None
    assert not one.hangs


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_note_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "meshrun-17.lost"
    note.write_text(signed_note("17", "all is lost", "secret"))
    os.chown(note, 12345, -1)
    assert followed(tmp_path, RUNNING).run.failure() is None


def test_a_loss_after_which_slurm_starts_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "meshrun-17.lost"
    note.write_text(signed_note("17", "host c1 (ranks 0-1) silent for 15 s", "secret"))
    one = followed(tmp_path, RUNNING, restarts=True)
    assert one.run.failure() is None
    assert note.exists(), "for the script, which asks Slurm for that"


def test_nodes_that_slurm_has_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(queries, "failed_nodes", lambda nodes: asked.append(nodes) or ["c1"])
    (tmp_path / "out").write_text(MARK)
    end = JobState("17", "NODE_FAIL", "NodeDown", nodes="c2")
    told = followed(tmp_path, RUNNING, end).failure()
    assert (
        told == "job 17 ended as NODE_FAIL (NodeDown): c1 failed. Try: run again; --requeue has Slurm do it"
    )
    assert asked == ["c[1-2]"], "all that the job had"


def test_an_output_that_is_not_here(tmp_path: Path) -> None:
    one = followed(tmp_path, RUNNING, COMPLETED)
    assert not one.done, "it may come late"
    told = one.failure()
    assert told
    assert "a working directory or --output that all hosts share" in told
    one.times.begun = one.times.ended = time.monotonic() - 60
    assert one.missing
    assert one.done


def test_a_job_that_is_started_again_begins_anew(tmp_path: Path) -> None:
    partial = tmp_path / "partial.npy"
    partial.touch()
    first = line("partial", f'"{partial}"') + line("failure", '{"sentence": "c2 is silent", "exit_code": 1}')
    (tmp_path / "out").write_text(MARK + first + MARK + RECORD)
    one = followed(tmp_path, RUNNING, replace(RUNNING, state="PENDING"), RUNNING, COMPLETED, restarts=True)
    assert one.run.failure() is None
    assert one.failure() is None
    assert not partial.exists()
