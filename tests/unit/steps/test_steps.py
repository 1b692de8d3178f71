"""Runs that take steps, on simulated ranks, against a plain NumPy loop: the same bits."""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import pairs_by_day
from step_runs import plain_loop, stepped, weighted, weighted_job

import meshrun
from meshrun.runner import files
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval, StepOptions, parse_until
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report.summary import render
from meshrun.runner.run import step_run
from meshrun.runner.run.execute import Options, execute, run
from meshrun.runner.run.verify import steps as verify_steps
from meshrun.runner.run.verify import team as verify_team
from meshrun.runner.steps.loop import largest_change
from meshrun.runner.steps.observers.checkpoints import Checkpoints
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.system.compiler import find_compiler
from meshrun.runner.world.world import open_world

FAILING = [False]  # no variable around a function that looks at it: those make it another job
CALLS: list[int] = []
GRIDS = [(1, None), (2, None), (3, "3"), (3, "1x3"), (4, "2x2"), (4, "4"), (2, "1x2")]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the size of the tiles that a verification takes be as before at the end."""
    for module, name in ((verify_team, "TILE_BYTES"), (verify_steps, "REPEATED")):
        monkeypatch.setattr(module, name, getattr(module, name))


@pytest.mark.usefixtures("tiles")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_steps_on_any_ranks_are_a_plain_loop(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("steps")
    ranks, grid = data.draw(st.sampled_from(GRIDS))
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = data.draw(st.tuples(width, width))
    shape = data.draw(st.tuples(st.integers(3, 20), st.integers(3, 14)))
    steps, every = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    in_place, overlap = data.draw(st.booleans()), data.draw(st.booleans())
    feeds = data.draw(st.sampled_from([("block", "other"), ("other", "block"), ("block", None)]))
    function = weighted(widths)

    job = weighted_job(function, widths, boundary, feeds, in_place=in_place)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(2)]
    places = [None if name is None else ("block", "other").index(name) for name in feeds]
    expected = plain_loop(function, arrays, steps, widths, boundary, places, 9)
    verify_team.TILE_BYTES = data.draw(st.sampled_from([4, 64, 300, 1 << 20]))  # `tiles` puts it back
    verify_steps.REPEATED = data.draw(st.sampled_from([1.1, 50.0]))
    found, record = stepped(
        folder, job, arrays, steps, ranks=ranks, grid=grid, steps_per_exchange=every, overlap=overlap,
        devices=data.draw(st.booleans()), verify=data.draw(st.sampled_from(["off", "full", "sample"])),
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert record["steps"]["steps"] == steps


@pairs_by_day(boundary=BOUNDARIES, ranks__grid=[(3, "3"), (4, "2x2"), (6, "2x3")], every=[1, 2, 3])
def test_an_impulse_crosses_every_face_edge_and_corner(
    tmp_path: Path, boundary: str, ranks: int, grid: str, every: int
) -> None:
    """From a cell beside a corner of the split, and from one at the array's corner."""
    widths = ((1, 1), (1, 1))
    function = weighted(widths)
    job = meshrun.map_blocks(halo=1, boundary=boundary, outputs=2)(function)
    for cell in ((8, 5), (0, 0)):
        impulse = np.zeros((18, 12), np.uint32)
        impulse[cell] = 1
        arrays = [impulse, np.zeros_like(impulse)]
        expected = plain_loop(function, arrays, 6, widths, boundary, (0, 1))
        found, _ = stepped(tmp_path, job, arrays, 6, ranks=ranks, grid=grid, steps_per_exchange=every)
        np.testing.assert_array_equal(found[0], expected[0])
        assert np.count_nonzero(found[0]) > 12


@pytest.mark.parametrize("every", [1, 2, 4])
def test_cells_know_their_place_also_beyond_an_edge_that_wraps(tmp_path: Path, every: int) -> None:
    @meshrun.map_blocks(halo=1, boundary="wrap")
    def placed(block: Any, *, here: Any) -> Any:
        rows = here.offset[0] + np.arange(here.block[0])
        assert rows.min() >= 0
        assert rows.max() < here.shape[0]
        columns = here.offset[1] + np.arange(here.block[1])
        assert columns.min() >= 0
        assert columns.max() < here.shape[1]
        return block[:-2, 1:-1] + 3 * block[2:, 2:] + (rows[:, None] * 100 + columns)

    start = np.arange(16 * 12).reshape(16, 12)
    expected = start
    for _ in range(9):
        wide = np.pad(expected, 1, "wrap")
        place = np.arange(16)[:, None] * 100 + np.arange(12)
        expected = wide[:-2, 1:-1] + 3 * wide[2:, 2:] + place
    for ranks, grid in ((1, "1"), (2, "2"), (4, "2x2"), (3, "1x3")):
        (found,), _ = stepped(
            tmp_path, placed, [start], 9, ranks=ranks, grid=grid, steps_per_exchange=every, verify="full"
        )
        np.testing.assert_array_equal(found, expected)


def test_fields_of_other_axes_and_an_input_that_stays(tmp_path: Path) -> None:
    @meshrun.map_blocks(halo=1, feeds=("field",))
    def drift(field: Any, velocity: Any, mask: Any) -> Any:
        inner = (slice(1, -1), slice(1, -1))
        return np.where(mask[inner], field[inner] + velocity[inner][..., 1] * field[2:, 1:-1], field[inner])

    random = np.random.default_rng(3)
    field = random.integers(0, 9, (17, 9)).astype(np.float64)
    velocity = random.integers(0, 3, (17, 9, 2)).astype(np.float32)
    mask = random.integers(0, 2, (17, 9)).astype(bool)
    expected = plain_loop(drift.function, [field, velocity, mask], 5, ((1, 1), (1, 1)), "reflect", (0,))
    for ranks, grid in ((1, "1"), (3, "3"), (4, "2x2")):
        for every in (1, 2):
            found, _ = stepped(
                tmp_path, drift, [field, velocity, mask], 5, ranks=ranks, grid=grid, steps_per_exchange=every,
                verify="full",
            )  # fmt: skip
            np.testing.assert_array_equal(found[0], expected[0])


