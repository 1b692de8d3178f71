"""No result is made of two versions of a file that is read."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

import meshrun
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.storage.formats.flat import FlatSource

LONG_AGO = 10**18  # nanoseconds since 1970: no change since has the same time
CHUNK = 4 * 3 * 8  # bytes of 4 rows


@meshrun.map_blocks
def scaled(block: Any, *, factors: Path | None = None) -> Any:
    if factors is None:
        return block
    return block * np.load(factors)


@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block: Any, *, factors: Path | None = None) -> Any:
    return float(block.sum()) * (1.0 if factors is None else float(np.load(factors)[0]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npy"
    np.save(path, np.zeros((16, 3)))
    np.save(tmp_path / "new.npy", np.ones((16, 3)))
    np.save(tmp_path / "factors.npy", np.full(3, 2.0))
    for name in ("in", "new", "factors"):
        os.utime(tmp_path / f"{name}.npy", ns=(LONG_AGO, LONG_AGO))
    return path


def replace(path: Path) -> None:
    """By another file of the same size and time of change."""
    shutil.copy2(path.with_name("new.npy"), path.with_name("newer.npy"))
    os.replace(path.with_name("newer.npy"), path)


def rewrite(path: Path) -> None:
    path.write_bytes(path.with_name("new.npy").read_bytes())


def rewrite_and_set_back(path: Path) -> None:
    rewrite(path)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


@pytest.mark.parametrize("change", [replace, rewrite, rewrite_and_set_back])
def test_an_input_that_changes_between_two_ranks_reads_is_refused(
    source: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, first_has_read = FlatSource.read, threading.Event()

    def in_turn(self: FlatSource, region: Any, target: Any) -> None:
        if region.start[0] > 0:
            assert first_has_read.wait(60)
            change(self.path)
        read(self, region, target)
        first_has_read.set()

    monkeypatch.setattr(FlatSource, "read", in_turn)
    with pytest.raises(RunError, match=r"in\.npy changed while it was read: got .*, expected 512 bytes"):
        run_on(2, scaled, source, source.with_name("out.npy"))
    assert {path.name for path in source.parent.iterdir()} == {"in.npy", "new.npy", "factors.npy"}


@pytest.mark.parametrize("change", [replace, rewrite, rewrite_and_set_back])
def test_an_input_that_changes_while_it_is_reduced_is_refused(
    source: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FlatSource.read

    def then_changed(self: FlatSource, region: Any, target: Any) -> None:
        read(self, region, target)
        change(self.path)

    monkeypatch.setattr(FlatSource, "read", then_changed)
    with pytest.raises(RunError, match=r"in\.npy changed while it was read"):
        run_on(2, total, source, None)


@meshrun.map_blocks(split_dependent=True)
def changing(block: Any, *, factors: Path) -> Any:
    result = block + np.load(factors)
    np.save(factors, np.full(3, 5.0))
    return result


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": CHUNK}], ids=["in memory", "streamed"])
def test_a_file_that_a_parameter_names_and_that_changes_is_refused(source: Path, options: Any) -> None:
    factors = source.with_name("factors.npy")
    with pytest.raises(RunError, match=r"factors\.npy changed while it was read"):
        run_on(1, changing, source, source.with_name("out.npy"), parameters={"factors": factors}, **options)
    assert not source.with_name("out.npy").exists()


def test_with_a_folder_of_images_too(source: Path) -> None:
    images, factors = source.with_name("images"), source.with_name("factors.npy")
    images.mkdir()
    source.rename(images / "in.npy")
    with pytest.raises(RunError, match=r"factors\.npy changed while it was read"):
        run_on(1, changing, images, images.with_name("out"), parameters={"factors": factors})
    assert not images.with_name("out").exists()


FAILING: list[int] = []


@meshrun.map_blocks
def fragile(block: Any, *, here: meshrun.BlockContext, factors: Path, more: Path | None = None) -> Any:
    if here.offset[0] in FAILING:
        raise ZeroDivisionError("fragile")
    return block + np.load(factors)


def resumed(source: Path, change: Any, **parameters: Any) -> Any:
    """A run that is resumed after a change."""
    FAILING[:] = [8]
    given = {"factors": source.with_name("factors.npy"), **parameters}
    target = source.with_name("out.npy")
    with pytest.raises((ZeroDivisionError, RunError)):
        run_on(1, fragile, source, target, parameters=given, chunk_bytes=CHUNK, depth=1)
    FAILING.clear()
    change()
    return run_on(1, fragile, source, target, parameters=given, chunk_bytes=CHUNK, resume=True)


def test_resume_refuses_another_file_of_a_parameter(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    factors = source.with_name("factors.npy")
    with pytest.raises(UserError, match=r"differs in 1 value.*got files\.factors\.changed_ns \d+, expected"):
        resumed(source, lambda: np.save(factors, np.full(3, 7.0)))
    assert not source.with_name("out.npy").exists()


def test_resume_refuses_a_file_of_a_parameter_that_was_not_there(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    more = source.with_name("more.npy")
    with pytest.raises(UserError, match=r"files\.more\.bytes not given"):
        resumed(source, more.touch, more=more)


def test_resume_goes_on_with_the_same_files(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    record = resumed(source, lambda: None)
    assert record["stream"]["resumed"] >= 1
    assert np.load(source.with_name("out.npy")).tolist() == [[2.0] * 3] * 16


def test_a_job_may_write_the_file_that_its_parameter_names(source: Path) -> None:
    @meshrun.job
    def noting(world: Any, *, notes: Path) -> dict[str, int]:
        world.on_root(lambda: notes.write_text("noted"))
        return {"ranks": world.size}

    notes = source.with_name("notes.txt")
    notes.write_text("old")
    assert run_on(2, noting, source, None, parameters={"notes": notes})["result"] == {"ranks": 2}
    assert notes.read_text() == "noted"
