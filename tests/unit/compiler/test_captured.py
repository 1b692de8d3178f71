"""What a job's function captures: equal values have equal texts, others have not; unknown ones are named."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshrun
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import LATTICES
from meshrun.jobs.airflow.step import step_job
from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.heat import heat
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.compiler.function_key import Captured, captured
from meshrun.runner.job.declaration import Job


class Mode(Enum):
    FAST = 1
    SLOW = 2


@dataclass(frozen=True)
class Settings:
    gain: float
    mode: Mode = Mode.FAST

    def times(self, block: Any) -> Any:
        return block * self.gain


class Opaque:
    def same(self, block: Any) -> Any:
        return block


class Place(NamedTuple):
    row: int
    column: int


def scaled(by: Any) -> Job:
    @meshrun.map_blocks
    def scale(block: Any) -> Any:
        return block * by

    return scale


def values(by: Any) -> dict[str, Any]:
    return dict(captured(scaled(by)).values)


def powers(exponent: int) -> Callable[[Any], Any]:
    return lambda block: block**exponent


def with_default(exponent: int) -> Callable[[Any], Any]:
    def power(block: Any, exponent: int = exponent) -> Any:
        return block**exponent

    return power


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2, 3),
        (2, 2.0),
        (1, True),
        (0.0, -0.0),
        (2.0, np.float64(2.0)),
        ("a", "b"),
        (b"a", "a"),
        (1j, 2j),
        (None, 0),
        ((1, 2), (2, 1)),
        ((1, 2), [1, 2]),
        ([[1], 2], [[1], 3]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (np.arange(3), np.arange(3) + 1),
        (np.arange(3), np.arange(3.0)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
        (np.dtype("f4"), np.dtype("f8")),
        (Mode.FAST, Mode.SLOW),
        (Settings(1.0), Settings(2.0)),
        (Path("a"), Path("b")),
        (np.sin, np.cos),
        (powers(2), powers(3)),
        (with_default(2), with_default(3)),
        (lambda block: block + 1, lambda block: block - 1),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (Settings(1.0).__eq__, Settings(2.0).__eq__),
        (scaled(2), scaled(3)),
        (slice(1), slice(2)),
        (Place(1, 2), Place(2, 1)),
        (Place(1, 2), (1, 2)),
        (functools.lru_cache(powers(2)), functools.lru_cache(powers(3))),
        (np.float32(1), np.float32(2)),
        (np.zeros(0), np.zeros((0, 2))),
        (np.array(1), np.array(2)),
        (math.sin, math.cos),
        (range(2), range(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_another_value_is_another_job(one: Any, other: Any) -> None:
    assert not captured(scaled(one)).unknown
    assert values(one) == values(one)
    assert values(one) != values(other)


def test_simple_values_are_shown_as_they_are() -> None:
    assert values(2.5) == {"by": "2.5"}
    assert values("fast") == {"by": "'fast'"}
    assert values((1, 2)) == {"by": "(1, 2)"}
    assert len(values(np.zeros(1000))["by"]) < 30


def test_of_equal_arrays_the_layout_in_memory_does_not_count() -> None:
    table = np.arange(6).reshape(2, 3)
    assert values(table) == values(np.asfortranarray(table)) == values(np.repeat(table, 2, axis=0)[::2])


def test_a_function_that_captures_nothing_has_none() -> None:
    @meshrun.map_blocks
    def plus(block: Any) -> Any:
        return block + 1

    assert captured(plus) == captured(plus)
    assert not captured(plus).values
    assert not captured(plus).unknown


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        object(),
        [1, object()],
        np.array([object()]),
        {"a": iter([])},
        np.ma.masked_array([1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_compared_is_named(value: Any) -> None:
    found = captured(scaled(value))
    assert not found.values
    assert list(found.unknown) == ["by"]


def test_a_variable_of_a_captured_function_that_cannot_be_compared_names_the_type() -> None:
    lock = threading.Lock()

    def guarded(block: Any) -> Any:
        with lock:
            return block

    assert captured(scaled(guarded)).unknown == {"by": "an object of lock"}


def test_functions_and_lists_that_hold_themselves_end() -> None:
    def factorial(number: int) -> int:
        return number * factorial(number - 1) if number else 1

    ring: list[Any] = [1]
    ring.append(ring)
    assert values(factorial) == values(factorial)
    assert values(ring) == values(ring)


def test_the_object_to_which_a_method_is_bound_counts() -> None:
    one, two = (meshrun.map_blocks(Settings(gain).times) for gain in (1.0, 2.0))
    assert captured(one) == captured(one)
    assert captured(one) != captured(two)
    assert captured(meshrun.map_blocks(Opaque().same)).unknown == {"function": "an object of Opaque"}


def test_variables_around_a_wrapper_count() -> None:
    def times(factor: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(block: Any) -> Any:
                return factor * function(block)

            return call

        return wrap

    def job(factor: float) -> Job:
        def plus(block: Any) -> Any:
            return block + 1

        return meshrun.map_blocks(times(factor)(plus))

    assert captured(job(2.0)).values == {"factor": "2.0"}
    assert captured(job(3.0)).values == {"factor": "3.0"}


NOTEBOOK = """
import meshrun
import numpy as np
GAIN = {gain}
OTHER = {other}
def twice(block):
    return 2 * block + SHIFT
SHIFT = {shift}
@meshrun.map_blocks
def job(block):
    return twice(block) * np.float32(GAIN)
"""


def of_notebook(gain: int = 1, other: int = 1, shift: int = 1) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK.format(gain=gain, other=other, shift=shift), names)
    found = captured(names["job"])
    assert not found.unknown
    return dict(found.values)


def test_globals_that_a_notebooks_function_names_count() -> None:
    """No file has them: they reach the ranks with the function."""
    assert of_notebook()["GAIN"] == "1"
    assert of_notebook() == of_notebook(other=2)
    assert of_notebook() != of_notebook(gain=2)
    assert of_notebook() != of_notebook(shift=2)


def test_a_global_that_a_class_in_the_function_names_counts() -> None:
    text = "def job(block):\n    class Here:\n        gain = GAIN\n    return Here.gain * block\n"

    def found(gain: float) -> Captured:
        names: dict[str, Any] = {"__name__": "__main__", "GAIN": gain}
        exec(text, names)
        return captured(meshrun.map_blocks(names["job"]))

    assert found(1.0).values["GAIN"] == "1.0"
    assert found(1.0) != found(2.0)


def test_another_process_finds_the_same() -> None:
    """The texts of sets and of constants do not depend on the hashes of this process."""
    program = """
from meshrun.runner.compiler.function_key import captured
import meshrun
def made(names, sizes):
    @meshrun.map_blocks
    def job(block):
        return block if names else (lambda: "a" in {"a", "b", "c", "d", "e"})
    return job
used = made({"x", "y", "z", "w", "v"}, None)
print(captured(used).values, captured(made(lambda: "b" in {"a", "b", "c", "d", "e"}, None)).values)
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


def test_all_that_the_steps_of_a_flow_capture_is_known() -> None:
    found, other = (captured(step_job(LATTICES["D2Q9"], kinds)) for kinds in ((Cell.FLUID,), (Cell.SOLID,)))
    assert not found.unknown
    assert {name for name in found.values if found.values[name] != other.values[name]} == {"step"}


def test_the_functions_of_installed_jobs_capture_nothing() -> None:
    for job in (convolve, elementwise, grayscale, heat, laplacian):
        assert captured(job) == Captured()
