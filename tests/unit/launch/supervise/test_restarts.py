"""A run is started again on what is left each time that a rank or host is lost, as often as allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshrun.launch.spec import LaunchSpec
from meshrun.launch.supervise.restarts import resumed, with_restarts
from meshrun.launch.supervise.supervisor import LossError

WORDS = ("run", "edges.py:edges", "a", "b")
RESUMED = ("run", "edges.py:edges", "--run-resume", "a", "b")
HERE = LaunchSpec(WORDS, 1, 4)
THERE = LaunchSpec(WORDS, 3, 2, ("n1", "n2", "n3"))


class Runs:
    """Starts that lose each of `losses` in turn, a host or a rank; what each was given."""

    def __init__(self, *losses: str | int, resumable: bool = True, keeps_files: bool = False) -> None:
        self.losses, self.resumable, self.keeps_files = list(losses), resumable, keeps_files
        self.started: list[tuple[LaunchSpec, bool]] = []

    def __call__(self, spec: LaunchSpec, restartable: bool) -> int:
        self.started.append((spec, restartable))
        if not self.losses:
            return 0
        lost = self.losses.pop(0)
        left = spec.without([lost], None) if isinstance(lost, str) else spec.without([], lost)
        if restartable and left:
            raise LossError(f"{lost} is lost", left, self.resumable, self.keeps_files)
        return 1


def test_a_run_that_loses_nothing_is_started_once() -> None:
    runs = Runs()
    assert with_restarts(runs, HERE, 3) == 0
    assert runs.started == [(HERE, True)]


def test_each_loss_takes_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(1, 1)
    assert with_restarts(runs, HERE, 3) == 0
    assert runs.started == [
        (HERE, True), (LaunchSpec(RESUMED, 1, 3), True), (LaunchSpec(RESUMED, 1, 2), True),
    ]  # fmt: skip
    assert capsys.readouterr().err.splitlines() == [
        "meshrun: 1 is lost",
        "meshrun: starting again on 3 ranks, continuing with what is complete (restart 1 of 3)",
        "meshrun: 1 is lost",
        "meshrun: starting again on 2 ranks, continuing with what is complete (restart 2 of 3)",
    ]


def test_a_lost_host_and_the_host_of_a_lost_rank_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs("n2", 3)
    assert with_restarts(runs, THERE, 3) == 0
    assert [(spec.names, spec.ranks, spec.words) for spec, _ in runs.started] == [
        (("n1", "n2", "n3"), 6, WORDS), (("n1", "n3"), 4, RESUMED), (("n1",), 2, RESUMED),
    ]  # fmt: skip
    assert [line for line in capsys.readouterr().err.splitlines() if "starting" in line] == [
        "meshrun: starting again without n2, on 4 ranks of 2 hosts, continuing with what is complete "
        "(restart 1 of 3)",
        "meshrun: starting again without n3, on 2 ranks of 1 host, continuing with what is complete "
        "(restart 2 of 3)",
    ]


def test_the_last_start_is_judged_as_any_other() -> None:
    runs = Runs(1, 1, 1)
    assert with_restarts(runs, HERE, 2) == 1
    assert [(spec.ranks, restartable) for spec, restartable in runs.started] == [
        (4, True), (3, True), (2, False),
    ]  # fmt: skip


def test_nobody_can_go_on_without_a_single_rank_or_without_all_hosts() -> None:
    assert replace(HERE, per_host=1).without([], 0) is None
    assert THERE.without(["n1", "n2", "n3"], None) is None
    one = replace(THERE, hosts=1, names=("n1",))
    assert one.without(["n1"], None) is None
    assert one.without([], 1) == replace(one, per_host=1)


def test_a_rank_that_the_launcher_does_not_name_is_on_an_unknown_host() -> None:
    assert THERE.without([], None) is None
    assert HERE.without([], None) == replace(HERE, per_host=3)


def test_a_run_that_has_kept_nothing_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(1, resumable=False)
    assert with_restarts(runs, replace(HERE, per_host=2), 1) == 0
    assert [(spec.ranks, spec.words, again) for spec, again in runs.started] == [
        (2, WORDS, True), (1, WORDS, False),
    ]  # fmt: skip
    assert "starting again on 1 rank, from the beginning (restart 1 of 1)" in capsys.readouterr().err


def test_a_run_that_begins_again_finds_its_frames_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --resume, a folder that is not empty is refused."""
    runs = Runs(1, resumable=False, keeps_files=True)
    assert with_restarts(runs, HERE, 3) == 0
    assert runs.started[1][0].words == RESUMED
    assert "from the beginning" in capsys.readouterr().err


def test_resume_is_added_once_and_is_no_file() -> None:
    assert resumed(RESUMED) == [*RESUMED]
    assert resumed(["run", "job", "--", "-a.npy", "b.npy"]) == [
        "run",
        "job",
        "--run-resume",
        "--",
        "-a.npy",
        "b.npy",
    ]
