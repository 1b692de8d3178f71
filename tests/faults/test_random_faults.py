"""The judges of random_faults.py notice what they are for; and a few of its runs, by day."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_faults
from processes import launcher_problem, nightly
from random_faults import COMMANDS, FAULTS, LIMIT, Case, Ended, Site, judge, left, survivors, values_of

KILLED = Case(0, "one pass", 2, "meshrun", "SIGKILL of a rank", "block", 1, 0.0, 1)
SENTENCE = "meshrun: [rank 1, host n1] killed by signal 9 (SIGKILL). Try: dmesg"
FAILED = Ended(1, f"{SENTENCE}\n", 1.0)
NEW = np.arange(4.0)


@pytest.fixture
def where(tmp_path: Path) -> Site:
    made = Site(*(tmp_path / name for name in ("work", "notes", "temporary", "memory")), isolated=False)
    for folder in (made.notes, made.temporary, made.memory):
        folder.mkdir()
    made.fill()
    return made


def judged(where: Site, ended: Ended, case: Case = KILLED, after: Any = None) -> str:
    old = values_of(where.work / "out.npy")
    if after is not None:
        after(where.work)
    return "; ".join(judge(case, where, ended, old, (NEW.dtype.str, NEW.shape, NEW.tobytes())))


def complete(work: Path) -> None:
    np.save(work / "out.npy", NEW)
    (work / "record.json").write_text("{}")


def half(work: Path) -> None:
    np.save(work / "out.npy", NEW[:2])


def test_a_run_that_failed_as_documented_is_right(where: Site) -> None:
    assert judged(where, FAILED) == ""
    assert judged(where, replace(FAILED, status=0, errors=""), after=complete) == ""


@pytest.mark.parametrize(
    ("ended", "after", "wrong"),
    [
        (replace(FAILED, status=None), None, "hangs"),
        (replace(FAILED, status=2), None, "exit status 2, not [1]"),
        (replace(FAILED, errors=""), None, "first line is not meshrun's"),
        (replace(FAILED, errors=f"-----\n{SENTENCE}"), None, "first line is not meshrun's"),
        (replace(FAILED, errors="meshrun: no luck"), None, "does not name the cause"),
        (replace(FAILED, errors="meshrun: [Errno 2] killed by signal"), None, "is an error of Python"),
        (replace(FAILED, errors="meshrun: warning: ended\nmeshrun: no luck"), None, "not name the cause"),
        (replace(FAILED, errors=f"{SENTENCE}\n" + "a line\n" * 30), None, "31 lines on stderr"),
        (replace(FAILED, errors=f"{SENTENCE}\nTraceback"), None, "a traceback"),
        (FAILED, half, "the old output is damaged"),
        (replace(FAILED, status=0), half, "success, but the output is not right; success without a record"),
    ],
)
def test_what_is_wrong_with_a_run_is_noticed(where: Site, ended: Ended, after: Any, wrong: str) -> None:
    assert wrong in judged(where, ended, after=after)


BARE = replace(KILLED, launcher="mpirun")
LAUNCHER, RANK = "8 S /venv/bin/prterun -n 2 meshrun", "9 S /venv/bin/python meshrun"
UNREACHED = "[n1:00008] PMIX ERROR: PMIX_ERR_UNREACH in file ptl_base_connection_hdlr.c at line 103"


@pytest.mark.parametrize(
    ("case", "late", "errors", "hangs"),
    [
        (BARE, [LAUNCHER], UNREACHED, False),
        (BARE, [LAUNCHER, RANK], UNREACHED, True),
        (BARE, [LAUNCHER], "", True),
        (KILLED, [LAUNCHER], UNREACHED, True),
    ],
    ids=["alone", "with a rank", "for another reason", "under meshrun -n"],
)
def test_a_bare_launcher_that_hangs_after_all_ranks_have_ended_is_not_meshruns(
    where: Site, case: Case, late: list[str], errors: str, hangs: bool
) -> None:
    ended = replace(FAILED, status=None, errors=errors, late=late)
    assert ("hangs" in judged(where, ended, case)) is hangs


def test_a_warning_of_the_cause_is_not_enough(where: Site) -> None:
    case, warning = replace(BARE, fault="file size limit"), "meshrun: warning: no recorder: File too large"
    assert "no line of meshrun names the cause" in judged(where, replace(FAILED, errors=warning), case)
    named = f"{warning}\nmeshrun: cannot write out.npy: File too large"
    assert judged(where, replace(FAILED, errors=named), case) == ""


@pytest.mark.parametrize(
    ("launcher", "library", "recorded", "wrong"),
    [
        ("mpirun", "MPICH", False, ""),
        ("mpirun", "MPICH", True, "success, but the output is not right"),
        ("mpirun", "Open MPI", False, "success, but the output is not right; success without a record"),
        ("meshrun", "MPICH", False, "success, but the output is not right; success without a record"),
    ],
)
def test_only_mpichs_launcher_may_return_0_for_a_rank_that_left(
    where: Site, monkeypatch: pytest.MonkeyPatch, launcher: str, library: str, recorded: bool, wrong: str
) -> None:
    monkeypatch.setattr(random_faults, "mpich", lambda: library == "MPICH")
    if recorded:
        (where.work / "record.json").write_text("{}")
    case = replace(KILLED, fault="exit 0 of a rank", launcher=launcher)
    assert judged(where, replace(FAILED, status=0, errors=""), case) == wrong


def test_a_verdict_other_than_the_exit_status_is_noticed(where: Site) -> None:
    case = replace(KILLED, command="validate")
    (where.work / "record.json").write_text('{"status": "unknown"}')
    assert judged(where, replace(FAILED, status=3), case) == ""
    assert judged(where, replace(FAILED, status=2), case) == "exit status 2, but the record says unknown"


def test_what_is_left_is_noticed(where: Site) -> None:
    assert left(KILLED, where, FAILED, clean=False) == ([], [])
    (where.work / ".out.npy.partial").touch()
    (where.temporary / "meshrun-run-abc").mkdir()
    (where.memory / "meshrun_0_abc_1").touch()
    everything = [".out.npy.partial", "/dev/shm/meshrun_0_abc_1", "/tmp/meshrun-run-abc"]
    assert left(KILLED, where, FAILED, clean=False) == (everything, everything)
    unseen = replace(FAILED, status=-9)  # the command was killed: the next run removes it
    assert left(KILLED, where, unseen, clean=False) == (everything, [])
    assert left(KILLED, where, replace(FAILED, status=0), clean=True) == (everything, everything)
    chunks = replace(KILLED, command="chunks")
    for name in ("out.npy.journal", ".out.npy.stream.partial"):
        (where.work / name).touch()
    assert left(chunks, where, FAILED, clean=False)[1] == everything
    assert len(left(chunks, where, replace(FAILED, status=0), clean=False)[1]) == len(everything) + 2


def test_a_process_that_is_left_is_noticed_and_ended(where: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "GONE", 0.1)
    words, pipe = [sys.executable, "-c", "print(flush=True); input()"], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=where.environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()  # /proc has no environment of a process that is about to be made
        (found,) = survivors(where, FAILED)
        assert found.startswith(f"{process.pid} ")
        assert process.wait(30) == -9


def test_a_seed_draws_the_same_cases_and_every_fault() -> None:
    faults = list(FAULTS)
    cases = [random_faults.draw(7, number, {}, faults) for number in range(300)]
    assert cases == [random_faults.draw(7, number, {}, faults) for number in range(300)]
    assert {case.fault for case in cases} == set(FAULTS)
    assert {case.command for case in cases} == set(COMMANDS)
    assert {case.ranks for case in cases} == {1, 2, 3, 4}


def test_ranks_that_end_before_mpi_starts_are_not_drawn_for_mpichs_bare_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for ever, also if they end because the working folder is gone."""
    monkeypatch.setattr(random_faults, "mpich", lambda: True)
    cases = [random_faults.draw(7, number, {}, list(FAULTS)) for number in range(2000)]
    ending = [one for one in cases if FAULTS[one.fault].target == "rank" or "removed" in one.fault]
    assert not [one for one in ending if one.launcher == "mpirun" and one.moment in ("any", "start")]
    assert [one for one in ending if "removed" in one.fault and one.launcher == "mpirun"]


@pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))
@pytest.mark.mpi_library
@pytest.mark.parametrize(
    ("command", "fault", "moment"),
    [
        ("chunks", "SIGKILL of a rank", "block"),
        ("one pass", "output folder removed", "start"),
        nightly("steps", "abort of a rank", "block"),
    ],
)
def test_a_fault_at_a_random_place(command: str, fault: str, moment: str) -> None:
    case = Case(0, command, 2, "meshrun", fault, moment, 2 if moment == "block" else 1, 0.0, 1)
    result = random_faults.perform(case, LIMIT, random_faults.namespaces())
    assert result["done"]
    assert result["wrong"] == [], result["errors"]
