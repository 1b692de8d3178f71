"""How many steps a kernel takes: predicted, or the fastest of a few, kept for the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import LATTICES
from meshrun.jobs.airflow.step import step_job
from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import MOST_STEPS, Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import (
    MEASURED,
    WORTH_MEASURING,
    candidates,
    choices,
    chosen,
    kept_form,
    seconds_per_cell,
)
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.device.api import Device
from meshrun.runner.system import cached_files

SHAPE = (3000, 7000)
FEEDS: tuple[int | None, ...] = (0,)
LONG = 10**13  # steps


def heat(u: Any) -> Any:
    centre = u[1:-1, 1:-1]
    return centre + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * centre)


def program(function: Callable[..., Any] = heat, axes: int = 2, trailing: tuple[int, ...] = ()) -> Program:
    inputs = [Operand("u", np.dtype("f4"), trailing)]
    return trace(function, inputs, ((1, 1),) * axes, {}, frozenset(), ["after"])


def choose(
    folder: Path | None, steps: int = LONG, shape: Any = SHAPE, words: Sequence[str] = ("GPU",)
) -> Any:
    found = chosen(program(), FEEDS, shape, steps, words, folder)
    assert found is not None
    return found


def test_a_long_run_measures_the_best_as_predicted(tmp_path: Path) -> None:
    found = choose(tmp_path)
    assert found.source == "predicted"
    assert found.rivals == tuple(candidates(program(), FEEDS, SHAPE))
    assert found.choice == found.rivals[0] == choices(program(), FEEDS, SHAPE)[0]
    assert not found.unreadable
    assert list(tmp_path.iterdir()) == []


def test_a_short_run_measures_nothing(tmp_path: Path) -> None:
    seconds = choose(tmp_path).seconds
    steps = WORTH_MEASURING / seconds
    assert choose(tmp_path, int(1.01 * steps)).rivals
    short = choose(tmp_path, int(0.99 * steps))
    assert (short.source, short.rivals) == ("predicted", ())


def test_kernels_that_a_host_launches_as_slowly_are_not_measured(tmp_path: Path) -> None:
    assert not choose(tmp_path, shape=(300, 512)).rivals


def test_a_kept_choice_is_taken_for_the_same_device_function_and_size(tmp_path: Path) -> None:
    third = choose(tmp_path).rivals[2]
    cached_files.write(choose(tmp_path).file, kept_form(third))
    for steps, shape in ((LONG, SHAPE), (2, SHAPE), (LONG, (2500, 5000))):
        found = choose(tmp_path, steps, shape)
        assert (found.choice, found.source, found.rivals) == (third, "kept", ())
    for shape, words in (((6000, 7000), ["GPU"]), (SHAPE, ["other"])):
        assert choose(tmp_path, LONG, shape, words).source == "predicted"


@pytest.mark.parametrize(
    "damage", ["truncated", "another choice", "{}", "[3]", '{"steps": 3, "tuning": {"a": 1}}', "\0"]
)
def test_a_file_that_keeps_no_choice_is_ignored(tmp_path: Path, damage: str) -> None:
    first = choose(tmp_path)
    cached_files.write(first.file, kept_form(replace(first.choice, steps=99)))
    if damage == "truncated":
        first.file.write_bytes(first.file.read_bytes()[:-1])
    elif damage != "another choice":
        cached_files.write(first.file, damage.encode())
    found = choose(tmp_path)
    assert found == replace(first, unreadable=True)
    assert choose(tmp_path, 2).unreadable


def test_nothing_is_measured_where_nothing_can_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (None, file):
        found = choose(folder)
        assert (found.source, found.rivals, found.file) == ("predicted", (), None)


def test_candidates_differ_in_steps_and_tile() -> None:
    """Tilings that are predicted to be alike leave room for other numbers of steps."""
    cube = program(lambda u: u[1:-1, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, :-2, 2:], 3)
    for one, shape in ((cube, (700, 700, 700)), (program(), SHAPE)):
        found = candidates(one, FEEDS, shape)
        assert 3 <= len(found) <= MEASURED
        assert len(set(found)) == len(found)
        assert len({choice.steps for choice in found}) > 1
        assert found[0] == choices(one, FEEDS, shape)[0]
        for choice in found:
            assert build(one, FEEDS, "wrap", 0, choice.steps, choice.tuning).steps == choice.steps


def test_a_volume_whose_cells_read_no_others_takes_as_many_steps_as_others_may() -> None:
    """No margin and no register limits them."""
    (found,) = choices(program(lambda u: u[1:-1, 1:-1, 1:-1] * 0.5 + 1, 3), FEEDS)
    assert found.steps == MOST_STEPS


def test_a_star_of_radius_2_in_a_volume_takes_two_steps_by_another_tile() -> None:
    """Two steps took 0.78 ms where single ones took 1.21, over 768^3 cells of an H200."""

    def along(u: Any, axis: int, at: int) -> Any:
        place = [slice(2, -2)] * 3
        place[axis] = slice(2 + at, u.shape[axis] - 2 + at)
        return u[tuple(place)]

    def star(u: Any) -> Any:
        total = u[2:-2, 2:-2, 2:-2] * 0.4
        for axis in range(3):
            for at, weight in ((1, 0.08), (2, 0.02)):
                total = total + weight * (along(u, axis, -at) + along(u, axis, at))
        return total

    points = trace(star, [Operand("u", np.dtype("f4"))], ((2, 2),) * 3, {}, frozenset(), ["after"])
    (found,) = choices(points, FEEDS)
    assert found == Choice(2, Tuning(columns=2, lane_rows=6, warps=12, vectors=True))
    assert build(points, FEEDS, "wrap", 0, 2, found.tuning).registers <= 65536 / (32 * found.tuning.warps)


def test_choices_can_be_built_and_the_first_is_predicted_best() -> None:
    found = choices(program(), FEEDS)
    assert len(set(found)) == len(found) > 4
    times = [seconds_per_cell(program(), FEEDS, one) for one in found]
    assert times == sorted(times)
    for one in found:
        registers = build(program(), FEEDS, "wrap", 0, one.steps, one.tuning).registers
        assert registers <= 1.05 * 65536 / (128 * one.tuning.blocks)


def test_cells_of_a_smaller_array_take_longer() -> None:
    """Rows that two strips compute, and tiles at its ends in the slow loop, are a larger part of it."""
    large = choices(program(), FEEDS)[0]
    cells = [(16384, 16384), (2048, 2048), (64, 64)]
    times = [seconds_per_cell(program(), FEEDS, large, one) for one in cells]
    assert seconds_per_cell(program(), FEEDS, large) < times[0] < times[1] < times[2]
    assert times[1] < seconds_per_cell(program(), FEEDS, large, (2048, 2047))  # a lane's columns at both ends


def test_no_choice_where_no_kernel_takes_several_steps(tmp_path: Path) -> None:
    assert choices(program(), (None,)) == []
    assert chosen(program(), (None,), SHAPE, LONG, ["GPU"], tmp_path) is None


def test_choices_along_one_axis(tmp_path: Path) -> None:
    line = program(lambda u: u[1:-1] + 0.25 * (u[:-2] - u[2:]), 1)
    found = chosen(line, FEEDS, (1 << 29,), LONG, ["GPU"], tmp_path)
    assert found is not None
    assert found.rivals


def test_what_a_kernel_is_kept_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU, driver, arithmetic, function, boundary or grid has a file of its own.

    The kernel by whose text choices are kept reads no vectors, which would mix components.
    """
    monkeypatch.setattr("meshrun.runner.compiler.device_kernel.cache_folder", lambda: tmp_path)
    device, widths = Device("cuda", "GPU A", software="driver 1"), ((1, 1),) * 2
    kernel = DeviceKernel(program(), widths, feeds=FEEDS)
    cases = [
        (kernel, device, (1, 1)),
        (kernel, device, (2, 1)),
        (kernel, replace(device, name="GPU B"), (1, 1)),
        (kernel, replace(device, software="driver 2"), (1, 1)),
        (replace(kernel, arithmetic="fast"), device, (1, 1)),
        (replace(kernel, boundary="wrap"), device, (1, 1)),
        (DeviceKernel(program(lambda u: heat(u) * 2), widths, feeds=FEEDS), device, (1, 1)),
        (DeviceKernel(program(trailing=(3,)), widths, feeds=FEEDS), device, (1, 1)),
    ]
    files = []
    for one, where, grid in cases:
        found = one.choose(where, SHAPE, LONG, grid)
        assert found is not None
        files.append(found.file)
    assert len({*files}) == len(files)


