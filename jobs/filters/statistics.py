"""Count, extremes, mean, spread and histogram of an array of any size."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

import meshrun
from meshrun.jobs import kernels
from meshrun.jobs.filters import dtypes
from meshrun.jobs.filters.moments import BLOCKS, Moments, combine, of_tile
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

MOST_BINS = 65536
THREADS = 256
Edges = tuple[float, float]


def _reference(
    array: np.ndarray[Any, Any], *, bins: int = 64, low: float | None = None, high: float | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """Two passes over the whole array, in long double where there is one; a sort instead of counting."""
    wide = np.longdouble
    finite = nan = 0
    least, most, total = math.inf, -math.inf, wide(0)
    for part, missing in _parts(array):
        finite, nan = finite + part.size, nan + missing
        if part.size:
            least, most = min(least, float(part.min())), max(most, float(part.max()))
            total += part.sum(dtype=wide)
    mean = total / max(finite, 1)
    squares = wide(0)
    for part, _ in _parts(array):
        squares += np.square(part - mean).sum()
    moments = Moments(finite, nan, array.size - finite - nan, least, most, float(mean), float(squares))
    if dtypes.is_wide(array.dtype) and finite:
        moments = moments._replace(low=int(array.min()), high=int(array.max()))
    edges = _edges(moments, low, high)
    counts = np.zeros(bins + 2, np.int64)
    if edges is not None:
        for part, _ in _parts(array):
            ordered = np.sort(part)
            first, stop = np.searchsorted(ordered, edges[0]), np.searchsorted(ordered, edges[1], "right")
            place = np.floor((ordered[first:stop] - edges[0]) * (bins / (edges[1] - edges[0])))
            ends = np.searchsorted(np.minimum(place, bins - 1), np.arange(bins), "right")
            counts += np.append(np.diff(ends, prepend=0), [first, part.size - stop])
    # A mean near 0, and a spread that is small beside the values, carry the values' rounding.
    rounding = 2.0**-46 * max(abs(least), abs(most), 0.0) if finite else 0.0
    return _report(moments, edges, counts, array.dtype), {"mean": rounding, "std": rounding}


def _parts(array: np.ndarray[Any, Any], size: int = 1 << 22) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """The finite elements as float64 and the number of NaN, piece by piece."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, size):
        part = flat[start : start + size].astype(np.float64)
        yield part[np.isfinite(part)], int(np.isnan(part).sum())


@meshrun.job(
    reference=_reference,
    trials=[((1031, 1030), "float64", {}), ((7, 5), "uint8", {}), ((100,), "float16", {})],
)
def statistics(
    world: Any, input: Any, *, bins: int = 64, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """Count, extremes, mean, standard deviation and histogram of an array.

    Everything is said of the finite elements (count is theirs); NaN and infinite ones are counted
    apart. Minimum and maximum are exact; bool counts as 0 and 1. Mean and population standard deviation
    are summed in float64, stably: each tile around its own mean, tiles combined after Chan, Golub and
    LeVeque (1983). In these and in the histogram 64-bit integers beyond 2^53 are rounded to float64.
    The result has the same bits for any number of ranks of one kind of device. An element
    x is in bin floor((x - low) * (bins / (high - low))), computed in float64; `high` itself is
    in the last bin. Elements outside are counted as below and above.

    bins: of equal width, 1 to 65536.
    low: lower edge of the first bin; by default the minimum.
    high: upper edge of the last bin; by default the maximum. Where both defaults are the same
        value, half a unit less and more.
    """
    _check_bins(bins, low, high)
    tiles = meshrun.Tiles(world, input)
    dtypes.check("statistics", tiles.dtype)
    xp = world.backend.xp
    moments = tiles.reduce(functools.partial(of_tile, xp), combine)
    if moments is None:
        raise UserError(
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


def _histogram(xp: ModuleType, block: Any, *, bins: int, edges: Edges) -> Any:
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
    return np.append(np.bincount(index, minlength=bins), [below, above])


def _check_bins(bins: int, low: float | None, high: float | None) -> None:
    if not 1 <= bins <= MOST_BINS:
        raise UserError(
            "a histogram cannot have so many bins", got=bins, expected=f"1 to {MOST_BINS}", everywhere=True
        )
    for name, edge in (("low", low), ("high", high)):
        if edge is not None and not math.isfinite(edge):
            raise UserError(f"{option(name)} is no finite number", got=edge, everywhere=True)
    if low is not None and high is not None:
        _check_range(low, high)


def _edges(moments: Moments, low: float | None, high: float | None) -> Edges | None:
    """Where the histogram begins and ends; None where nothing says."""
    if moments.finite == 0 and (low is None or high is None):
        return None
    least, most = float(moments.low), float(moments.high)
    if low is None and high is None and least == most:
        value = least  # half a unit may be less than its last bit
        return min(value - 0.5, math.nextafter(value, -math.inf)), max(
            value + 0.5, math.nextafter(value, math.inf)
        )
    first = least if low is None else low
    last = most if high is None else high
    _check_range(first, last)
    return first, last


def _check_range(low: float, high: float) -> None:
    # The smallest normal number: the width of a bin below it has no finite inverse.
    if not MOST_BINS * 2.0**-1022 < high - low < math.inf:
        raise UserError(
            "the histogram's range is empty, or too wide or narrow for float64",
            got=f"{low:g} to {high:g}",
            expected="low below high",
            hint=f"{option('low')} and {option('high')}",
            everywhere=True,
        )


def _report(
    moments: Moments, edges: Edges | None, counts: np.ndarray[Any, Any], dtype: np.dtype[Any]
) -> dict[str, Any]:
    some = moments.finite > 0
    exact = int if dtypes.is_integer(dtype) else float
    return {
        "count": moments.finite,
        "nan": moments.nan,
        "infinite": moments.infinite,
        "min": exact(moments.low) if some else None,
        "max": exact(moments.high) if some else None,
        "mean": moments.mean if some else None,
        "std": math.sqrt(max(moments.squares, 0.0) / moments.finite) if some else None,
        "low": edges[0] if edges else None,
        "high": edges[1] if edges else None,
        "below": int(counts[-2]),
        "above": int(counts[-1]),
        "histogram": counts[:-2].tolist(),
    }
