"""NumPy's functions on traced arrays of both kinds compute what NumPy computes, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from tests.facts import whole_positions

TABLE = np.array([1.5, -2.0, 0.25, 7.0])
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-9, 1.0, -2.5]


def heaviside(u, v):
    return np.heaviside(u[..., 0], 0.5), np.heaviside(v[..., 0], u[..., 1])


def parts_of_numbers(u, v):
    fraction, whole = np.modf(u[..., 0])
    quotient, rest = divmod(v[..., 0], 0.75)
    return fraction, whole, quotient, rest


def finite(u, v):
    return np.nan_to_num(u[..., 0]), np.nan_to_num(v[..., 0], nan=-1, posinf=9), np.isneginf(u[..., 1])


def near(u, v):
    return np.isclose(u[..., 0], v[..., 0], rtol=0.5), np.isclose(u[..., 0], 1, equal_nan=True)


def selected(u, v):
    a, b = u[..., 0], v[..., 0]
    return (
        np.select([a > 1, b > 1], [a, b * 2], 7),
        np.select([a > 1, a > 0], [1, 2]),
        np.select([a > b], [a], np.nan),
    )


def looked_up(u, v):
    labels = np.where(u[..., 0] > 0, 2, 1)
    return (
        np.take(TABLE, labels),
        np.take(TABLE, np.floor(np.nan_to_num(v[..., 0]) % 100).astype(int), mode="wrap"),
        np.take(np.arange(6).reshape(2, 3), (u[..., 1] > 0).astype("u1"), axis=0)[..., 1],
    )


def tables(u, v):
    return (
        np.interp(u[..., 0], [-1.0, 0.0, 2.5], [3.0, 4.0, 1.0]),
        np.interp(v[..., 0], [-1.0, 0.0, 2.5], [3.0, 4.0, 1.0], left=-9, right=np.inf),
    )


def vectors(u, v):
    return np.cross(u, v), np.linalg.norm(u, axis=-1), np.linalg.norm(v, 1, axis=-1), np.ptp(u, axis=-1)


def reduced(u, v):
    return (
        np.maximum.reduce(u, axis=-1),
        np.add.reduce(v, axis=-1),
        u.prod(axis=-1),
        (u > 0).any(axis=-1),
        np.all(v > 0, axis=-1),
        u.mean(axis=-1),
    )


def reordered(u, v):
    return (
        np.flip(u, -1),
        u[..., ::-1] - v,
        np.take(v, [2, 0], axis=-1),
        np.repeat(u, 2, axis=-1)[..., 1:3],
        np.tile(v, (1, 1, 2))[..., 2:4],
        np.squeeze(u[..., 1:2]) * 1,
    )


def from_methods(u, v):
    a = u[..., 0]
    return a.clip(-1, 1), a.round(), a.conj(), v.swapaxes(0, 1).transpose(1, 0, 2), a.real, np.sinc(a)


FUNCTIONS = [
    (heaviside, 2), (parts_of_numbers, 4), (finite, 3), (near, 2), (selected, 3), (tables, 2), (vectors, 4),
    (looked_up, 3), (reduced, 6), (reordered, 6), (from_methods, 6),
]  # fmt: skip


def cells(dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(20, 18, 3)) * 3
    if np.dtype(dtype).kind == "f":
        values[:3, :9] = rng.choice(SPECIAL, (3, 9, 3))
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("function", "results"), FUNCTIONS)
def test_blocks_and_whole_arrays_have_numpys_bits(
    function: Callable[..., Any], results: int, dtype: str
) -> None:
    arrays = [cells(dtype, 0), cells(dtype, 1)]
    names = [f"r{n}" for n in range(results)]
    with np.errstate(all="ignore"):
        expected = function(*(one.copy() for one in arrays))
        operands = [Operand(name, one.dtype, (3,)) for name, one in zip("uv", arrays, strict=True)]
        found = []
        if function is not looked_up:  # by numpy.take, of whose indices NumPy's protocol does not know
            block = trace(function, operands, ((0, 0), (0, 0)), {}, frozenset(), names)
            found.append(evaluate(block, arrays, ((0, 0), (0, 0))))
        inputs = [WholeInput(name, one.shape, one.dtype) for name, one in zip("uv", arrays, strict=True)]
        whole = trace_whole(function, inputs, {}, names, axes=(0, 1))
        found.append(whole_positions.evaluate(whole, arrays))
        for results_of in found:
            for one, other in zip(results_of, expected, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                same = (one == other) | (np.isnan(one) & np.isnan(other))
                assert same.all()
                assert np.array_equal(np.signbit(one), np.signbit(other)) or np.isnan(other).any()


@pytest.mark.parametrize(
    ("function", "reason", "hint"),
    [
        (lambda u: np.take(TABLE, u[..., 0].astype(int)), "outside", "mode='clip'"),
        (
            lambda u: np.take(np.arange(99.0), np.where(u > 0, 1, 0)),
            "looks up a table of shape",
            "at most 32",
        ),
        (lambda u: np.take(u, [1, 2], axis=0), "gathers cells", "slices"),
        (lambda u: np.cross(u[..., :2], u[..., 1:]), "of other vectors", r"a\[\.\.\., 0\]"),
        (lambda u: np.linalg.norm(u, "fro", axis=-1), "ord=fro", "sum of squares"),
    ],
)
def test_what_has_no_bound_or_no_place_is_refused(
    function: Callable[..., Any], reason: str, hint: str
) -> None:
    with pytest.raises(NotTraceable, match=reason) as refused:
        trace_whole(function, [WholeInput("u", (20, 18, 3), np.dtype("f8"))], {}, ["r"], axes=(0, 1))
    assert refused.value.hint is not None
    assert re.search(hint, refused.value.hint)
