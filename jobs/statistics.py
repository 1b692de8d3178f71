"""Count, extremes, mean, spread and histogram of an array of any size."""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import runner
from jobs import dtypes, kernels

MOST_BINS = 65536
THREADS = 256  # as in moments.cu
BLOCKS = 128  # a fixed number: the sums' order must not depend on the GPU


class Moments(NamedTuple):
    """Of some elements: how many are finite, NaN, infinite; of the finite ones lowest, highest, mean and
    the sum of squared deviations from it (these four mean nothing when there are none)."""

    count: int
    nan: int
    infinite: int
    low: float
    high: float
    mean: float
    squares: float


@runner.job(reference=lambda array, **parameters: _reference(array, **parameters))
def statistics(
    world: Any, input: Any, *, bins: int = 64, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """Count, extremes, mean, standard deviation and histogram of an array.

    Everything is said of the finite elements; NaN and infinite ones are counted apart. Minimum
    and maximum are exact, mean and std (population) summed in float64, stably: per tile
    around the tile's own mean, tiles combined after Chan, Golub and LeVeque (1983). The result has
    the same bits for any number of ranks of one kind of device. An element x is in bin floor((x - low)
    * (bins / (high - low))), computed in float64; `high` itself is in the last. Elements outside
    are counted as below and above.

    bins: of equal width, 1 to 65536.
    low: lower edge of the first bin; by default the minimum.
    high: upper edge of the last bin; by default the maximum (half a unit more each way where
        both are the same).
    """
    _check_bins(bins, low, high)
    tiles = runner.Tiles(world, input)
    dtypes.check("statistics", tiles.dtype)
    xp = world.backend.xp
    moments = tiles.reduce(functools.partial(_moments, xp), combine)
    if moments is None:
        raise runner.UserError(
            "an array without elements has no statistics",
            got=f"shape {tiles.shape}",
            expected="one element or more",
            everywhere=True,
        )
    edges = _edges(moments, low, high)
    counts = np.zeros(bins + 2, np.int64)
    if edges is not None:
        counts = tiles.reduce(functools.partial(_histogram, xp, bins=bins, edges=edges), np.add)
    return _report(moments, edges, counts, tiles.dtype)


def combine(a: Moments, b: Moments) -> Moments:
    """The moments of two disjoint sets together (Chan, Golub and LeVeque, 1983)."""
    count, nan, infinite = a.count + b.count, a.nan + b.nan, a.infinite + b.infinite
    if a.count == 0 or b.count == 0:
        return Moments(count, nan, infinite, *(b if a.count == 0 else a)[3:])
    step = b.mean - a.mean
    mean = a.mean + step * (b.count / count)
    squares = a.squares + b.squares + step * step * (a.count * b.count / count)
    return Moments(count, nan, infinite, min(a.low, b.low), max(a.high, b.high), mean, squares)


def _moments(xp: ModuleType, block: Any) -> Moments:
    """One tile's moments."""
    if xp is not np:
        partials = xp.empty((BLOCKS, 7), np.float64)
        arguments = (block, np.int64(block.size), partials)
        kernels.launch("moments.cu", kernels.instance("moments", block.dtype), BLOCKS, THREADS, arguments)
        return _merge(xp.asnumpy(partials))
    values = block.reshape(-1)
    finite, nan = values.size, 0
    if values.dtype.kind == "f":
        keep = np.isfinite(values)
        nan = int(np.count_nonzero(np.isnan(values)))
        values = values[keep]
        finite = values.size
    infinite = block.size - finite - nan
    if finite == 0:
        return Moments(0, nan, infinite, math.inf, -math.inf, 0.0, 0.0)
    low, high = float(values.min()), float(values.max())
    values = values.astype(np.float64)
    with np.errstate(all="ignore"):
        mean = float(values.mean())
        values -= mean
        # The deviations would sum to 0 but for rounding in the mean; that error is taken out.
        error = float(values.sum())
        squares = float(np.square(values, out=values).sum()) - error * error / finite
    return Moments(finite, nan, infinite, low, high, mean, squares)


def _merge(partials: np.ndarray[Any, Any]) -> Moments:
    """The moments of all thread blocks of a tile: rows as moments.cu writes them."""
    count, nan, infinite = (int(partials[:, column].sum()) for column in range(3))
    some = partials[partials[:, 0] > 0]
    if count == 0:
        return Moments(0, nan, infinite, math.inf, -math.inf, 0.0, 0.0)
    counts, low, high, means, squares = some[:, 0], some[:, 3], some[:, 4], some[:, 5], some[:, 6]
    with np.errstate(all="ignore"):
        middle = means[0] + float((counts * (means - means[0])).sum()) / count
        spread = float(squares.sum() + (counts * np.square(means - middle)).sum())
    return Moments(count, nan, infinite, float(low.min()), float(high.max()), float(middle), spread)


def _histogram(xp: ModuleType, block: Any, *, bins: int, edges: tuple[float, float]) -> Any:
    """One tile's counts: the bins, below, above."""
    low, high = edges
    scale = bins / (high - low)
    if xp is not np:
        counts = xp.zeros(bins + 2, np.uint32)
        sizes = (np.int64(block.size), np.float64(low), np.float64(high), np.float64(scale), np.int32(bins))
        name = kernels.instance("histogram", block.dtype)
        kernels.launch("histogram.cu", name, BLOCKS, THREADS, (block, *sizes, counts))
        return xp.asnumpy(counts).astype(np.int64)
    values = block.reshape(-1).astype(np.float64)
    below = np.count_nonzero((values < low) & (values > -np.inf))
    above = np.count_nonzero((values > high) & (values < np.inf))
    values = values[(values >= low) & (values <= high)]
    values -= low
    values *= scale
    index = np.minimum(values, bins - 1).astype(np.int64)  # toward zero is down: none is negative
    return np.concatenate([np.bincount(index, minlength=bins), [below, above]])


def _check_bins(bins: int, low: float | None, high: float | None) -> None:
    if not 1 <= bins <= MOST_BINS:
        raise runner.UserError(
            "a histogram of so many bins", got=bins, expected=f"1 to {MOST_BINS}", everywhere=True
        )
    for name, edge in (("low", low), ("high", high)):
        if edge is not None and not math.isfinite(edge):
            raise runner.UserError(f"{name} is no finite number", got=edge, everywhere=True)
    if low is not None and high is not None:
        _check_range(low, high)


def _edges(moments: Moments, low: float | None, high: float | None) -> tuple[float, float] | None:
    """Where the histogram begins and ends; None where nothing says."""
    if moments.count == 0 and (low is None or high is None):
        return None
    if low is None and high is None and moments.low == moments.high:
        # An ulp where half a unit is less than that.
        middle = moments.low
        return min(middle - 0.5, math.nextafter(middle, -math.inf)), max(
            middle + 0.5, math.nextafter(middle, math.inf)
        )
    first = moments.low if low is None else low
    last = moments.high if high is None else high
    _check_range(first, last)
    return first, last


def _check_range(low: float, high: float) -> None:
    if not 0 < high - low < math.inf:
        raise runner.UserError(
            "the histogram's range is empty or too wide",
            got=f"{low:g} to {high:g}",
            expected="low below high, a finite distance apart",
            hint="--low and --high",
            everywhere=True,
        )


def _report(
    moments: Moments,
    edges: tuple[float, float] | None,
    counts: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
) -> dict[str, Any]:
    some = moments.count > 0
    exact = int if dtype.kind in "iu" else float
    return {
        "count": moments.count,
        "nan": moments.nan,
        "infinite": moments.infinite,
        "min": exact(moments.low) if some else None,
        "max": exact(moments.high) if some else None,
        "mean": moments.mean if some else None,
        "std": math.sqrt(max(moments.squares, 0.0) / moments.count) if some else None,
        "low": edges[0] if edges else None,
        "high": edges[1] if edges else None,
        "below": int(counts[-2]),
        "above": int(counts[-1]),
        "histogram": counts[:-2].tolist(),
    }


def _reference(
    array: np.ndarray[Any, Any], *, bins: int = 64, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """The whole array at once, with NumPy's own mean and std and a sort instead of counting."""
    finite = np.sort(np.asarray(array, np.float64)[np.isfinite(array)], axis=None)
    nan = int(np.isnan(array).sum())
    count = finite.size
    moments = Moments(count, nan, array.size - count - nan, 0.0, 0.0, 0.0, 0.0)
    if count:
        spread = float(np.std(finite)) ** 2 * count
        moments = Moments(*moments[:3], finite[0].item(), finite[-1].item(), float(np.mean(finite)), spread)
    edges = _edges(moments, low, high)
    counts = np.zeros(bins + 2, np.int64)
    if edges is not None:
        first, last = np.searchsorted(finite, edges[0], "left"), np.searchsorted(finite, edges[1], "right")
        place = np.floor((finite[first:last] - edges[0]) * (bins / (edges[1] - edges[0])))
        ends = np.searchsorted(np.minimum(place, bins - 1), np.arange(bins), "right")
        counts = np.concatenate([np.diff(ends, prepend=0), [first, count - last]])
    return _report(moments, edges, counts, array.dtype)
