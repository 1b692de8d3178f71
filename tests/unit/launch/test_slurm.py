"""A plan as a batch script, character by character, and what Slurm's answers say of a job."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from launch import slurm_ask, slurm_job
from launch.local import PROGRAM
from launch.mpi_library import Library
from launch.plan import Plan
from launch.slurm import Job, script, srun
from launch.slurm_ask import State, states
from launch.slurm_command import cores
from launch.slurm_command import slurm as command
from launch.slurm_followed import Attempts, Followed
from launch.slurm_mpi import chosen
from launch.told import Told
from runner.errors import UserError
from runner.run_status import LINE, RunDirectory

GOLDEN = Path(__file__).with_name("golden")
SHIPPED = sorted((Path(__file__).parents[3] / "slurm").glob("*.sbatch"))
PLAN = Plan(("bench", "all_reduce", "-b", "8", "-e", "8G"), 2, 8)
JOB = Job("pmix", "/work")
OPEN_MPI, MPICH = Library("Open MPI", 5), Library("MPICH", 5)
OFFERED = frozenset(("none", "pmi2", "pmix", "pmix_v4"))

SCRIPTS: dict[str, tuple[Plan, Job, str | None]] = {
    "plain": (PLAN, JOB, None),
    "followed": (PLAN, JOB, "0123abcd"),
    "everything": (
        replace(PLAN, words=("run", "my file.py:f", "in-%a.npy"), settings={"B": "it's"}, network="ib0"),
        Job(
            "pmi2", "/work", bind_gpus="task", cpus_per_task=6, partition="gpu", account="a b", time="60",
            constraint="h100&ib", array="0-9%2", dependency="afterok:17", requeue=True,
            srun_args=("--mem=0", "--comment=x y"),
        ),
        "0123abcd",
    ),
    "cpu": (replace(PLAN, per_host=2), Job("pmi2", "/work", gpus=False), None),
    "exclusive": (PLAN, Job("pmix", "/work", exclusive=True, time="20"), None),
    "container": (
        replace(PLAN, network="ib0"),
        Job("pmix", "/my work", container="/images/meshrun.sqsh", container_mounts="/data:/data"),
        "0123abcd",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    text = script(*SCRIPTS[name]).replace(shlex.join(PROGRAM), "PYTHON MAIN")
    assert text == (GOLDEN / f"{name}.sbatch").read_text()


def test_every_golden_script_is_of_a_test() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sbatch")} == set(SCRIPTS)


@pytest.mark.parametrize(
    "text", [script(*arguments) for arguments in SCRIPTS.values()] + [path.read_text() for path in SHIPPED]
)
def test_nothing_stands_before_the_last_request(text: str) -> None:
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_are_there() -> None:
    kinds = ("array_job", "array_job_container", "bandwidth", "bandwidth_container", "validate")
    assert [path.stem for path in SHIPPED] == list(kinds)


def started(text: str, folder: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The words and the environment that a script gives to srun, found out by a shell."""
    stub = folder / "srun"
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" >words\nexec env -0 >environment\n")
    stub.chmod(0o755)
    base = {"PATH": f"{folder}:{os.environ['PATH']}", **environment}
    subprocess.run(["bash"], input=text.encode(), cwd=folder, env=base, check=True, capture_output=True)
    words, lines = (
        (folder / name).read_bytes().decode().split("\0")[:-1] for name in ("words", "environment")
    )
    pairs = (line.partition("=") for line in lines)
    return words, {name: value for name, _, value in pairs}


WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


@given(st.lists(WORD, min_size=1, max_size=4), WORD, st.booleans())
def test_ranks_get_every_word_and_setting_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], value: str, array: bool
) -> None:
    plan = Plan(tuple(words), 2, 2, settings={"ANYTHING": value})
    job = Job("pmix", "/work", array="7" if array else None, srun_args=(words[0],))
    got, environment = started(
        script(plan, job), tmp_path_factory.mktemp("stub"), SLURM_ARRAY_TASK_ID="7", LC_ALL="C.UTF-8"
    )
    assert got[-len(words) :] == [word.replace("%a", "7") if array else word for word in words]
    assert words[0] in got[: -len(words)]
    assert environment["ANYTHING"] == value


