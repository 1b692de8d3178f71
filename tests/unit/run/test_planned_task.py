"""Runs and calls of a job in one process: what is found out about it once, and when it is found out anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run import prepare
from meshrun.runner.run.execute import Options, run

GAIN = 2.0
ARRAY = np.random.default_rng(1).random((9, 8))
PLAIN = Options(device="cpu", fuse="auto")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was found out: "plan" for each task, "split" for each comparison with parts of its array."""
    calls: list[str] = []
    plan_task, refuse_split = prepare.plan_task, prepare.refuse_split

    def plan(*given: Any, **named: Any) -> Any:
        calls.append("plan")
        return plan_task(*given, **named)

    def refuse(*given: Any) -> None:
        calls.append("split")
        refuse_split(*given)

    monkeypatch.setattr(prepare, "plan_task", plan)
    monkeypatch.setattr(prepare, "refuse_split", refuse)
    return calls


@meshrun.map_blocks(halo=(1, 1), boundary="nearest", feeds=("block",))
def scaled(block: Any, *, rate: float = 1.0) -> Any:
    return GAIN * rate * block[2:, 1:-1] + 0.5 * block[1:-1, :-2]


@meshrun.map_blocks
def counted(block: Any) -> Any:
    """A function that may read anything has no key."""
    return block + len(str(globals()["GAIN"]))


def result(
    folder: Path, job: Any = scaled, array: Any = ARRAY, options: Options = PLAIN, **given: Any
) -> Any:
    np.save(folder / "in.npy", array)
    run(job, folder / "in.npy", folder / "out.npy", given, options)
    return np.load(folder / "out.npy")


def wanted(rate: float = 1.0) -> Any:
    return scaled.function(np.pad(ARRAY, 1, "edge"), rate=rate)


def test_equal_runs_plan_and_compare_once(planned: list[str], tmp_path: Path) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(result(tmp_path), wanted())
    assert planned == ["plan", "split"]
    np.testing.assert_array_equal(result(tmp_path, rate=3.0), wanted(3.0))
    assert planned == ["plan", "split"] * 2
    result(tmp_path, array=2 * ARRAY)
    assert planned == ["plan", "split"] * 2


def test_a_call_and_a_run_share_what_they_find(planned: list[str], tmp_path: Path) -> None:
    np.testing.assert_array_equal(scaled(ARRAY), wanted())
    np.testing.assert_array_equal(result(tmp_path, options=Options(device="cpu")), wanted())
    assert planned == ["plan", "split"]


def test_a_run_sees_a_change_of_what_the_function_reads(
    planned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = result(tmp_path)
    monkeypatch.setitem(globals(), "GAIN", 3.0)
    after = result(tmp_path)
    np.testing.assert_array_equal(after, wanted())
    assert (after != before).any()
    assert planned == ["plan", "split"] * 2


@pytest.mark.parametrize(
    "options",
    [
        replace(PLAIN, boundary="wrap"),
        replace(PLAIN, boundary="constant", cval=2.0),
        replace(PLAIN, grid="1x1"),
        replace(PLAIN, fuse="off"),
        replace(PLAIN, fuse="require"),
        replace(PLAIN, fuse_math="fast"),
        replace(PLAIN, steps=StepOptions(2)),
    ],
    ids=str,
)
def test_runs_with_other_options_are_planned_apart(
    planned: list[str], tmp_path: Path, options: Options
) -> None:
    result(tmp_path)
    found = result(tmp_path, options=options)
    assert planned == ["plan", "split"] * 2
    prepare.forget_tasks()
    np.testing.assert_array_equal(result(tmp_path, options=options), found)


@pytest.mark.parametrize("array", [ARRAY[1:], ARRAY.astype(np.float32), ARRAY[:, :, None]])
def test_arrays_of_other_types_are_planned_apart(planned: list[str], tmp_path: Path, array: Any) -> None:
    result(tmp_path)
    result(tmp_path, array=array)
    assert planned == ["plan", "split"] * 2


def test_what_may_read_anything_is_planned_each_time(planned: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(result(tmp_path, counted), ARRAY + 3)
    assert planned == ["plan", "split"] * 2


def test_an_installed_job_is_planned_once(planned: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        result(tmp_path, laplacian)
    assert planned == ["plan", "split"]


def test_a_result_that_depends_on_the_split_is_refused_each_time(tmp_path: Path) -> None:
    @meshrun.map_blocks
    def normalized(block: Any) -> Any:
        return block / block.max()

    for _ in range(2):
        with pytest.raises(meshrun.UserError, match="depends on how the array is cut"):
            result(tmp_path, normalized)


def test_a_list_that_changes_after_a_run_changes_no_later_one(tmp_path: Path) -> None:
    @meshrun.map_blocks(fuse="off")
    def weighted(block: Any, *, weights=None) -> Any:  # type: ignore[no-untyped-def]
        return block * weights[0]

    weights = np.array([2.0])
    result(tmp_path, weighted, weights=weights)
    weights[0] = 5.0
    np.testing.assert_array_equal(result(tmp_path, weighted, weights=np.array([2.0])), 2 * ARRAY)
