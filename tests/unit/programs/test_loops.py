"""Loops and conditions on values in functions of whole arrays, compared with NumPy."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from fused import GXX

from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole import graph
from meshrun.runner.compiler.whole.between import control_flow
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.stages import StagedProgram
from meshrun.runner.report.phases import Phases
from meshrun.runner.world.world import open_world
from tests.facts.looping_programs import LoopingPrograms, compiled
from tests.facts.program_runs import plain, planned, run_program
from tests.facts.reducing_steps import five_points

GRIDS = [(1, 1), (3, 1), (1, 2)]


def field(*shape: int, dtype: Any = float, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).random(shape) * 8 - 4).astype(dtype)


def check(
    function: Callable[..., Any], *arrays: Any, names: Any = ("out",), rounded: float = 0, **parameters: Any
) -> StagedProgram:
    """Compare the results with NumPy's, to the bit or so far, and on several grids to the bit."""
    with np.errstate(all="ignore"):
        return _checked(function, arrays, names, rounded, parameters)


def _checked(function: Any, arrays: Any, names: Any, rounded: float, parameters: Any) -> StagedProgram:
    wanted = plain(function, arrays, **parameters)
    program = planned(function, arrays, names, **parameters)
    first: list[Any] = []
    for grid in GRIDS:
        found = run_program(program, arrays, grid)
        first = first or found
        for one, other, want in zip(found, first, wanted, strict=True):
            assert (one.dtype, one.shape) == (want.dtype, want.shape)
            assert one.tobytes() == other.tobytes(), f"{grid}: {one}\n{other}"
            np.testing.assert_allclose(one, want, rtol=rounded, atol=rounded)
    return program


def outline(program: StagedProgram) -> list[Any]:
    """Return the kinds of a program's loops, with those in their bodies."""
    return [(stage.loop.kind, *outline(stage.body)) for stage in program.loops]


def exact_sum(values: Any) -> Any:
    """Return the sum rounded once, as a program computes it."""
    return values.dtype.type(math.fsum(values.ravel().astype(float)))


# Loops over a range


def jacobi(p, b, *, n: int = 7):
    for _ in range(n):
        q = p.copy()
        p[1:-1, 1:-1] = (q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1] - 0.25 * b[1:-1, 1:-1]) / 4
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
    return p


def by_index(p, b, *, n: int = 7):
    table = np.array([0.5, 0.25, 0.125, 1, 2, 3, 4, 5, 6])
    for i in range(n):
        q = p.copy()
        q[1:-1] = (p[2:] + p[:-2]) / 2 + b[1:-1] * i + table[i] * 2.0**-i
        p = q
    return p * i


def swapped(p, b, *, n: int = 7):
    q = p.copy()
    for _ in range(n):
        q[1:-1] = (p[2:] + p[:-2]) / 2 + b[1:-1]
        p, q = q, p
    return p, q


def shifted(p, b, *, n: int = 9):
    u0, u1 = p, b
    for _ in range(n):
        u0, u1 = u1, 2 * u1 - u0 + 0.1 * (np.roll(u1, 1, 0) - 2 * u1 + np.roll(u1, -1, 0))
    return u0, u1


def numbers(p, b, *, n: int = 8):
    k, scale, sign, last = 0, 1.0, True, None
    for i in range(3, 3 + 2 * n, 2):
        k += i
        scale *= 0.5
        sign = not sign
        p = np.roll(p, 1, axis=1) * scale + b * (0.5 if i == 7 else 0.25)
        last = i
    return p, b + k * scale + last


def views(p, b, *, n: int = 6):
    inner, rows = p[1:-1, 1:-1], [p[0], p[-1]]
    for _ in range(n):
        inner[...] = (p[2:, 1:-1] + b[:-2, 1:-1]) / 2
        rows[0][...] = inner[0, 3]
        rows[1] += p[1]
    return p


