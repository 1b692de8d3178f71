"""Functions of several stages: the lines that compute one beyond an edge, and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler.lint.edge_stages import stage_lines
from meshrun.runner.maps.called_stages import called_stage_lines
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

PAGE = Path(__file__).parents[3] / "docs" / "steps.md"


def change(u: Any) -> Any:
    return 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2])


def heun(u: Any) -> Any:
    first = change(u)
    euler = u[1:-1] + first
    second = change(euler)
    return u[2:-2] + 0.5 * (first[1:-1] + second)


def upwind(u: Any) -> Any:
    euler = u[1:] - 0.3 * (u[1:] - u[:-1])
    return 0.5 * (u[2:] + euler[1:] - 0.3 * (euler[1:] - euler[:-1]))


def by_columns(u: Any) -> Any:
    euler = u[:, 1:-1] + change(u.T).T
    return 0.5 * (u[:, 2:-2] + euler[:, 1:-1] + change(euler.T).T)


def flux(u: Any) -> Any:
    flow = u[1:] - u[:-1]
    return u[1:-1] + 0.2 * (flow[1:] - flow[:-1])


def fourth_order(u: Any) -> Any:
    square = u**2
    return -square[4:] + 8 * square[3:-1] - 8 * square[1:-3] + square[:-4]


def separable(u: Any) -> Any:
    rows = u[:-4] + u[2:-2] + u[4:]
    return rows[:, :-4] + rows[:, 2:-2] + rows[:, 4:]


@pytest.mark.parametrize(
    ("function", "halo", "axes", "lines"),
    [
        (heun, 2, 1, [2, 3]),
        (upwind, ((2, 0),), 1, [1, 2]),
        (by_columns, (0, 2), 2, [1, 2]),
        (flux, 1, 1, []),
        (fourth_order, 2, 1, []),
        (separable, (2, 2), 2, []),
    ],
)
def test_the_lines_of_stages_beyond_an_edge(function: Any, halo: Any, axes: int, lines: list[int]) -> None:
    first = function.__code__.co_firstlineno
    for boundary in ("nearest", "constant"):
        task = planned(function, halo, boundary, axes)
        traced = stage_lines(task)
        assert traced is not None
        assert [line - first for line in traced] == lines
        # The cells of a small array say the same.
        assert called_stage_lines(task) == traced
    assert stage_lines(planned(function, halo, "wrap", axes)) == []


def planned(function: Any, halo: Any, boundary: str, axes: int = 1) -> Any:
    job = meshrun.map_blocks(halo=halo, boundary=boundary)(function)
    return plan_task(job, {}, [((40,) * axes, np.dtype("f8"))], 1)


def written(u: Any) -> Any:
    euler = u.copy()
    euler[1:-1] += change(u)
    return 0.5 * (u[2:-2] + euler[2:-2] + change(euler)[1:-1])


def made(u: Any) -> Any:
    euler = np.zeros(u.shape, dtype=u.dtype)
    np.add(u[1:-1], change(u), out=euler[1:-1])
    return 0.5 * (u[2:-2] + euler[2:-2] + change(euler)[1:-1])


def looped(u: Any) -> Any:
    euler, new = np.empty(len(u)), np.empty(len(u) - 4)
    for i in range(1, len(u) - 1):
        euler[i] = u[i] + 0.1 * (u[i - 1] - 2 * u[i] + u[i + 1])
    for i in range(2, len(u) - 2):
        new[i - 2] = np.maximum(euler[i - 1], euler[i + 1]) - 2 * euler[i]
    return new


def rolled(u: Any) -> Any:
    euler = u.copy()
    euler[:] = np.where(u > 0, u + np.roll(u, 1) + np.roll(u, -1), 0).astype(np.float32)
    return (euler + np.roll(euler, 1) + np.roll(euler, -1))[2:-2]


def mended(u: Any, here: Any) -> Any:
    euler = u[1:-1] + change(u)
    if here.offset[0] == 0:
        euler[0] = euler[1]
    if here.offset[0] + here.block[0] == here.shape[0]:
        euler[-1] = euler[-2]
    return 0.5 * (u[2:-2] + euler[1:-1] + change(euler))


def wide(u: Any) -> Any:
    new = np.empty(len(u) - 4)
    for i in range(2, len(u) - 2):
        new[i - 2] = u[i - 2] + u[i - 1] - 2 * u[i] + u[i + 1] + u[i + 2]
    return new


@pytest.mark.parametrize(
    ("function", "lines"),
    [(written, [2, 3]), (made, [2, 3]), (looped, [3, 5]), (rolled, [2, 3]), (mended, []), (wide, [])],
)
def test_functions_that_are_called_as_they_are(function: Any, lines: list[int]) -> None:
    task = planned(function, 2, "nearest")
    assert stage_lines(task) is None
    assert [line - function.__code__.co_firstlineno for line in called_stage_lines(task)] == lines
    assert called_stage_lines(planned(function, 2, "wrap")) == []


COUNTED = [0]


def counted(u: Any) -> Any:
    COUNTED[0] += 1
    return written(u)


def test_what_a_function_keeps_is_as_before() -> None:
    found = called_stage_lines(planned(counted, 2, "nearest"))
    assert found == [counted.__code__.co_firstlineno + 2]
    assert COUNTED == [0]


def stepped(job: Any, folder: Path, ranks: int, steps: int, each: int | None = None) -> dict[str, Any]:
    options = Options(steps=StepOptions(steps=steps, steps_per_exchange=each))

    def rank(control: Any) -> dict[str, Any]:
        world = open_world("cpu", control=control)
        return run(job, folder / "in.npy", folder / "out.npy", options=options, world=world)

    return run_ranks(ranks, rank)[0]


def test_a_run_of_steps_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random(30))
    record = stepped(meshrun.map_blocks(halo=2, boundary="nearest")(heun), tmp_path, 2, 3)
    lines = [heun.__code__.co_firstlineno + 2, heun.__code__.co_firstlineno + 3]
    assert record["stages"] == lines
    assert render(record).count(f"  lines {lines[0]} and {lines[1]} are stages of a step: ") == 1
    record = stepped(meshrun.map_blocks(halo=2, boundary="wrap")(heun), tmp_path, 2, 3)
    assert record["stages"] is None
    assert "stages" not in render(record)


def test_one_pass_of_a_called_function_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random(30))

    def rank(control: Any) -> dict[str, Any]:
        world = open_world("cpu", control=control)
        job = meshrun.map_blocks(halo=2, boundary="nearest")(written)
        return run(job, tmp_path / "in.npy", tmp_path / "out.npy", world=world)

    record = run_ranks(2, rank)[0]
    lines = [written.__code__.co_firstlineno + 2, written.__code__.co_firstlineno + 3]
    assert record["stages"] == lines
    assert f"  lines {lines[0]} and {lines[1]} are stages of a pass: " in render(record)


def test_what_the_page_says_is_the_scheme_with_the_boundary_at_each_stage(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# heun\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    start = np.random.default_rng(0).random(30)
    np.save(tmp_path / "in.npy", start)
    expected = start
    for _ in range(5):
        euler = expected + 0.2 * names["flow"](np.pad(expected, 1, "edge"))
        expected = 0.5 * (expected + euler + 0.2 * names["flow"](np.pad(euler, 1, "edge")))
    for ranks, each in ((1, None), (2, None), (3, 2)):
        stepped(names["heun"], tmp_path, ranks, 5, each)
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-14)


def test_stages_of_one_line(tmp_path: Path) -> None:
    def nested(u: Any) -> Any:
        return u[2:-2] + change(u[1:-1] + change(u))

    np.save(tmp_path / "in.npy", np.arange(30.0))
    record = stepped(meshrun.map_blocks(halo=2, boundary="nearest")(nested), tmp_path, 1, 1)
    (line,) = record["stages"]
    assert f"  line {line} has stages of a step: " in render(record)
