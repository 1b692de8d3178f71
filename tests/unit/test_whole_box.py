"""All benchmarks of a host's GPUs in one go: what was run stays, and another call runs the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNTS = "open('runs', 'a').write('{0} '); print('table of {0}')"
Call = Callable[..., int]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load(BENCHMARKS / "whole_box.py")


@pytest.fixture
def call(box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the program with parts that note their names in `runs`."""
    monkeypatch.chdir(tmp_path)

    def python(text: str) -> list[str]:
        return [sys.executable, "-c", text]

    def called(*words: str, slow: float = 0.0) -> int:
        waits = f"import time; {COUNTS.format('slow')}; time.sleep({slow})"
        parts = [
            box.Part("first", python(COUNTS.format("first")), json=False),
            box.Part("slow part", python(waits), json=False),
            box.Part("wrong", python(COUNTS.format("wrong") + "; raise SystemExit(4)"), json=False),
        ]
        monkeypatch.setattr(box, "parts", lambda options: parts)
        monkeypatch.setattr(
            sys, "argv", ["whole_box.py", "--gpus", "1", "--out", str(tmp_path / "out"), *words]
        )
        return int(box.main())

    return called


def runs() -> list[str]:
    return Path("runs").read_text().split()


def rows(out: str) -> list[list[str]]:
    """Return the lines of the last table, as words."""
    return [line.split() for line in out.partition("part               seconds  result\n")[2].splitlines()]


def test_every_part_is_run_and_the_one_that_fails_is_named(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 1
    assert runs() == ["first", "slow", "wrong"]
    out = capsys.readouterr().out
    assert "=== wrong\ntable of wrong\n" in out
    assert [row[-1] for row in rows(out)] == ["measured", "measured", "4"]


def test_another_call_runs_the_rest_and_prints_all(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--seconds", "5", slow=30.0) == 1
    assert [row[-1] for row in rows(capsys.readouterr().out)] == ["measured", "left", "left"]
    assert call() == 1
    assert runs() == ["first", "slow", "slow", "wrong"]
    out = capsys.readouterr().out
    assert out.index("=== first\ntable of first\n") < out.index("=== slow part\ntable of slow\n")


def test_a_part_beyond_its_limit_ends_and_is_not_run_again(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--limit", "5", "--only", "slow part", slow=30.0) == 1
    assert call("--only", "slow part") == 1
    assert runs() == ["slow"]
    assert "longer than 5 s" in capsys.readouterr().out


def test_the_parts_of_several_gpus_are_programs_of_this_folder(
    box: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for gpus in ("1", "2", "4", "8"):
        monkeypatch.setattr(sys, "argv", ["whole_box.py", "--gpus", gpus, "--out", "unused", "--list"])
        assert box.main() == 0
        named = {word for word in capsys.readouterr().out.split() if word.endswith(".py")}
        assert len(named) > 5
        assert all((BENCHMARKS.parent / name).exists() for name in named)
