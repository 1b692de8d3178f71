"""Numbers of the step in traced functions: what Python and NumPy compute of them, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import StepTape, given_of
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.compiler.whole.pieces import compute_piece, pieces_of
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from tests.facts.whole_functions import compiled, field

WAVELET = np.random.default_rng(3).random((12, 3))
STEPS = 0, 1, 7


def whole_results(
    function: Callable[..., Any],
    u: Any,
    steps: tuple[int, ...] = STEPS,
    services: tuple[str, ...] = ("step",),
    **tables: Any,
) -> list[Any]:
    """The results of a function of whole arrays in some steps, from one trace."""
    inputs = [WholeInput("u", u.shape, u.dtype)]
    whole = trace_whole(function, inputs, tables, ("out",), services=services)
    arrays, found = [u, *(one.values for one in whole.constants)], []
    for step in steps:
        reach = [whole.footprint(number) for number in range(len(arrays))]
        widths = [tuple(max(0, *(one[axis][side] for one in reach)) for side in (0, 1)) for axis in range(2)]
        blocks = [np.pad(array, widths, mode="wrap") for array in arrays]
        result = np.empty(whole.outputs[0].shape, whole.outputs[0].dtype)
        for piece in pieces_of(whole.program, (0,) * len(whole.space), whole.space):
            row = whole.tape.row(step)
            (cells,) = compute_piece(np, whole.program, piece, blocks, widths, (0,) * len(whole.space), row)
            result[tuple(slice(a, b) for a, b in zip(piece.first, piece.last, strict=True))] = cells
        found.append(result)
    return found


def block_results(
    function: Callable[..., Any], u: Any, steps: tuple[int, ...] = STEPS, **tables: Any
) -> list[Any]:
    """The same of a function of a block without halo."""
    widths = ((0, 0),) * u.ndim
    program = trace(function, [Operand("u", u.dtype)], widths, tables, frozenset({"step"}))
    return [evaluate(program, [u], widths, scalars=program.tape.row(step))[0] for step in steps]


EXPRESSIONS = (
    "u * step", "u + step * 0.5", "step - u", "u * np.sin(0.1 * step)", "u * math.exp(-0.1 * step)",
    "u + w[step]", "u * w[step].astype(u.dtype)", "u - (2 * w)[step // 2]", "u + m[step, 1]",
    "u + w[step - 1]",
    "np.where(step % 2 == 0, u, -u)", "np.where(u > step, u, step)", "np.maximum(u, step)", "u / (1 + step)",
    "np.clip(u, -step, w[step])", "u + min(step, 3) - max(step, 5)", "u * np.float32(2) * step",
    "u * (step > 3)", "np.full_like(u, step * 0.5)", "u + np.minimum(step, len(w) - 1)",
    "u + np.interp(0.3 * step, [0, 1, 2], [0, 5, 7])", "u + divmod(step, 3)[1]", "u + m[step].sum()",
    "u + round(0.3 * step)", "u * TABLE[step, 0]", "u * 2.0 ** -step", "np.where(step < 3, 1.0, 0.5) * u",
    "u + abs(-step)",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_have_numpys_bits_and_dtypes(expression: str, dtype: str) -> None:
    function = compiled(f"def f(u, step, w, m):\n    return {expression}\n", math=math, TABLE=WAVELET)
    u = field(5, 20, dtype=dtype)
    tables = {"w": WAVELET[:, 0].astype("f4"), "m": WAVELET}
    wanted = []
    for step in STEPS:
        try:
            wanted.append(function(u, step=step, **tables))
        except (OverflowError, TypeError) as refused:
            pytest.skip(f"NumPy refuses it: {refused}")
    for results in (whole_results, block_results):
        for want, found in zip(wanted, results(function, u, **tables), strict=True):
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            assert found.tobytes() == want.tobytes(), (want, found)


@given(
    st.lists(st.sampled_from(["+", "-", "*", "//", "%"]), min_size=1, max_size=4),
    st.integers(1, 9),
    st.data(),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_random_numbers_of_the_step(operators: list[str], last: int, data: st.DataObject) -> None:
    terms = st.sampled_from(
        ["step", "0.3", "3", "w[step]", "np.float32(0.7)", "np.sqrt(1 + step)", "m[step, 2]"]
    )
    text = data.draw(terms)
    for operator in operators:
        text = f"({text} {operator} {data.draw(terms)})"
    function = compiled(f"def f(u, step, w, m):\n    return u + {text}\n")
    u = field(4, 18, dtype="f4")
    tables = {"w": WAVELET[:, 0] + 1, "m": WAVELET.astype("f4") + 1}
    steps = tuple(range(1, last))
    with np.errstate(all="ignore"):
        try:
            wanted = [function(u, step=step, **tables) for step in (0, *steps)][1:]
        except ZeroDivisionError:
            return
        for want, found in zip(wanted, whole_results(function, u, steps, **tables), strict=True):
            assert found.dtype == want.dtype
            assert found.tobytes() == want.tobytes(), text


def test_an_array_of_numpys_times_a_number_of_the_step_has_places() -> None:
    profile = np.random.default_rng(0).random((5, 20))

    def source(u, step, w):
        u[1:-1] += (w[step] * profile)[1:-1]
        u[:, 3] = profile[:, 0] * step
        return u + np.cos(0.1 * step) * profile[2]

    u = field(5, 20)
    for step, found in zip(STEPS, whole_results(source, u, w=WAVELET[:, 0]), strict=True):
        assert found.tobytes() == source(u.copy(), step=step, w=WAVELET[:, 0]).tobytes()


@pytest.mark.parametrize("traced", [whole_results, block_results])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("if bool(step > 2): u = u + 1", "decides by the number of the step"),
        ("for _ in range(step): u = u + 1", "counts a loop, by the number of the step"),
        ("u = u + float(step)", "number of another type"),
        ("u = u + np.array([step])", "array of NumPy's"),
        ("u = u + (1, 2, 3)[step]", "picks cells, or counts a loop"),
    ],
)
def test_what_is_refused_has_its_line(traced: Callable[..., Any], line: str, says: str) -> None:
    function = compiled(f"def f(u, step):\n    pass\n    {line}\n    return u\n", K=np.arange(9.0))
    with pytest.raises(NotTraceable, match=says) as refused:
        traced(function, field(5, 20))
    assert refused.value.line == 3


def test_a_number_whose_type_changes_is_refused() -> None:
    function = compiled("def f(u, step):\n    return u * 2 ** -step\n")
    with pytest.raises(UserError, match=r"step 1 cannot be computed.*int in step 0 is float"):
        whole_results(function, field(5, 20))


@pytest.mark.parametrize(
    ("index", "needed"),
    [("step", 100), ("step + 1", 101), ("2 * step", 199), ("t[step]", 51), ("np.minimum(step, 11)", None),
     ("step % 12", None), ("min(step, 3)", None), ("-step", 99), ("2 ** step % 7", None)],
)  # fmt: skip
def test_tables_are_as_long_as_the_steps_need(index: str, needed: int | None) -> None:
    tape = StepTape()
    tables = given_of(tape, {"w": WAVELET, "t": np.arange(100) % 51})
    scope = {"step": tape.step, "np": np, "min": np.minimum, **tables}
    eval(f"w[{index}, 1]", scope)
    tape.check(6)
    if needed is None:
        tape.check(100)
        return
    with pytest.raises(UserError, match="w is too short for 100 steps") as refused:
        tape.check(100)
    assert refused.value.expected == f"{needed} rows"


K = np.random.default_rng(4).random((7, 20), dtype=np.float32)
NAMES = {
    "K": K,
    "HOT": K > 0.6,
    "ROW": np.arange(20.0) ** 2,
    "COLUMN": np.arange(7.0)[:, None] / 3,
    "math": math,
}
NUMBERS = [
    "step",
    "w[step]",
    "0.5 * m[step + 1, 2]",
    "math.cos(0.2 * step)",
    "np.where(step > 3, 1, 2)",
    "1.5",
]
STATEMENTS = [
    "u[1:-1] += {n} * (u[2:] - u[:-2])",
    "u[{i}] = {n}",
    "u[:, {i}] = {n} * COLUMN[:, 0]",
    "u = u + {n} * K",
    "u[HOT] = {n}",
    "u[1:-1, 2:] -= K[2:, :-2] * {n}",
    "u = np.where(x > {n}, u, v)",
    "v = np.roll(u, {i}, 1) * COLUMN - y * {n}",
    "v[::2] = ROW + {n}",
    "u = u + here.uniform(3, step) * {n}",
    "u, v = v, u * 1",
]


@given(st.data())
@settings(max_examples=settings.default.max_examples // 4)
def test_random_programs_of_time_and_place(data: st.DataObject) -> None:
    lines = ["def f(u, here, step, w, m):", "    y, x = here.coordinates()", "    v = u * 2"]
    for _ in range(data.draw(st.integers(1, 5))):
        words = {"n": data.draw(st.sampled_from(NUMBERS)), "i": data.draw(st.integers(-6, 6))}
        lines.append("    " + data.draw(st.sampled_from(STATEMENTS)).format(**words))
    function = compiled("\n".join([*lines, "    return u - v", ""]), **NAMES)
    tables, u = {"w": WAVELET[:, 0], "m": WAVELET.astype("f4")}, field(7, 20, dtype="f4")
    found = whole_results(function, u, STEPS, ("here", "step"), **tables)
    for step, result in zip(STEPS, found, strict=True):
        here = BlockContext(0, 1, "", (0, 0), u.shape, u.shape, None, np, step)
        wanted = function(u.copy(), here, step, **tables)
        assert (result.dtype, result.tobytes()) == (wanted.dtype, wanted.tobytes()), "\n".join(lines)
