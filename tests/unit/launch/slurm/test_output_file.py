"""Where a job's output is: its file may be older than the job, and its name made of Slurm's patterns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshrun.launch.slurm.output_file import (
    CHUNK,
    OutputFile,
    absolute,
    check_output,
    expand,
    values_before,
    values_of,
)
from meshrun.launch.slurm.queries import JobState
from meshrun.runner.errors import UserError

MARK = b"\x1emeshrun-run 0123 attempt 17\n"
VALUES = {"x": "meshrun", "u": "me", "j": "17", "A": "17", "a": "4294967294"}
OLD = b"a row of an earlier job\n" * 100


def output(folder: Path, pattern: str, appends: bool = False) -> OutputFile:
    return OutputFile(str(folder / pattern), VALUES, MARK, appends)


def rest(file: OutputFile) -> bytes:
    return b"".join(iter(file.read, b""))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("meshrun-%j.out", "meshrun-17.out"),
        ("%x-%u-%A_%a", "meshrun-me-17_4294967294"),
        ("%5j-%3u", "00017-me"),
        ("100%%-%%j-%%%j", "100%-%j-%17"),
        ("%N-%q%", "%N-%q%"),
    ],
)
def test_a_name_by_slurms_patterns(pattern: str, name: str) -> None:
    assert expand(pattern, VALUES) == name


def test_a_folder_is_no_pattern() -> None:
    assert expand(absolute("%j.out", "/100%j"), VALUES) == "/100%j/17.out"
    assert absolute("/logs/%j", "/100%j") == "/logs/%j"


def test_the_values_of_a_task() -> None:
    task = JobState("17_3", "RUNNING", number="20", name="my job")
    assert values_of(task, {"u": "me", "x": "meshrun"}) == {
        "u": "me", "x": "my job", "A": "17", "a": "3", "j": "20",
    }  # fmt: skip


@pytest.mark.parametrize("length", [len(OLD) // 2, len(OLD), len(OLD) * 2])
def test_an_old_file_is_read_from_where_slurm_truncates_it(tmp_path: Path, length: int) -> None:
    """Whether the new output is shorter than the old one, as long, or longer when it is seen first."""
    file = output(tmp_path, "run.log")
    (tmp_path / "run.log").write_bytes(OLD)
    assert rest(file) == b""
    assert not file.found
    text = b"slurmstepd: a warning\n" + MARK + b"a new row\n" * length
    (tmp_path / "run.log").write_bytes(text[:length])
    assert rest(file) == text[:length]
    with (tmp_path / "run.log").open("ab") as more:
        more.write(text[length:])
    assert rest(file) == text[length:]


def test_an_old_file_is_read_from_where_slurm_appends_to_it(tmp_path: Path) -> None:
    """The mark may be at any distance from what is read at once."""
    for size in (0, 1, CHUNK - len(MARK), CHUNK - 5, CHUNK, 2 * CHUNK + 1):
        file = output(tmp_path, "run.log", appends=True)
        (tmp_path / "run.log").write_bytes(b"x" * size)
        assert rest(file) == b""
        with (tmp_path / "run.log").open("ab") as more:
            more.write(MARK + b"new\n")
        assert rest(file) == MARK + b"new\n", size


def test_a_mark_that_is_half_written(tmp_path: Path) -> None:
    file = output(tmp_path, "run.log")
    (tmp_path / "run.log").write_bytes(MARK[:-3])
    assert rest(file) == b""
    (tmp_path / "run.log").write_bytes(MARK + b"row\n")
    assert rest(file) == MARK + b"row\n"


@pytest.mark.parametrize("pattern", ["%N.out", "out-%5N", "[1]-%N-%s", "%b%J.log"])
def test_a_file_whose_name_only_slurm_knows_is_found_by_its_mark(tmp_path: Path, pattern: str) -> None:
    for value in ("c1", "c2", "c3"):
        name = expand(pattern, VALUES, lambda _, value=value: value)  # type: ignore[misc]
        (tmp_path / name).write_bytes((MARK if value == "c2" else OLD) + b"row\n")
        if value == "c2":
            right = tmp_path / name
    file = output(tmp_path, pattern)
    assert rest(file) == MARK + b"row\n"
    assert str(file) == str(right)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.out")
    assert rest(output(tmp_path, "%N.out")) == b""


def test_no_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    assert rest(output(tmp_path, "none/run.log")) == b""
    (tmp_path / "run.log").mkdir()
    file = output(tmp_path, "run.log")
    assert rest(file) == b""
    assert str(file) == str(tmp_path / "run.log")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("logs/run.log", "--output logs/run.log: folder {}/logs does not exist. Try: mkdir -p {}/logs"),
        ("logs-%x/%u.log", "folder {}/logs-meshrun does not exist"),
        ("/nowhere at all/run.log", "folder /nowhere at all does not exist"),
        ("logs-%j/run.log", "there is no folder for a new job's %j, and Slurm creates none"),
        ("old/%A_%a/out", "there is no folder for a new job's %A"),
        ("old", "--output old is a folder"),
        ("old/", "--output old/ is a folder"),
        ("old/run.log", None),
        ("file", None),
        ("file/run.log", "folder {}/file does not exist"),
        ("%N/run.log", None),
        ("%%/run.log", "folder {}/% does not exist"),
        ("None", "Slurm takes it for /dev/null"),
        ("/dev/null", "--output /dev/null is not a regular file"),
        ("fifo", "--output fifo is not a regular file"),
        ("meshrun-%j.out", None),
    ],
)
def test_an_output_that_slurm_cannot_write_is_refused(
    tmp_path: Path, pattern: str, reason: str | None
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    if reason is None:
        check_output(pattern, values_before({}), tmp_path)
        return
    with pytest.raises(UserError) as refused:
        check_output(pattern, values_before({}), tmp_path)
    assert reason.format(tmp_path, tmp_path) in str(refused.value)


def test_the_name_of_the_job_may_come_from_the_environment() -> None:
    assert values_before({"SBATCH_JOB_NAME": "mine"})["x"] == "mine"
    assert values_before({})["x"] == "meshrun"
