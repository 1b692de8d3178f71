"""benchmarks/transforms_device.py: what it computes from figures, and what it keeps when it is ended."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripts import load

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "transforms_device.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return load(SCRIPT)


def test_figures_are_parts_of_the_larger_bound(script: Any) -> None:
    figures = {"fft": 4.0, "fft: local": 2.0, "fft: all-to-all": 3.0}
    assert script.goals(figures, {"fft": 8.0}) == {
        "fft, of the overlapped bound": 0.75,
        "fft, times as fast as JAX": 2.0,
    }


@pytest.mark.parametrize("figures", [{}, {"fft": 1.0}, {"fft: local": 1.0}, {"transpose: all-to-all": 1.0}])
def test_what_is_not_measured_has_no_ratio(script: Any, figures: dict[str, float]) -> None:
    assert script.goals(figures, {}) == {}


def test_rounds_need_not_have_the_same_figures(script: Any) -> None:
    rounds = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {}]
    assert script.gathered(rounds) == {"a": [1.0, 3.0], "b": [5.0]}
    assert script.summary({"ranks": rounds, "jax": []})[0] == {"ranks": {"a": 2.0, "b": 5.0}, "jax": {}}


def options(script: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["transforms_device.py", *words])
    found: argparse.Namespace = script.arguments()
    return found


def test_figures_are_followed_while_a_part_runs(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The part writes its second figure when the first has been seen."""
    seen = tmp_path / "seen"
    program = tmp_path / "part.py"
    program.write_text(
        "import json, pathlib, sys, time\n"
        "file = pathlib.Path(sys.argv[sys.argv.index('--json') + 1])\n"
        "def write(**figures):\n"
        "    new = file.with_name('new')\n"
        "    new.write_text(json.dumps({'seconds': figures}))\n"
        "    new.replace(file)\n"
        f"seen = pathlib.Path({str(seen)!r})\n"
        "write(a=1.0)\n"
        "while not seen.exists():\n"
        "    time.sleep(0.01)\n"
        "write(a=1.0, b=2.0)\n"
        "sys.exit(5)\n"
    )
    monkeypatch.setattr(script, "__file__", str(program))
    monkeypatch.setattr(script, "POLL", 0.01)
    followed: list[dict[str, float]] = []

    def follow(figures: dict[str, float]) -> None:
        followed.append(figures)
        if figures:
            seen.touch()

    chosen = options(script, monkeypatch, "--gpus", "1", "--only", "fft")
    assert script.child(chosen, 1, "jax", follow) == 5
    assert {"a": 1.0} in followed
    assert followed[-1] == {"a": 1.0, "b": 2.0}


@pytest.mark.nightly
def test_only_what_is_asked_for_is_measured_and_kept_when_the_script_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["--device", "cpu", "--gpus", "1", "--rounds", "1000", "--side", "64", "--cells", "8"]
    words += ["--only", "transpose", "fft", "--json", str(file)]
    with subprocess.Popen([sys.executable, SCRIPT, *words]) as process:
        found: dict[str, Any] = {}
        while "fft" not in found:
            assert process.poll() is None
            time.sleep(0.05)
            if file.exists():
                found = json.loads(file.read_text())["counts"]["1"]["medians"]["ranks"]
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(name.startswith("matmul") for name in found)
    assert "transpose: messages in parts" in json.loads(file.read_text())["counts"]["1"]["seconds"]["ranks"]
