"""Loops whose iterations pick rows by the loop's number: traced once where all iterations are alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.programs.kernel import CellKernel
from meshrun.runner.programs.looping import LoopRun
from meshrun.runner.programs.marching import places_within
from meshrun.runner.programs.stages import LoopStage
from tests.facts.looping_programs import compiled
from tests.facts.program_runs import plain, planned, run_program


def along_rows(u, b):
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
    return u


def along_columns(u, b):
    for j in range(1, u.shape[1]):
        u[:, j] = 0.5 * u[:, j - 1] + b[:, j]
    return u


def backward(u, b):
    for i in range(u.shape[0] - 2, -1, -1):
        u[i] -= 0.3 * u[i + 1] * b[i]
    return u


def thomas(u, b):
    """Solve (1 + 2k) x[i] - k (x[i-1] + x[i+1]) = u[i] along axis 0."""
    k, n = 0.7, u.shape[0]
    c, x = np.zeros_like(u), u.copy()
    c[0], x[0] = -k / (1 + 2 * k), u[0] / (1 + 2 * k)
    for i in range(1, n):
        m = 1 + 2 * k + k * c[i - 1]
        c[i] = -k / m
        x[i] = (u[i] + k * x[i - 1]) / m
    for i in range(n - 2, -1, -1):
        x[i] -= c[i] * x[i + 1]
    return x


def by_the_number(u, b):
    t = 0.0
    for i in range(1, u.shape[0]):
        t += 0.1
        u[i] = u[i - 1] / (i + 1) + t * b[i]
    return u * t


def neighbours(u, b):
    for i in range(1, u.shape[0] - 1):
        u[i, 1:-1] = 0.3 * u[i - 1, 2:] + 0.2 * u[i + 1, :-2] + np.maximum(b[i, 1:-1], u[i, 1:-1])
    return u


def whole_field_too(u, b):
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
        b = 0.9 * b + 0.1 * u
    return u + b


def a_row_that_is_left(u, b):
    for i in range(1, u.shape[0]):
        row = 0.5 * u[i - 1] + b[i]
        u[i] = row
    u[0] = row
    return u


def every_third(u, b):
    for i in range(1, u.shape[0]):
        if i % 3 == 0:
            u[i] = u[i - 1]
        else:
            u[i] = 0.5 * u[i - 1] + b[i]
    return u


def by_cases(u, b):
    for i in range(1, u.shape[0] - 1):
        row = b[i] if i % 2 and i > 3 else u[i]
        if i == 4:
            continue
        if i < 3:
            u[i] += row
        elif i % 4 == 1:
            u[i - 1] = u[i] - row
        b[i] = 0.3 * u[i - 1] + row
    return u - b


def now_and_then(u, b):
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
        if i % 4 == 0:
            b = 0.9 * b + 0.1 * u
    return u + b


def a_fixed_row(u, b):
    for i in range(1, u.shape[0] - 1):
        u[i] = 0.5 * u[i - 1] + u[0]
        u[0] = 0.9 * u[0]
    return u


def mirrored(u, b):
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[u.shape[0] - 1 - i] + b[i]
    return u


def of_a_fixed_row(u, b):
    for j in range(1, u.shape[1]):
        u[:, j] = 0.5 * u[:, j - 1] + b[:, 3] * u[:, 0]
    return u


def mirrored_twice(u, b):
    n = u.shape[0]
    c = b + 1j * u
    for i in range(n - 2, 0, -1):
        row = u[i + 1] + 0.5 * u[n - 1 - i] - b[n - 1 - i]
        u[n - i] = row + u[2] - (b[n - 1 - i] > b[1])
        c[i] = c[n - 1 - i] * 0.5 + c[i + 1]
    return u * c


def every_second(u, b):
    for i in range(1, u.shape[0] // 2):
        u[2 * i] = 0.5 * u[2 * i - 2] + u[i] + b[2 * i + 1]
    return u


def around_the_end(u, b):
    for i in range(u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
    return u


ALIKE = (
    along_rows, along_columns, backward, thomas, by_the_number, neighbours, whole_field_too,
    a_row_that_is_left, around_the_end, every_third, by_cases, now_and_then, a_fixed_row, of_a_fixed_row,
    mirrored, mirrored_twice, every_second,
)  # fmt: skip


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize("function", ALIKE)
def test_a_recurrence_has_the_bits_of_numpy(function: Any, grid: tuple[int, int]) -> None:
    noise = np.random.default_rng(0)
    u, b = noise.random((11, 8)), noise.random((11, 8))
    program = planned(function, [u, b], ["out"])
    (found,) = run_program(program, [u, b], grid)
    assert np.array_equal(found, function(u.copy(), b.copy()))


@pytest.mark.parametrize("compiled", [False, True])
def test_some_ranks_may_have_no_cells(compiled: bool) -> None:
    u, b = np.random.default_rng(0).random((2, 2, 9))
    program = planned(along_columns, [u, b], ["out"])
    (found,) = run_program(program, [u, b], (3, 1), compiled=compiled)
    assert np.array_equal(found, along_columns(u.copy(), b.copy()))


def random_rows(seed: int) -> str:
    """Return a random function whose loop computes rows."""
    pick = random.Random(seed)
    rows = ["i", "i", "i - 1", "i - 1", "i + 1", "n - 1 - i", "n - i", "2", "0", "-1"]
    tests = ["i % 3", "i % 2 == 0 and i > 3", "i < 5 or i == 7", "not i % 4"]

    def row() -> str:
        return f"{pick.choice('ubc')}[{pick.choice(rows)}]"

    def statement() -> str:
        return pick.choice(
            (
                f"{row()} = {pick.choice(('0.5', '-0.25', 'w'))} * {row()} + {row()}",
                f"{row()} {pick.choice('+-')}= 0.5 * {row()}",
                f"{row()} = np.maximum({row()}, {row()})",
                f"r = {row()} - {row()}\n        {row()} = 0.5 * r",
                f"x = u if {pick.choice(tests)} else b\n        x[i] = 0.5 * {row()}",
                f"if {pick.choice(tests)}:\n            {row()} = {row()} - 0.5 * {row()}",
                f"if {pick.choice(tests)}:\n            b[i] = c[i]\n        else:\n            {row()} *= 2",
                "w = 0.9 * w + 0.01 * i",
            )
        )

    lines = "\n        ".join(statement() for _ in range(pick.randint(1, 5)))
    items = pick.choice(("1, n - 1", "n - 2, 0, -1", "1, n - 1, 2"))
    return f"""
