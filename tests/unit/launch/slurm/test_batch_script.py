"""A spec as a batch script, character by character."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.slurm.batch_script import JobRequest, script, srun
from meshrun.launch.spec import LaunchSpec

GOLDEN = Path(__file__).with_name("golden")
SHIPPED = sorted((Path(__file__).parents[4] / "slurm").glob("*.sbatch"))
SPEC = LaunchSpec(("bench", "all_reduce", "-b", "8", "-e", "8G"), 2, 8)
JOB = JobRequest("pmix", "/work")

SCRIPTS: dict[str, tuple[LaunchSpec, JobRequest, str | None]] = {
    "plain": (SPEC, JOB, None),
    "followed": (SPEC, JOB, "0123abcd"),
    "everything": (
        replace(SPEC, words=("run", "my file.py:f", "in-%a.npy"), settings={"B": "it's"}, network="ib0"),
        JobRequest(
            "pmi2", "/work", bind_gpus="task", cpus_per_task=6, partition="gpu", account="a b", time="60",
            constraint="h100&ib", nodelist="n[1-3]", exclude="n2", qos="high", reservation="maint", mem="64G",
            signal="USR1@60", array="0-9%2", dependency="afterok:17", segment=1, requeue="expedite",
            srun_args=("--mem=0", "--comment=x y"),
        ),
        "0123abcd",
    ),
    "cpu": (replace(SPEC, per_host=2), JobRequest("pmi2", "/work", gpus=False), None),
    "exclusive": (SPEC, JobRequest("pmix", "/work", exclusive=True, time="20"), None),
    "container": (
        replace(SPEC, network="ib0"),
        JobRequest("pmix", "/my work", container="/images/meshrun.sqsh", container_mounts="/data:/data"),
        "0123abcd",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    text = script(*SCRIPTS[name]).replace(shlex.join(PROGRAM), "PYTHON MAIN")
    assert text == (GOLDEN / f"{name}.sbatch").read_text()


@pytest.mark.parametrize(
    ("hosts", "segment", "valid"), [(32, 16, True), (2, 2, True), (2, 4, False), (6, 4, False)]
)
def test_segments_have_the_same_size(hosts: int, segment: int, valid: bool) -> None:
    spec, job = replace(SPEC, hosts=hosts), replace(JOB, segment=segment)
    if valid:
        assert f"#SBATCH --segment={segment}\n" in script(spec, job)
        return
    with pytest.raises(ValueError, match=f"--segment {segment} does not divide the {hosts} hosts"):
        script(spec, job)


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
    spec = LaunchSpec(tuple(words), 2, 2, settings={"ANYTHING": value})
    job = JobRequest("pmix", "/work", array="7" if array else None, srun_args=(words[0],))
    got, environment = started(
        script(spec, job), tmp_path_factory.mktemp("stub"), SLURM_ARRAY_TASK_ID="7", LC_ALL="C.UTF-8"
    )
    assert got[-len(words) :] == [word.replace("%a", "7") if array else word for word in words]
    assert words[0] in got[: -len(words)]
    assert environment["ANYTHING"] == value


def test_what_is_set_stays_but_the_plan_wins(tmp_path: Path) -> None:
    text = script(replace(SPEC, settings={"NCCL_DEBUG": "INFO"}), JOB)
    _, environment = started(text, tmp_path, OMPI_MCA_pml="ucx", NCCL_DEBUG="WARN")
    assert environment["OMPI_MCA_pml"] == "ucx"
    assert environment["OMPI_MCA_btl"] == "^ofi,openib,uct"
    assert environment["NCCL_DEBUG"] == "INFO"


def test_an_index_with_leading_zeros_separates_the_tasks_too() -> None:
    assert "--output=out-%4a\n" in script(SPEC, replace(JOB, array="0-3", output="out-%4a"))


def test_a_step_has_the_options_of_the_script(tmp_path: Path) -> None:
    got, _ = started(script(SPEC, JOB, "0123"), tmp_path)
    assert srun(SPEC, JOB, "0123") == ["srun", "--overlap", *got]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": "a\nb"}, "--partition 'a\\\\nb': control characters are not allowed in a script"),
        ({"array": "0-3", "output": "out-%j"}, "--output out-%j: must contain %a"),
        ({"array": "0-3", "output": "out-%%a"}, "--output out-%%a: must contain %a"),
        ({"output": " "}, "--output is empty"),
        ({"output": "a\\b"}, "Slurm does not take a backslash literally"),
        ({"container_mounts": "/a:/a"}, "--container-mounts without --container"),
    ],
)
def test_what_is_no_job(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        script(SPEC, replace(JOB, **options))