def invariant(p, b, *, n: int = 6):
    scale = b.max()
    for _ in range(n):
        p = np.roll(p, 1, 0) * (np.sqrt(np.abs(b)) + np.roll(b, 1, 1)) / (scale + 9)
    return p


def replaced_in_the_first(p, b, *, n: int = 7):
    """The first iteration is unlike the others."""
    p = p.astype(np.float32)
    for _ in range(n):
        p = np.roll(p, 1, 0) * b
    return p


def with_sums(p, b, *, n: int = 6):
    for _ in range(n):
        m = np.max(np.abs(p))
        p = np.roll(p, 1, 0) / (m + 1) + b
    return p + m


def nested(p, b):
    for i in range(5):
        for j in range(5):
            p[1:-1] = (p[2:] + p[:-2]) / 2 + 0.001 * b[1:-1] * j * i
        p[0] = p[-1].max()
    return p


LOOPS: dict[str, Any] = {
    one.__name__: one
    for one in (
        jacobi,
        by_index,
        swapped,
        shifted,
        numbers,
        views,
        invariant,
        replaced_in_the_first,
        with_sums,
        nested,
    )
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_a_range_are_traced_once(name: str, dtype: str) -> None:
    function = LOOPS[name]
    names = ("a", "b")[: 2 if name in ("swapped", "shifted", "numbers") else 1]
    program = check(function, field(13, 11, dtype=dtype), field(13, 11, dtype=dtype, seed=1), names=names)
    assert outline(program)[0][0] == "for"


@pytest.mark.parametrize("name", ["jacobi", "by_index", "swapped", "shifted", "numbers", "views"])
def test_loops_have_the_bits_of_their_iterations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, arrays = LOOPS[name], [field(9, 8), field(9, 8, seed=1)]
    names = ("a", "b")[: 2 if name in ("swapped", "shifted", "numbers") else 1]
    looped = run_program(planned(function, arrays, names), arrays, (2, 1))
    monkeypatch.setattr(control_flow, "FEW", 1000)
    program = planned(function, arrays, names)
    assert outline(program) == []
    for one, other in zip(run_program(program, arrays, (2, 1)), looped, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_loop_of_cells_by_themselves_is_one_kernel() -> None:
    def polynomial(u, *, n: int = 20):
        total = u * 0
        for i in range(n):
            total = total * u + i
        return total

    assert len(check(polynomial, field(6, 5)).stages) == 1


def test_a_loop_that_reads_a_value_of_before_it_and_changes_the_input() -> None:
    def function(u, v):
        for _ in range(6):
            u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return v + u[3, 4], u

    check(function, field(8, 7), field(8, 7, seed=2), names=("v", "u"))


# Conditions


def until(p, b):
    err, k = 1.0, 0
    while err > 0.2:
        q = p.copy()
        q[1:-1] = (p[2:] + p[:-2]) / 2
        err = np.abs(q - p).max()
        p = q
        k += 1
    return p, np.zeros_like(b) + err * k


def until_with_sweeps(p, b):
    err, k = p.max() - p.min(), 0
    while err > 0.5 and k < 30:
        for j in range(6):
            p[1:-1] = (p[2:] + p[:-2]) / 2 + 0.001 * b[1:-1] * j
        err = p.max() - p.min()
        if k % 3 == 0:
            p *= 0.9
        k += 1
    return p, b * k


def swapped_until(p, b):
    q, d = p.copy(), p.max()
    while d > 2:
        q[1:-1] = (p[2:] + p[:-2]) / 2.1
        p, q = q, p
        d = p.max()
        p[0] *= 0.9
        p[-1] *= 0.9
    return p, q


def broken(p, b):
    for i in range(100):
        q = p.copy()
        q[1:-1, 1:-1] = (p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]) / 4
        change = np.abs(q - p).max()
        p, last = q, i
        if change < 0.3:
            break
    return p, b * last


def checked_now_and_then(p, b):
    k = 0
    while True:
        p = 0.9 * p + 0.05 * np.roll(p, 1, 0)
        k += 1
        if k % 5 == 0 and p.max() < 1:
            break
    return p, b + k


def continued(p, b):
    for _ in range(12):
        p = np.roll(p, 1, 1) + 0.125 * b
        if p.max() > 4:
            continue
        p = p * 1.5
    return p, b


def early(p, b):
    if p.max() > 3.999:
        return p * 2, b
    for _ in range(50):
        p = p * 0.9 + np.roll(p, 1, 0) * 0.05
        if p.max() < 1.5:
            return p, b + 1
    return b, p


def branches(p, b):
    m = p.max()
    if m > 3.5:
        p = p * 0.5
    elif m > 1:
        p = p + b.min()
    else:
        p = p - 1
    if b.min() < -3 and not m > 100:
        p[1:-1] += b[2:] * (2 if m > 3 else 3)
    return p, b * (m if m > 2 else m / 2)


def copied_in_a_branch(p, b):
    if p.max() > 1:
        q = p.copy()
        q[0] = 7
    else:
        q = b * 2
        q[1] = 8
    if b.max() > 1:
        r = b.copy()
        r[2] = q[0, 0]
    return q, r


def never(p, b):
    while p.max() > 1000:
        p = np.roll(p, 1, 0)
    if p.max() > 1000:
        for _ in range(10):
            p = np.roll(p, 1, 0)
    return p, b


def not_a_number(p, b):
    r = p.max() * np.nan
    while r > 0.5:
        p = np.roll(p, 1, 0)
        r = p.max()
    return p, b


# A variable that is one array or another: what is written to one name is written to the other.


def another_name(p, b):
    x = p if p.max() > 1 else b
    p += 1
    y = p if p.max() > 1000 else b
    y[1:] *= 0.5
    return x * 2 + p, b - y


def another_name_in_an_if(p, b):
    x = b
    if p.max() > 1000:
        x = p
    x[1:] += 1
    b[0] = x[-1] + 2
    return p, x


def another_name_in_a_loop(p, b):
    x = p if b.max() > 1 else b
    for _ in range(7):
        x[1:-1] = 0.5 * (p[2:] + b[:-2])
        p[0] = x[1]
        y = x if p[3, 3] > 0.5 else b
        y *= 0.9
    return p, b * x


def names_that_change_places(p, b):
    for _ in range(9):
        if p[0, 0] > 1:
            p, b = b, p
        p[0] += 1
    return p, b


CONDITIONS: dict[str, Any] = {
    one.__name__: one
    for one in (
        until,
        until_with_sweeps,
        swapped_until,
        broken,
        checked_now_and_then,
        continued,
        early,
        branches,
        copied_in_a_branch,
        never,
        not_a_number,
        another_name,
        another_name_in_an_if,
        another_name_in_a_loop,
        names_that_change_places,
    )
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_on_values(name: str, dtype: str) -> None:
    arrays = field(13, 11, dtype=dtype), field(13, 11, dtype=dtype, seed=1)
    check(CONDITIONS[name], *arrays, names=("p", "b"))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_conjugate_gradients_to_the_bit(dtype: str) -> None:
    def solve(b, total):
        x, r = np.zeros_like(b), b.copy()
        p, rr = r.copy(), total(r * r)
        while np.sqrt(rr) > 1e-3:
            q = five_points(p)
            alpha = rr / total(p * q)
            x += alpha * p
            r -= alpha * q
            new = total(r * r)
            p = r + new / rr * p
            rr = new
        return x

    b = field(12, 9, dtype=dtype)
    wanted = solve(b, exact_sum)
    program = planned(lambda b: solve(b, np.sum), [b], ["x"])
    assert outline(program) == [("while",)]
    for grid in GRIDS:
        assert run_program(program, [b], grid)[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("start", [1.0, 1])
def test_a_number_of_pythons_becomes_a_value_in_a_loop(start: float) -> None:
    """As conjugate gradients' relatives write it: rho = alpha = 1.0."""

    def function(u):
        before = ratio = start
        while np.abs(u).max() > 0.1:
            high = np.abs(u).max()
            u = u * (0.5 + 0.001 * ratio)
            ratio = high / before
            before = high
        return u

    check(function, field(9, 8))


# Errors that a value decides

UNSTABLE = """
def f(u):
    if np.isnan(u).any():
        raise FloatingPointError("unstable")
    elif u.max() > 1e9:
        raise ValueError(f"too high: {u.max()}")
    else:
        u = u * 2
    for k in range(20):
        u = u * 0.5
        if u.max() < 0.1:
            break
    else:
        raise RuntimeError
    return u
"""


def test_errors_that_are_not_raised_change_nothing() -> None:
    check(compiled(UNSTABLE), field(9, 8))


# What is refused


@pytest.mark.parametrize("handler", ["Exception", "StopIteration", "(TypeError, StopIteration)", ""])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "while True:\n            u = u * 0.5\n            if u.max() < 0.1: raise StopIteration",
            "StopIter",
        ),
        ("if u.max() > 0:\n            u = u * 0.5\n            raise StopIteration", "StopIteration"),
        ("if u.max() > 0:\n            raise StopIteration", "StopIteration"),
        ("u = u - float(u.sum())", "converts a value"),
        ("u = u - u[0]", "one row"),
    ],
)
def test_a_handler_does_not_hide_what_is_refused(body: str, says: str, handler: str) -> None:
    text = f"def f(u):\n    try:\n        {body}\n    except {handler}:\n        pass\n    return u\n"
    with pytest.raises(NotTraceable, match=says) as refused:
        planned(compiled(text), [field(8, 8)], ["out"])
    assert refused.value.line in (3, 4, 5)


