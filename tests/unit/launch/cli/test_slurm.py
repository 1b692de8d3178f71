"""`meshrun launch slurm`: what its words ask for, and every mistake in them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from meshrun.launch.cli.main import command
from meshrun.launch.cli.slurm import cores
from meshrun.launch.mpi.library import Library
from meshrun.launch.slurm.batch_script import JobRequest, script
from meshrun.launch.spec import LaunchSpec
from meshrun.runner.errors import UserError

SPEC = LaunchSpec(("bench", "all_reduce", "-b", "8", "-e", "8G"), 2, 8)
JOB = JobRequest("pmix", "/work")
OPEN_MPI = Library("Open MPI", 5)


@pytest.mark.parametrize(("there", "ranks", "each"), [("8", 2, 4), ("8", 3, 2), ("2", 4, 1), ("", 2, 1)])
def test_the_cores_of_an_allocation_are_shared_out(there: str, ranks: int, each: int) -> None:
    assert cores({"SLURM_CPUS_ON_NODE": there}, ranks) == each


@pytest.fixture(autouse=True)
def open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever MPI this environment has: another refuses --mpi pmix."""
    monkeypatch.setattr("meshrun.launch.mpi.library.loaded", lambda: OPEN_MPI)


def invoke(*words: str, **environment: str | None) -> Result:
    clean = {name: None for name in os.environ if name.startswith("SLURM_")}
    return CliRunner().invoke(
        command, ["launch", "slurm", *words], env={**clean, **environment}, standalone_mode=False
    )


def test_print_needs_no_slurm(tmp_path: Path) -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", "--", *SPEC.words, PATH=str(tmp_path))
    assert done.stdout == script(SPEC, replace(JOB, folder=os.getcwd()))
    assert "meshrun: mpi: pmix, as requested\n" in done.stderr


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    done = invoke("-j", "2x8", "--", *SPEC.words, PATH=str(tmp_path))
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(
        "no sbatch on PATH: Slurm is not installed here. Try: run it on a login node"
    )


def test_one_gpu_a_task_is_told() -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--bind-gpus", "task", "--print", "--", *SPEC.words)
    assert "meshrun: One GPU per task" in done.stderr
    assert "--gpus-per-node=8 --gpus-per-task=1" in done.stdout


def test_a_container_has_an_mpi_of_its_own() -> None:
    done = invoke(
        "-j", "2x8", "--container", "image.sqsh", "--print", "--", *SPEC.words, PATH=os.environ["PATH"]
    )
    assert isinstance(done.exception, UserError)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--", "bench", "all_reduce", "-n", "%a"), "'%a'"),
        (("--srun-args", "'", "--", *SPEC.words), "No closing quotation"),
        (("--", "jobs"), "`meshrun jobs` starts no ranks"),
        (("--mem", "lots", "--", *SPEC.words), "'lots' is no memory per host"),
        (("--signal", "USR1@soon", "--", *SPEC.words), "'USR1@soon' is not a signal"),
        (("--requeue=fast", "--", *SPEC.words), "'fast' is not expedite"),
        (("--nodelist", "n1\nn2", "--", *SPEC.words), "control characters are not allowed"),
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
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", "--", *SPEC.words, **inside)
    assert done.stdout.startswith("srun --overlap --mpi=pmix --cpus-per-task=4 --nodes=2 --ntasks=16")
    done = invoke("-j", "2x8", "--array", "0-3", "--mpi", "pmix", "--print", "--", *SPEC.words, **inside)
    assert "--array needs a new job, but this is inside job 17" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ["--no-requeue"]),
        (["--requeue"], ["--open-mode=append", "--requeue"]),
        (["--requeue=expedite"], ["--open-mode=append", "--requeue=expedite"]),
        (["--signal", "B:USR1@60", "--mem", "0"], ["--mem=0", "--signal=B:USR1@60", "--no-requeue"]),
        (["--nodelist", "n[1-3]", "--exclude", "n2", "--qos", "high", "--reservation", "maint"],
         ["--nodelist='n[1-3]'", "--exclude=n2", "--qos=high", "--reservation=maint", "--no-requeue"]),
    ],
)  # fmt: skip
def test_options_of_sbatch(words: list[str], lines: list[str]) -> None:
    done = invoke("-j", "2x8", "--mpi", "pmix", "--print", *words, "bench", "all_reduce")
    requests = [line.removeprefix("#SBATCH ") for line in done.stdout.splitlines() if "#SBATCH" in line]
    assert [line for line in requests if not line.startswith("--output=")][5:] == lines


def test_a_settings_file_may_ask_for_a_requeue(tmp_path: Path) -> None:
    file = tmp_path / "meshrun" / "meshrun.toml"
    file.parent.mkdir()
    for value, line in (("true", "--requeue\n"), ('"expedite"', "--requeue=expedite"), ("false", "--no-req")):
        file.write_text(f"[slurm]\nrequeue = {value}\nqos = 'low'\n")
        done = invoke(
            "-j", "2x8", "--mpi", "pmix", "--print", "--", *SPEC.words, XDG_CONFIG_HOME=str(tmp_path)
        )
        assert f"#SBATCH {line}" in done.stdout
        assert "#SBATCH --qos=low\n" in done.stdout


def test_the_output_may_come_from_sbatchs_variable() -> None:
    words = ("-j", "2x8", "--mpi", "pmix", "--print", "--", *SPEC.words)
    assert "#SBATCH --output=mine-%j\n" in invoke(*words, SBATCH_OUTPUT="mine-%j").stdout
    assert "#SBATCH --output=run.log\n" in invoke("--output", "run.log", *words, SBATCH_OUTPUT="mine").stdout
    inside = {"SLURM_JOB_ID": "17", "SLURM_CPUS_ON_NODE": "32", "SBATCH_OUTPUT": "mine"}
    assert invoke(*words, **inside).stdout.startswith("srun --overlap")
