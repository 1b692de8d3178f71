"""What a release is made of agrees: one version, and workflows that run what CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def declared() -> str:
    (found,) = re.findall(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def test_the_version_is_in_one_place() -> None:
    assert version("meshrun") == declared()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == declared()
    packages = ("runner", "jobs", "launch")
    sources = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 300
    assert [path for path in sources if re.search(r"^__version__ ?=", path.read_text(), re.MULTILINE)] == []


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(workflow: Path) -> None:
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    for command in commands:
        for line in command.splitlines():
            words = line.split()
            assert [word for word in words if word.startswith(".ci/") and not (ROOT / word).exists()] == []
            if "nox" in words:
                assert {*words[words.index("-s") + 1 :]} <= {*sessions}, line


def test_every_change_runs_the_check_and_only_the_publishing_job_may_publish() -> None:
    assert ".ci/run" in [step.get("run") for step in steps(ROOT / ".github/workflows/check.yml")]
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    may_publish = [name for name, job in release["jobs"].items() if "id-token" in job.get("permissions", {})]
    assert may_publish == ["publish"]
    assert release["jobs"]["publish"]["needs"] == "build"
    assert not [path for path in WORKFLOWS if "secrets." in path.read_text()]


def test_the_tag_is_compared_with_the_version() -> None:
    """The step's own command, under a tag that is the version and one that is not."""
    pytest.importorskip("tomllib", reason="came with Python 3.11; the workflow has a newer one")
    (step,) = [one for one in steps(ROOT / ".github/workflows/release.yml") if "TAG" in one.get("env", {})]
    if not step["run"].startswith("python -c"):
        pytest.fail("the step runs no Python")
    for tag, passes in ((f"v{declared()}", True), ("v99.0.0", False)):
        path = {"TAG": tag, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", step["run"]], cwd=ROOT, env=path, check=False)
        assert (done.returncode == 0) is passes
