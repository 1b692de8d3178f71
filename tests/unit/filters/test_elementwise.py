"""Formulas: what is parsed, what is refused, NumPy's values, and bounds that hold without being idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.jobs.filters import dtypes
from meshrun.jobs.filters.dtypes import SUPPORTED
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.expression import FUNCTIONS
from meshrun.runner.errors import UserError
from meshrun.runner.run.verify.compare import differs

Apply = Callable[..., np.ndarray[Any, Any]]
Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
Formula = tuple[str, Function]  # as text, and as NumPy calls made beside it


def test_one_formula_by_hand(apply_job: Apply) -> None:
    x = np.linspace(0, 9, 24, dtype=np.float32).reshape(4, 6)
    found = apply_job(elementwise, x, expression="sqrt(x) + 1")
    np.testing.assert_array_equal(found, np.sqrt(x) + np.float32(1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_numpys(apply_job: Apply, name: str) -> None:
    numpys, arguments = FUNCTIONS[name]
    x = np.linspace(-0.95, 0.95, 50)
    operands = ["x", "x * x - 0.4", "0.3"][:arguments]
    values = [x, x * x - 0.4, np.full_like(x, 0.3)][:arguments]
    with np.errstate(all="ignore"):
        expected = getattr(np, numpys)(*values)
    found = apply_job(elementwise, x, expression=f"{name}({', '.join(operands)})")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x**2", -4.0),
        ("2**-x", 0.25),
        ("2**3**x", 512.0),
        ("7 // x + 7 % x", 4.0),
        ("-7 // x", -4.0),
        ("1 < x < 3", 1.0),
        ("1 < x < 2", 0.0),
        ("(x == 2) + (x != 2) + (x >= 2) + (x <= 2) + (x > 2)", 3.0),
        ("where(x > 1, 10, 20)", 10.0),
        ("where(x - 2, 10, 20)", 20.0),
        ("clip(x, 3, 5) + clip(x, 0, 1) + clip(x, 0, 9)", 6.0),
        ("min(x, 1) - max(x, 7)", -6.0),
        ("+x - pi + pi", 2.0),
        ("e", np.e),
        ("1e3", 1000.0),
    ],
)
def test_meaning(apply_job: Apply, text: str, expected: float) -> None:
    assert apply_job(elementwise, np.array([2.0]), expression=text) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_result_types(apply_job: Apply, noise: Apply, dtype: str) -> None:
    kind = np.dtype(dtype)
    default = dtype if kind.kind == "f" else "float32" if kind.itemsize <= 2 else "float64"
    array = noise((5, 6), dtype)
    assert apply_job(elementwise, array, expression="x / 3").dtype == default
    same = apply_job(elementwise, array, expression="x", dtype="same")
    assert same.dtype == ("uint8" if dtype == "bool" else dtype)
    if kind.itemsize < 8:
        np.testing.assert_array_equal(same, array)
    assert apply_job(elementwise, array, expression="x * x", dtype="uint8").dtype == np.uint8


def test_integers_round_half_to_even_and_saturate_and_nan_is_0(apply_job: Apply) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 254.5, 255.5, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    found = apply_job(elementwise, x, expression="x", dtype="uint8")
    assert found.tolist() == [0, 2, 2, 0, 254, 255, 255, 0, 255, 0, 0]
    found = apply_job(elementwise, x, expression="x", dtype="int32")
    assert found[-5:].tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0]


def test_the_arithmetic_is_float64_where_the_result_asks_for_it(apply_job: Apply) -> None:
    x = np.array([1], np.float32)
    assert apply_job(elementwise, x, expression="x / 3", dtype="float64") == 1 / 3
    assert apply_job(elementwise, x, expression="x / 3") == np.float32(1) / np.float32(3)
    huge = np.array([2**31 - 1], np.int32)
    assert apply_job(elementwise, huge, expression="x - 1", dtype="same") == 2**31 - 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x +",
        "y",
        "x.real",
        "x[0]",
        "__import__('os')",
        "(lambda: x)()",
        "[x for x in x]",
        "x if x else 1",
        "x and 1",
        "not x",
        "~x",
        "x @ x",
        "x & 1",
        "'a'",
        "True",
        "1j",
        "x = 2",
        "sin",
        "sin()",
        "sin(x, x)",
        "where(x)",
        "min(*x)",
        "min(a=x, b=x)",
        "sqrt.real(x)",
        "x in x",
        "x is x",
        "1e999",
        "9" * 400,
        "x; x",
        "x\0",
        "(" * 300 + "x" + ")" * 300,
        "-" * 500 + "x",
        "+".join(["x"] * 400),
        "x" * 5000,
        "f'{x}'",
        "(x := 2)",
    ],
)
def test_everything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="Try: --expression"):
        elementwise.check((3,), np.dtype(np.float32), expression=text)


def test_huge_powers_end_at_once(apply_job: Apply) -> None:
    assert np.isinf(apply_job(elementwise, np.array([2.0]), expression="9**9**9**9**x")).all()


def test_the_command_line_sees_its_options() -> None:
    expression, dtype = elementwise.parameters
    assert expression.required
    assert "where(condition, a, b)" in expression.help
    assert dtype.default == "float"


# Fuzzing: random formulas over random data, values included at which things go wrong.

NUMBERS = ["0", "1", "2", "0.1", "3.5", "1e-20", "1e30", "7", "pi"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<", "!="]
UNARY = [name for name, (_, arguments) in FUNCTIONS.items() if arguments == 1]


def _constant(text: str) -> Formula:
    number = np.pi if text == "pi" else float(text)
    return text, lambda x: x.dtype.type(number)


def _unary(pair: tuple[str, Formula]) -> Formula:
    name, (text, inner) = pair
    function = getattr(np, FUNCTIONS[name][0])
    return f"{name}({text})", lambda x: function(inner(x))


def _binary(parts: tuple[str, Formula, Formula]) -> Formula:
    operator, (left, f), (right, g) = parts
    calls: dict[str, Any] = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": np.divide,
        "//": np.floor_divide,
        "%": np.remainder,
        "**": np.power,
        "<": lambda a, b: np.where(a < b, a.dtype.type(1), a.dtype.type(0)),
        "!=": lambda a, b: np.where(a != b, a.dtype.type(1), a.dtype.type(0)),
    }
    return f"(({left}) {operator} ({right}))", lambda x: calls[operator](f(x), g(x))


def _where(parts: tuple[Formula, Formula, Formula]) -> Formula:
    (c, condition), (a, f), (b, g) = parts
    return f"where({c}, {a}, {b})", lambda x: np.where(condition(x) != 0, f(x), g(x))


FORMULAS: st.SearchStrategy[Formula] = st.recursive(
    st.just(("x", lambda x: x)) | st.sampled_from(NUMBERS).map(_constant),
    lambda inner: (
        st.tuples(st.sampled_from(UNARY), inner).map(_unary)
        | st.tuples(st.sampled_from(OPERATORS), inner, inner).map(_binary)
        | st.tuples(inner, inner, inner).map(_where)
    ),
    max_leaves=8,
)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-30, -1e30, np.pi, np.inf, -np.inf, np.nan]


def data(dtype: str, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return np.concatenate([SPECIAL, generator.standard_normal(40) * 3]).astype(kind)
    if kind.kind == "b":
        return np.array([False, True])
    limits = np.iinfo(kind)
    few = np.array([0, 1, 2, limits.max], kind)
    return np.append(generator.integers(limits.min, limits.max, 30, kind), few)


@settings(max_examples=5 * settings().max_examples)
@given(FORMULAS, st.integers(0, 1000))
def test_formulas_are_numpys(formula: Formula, seed: int) -> None:
    text, function = formula
    if len(text) > 900:
        return
    x = data("float32", seed)
    out = np.empty_like(x)
    elementwise.function(x, out=out, expression=text)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, np.broadcast_to(function(x), x.shape))


@settings(max_examples=5 * settings().max_examples)
@given(FORMULAS, st.sampled_from(SUPPORTED), st.integers(0, 1000))
def test_correct_results_are_within_their_bounds(formula: Formula, dtype: str, seed: int) -> None:
    text, _ = formula
    if len(text) > 900:
        return
    x = data(dtype, seed)
    shape, result = elementwise.out(x.shape, x.dtype, expression=text)
    out = np.empty(shape, result)
    elementwise.function(x, out=out, expression=text)
    assert elementwise.reference is not None
    expected, tolerance = elementwise.reference(x.astype(np.float64), expression=text)
    wrong = differs(out, expected, tolerance)
    assert not wrong.any(), (x[wrong], out[wrong], expected[wrong], tolerance[wrong])


@pytest.mark.parametrize(
    ("text", "relative"),
    [
        ("sqrt(x) + 1", 1e-6),
        ("exp(-x * x / 2) / sqrt(2 * pi)", 2e-5),
        ("where(x > 50, log(x), sin(x))", 1e-5),
        ("x ** 3 - 2 * x + 1", 1e-5),
        ("max(x, 7) % 7 + x // 3", 1e-5),
        ("clip(x / 10, 1, 3)", 1e-6),
    ],
)
def test_bounds_are_tight_where_nothing_is_lost(text: str, relative: float) -> None:
    """A bound that allows anything would let a wrong kernel pass."""
    x = np.random.default_rng(4).integers(1, 100, 500).astype(np.float64)
    assert elementwise.reference is not None
    expected, tolerance = elementwise.reference(x, expression=text)
    assert np.all(tolerance <= relative * (np.abs(expected) + 1))
    assert dtypes.unit_roundoff(x, "float") == 2.0**-24


def test_bounds_follow_cancellation_poles_and_steps() -> None:
    assert elementwise.reference is not None
    x = np.array([1e8, 2.0**-14])
    _, tolerance = elementwise.reference(x, expression="(x * 1.1 - x) - 0.1 * x")
    assert tolerance[0] > 1
    assert tolerance[1] < 1e-9
    # 0.1 * 3 and 0.3 cannot be told apart in float32: either side of the step is right.
    for text in ("0.1 * x < 0.3", "floor(0.1 * x / 0.3)", "where(0.1 * x == 0.3, 1, 0)"):
        _, tolerance = elementwise.reference(np.array([3.0, 5.0]), expression=text)
        assert tolerance[0] >= 1
        assert tolerance[1] == 0
    expected, tolerance = elementwise.reference(np.array([3.0, -1.0]), expression="log(x)")
    assert np.isnan(expected[1])
    assert tolerance[1] == 0  # NaN for sure
    _, tolerance = elementwise.reference(np.array([3.0, 2.0]), expression="1 / (0.1 * x - 0.3)")
    assert np.isinf(tolerance[0])
    assert tolerance[1] < 1e-4
    # exp(94) is a float64 but no float32: the sine may be a number or NaN.
    for text in ("sin(exp(x))", "tan(exp(x))", "exp(x) % 3", "exp(x) // 3", "exp(x) - exp(x)"):
        _, tolerance = elementwise.reference(np.array([94.0]), expression=text)
        assert np.isinf(tolerance).all(), text
    # The float32 nearest to pi is above it, the float64 below: on one side the root is NaN.
    _, tolerance = elementwise.reference(np.array([94.0]), expression="sqrt(tan(pi))")
    assert np.isinf(tolerance)
