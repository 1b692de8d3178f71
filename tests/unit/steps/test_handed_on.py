"""Leapfrog schemes: a field that is in the next step what another is now is not copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from numpy_kernel import NumpyKernel
from queued_device import QueuedBackend
from step_runs import plain_loop, stepped

import meshrun
from meshrun.runner.compiler.compiled import compile_points
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.traced import traced
from meshrun.runner.compiler.whole.point_kernel import PointKernel
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.steps import halo_path, steps_per_kernel
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import single_rank_world

WIDTHS = ((2, 1), (1, 2), (1, 1))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("halo"))


def wave(now: Any, before: Any, speed: Any) -> Any:
    """Read the field now at some offsets, what it was at the own cell."""
    own = now[2:-1, 1:-2, 1:-1]
    around = 3 * now[:-3, 1:-2, 1:-1] + 5 * now[3:, 3:, 2:] + 7 * now[2:-1, 3:, :-2]
    return around * speed[2:-1, 1:-2, 1:-1] + 2 * own - before[2:-1, 1:-2, 1:-1], own


def reads_beside(now: Any, before: Any, speed: Any) -> Any:
    """Read what the field was beside the own cell: it may not be overwritten."""
    return wave(now, before, speed)[0] + before[3:, 1:-2, 1:-1], now[2:-1, 1:-2, 1:-1]


def reads_twice(now: Any, before: Any, speed: Any) -> Any:
    """Another result needs what the field was."""
    return *wave(now, before, speed), speed[2:-1, 1:-2, 1:-1] ^ before[2:-1, 1:-2, 1:-1]


def shifted(now: Any, before: Any, speed: Any) -> Any:
    """What is kept is not the own cell."""
    return wave(now, before, speed)[0], now[3:, 1:-2, 1:-1]


def in_turn(now: Any, before: Any, speed: Any) -> Any:
    """Three fields in turn: the middle one is handed on, and one takes its place."""
    own = now[2:-1, 1:-2, 1:-1]
    return wave(now, before, speed)[0], own, before[2:-1, 1:-2, 1:-1]


def other_order(now: Any, before: Any, speed: Any) -> Any:
    """The results as `wave`'s, the second one first."""
    return wave(now, before, speed)[::-1]


def stays(now: Any, before: Any, speed: Any) -> Any:
    """What the field was stays as it is."""
    return wave(now, before, speed)[0], before[2:-1, 1:-2, 1:-1]


CASES: dict[str, tuple[Any, list[int | None], dict[int, int]]] = {
    "wave": (wave, [0, 1], {1: 0}),
    "other order": (other_order, [1, 0], {1: 0}),
    "beside": (reads_beside, [0, 1], {}),
    "twice": (reads_twice, [0, 1, 2], {}),
    "shifted": (shifted, [0, 1], {}),
    "in turn": (in_turn, [0, 1, 2], {}),
    "stays": (stays, [0, 1], {}),
    "final": (wave, [0, None], {}),
}


def run(
    folder: Path, patch: pytest.MonkeyPatch, name: str, boundary: str, steps: int = 7, **options: Any
) -> tuple[bool, list[NumpyKernel]]:
    """Return whether the results are those of a plain loop, and the kernels."""
    function, feeds, _ = CASES[name]
    kernels: list[NumpyKernel] = []

    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        kernels.append(NumpyKernel(program, widths, feeds, boundary, cval, 1, row=row))
        return kernels[-1], "NumPy"

    patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    names = ("now", "before", "speed")
    fed = [None if feed is None else names[feed] for feed in feeds]
    job = meshrun.map_blocks(halo=WIDTHS, boundary=boundary, cval=9, outputs=len(feeds), feeds=fed)(function)
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 2**32, (17, 7, 6), np.uint32) for _ in range(3)]
    expected = plain_loop(function, arrays, steps, WIDTHS, boundary, feeds, 9)
    results, _ = stepped(folder, job, arrays, steps, fuse="require", **options)
    return all(map(np.array_equal, results, expected)), kernels


@pytest.mark.parametrize("name", CASES)
def test_which_fields_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    same, kernels = run(tmp_path, monkeypatch, name, "wrap", devices=True)
    assert same
    assert kernels[0].handed_on == CASES[name][2]
    less = kernels[0].without_handed_on()
    assert len(less.program.outputs) == len(CASES[name][1]) - len(CASES[name][2])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("ranks", "halo"), [(1, "auto"), (2, "direct"), (3, "direct"), (2, "nccl"), (3, "nccl")]
)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_field_that_is_handed_on_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path, boundary: str, ranks: int, halo: Any,
    overlap: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    monkeypatch.setattr(
        halo_path,
        "find_peers",
        lambda world, choice, ndim: "--halo nccl" if choice == "nccl" else HostPeers(world.control),
    )
    written: list[int] = []
    bind = NumpyKernel.bind

    def noted(kernel: Any, blocks: Any, outs: Any, *arguments: Any) -> Any:
        written.append(len(outs))
        return bind(kernel, blocks, outs, *arguments)

    monkeypatch.setattr(NumpyKernel, "bind", noted)
    options: dict[str, Any] = {"devices": True} if ranks == 1 else {"halo": halo, "overlap": overlap}
    same, _ = run(tmp_path, monkeypatch, "wave", boundary, ranks=ranks, **options)
    assert same
    assert set(written) == {1}


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("options", [{"grid": "3"}, {"grid": "2x1x2", "until": -1.0, "every": 3}])
def test_two_steps_between_exchanges_hand_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, options: dict[str, Any]
) -> None:
    """Its halo is not exchanged: it has been computed as far as the first of two steps reads it."""
    chosen: list[Any] = []
    choose = steps_per_kernel.choose_steps
    patched = "meshrun.runner.steps.stepper.choose_steps"
    monkeypatch.setattr(patched, lambda *a, **b: chosen.append(choose(*a, **b)) or chosen[-1])
    ranks = 3 if options["grid"] == "3" else 4
    same, _ = run(
        tmp_path, monkeypatch, "wave", boundary, steps=9, ranks=ranks, steps_per_exchange=2, **options
    )
    assert same
    assert [(one.per_exchange, one.handed_on) for one in chosen] == [(2, {1: 0})] * ranks


