"""Percentiles, quantiles and medians: exact, by selection of the few cells that they need.

A sorted sample brackets the wanted cells. Of the cells inside the brackets, which are a few percent, a sample
is taken again, until so few are left that every rank sorts them. For 2^30 cells that is four passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    if axis is not None:
        axis = normal_axis("median", axis, len(a.shape))
    count = int(np.prod(a.shape)) if axis is None or len(a.shape) == 1 else a.shape[axis]
    middle = [(count - 1) // 2, count // 2][count % 2 :] if count else []

    def mean(xp: Any, cells: Array) -> Array:
        """Return the mean of the one or two cells in the middle, along the first axis."""
        try:
            return xp.mean(cells, axis=0)
        except TypeError as failure:
            raise refuse("median", failure) from failure

    if axis is not None and len(a.shape) > 1:
        return _of_lines(
            a,
            axis,
            (),
            lambda xp, ordered: mean(xp, ordered[middle[0] : middle[-1] + 1] if middle else ordered),
        )
    cells = a.interior.reshape(-1)
    if count and _has_nan(a.world, cells):
        return as_device_array(a.world, mean(np, np.full(1, _not_a_number(a.dtype))))[()]
    return as_device_array(a.world, mean(np, order_statistics(a.world, cells, middle)))[()]


def _quantiles(function: str, a: DistributedArray, q: npt.ArrayLike, axis: int | None, method: str) -> Any:
    world = a.world
    weak = type(q) in (int, float)  # its dtype does not count in the result's
    try:
        fractions = np.asarray(q, np.float64) / (100 if function == "percentile" else 1)
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

    def between(xp: Any, cells: Array, share: npt.NDArray[np.float64] | None) -> Array:
        """Return the quantiles of cells at the places that they need, along their first axes.

        share: None, or how far between two.
        """
        if share is None:
            return cells
        further = (1,) * (cells.ndim - 1 - share.ndim)
        try:
            part = float(share) if weak else xp.asarray(share.reshape(share.shape + further))
            return _between(xp, cells[0], cells[1], part)
        except TypeError as failure:
            raise refuse(function, failure) from failure

    # Along an axis of several: each rank has whole lines.
    if axis is not None and len(a.shape) > 1:
        positions, share = _places(fractions, a.shape[axis], method)
        return _of_lines(
            a, axis, fractions.shape, lambda xp, ordered: between(xp, ordered[xp.asarray(positions)], share)
        )

    cells, count = a.interior.reshape(-1), int(np.prod(a.shape))
    positions, share = _places(fractions, count, method)
    if _has_nan(world, cells):
        selected = np.full(positions.shape, _not_a_number(a.dtype), a.dtype)
    else:
        wanted, inverse = np.unique(positions, return_inverse=True)
        selected = order_statistics(world, cells, wanted.tolist())[inverse.reshape(positions.shape)]
    return as_device_array(world, between(np, selected, share))[()]


def _of_lines(
    a: DistributedArray, axis: int, before: tuple[int, ...], compute: Callable[[Any, Array], Array]
) -> DistributedArray:
    """Return what `compute` returns of sorted lines, and NaN of those that have one. Collective.

    before: further first axes of the result. compute: gets the array module, and the cells with the axis
    sorted and first.
    """
    xp = a.world.xp
    cells, partition = with_whole_lines(a, axis)

    def computed() -> Array:
        ordered = xp.moveaxis(xp.sort(cells, axis=axis), axis, 0)
        result = compute(xp, ordered)
        if len(ordered) and a.dtype.kind in "fcmM":
            result = xp.where(xp.isnan(ordered[-1]), _not_a_number(result.dtype), result)
        return result

    return made_of(a.world, without_axis(partition, axis, before), a.world.collective_call(computed))


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
    masks = [cells < low, cells == low, (cells > low) & (cells < high), (cells == high) & (low < high)]
    masks.append(cells > high)
    mine = [int(mask.sum()) for mask in masks]
    counts = np.sum(world.control.allgather(mine), axis=0).tolist()
    parts = []
    for number, (mask, count) in enumerate(zip(masks, counts, strict=True)):
        inside = [position for position in wanted if before <= position < before + count]
        if number in (1, 3):
            selected |= dict.fromkeys(inside, low if number == 1 else high)
        elif inside:
            parts.append((cells[mask], before, inside))
        before += count
    return parts
