"""Shell scripts, and those inside batch scripts and manifests, as ShellCheck sees them."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshrun.launch.kubernetes import launcher_script

ROOT = Path(__file__).parents[2]
PLACES = (".ci", "benchmarks", "examples", "kubernetes", "launch", "slurm", "tests")
FILES = [path for place in PLACES for path in sorted((ROOT / place).rglob("*")) if path.is_file()]
BY_BASH = {".sbatch": "bash", ".sh": "sh"}  # of a file without a first line that says it

# A warning that is none here: why.
ALLOWED = {
    "await_hosts.sh": {
        "SC2013": "a hostfile has one word a line",
        "SC2059": "the format is a line of this script, too long to stand where it is used",
    },
    "container.sbatch": {"SC1097": "NCCL takes =ib0 for exactly that interface"},
    "everything.sbatch": {"SC1097": "NCCL takes =ib0 for exactly that interface"},
}
# Of scripts inside manifests: a launcher pod's begins with await_hosts.sh, and under Open MPI splits words.
LAUNCHER = {
    "openmpi": {"SC2013", "SC2059", "SC2086"},
    "mpich": {"SC2013", "SC2059"},
    "intel": {"SC2013", "SC2059"},
}
EMBEDDED = {
    "mpijob_2x8.yaml": LAUNCHER["openmpi"],
    "mpijob_cpu_mpich.yaml": LAUNCHER["mpich"],
    "jobset_2x4.yaml": LAUNCHER["openmpi"],
    "trainjob_2x8.yaml": LAUNCHER["openmpi"],
}


def shell(path: Path) -> str | None:
    """The shell that runs a file; None where it is no shell script."""
    first = path.read_bytes().split(b"\n", 1)[0]
    if found := re.match(rb"#!.*\b(sh|bash)\b", first):
        return found[1].decode()
    return BY_BASH.get(path.suffix)


SCRIPTS = {str(path.relative_to(ROOT)): path for path in FILES if shell(path)}
MANIFESTS = [path for path in FILES if path.suffix in (".yaml", ".yml")]


def shellcheck(language: str, text: str) -> set[str]:
    """The codes of what it says of a script. The extra `test` brings it."""
    beside = Path(sys.executable).with_name("shellcheck")
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert program, "no shellcheck: pip install '.[test]'"
    words = [program, "-s", language, "-f", "gcc", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return set(re.findall(r"\[(SC\d+)\]$", done.stdout, re.MULTILINE))


def embedded(value: Any) -> Iterator[str]:
    """The scripts that a manifest gives to `sh -c`."""
    if isinstance(value, dict):
        for each in value.values():
            yield from embedded(each)
    elif isinstance(value, list):
        for option, script in itertools.pairwise(value):
            if option == "-c":
                yield script
        for each in value:
            yield from embedded(each)


def test_all_scripts_are_found() -> None:
    assert set(SCRIPTS) >= {
        ".ci/packages",
        ".ci/run",
        "launch/kubernetes/await_hosts.sh",
        "slurm/array_job.sbatch",
        "slurm/healthcheck.sh",
        "slurm/validate.sbatch",
        "tests/cluster/boot.sh",
        "tests/unit/launch/slurm/golden/everything.sbatch",
    }
    assert {path.name for path in MANIFESTS if list(embedded_in(path))} >= {
        "validate.yaml",
        "mpijob_2x8.yaml",
    }


def embedded_in(path: Path) -> Iterator[str]:
    for document in yaml.safe_load_all(path.read_text()):
        yield from embedded(document)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str) -> None:
    path = SCRIPTS[name]
    language = shell(path)
    assert language is not None
    assert shellcheck(language, path.read_text()) == set(ALLOWED.get(path.name, {}))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_scripts_in_manifests(path: Path) -> None:
    for script in embedded_in(path):
        assert shellcheck("sh", script) == EMBEDDED.get(path.name, set())


@pytest.mark.parametrize("mpi", LAUNCHER)
def test_the_script_of_a_launcher_pod(mpi: Any) -> None:
    assert shellcheck("sh", launcher_script.script(mpi)) == LAUNCHER[mpi]


def test_what_is_wrong_is_seen() -> None:
    assert "SC2154" in shellcheck("sh", 'echo "$nosuch"\n')
