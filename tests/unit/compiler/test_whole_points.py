"""Whole arrays whose functions read and write points: what NumPy computes, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.compiler.block_function import MOST_KEPT
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.point_pass import Blocks, SeriesPass
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from tests.unit.compiler.test_whole import check, compiled, field, traced

YS, XS = np.array([2, 5, 5, 9, -1, 0]), np.array([3, 3, 8, -2, 4, 0])
MANY = np.random.default_rng(3).integers(0, 9, (2, 40))


def injected(u, before):
    """A wave with sources at its end: the points are written last."""
    new = 2 * u - before
    new[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[YS, XS] += np.array([1.0, 2, 3, 4, 5, 6])
    return new, u


def injected_first(u):
    """The stencil reads what was written."""
    u[YS, XS] = 7
    new = u.copy()
    new[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0] = new[1]
    new[YS, XS] *= 0.5
    new[:, -1] = new[:, -2]
    return new, u


def around_the_end(u):
    u[MANY[0], MANY[1]] -= u[MANY[0], MANY[1]] * np.arange(40.0)  # of a repeated point the last one counts
    return np.roll(u, 3, axis=0) + np.roll(u, -2, axis=1)


def between_lists(u):
    """Interpolation: lists that are shifted by a constant."""
    y, x = np.array([1, 4, 7]), np.array([2, 6, 5])
    u[y, x] = 0.25 * u[y, x] + 0.75 * u[y + 1, x] - u[y, x - 2]
    u[y + 1, x + 1] = -u[y, x] * np.array([1, 2, 3], np.float32)
    return u


def one_point(u):
    u[3, [1, 5, 2]] = [10, 20, 30]
    u[[7], 2] += 1
    u[np.array([[1, 2], [3, 4]]), np.array([[5], [6]])] *= np.array([[1.5, 2.5], [3.5, 4.5]])
    return u


def edge_rows(u):
    """The right side first, rows in their order, of a repeated row the last."""
    u[[0, -1]] = 7
    u[:, [0, -1]] = u[:, [1, -2]] + 1
    u[[1, 2]] = u[[2, 1]]
    u[[3, 4]] = u[2:4]
    u[[5, 5, -5]] = np.arange(3.0)[:, None]
    u[[6, 7]] = np.arange(22.0).reshape(2, 11)
    u[[8]] = np.arange(11)
    u[1:-1, [2, 4]] += np.array([2, 3])
    u[..., [-3]] *= 2
    v = u.T
    v[[0, -1]] -= 1
    return u


def accumulated(u):
    np.add.at(u, (MANY[0], MANY[1]), np.arange(40) * 0.1)
    np.subtract.at(u, (YS, XS), 2)
    np.multiply.at(u, (MANY[0], 3), 1.25)
    return u


def of_views(u):
    v = u[1:-1, 2:]
    v[YS[:4], XS[:2].repeat(2)] = 5
    v.T[[0, 1], [2, 3]] += 1
    u[::2][[1, 2], [1, 3]] = -3
    return u * 1


def components(w):
    w[YS, XS, 1] += 3
    w[YS, XS] *= 2
    w[2:][[1, 2], [1, 2]] = np.array([[1.0, 2, 3], [4, 5, 6]])
    return w


FUNCTIONS = [around_the_end, between_lists, one_point, edge_rows, accumulated, of_views]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_points_are_read_and_written(function, dtype) -> None:
    try:
        function(field(14, 11, dtype=dtype))
    except TypeError:
        pytest.skip("NumPy refuses it")
    check(function, field(14, 11, dtype=dtype))


def test_points_between_other_operations() -> None:
    check(injected, field(14, 11), field(14, 11, seed=1), names=("u", "before"))
    check(injected_first, field(14, 11), names=("new", "u"))
    check(components, field(14, 11, 3), axes=(0, 1))


STATEMENTS = (
    "u[ys, xs] {op} {k}",
    "u[ys, xs] {op} values",
    "u[ys, xs] {op} v[ys, xs]",
    "v[ys, {i}] {op} u[ys, {i}] * 2",
    "u[ys + 1, xs] = u[ys, xs] - values",
    "v = np.where(u > {k}, u, v)",
    "u[1:-1] = 0.5 * (u[2:] + u[:-2])",
    "v[:, 1:] -= u[:, :-1]",
    "u[{i}] = v[{i}]",
    "u = np.roll(u, {i}, axis=1)",
    "np.add.at(v, (ys, xs), values)",
    "v[1:][ys, xs] {op} {k}",
    "u, v = v, u * 1",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A function of two fields, as text."""
    count = draw(st.integers(1, 5))
    lists = [draw(st.lists(st.integers(low, 7), min_size=count, max_size=count)) for low in (-9, -7)]
    lines = ["def f(u, v):", f"    ys, xs = np.array({lists[0]}), np.array({lists[1]})"]
    lines += [f"    values = np.linspace(0.5, 2.5, {count})"]
    for _ in range(draw(st.integers(1, 6))):
        words = {
            "op": draw(st.sampled_from(["=", "+=", "*="])), "i": draw(st.integers(-4, 3)),
            "k": draw(st.sampled_from(["0", "1.5"])),
        }  # fmt: skip
        lines.append("    " + draw(st.sampled_from(STATEMENTS)).format(**words))
    return "\n".join([*lines, "    return u, v", ""])


