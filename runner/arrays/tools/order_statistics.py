"""Percentiles, quantiles and medians: exact, by selection of the few cells that they need.

A sorted sample brackets the wanted cells. Of the cells inside the brackets, which are a few percent, a sample
is taken again, until so few are left that every rank sorts them. For 2^30 cells that is four passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import (
    as_device_array,
    made_of,
    normal_axis,
    on_host,
    refuse,
    taken,
    with_whole_lines,
    without_axis,
)
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, HostArray
from meshrun.runner.world.world import World

FEW = 1 << 18  # cells that every rank sorts
SAMPLE = 1 << 16  # cells of a sample
MARGIN = 3  # standard deviations of a cell's place in the sample, about, to each side of it
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def percentile(
    a: DistributedArray, q: npt.ArrayLike, axis: int | None = None, *, method: str = "linear"
) -> Any:
    """Return percentiles of all cells, or along an axis. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of real numbers, dates or times.
    q : float or array_like
        Which percentiles, from 0 to 100.
    axis : int, optional
        Along which. None: of all cells.
    method : {"linear", "lower", "higher", "nearest", "midpoint"}
        What is returned between two cells, as of `numpy.percentile`.

    Returns
    -------
    scalar, numpy.ndarray, cupy.ndarray or DistributedArray
        Of all cells: a value for each of `q`, the same on every rank, on its device, with NumPy's bits; NaN
        if there is one. Along an axis: an array that is split over the ranks; its first axes are those of
        `q`.

    Raises
    ------
    UserError
        On every rank, for another method or axis, percentiles outside of 0 to 100, complex numbers, and
        arrays without cells.

    Examples
    --------
    >>> low, high = meshrun.percentile(meshrun.load(world, "u.npy"), [5, 95])
    """
    a = taken("percentile", a)
    return _quantiles("percentile", a, q, axis, method)


def quantile(
    a: DistributedArray, q: npt.ArrayLike, axis: int | None = None, *, method: str = "linear"
) -> Any:
    """Return quantiles, as `percentile` does. Collective.

    Parameters
    ----------
    a : DistributedArray
        As of `percentile`.
    q : float or array_like
        Which quantiles, from 0 to 1.
    axis : int, optional
        Along which. None: of all cells.
    method : {"linear", "lower", "higher", "nearest", "midpoint"}
        What is returned between two cells, as of `numpy.quantile`.

    Returns
    -------
    scalar, numpy.ndarray, cupy.ndarray or DistributedArray
        As of `percentile`.

    Raises
    ------
    UserError
        As by `percentile`.

    Examples
    --------
    >>> third = meshrun.quantile(meshrun.load(world, "u.npy"), 1 / 3)
    """
    a = taken("quantile", a)
    return _quantiles("quantile", a, q, axis, method)


def median(a: DistributedArray, axis: int | None = None) -> Any:
    """Return the median of all cells, or along an axis. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of numbers or time differences.
    axis : int, optional
        Along which. None: of all cells.

    Returns
    -------
    scalar, cupy.ndarray or DistributedArray
        Of all cells: on every rank, with NumPy's bits; NaN if there is one, and for an array without cells.
        Along an axis: an array that is split over the ranks.

    Raises
    ------
    UserError
        On every rank, if the array has no such axis, or NumPy has no median of its dtype.

    Examples
    --------
    >>> middle = meshrun.median(meshrun.load(world, "u.npy"))
    """
    a = taken("median", a)
    world, xp = a.world, a.world.xp
    try:
        np.mean(np.zeros(1, a.dtype))
    except TypeError as failure:
        raise refuse("median", failure) from failure
    if axis is not None:
        axis = normal_axis("median", axis, len(a.shape))

    # Along an axis of several: each rank has whole lines.
    if axis is not None and len(a.shape) > 1:
        ordered, partition = _sorted_lines(a, axis)
        middle = xp.mean(ordered[slice(*_middle(len(ordered)))], axis=0)
        return made_of(world, without_axis(partition, axis), _with_nans(xp, ordered, middle))

    # The mean of the one or two cells in the middle.
    cells, count = a.interior.reshape(-1), int(np.prod(a.shape))
    if count and _has_nan(world, cells):
        selected = np.full(1, _not_a_number(a.dtype))
    else:
        selected = order_statistics(world, cells, range(*_middle(count)))
    return as_device_array(world, np.mean(selected))[()]


def _middle(count: int) -> tuple[int, int]:
    """Return where the cells in the middle of so many begin, and end."""
    return max((count - 1) // 2, 0), count // 2 + (count > 0)


def _quantiles(function: str, a: DistributedArray, q: npt.ArrayLike, axis: int | None, method: str) -> Any:
    world, xp = a.world, a.world.xp
    weak = type(q) in (int, float)  # its dtype does not count in the result's
    try:
        fractions = np.asarray(q, np.float64) / (100 if function == "percentile" else 1)
        if method in ("linear", "midpoint"):
            _between(np, np.zeros(1, a.dtype), np.zeros(1, a.dtype), 0.5)
    except (TypeError, ValueError) as failure:
        raise refuse(function, failure) from failure
    if method not in METHODS:
        raise UserError(
            f"{function} has no such method", got=repr(method), expected=" or ".join(METHODS), everywhere=True
        )
    if not (np.all(fractions >= 0) and np.all(fractions <= 1)):
        most = 100 if function == "percentile" else 1
        raise UserError(f"{function} out of range", got=q, expected=f"from 0 to {most}", everywhere=True)
    if a.dtype.kind == "c":
        raise UserError(f"{function} of complex numbers, which have no order", got=a.dtype, everywhere=True)
    if axis is not None:
        axis = normal_axis(function, axis, len(a.shape))
    if 0 in (a.shape if axis is None else (a.shape[axis],)):
        raise UserError(f"{function} of an array without cells", got=f"shape {a.shape}", everywhere=True)

    # Along an axis of several: each rank has whole lines.
    if axis is not None and len(a.shape) > 1:
        ordered, partition = _sorted_lines(a, axis)
        positions, share = _places(fractions, len(ordered), method)
        result = _interpolated(xp, ordered[xp.asarray(positions)], share, weak)
        return made_of(world, without_axis(partition, axis, fractions.shape), _with_nans(xp, ordered, result))

    # Of all cells: on every rank.
    cells, count = a.interior.reshape(-1), int(np.prod(a.shape))
    positions, share = _places(fractions, count, method)
    if _has_nan(world, cells):
        selected = np.full(positions.shape, _not_a_number(a.dtype), a.dtype)
    else:
        wanted, inverse = np.unique(positions, return_inverse=True)
        selected = order_statistics(world, cells, wanted.tolist())[inverse.reshape(positions.shape)]
    return as_device_array(world, _interpolated(np, selected, share, weak))[()]


def _sorted_lines(a: DistributedArray, axis: int) -> tuple[Array, Partition]:
    """Return cells sorted along an axis, which comes first, and how they are split before. Collective."""
    cells, partition = with_whole_lines(a, axis)
    return a.world.xp.moveaxis(a.world.xp.sort(cells, axis=axis), axis, 0), partition


def _with_nans(xp: Any, ordered: Array, result: Array) -> Array:
    """Return the result of sorted lines with NaN for those that have one."""
    if not len(ordered) or ordered.dtype.kind not in "fcmM":
        return result
    return xp.where(xp.isnan(ordered[-1]), _not_a_number(result.dtype), result)


def _places(
    fractions: npt.NDArray[np.float64], count: int, method: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
    """Return which of the sorted cells quantiles need, and how far between two of them they are.

    Of a method that takes one cell: their positions, of the shape of `fractions`, and None. Else the
    positions of the lower cells and those of the higher ones, stacked.
    """
    exact = (count - 1) * fractions
    rounding: dict[str, Any] = {"lower": np.floor, "higher": np.ceil, "nearest": np.around}
    if method in rounding:
        return rounding[method](exact).astype(np.int64), None
    virtual = 0.5 * (np.floor(exact) + np.ceil(exact)) if method == "midpoint" else exact
    lower, beyond = np.floor(virtual), virtual >= count - 1
    # NumPy counts the last cell as -1, also in its share.
    share = np.asarray(virtual - np.where(beyond, -1, lower))
    if method == "midpoint":
        share = np.where(virtual % 1 == 0, 0.0, 0.5)
    lower = np.where(beyond, count - 1, lower).astype(np.int64)
    return np.stack([lower, np.minimum(lower + 1, count - 1)]), share


def _interpolated(xp: Any, cells: Array, share: npt.NDArray[np.float64] | None, weak: bool) -> Array:
    """Return the quantiles of the cells at `_places`. weak: whether the dtype of the share does not count."""
    if share is None:
        return cells
    further = (1,) * (cells.ndim - 1 - share.ndim)
    part = float(share) if weak else xp.asarray(share.reshape(share.shape + further))
    return _between(xp, cells[0], cells[1], part)


def _between(xp: Any, low: Array, high: Array, share: Any) -> Array:
    """Return what lies between cells, in NumPy's order of operations: from the nearer one."""
    difference = xp.subtract(high, low)
    result = xp.add(low, difference * share)
    return xp.where(share >= 0.5, (high - difference * (1 - share)).astype(result.dtype), result)


