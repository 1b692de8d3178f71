"""The locked packages of the image are those that pyproject.toml asks for, each with a hash."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"  # of the image
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+) ((?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+)")


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{name}.txt").read_text() + "\n"
    pins = {found[1].lower(): found[2] for found in PIN.finditer(text)}
    assert len(pins) == text.count("=="), "a package without a hash"
    return pins


def wanted(extras: list[str]) -> list[Requirement]:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is new in Python 3.11")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [*project["dependencies"]]
    for extra in extras:
        words += project["optional-dependencies"][extra]
    found = [Requirement(word) for word in words]
    return [one for one in found if one.marker is None or one.marker.evaluate({"python_version": PYTHON})]


@pytest.mark.parametrize("name", ["cuda13,mpi", "mpich"])
def test_the_lock_has_what_is_asked_for(name: str) -> None:
    pins = locked(name)
    for requirement in wanted(name.split(",")):
        version = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_image_installs_only_what_is_locked() -> None:
    text = (ROOT / "Containerfile").read_text()
    for line in re.findall(r"pip install [^\n]*", text):
        if not line.startswith("pip install 'meshrun"):
            assert "--require-hashes" in line or "--no-index" in line, line
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert locked(extras)
    assert "hatchling" in locked("build")
