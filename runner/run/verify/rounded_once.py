"""NumPy's arrays whose sums of all cells are rounded once, as those of functions of whole arrays are.

An iteration may amplify the rounding of its sums by any factor: conjugate gradients then take another number
of iterations. Called with these arrays, the function itself has the sums of a run. They are made by Python's
`fsum`, which has no line in common with what a run does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

PRODUCTS = (np.vdot, np.dot, np.inner)


class RoundedOnce(np.ndarray[Any, Any]):
    """An array of which the sum of all cells is their exact sum, rounded once. All else is NumPy's."""

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        found = super().sum(axis, dtype, out, **options)
        several = axis is None or np.size(axis) == self.ndim
        if out is not None or options or not several or found.dtype.kind not in "fc":
            return found
        return rounded_sum(np.asarray(self).astype(found.dtype))

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        found = super().mean(axis, dtype, out, **options)
        several = axis is None or np.size(axis) == self.ndim
        if out is not None or options or not several or found.dtype.kind not in "fc":
            return found
        return np.divide(self.sum(dtype=found.dtype), found.dtype.type(self.size))

    def dot(self, b: Any, out: Any = None) -> Any:
        if self.ndim == np.ndim(b) == 1 and out is None:
            return (self * b).view(RoundedOnce).sum()
        return super().dot(b, out)

    def __matmul__(self, b: Any) -> Any:
        return self.dot(b) if self.ndim == np.ndim(b) == 1 else super().__matmul__(b)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in PRODUCTS and not kwargs and len(args) == 2:
            a, b = (np.asarray(one).view(RoundedOnce) for one in args)
            if func is np.vdot:
                return a.conj().ravel().dot(b.ravel())
            if a.ndim == b.ndim == 1:
                return a.dot(b)
        return super().__array_function__(func, types, args, kwargs)


def rounded_sum(cells: np.ndarray[Any, Any]) -> Any:
    """Return the exact sum of all cells, rounded to their dtype; NumPy's sum if that is not finite."""
    if cells.dtype.kind == "c":
        return cells.dtype.type(complex(rounded_sum(cells.real), rounded_sum(cells.imag)))
    if not np.isfinite(cells).all():
        return cells.sum()
    given = cells.ravel().tolist()
    try:
        total = math.fsum(given)
    except OverflowError:
        return cells.sum()
    # To be rounded again to fewer digits, a sum that is not exact has an odd last one.
    rest = 0.0 if cells.dtype.itemsize == 8 else math.fsum([*given, -total])
    if rest and not np.float64(total).view(np.int64) & 1:
        total = math.nextafter(total, math.copysign(math.inf, rest))
    return cells.dtype.type(total)
