"""Which compiler is taken, and where what it makes is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.runner.system.compiler import find_compiler


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_one_that_the_user_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler({}) is None
    script(tmp_path / "g++", "echo g 1")
    own = script(tmp_path / "mine", "echo mine 2")
    found, named = find_compiler({}), find_compiler({"CXX": str(own)})
    assert found is not None
    assert (found.path, found.version[:4]) == (str(tmp_path / "g++"), "g 1\n")
    assert named is not None
    assert (named.path, named.version[:6]) == (str(own), "mine 2")
    assert found.version[4:] == named.version[7:] != ""  # the processor


@pytest.mark.parametrize("text", ["exit 1", "kill -9 $$"])
def test_one_that_does_not_answer_is_none(tmp_path: Path, text: str) -> None:
    assert find_compiler({"CXX": str(script(tmp_path / "broken", text))}) is None
    assert find_compiler({"CXX": str(tmp_path / "missing")}) is None