def test_three_steps_between_exchanges_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its halo is exchanged then."""
    same, kernels = run(tmp_path, monkeypatch, "wave", "reflect", ranks=2, steps_per_exchange=3)
    assert same
    assert kernels[0].handed_on == {1: 0}


def test_a_checkpoint_has_both_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an odd number of steps, from which a run resumes."""
    advance = Stepper.advance

    def failing(stepper: Stepper, steps: int, **options: Any) -> None:
        if stepper.done == 3:
            raise ValueError("as if the power went")
        advance(stepper, steps, **options)

    often: dict[str, Any] = {"ranks": 2, "checkpoint": SaveInterval(steps=3)}
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", failing)
        with pytest.raises(ValueError, match="power"):
            run(tmp_path, monkeypatch, "wave", "mirror", **often)
    taken: list[int] = []

    def counted(stepper: Stepper, steps: int, **options: Any) -> None:
        taken.append(steps)
        advance(stepper, steps, **options)

    monkeypatch.setattr(Stepper, "advance", counted)
    same, _ = run(tmp_path, monkeypatch, "wave", "mirror", stream=StreamOptions(resume=True), **often)
    assert same
    assert sum(taken) == 4 * often["ranks"]


@meshrun.distribute(outputs=("next", "last"), feeds=("now", "before"), series=("trace", "speed", "was"))
def heard(now: Any, before: Any) -> Any:
    """A wave in a volume; rows are read of the results, of what was, and of both."""
    new = now.copy()
    new[1:-1, 1:-1, 1:-1] = now[2:, 1:-1, 1:-1] + now[:-2, 1:-1, 1:-1] - before[1:-1, 1:-1, 1:-1]
    at = np.array([3, 5]), np.array([2, 2]), np.array([1, 4])
    return new, now, new[at], (new - before)[at], before[at]


@pytest.mark.parametrize(("series", "handed_on"), [((0,), {1: 0}), ((1,), {}), ((2,), {}), ((0, 2), {})])
def test_what_a_series_reads_after_a_step_is_kept(series: tuple[int, ...], handed_on: dict[int, int]) -> None:
    known = ((9, 8, 7), np.dtype(np.float32))
    job = with_inferred_halo(heard, [known] * 2, {})
    task = plan_task(job, {}, [known] * 2, 1)
    program = traced(task)
    kernel = NumpyKernel(program, task.widths, task.feed_numbers, task.boundary, 0, 1)
    assert kernel.handed_on == {1: 0}
    rows = task.job.series_pass
    chosen = {
        name: tuple(getattr(rows, name)[number] for number in series)
        for name in ("same_as", "names", "types", "series", "cells")
    }
    job = replace(task.job, series_pass=replace(rows, **chosen))
    world = single_rank_world(QueuedBackend())
    stepper = Stepper(world, replace(task, job=job, kernel=kernel), Phases(world.backend.synchronize))
    assert stepper.handed_on == handed_on


YS, XS, ZS = np.array([0, 3, 8, 3]), np.array([0, 2, 6, 2]), np.array([5, 2, 0, 2])


def struck(now: Any, before: Any, *, kick: int = 7) -> Any:
    """Add to what the other cells have, once per point."""
    new = np.roll(now, 1, 0) + 3 * np.roll(now, -1, 1) - before
    new[YS, XS, ZS] += np.uint32(kick)
    return new, now


def struck_in_another_order(now: Any, before: Any, *, kick: int = 7) -> Any:
    """As `struck`, the field that is handed on first."""
    return struck(now, before, kick=kick)[::-1]


def struck_by_what_was(now: Any, before: Any) -> Any:
    """A point needs what was there, after the other cells are written."""
    new = np.roll(now, 1, 0) - before
    new[YS, XS, ZS] += before[YS, XS, ZS]
    return new, now


@pytest.mark.parametrize(
    ("function", "feeds", "handed_on"),
    [
        (struck, ("now", "before"), {1: 0}),
        (struck_in_another_order, ("before", "now"), {1: 0}),
        (struck_by_what_was, ("now", "before"), {}),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_points_are_written_over_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, feeds: Any, handed_on: Any, ranks: int
) -> None:
    taken: list[Any] = []

    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        return NumpyKernel(program, widths, feeds, boundary, cval, 1, row=row), "NumPy"

    may_be = steps_per_kernel._handed_on
    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    monkeypatch.setattr(
        PointKernel, "compile", lambda kernel: setattr(kernel, "code", compile_points(kernel.sets))
    )
    monkeypatch.setattr(steps_per_kernel, "_handed_on", lambda task: taken.append(may_be(task)) or taken[-1])
    fields = list(np.random.default_rng(5).integers(0, 2**32, (2, 9, 7, 6), np.uint32))
    job = meshrun.distribute(outputs=2, feeds=feeds)(function)
    results, _ = stepped(tmp_path, job, fields, 5, fuse="require", ranks=ranks)
    known = dict(zip(("now", "before"), fields, strict=True))
    for _ in range(5):
        wanted = function(known["now"].copy(), known["before"].copy())
        known = dict(zip(feeds, wanted, strict=True))
    for result, one in zip(results, wanted, strict=True):
        assert result.tobytes() == one.tobytes()
    assert taken == [handed_on] * ranks
