"""What a run shows of itself while it is under way: the rows done, then the cells verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshrun
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report import progress
from meshrun.runner.report.progress import ProgressBar
from meshrun.runner.run.execute import Options, RunProgress, execute
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import open_world


def test_elsewhere_than_on_a_terminal_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET", -1.0)
    with ProgressBar("edges", None) as shown:
        shown(1, 4)
        shown.proof(30, 40)
    assert capsys.readouterr().err == (
        "meshrun: edges: 25 % of rank 0's rows\nmeshrun: edges: verify: 75 % of rank 0's part\n"
    )


def test_steps_have_a_rate_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET", -1.0)
    clock = iter([0.0, 0.0, 10.0, 10.0, 10.0, 14.0, 14.0, 14.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with ProgressBar("heat", None) as shown:
        shown.steps(10, 100, 4 * 10**9)
        shown.steps(30, 100, 4 * 10**9)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "meshrun: heat: 10 % of the steps: 10 of 100"
    assert second.startswith("meshrun: heat: 30 % of the steps: 30 of 100, ")
    assert ", 8 Gcell/s, " in second
    assert second.endswith(" left")


def test_iterations_have_what_the_condition_compares_and_a_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 4.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    made: list[int] = []

    def compared() -> str:
        made.append(1)
        return "0.5 > 1e-06"

    with ProgressBar("cg", None) as shown:
        for count in (1, 1001, 1601, 1801):
            shown.iterations(8, count, compared)
        shown.iterations(8, 1, compared)  # the loop begins again
    assert capsys.readouterr().err.splitlines() == [
        "meshrun: cg: loop in line 8, iteration 1,601: 0.5 > 1e-06, 320 iterations/s",
        "meshrun: cg: loop in line 8, iteration 1: 0.5 > 1e-06",
    ]
    assert len(made) == 2  # a text is made only to be shown


def test_ranks_that_show_nothing_make_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("cg", 0) as shown:
        shown._last = -1e9
        shown.iterations(8, 1, lambda: str(1 / 0))
    assert capsys.readouterr().err == ""


def test_on_a_terminal_iterations_have_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("cg", 100) as shown:
        shown._last = -1e9
        shown.iterations(8, 7, lambda: "0.5 > 1e-06")
    assert "cg: loop in line 8, iteration 7: 0.5 > 1e-06" in capsys.readouterr().err


def test_on_a_terminal_the_verification_has_the_same_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("edges", 60) as shown:
        shown(4, 4)
        shown.proof(0, 40)
    assert "edges: verify" in capsys.readouterr().err


@meshrun.map_blocks
def same(block: np.ndarray) -> np.ndarray:
    return block


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mode", ["sample", "full"])
def test_a_verification_tells_how_far_it_is(tmp_path: Path, mode: str, streamed: bool) -> None:
    np.save(tmp_path / "in.npy", np.ones((900, 1000), np.float32))
    stream = StreamOptions(chunk_bytes=1 << 20) if streamed else StreamOptions()
    told: list[tuple[int, int]] = []
    execute(
        open_world("cpu"),
        same,
        tmp_path / "in.npy",
        tmp_path / "out.npy",
        {},
        Options(verify=mode, stream=stream),
        transaction=OutputTransaction(),
        progress=RunProgress(proof=lambda done, total: told.append((done, total))),
    )
    done, totals = [one[0] for one in told], {one[1] for one in told}
    assert len(told) > 3
    assert done == sorted(done)
    assert totals == {done[-1]}
    assert done[0] == 0
    assert mode == "sample" or totals == {900_000}


def test_a_verification_of_a_result_says_that_it_is_under_way(tmp_path: Path) -> None:
    @meshrun.job(reference=lambda source: 1.0)
    def one(input: Source) -> float:
        return 1.0

    np.save(tmp_path / "in.npy", np.ones(3))
    told: list[tuple[int, int]] = []
    options = Options(verify="full")
    execute(
        open_world("cpu"),
        one,
        tmp_path / "in.npy",
        None,
        {},
        options,
        transaction=OutputTransaction(),
        progress=RunProgress(proof=lambda done, total: told.append((done, total))),
    )
    assert told == [(0, 1), (1, 1)]