def _has_nan(world: World, cells: Array) -> bool:
    """Return whether a rank has a NaN or NaT. Collective for dtypes that have them."""
    if cells.dtype.kind not in "fcmM":
        return False
    mine = bool(world.xp.isnan(cells).any())
    return any(world.control.allgather(mine))


def _not_a_number(dtype: np.dtype[Any]) -> Any:
    return np.array("NaT", dtype)[()] if dtype.kind in "mM" else dtype.type(np.nan)


def order_statistics(world: World, cells: Array, positions: Sequence[int]) -> HostArray:
    """Return the cells at some positions of the sorted array, in host memory, on every rank. Collective.

    cells: this rank's, of one axis, without NaN. positions: ascending, from 0.
    """
    selected: dict[int, Any] = {}
    # Cells of all ranks that are neighbours when sorted, the number of cells before them, what to select.
    parts: list[tuple[Array, int, list[int]]] = [(cells, 0, list(positions))]
    rounds = 0
    while parts:
        part, before, wanted = parts.pop()
        lengths = world.control.allgather(int(part.size))
        total = sum(lengths)
        if total <= FEW:
            ordered = np.sort(on_host(world.all_gather(part)))
            selected |= {position: ordered[position - before] for position in wanted}
            continue
        rounds += 1
        sample = _sample(world, part, total, rounds)
        for low, high, inside in _brackets(sample, total, [position - before for position in wanted]):
            parts += _cut(world, part, before, (low, high), [before + one for one in inside], selected)
    return np.array([selected[position] for position in positions], cells.dtype)


