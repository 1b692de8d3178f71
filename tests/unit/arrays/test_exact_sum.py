"""Exact sums of arrays: the same number by the compiled loop, by functions, and by Python's whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.arrays import exact_sum

F4, F8 = np.dtype(np.float32), np.dtype(np.float64)


def wanted(cells: Any) -> Any:
    """Return the exact sum, rounded once to the cells' dtype."""
    flat = cells.ravel().astype(np.float64).tolist()
    if not all(map(math.isfinite, flat)):
        with np.errstate(invalid="ignore"):
            return cells.dtype.type(sum(one for one in flat if not math.isfinite(one)))
    total = sum(map(Fraction, flat), Fraction(0))
    if cells.dtype == F8:
        try:
            return np.float64(float(total))  # Python rounds once
        except OverflowError:
            return np.float64(math.inf if total > 0 else -math.inf)
    # Of the floats near it, the nearest; of two, the one with an even last digit.
    near = np.float32(float(total))
    with np.errstate(over="ignore"):
        candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    finite = [one for one in candidates if np.isfinite(one)]
    return min(finite, key=lambda one: (abs(Fraction(float(one)) - total), int(one.view(np.uint32)) & 1))


@pytest.fixture(params=["loop", "functions"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(exact_sum, "COMPILED_CELLS", 1 if request.param == "loop" else 1 << 60)
    if request.param == "loop" and exact_sum._loop("float32") is None:
        pytest.skip("needs a C++ compiler")
    return str(request.param)


def total(*parts: Any) -> Any:
    words = exact_sum.zero_words()
    for part in parts:
        exact_sum.add_cells(words, np, part)
    return exact_sum.rounded(words, parts[0].dtype)


def cells_of(kind: str, dtype: Any, shape: tuple[int, ...] = (7, 1301)) -> Any:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=shape)
    limits = np.finfo(dtype)
    made = {
        "noise": noise,
        "cancels": np.concatenate([noise, -noise[::-1, ::-1].astype(dtype)], axis=1),
        "zeros": np.zeros(shape),
        "a spot in zeros": np.where(np.arange(shape[1]) == 700, 3.25, np.zeros(shape)),
        "decays": np.exp(-(np.linspace(0, 25, shape[1]) ** 2)) * np.ones(shape),
        "every size": noise * 2.0 ** rng.integers(limits.minexp, limits.maxexp - 16, shape),
        "below the normal range": noise * float(limits.tiny) * 0.01,
        "huge": noise * (float(limits.max) / 4096),
    }[kind]
    with np.errstate(over="ignore", under="ignore"):
        return made.astype(dtype)


KINDS = (
    "noise",
    "cancels",
    "zeros",
    "a spot in zeros",
    "decays",
    "every size",
    "below the normal range",
    "huge",
)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_is_rounded_once(way: str, kind: str, dtype: str) -> None:
    cells = cells_of(kind, dtype)
    assert total(cells).tobytes() == wanted(cells).tobytes()
    assert total(cells[:, :333], cells[:, 333:]).tobytes() == wanted(cells).tobytes()
    assert total(cells[::2, 1::3], cells[1::2], cells[::2, 0::3], cells[::2, 2::3]) == wanted(cells)


@pytest.mark.parametrize("values", [[np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [np.inf, np.nan]])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_infinities_and_nan(way: str, values: list[float], dtype: str) -> None:
    cells = cells_of("noise", dtype)
    cells[3, 500 : 500 + 300 * len(values) : 300] = values
    np.testing.assert_array_equal(total(cells), wanted(cells))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_above_the_range_is_infinite(way: str, dtype: str) -> None:
    largest = np.finfo(dtype).max
    assert total(np.full(4, largest, dtype)) == np.inf
    assert total(np.full(4, -largest, dtype)) == -np.inf
    # No part of the way is above the range.
    assert total(np.array([largest, largest, -largest, -largest, 1], dtype)) == 1


@pytest.mark.parametrize(("last", "result"), [(0, 2**24), (2.0**-80, 2**24 + 2), (-(2.0**-80), 2**24)])
def test_a_tie_is_decided_by_the_smallest_cell(way: str, last: float, result: int) -> None:
    cells = np.array([2**24, 1, last], np.float32)
    assert total(cells) == result


@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40),
    seed=st.integers(0, 99),
)
def test_no_order_changes_the_sum(values: list[float], seed: int) -> None:
    cells = np.array([0.0, *values], np.float32)
    other = np.random.default_rng(seed).permutation(cells)
    assert total(cells).tobytes() == total(other).tobytes() == wanted(cells).tobytes()


def test_words_have_room_for_other_ranks(way: str) -> None:
    words = exact_sum.zero_words()
    for _ in range(100):
        exact_sum.add_cells(words, np, cells_of("every size", "f8"))
    assert np.abs(words[: exact_sum.DIGITS - 1]).max() < 2**34
