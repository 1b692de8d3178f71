"""NumPy's functions that move cells, and cells that conditions pick, on whole arrays: NumPy's bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.trace.refusal import NotTraceable
from tests.unit.compiler.test_whole import check, compiled, field, traced


def picks(u, v):
    u[u > 1] = v[u > 1]
    mask = v < -1
    v[mask] += 2
    v[mask & (u > 0)] *= u[mask & (u > 0)] ** 2 - 1
    np.putmask(u, u < -3, v)
    np.place(v, v > 3, 0.5)
    np.copyto(u, v, where=u == 0)
    u[u < 0] = 0.5 * u[u < 0] - 1 / (2 + u[u < 0] ** 2)
    np.heaviside(v, 0.5, out=v)
    inside = u[2:-2, 1:-3]
    inside[inside < 0] = -inside[inside < 0]
    return u, v


def by_parts(u, v):
    low = np.piecewise(u, [u < -1, u > 1], [lambda x: x * 2, np.sqrt, 0.25])
    return low, np.select([u > v, v > 2], [u, v], -1)


def triangles(u, v):
    return np.triu(u) + np.tril(v, -2), np.triu(v[1:-1, 2:], 3)[:, :-2] * u[1:-1, 2:-2] + 0 * u[2:, 4:]


def mirrored(u, v):
    u[:3] = u[5:2:-1]
    v[:, -2:] = v[:, -4:-6:-1] * 2
    u[0:3] += v[3:0:-1] - u[2::-1]
    v[4:1:-1, 3] = u[1:4, 3]
    return u, v


def joined(u, v):
    both = np.hstack([u[:, :1], u[:, 1:]]) + np.vstack([v[:2], v[2:]])
    return both, np.diff(u, axis=0, prepend=0.5) + np.diff(v, n=2, axis=1, append=[[1.0, 2.0]] * 19)


@pytest.mark.parametrize("function", [picks, by_parts, mirrored])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_functions_of_two_fields(function: Callable[..., Any], dtype: str) -> None:
    with np.errstate(all="ignore"):
        check(function, field(19, 17, dtype=dtype), field(19, 17, dtype=dtype, seed=1), names=("u", "v"))


@pytest.mark.parametrize(
    "function",
    [
        lambda u: np.hstack([2, u[1:-1], -1.5]),
        lambda u: u * np.hstack([2, np.ones(len(u) - 2), 2]),
        lambda u: np.append(u[1:], 3),
        lambda u: np.append([1.0, 2.0], u[2:]),
        lambda u: np.vstack([u, 2 * u, 3 * u])[1],
        lambda u: np.dstack([u, 2 * u])[0][:, 1],
    ],
)
def test_joins_of_lines_and_numbers(function: Callable[..., Any]) -> None:
    check(function, field(12))


def test_append_without_an_axis_flattens() -> None:
    with pytest.raises(NotTraceable, match="flattens"):
        traced(lambda u: u + np.append(u, u)[5], [field(6, 7)], ["u"])


def test_triangles_and_joins() -> None:
    check(lambda u, v: np.triu(u) + np.tril(v, -2), field(19, 17), field(19, 17, seed=1))
    check(lambda u: np.triu(u, -4), field(19, 17))
    check(lambda u, v: np.hstack([u[:, :1], v[:, 1:]]), field(19, 17), field(19, 17, seed=1))
    check(lambda u, v: np.vstack([u[:3], v[3:]]), field(19, 17), field(19, 17, seed=1))
    check(lambda u: np.diff(u, axis=0, prepend=0.5) + np.diff(u, axis=0, append=u[-1:]), field(19, 17))
    check(lambda u: np.roll(u, (2, -3), axis=(0, 1)) + np.roll(u, 4, axis=(0, 1)), field(19, 17))


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "reflect", "reflect_type": "odd"},
        {"mode": "symmetric", "reflect_type": "odd"},
        {"mode": "constant", "constant_values": ((1, 2), (3, 4))},
        {"mode": "maximum", "stat_length": 3},
        {"mode": "minimum", "stat_length": ((1, 2), (2, 3))},
        {"mode": "mean", "stat_length": 3},
        {"mode": "median", "stat_length": 3},
        {"mode": "median", "stat_length": ((1, 1), (2, 3))},
    ],
    ids=str,
)
def test_other_padding(options: dict[str, Any], dtype: str) -> None:
    def padded(u):
        wide = np.pad(u, ((0, 0), (1, 2)), **options)
        return wide[:, 1:-2] + wide[:, :-3] * wide[:, 3:]

    check(padded, field(12, 15, dtype=dtype))


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_with_equal_coordinates(order: int) -> None:
    def slope(u):
        down, across = np.gradient(u, np.arange(12) * 0.5, 2.0, edge_order=order)
        return down - across

    check(slope, field(12, 15))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_convolutions(mode: Any, count: int) -> None:
    weights = np.random.default_rng(3).normal(size=count)
    skip = {"full": count - 1, "same": 0, "valid": 0}[mode]

    def smoothed(u):
        line = np.convolve(u, weights, mode)
        return np.pad(line[skip // 2 : len(line) - (skip - skip // 2)], (0, len(u) - len(line) + skip))

    check(smoothed, field(40))
    check(lambda u: np.correlate(u, weights, "same"), field(40))


@pytest.mark.parametrize(
    ("line", "says", "hint"),
    [
        ("u[u > 0] = v[v > 0]", "different conditions", r"np\.where"),
        ("u[u > 0] = v * u[u > 0]", "different conditions", r"np\.where"),
        ("u[u > 0] = v", "cells that a condition picks", r"a\[mask\] = b\[mask\]"),
        ("n = len(u[u > 0])", "cells that a condition picks|no len", ""),
        ("u = np.pad(u, 1, mode='empty')", "pads by mode='empty'", "constant"),
        ("u = np.pad(u, 1, mode='mean')", "statistic of", "stat_length="),
        ("u = np.convolve(u[0], v[0])", "convolves two fields", "numbers"),
        ("u[...] = np.flip(u)", "reverses", "rows that are reversed"),
    ],
)
def test_what_is_refused_says_what_works(line: str, says: str, hint: str) -> None:
    function = compiled(f"def f(u, v):\n    pass\n    {line}\n    return u\n")
    with pytest.raises(NotTraceable, match=says) as refused:
        traced(function, [field(21, 20), field(21, 20)], ("out",))
    assert refused.value.line == 3
    assert re.search(hint, refused.value.hint or "")