def _sample(world: World, cells: Array, total: int, seed: int) -> HostArray:
    """Return a sorted sample: a cell of each stretch of neighbours, at a random place in it. Collective."""
    stretch = -(-total // SAMPLE)
    places = np.arange(0, cells.size, stretch)
    places += np.random.default_rng(seed).integers(0, stretch, len(places))
    places = np.minimum(places, max(cells.size - 1, 0))
    return np.sort(on_host(world.all_gather(cells[world.xp.asarray(places)])))


def _brackets(sample: HostArray, total: int, positions: list[int]) -> list[tuple[Any, Any, list[int]]]:
    """Return two cells of a sample around each position, with the positions; those that overlap as one."""
    margin, last = int(MARGIN * np.sqrt(len(sample)) / 2) + 1, len(sample) - 1
    merged: list[tuple[int, int, list[int]]] = []
    for position in positions:
        centre = position * len(sample) // total
        low, high = max(centre - margin, 0), min(centre + margin, last)
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], high, [*merged[-1][2], position])
        else:
            merged.append((low, high, [position]))
    return [(sample[low], sample[high], inside) for low, high, inside in merged]


def _cut(
    world: World,
    cells: Array,
    before: int,
    bracket: tuple[Any, Any],
    wanted: list[int],
    selected: dict[int, Any],
) -> list[tuple[Array, int, list[int]]]:
    """Cut cells by two of them; return the parts that have wanted cells, except those that are selected.

    Parts of equal cells have their value. Each other part lacks at least one cell. Collective.
    """
    low, high = bracket
    mine = [int(mask.sum()) for mask in (cells < low, cells <= low, cells < high, cells <= high)]
    below, to_low, below_high, to_high = np.sum(world.control.allgather(mine), axis=0).tolist()
    # Where these begin: below the bracket, equal to its low end, inside, equal to its high end, above.
    starts = [before + end for end in (0, below, to_low, max(below_high, to_low), to_high)]
    parts = []
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], math.inf], strict=True)):
        inside = [position for position in wanted if start <= position < stop]
        if not inside:
            continue
        if number in (1, 3):
            selected |= dict.fromkeys(inside, low if number == 1 else high)
            continue
        if number == 0:
            mask = cells < low
        elif number == 2:
            mask = (cells > low) & (cells < high)
        else:
            mask = cells > high
        parts.append((cells[mask], start, inside))
    return parts
