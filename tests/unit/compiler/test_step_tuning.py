"""How many steps a kernel takes: predicted, or the fastest of a few, kept for the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import LATTICES
from meshrun.jobs.airflow.step import step_job
from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import Axis
from meshrun.runner.compiler.cuda.steps.tuning import (
    WORTH_MEASURING,
    Choice,
    choices,
    chosen,
    seconds_per_cell,
)
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.system.compiler import NotCompiled

SHAPE = (3000, 7000)
FEEDS: tuple[int | None, ...] = (0,)
LONG = 10**13  # steps


def heat(u: Any) -> Any:
    centre = u[1:-1, 1:-1]
    return centre + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * centre)


def program(function: Callable[..., Any] = heat, axes: int = 2, trailing: tuple[int, ...] = ()) -> Program:
    inputs = [Operand("u", np.dtype("f4"), trailing)]
    return trace(function, inputs, ((1, 1),) * axes, {}, frozenset(), ["after"])


@dataclass
class Clock:
    """A device on which each choice takes so long; what was taken."""

    seconds: Callable[[Choice], float]
    name: str = "GPU A"
    host: float = 0.0  # seconds in which arguments are prepared
    now: float = 0.0
    taken: list[Choice] = field(default_factory=list)
    shapes: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.device = SimpleNamespace(name=self.name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.full(shape, 7, dtype)

    def mark(self) -> float:
        return self.now

    def elapsed(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None: ...

    def free_memory(self) -> int:
        return 1 << 21

    def binder(self, choice: Choice) -> Any:
        def bind(inputs: Sequence[Any], outs: Sequence[Any], axes: Sequence[Axis]) -> Callable[[], None]:
            assert all((one == 1).all() and one.strides[0] % 128 == 0 for one in (*inputs, *outs))
            assert [one.own for one in axes] == list(inputs[0].shape)
            self.shapes.add(inputs[0].shape)
            self.now += self.host
            return take

        def take() -> None:
            self.now += self.seconds(choice) * choice.steps
            self.taken.append(choice)

        return bind


def choose(clock: Any, folder: Path | None, steps: int = LONG, shape: Any = SHAPE, text: str = "") -> Any:
    return chosen(program(), FEEDS, shape, steps, text, clock, clock.binder, folder)


def third(clock: Clock) -> Choice:
    wanted = choices(program(), FEEDS, SHAPE)[2]
    clock.seconds = lambda one: 1.0 if one == wanted else 2.0
    return wanted


@pytest.fixture
def clock() -> Clock:
    return Clock(lambda one: 1.0)


def test_the_fastest_is_kept_for_the_next_run(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    wanted = third(clock)
    assert choose(clock, folder) == wanted
    count = len(clock.taken)
    assert count > 4
    assert clock.shapes == {(2**19 // 4 // 2 // SHAPE[1], SHAPE[1])}  # a quarter of the memory that is free
    for steps, shape in ((LONG, SHAPE), (2, SHAPE), (LONG, (2500, 5000))):
        assert choose(clock, folder, steps, shape) == wanted
    assert len(clock.taken) == count
    for shape, text in (((6000, 7000), ""), (SHAPE, "other")):
        choose(clock, folder, LONG, shape, text)
        assert len(clock.taken) > count
        count = len(clock.taken)
    another = Clock(clock.seconds, "GPU B")
    choose(another, folder)
    assert another.taken


def test_what_the_host_prepares_does_not_count(clock: Clock, tmp_path: Path) -> None:
    """It takes longer than the steps of a small block, so that kernels of most steps would seem best."""
    wanted, clock.host = third(clock), 1e9
    assert choose(clock, tmp_path) == wanted


def test_short_runs_take_the_predicted_choice(clock: Clock, tmp_path: Path) -> None:
    third(clock)
    best = choices(program(), FEEDS, SHAPE)[0]
    seconds = seconds_per_cell(program(), FEEDS, best, SHAPE) * SHAPE[0] * SHAPE[1]
    assert choose(clock, tmp_path, int(0.99 * WORTH_MEASURING / seconds)) == best
    assert not clock.taken
    assert list(tmp_path.iterdir()) == []
    choose(clock, tmp_path, int(1.01 * WORTH_MEASURING / seconds))
    assert clock.taken


def test_a_cache_that_cannot_be_used_is_no_error(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = third(clock)
    file = tmp_path / "file"
    file.write_text("")
    assert choose(clock, None) == choose(clock, file) == wanted

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("meshrun.runner.system.cached_files.write", full)
    assert choose(clock, tmp_path / "full") == wanted


def test_a_choice_that_does_not_compile_is_left_out(clock: Clock, tmp_path: Path) -> None:
    possible = choices(program(), FEEDS, SHAPE)
    clock.seconds = lambda one: 1.0 if one in possible[:2] else 2.0

    def binder(choice: Choice) -> Any:
        def fail(*_: Any) -> None:
            raise NotCompiled("ptxas: too complex")

        return fail if choice == possible[0] else clock.binder(choice)

    device: Any = clock
    assert chosen(program(), FEEDS, SHAPE, LONG, "", device, binder, tmp_path) == possible[1]


def test_what_cannot_be_read_is_measured_again(clock: Clock, tmp_path: Path) -> None:
    wanted = third(clock)
    choose(clock, tmp_path)
    (kept,) = tmp_path.iterdir()
    count = len(clock.taken)
    kept.write_bytes(kept.read_bytes()[:-1])
    assert choose(clock, tmp_path) == wanted
    assert len(clock.taken) == 2 * count


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


def test_no_choice_where_no_kernel_takes_several_steps(clock: Any, tmp_path: Path) -> None:
    assert choices(program(), (None,)) == []
    assert chosen(program(), (None,), SHAPE, LONG, "", clock, clock.binder, tmp_path) is None


def test_over_three_axes_there_is_one_choice_which_nobody_measures(clock: Any, tmp_path: Path) -> None:
    cube = program(lambda u: u[1:-1, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1], 3)
    (only,) = choices(cube, FEEDS)
    assert only.steps > 1
    for shape in ((2, 3, 5), (4096, 4096, 4096)):
        assert chosen(cube, FEEDS, shape, LONG, "", clock, clock.binder, tmp_path) == only
    assert clock.taken == []


def test_one_axis_and_components(clock: Any, tmp_path: Path) -> None:
    line = program(lambda u: u[1:-1] + 0.25 * (u[:-2] - u[2:]), 1)
    assert choices(line, FEEDS)
    assert chosen(line, FEEDS, (1000,), LONG, "", clock, lambda one: lambda *_: lambda: None, tmp_path)
    pair = program(lambda u: u[1:-1, 1:-1] - u[:-2, 1:-1], trailing=(2,))
    seen = []

    def binder(_: Choice) -> Any:
        def bind(inputs: Any, outs: Any, axes: Any) -> Callable[[], None]:
            seen.append((inputs[0].strides, outs[0].shape[-1]))
            return lambda: None

        return bind

    chosen(pair, FEEDS, (9, 9), LONG, "", clock, binder, tmp_path)
    assert set(seen) == {((128, 8, 4), 2)}  # rows begin where a vector may; a row's cells lie together


def test_a_choice_for_cells_of_several_components_is_one_that_compiles(tmp_path: Path) -> None:
    """The kernel by whose text choices are kept reads no vectors, which would mix the components."""
    clock = Clock(lambda _: 1.0)
    for trailing in ((), (3,)):
        kernel = DeviceKernel(program(trailing=trailing), ((1, 1),) * 2, feeds=FEEDS)
        assert kernel.measured(clock, SHAPE, 10) == choices(kernel.program, FEEDS, SHAPE)[0]  # type: ignore[arg-type]


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