def test_a_filled_result_steps_too(tmp_path: Path) -> None:
    @meshrun.map_blocks(halo=1)
    def shifted(block: Any, *, out: Any) -> None:
        assert out.flags.c_contiguous
        out[...] = block[:-2, :-2] + 1

    start = np.arange(70).reshape(10, 7)
    expected = plain_loop(lambda b: b[:-2, :-2] + 1, [start], 4, ((1, 1), (1, 1)), "reflect", (0,))
    found, _ = stepped(tmp_path, shifted, [start], 4, ranks=2, verify="full")
    np.testing.assert_array_equal(found[0], expected[0])


def test_k_is_lowered_where_blocks_are_too_small(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = meshrun.map_blocks(halo=2)(lambda block: block[2:-2, 2:-2])
    _, record = stepped(tmp_path, job, [np.zeros((13, 9))], 3, ranks=3, steps_per_exchange=5)
    assert record["steps"]["steps_per_exchange"] == 2
    assert "--steps-per-exchange 5 is lowered to 2" in record["warnings"][0]
    assert "--steps-per-exchange 5 is lowered to 2" in caplog.text


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_verification_in_tiles_finds_a_single_wrong_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str
) -> None:
    """Also one that a step changes on its way only: six steps of tiles that a pass of several steps takes."""
    monkeypatch.setattr(verify_team, "TILE_BYTES", 256)
    monkeypatch.setattr(verify_steps, "REPEATED", 50.0)
    job = meshrun.map_blocks(halo=1, boundary=boundary)(lambda block: block[:-2, 1:-1] + block[1:-1, 2:])
    start = np.arange(24 * 20, dtype=np.uint32).reshape(24, 20)
    stepped(tmp_path, job, [start], 6, verify="full")
    step, calls = Stepper._step, []

    def wrong(stepper: Stepper, *arguments: Any) -> None:
        step(stepper, *arguments)
        calls.append(1)
        if len(calls) == 3:
            stepper.own(0)[13, 11] ^= 1

    monkeypatch.setattr(Stepper, "_step", wrong)
    with pytest.raises(meshrun.RunError, match="verification failed"):
        stepped(tmp_path, job, [start], 6, verify="full")


def test_all_wrong_cells_of_a_box_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared in slabs of a row; one cell that is nearly right decides by the largest of all."""
    monkeypatch.setattr(verify_team, "TILE_BYTES", 1)
    job = meshrun.map_blocks(lambda block: block + np.float32(1))
    start = np.zeros((24, 20), np.float32)
    start[23, 19] = 1e6
    advance = Stepper.advance

    def wrong(stepper: Stepper, *arguments: Any, **options: Any) -> None:
        advance(stepper, *arguments, **options)
        stepper.own(0)[2, 3] += 100
        stepper.own(0)[20, 4] += 100
        stepper.own(0)[5, 5] += 1

    monkeypatch.setattr(Stepper, "advance", wrong)
    with pytest.raises(meshrun.RunError) as failure:
        stepped(tmp_path, job, [start], 6, verify="full")
    assert "cell [2, 3], computed by [rank 0" in str(failure.value)
    assert "is wrong on disk (2 of 480 cells of box [0:24, 0:20] are)" in str(failure.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sample_costs_no_more_than_all_cells(tmp_path: Path, ranks: int) -> None:
    """Many steps depend on the whole array, for each of a sample's boxes again."""
    start = np.arange(24 * 20, dtype=np.uint32).reshape(24, 20)
    job = meshrun.map_blocks(halo=1, boundary="wrap")(lambda block: block[2:, 1:-1] + block[:-2, 2:])
    _, record = stepped(tmp_path, job, [start], 50, ranks=ranks, verify="sample")
    assert (record["verify"]["boxes"], record["verify"]["cells"]) == (4, start.size)
    large = np.zeros((700, 600), np.uint8)
    (tmp_path / "large").mkdir()
    _, record = stepped(tmp_path / "large", job, [large], 2, ranks=ranks, verify="sample")
    assert record["verify"]["boxes"] > 10
    assert record["verify"]["cells"] < large.size


# ---- until, finite values


@meshrun.map_blocks(halo=1, boundary="constant")
def relax(block: Any) -> Any:
    return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4


@pytest.mark.parametrize("every", [None, 1, 7])
def test_until_stops_at_the_first_check_below_the_tolerance(tmp_path: Path, every: int | None) -> None:
    start = np.random.default_rng(0).random((12, 8))
    field, changes = start, []
    for _ in range(400):
        after = relax.function(np.pad(field, 1))
        changes.append(abs(after - field).max())
        field = after
    interval = every or 10
    expected = next(n for n in range(interval, 400, interval) if changes[n - 1] <= 1e-4)
    for ranks in (1, 3):
        _, record = stepped(
            tmp_path, relax, [start], 400, ranks=ranks, until=1e-4, every=every, verify="full"
        )
        assert record["steps"]["steps"] == expected
        assert record["steps"]["until"] == {
            "tolerance": 1e-4,
            "change": changes[expected - 1],
            "reached": True,
            "fields": ["block"],
        }


def test_until_that_is_not_reached_takes_all_steps(tmp_path: Path) -> None:
    _, record = stepped(tmp_path, relax, [np.ones((9, 9))], 25, until=0.0)
    assert record["steps"]["steps"] == 25
    assert not record["steps"]["until"]["reached"]
    assert "largest change 0.0" in render(record)
    _, record = stepped(tmp_path, relax, [np.ones((9, 9))], 9, until=1e-4)
    until = {"tolerance": 1e-4, "change": None, "reached": False, "fields": ["block"]}
    assert record["steps"]["until"] == until
    assert "not known whether a step changes block by at most 0.0001" in render(record)


