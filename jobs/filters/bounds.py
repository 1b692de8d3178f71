"""Interval arithmetic: how far from the exact value a formula may come out in floating point.

A `Bound` says of each element the value in float64, and an interval that holds whatever a correct
computation with unit roundoff u gives. Intervals follow every operation, so that cancellation,
poles and steps need no guess: where the two sides of a comparison cannot be told apart the
result may be either, and where a function may have been asked for outside its domain anything
is allowed (the interval from -inf to inf).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Of functions that libraries do not round correctly: 8 units in the last place, twice what CUDA's and
# NumPy's documentation allow themselves (4).
LIBRARY = 16
EXACT = {"floor", "ceil", "absolute", "negative", "minimum", "maximum"}
RISING = {"exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "arcsin", "arctan", "sinh", "tanh"}


@dataclass(frozen=True)
class Bound:
    """value: computed in float64. low, high: between them lies any correct result."""

    value: Array
    low: Array
    high: Array

    @property
    def lost(self) -> Array:
        """Where nothing is known."""
        return np.asarray((self.low == -np.inf) & (self.high == np.inf))

    @property
    def tolerance(self) -> Array:
        """Largest distance of a correct result from `value`; inf: anything, NaN too."""
        with np.errstate(invalid="ignore"):
            reach = np.maximum(self.high - self.value, self.value - self.low)
        reach = np.where((self.low == self.value) & (self.high == self.value), 0.0, reach)
        certain_nan = np.isnan(self.value) & np.isnan(self.low) & np.isnan(self.high)
        return np.asarray(np.where(certain_nan, 0.0, np.where(np.isnan(reach), np.inf, reach)))


class Intervals:
    """The algebra of bounds of what is computed in `dtype` or a wider type."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        limits = np.finfo(dtype)
        # Twice the unit roundoff: the float64 value is itself rounded.
        self.roundoff = float(limits.eps)
        self.largest = float(limits.max)
        self.smallest = float(limits.smallest_subnormal)
        self.dtype = dtype

    def exact(self, value: Array) -> Bound:
        return Bound(value, value, value)

    def constant(self, number: float) -> Bound:
        """As this type holds it, or as a wider one would."""
        with np.errstate(over="ignore"):
            held = float(self.dtype.type(number))
        return Bound(np.asarray(number), np.asarray(min(number, held)), np.asarray(max(number, held)))

    def apply(self, name: str, *operands: Bound) -> Bound:
        """One operation, by NumPy's name."""
        with np.errstate(all="ignore"):
            if name == "where":
                return _where(*operands)
            value = np.asarray(getattr(np, name)(*(operand.value for operand in operands)), np.float64)
            special = getattr(self, f"_{name}", None)
            if special is not None:
                low, high = special(*operands)
            elif name in _COMPARISONS:
                return Bound(value, *_COMPARISONS[name](*operands))
            else:  # monotonic in each operand: extremes at the corners
                low, high = _corners(name, operands)
            if name not in EXACT:
                low, high = self._widen(low, high, LIBRARY if name in _INEXACT else 1)
            return _settle(value, low, high, operands)

    def _widen(self, low: Array, high: Array, roundings: int) -> tuple[Array, Array]:
        size = np.maximum(np.abs(low), np.abs(high))
        error = roundings * (self.roundoff * size + self.smallest)
        below = np.where(np.isinf(low), low, low - error)
        above = np.where(np.isinf(high), high, high + error)
        # What may overflow may be infinite.
        below = np.where(below < -self.largest, -np.inf, np.minimum(below, self.largest))
        above = np.where(above > self.largest, np.inf, np.maximum(above, -self.largest))
        return np.where(np.isnan(low), low, below), np.where(np.isnan(high), high, above)

    def _subtract(self, a: Bound, b: Bound) -> tuple[Array, Array]:
        return a.low - b.high, a.high - b.low

    def _divide(self, a: Bound, b: Bound) -> tuple[Array, Array]:
        low, high = _corners("divide", (a, b))
        pole = (b.low <= 0) & (b.high >= 0) & (b.low < b.high)
        return np.where(pole, -np.inf, low), np.where(pole, np.inf, high)

    def _absolute(self, a: Bound) -> tuple[Array, Array]:
        low, high = np.abs(a.low), np.abs(a.high)
        around = (a.low < 0) & (a.high > 0)
        return np.where(around, 0.0, np.minimum(low, high)), np.maximum(low, high)

    def _square(self, a: Bound) -> tuple[Array, Array]:
        low, high = self._absolute(a)
        return low * low, high * high

    def _cosh(self, a: Bound) -> tuple[Array, Array]:
        low, high = self._absolute(a)
        return np.cosh(low), np.cosh(high)

    def _sin(self, a: Bound) -> tuple[Array, Array]:
        return _slope_one(np.sin(a.value), a)

    def _cos(self, a: Bound) -> tuple[Array, Array]:
        return _slope_one(np.cos(a.value), a)

    def _tan(self, a: Bound) -> tuple[Array, Array]:
        low, high = np.tan(a.low), np.tan(a.high)
        rises = (a.high - a.low < 1) & (low <= high)
        keep = rises | np.isnan(a.value)
        return np.where(keep, low, -np.inf), np.where(keep, high, np.inf)

    def _power(self, a: Bound, b: Bound) -> tuple[Array, Array]:
        low, high = _corners("power", (a, b))
        whole = (b.low == b.high) & (b.low == np.floor(b.low))
        # Through zero, a whole positive power takes its least size there; others may have a pole or no value.
        through = (a.low <= 0) & (a.high >= 0) & (a.low < a.high)
        low = np.where(through & whole & (b.low > 0), np.minimum(low, 0.0), low)
        high = np.where(through & whole & (b.low > 0), np.maximum(high, 0.0), high)
        lost = through & ~(whole & (b.low > 0)) | (a.high < 0) & (b.low < b.high)
        return np.where(lost, -np.inf, low), np.where(lost, np.inf, high)

    def _remainder(self, a: Bound, b: Bound) -> tuple[Array, Array]:
        """Exact operands: their remainder. Else the whole range of remainders, 0 to b."""
        known = (a.low == a.high) & (b.low == b.high)
        remainder = np.remainder(a.value, b.value)
        span = np.where((b.low <= 0) & (b.high >= 0) | np.isinf(a.low) | np.isinf(a.high), np.inf, 0.0)
        low, high = np.minimum(b.low, 0.0) - span, np.maximum(b.high, 0.0) + span
        return np.where(known, remainder, low), np.where(known, remainder, high)

    def _floor_divide(self, a: Bound, b: Bound) -> tuple[Array, Array]:
        known = (a.low == a.high) & (b.low == b.high)
        quotient = np.floor_divide(a.value, b.value)
        low, high = self._widen(*self._divide(a, b), 1)
        span = np.where(np.isinf(a.low) | np.isinf(a.high), np.inf, 0.0)  # inf // b is NaN
        low, high = np.floor(low) - span, np.floor(high) + span
        return np.where(known, quotient, low), np.where(known, quotient, high)


