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


FIXED = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def moving(text: str) -> list[str]:
    """The base images of a Containerfile that may change: no digest, nor an argument to be given."""
    arguments = dict(re.findall(r"^ARG (\w+)(?:=(\S+))?$", text, re.MULTILINE))
    stages = re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE)
    found = []
    for image in re.findall(r"^FROM (?:--\S+ )*(\S+)", text, re.MULTILINE):
        named = re.fullmatch(r"\$\{(\w+)\}", image)
        default = arguments.get(named[1], image) if named else image
        if default and not FIXED.fullmatch(default) and image not in stages:
            found.append(image)
    return found


def test_the_image_has_no_base_that_moves() -> None:
    text = (ROOT / "Containerfile").read_text()
    assert len(re.findall("^FROM ", text, re.MULTILINE)) == 2
    assert moving(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM python:3.12\n", ["python:3.12"]),
        ("ARG BASE=python:3.12\nFROM ${BASE}\n", ["${BASE}"]),
        ("FROM ${BASE}\n", ["${BASE}"]),
        ("ARG BASE\nFROM ${BASE} AS build\nFROM build\n", []),
        (f"FROM --platform=linux/amd64 python@sha256:{'0a' * 32}\n", []),
        (f"ARG BASE=python@sha256:{'0a' * 31}\nFROM ${{BASE}}\n", ["${BASE}"]),
    ],
)
def test_a_tag_moves_a_digest_does_not(text: str, found: list[str]) -> None:
    assert moving(text) == found


def test_the_image_installs_only_what_is_locked() -> None:
    text = (ROOT / "Containerfile").read_text()
    for line in re.findall(r"pip install [^\n]*", text):
        if not line.startswith("pip install 'meshrun"):
            assert "--require-hashes" in line or "--no-index" in line, line
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert locked(extras)
    assert "hatchling" in locked("build")
