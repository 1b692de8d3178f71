"""Products with powers of two that are not rounded: which, and for how large fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.passes.exact_products import FUSED, largest_field, with_exact_products
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace


def program(function: Callable[..., Any], dtype: str = "f4") -> Program:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    inputs = [Operand(name, np.dtype(dtype)) for name in names]
    return trace(function, inputs, ((1, 1), (1, 1)), {}, frozenset(), [f"{name}_after" for name in names])


def heat(u: Any) -> Any:
    centre = u[1:-1, 1:-1]
    return centre + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * centre)


def count(of: Program) -> int:
    return sum(node.op == FUSED for node in of.nodes)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (heat, 1),
        (lambda u: 2 * u[1:-1, 1:-1] - u[:-2, 1:-1] * -8, 1),
        (lambda u: u[1:-1, 1:-1] * 1.0 + u[:-2, 1:-1], 1),
        (lambda u: u[1:-1, 1:-1] * 0.5 + u[:-2, 1:-1], 0),  # may be below the normal range
        (lambda u: u[1:-1, 1:-1] * 3 - 6 * u[:-2, 1:-1], 0),
        (lambda u: u[1:-1, 1:-1] * u[1:-1, 1:-1] + u[:-2, 1:-1], 0),
        (lambda u: 4 * u[1:-1, 1:-1] * u[:-2, 1:-1], 0),
    ],
)
def test_only_products_with_powers_of_two_are_fused(function: Any, fused: int) -> None:
    made = with_exact_products(program(function))
    assert count(made) == fused
    assert count(with_exact_products(program(function, "f2"))) == 0  # halves are rounded after each operation


def test_a_program_without_such_products_stays_as_it_is() -> None:
    plain = program(lambda u: u[1:-1, 1:-1] * 3 - 6 * u[:-2, 1:-1])
    assert with_exact_products(plain) is plain
    assert largest_field(plain, [0], 3, 0.0) == 0


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_no_product_of_a_field_within_the_limit_overflows(steps: int) -> None:
    limit = largest_field(program(heat), [0], steps, 0.0)
    assert limit > 2.0**100
    # The field that grows fastest: neighbours of different signs.
    field = (np.indices((19, 19)).sum(0) % 2 * 2 - 1).astype(np.float32) * np.float32(limit)
    with np.errstate(over="raise"):
        for _ in range(steps - 1):
            field = heat(np.pad(field, 1, "wrap"))
        assert np.isfinite(4 * field).all()


def test_fields_that_may_grow_at_once_have_no_limit() -> None:
    cubic = program(lambda u: u[1:-1, 1:-1] * u[1:-1, 1:-1] * u[1:-1, 1:-1] + 4 * u[:-2, 1:-1])
    assert largest_field(cubic, [0], 1, 0.0) > 0
    assert largest_field(cubic, [0], 5, 0.0) == 0
    divided = program(lambda u: (4 * (1 / u[1:-1, 1:-1])) + u[:-2, 1:-1])
    assert largest_field(divided, [0], 1, 0.0) == 0
    fixed = program(lambda u, rate: (u[1:-1, 1:-1] + 4 * rate[1:-1, 1:-1], rate[1:-1, 1:-1]))
    assert largest_field(fixed, [0, 1], 2, 0.0) > 0


def test_what_is_beyond_the_array_counts() -> None:
    assert largest_field(program(heat), [0], 2, 1e38) == 0
    assert largest_field(program(heat), [0], 2, float("inf")) == 0
    assert largest_field(program(heat), [0], 2, -5.0) > 0