def test_a_division_takes_longer_than_a_product() -> None:
    """Above all in lanes of many columns, which leave room for few warps."""

    def divided(u: Any) -> Any:
        return heat(u) / (u[1:-1, 1:-1] + 2)

    def multiplied(u: Any) -> Any:
        return heat(u) * (u[1:-1, 1:-1] + 2)

    longer = {}
    for columns in (2, 4):
        choice = Choice(2, replace(choices(program(), FEEDS)[0].tuning, columns=columns, blocks=4))
        one, other = (seconds_per_cell(program(each), FEEDS, choice) for each in (divided, multiplied))
        longer[columns] = one - other
    assert 0 < longer[2] < longer[4]


def test_several_steps_are_chosen_only_where_single_ones_take_longer() -> None:
    """Airflow in float16 is limited by its instructions in kernels of several steps."""
    for shape in (None, (8192, 8192), (16384, 16384)):
        found = {storage: choices(*airflow(storage), shape) for storage in ("float32", "float16")}
        assert found["float32"][0].steps == 4
        assert found["float16"] == []


def airflow(storage: str) -> tuple[Program, list[int]]:
    lattice = LATTICES["D2Q9"]
    job = step_job(
        lattice,
        [kind for kind in Cell if kind not in (Cell.SLIP_Z, Cell.SLIP_Z_END)],
        "trt",
        storage,
        damping="factors",
    )
    inputs = [Operand(name, np.dtype("u1" if name == "cells" else storage)) for name in job.arrays]
    parameters = job.complete({"omega": 1.9, "omega_minus": 1.1, "velocity_x": 0.1, "anchor": 0.01})
    services, widths = frozenset(["xp"]), ((1, 1),) * 2
    return trace(job.function, inputs, widths, parameters, services, job.output_names), list(
        range(lattice.size)
    )
