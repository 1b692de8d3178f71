"""Compare results with expected ones: arrays cell by cell, and nested results of names and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshrun.runner.region import HostArray

RELATIVE = 1e-9  # between two orders of summation in float64
NOTHING = "nothing"  # shown in place of a missing value
EXACT, NUMBERS = "biu", "biufc"  # kinds of dtypes


def differs(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    """Return which cells of `got` are wrong: not within `tolerance` of `expected`. Both have the same shape.

    Integers are compared exactly with integers, after the expected ones are clipped to the result's range.
    Expected floats are compared with integers as float64, rounded half to even and saturated; NaN becomes 0.
    A float may in addition be off by one unit in the last place, and infinite beyond its dtype's range. NaN
    equals NaN, and an infinity equals only itself; for complex numbers that are not finite, each part is
    compared by itself. An infinite tolerance allows every value, and a tolerance of NaN none.
    """
    if got.dtype == expected.dtype and bool((got == expected).all()) and not np.isnan(tolerance).any():
        return np.zeros(got.shape, bool)  # the usual case; the full comparison takes several times as long
    if got.dtype.kind == "b":
        bad = got != expected
    elif got.dtype.kind == "f" and expected.dtype.kind != "c":
        bad = _floats_differ(got, expected, tolerance)
    elif got.dtype.kind in "fc":
        bad = _complex_differ(got, expected, tolerance)
    elif expected.dtype.kind in EXACT:
        bad = _integers_differ(got, expected, tolerance)
    else:
        bad = _rounded_differ(got, expected.real, tolerance) | (expected.imag != 0)
    return np.asarray(bad & ~np.isposinf(tolerance))


def _integers_differ(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    limits = np.iinfo(got.dtype)
    own = np.iinfo(np.uint8 if expected.dtype.kind == "b" else expected.dtype)
    wanted = expected.astype(np.uint8) if expected.dtype.kind == "b" else expected
    wanted = np.clip(wanted, max(own.min, limits.min), min(own.max, limits.max)).astype(got.dtype)
    if not np.any(tolerance):
        return np.asarray(got != wanted)
    # The distance of two integers of one dtype fits the unsigned dtype of the same size, in its arithmetic.
    larger, smaller = np.maximum(got, wanted), np.minimum(got, wanted)
    distance = larger.astype(np.uint64) - smaller.astype(np.uint64)
    return np.asarray(~(distance <= np.floor(tolerance)))


def _rounded_differ(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    limits = np.iinfo(got.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        edges = (np.rint(expected - tolerance), np.rint(expected + tolerance))
        low, high = (np.clip(np.nan_to_num(edge), limits.min, limits.max) for edge in edges)
        return np.asarray((got < low) | (got > high) | np.isnan(tolerance))


def _floats_differ(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    last = np.finfo(got.dtype)
    wanted = expected.astype(np.result_type(got.dtype, expected.dtype, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = tolerance + last.eps * (np.abs(wanted) + tolerance) + last.smallest_subnormal
        rounded = wanted.astype(got.dtype)
        close = (np.abs(got - wanted) <= allowed) & np.isfinite(wanted)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        # The ends of the tolerated range are rounded to the dtype, too, and may be infinite in it.
        ends = ((wanted - allowed).astype(got.dtype), (wanted + allowed).astype(got.dtype))
        beyond = np.isinf(got) & ((got == ends[0]) | (got == ends[1])) & np.isfinite(wanted)
        return np.asarray(~(close | same | beyond))


def _complex_differ(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    last = np.finfo(got.dtype)
    wanted = expected.astype(np.result_type(got.dtype, expected.dtype, np.complex128))
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(wanted)
        allowed = tolerance + last.eps * (size + tolerance) + last.smallest_subnormal
        close = (np.abs(got - wanted) <= allowed) & np.isfinite(wanted)
        # Rounding is relative to the number, not to its smaller part.
        reach = np.where(np.isfinite(size), allowed, tolerance)
        parts = (_floats_differ(g, w, reach) for g, w in ((got.real, wanted.real), (got.imag, wanted.imag)))
        finite = np.isfinite(got) & np.isfinite(wanted.astype(got.dtype))
        return np.asarray(np.where(finite, ~close, np.logical_or(*parts)))


def unlike(
    result: Any, expected: Any, absolute: Mapping[str, float], place: str = "", allowed: float = 0.0
) -> tuple[str, Any, Any] | None:
    """Return where two results differ (a path into them), got and expected; None if they agree.

    Names, lengths and shapes must be the same. Floats may differ by RELATIVE, integers and booleans not at
    all; an integer equals an expected float if it is the nearest integer. Numbers may differ by `absolute`
    for the names in it. Other values must be equal.
    """
    if isinstance(result, Mapping) and isinstance(expected, Mapping):
        for name in (*expected, *result):
            if name not in result or name not in expected:
                return f"{place}[{name!r}]", result.get(name, NOTHING), expected.get(name, NOTHING)
        steps = [(f"[{n!r}]", result[n], value, absolute.get(n, allowed)) for n, value in expected.items()]
    elif isinstance(result, np.ndarray) and isinstance(expected, np.ndarray):
        return _arrays_unlike(result, expected, place, allowed)
    elif _is_sequence(result) and _is_sequence(expected) and len(result) == len(expected):
        pairs = enumerate(zip(result, expected, strict=True))
        steps = [(f"[{i}]", got, wanted, allowed) for i, (got, wanted) in pairs]
    else:
        return None if _agree(result, expected, allowed) else (place, result, expected)
    found = (unlike(got, wanted, {}, place + step, atol) for step, got, wanted, atol in steps)
    return next(filter(None, found), None)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _arrays_unlike(
    result: HostArray, expected: HostArray, place: str, allowed: float
) -> tuple[str, Any, Any] | None:
    if result.shape != expected.shape:
        return place, result, expected
    bad = _cells_differ(result, expected, allowed)
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{place}{list(first)}" if first else place, result[first], expected[first]


def _agree(result: Any, expected: Any, allowed: float) -> bool:
    """Return whether two values agree that are not mappings or sequences of the same length."""
    if isinstance(result, (bool, int)) and isinstance(expected, (bool, int)):  # of any size
        return result == expected or bool(abs(result - expected) <= allowed)
    if _is_number(result) and _is_number(expected):
        return not _cells_differ(np.asarray(result), np.asarray(expected), allowed).any()
    if _is_number(result) or _is_number(expected) or _is_sequence(result) or _is_sequence(expected):
        return False
    same = result == expected
    return bool(same) if isinstance(same, (bool, np.bool_)) else False


def _is_number(value: Any) -> bool:
    number = isinstance(value, (bool, int, float, complex, np.bool_, np.number))
    return number or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in NUMBERS)


def _cells_differ(result: HostArray, expected: HostArray, allowed: float) -> HostArray:
    kinds = result.dtype.kind, expected.dtype.kind
    if not set(kinds) <= set(NUMBERS):
        return np.asarray(result != expected)
    if kinds[0] == "b":  # compared with another kind, a boolean is 0 or 1
        result = result if kinds[1] == "b" else result.astype(np.uint8)
    if kinds[0] in EXACT:
        return differs(result, expected, allowed)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(expected)
        return differs(result, expected, allowed + RELATIVE * np.where(np.isfinite(size), size, 0.0))
