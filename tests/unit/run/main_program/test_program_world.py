"""The world of a main program: it makes, reads and writes distributed arrays, and takes those of others."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.run.main_program.program_world import waits_of_a_loop
from meshrun.runner.world.agreement.waits import LineWaits, Waits
from tests.unit.arrays.test_operations import RANKS, on_ranks, values


@pytest.mark.parametrize("ranks", RANKS)
def test_new_arrays_are_those_of_numpy(ranks: int) -> None:
    def body(world: Any) -> None:
        pairs = [
            (world.zeros((3, 4)), np.zeros((3, 4))),
            (world.ones(5, "i4"), np.ones(5, "i4")),
            (world.full((2, 3), 2.5), np.full((2, 3), 2.5)),
            (world.full((2, 3), 7), np.full((2, 3), 7)),
            (world.arange(11), np.arange(11)),
            (world.arange(0.1, 3, 0.3), np.arange(0.1, 3, 0.3)),
            (world.linspace(0, 1, 7, dtype="f4"), np.linspace(0, 1, 7, dtype="f4")),
            (world.zeros(()), np.zeros(())),
            (world.zeros((0, 3)), np.zeros((0, 3))),
            (world.array(values((5, 4), "c16"), split=1), values((5, 4), "c16")),
            (world.array(values((5, 4), ">f4")), values((5, 4), "f4")),
        ]
        for found, expected in pairs:
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(found.gather(), expected)
        assert world.empty((4, 6), "i2", split=(1, world.size)).partition.grid == (1, world.size)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_files(ranks: int, tmp_path: Path) -> None:
    whole = values((9, 6), "f4")
    np.save(tmp_path / "in.npy", whole)

    def body(world: Any) -> None:
        u = world.load(tmp_path / "in.npy")
        world.save(tmp_path / "out.npy", u + 1)
        world.save(tmp_path / "turned.npy", u.T[::-1, 1:])
        world.save(tmp_path / "columns.npy", world.load(str(tmp_path / "in.npy"), split=1))
        world.save(tmp_path / "number.npy", np.max(u))
        with pytest.raises(UserError, match=r"missing\.npy does not exist"):
            world.load(tmp_path / "missing.npy")

    on_ranks(ranks, body)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), whole + 1)
    np.testing.assert_array_equal(np.load(tmp_path / "turned.npy"), whole.T[::-1, 1:])
    np.testing.assert_array_equal(np.load(tmp_path / "columns.npy"), whole)
    np.testing.assert_array_equal(np.load(tmp_path / "number.npy"), whole.max())
    assert len(list(tmp_path.iterdir())) == 5  # nothing temporary


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_array_is_the_same_on_every_rank_or_of_rank_0(ranks: int) -> None:
    whole = values((7, 3), "f8")

    def body(world: Any) -> None:
        u = world.array(whole if world.rank == 0 else None)
        np.testing.assert_array_equal(u.gather(), whole)
        with pytest.raises(UserError, match=r"different arrays.*on rank 0.*on rank 1"):
            world.array(whole + world.rank)
        with pytest.raises(UserError, match="different arrays"):
            world.array(None if world.rank == 0 else whole)
        with pytest.raises(UserError, match="different arrays"):
            world.array(None)
        with pytest.raises(UserError, match="holds numbers"):
            world.array(np.array(["a", "b"]))

    on_ranks(ranks, body)


class Exporter:
    """An array of another library: DLPack alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("ranks", RANKS)
def test_blocks_of_other_libraries_are_shared(ranks: int) -> None:
    def body(world: Any) -> None:
        own = np.full((2 + world.rank, 3), world.rank, "f4")
        u = world.from_local(Exporter(own))
        assert u.shape == (sum(2 + rank for rank in range(world.size)), 3)
        u += 1
        assert (own == world.rank + 1).all()
        other = np.from_dlpack(u.local)
        other[...] = 7
        assert np.min(u) == np.max(u) == 7
        with pytest.raises(UserError, match="do not make up"):
            world.from_local(own, (1, 3))
        if world.size > 1:
            with pytest.raises(UserError, match="do not fit together"):
                world.from_local(np.zeros((1, 2 + world.rank)))

    on_ranks(ranks, body)


def test_a_cached_call_sees_what_was_written_through_dlpack() -> None:
    @meshrun.distribute
    def smoothed(u: Any) -> Any:
        v = u.copy()
        v[1:-1] = (u[2:] + u[:-2]) / np.max(u)
        return v

    def body(world: Any) -> None:
        u = world.ones(12)
        smoothed(u)
        np.from_dlpack(u.local)[...] = np.arange(12.0)[u.region.slices]
        np.testing.assert_array_equal(smoothed(u).gather(), smoothed.function(np.arange(12.0)))

    on_ranks(2, body)


def test_what_exchanges_needs_an_open_world() -> None:
    def body(world: Any) -> None:
        u = world.ones((6, 4))
        world.close()
        with pytest.raises(UserError, match="is used after its world was closed"):
            np.sum(u)
        with pytest.raises(UserError, match="world was closed: got world"):
            world.save("u.npy", u)

    on_ranks(2, body)


# Waits for values


def test_waits_are_those_of_the_lines_that_ask_for_values() -> None:
    def body(world: Any) -> None:
        u = world.ones((6, 4))
        first = inspect.currentframe().f_lineno  # type: ignore[union-attr]
        for _ in range(5):
            assert float(u.sum()) == 24
            assert float(np.max(u)) == 1
        u.sum(axis=0)
        lines = {one.line - first: one for one in world.operations.waits.longest}
        assert {line: one.times for line, one in lines.items()} == {2: 5, 3: 5}
        assert {one.file for one in lines.values()} == {__file__}

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("times", "seconds", "share"),
    [(99, 5.0, 0.5), (500, 0.9, 0.5), (500, 5.0, 0.05)],
    ids=["is no loop", "is short", "is a small part"],
)
def test_nothing_is_said_of_waits_that_cost_little(times: int, seconds: float, share: float) -> None:
    assert waits_of_a_loop(waited(times, seconds, share)) == ""


def test_a_loop_that_waits_is_named() -> None:
    text = waits_of_a_loop(waited(500, 5.0, 0.5))
    assert text.startswith("the program waited for values in 5.00 s of its 10")
    assert "Line 12 of solve.py waited for 500 values, 5.00 s in all" in text


def waited(times: int, seconds: float, share: float) -> Waits:
    """Return waits of a line that have taken a share of a program's time."""
    line = LineWaits("/home/me/solve.py", 12, times, seconds)
    begun = time.perf_counter() - seconds / share
    return Waits(times, seconds, {(line.file, line.line): line}, begun)