@settings(max_examples=40)
@given(programs())
def test_random_programs(text: str) -> None:
    check(compiled(text), field(12, 9), field(12, 9, seed=1), names=("u", "v"))


def recorded(u, p):
    """Series of several shapes: a trace, a table of components, one cell, numbers."""
    new = u.copy()
    new[1:-1] += u[2:]
    new[YS, XS] = -1
    weights = np.array([1.0, 2, 3, 4, 5, 6])
    rows = np.array([[1, 2], [3, 4]])
    pairs = new[rows, 5] - u[rows + 2, 4] * np.array([2.0, 3])
    return new, new[YS, XS], u[YS, XS] * weights + new[YS, XS], new[3, 4], p[YS, XS], pairs, 2.5


NAMES = ("a", "b", "c", "d", "e", "f")


def test_series_are_computed_from_blocks() -> None:
    u, p = field(14, 11), field(14, 11, 3, seed=1, dtype="f4")
    inputs = [WholeInput("u", u.shape, u.dtype), WholeInput("p", p.shape, p.dtype)]
    program = trace_whole(recorded, inputs, {}, ("new",), (0, 1), NAMES)
    series = SeriesPass.of(program)
    widths = tuple(
        (
            max(program.footprint(n)[axis][0] for n in (0, 1)),
            max(program.footprint(n)[axis][1] for n in (0, 1)),
        )
        for axis in range(2)
    )
    wanted = recorded(u.copy(), p)[1:]
    padded = [np.pad(one, [*widths, *[(0, 0)] * (one.ndim - 2)], mode="wrap") for one in (u, p)]
    for number, (want, (shape, dtype)) in enumerate(zip(wanted, series.types, strict=True)):
        assert (shape, dtype) == (np.shape(want), np.asarray(want).dtype)
        # Two blocks of rows: each has its own points.
        count = len(series.cells[number].positions)
        values = np.full((len(series.cells[number].nodes), count), 99, dtype)
        for first, last in ((0, 6), (6, 14)):
            blocks = [one[first : last + sum(widths[0])] for one in padded]
            here = Blocks(np, blocks, widths, (first, 0), (last, 11), (False, True))
            mine = series.owned(number, here.first, here.last)
            values[:, mine] = series.compute(number, here)
        found = series.rows(number, values[None])[0]
        assert found.tobytes() == np.ascontiguousarray(want).tobytes()
    assert MOST_KEPT


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("u[[1, 14], [2, 3]] = 0", "IndexError: index 14 is out of bounds for axis 0 with size 14"),
        ("u[[1, 2], [2, -12]] += 1", "IndexError: index -12 is out of bounds for axis 1 with size 11"),
        ("u[[*range(9)]] = 0", "picks 9 rows of a field"),
        ("np.add.at(u, [1, 2], 1)", "picks 2 rows of a field"),
        ("u[[0, 14]] = 0", "IndexError: index 14 is out of bounds for axis 0 with size 14"),
        ("u[[0, -1]] = [1, 2]", "could not broadcast"),
        ("u[:, [0, -1, 1]] = u[:, :2]", "could not broadcast"),
        ("u[[1, 2], [3, 4]] = u[[4, 5], [3, 1]]", "different lists of points"),
        ("u[[1, 2], [3, 4]] = u[5, 5]", "different places"),
        ("u[1:3, 0] = u[[1, 2], [3, 4]]", "points"),
        ("t = u[[1, 2], [3, 4]]; t[0] = 1", "one of the points"),
        ("u[[1, 2], [3, 4]] = [1, 2, 3]", "could not broadcast|shape mismatch"),
        ("u[[1, 2], [3, 4], [0, 0]] = 1", "too many indices"),
    ],
)
def test_what_is_refused_has_its_line(line: str, says: str) -> None:
    function = compiled(f"def f(u):\n    pass\n    {line}\n    return u\n")
    with pytest.raises(NotTraceable, match=says) as refused:
        traced(function, [field(14, 11)], ("out",))
    assert refused.value.line == 3


@pytest.mark.parametrize("mutant", ["no neighbours", "first of repeated", "own block's points"])
def test_the_comparison_finds(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.compiler.whole import point_pass

    if mutant == "no neighbours":
        changed = point_pass.point_writes

        def near(program, widths):
            found = changed(program, widths)
            for cells in found.cells:
                (points,) = program.graph.points
                cells.positions = np.unique(points, axis=0)
            return found

        monkeypatch.setattr("tests.unit.compiler.test_whole.point_writes", near)
        function = injected_first
    elif mutant == "first of repeated":
        numbers = point_pass.numbers_of
        monkeypatch.setattr(
            point_pass, "numbers_of", lambda points, at, space: numbers(points[::-1], at, space)
        )
        function = around_the_end
    else:
        monkeypatch.setattr(point_pass.PointCells, "owned", lambda *_: (np.arange(0), np.empty((0, 2), int)))
        function = one_point
    names = ("new", "u") if function is injected_first else ("out",)
    with pytest.raises(AssertionError):
        check(function, field(14, 11), names=names)
