"""The file of -J is whole at every moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runner
from jobs.bench.collectives.asked import Asked
from jobs.bench.collectives.config import Settings
from jobs.bench.collectives.keep import Kept, opened_record
from jobs.bench.collectives.screen import Screen
from runner import World
from runner.backend.cpu import CpuBackend
from runner.world import lone_world


def test_what_was_written_stays_whole_while_the_next_is_made(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept = Kept(path)
    kept.write(lambda: "[1]")

    def failing() -> str:
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        kept.write(failing, last=True)
    assert json.loads(path.read_text()) == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_a_failed_write_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept = Kept(path)
    kept.write(lambda: "[1]")
    with pytest.raises(UnicodeEncodeError):
        kept.write(lambda: "\ud800", last=True)
    assert json.loads(path.read_text()) == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_writing_takes_a_small_share_of_the_time_and_the_last_text_is_always_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kept, made = Kept(path), 0

    def text() -> str:
        nonlocal made
        made += 1
        return str(made)

    for _ in range(1000):
        kept.write(text)
    assert 1 <= made < 500
    kept.write(text, last=True)
    assert path.read_text() == str(made)


def test_ranks_without_a_file_write_nothing() -> None:
    Kept(None).write(lambda: pytest.fail("made for nobody"), last=True)


@pytest.fixture
def world() -> World:
    return lone_world(CpuBackend())


def test_the_file_is_new_and_named(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    kept = opened_record(world, str(path), Screen(True, Asked(("all_reduce",), Settings())))
    kept.write(lambda: "ours", last=True)
    assert path.read_text() == "mine"
    assert (tmp_path / "out.json.0").read_text() == "ours"
    assert capsys.readouterr().out == f"# Writing JSON output to {path}.0\n"


def test_no_file_where_none_can_be(world: World, tmp_path: Path) -> None:
    screen = Screen(True, Asked(("all_reduce",), Settings()))
    with pytest.raises(runner.UserError, match="cannot write"):
        opened_record(world, str(tmp_path / "missing" / "out.json"), screen)