def test_what_is_set_stays_but_the_plan_wins(tmp_path: Path) -> None:
    text = script(replace(PLAN, settings={"NCCL_DEBUG": "INFO"}), JOB)
    _, environment = started(text, tmp_path, OMPI_MCA_pml="ucx", NCCL_DEBUG="WARN")
    assert environment["OMPI_MCA_pml"] == "ucx"
    assert environment["OMPI_MCA_btl"] == "^ofi,openib,uct"
    assert environment["NCCL_DEBUG"] == "INFO"


def test_a_step_has_the_options_of_the_script(tmp_path: Path) -> None:
    got, _ = started(script(PLAN, JOB, "0123"), tmp_path)
    assert srun(PLAN, JOB, "0123") == ["srun", "--overlap", *got]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": "a\nb"}, "--partition 'a\\\\nb': a line of a script has no control characters"),
        ({"array": "0-3", "output": "out-%j"}, "--output out-%j: %a is to tell the tasks"),
        ({"container_mounts": "/a:/a"}, "--container-mounts without --container"),
    ],
)
def test_what_is_no_job(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        script(PLAN, replace(JOB, **options))


@pytest.mark.parametrize(
    ("asked", "ranks", "library", "way"),
    [
        ("auto", 16, OPEN_MPI, "pmix"),
        ("auto", 16, MPICH, "pmi2"),
        ("auto", 16, Library("Intel MPI", 2021), "pmi2"),
        ("auto", 1, None, "none"),
        ("pmix_v4", 16, OPEN_MPI, "pmix_v4"),
        ("pmi2", 16, Library("Open MPI", 4), "pmi2"),  # some were built for it
        ("pmi2", 16, None, "pmi2"),
        ("none", 1, MPICH, "none"),
    ],
)
def test_the_way_that_fits_the_mpi(asked: str, ranks: int, library: Library | None, way: str) -> None:
    assert chosen(asked, ranks, library, OFFERED)[0] == way


@pytest.mark.parametrize(
    ("asked", "library", "reason"),
    [
        ("pmi2", OPEN_MPI, "--mpi pmi2: Open MPI 5 does not speak PMI2, so .* Try: --mpi pmix"),
        ("pmix", MPICH, "--mpi pmix: MPICH 5 does not speak Slurm's PMIx, .* Try: --mpi pmi2"),
        ("none", None, "--mpi none: srun tells no rank of the others"),
        ("pmi9", OPEN_MPI, "this Slurm has no --mpi pmi9: expected one of none, pmi2, pmix, pmix_v4"),
        ("auto", None, "which MPI the ranks will load cannot be seen from here"),
        ("auto", Library("Fast MPI", 1), "got Fast MPI 1"),
        ("auto", Library("Cray MPICH", 8), None),
    ],
)  # fmt: skip
def test_ranks_that_would_not_find_each_other(
    asked: str, library: Library | None, reason: str | None
) -> None:
    if reason is None:  # the second best is there
        assert chosen(asked, 16, library, OFFERED)[0] == "pmi2"
        return
    with pytest.raises(UserError, match=reason):
        chosen(asked, 16, library, OFFERED)


def test_a_slurm_without_what_the_mpi_needs() -> None:
    with pytest.raises(UserError, match="Open MPI 5 needs srun --mpi=pmix: got a Slurm with none, pmi2"):
        chosen("auto", 16, OPEN_MPI, frozenset(("none", "pmi2")))


SHOWN = """\
JobId=17 JobName=meshrun
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=COMPLETING Reason=NodeDown Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=c2
   BatchHost=c1
   StdOut=/my work/meshrun-17.out

"""
ARRAY = """\
JobId=2 ArrayJobId=2 ArrayTaskId=2-3%2 ArrayTaskThrottle=2 JobName=meshrun
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=
   StdOut=/tmp/meshrun-2_4294967294.out

JobId=4 ArrayJobId=2 ArrayTaskId=1 ArrayTaskThrottle=2 JobName=meshrun
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=1:0
   NodeList=c1
   StdOut=/tmp/meshrun-2_1.out
"""


def test_what_slurm_says_of_a_job() -> None:
    expected = State("17", "COMPLETING", "NodeDown", "0:0", "c2", "/my work/meshrun-17.out")
    assert states(SHOWN) == [expected]
    assert not expected.over


def test_what_slurm_says_of_an_array() -> None:
    waiting, failed = states(ARRAY)
    assert (waiting.id, waiting.state, waiting.over) == ("2_[2-3%2]", "PENDING", False)
    assert failed == State("2_1", "FAILED", "NonZeroExitCode", "1:0", "c1", "/tmp/meshrun-2_1.out")
    assert failed.over
    assert not failed.well


def followed(folder: Path, *states: State, restarts: bool = False) -> Followed:
    """A job that has gone through these states."""
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    output = folder / "out"
    told = (Attempts if restarts else Told)(run, "77")
    one = Followed(run, told, State("17", ""), shown=False, requeue=restarts)
    for state in states:
        one.now(replace(state, output=str(output)))
        one.look()
    return one


def line(kind: str, content: str) -> str:
    return f"{LINE} 77 {kind} {content}\n"


RUNNING = State("17", "RUNNING", nodes="c[1-2]")
COMPLETED = State("17", "COMPLETED")
FAILED = State("17", "FAILED", "NonZeroExitCode", "137:0")
RECORD = line("record", '{"complete": true}')


def test_a_record_and_a_good_end(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(f"before\n{RECORD}after\n")
    one = followed(tmp_path, RUNNING, COMPLETED)
    assert one.failure() is None
    assert one.said == b"before\nafter\n"
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
        ("srun: error: c2: task 3: Killed\n", FAILED, "[rank 3, host c2] ended before its time: Killed: got"),
        (
            "srun: error: c2: tasks 2-3: Exited with exit code 143\nsrun: error: c1: tasks 0-1: Bus error\n",
            FAILED,
            "[rank 0, host c1] ended before its time: Bus error",
        ),
        (
            "srun: error: task 0 launch failed: Unspecified error\nsrun: error: c2: tasks 2-3: Killed\n",
            FAILED,
            "rank 0 could not be started: Unspecified error: got exit status 137",
        ),
        ("srun: error: Node failure on c2\n", FAILED, "job 17 ended as FAILED (NonZeroExitCode): c2 failed"),
        (
            "",
            State("17", "TIMEOUT", "TimeLimit"),
            "job 17 ended as TIMEOUT (TimeLimit). Try: a longer --time",
        ),
        ("", State("17", "GONE"), "job 17 ended as GONE (None): got exit status 0, no completion record"),
    ],
)
def test_a_bad_end(tmp_path: Path, text: str, end: State, sentence: str) -> None:
    (tmp_path / "out").write_text(text)
    told = followed(tmp_path, RUNNING, end).failure()
    assert told
    assert told.startswith(sentence)


