"""Counts of cells by value: histograms, and the number of each small integer."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import on_host, refuse, taken, taken_beside
from meshrun.runner.arrays.tools.fixed_point import binned_sums, fixed_point, own_counts, slabs
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array


def histogram(
    a: DistributedArray,
    bins: int | str | Sequence[float] | npt.NDArray[Any] = 10,
    range: tuple[float, float] | None = None,
    density: bool | None = None,
    weights: DistributedArray | None = None,
) -> tuple[Array, Array]:
    """Return the number of cells in each bin, and the bins' edges. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of any shape; NaNs are counted in no bin.
    bins : int or sequence
        Number of bins of equal width, or their edges, which increase.
    range : (float, float), optional
        The first and the last edge. None: the smallest and the largest cell.
    density : bool, optional
        Whether to return the density, whose integral is 1, instead of counts.
    weights : DistributedArray, optional
        What each cell counts; of the shape of `a`.

    Returns
    -------
    counts, edges : numpy.ndarray or cupy.ndarray
        The same on every rank, on its device. Edges and counts have NumPy's bits; sums of weights have the
        same bits on any number of ranks, and agree with NumPy's within rounding.

    Raises
    ------
    UserError
        On every rank, for bins that NumPy refuses, for a number of bins by name, and for weights of another
        shape.

    Examples
    --------
    >>> counts, edges = meshrun.histogram(meshrun.load(world, "u.npy"), bins=100)
    """
    a = taken("histogram", a)
    world, xp = a.world, a.world.xp
    if isinstance(bins, str):
        raise UserError(
            "histogram chooses no number of bins",
            got=f"bins={bins!r}",
            expected="a number of bins, or their edges",
            everywhere=True,
        )
    if weights is not None:
        weights = taken_beside("histogram", a, weights, "weights")
    cells = a.interior.reshape(-1)
    if a.dtype.kind == "b":
        if world.rank == 0:
            warnings.warn("histogram counts bool cells as uint8", RuntimeWarning, stacklevel=2)
        cells = cells.astype(np.uint8)

    # NumPy's edges, of an array that has the smallest and the largest cell.
    has_ends = range is None and np.ndim(bins) == 0 and 0 not in a.shape
    ends = np.array([on_host(a.min())[()], on_host(a.max())[()]] if has_ends else [], cells.dtype)
    try:
        edges = np.histogram_bin_edges(ends, on_host(bins), range)
    except (TypeError, ValueError) as failure:
        raise refuse("histogram", failure) from failure
    if has_ends:
        range = (ends[0], ends[1])

    on_device, count = xp.asarray(edges), max(len(edges) - 1, 0)
    counts: Array
    if weights is None and xp is np:
        counts = world.all_reduce(np.histogram(cells, on_host(bins), range)[0])
    elif weights is None:
        counts = xp.zeros(count, np.int64)
        for part in slabs(xp, cells.size):
            index, inside = _bins(xp, on_device, cells[part])
            counts += own_counts(xp, index[inside], count)
        world.all_reduce(counts)
    else:
        counts = _weighted(a, weights, cells, on_device)
    if density:
        width = xp.asarray(np.diff(edges).astype(float))
        counts = counts / width / counts.sum()
    return counts, on_device


def _bins(xp: Any, edges: Array, cells: Array) -> tuple[Array, Array]:
    """Return the bin of each cell, and whether there is one. The last bin has its right edge."""
    count = len(edges) - 1
    index = xp.searchsorted(edges, cells, side="right") - 1
    if len(edges):
        index = xp.where(cells == edges[-1], count - 1, index)
    return index, (index >= 0) & (index < count)


def _weighted(a: DistributedArray, weights: DistributedArray, cells: Array, edges: Array) -> Array:
    """Return the sum of the weights in each bin, in the dtype of the weights. Collective."""
    xp, count, of_cells = a.world.xp, max(len(edges) - 1, 0), weights.interior.reshape(-1)
    is_complex = weights.dtype.kind == "c"
    totals = []
    for floats in (of_cells.real, of_cells.imag) if is_complex else (of_cells,):
        form = fixed_point(a.world, floats)
        sums = xp.zeros((form.slices, count), np.float64)
        for part in slabs(xp, cells.size):
            index, inside = _bins(xp, edges, cells[part])
            form.add(xp, sums, index[inside], floats[part][inside])
        totals.append(form.join(xp, a.world.all_reduce(sums)))
    total = totals[0] + 1j * totals[1] if is_complex else totals[0]
    if weights.dtype.kind in "bi":  # what overflows wraps around, as in NumPy
        total = total.astype(np.int64)
    return total.astype(weights.dtype)


def bincount(a: DistributedArray, weights: DistributedArray | None = None, minlength: int = 0) -> Array:
    """Return how often each integer from 0 on occurs. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of one axis, of integers of 0 or more.
    weights : DistributedArray, optional
        What each cell counts; of the shape of `a`. Real numbers.
    minlength : int
        Fewest counts to return.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Counts in int64 with NumPy's bits, or sums of weights in float64; the same on every rank, on its
        device. Sums have the same bits on any number of ranks and agree with NumPy's within rounding.

    Raises
    ------
    UserError
        On every rank, for cells that are no integers of 0 or more, and for weights of another shape.

    Examples
    --------
    >>> sizes = meshrun.bincount(meshrun.load(world, "labels.npy"))
    """
    a = taken("bincount", a)
    if len(a.shape) != 1 or not np.can_cast(a.dtype, np.int64):
        raise UserError(
            "bincount takes an array of one axis of integers",
            got=f"{a.dtype} of shape {a.shape}",
            expected="a dtype whose values int64 has",
            everywhere=True,
        )
    try:
        length = operator.index(minlength)
    except TypeError as failure:
        raise refuse("bincount", failure) from failure
    if length < 0:
        raise UserError("bincount: minlength is negative", got=length, expected="0 or more", everywhere=True)
    if a.shape[0]:
        least, most = int(a.min()), int(a.max())
        if least < 0:
            raise UserError("bincount takes integers of 0 or more", got=least, everywhere=True)
        length = max(length, most + 1)
    bins = a.interior.astype(np.int64, copy=False)
    if weights is None:
        return a.world.all_reduce(own_counts(a.world.xp, bins, length))
    weights = taken_beside("bincount", a, weights, "weights")
    if not np.can_cast(weights.dtype, np.float64):
        raise UserError(
            "bincount takes weights that float64 has", got=f"weights of {weights.dtype}", everywhere=True
        )
    return binned_sums(a.world, bins, weights.interior, length)
