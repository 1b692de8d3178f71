"""What functions keep from one call to the next: from their first block, or what any block gives."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.maps.split_probe import refusal
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.run.prepare import PlannedTask

LENGTH = 203
KEPT: dict[str, Any] = {}
FIRST: list[float] = []
NORM: float | None = None
TABLE: Any = None
SETTINGS = types.ModuleType("settings_of_a_user")


class Scales:
    largest: float | None = None


class Model:
    def __init__(self) -> None:
        self.largest: float | None = None

    def scaled(self, u: Any) -> Any:
        if self.largest is None:
            self.largest = float(u.max())
        return u * self.largest


MODEL = Model()


def in_a_dictionary(u: Any) -> Any:
    if "mean" not in KEPT:
        KEPT["mean"] = float(u.mean())
    return u - KEPT["mean"]


def by_setdefault(u: Any) -> Any:
    return u * KEPT.setdefault("first", float(u[0]))


def in_a_list(u: Any) -> Any:
    if not FIRST:
        FIRST.append(float(u[0]))
    return u - FIRST[0]


def in_a_global(u: Any) -> Any:
    global NORM  # noqa: PLW0603
    if NORM is None:
        NORM = float(np.abs(u).max())
    return u / NORM


def in_a_class(u: Any) -> Any:
    if Scales.largest is None:
        Scales.largest = float(u.max())
    return u * Scales.largest


def in_a_module(u: Any) -> Any:
    if not hasattr(SETTINGS, "largest"):
        SETTINGS.largest = float(u.max())
    return u * SETTINGS.largest


def in_itself(u: Any) -> Any:
    if not hasattr(in_itself, "largest"):
        in_itself.largest = float(u.max())  # type: ignore[attr-defined]
    return u * in_itself.largest  # type: ignore[attr-defined]


def in_an_object(u: Any) -> Any:
    return MODEL.scaled(u)


def in_a_parameter(u, *, kept={}):  # type: ignore[no-untyped-def]  # noqa: B006
    return u * kept.setdefault("largest", float(u.max()))


def around_it() -> Any:
    largest: float | None = None

    def in_a_variable(u: Any) -> Any:
        nonlocal largest
        if largest is None:
            largest = float(u.max())
        return u * largest

    return in_a_variable


def in_its_result(u: Any) -> Any:
    result = KEPT.setdefault("result", np.zeros(LENGTH))[: len(u)]
    result[:] = 2 * u
    return result


def any_block_gives_it(u: Any) -> Any:
    global TABLE  # noqa: PLW0603
    if TABLE is None:
        TABLE = np.hanning(5)
    return u * TABLE[1]


def doubled(u: Any) -> Any:
    return np.maximum(u, 1) + u


maximum = 0  # called like an attribute in the function above


def task_of(function: Any) -> Task:
    job = meshrun.map_blocks(halo=0)(function)
    return plan_task(job, job.complete({}), [((LENGTH,), np.dtype("f8"))], 1)


WRONG = [in_a_dictionary, by_setdefault, in_a_list, in_a_global, in_a_class, in_a_module, in_itself]
WRONG += [in_an_object, in_a_parameter, around_it(), Model().scaled, in_its_result]


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_what_is_kept_of_the_first_block_is_refused(function: Any) -> None:
    error = refusal(task_of(function), CpuBackend())
    assert isinstance(error, UserError)
    assert "split_dependent=True" in str(error.hint)


def test_what_any_block_gives_may_be_kept() -> None:
    assert refusal(task_of(any_block_gives_it), CpuBackend()) is None
    assert TABLE is None, "the run's first call is the first that the function sees"


def test_a_run_tells_of_it_before_and_after_other_calls_of_the_function() -> None:
    """Tracing and inferring the halo call the function before its split is tried."""
    job, cells = meshrun.map_blocks(in_a_dictionary), np.arange(300.0)
    for _ in range(2):
        with pytest.raises(UserError, match="keeps a value from one call to the next"):
            job.run(cells, np.zeros(300))
        assert KEPT.get("mean") is None


def test_what_the_program_changes_between_runs_stays_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run uses the task that the first one planned, before it failed."""
    global maximum  # noqa: PLW0603
    job, cells, result = meshrun.map_blocks(halo=0)(doubled), np.arange(64.0).reshape(8, 8), np.zeros((8, 8))
    maximum = 1
    with monkeypatch.context() as patched:
        patched.setattr(PlannedTask, "try_splits", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job.run(cells, result)
    maximum = 2
    job.run(cells, result)
    assert maximum == 2


def test_variables_and_objects_are_set_back() -> None:
    values: dict[str, Any] = {"list": [1, [2]], "set": {1}, "array": np.arange(3), "object": Model()}
    kept = KeptValues.of(any_block_gives_it, values)
    values["list"][1].append(3)
    values["list"].pop(0)
    values["set"].add(2)
    values["array"][1] = 9
    values["object"].largest = 3.0
    values["object"].other = 4.0
    kept.restore()
    assert values["list"] == [1, [2]]
    assert values["set"] == {1}
    assert values["array"].tolist() == [0, 1, 2]
    assert vars(values["object"]) == {"largest": None}
