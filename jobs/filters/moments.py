"""Count, extremes, mean and squared deviations of an array's tiles, and how two of them add up."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.filters import dtypes

THREADS = 256  # as in moments.cu
BLOCKS = 128  # a fixed number: the order of sums must not depend on the GPU


class Moments(NamedTuple):
    """Of some elements: how many are finite, NaN, infinite; of the finite ones lowest, highest, mean and
    the sum of squared deviations from it (these four mean nothing when there are none). The extremes of
    64-bit integers are ints."""

    finite: int
    nan: int
    infinite: int
    low: float | int
    high: float | int
    mean: float
    squares: float


def combine(a: Moments, b: Moments) -> Moments:
    """The moments of two disjoint sets together (Chan, Golub and LeVeque, 1983)."""
    finite, nan, infinite = a.finite + b.finite, a.nan + b.nan, a.infinite + b.infinite
    if a.finite == 0 or b.finite == 0:
        return Moments(finite, nan, infinite, *(b if a.finite == 0 else a)[3:])
    step = b.mean - a.mean
    mean = a.mean + step * (b.finite / finite)
    squares = a.squares + b.squares + step * step * (a.finite * b.finite / finite)
    return Moments(finite, nan, infinite, min(a.low, b.low), max(a.high, b.high), mean, squares)


def of_tile(xp: ModuleType, block: Any) -> Moments:
    """The moments of one tile, a NumPy or CuPy array: mean first, then the deviations from it."""
    if xp is not np:
        partials = xp.empty((BLOCKS, 7), np.float64)
        arguments = (block, np.int64(block.size), partials)
        kernels.launch("moments.cu", kernels.instance("moments", block.dtype), BLOCKS, THREADS, arguments)
        found = _merge(xp.asnumpy(partials))
        if not dtypes.is_wide(block.dtype):
            return found
        return found._replace(low=int(block.min()), high=int(block.max()))
    values, nan = block.reshape(-1), 0
    if values.dtype.kind == "f":
        nan = int(np.count_nonzero(np.isnan(values)))
        values = values[np.isfinite(values)]
    finite = values.size
    infinite = block.size - finite - nan
    if finite == 0:
        return _nothing(nan, infinite)
    exact = int if dtypes.is_wide(values.dtype) else float
    low, high = exact(values.min()), exact(values.max())
    values = values.astype(np.float64)
    with np.errstate(all="ignore"):
        mean = float(values.mean())
        values -= mean
        # The deviations would sum to 0 but for rounding in the mean; that error is taken out.
        error = float(values.sum())
        squares = float(np.square(values, out=values).sum()) - error * error / finite
    return Moments(finite, nan, infinite, low, high, mean, squares)


def _merge(partials: np.ndarray[Any, Any]) -> Moments:
    """The moments of a tile from those of its thread blocks: rows as moments.cu writes them."""
    finite, nan, infinite = (int(partials[:, column].sum()) for column in range(3))
    if finite == 0:
        return _nothing(nan, infinite)
    count, _, _, low, high, mean, squares = partials[partials[:, 0] > 0].T
    with np.errstate(all="ignore"):
        middle = float(mean[0] + (count * (mean - mean[0])).sum() / finite)
        spread = float(squares.sum() + (count * np.square(mean - middle)).sum())
    return Moments(finite, nan, infinite, float(low.min()), float(high.max()), middle, spread)


def _nothing(nan: int, infinite: int) -> Moments:
    return Moments(0, nan, infinite, math.inf, -math.inf, 0.0, 0.0)