_INEXACT = (RISING | {"sin", "cos", "tan", "cosh", "arccos", "power"}) - {"sqrt"}


def _corners(name: str, operands: tuple[Bound, ...]) -> tuple[Array, Array]:
    """Least and greatest of the results at the ends; anything, where some of these have no value."""
    ends = [(operand.low, operand.high) for operand in operands]
    results = [np.asarray(getattr(np, name)(*corner), np.float64) for corner in product(*ends)]
    low, high = functools.reduce(np.fmin, results), functools.reduce(np.fmax, results)
    some = functools.reduce(np.logical_or, map(np.isnan, results)) & ~np.isnan(low)
    return np.where(some, -np.inf, low), np.where(some, np.inf, high)


def _slope_one(value: Array, a: Bound) -> tuple[Array, Array]:
    """sin and cos move by no more than their argument and stay within 1; of infinity they are NaN."""
    reach = np.maximum(a.high - a.value, a.value - a.low)
    limit = np.where(np.isinf(reach), np.inf, 1.0)
    exact = a.low == a.high
    low = np.where(exact, value, np.maximum(value - reach, -limit))
    return low, np.where(exact, value, np.minimum(value + reach, limit))


def _settle(value: Array, low: Array, high: Array, operands: tuple[Bound, ...]) -> Bound:
    """An undecided NaN, and all that follows from an operand of which nothing is known, may be anything."""
    nan = np.isnan(value)
    certain = nan & np.isnan(low) & np.isnan(high)
    lost = ~certain & (nan | np.isnan(low) | np.isnan(high))
    for operand in operands:
        lost = lost | operand.lost
    return Bound(value, np.where(lost, -np.inf, low), np.where(lost, np.inf, high))


def _where(condition: Bound, a: Bound, b: Bound) -> Bound:
    value = np.where(condition.value != 0, a.value, b.value)
    nonzero = (condition.low > 0) | (condition.high < 0) | np.isnan(condition.low)
    zero = (condition.low == 0) & (condition.high == 0)
    unknown = np.isnan(a.low) | np.isnan(b.low)
    low = np.where(unknown, -np.inf, np.minimum(a.low, b.low))
    high = np.where(unknown, np.inf, np.maximum(a.high, b.high))
    low = np.where(nonzero, a.low, np.where(zero, b.low, low))
    high = np.where(nonzero, a.high, np.where(zero, b.high, high))
    return Bound(value, low, high)


def _truth(always: Array, possibly: Array) -> tuple[Array, Array]:
    return always.astype(np.float64), possibly.astype(np.float64)


def _less(a: Bound, b: Bound) -> tuple[Array, Array]:
    lost = a.lost | b.lost
    return _truth((a.high < b.low) & ~lost, (a.low < b.high) | lost)


def _less_equal(a: Bound, b: Bound) -> tuple[Array, Array]:
    lost = a.lost | b.lost
    return _truth((a.high <= b.low) & ~lost, (a.low <= b.high) | lost)


def _equal(a: Bound, b: Bound) -> tuple[Array, Array]:
    known = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _truth(known, (a.low <= b.high) & (b.low <= a.high) | a.lost | b.lost)


def _not_equal(a: Bound, b: Bound) -> tuple[Array, Array]:
    never, possibly = _equal(a, b)
    return 1.0 - possibly, 1.0 - never


_COMPARISONS = {
    "less": _less,
    "less_equal": _less_equal,
    "greater": lambda a, b: _less(b, a),
    "greater_equal": lambda a, b: _less_equal(b, a),
    "equal": _equal,
    "not_equal": _not_equal,
}