def test_a_loss_that_the_output_does_not_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "meshrun-17.lost"
    note.write_text("meshrun: host c1 (ranks 0-1) silent for 15 s\n")
    one = followed(tmp_path, replace(RUNNING, state="PENDING"))
    assert one.run.failure() is None, "of an earlier job with this number"
    one.now(RUNNING)
    one.look()
    failure = one.run.failure()
    assert failure is not None
    assert failure["sentence"] == "host c1 (ranks 0-1) silent for 15 s"
    assert failure["exit_code"] == 1
    assert not note.exists()


def test_a_loss_after_which_slurm_starts_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "meshrun-17.lost"
    note.write_text("meshrun: host c1 (ranks 0-1) silent for 15 s\n")
    one = followed(tmp_path, RUNNING, restarts=True)
    assert one.run.failure() is None
    assert note.exists(), "for the script, which asks Slurm for that"


def test_the_notes_of_a_job_are_removed_with_those_that_were_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("meshrun-17.lost", "meshrun-17_3.lost", ".meshrun-17_3.lost.0123456789abcdef.partial"):
        (tmp_path / name).touch()
    slurm_job._remove_notes("17", "17_*")
    assert os.listdir(tmp_path) == []


def test_nodes_that_slurm_has_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(slurm_ask, "failed", lambda nodes: asked.append(nodes) or ["c1"])
    (tmp_path / "out").write_text("")
    end = State("17", "NODE_FAIL", "NodeDown", nodes="c2")
    told = followed(tmp_path, RUNNING, end).failure()
    assert (
        told
        == "job 17 ended as NODE_FAIL (NodeDown): c1 failed. Try: the run again; --requeue has Slurm do it"
    )
    assert asked == ["c[1-2]"], "all that the job had"


