"""A run is started again with a rank less each time that one is lost, as often as allowed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launch.supervise.restarts import resumed, with_restarts
from launch.supervise.supervisor import RankLostError

Start = tuple[int, list[str], bool]


class Runs:
    """Starts that lose a rank as often as `losses` says; what each was given."""

    def __init__(self, losses: int, resumable: bool = True) -> None:
        self.losses, self.resumable = losses, resumable
        self.started: list[Start] = []

    def __call__(self, ranks: int, words: Sequence[str], restartable: bool) -> int:
        self.started.append((ranks, [*words], restartable))
        if len(self.started) <= self.losses:
            if restartable:
                raise RankLostError("[rank 1] killed", self.resumable)
            return 1
        return 0


WORDS = ["run", "edges.py:edges", "a", "b"]
RESUMED = ["run", "edges.py:edges", "--resume", "a", "b"]


def test_a_run_that_loses_no_rank_is_started_once() -> None:
    runs = Runs(0)
    assert with_restarts(runs, 4, WORDS, 3) == 0
    assert runs.started == [(4, WORDS, True)]


def test_each_loss_takes_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(2)
    assert with_restarts(runs, 4, WORDS, 3) == 0
    assert runs.started == [(4, WORDS, True), (3, RESUMED, True), (2, RESUMED, True)]
    assert capsys.readouterr().err.splitlines() == [
        "meshrun: [rank 1] killed",
        "meshrun: starting again on 3 ranks, continuing with what is complete (restart 1 of 3)",
        "meshrun: [rank 1] killed",
        "meshrun: starting again on 2 ranks, continuing with what is complete (restart 2 of 3)",
    ]


def test_the_last_start_is_judged_as_any_other() -> None:
    runs = Runs(9)
    assert with_restarts(runs, 4, WORDS, 2) == 1
    assert [(ranks, restartable) for ranks, _, restartable in runs.started] == [
        (4, True), (3, True), (2, False),
    ]  # fmt: skip


def test_a_single_rank_has_nobody_to_go_on_without_it() -> None:
    runs = Runs(9)
    assert with_restarts(runs, 2, WORDS, 5) == 1
    assert [(ranks, restartable) for ranks, _, restartable in runs.started] == [(2, True), (1, False)]


def test_a_run_that_has_kept_nothing_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(1, resumable=False)
    assert with_restarts(runs, 2, WORDS, 1) == 0
    assert runs.started == [(2, WORDS, True), (1, WORDS, False)]
    assert "starting again on 1 rank, from the beginning (restart 1 of 1)" in capsys.readouterr().err


def test_resume_is_added_once_and_is_no_file() -> None:
    assert resumed([*WORDS, "--resume"]) == [*WORDS, "--resume"]
    assert resumed(["run", "job", "--", "-a.npy", "b.npy"]) == [
        "run",
        "job",
        "--resume",
        "--",
        "-a.npy",
        "b.npy",
    ]
