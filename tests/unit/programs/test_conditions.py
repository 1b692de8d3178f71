"""Operators, conditional expressions and assertions of values in whole-array functions, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_ways import compiled

from meshrun.runner.compiler.trace.refusal import NotTraceable
from tests.facts.program_runs import plain, planned, run_program

EXPRESSIONS = [
    "1.0 if low < high else 2.0",
    "low and high",
    "low - low and high",
    "low - low or high",
    "low or high",
    "not low",
    "low > 0 and high > 0",
    "low > 0 or not high > 0",
    "(low > 0 or high > 0) and n > 2",
    "n > 2 and high > 0",
    "high > 0 and n > 2",
    "low < 0 < high",
    "low < 0 < high < n",
    "-9 < low > high",
    "min(low, high)",
    "max(low, high, 0.5)",
    "min([high, low, low])",
    "max(1, high)",
    "max(n, 7)",
    "abs(low) if low < 0 and high > 0 else high if n else low",
    "min(low, high) if max(low, high) > 3 else -1.0",
]


def field(*shape: int, dtype: Any = float) -> Any:
    return (np.random.default_rng(3).random(shape) * 8 - 4).astype(dtype)


def function_of(expression: str) -> Any:
    """Return a function that adds an expression of two values to its array."""
    text = f"def f(u, *, n: int = 3):\n    low, high = u.min(), u.max()\n    return u + ({expression})\n"
    return compiled(text)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_values_is_what_python_makes_of_it(expression: str, dtype: str) -> None:
    function, array = function_of(expression), field(5, 4, dtype=dtype)
    for given in (array, -array - 9):
        program = planned(function, [given], ("out",))
        (wanted,) = plain(function, [given])
        for grid in ((1, 1), (2, 1)):
            (result,) = run_program(program, [given], grid)
            assert (result.dtype, result.tobytes()) == (wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("(lambda: 1 if low > 0 else 2)()", "in a lambda"),
        ("[1 for x in (0,) if low > 0]", "in a comprehension|where"),
        ("list(1 for x in (0,) if low > 0)", "in a generator expression"),
        ("(x := low) and (x := low)", "where it is not traced: the statement has := or a lambda"),
        ("vars() if low > 0 else 1", r"in a function that calls vars\(\)"),
    ],
)
def test_a_condition_that_is_not_converted_is_refused_with_its_line(statement: str, where: str) -> None:
    function = compiled(f"def f(u):\n    low = u.min()\n    {statement}\n    return u - low\n")
    with pytest.raises(NotTraceable, match=f"decides by the value of a reduction {where}") as failure:
        planned(function, [field(5, 4)], ("out",))
    assert failure.value.line == 3


def test_a_condition_in_a_function_without_source_is_refused_with_its_line() -> None:
    space: dict[str, Any] = {}
    exec("def f(u):\n    low = u.min()\n    return u if low > 0 else u + 1\n", space)
    with pytest.raises(NotTraceable, match="in a function whose source is not in a file") as failure:
        planned(space["f"], [field(5, 4)], ("out",))
    assert failure.value.line == 3