def test_a_loop_over_cells_that_would_never_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass reads all cells of the pass before, one by one."""

    def function(u):
        for _ in range(3):
            v = u.copy()
            for j in range(1, u.shape[0]):
                for i in range(1, u.shape[1]):
                    u[j, i] = v[j, i] - 0.1 * (v[j, i] - v[j, i - 1]) - 0.2 * (v[j, i] - v[j - 1, i])
        return u

    check(function, field(4, 5))
    monkeypatch.setattr(graph, "MOST_REWRITTEN", 3000)
    with pytest.raises(NotTraceable, match="many cells one by one") as refused:
        planned(function, [field(6, 7)], ["u"])
    assert refused.value.line
    assert "slices" in str(refused.value.hint)


def test_handlers_of_pythons_own_errors_do_what_they_did() -> None:
    text = """
def f(u):
    try:
        v = {}["a"]
    except KeyError:
        v = u * 2
    try:
        for k in range(10):
            v = v * 0.5
            if k == 3:
                raise StopIteration
    except StopIteration:
        v = v + 1
    return v
"""
    check(compiled(text), field(9, 8))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("while u.max() > 1: u = u[1:]", "loops on a value, and u .* becomes"),
        (
            "h = []\n    while u.max() > 1:\n        u = np.roll(u, 1, 0)\n        h.append(u)",
            "a list, dictionary",
        ),
        ("if u.max() > 1: u = u[1:]", "branches on a value, and u"),
        ("v = w = u * 1\n    while v.max() > 1: v = v * 0.5 + 0 * w", "w shares memory"),
    ],
)
def test_what_is_refused_has_its_line(text: str, says: str) -> None:
    with pytest.raises(NotTraceable, match=says) as refused:
        planned(compiled(f"def f(u):\n    pass\n    {text}\n    return u\n"), [field(8, 8)], ["out"])
    assert refused.value.line in (3, 4)


# Random programs

# What a loop or a branch leaves must be like what it finds: these say so, with the line.
UNLIKE = (
    *(" becomes ", "shares memory with another", "two arrays become one", "has another name"),
    *("another name of", "lists of points", "operations for each cell", "made of points", "is deleted"),
)
PROGRAMS = [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 200))]


@pytest.mark.parametrize("seed", PROGRAMS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "c16"])
def test_random_programs(seed: int, dtype: str) -> None:
    """Numbers rather than Hypothesis: to shrink a program takes minutes, and few examples give few lines."""
    kind = np.dtype(dtype).kind
    text = LoopingPrograms(random.Random(f"{seed} {dtype}"), kind).text(depth=2)
    number = np.array(3, dtype) if kind == "i" else np.array(0.25)
    u, v = field(7, 6, dtype=dtype), field(7, 6, dtype=dtype, seed=3)
    if kind == "c":
        u, v = u + 1j * v, v - 0.5j * u
    try:
        check(compiled(text), u, v, number, names=("u", "v", "t"), rounded=1e-12 if kind == "c" else 0)
    except NotTraceable as refused:
        if not (refused.line and any(words in refused.reason for words in UNLIKE)):
            raise
        pytest.skip(refused.reason)


# Values that have two names


def two_names(u):
    largest = np.max(u)
    left = largest
    while left > 0.5:
        left = left * 0.5
        u = np.roll(u, 1, 0) * left
    return u * largest


def one_becomes_another(u):
    a, b = np.max(u), np.min(u)
    c = a
    while a > 0.5:
        a, b, c = b, c * 0.5, a
        u = np.roll(u, 1, 0) + c
    return u + a * 2 + b * 3 + c


def in_a_branch(u):
    a = b = np.max(u)
    for _ in range(7):
        if np.max(u) > 1:
            b = min(a, np.max(u) * 0.5)
            u = np.roll(u, 1, 0) * 0.5
    return u + a - b


@pytest.mark.parametrize("function", [two_names, one_becomes_another, in_a_branch])
@pytest.mark.parametrize("scale", [1, 0.1])
def test_two_names_of_a_value_may_get_different_values(function: Any, scale: float) -> None:
    check(function, field(7, 6) * scale)


# Numbers of Python that a loop counts


COUNTED = {
    "in a condition after it": "    if k % 3 == 1:\n        u = u + 1\n",
    "in another loop": (
        "    while k < 12 and np.max(u) > 0.001:\n        k += 1\n        u = np.roll(u, 1, 0) * 0.5\n"
    ),
    "in a comparison with another": "    j = k // 2\n    u = u + 1 if j != k else u - 1\n",
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_a_loop_counts_is_compared_as_python_does(name: str) -> None:
    loop = (
        "    k = 0\n    while k < 9 and u.max() > 0.01:\n        k += 1\n        u = np.roll(u, 1, 0) * 0.5\n"
    )
    check(compiled(f"def f(u):\n{loop}{COUNTED[name]}    return u + k\n"), field(7, 6))


def test_a_loop_within_an_iteration_finds_the_numbers_of_that_iteration() -> None:
    """The host makes them; those of the next iteration are not there yet."""

    def function(u):
        turns, limit = 0, 0.5
        while turns < 3 and u.max() < 1e6:
            u[2] += u.max()
            while u.min() < limit + turns:
                u += 0.25
            turns, limit = turns + 1, limit * 1.5
        return u + limit

    check(function, field(7, 6))


# Points beside loops


def test_points_before_an_inner_loop_are_part_of_an_iteration() -> None:
    text = (
        "def f(u):\n    for _ in range(6):\n        u[ys, xs] += 0.5\n        while u.max() > 1:\n"
        "            u = np.roll(u, 1, 0) * 0.5\n    return u\n"
    )
    assert len(outline(check(compiled(text), field(7, 6)))) == 1


def test_a_list_of_points_that_a_loop_changes_is_refused() -> None:
    text = (
        "def f(u):\n    seen = u[ys, xs]\n    while u.max() > 0.1:\n        seen = seen + u[ys, xs]\n"
        "        u = np.roll(u, 1, 0) * 0.5\n    u[ys, xs] = seen\n    return u\n"
    )
    with pytest.raises(NotTraceable, match="loops on a value, and seen") as refused:
        planned(compiled(text), [field(7, 6)], ["u"])
    assert refused.value.line == 3


def test_a_condition_that_the_next_iteration_has_as_another_value() -> None:
    """What ends the loop is what the state had, which is replaced."""

    def function(u):
        first, second, third = u.max() > 0, u.max() > 1, u.max() > 2
        while first:
            u = np.roll(u, 1, 0) * 0.75
            first, second, third = second, third, u.max() > 2
        return u

    check(function, field(9, 8))
    check(function, field(9, 8) / 5)


# Arrays of shape () that become scalars


BECOMES_A_SCALAR = {
    "in a branch": "    if np.max(u) > limit:\n        t = t + np.max(u)",
    "in a loop": "    while np.max(u) > abs(limit):\n        u, t = u / 2, t + np.max(u)",
    "in a counted loop": "    for k in range(3):\n        u = u + k\n        t = t * 2 + np.max(u)",
    "in the inner one of two loops": (
        "    for _ in range(2):\n        for _ in range(3):\n            u = u * 0.5\n"
        "            if np.max(u) > limit:\n                t = t + np.max(u)"
    ),
    "as a choice": "    if np.max(u) > limit:\n        t = t + 1\n    else:\n        t = t - 1",
}


@pytest.mark.parametrize("name", BECOMES_A_SCALAR)
@pytest.mark.parametrize("limit", [-9.0, 0.7, 99.0])
def test_an_array_of_shape_nothing_may_become_a_scalar(name: str, limit: float) -> None:
    text = BECOMES_A_SCALAR[name].replace("limit", repr(limit))
    function = compiled(f"def f(u, t):\n{text}\n    return u, t + 1\n")
    check(function, field(7, 6), np.array(0.25), names=("u", "t"))


def test_what_may_be_an_array_of_shape_nothing_or_a_scalar_is_not_changed_in_place() -> None:
    """It would change the input, or not."""
    text = "def f(u, t):\n    if np.max(u) > 1:\n        t = t + np.max(u)\n    t += 1\n    return u + t\n"
    with pytest.raises(NotTraceable, match="changes in place what is an array of shape") as failure:
        planned(compiled(text), [field(7, 6), np.array(0.25)], ("out",))
    assert failure.value.line == 4


# What an iteration costs the host


def descent(b, *, n: int = 1):
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), np.sum(r * r)
    for _ in range(n):
        q = 4 * p
        q[1:] -= p[:-1]
        q[:-1] -= p[1:]
        alpha = rr / np.sum(p * q)
        x += alpha * p
        r -= alpha * q
        before, rr = rr, np.sum(r * r)
        p = r + rr / before * p
    return x


def largest(u, *, n: int = 1):
    for _ in range(n):
        v = u.copy()
        v[1:] += u[:-1] / np.max(np.abs(u))
        u = v / 2
    return u


@pytest.mark.skipif(GXX is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("function", "most"), [(descent, 75), (largest, 90)])
def test_an_iteration_calls_few_functions(function: Any, most: int) -> None:
    """On blocks that have been used, an iteration is a list of calls that are bound to them."""
    counts = {}
    for n in (10, 30):
        program = planned(function, [field(12, 9)], ("x",), n=n)
        counts[n] = python_calls(program, field(12, 9))
    assert counts[30] - counts[10] < 20 * most


def python_calls(program: StagedProgram, cells: Any) -> int:
    """Return how many functions of Python one rank calls in a run of a program of one input."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    world = open_world("cpu")
    run = ProgramRun(world, program, (1, 1), Phases(None), compiled=True)
    assert run.prepare() == []
    plan = run.plans[0]
    assert plan is not None
    array = empty_array(world, plan, cells.dtype)
    array.interior[...] = cells
    run.arrays[0] = array
    sys.setprofile(count)
    try:
        run.take([np.empty(cells.shape, cells.dtype)])
    finally:
        sys.setprofile(None)
    return calls
