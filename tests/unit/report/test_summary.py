"""The summary of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.filters.laplacian import laplacian
from meshrun.jobs.filters.statistics import statistics
from meshrun.launch.cli.main import main
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import execute


@pytest.mark.parametrize(
    ("shape", "name"), [((), "a single float32"), ((1,), "1 float32"), ((3, 2), "3x2 float32")]
)
def test_a_headline_names_the_array(tmp_path: Path, shape: tuple[int, ...], name: str) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.float32))
    record = statistics.run(tmp_path / "a.npy", device="cpu")
    assert render(record).startswith(f"statistics on {name}: 1 rank on 1 host (CPU), ")


def test_a_brief_summary_is_three_lines_and_keeps_what_a_run_has_proved(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((30, 40), np.float32))
    record = laplacian.run(tmp_path / "a.npy", tmp_path / "b.npy", device="cpu", verify="full")
    headline, longest, proved, wrote = render(record, brief=True).splitlines()
    assert headline == render(record).splitlines()[0]
    slowest = max(record["phases"], key=lambda name: record["phases"][name]["seconds"])
    assert longest.startswith(f"  longest phase: {slowest}, ")
    assert "-v" in longest
    assert proved.startswith("  verified (full")
    assert wrote == f"  wrote {tmp_path / 'b.npy'}"
    for line in (proved, wrote):
        assert line in render(record)


@pytest.mark.parametrize(("seconds", "words", "table"), [(0.9, [], 0), (0.9, ["-v"], 1), (1.0, [], 1)])
def test_the_table_is_of_longer_and_of_verbose_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    words: list[str],
    table: int,
) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))

    def timed(*arguments: Any, **keywords: Any) -> Any:
        return {**execute(*arguments, **keywords), "seconds": seconds}

    monkeypatch.setattr("meshrun.runner.run.entry.execute", timed)
    assert main(["run", "laplacian", *map(str, (tmp_path / "a.npy", tmp_path / "b.npy")), *words]) == 0
    said = capsys.readouterr().err
    assert said.count("slowest rank") == table
    assert said.count("longest phase") == 1 - table