def f(u, b):
    n, w, c = u.shape[0], 0.5, u * b
    for i in range({items}):
        {lines}
    return u - b + c * w
"""


@pytest.mark.parametrize("seed", range(40))
def test_random_loops_over_rows(seed: int) -> None:
    function = compiled(random_rows(seed))
    u, b = np.random.default_rng(seed).random((2, 10, 3))
    program = planned(function, [u, b], ["out"])
    wanted = plain(function, [u, b])[0]
    for grid in ((1, 1), (3, 1)):
        (found,) = run_program(program, [u, b], grid)
        assert found.tobytes() == wanted.tobytes(), random_rows(seed)


def of_complex_cells(u, b):
    v = u + 1j * b
    for i in range(1, u.shape[0]):
        v[i] = 0.5 * v[i - 1] * b[i] - v[i].conj()
    return v


def with_points(u, b):
    b[[0, 5, 8], [0, 7, 2]] = 3
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
    return u


COMPILED = along_columns, thomas, by_the_number, neighbours, of_complex_cells, with_points


@pytest.mark.parametrize("function", COMPILED)
def test_compiled_rows_have_the_bits_of_numpy(function: Any) -> None:
    u, b = np.random.default_rng(0).random((2, 11, 9))
    program = planned(function, [u, b], ["out"])
    for grid in ((1, 1), (2, 2)):
        (found,) = run_program(program, [u, b], grid, compiled=True)
        assert np.array_equal(found, function(u.copy(), b.copy()))


def test_all_rows_are_computed_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a call of Python for each of them, nor with numbers that Python makes for each of them."""
    counts: list[int] = []
    make = LoopRun._make_numbers

    def counted(loop: LoopRun, count: int, row: Any) -> None:
        counts.append(count)
        make(loop, count, row)

    monkeypatch.setattr(LoopRun, "_make_numbers", counted)
    monkeypatch.setattr(CellKernel, "_fill", None)
    u, b = np.random.default_rng(0).random((2, 11, 9))
    for function, loops in ((along_columns, 1), (thomas, 2)):
        counts.clear()
        (found,) = run_program(planned(function, [u, b], ["out"]), [u, b], (1, 1), compiled=True)
        assert np.array_equal(found, function(u.copy(), b.copy()))
        assert len(counts) == loops


@pytest.mark.parametrize(
    "function", [along_rows, along_columns, backward, thomas, by_the_number, every_third]
)
def test_an_iteration_computes_its_row_alone(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopRun, "_iterate", None)
    u, b = np.random.default_rng(0).random((2, 11, 8))
    program = planned(function, [u, b], ["out"])
    for grid in ((1, 1), (2, 1), (1, 3), (2, 2)):
        (found,) = run_program(program, [u, b], grid)
        assert np.array_equal(found, function(u.copy(), b.copy()))


@pytest.mark.parametrize("function", ALIKE)
def test_iterations_that_are_alike_are_traced_once(function: Any) -> None:
    for length in (40, 80):
        u = np.ones((length, length))
        program = planned(function, [u, u], ["out"])
        assert len(program.stages) < 8
        assert any(isinstance(stage, LoopStage) for stage in program.stages)


@given(
    st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.integers(-12, 12), st.integers(0, 12),
)  # fmt: skip
def test_the_items_of_a_rank_are_those_within_its_rows(
    begin: int, end: int, step: int, first: int, rows: int
) -> None:
    items = range(begin, end, step)
    wanted = [n for n, item in enumerate(items) if first <= item < first + rows]
    assert [*places_within(items, first, first + rows)] == wanted
