"""How many steps one kernel takes, and how many lie between two exchanges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy_kernel import NumpyKernel

import meshrun
from meshrun.runner.compiler.traced import reads_of, traced
from meshrun.runner.plan.steps import halo_bytes
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.steps.steps_per_kernel import StepCounts, choose_steps


def relax(block: Any) -> Any:
    return block[:-2, 1:-1] + block[2:, 1:-1]


def task_of(
    most: int | None, ranks: int = 1, rows: int = 40, boundary: str = "reflect", grid: str | None = None
) -> Task:
    """Return a task of `relax`; most: steps of its kernel, None for a task without one."""
    job = meshrun.map_blocks(halo=1, boundary=boundary)(relax)
    kind = np.dtype(np.float32)
    task = plan_task(job, {}, [((rows, 30), kind)], ranks, grid=grid)
    if most is None:
        return task.with_results([((30,), kind)])
    program = traced(task)
    kernel = NumpyKernel(program, task.widths, (0,), boundary, 0.0, most)
    return replace(task, results=(((rows, 30), kind),), kernel=kernel)


@pytest.mark.parametrize(
    ("task", "asked", "limits", "expected"),
    [
        (task_of(None), 0, {}, StepCounts(1, 1)),
        (task_of(None), 5, {}, StepCounts(1, 1)),  # nothing is exchanged
        (task_of(None, 2), 5, {}, StepCounts(1, 5)),
        (task_of(3), 0, {}, StepCounts(3, 3)),
        (task_of(3), 2, {}, StepCounts(3, 2)),
        (task_of(3), 9, {}, StepCounts(3, 3, "one kernel takes 3 steps")),
        (task_of(3, 2), 9, {}, StepCounts(3, 9)),
        (task_of(3, 2), 9, {"one_copy": True}, StepCounts(3, 3, "one kernel takes 3 steps")),
        (task_of(3, 2, grid="1x2"), 9, {}, StepCounts(3, 3, "one kernel takes 3 steps")),
        (task_of(3, 2), 25, {}, StepCounts(3, 20, "the halo of 25 steps is wider than the smallest block")),
        (
            task_of(3, 2, 40, "wrap"),
            15,
            {},
            StepCounts(3, 12, "the halo of 15 steps reaches around the array"),
        ),
        (task_of(3, 2), 0, {}, StepCounts(3, 3)),
        (task_of(3, 2), 0, {"on_device": True}, StepCounts(3, 3)),  # several kernels only if asked
        (task_of(3, 2), 6, {"on_device": True}, StepCounts(3, 6)),
        (task_of(3, 2, 12), 0, {"on_device": True}, StepCounts(3, 3)),
        (task_of(3), 0, {"on_device": True}, StepCounts(3, 3)),
        (task_of(3, 2, 40, grid="1x2"), 0, {"on_device": True}, StepCounts(3, 3)),
        (task_of(3, 4, 8), 0, {}, StepCounts(3, 2)),  # two rows a rank
        (task_of(3, 4, 8), 3, {}, StepCounts(3, 2, "the halo of 3 steps is wider than the smallest block")),
        (task_of(3, 4, 8, "mirror"), 0, {}, StepCounts(3, 1)),
        (task_of(3, 2), 0, {"one_by_one": True}, StepCounts(1, 1)),
        (task_of(3, 2), 0, {"one_copy": True}, StepCounts(3, 3)),
        (task_of(3, 2, grid="1x2"), 0, {"one_copy": True}, StepCounts(1, 1)),  # bands are not cut
        (task_of(1, 2), 0, {"on_device": True}, StepCounts(1, 8)),  # a small block: exchanges take longer
        (task_of(1, 2), 0, {"on_device": True, "one_copy": True}, StepCounts(1, 1)),
        (task_of(1, 2), 0, {}, StepCounts(1, 1)),
    ],
)
def test_steps_are_grouped(task: Task, asked: int, limits: dict[str, bool], expected: StepCounts) -> None:
    found = choose_steps(task, asked, **limits)
    assert found == expected
    assert found.at_once == min(expected.per_kernel, expected.per_exchange)


def test_a_function_that_takes_its_place_takes_single_steps_in_one_copy() -> None:
    @meshrun.map_blocks(halo=1)
    def placed(block: Any, *, here: Any) -> Any:
        return block[1:-1, 1:-1] + here.offset[0]

    kind = np.dtype(np.float32)
    task = plan_task(placed, {}, [((40, 30), kind)], 2).with_results([((30,), kind)])
    assert choose_steps(task, 4) == StepCounts(1, 4)
    assert choose_steps(task, 4, one_copy=True).lowered.startswith("a function with `here`")


@pytest.mark.parametrize(("side", "between"), [(64, 2), (128, 1), (512, 1)])
def test_larger_volumes_exchange_before_each_step(side: int, between: int) -> None:
    """Layers that are computed twice cost more than exchanges save."""

    @meshrun.map_blocks(halo=4, boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
    def wave(now: Any, before: Any, speed: Any) -> Any:
        own = now[4:-4, 4:-4, 4:-4]
        far = now[8:, 4:-4, 4:-4] + now[:-8, 4:-4, 4:-4]
        return own + far * speed[4:-4, 4:-4, 4:-4] - before[4:-4, 4:-4, 4:-4], own

    known = ((side,) * 3, np.dtype(np.float32))
    task = plan_task(wave, {}, [known] * 3, 2)
    reads = reads_of(task, traced(task))
    task = replace(task, results=(known,) * 2, kernel=task_of(1).kernel, reads=reads)
    assert choose_steps(task, on_device=True) == StepCounts(1, between)


@pytest.mark.parametrize("side", [96, 256])
def test_a_field_that_is_handed_on_is_not_exchanged_for_two_steps(side: int) -> None:
    """These are taken only if asked for: two exchanges cost less than the layers that are computed twice."""

    @meshrun.map_blocks(halo=4, boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
    def wave(now: Any, before: Any, speed: Any) -> Any:
        own = now[4:-4, 4:-4, 4:-4]
        far = now[8:, 4:-4, 4:-4] + now[:-8, 4:-4, 4:-4]
        return own + far * speed[4:-4, 4:-4, 4:-4] - before[4:-4, 4:-4, 4:-4], own

    known = ((side,) * 3, np.dtype(np.float32))
    task = plan_task(wave, {}, [known] * 3, 2)
    program = traced(task)
    kernel = NumpyKernel(program, task.widths, task.feed_numbers, "wrap", 0.0, 1)
    task = replace(task, results=(known,) * 2, kernel=kernel, reads=reads_of(task, program))
    for asked, between in ((0, 1), (2, 2)):
        found = choose_steps(task, asked, on_device=True)
        assert found.per_exchange == between
        assert found.handed_on == {1: 0}


def test_steps_between_exchanges_receive_more_of_a_field_that_one_step_reads_at_its_own_cells() -> None:
    @meshrun.map_blocks(halo=1, boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
    def wave(now: Any, before: Any) -> Any:
        return now[:-2, 1:-1] + now[2:, 1:-1] - before[1:-1, 1:-1], now[1:-1, 1:-1]

    known = ((40, 30), np.dtype(np.float32))
    task = plan_task(wave, {}, [known] * 2, 2)
    task = replace(task, results=(known,) * 2, reads=reads_of(task, traced(task)))
    row = 30 * 4
    region = task.partition[0]
    assert [halo_bytes(task, region, steps) for steps in (1, 2, 3)] == [2 * row, (4 + 2) * row, (6 + 4) * row]


def test_long_layers_cost_more_than_the_exchanges_that_they_save() -> None:
    job = meshrun.map_blocks(halo=1)(relax)
    kind = np.dtype(np.float32)
    wide = plan_task(job, {}, [((40, 10**8), kind)], 2, grid="2")
    wide = replace(wide, results=(((40, 10**8), kind),), kernel=task_of(1).kernel)
    assert choose_steps(wide, on_device=True) == StepCounts(1, 1)