@meshrun.map_blocks(halo=1, boundary="constant", outputs=3, feeds=("heat", "time", None))
def timed(heat: Any, time: Any, where: Any) -> Any:
    return relax.function(heat), time[1:-1, 1:-1] + 1, where[1:-1, 1:-1]


@pytest.mark.parametrize("names", [("heat",), ("heat", "heat")])
@pytest.mark.parametrize("stream", [None, (120, 10, 8)])
def test_until_looks_only_at_the_fields_that_are_named(tmp_path: Path, names: Any, stream: Any) -> None:
    start = np.random.default_rng(0).random((40, 8))
    fields = [start, np.zeros_like(start), start]
    _, alone = stepped(tmp_path, relax, [start], 400, until=1e-4)
    more = {} if stream is None else {"stream": in_chunks(*stream), "copies": "auto"}
    until = parse_until(f"1e-4:{','.join(names)}")
    for ranks in (1, 3):
        _, record = stepped(tmp_path, timed, fields, 400, ranks=ranks, until=until, **more)
        assert (record["stream"] is None) == (stream is None)
        assert 0 < record["steps"]["steps"] == alone["steps"]["steps"] < 400
        assert record["steps"]["until"] == alone["steps"]["until"] | {"fields": ["heat"]}
    assert "in a step, of heat: 0.0001 reached" in render(record)


def test_a_clock_is_seen_unless_fields_are_named(tmp_path: Path) -> None:
    start = np.zeros((9, 8))
    for until, change in ((1e-4, 1.0), (parse_until("1e-4:time"), 1.0), (parse_until("1e-4:time,heat"), 1.0)):
        _, record = stepped(tmp_path, timed, [start] * 3, 12, until=until)
        assert record["steps"]["until"]["change"] == change
        assert record["steps"]["steps"] == 12


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1:tim", "--until names 'tim', which no step changes: expected some of heat, time. Try: time"),
        ("1:where", "--until names 'where', which no step changes: expected some of heat, time"),
        ("1:heat,output1", "--until names 'output1', which no step changes"),
    ],
)
def test_a_field_that_no_step_changes_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(meshrun.UserError, match=re.escape(sentence)):
        stepped(tmp_path, timed, [np.zeros((9, 8))] * 3, 12, ranks=2, until=parse_until(text))


@pytest.mark.parametrize(
    "until",
    [
        "1e-4:heat,time",
        " 1e-4: heat , time",
        (1e-4, "heat,time"),
        (1e-4, ("heat", "time")),
        [1e-4, ["heat", "time"]],
    ],
)
def test_fields_are_named_by_a_text_or_a_pair(tmp_path: Path, until: Any) -> None:
    record = timed.run([np.zeros((9, 8))] * 3, [np.zeros((9, 8)) for _ in range(3)], steps=10, until=until)
    assert record["steps"]["until"]["fields"] == ["heat", "time"]


@pytest.mark.parametrize(
    "until",
    ["1e-4:", "1e-4:heat,", "1e-4:,heat", ":heat", "nan:heat", "-1:heat", "heat", (1e-4, ()), (1e-4, 3)],
)
def test_other_texts_are_refused(until: Any) -> None:
    with pytest.raises(meshrun.UserError, match=r"'until'|until names '3'"):
        timed.run([np.zeros((9, 8))] * 3, [np.zeros((9, 8)) for _ in range(3)], steps=10, until=until)


