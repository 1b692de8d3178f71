"""When a result counts as wrong: arrays cell by cell, and results of names and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.storage import HostArray

RELATIVE = 1e-9  # between two orders of summation in float64


def differs(got: HostArray, expected: HostArray, tolerance: HostArray | float) -> HostArray:
    """Which cells of `got` are wrong: those not within `tolerance` of `expected`, in float64.

    Beyond the tolerance, the last rounding into the result's dtype is allowed for: integers are
    rounded half to even and saturate, NaN as an integer is 0; a float may be one unit in the last
    place off, and infinite where its dtype ends. NaN equals NaN. An infinite tolerance allows all.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        anything = np.isinf(tolerance)
        if got.dtype.kind == "b":
            return np.asarray(got != expected) & ~anything
        if got.dtype.kind in "iu":
            limits = np.iinfo(got.dtype)
            edges = (np.rint(expected - tolerance), np.rint(expected + tolerance))
            low, high = (np.clip(np.nan_to_num(edge), limits.min, limits.max) for edge in edges)
            return np.asarray((got < low) | (got > high)) & ~anything
        last = np.finfo(got.dtype)
        allowed = tolerance + last.eps * (np.abs(expected) + tolerance) + last.smallest_subnormal
        rounded = expected.astype(got.dtype)
        close = np.abs(got.astype(expected.dtype) - expected) <= allowed
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        # What the tolerance reaches is rounded into the dtype too, and may be infinite there.
        ends = ((expected - allowed).astype(got.dtype), (expected + allowed).astype(got.dtype))
        beyond = np.isinf(got) & ((got == ends[0]) | (got == ends[1]))
        return np.asarray(~(close | same | beyond | anything))


def unlike(
    result: Any, expected: Any, absolute: Mapping[str, float], place: str = "", allowed: float = 0.0
) -> tuple[str, Any, Any] | None:
    """Where two results differ: a path into them, got, expected; None where they agree.

    Floats may differ by RELATIVE, and by `absolute` for the names that it has.
    """
    if result is None or expected is None:
        return None if result is expected else (place, result, expected)
    if isinstance(expected, dict):
        steps = [
            (f"[{key!r}]", result.get(key), value, absolute.get(key, 0.0)) for key, value in expected.items()
        ]
    elif isinstance(expected, (list, tuple)):
        if len(result) != len(expected):
            return place, result, expected
        pairs = enumerate(zip(result, expected, strict=True))
        steps = [(f"[{i}]", got, wanted, allowed) for i, (got, wanted) in pairs]
    elif np.allclose(result, expected, rtol=RELATIVE, atol=allowed, equal_nan=True):
        return None
    else:
        return place, result, expected
    found = (unlike(got, wanted, {}, place + step, atol) for step, got, wanted, atol in steps)
    return next(filter(None, found), None)
