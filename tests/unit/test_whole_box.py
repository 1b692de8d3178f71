"""All benchmarks of a host's GPUs in one go: what was run stays, and another call runs the rest."""

from __future__ import annotations

import ast
import json
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
            box.Part("first", python(COUNTS.format("first")), json=""),
            box.Part("slow part", python(waits), json=""),
            box.Part("wrong", python(COUNTS.format("wrong") + "; raise SystemExit(4)"), json=""),
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


def test_parts_of_different_gpus_run_at_the_same_time(box: Any) -> None:
    def part(name: str, *gpus: int) -> Any:
        return box.Part(name, [], gpus=gpus)

    parts = [
        part("all"),
        part("a", 0),
        part("b", 2, 3),
        part("c", 3),
        part("d", 1),
        part("last"),
        part("e", 1),
    ]
    names = [[part.name for part in group] for group in box.at_once(parts)]
    assert names == [["all"], ["a", "b"], ["c", "d"], ["last"], ["e"]]


def test_parts_at_the_same_time_see_their_own_gpus(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the file of the other."""
    text = (
        "import os, pathlib, time; own = os.environ['CUDA_VISIBLE_DEVICES']; pathlib.Path(own).touch()\n"
        "end = time.monotonic() + 60\n"
        "while not pathlib.Path({other!r}).exists():\n"
        "    assert time.monotonic() < end\n"
        "    time.sleep(0.01)"
    )
    words = [[sys.executable, "-c", text.format(other=other)] for other in ("2,3", "0")]
    parts = [box.Part("a", words[0], json="", gpus=(0,)), box.Part("b", words[1], json="", gpus=(2, 3))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(box, "parts", lambda options: parts)
    monkeypatch.setattr(sys, "argv", ["whole_box.py", "--gpus", "4", "--out", "out"])
    assert box.main() == 0


def test_programs_are_compared_by_number_of_gpus(
    box: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, ranks, microseconds in (("programs", 1, 400.0), ("programs", 4, 100.0), ("JAX", 4, 200.0)):
        rows = [{"program": "cavity", "size": 64, "microseconds": microseconds}]
        record = {"benchmark": "programs", "ranks": ranks, "rows": rows}
        (tmp_path / f"{method}_on_{ranks}.json").write_text(json.dumps(record))
    box.show_programs(tmp_path)
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("cavity")]
    assert table == [["cavity", "JAX", "-", "200.0", "-"], ["cavity", "meshrun", "400.0", "100.0", "4.00"]]
    assert box.figures_of(tmp_path / "JAX_on_4.json") == "cavity 200 us"


def test_every_program_is_measured_in_jax_too(box: Any) -> None:
    """Their names stand in a table of each: JAX itself is not needed for this."""
    tree = ast.parse((BENCHMARKS / "programs_jax.py").read_text())
    table = next(one for one in tree.body if isinstance(one, ast.AnnAssign) and one.target.id == "PROGRAMS")
    names = {key.value for key in table.value.keys}
    for sizes in (box.FULL, box.QUICK):
        assert {word.partition(":")[0] for word in sizes.programs} == names


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