def test_an_output_that_is_not_here(tmp_path: Path) -> None:
    one = followed(tmp_path, RUNNING, COMPLETED)
    assert not one.done, "it may come late"
    told = one.failure()
    assert told
    assert "a working directory or --output that all hosts share" in told
    one.begun = one.ended = time.monotonic() - 60
    assert one.missing
    assert one.done


def test_a_job_that_is_started_again_begins_anew(tmp_path: Path) -> None:
    partial = tmp_path / "partial.npy"
    partial.touch()
    first = line("partial", f'"{partial}"') + line("failure", '{"sentence": "c2 is silent", "exit_code": 1}')
    (tmp_path / "out").write_text(line("attempt", "0") + first + line("attempt", "0") + RECORD)
    one = followed(tmp_path, RUNNING, replace(RUNNING, state="PENDING"), RUNNING, COMPLETED, restarts=True)
    assert one.run.failure() is None
    assert one.failure() is None
    assert not partial.exists()


@pytest.mark.parametrize(("there", "ranks", "each"), [("8", 2, 4), ("8", 3, 2), ("2", 4, 1), ("", 2, 1)])
def test_the_cores_of_an_allocation_are_shared_out(there: str, ranks: int, each: int) -> None:
    assert cores({"SLURM_CPUS_ON_NODE": there}, ranks) == each


@pytest.fixture(autouse=True)
def open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever MPI this environment has: another refuses --mpi pmix."""
    monkeypatch.setattr("launch.mpi_library.loaded", lambda: OPEN_MPI)


def invoke(*words: str, **environment: str | None) -> Result:
    clean = {name: None for name in os.environ if name.startswith("SLURM_")}
    return CliRunner().invoke(command, words, env={**clean, **environment}, standalone_mode=False)


def test_print_needs_no_slurm(tmp_path: Path) -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", "--", *PLAN.words, PATH=str(tmp_path))
    assert done.stdout == script(PLAN, replace(JOB, folder=os.getcwd()))
    assert "meshrun: mpi: pmix, as asked\n" in done.stderr


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    done = invoke("-j", "2x8", "--", *PLAN.words, PATH=str(tmp_path))
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(
        "no sbatch on PATH: Slurm is not installed here. Try: on a login node"
    )


def test_one_gpu_a_task_is_told() -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--bind-gpus", "task", "--print", "--", *PLAN.words)
    assert "meshrun: One GPU to each task" in done.stderr
    assert "--gpus-per-node=8 --gpus-per-task=1" in done.stdout


def test_a_container_has_an_mpi_of_its_own() -> None:
    done = invoke(
        "-j", "2x8", "--container", "image.sqsh", "--print", "--", *PLAN.words, PATH=os.environ["PATH"]
    )
    assert isinstance(done.exception, UserError)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--", "bench", "all_reduce", "-n", "%a"), "'%a'"),
        (("--srun-args", "'", "--", *PLAN.words), "No closing quotation"),
        (("--", "jobs"), "no ranks run jobs"),
        (("--", "run", "nothing"), "unknown job"),
    ],
)
def test_words_that_are_none(words: tuple[str, ...], reason: str) -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", *words)
    assert reason in str(getattr(done.exception, "message", done.exception))


def test_the_index_of_an_array_is_a_number() -> None:
    words = ("bench", "all_reduce", "-w", "%a")
    done = invoke("-j", "2x8", "--mpi", "pmix", "--array", "0-3", "--print", "--", *words)
    assert done.stdout.endswith('bench all_reduce -w "$SLURM_ARRAY_TASK_ID"\n')


def test_options_of_a_new_job_inside_another() -> None:
    inside = {"SLURM_JOB_ID": "17", "SLURM_CPUS_ON_NODE": "32"}
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", "--", *PLAN.words, **inside)
    assert done.stdout.startswith("srun --overlap --mpi=pmix --cpus-per-task=4 --nodes=2 --ntasks=16")
    done = invoke("-j", "2x8", "--array", "0-3", "--mpi", "pmix", "--print", "--", *PLAN.words, **inside)
    assert "--array is of a new job, and this is inside job 17" in str(done.exception)