def test_exchanges_take_at_most_all_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, the other ranks wait in an exchange for the rank that reads longer."""
    load = step_run.load_arrays

    def slow(world: Any, *arguments: Any) -> Any:
        found = load(world, *arguments)
        if world.rank == 1:
            time.sleep(0.5)
        return found

    monkeypatch.setattr(step_run, "load_arrays", slow)
    _, record = stepped(tmp_path, relax, [np.ones((9, 9))], 3, ranks=2)
    assert record["steps"]["exchanges"] > 0
    assert 0 < record["steps"]["exchange_fraction"] <= 1
    assert record["phases"]["exchange"]["seconds"] > record["steps"]["seconds"], "or nothing was tested"


def test_fields_without_cells_keep_their_own_types(tmp_path: Path) -> None:
    job = meshrun.map_blocks(halo=((1, 1), (0, 0)), outputs=2)(lambda one, other: (one[1:-1], other[1:-1]))
    fields = [np.zeros((0, 5)), np.zeros((0, 5, 3), np.int16)]
    found, _ = stepped(tmp_path, job, fields, 3, ranks=2)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in fields]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_until_sees_any_change_of_integers(tmp_path: Path, dtype: Any) -> None:
    """Also of those that no float64 tells apart, and one that is larger than the dtype's largest number."""
    limits = np.iinfo(dtype)
    counts = meshrun.map_blocks(halo=0)(lambda block: block + dtype(1))
    _, record = stepped(tmp_path, counts, [np.full(9, limits.max // 2, dtype)], 25, until=0.5, every=1)
    assert record["steps"]["steps"] == 25
    assert record["steps"]["until"]["change"] == 1
    ends = np.array([limits.min, limits.max], dtype)
    assert largest_change(ends, ends[::-1]) == float(int(limits.max) - int(limits.min))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.complex64])
def test_an_infinity_that_stays_is_no_change_for_until(tmp_path: Path, dtype: Any) -> None:
    field = np.array([np.inf, -np.inf, 3], dtype)
    still = meshrun.map_blocks(halo=0)(lambda block: block.copy())
    _, record = stepped(tmp_path, still, [field], 25, until=0, every=5)
    assert (record["steps"]["steps"], record["steps"]["until"]["change"]) == (5, 0)
    assert largest_change(field, np.array([np.inf, np.inf, 3], dtype)) == np.inf
    assert np.isnan(largest_change(field, np.array([np.inf, -np.inf, np.nan], dtype)))


@pytest.mark.parametrize(("ranks", "overlap"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("every", [1, 7])
def test_a_result_that_feeds_nothing_is_that_of_the_step_at_which_until_stops(
    tmp_path: Path, ranks: int, overlap: bool, every: int
) -> None:
    @meshrun.map_blocks(halo=1, boundary="constant", feeds=("field", None), outputs=("field", "slope"))
    def relaxed(field: Any) -> Any:
        return relax.function(field), field[2:, 1:-1] - field[:-2, 1:-1]

    start = np.random.default_rng(0).random((12, 8))
    found, record = stepped(
        tmp_path, relaxed, [start], 400, ranks=ranks, until=1e-4, every=every, overlap=overlap, verify="full"
    )
    steps = record["steps"]["steps"]
    assert steps < 400
    expected = plain_loop(relaxed.function, [start], steps, ((1, 1), (1, 1)), "constant", (0, None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "chunks", [{}, {"stream": StreamOptions(chunk_bytes=9 * 5 * 4)}], ids=["whole", "chunks"]
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_value_that_is_not_finite_is_named_with_step_rank_and_cell(
    tmp_path: Path, ranks: int, chunks: dict[str, Any]
) -> None:
    @meshrun.map_blocks(halo=1)
    def grows(block: Any) -> Any:
        with np.errstate(over="ignore"):
            return block[1:-1, 1:-1] * 10

    start = np.ones((9, 5), np.float32)
    start[7, 2] = 1e30
    with pytest.raises(meshrun.RunError) as failure:
        stepped(tmp_path, grows, [start], 30, ranks=ranks, check_finite=3, **chunks)
    rank = "" if chunks else ranks - 1
    assert str(failure.value).startswith(f"block is not finite after step 9: cell [7, 2], on [rank {rank}")
    assert not (tmp_path / "out0.npy").exists()
    start[3, 1] = np.nan
    with pytest.raises(meshrun.RunError, match=r"block is not finite before the first step: cell \[3, 1\]"):
        stepped(tmp_path, grows, [start], 30, ranks=ranks, check_finite=3, **chunks)


@pytest.mark.parametrize(
    "chunks", [{}, {"stream": StreamOptions(chunk_bytes=9 * 5 * 4)}], ids=["whole", "chunks"]
)
def test_the_last_step_is_checked_and_finite_values_pass(tmp_path: Path, chunks: dict[str, Any]) -> None:
    @meshrun.map_blocks(halo=1)
    def grows(block: Any) -> Any:
        with np.errstate(over="ignore"):
            return block[1:-1, 1:-1] * 10

    start = np.ones((9, 5), np.float32)
    (found,), record = stepped(tmp_path, grows, [start], 8, check_finite=3, **chunks)
    assert (found == 10**8).all()
    assert record["steps"]["steps"] == 8
    start[8, 4] = 1e31
    with pytest.raises(meshrun.RunError, match=r"block is not finite after step 8: cell \[8, 4\]"):
        stepped(tmp_path, grows, [start], 8, check_finite=100, **chunks)


# ---- checkpoints


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 2), (2, 1)])
def test_a_run_that_failed_goes_on_with_other_ranks_to_the_same_bits(
    tmp_path: Path, first: int, second: int
) -> None:
    FAILING[0] = True

    @meshrun.map_blocks(halo=1, outputs=2)
    def fragile(now: Any, before: Any) -> Any:
        if FAILING[0] and now[1, 1] > 2**40:
            raise ValueError("as if the power went")
        inner = (slice(1, -1), slice(1, -1))
        return now[inner] * 3 + before[:-2, 1:-1], now[inner]

    arrays = [np.arange(1, 61).reshape(10, 6), np.ones((10, 6), int)]
    with pytest.raises(ValueError, match="power"):
        stepped(tmp_path, fragile, arrays, 30, ranks=first, checkpoint=interval("4"))
    folder = tmp_path / "out0.npy.checkpoint"
    kept = sorted(path.name for path in folder.iterdir())
    assert len(kept) == 2
    with pytest.raises(meshrun.UserError, match="left checkpoints, the last after step"):
        stepped(tmp_path, fragile, arrays, 30, ranks=second, checkpoint=interval("4"))
    FAILING[0] = False
    record = resumed(tmp_path, fragile, 30, second)
    assert record["steps"]["first"] == max(int(name.removeprefix("step-")) for name in kept)
    assert not folder.exists()
    expected = plain_loop(fragile.function, arrays, 30, ((1, 1), (1, 1)), "reflect", (0, 1))
    for number in range(2):
        np.testing.assert_array_equal(np.load(tmp_path / f"out{number}.npy"), expected[number])


def test_until_is_checked_at_the_first_step_after_a_checkpoint_too(tmp_path: Path) -> None:
    """Every tenth step; the run fails in that step, and is resumed from the one before."""
    CALLS.clear()

    @meshrun.map_blocks(halo=1, boundary="constant", split_dependent=True)
    def fragile(block: Any) -> Any:
        CALLS.append(1)
        if len(CALLS) == 12:  # two are trials before the first step
            raise ValueError("as if the power went")
        return relax.function(block)

    start = np.random.default_rng(0).random((12, 8))
    with pytest.raises(ValueError, match="power"):
        stepped(tmp_path, fragile, [start], 40, until=1.0, every=10, checkpoint=interval("3"))
    record = resumed(tmp_path, fragile, 40, 1, until=1.0, every=10)
    assert (record["steps"]["first"], record["steps"]["steps"]) == (9, 10)
    expected = plain_loop(relax.function, [start], 10, ((1, 1), (1, 1)), "constant", (0,))
    np.testing.assert_array_equal(np.load(tmp_path / "out0.npy"), expected[0])


def test_a_new_checkpoint_replaces_damaged_ones_of_later_steps(tmp_path: Path) -> None:
    """Two that are newer than the one resumed from: they count for nothing."""
    names = checkpointed(tmp_path, PROGRAM)
    folder = tmp_path / "out0.npy.checkpoint"
    for step in (8, 12):
        (folder / f"step-{step}").mkdir(exist_ok=True)
        (folder / f"step-{step}" / "state.json").write_text("{")
    CALLS[:] = [1] * 7
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        resumed(tmp_path, names["job"], 20, 1, checkpoint=interval("1"))
    FAILING[0] = False
    assert sorted(path.name for path in folder.iterdir()) == ["step-4", "step-5"]
    assert resumed(tmp_path, names["job"], 20, 1)["steps"]["first"] == 5
    np.testing.assert_array_equal(np.load(tmp_path / "out0.npy"), np.full((8, 4), 2.0**20))


def interval(text: str) -> Any:
    from meshrun.runner.options.step_options import parse_interval

    return parse_interval(text)


def resumed(
    folder: Path, job: Any, steps: int, ranks: int, fuse: str | None = None, **more: Any
) -> dict[str, Any]:
    """The record of a run that goes on with inputs as they are."""
    inputs = [folder / f"in{number}.npy" for number in range(len(job.arrays))]
    outputs = [folder / f"out{number}.npy" for number in range(len(job.output_names))]
    options = Options(
        device="cpu",
        steps=StepOptions(steps, **{"checkpoint": interval("4"), **more}),
        stream=StreamOptions(resume=True),
        fuse=fuse,
    )

    def rank(control: Control) -> Any:
        return run(job, inputs, outputs, {}, options, world=open_world("cpu", control=control))

    return run_ranks(ranks, rank, timeout=60)[0]


def program(text: str) -> dict[str, Any]:
    """The names of a program that is in no file, before the first call of its job."""
    names = {"meshrun": meshrun, "test": sys.modules[__name__]}
    exec(text, names)
    CALLS.clear()
    return names


def checkpointed(folder: Path, text: str) -> Any:
    """A job whose first run failed after its checkpoint at step 8."""
    names = program(text)
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        stepped(folder, names["job"], [np.ones((8, 4))], 20, checkpoint=interval("4"))
    FAILING[0] = False
    return names


PROGRAM = """
@meshrun.map_blocks(split_dependent=True)
def job(block, *, gain=2.0):
    test.CALLS.append(1)
    if test.FAILING[0] and len(test.CALLS) > 10:
        raise ValueError("stop")
    return block * gain
"""


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    checkpointed(tmp_path, PROGRAM)
    names = program(PROGRAM.replace("block * gain", "block + gain"))
    with pytest.raises(meshrun.UserError, match=r"its checkpoint differs in 1 value\(s\): got code"):
        resumed(tmp_path, names["job"], 20, 1)
    assert (tmp_path / "out0.npy.checkpoint").exists()


def scaled(by: Any) -> Any:
    """A job of a function that captures a variable."""

    @meshrun.map_blocks
    def job(block: Any) -> Any:
        if FAILING[0] and block.max() > 200:
            raise ValueError("stop")
        return block * (by if isinstance(by, float) else 2)

    return job


def test_a_checkpoint_of_a_function_that_captured_another_value_is_refused(tmp_path: Path) -> None:
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        stepped(tmp_path, scaled(2.0), [np.ones((8, 4))], 20, checkpoint=interval("4"))
    FAILING[0] = False
    with pytest.raises(meshrun.UserError, match=r'got captured\.by "3\.0", expected captured\.by "2\.0"'):
        resumed(tmp_path, scaled(3.0), 20, 1)
    assert resumed(tmp_path, scaled(2.0), 20, 1)["warnings"] == []


@meshrun.map_blocks
def grows(block: Any, *, xp: Any) -> Any:
    if FAILING[0] and block.max() > 200:
        raise ValueError("stop")
    return xp.exp(block * 0 + 0.7) * block


@meshrun.map_blocks
def doubles(block: Any) -> Any:
    return block * 2


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_a_run_of_numpys_functions_does_not_go_on_with_those_of_a_compiler(tmp_path: Path) -> None:
    """Their last bits may differ; a longer run may be worth a compiler that the first one was not."""
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        stepped(tmp_path, grows, [np.ones((8, 4))], 20, checkpoint=interval("4"))
    FAILING[0] = False
    with pytest.raises(meshrun.UserError, match=r'got fuse "require", expected fuse not given'):
        resumed(tmp_path, grows, 20, 1, fuse="require")
    assert resumed(tmp_path, grows, 20, 1, fuse="off")["steps"]["first"] == 8


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_exact_operations_go_on_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "end", power_cut)
        with pytest.raises(RuntimeError, match="as if the power went"):
            stepped(tmp_path, doubles, [np.ones((8, 4))], 9, checkpoint=interval("4"))
    assert resumed(tmp_path, doubles, 9, 1, fuse="require")["steps"]["first"] == 8


def power_cut(*arguments: Any) -> None:
    raise RuntimeError("as if the power went")


def test_a_captured_value_that_a_checkpoint_does_not_know_is_named(tmp_path: Path) -> None:
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        stepped(tmp_path, scaled(threading.Lock()), [np.ones((8, 4))], 20, checkpoint=interval("4"))
    FAILING[0] = False
    (warning,) = resumed(tmp_path, scaled(threading.Lock()), 20, 2)["warnings"]
    assert warning == (
        "job job uses by (an object of lock): it is not known whether the unfinished run, which is resumed, "
        "had the same"
    )


def test_a_damaged_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    names = checkpointed(tmp_path, PROGRAM)
    newest = tmp_path / "out0.npy.checkpoint" / "step-8"
    (newest / "block.npy").write_bytes(b"half")
    record = resumed(tmp_path, names["job"], 20, 2)
    assert record["steps"]["first"] == 4
    np.testing.assert_array_equal(np.load(tmp_path / "out0.npy"), np.full((8, 4), 2.0**20))


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, states = files.write_file, []

    def write_file(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "state.json":
            states.append(path)
            if len(states) == 2:
                raise OSError(28, "No space left on device")
        whole(path, *arguments, **options)

    monkeypatch.setattr(files, "write_file", write_file)
    doubles = meshrun.map_blocks(lambda block: block * 2)
    with pytest.raises(meshrun.RunError) as failure:
        stepped(tmp_path, doubles, [np.ones((8, 4))], 20, checkpoint=interval("4"), ranks=2)
    folder = tmp_path / "out0.npy.checkpoint"
    assert str(failure.value).startswith(f"cannot write {folder / 'step-8'}: No space left on device")
    assert [path.name for path in folder.iterdir()] == ["step-4"]
    assert resumed(tmp_path, doubles, 20, 3)["steps"]["first"] == 4
    np.testing.assert_array_equal(np.load(tmp_path / "out0.npy"), np.full((8, 4), 2.0**20))
    assert not folder.exists()


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_folder(tmp_path: Path) -> None:
    names = program(PROGRAM)
    FAILING[0] = True
    with pytest.raises(ValueError, match="stop"):
        stepped(tmp_path, names["job"], [np.ones((8, 4))], 20, checkpoint=interval("18"))
    assert [path.name for path in tmp_path.iterdir()] == ["in0.npy"]


def test_other_files_in_the_folder_of_checkpoints_stay(tmp_path: Path) -> None:
    folder = tmp_path / "out0.npy.checkpoint"
    folder.mkdir()
    (folder / "notes.txt").write_text("of somebody")
    doubles = meshrun.map_blocks(lambda block: block * 2)
    stepped(tmp_path, doubles, [np.ones((8, 4))], 20, checkpoint=interval("4"))
    stepped(tmp_path, doubles, [np.ones((8, 4))], 20)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_what_a_failed_run_says_of_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before the first; then how to continue; after a wrong result, how to start again."""
    said = []

    class Observer(OutputTransaction):
        def set_recovery_hint(self, hint: str | None) -> None:
            said.append((len(calls), hint))
            super().set_recovery_hint(hint)

    calls: list[int] = []

    @meshrun.map_blocks
    def counted(block: Any) -> Any:
        calls.append(1)
        return block * 2

    np.save(tmp_path / "in.npy", np.ones((8, 4)))
    world = open_world("cpu", control=ThreadComm())
    options = Options(device="cpu", steps=StepOptions(20, checkpoint=interval("4")))
    execute(
        world, counted, tmp_path / "in.npy", tmp_path / "out.npy", {}, options, transaction=Observer(None)
    )
    kept = "checkpoints are kept; continue with the same command and --resume"
    assert [hint for _, hint in said] == [kept, None]
    assert said[0][0] == len(calls) - 16, "after the fourth step of twenty"

    def fail(*_: Any, **__: Any) -> None:
        raise meshrun.RunError("verification failed")

    monkeypatch.setattr(verify_steps, "verify_steps", fail)
    said.clear()
    with pytest.raises(meshrun.RunError, match="verification failed"):
        execute(
            world, counted, tmp_path / "in.npy", tmp_path / "out.npy", {}, replace(options, verify="full"),
            transaction=Observer(None),
        )  # fmt: skip
    anew = f"to start from the beginning: rm -r {tmp_path / 'out.npy.checkpoint'}"
    assert [hint for _, hint in said] == [kept, anew]


def test_a_checkpoint_at_or_beyond_the_last_step_is_refused(tmp_path: Path) -> None:
    names = checkpointed(tmp_path, PROGRAM)
    with pytest.raises(meshrun.UserError, match=r"got --steps 8, expected at least 9"):
        resumed(tmp_path, names["job"], 8, 1)


# ---- what is refused


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            meshrun.map_blocks(lambda block: block.astype(np.float32)),
            "its result cannot become its input block: got float32 of shape 6x4, "
            "expected float64 of shape 6x4. Try: return result.astype(float64)",
        ),
        (
            meshrun.map_blocks(outputs=("large", "small"))(lambda a, b: (b, a[:, 0])),
            "its result small cannot become its input b: got float64 of shape 6",
        ),
        (meshrun.map_blocks(feeds=(None,))(lambda block: block), "none of its outputs feeds an input"),
    ],
)
def test_outputs_that_cannot_feed_inputs_are_refused(tmp_path: Path, job: Any, said: str) -> None:
    arrays = [np.zeros((6, 4))] * len(job.arrays)
    with pytest.raises(meshrun.UserError) as failure:
        stepped(tmp_path, job, arrays, 3)
    assert said in str(failure.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_function_that_changes_an_input_that_stays_is_refused(tmp_path: Path, ranks: int) -> None:
    @meshrun.map_blocks(feeds=("field",))
    def spoils(field: Any, weights: Any) -> Any:
        weights += 1
        return field * weights

    with pytest.raises(meshrun.RunError, match="changes its input weights, which all further steps need"):
        stepped(tmp_path, spoils, [np.ones((6, 4)), np.ones((6, 4))], 3, ranks=ranks)


@pytest.mark.parametrize("chunk_bytes", [None, 400])
@pytest.mark.parametrize(("ranks", "checkpoint"), [(1, None), (3, 4)])
def test_so_is_one_that_changes_it_where_a_cell_has_some_value(
    tmp_path: Path, ranks: int, checkpoint: int | None, chunk_bytes: int | None
) -> None:
    """Fuel that burns where it is hot: each rank and chunk has its own."""

    @meshrun.map_blocks(feeds=("heat",), halo=((1, 1), (0, 0)))
    def burns(heat: Any, fuel: Any) -> Any:
        fuel[heat > 2] *= 0.5
        return heat[1:-1] + fuel[1:-1]

    heat, fuel = np.zeros((12, 4)), np.zeros((12, 4))
    fuel[2:5] = 1
    saved = None if checkpoint is None else SaveInterval(steps=checkpoint)
    stream = StreamOptions(chunk_bytes=chunk_bytes)
    with pytest.raises(meshrun.RunError, match="changes its input fuel, which all further steps need"):
        stepped(tmp_path, burns, [heat, fuel], 8, ranks=ranks, checkpoint=saved, stream=stream)
    assert not list(tmp_path.glob("out*.npy.checkpoint/step-*"))
    found, _ = stepped(tmp_path, burns, [heat, fuel], 2, ranks=ranks, stream=stream)
    np.testing.assert_array_equal(found[0], 2 * fuel)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"until": 1e-3}, "until applies only to runs that take steps"),
        ({"steps": 0}, "Invalid value for 'steps': 0 is not in the range 1<=x"),
        ({"steps": 2, "checkpoint": "often"}, "'often' is not an interval"),
        ({"steps": 2, "frames": "x.gif"}, "frames needs the number of steps between two frames"),
        ({"steps": 2, "every": 2}, "every is the interval of"),
        ({"steps": 2, "frame_range": (1, 0), "every": 1, "frames": "x.gif"}, "'1:0' is not a range"),
        ({"steps": 2, "frame_colors": "hot", "every": 1, "frames": "x.gif"}, "'hot' is not one of"),
        (
            {"steps": 2, "depth": 2, "frames": "x.npy", "every": 1},
            "frames='x.npy' does not apply to steps in chunks",
        ),
        ({"steps": 2, "timeline": "x.html"}, "timeline does not apply to time steps: got x.html"),
        ({"steps": 2, "timeline": "x.html", "copies": "one"}, "timeline does not apply to time steps"),
        ({"steps": 2, "timeline": "x.html", "depth": 2}, "timeline does not apply to time steps"),
        ({"steps": 2, "static": True, "grid": "1"}, "grid does not apply to steps in chunks"),
        ({"steps": 2, "frames": "x.avi", "every": 1}, "unknown format of frames: x.avi"),
        ({"steps": 2, "frames": "x.gif", "every": 1, "frame_field": "z"}, "frame_field names no input"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keywords: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.ones((5, 5)))
    with pytest.raises(meshrun.UserError) as failure:
        relax.run("in.npy", "out.npy", device="cpu", **keywords)
    assert said in str(failure.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


# ---- steps in chunks


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(data=st.data())
def test_steps_in_chunks_are_a_plain_loop(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("passes")
    boundary = data.draw(st.sampled_from(BOUNDARIES))
    width = st.tuples(st.integers(0, 2), st.integers(0, 2))
    widths = data.draw(st.tuples(width, width))
    shape = data.draw(st.tuples(st.integers(3, 40), st.integers(3, 9)))
    steps, each = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    feeds = data.draw(st.sampled_from([("block", "other"), ("other", "block"), ("block", None)]))
    placed = data.draw(st.booleans())
    function = weighted(widths)

    def job_function(block: Any, other: Any) -> Any:
        return function(block, other)

    def job_with_place(block: Any, other: Any, *, here: Any) -> Any:
        assert 0 <= here.offset[0] <= here.offset[0] + here.block[0] <= here.shape[0]
        return function(block, other)

    chosen = job_with_place if placed else job_function
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2, feeds=feeds)(chosen)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(2)]
    places = [None if name is None else ("block", "other").index(name) for name in feeds]
    expected = plain_loop(function, arrays, steps, widths, boundary, places, 9)
    row = 8 * (shape[1] + sum(widths[1]))
    size = row * data.draw(st.integers(1 + sum(widths[0]), 30))
    depth = data.draw(st.integers(1, 2))
    found, record = stepped(
        folder, job, arrays, steps, ranks=data.draw(st.integers(1, 3)), steps_per_exchange=each,
        devices=data.draw(st.booleans()), verify=data.draw(st.sampled_from(["off", "full"])),
        stream=StreamOptions(chunk_bytes=size + each * sum(widths[0]) * row, depth=depth),
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert record["stream"]["chunks"] >= 1
    assert record["steps"]["passes"] == -(-steps // record["steps"]["steps_per_exchange"])
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm."""
    (folder := tmp_path / "shm").mkdir()
    monkeypatch.setattr("meshrun.runner.system.host_memory.SHARED_MEMORY", folder)
    return folder


def test_fields_that_do_not_fit_memory_pass_through_in_chunks(tmp_path: Path, shared_memory: Path) -> None:
    job = meshrun.map_blocks(halo=1, boundary="wrap")(lambda block: block[:-2, 1:-1] + block[1:-1, 2:])
    start = np.random.default_rng(5).integers(0, 9, (400, 50)).astype(np.int64)
    expected = plain_loop(job.function, [start], 20, ((1, 1), (1, 1)), "wrap", (0,))
    found, record = stepped(
        tmp_path, job, [start], 20, ranks=2, stream=StreamOptions(host_memory=100_000), verify="full"
    )
    np.testing.assert_array_equal(found[0], expected[0])
    assert record["stream"]["chunks"] > 4
    assert 1 < record["steps"]["steps_per_exchange"] <= 32
    assert not list(shared_memory.iterdir())


@pytest.mark.parametrize("room", [True, False])
def test_a_pass_that_fails_leaves_nothing(
    tmp_path: Path, shared_memory: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    folder = shared_memory if room else None
    monkeypatch.setattr("meshrun.runner.steps.streamed_steps.memory_folder", lambda needed: folder)
    fails = failing_after(40)
    with pytest.raises(ValueError, match="stop"):
        stepped(tmp_path, fails, [np.zeros((90, 4))], 30, stream=StreamOptions(chunk_bytes=320))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in0.npy", "shm"]
    assert not list(shared_memory.iterdir())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"frames": "film.npy", "every": 5}, "--frames film.npy"),
        ({"grid": "1x2"}, "--grid"),
    ],
)
def test_what_needs_fields_in_memory_is_refused_where_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], named: str
) -> None:
    """It is not left out without a word."""
    monkeypatch.setattr("meshrun.runner.run.step_run.fields_memory", lambda *_, **__: 1 << 62)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(meshrun.UserError) as failure:
        stepped(tmp_path, relax, [np.ones((9, 9))], 20, ranks=2, **options)
    assert str(failure.value) == (
        f"{named} does not apply to steps in chunks: got a block that does not fit the memory of its rank. "
        "Try: more ranks"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in0.npy"]


def in_chunks(rows: int, columns: int, itemsize: int) -> Any:
    """Options with chunks of so many rows."""
    return StreamOptions(chunk_bytes=rows * columns * itemsize)


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(("first", "second", "chunked"), [(1, 3, True), (2, 1, True), (2, 2, False)])
def test_a_run_in_chunks_that_failed_goes_on_from_its_checkpoint(
    tmp_path: Path,
    shared_memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    second: int,
    chunked: bool,
    room: bool,
) -> None:
    """On other ranks, in other chunks, or in memory."""
    folder = shared_memory if room else None
    monkeypatch.setattr("meshrun.runner.steps.streamed_steps.memory_folder", lambda needed: folder)
    FAILING[0] = True

    @meshrun.map_blocks(halo=1, outputs=("after", "old", "slope"), feeds=("now", "before", None))
    def fragile(now: Any, before: Any, stays: Any) -> Any:
        if FAILING[0] and now.max() > 2**40:
            raise ValueError("as if the power went")
        inner = (slice(1, -1), slice(1, -1))
        return now[inner] * 3 + before[:-2, 1:-1] + stays[inner], now[inner], now[2:, 1:-1]

    arrays = [np.arange(1, 241).reshape(40, 6), np.ones((40, 6), int), np.full((40, 6), 5)]
    options: dict[str, Any] = {"stream": in_chunks(20, 8, 24), "checkpoint": interval("4")}
    with pytest.raises(ValueError, match="power"):
        stepped(tmp_path, fragile, arrays, 30, ranks=first, **options)
    folder = tmp_path / "out0.npy.checkpoint"
    kept = sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())
    assert len(kept) == 2
    assert [step % 4 for step in kept] == [0, 0]
    assert {path.name for path in folder.glob("*/*.npy")} == {"now.npy", "before.npy"}
    assert not list(shared_memory.iterdir())
    with pytest.raises(meshrun.UserError, match="left checkpoints, the last after step"):
        stepped(tmp_path, fragile, arrays, 30, ranks=second, **options)
    FAILING[0] = False
    options["stream"] = replace(in_chunks(12, 8, 24) if chunked else StreamOptions(), resume=True)
    found, record = stepped(tmp_path, fragile, arrays, 30, ranks=second, verify="full", **options)
    assert record["steps"]["first"] == kept[-1]
    assert (record["steps"]["passes"] is not None) == chunked
    assert record["steps"]["checkpoints"] == (29 - kept[-1]) // 4
    assert not folder.exists()
    expected = plain_loop(fragile.function, arrays, 30, ((1, 1), (1, 1)), "reflect", (0, 1, None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_checkpoints_of_a_run_in_chunks_by_the_clock(tmp_path: Path, shared_memory: Path) -> None:
    start = np.random.default_rng(0).integers(0, 9, (40, 6))
    job = meshrun.map_blocks(halo=1)(lambda block: block[:-2, 1:-1] + block[1:-1, 2:])
    found, record = stepped(
        tmp_path, job, [start], 50, ranks=2, stream=in_chunks(14, 8, 8), checkpoint=interval("0.000001s")
    )
    assert record["steps"]["checkpoints"] == record["steps"]["passes"] - 1 > 1
    np.testing.assert_array_equal(
        found[0], plain_loop(job.function, [start], 50, ((1, 1), (1, 1)), "reflect", (0,))[0]
    )


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize(("ranks", "every", "limit"), [(1, None, 400), (3, 7, 10**12), (2, None, 25)])
def test_until_stops_a_run_in_chunks_at_the_same_step(
    tmp_path: Path, shared_memory: Path, ranks: int, every: int | None, limit: int, devices: bool
) -> None:
    @meshrun.map_blocks(halo=1, boundary="constant", feeds=("field", None), outputs=("field", "slope"))
    def relaxed(field: Any) -> Any:
        result = relax.function(field), field[2:, 1:-1] - field[:-2, 1:-1]
        field[...] = 9e9  # the function's
        return result

    start = np.random.default_rng(0).random((40, 8))
    expected, whole = stepped(tmp_path, relaxed, [start], limit, ranks=ranks, until=1e-3, every=every)
    found, record = stepped(
        tmp_path, relaxed, [start], limit, ranks=ranks, until=1e-3, every=every, devices=devices,
        stream=in_chunks(24, 10, 8), verify="off" if devices else "full",
    )  # fmt: skip
    assert record["stream"]["chunks"] > 1
    assert record["steps"]["steps"] == whole["steps"]["steps"]
    assert record["steps"]["until"] == whole["steps"]["until"]
    assert record["steps"]["until"]["reached"] == (limit > 25)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not list(shared_memory.iterdir())


def test_an_output_with_an_unfinished_streamed_run_is_refused(tmp_path: Path) -> None:
    fails = failing_after(8)
    np.save(tmp_path / "in0.npy", np.zeros((90, 4)))
    files = (tmp_path / "in0.npy", tmp_path / "out0.npy")
    with pytest.raises(ValueError, match="stop"):
        run(fails, *files, {}, Options(device="cpu", stream=StreamOptions(chunk_bytes=320)))
    with pytest.raises(meshrun.UserError, match=r"an earlier run of .*out0\.npy is unfinished"):
        stepped(tmp_path, fails, [np.zeros((90, 4))], 3)


def failing_after(count: int) -> Any:
    """A job whose function fails after so many calls."""
    calls: list[int] = []

    @meshrun.map_blocks(split_dependent=True)
    def fails(block: Any) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise ValueError("stop")
        return block + 1

    return fails


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 100}])
def test_a_job_without_the_named_rule_says_what_to_type(tmp_path: Path, options: dict[str, Any]) -> None:
    @meshrun.map_blocks
    def still(block: Any) -> Any:
        return block

    np.save(tmp_path / "a.npy", np.ones((9, 9)))
    with pytest.raises(UserError, match=r"until.*does not apply: job still has no such rule.*Try: until"):
        still.run(tmp_path / "a.npy", tmp_path / "b.npy", steps=20, until="steady", device="cpu", **options)
    assert not (tmp_path / "b.npy").exists()
