"""NumPy's reductions of distributed arrays, along all axes or some: the same bits on any number of ranks.

A reduction along all axes is a number, which every rank has on its device; one along some axes is a
distributed array.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.arrays.operations import parts as geometry
from meshrun.runner.arrays.operations.split_array import (
    SplitArray,
    as_number,
    begin,
    elementwise,
    not_for_split_arrays,
)
from meshrun.runner.arrays.operations.table import FUNCTIONS, implements
from meshrun.runner.arrays.reduce import exact_total, first_extreme, has_exact_sums, reduce_axes
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, Region, Shape

NO_VALUE: Any = np._NoValue
Axes = int | Sequence[int] | None


def axes_of(axis: Axes, ndim: int) -> Shape:
    """Return the axes that are reduced, in ascending order."""
    given: Sequence[Any] = (
        range(ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else [axis]
    )
    found = []
    for one in given:
        number = operator.index(one)
        if not -ndim <= number < ndim:
            raise np.exceptions.AxisError(number, ndim)
        found.append(number % ndim)
    if len(set(found)) < len(found):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(found))


def reduced(
    a: SplitArray,
    ufunc: str,
    axis: Axes,
    *,
    dtype: np.dtype[Any] | None = None,
    keepdims: bool = False,
) -> Any:
    """Return an array combined along some axes by a ufunc, in its dtype or another. Collective.

    ufunc: "add", "multiply", "maximum" or "minimum".
    """
    axes, source = axes_of(axis, a.ndim), a
    kind = a.dtype if dtype is None else np.dtype(dtype)
    working = np.dtype(np.float32) if kind == np.float16 and ufunc in ("add", "multiply") else kind
    begin(a.world, f"{ufunc}.reduce", a, axes)
    if not axes:
        return a.astype(kind)
    shape = tuple(n for number, n in enumerate(a.shape) if number not in axes)
    if 0 in (a.shape[number] for number in axes):
        if ufunc in ("maximum", "minimum"):
            raise ValueError(f"zero-size array to reduction operation {ufunc} which has no identity")
        parts = geometry.even_parts(shape, a.world.size)
        cells = a.world.xp.full(parts[a.world.rank].shape, 0 if ufunc == "add" else 1, kind)
        return with_axes(a, parts, cells, axes, keepdims=keepdims)
    if ufunc == "add" and len(axes) == a.ndim and has_exact_sums(a.world, working):
        a.check_readable()
        total = np.asarray(exact_total(a.world, working, a.interior).astype(kind))
        a.world.operations.waits.note_caller()
        return with_axes(a, geometry.even_parts((), a.world.size), total, axes, keepdims=keepdims)
    source = partitioned(a)
    cells = source.interior.astype(working, copy=False)
    total = reduce_axes(a.world, source.partition, axes, cells, ufunc).astype(kind, copy=False)
    a.world.operations.waits.note_caller()
    return spread(source, total, axes, keepdims=keepdims)


def partitioned(a: SplitArray) -> SplitArray:
    """Return the array with the parts of a partition. Collective."""
    a.check_readable()
    return a if isinstance(a.partition, Partition) else a.evenly_split()


def spread(a: SplitArray, total: Array, axes: Shape, *, keepdims: bool) -> Any:
    """Return what all ranks of a line along the reduced axes have, as an array of which each has a part."""
    partition, world = a.partition, a.world
    kept = [number for number in range(a.ndim) if number not in axes]
    shape = tuple(a.shape[number] for number in kept)
    if not kept:
        return with_axes(a, geometry.even_parts((), world.size), total, axes, keepdims=keepdims)
    # The first rank of each line has its cells.
    boxes = []
    for rank in range(world.size):
        region, place = partition[rank], partition.coordinates(rank)
        start = tuple(region.start[number] for number in kept)
        stop = tuple(region.stop[number] for number in kept)
        first = all(place[number] == 0 for number in axes)
        boxes.append(Region(start, stop if first else start))
    grid = tuple(partition.grid[number] for number in kept)
    parts = geometry.as_partition(geometry.BoxParts(shape, tuple(boxes)), grid)
    if geometry.is_even(parts, world.size):
        return with_axes(a, parts, total, axes, keepdims=keepdims)
    even = geometry.even_parts(shape, world.size)
    if all(partition.grid[number] == 1 for number in kept):  # every rank has all cells
        return with_axes(a, even, total[even[world.rank].slices], axes, keepdims=keepdims)
    own = boxes[world.rank]
    cells = a.made(parts, total[tuple(slice(0, n) for n in own.shape)]).fetched(even)
    return with_axes(a, even, cells, axes, keepdims=keepdims)


def with_axes(a: SplitArray, parts: Any, cells: Array, axes: Shape, *, keepdims: bool) -> Any:
    """Return a result; with `keepdims` with its reduced axes; without axes as a number."""
    if not parts.shape and not keepdims:
        return as_number(a, cells)
    if not parts.shape:  # of one cell, which is on the first rank
        shape = (1,) * a.ndim
        own = cells.reshape(shape)
        even = geometry.even_parts(shape, a.world.size)
        return a.made(even, own[even[a.world.rank].slices])
    found = a.made(parts, cells)
    if not keepdims:
        return found
    kept = iter(found.shape)
    items = [None if number in axes else geometry.Taken(0, 1, next(kept)) for number in range(a.ndim)]
    return found.view(tuple(items))


def stored(result: Any, out: Any) -> Any:
    """Return a result; with `out`, that array, filled."""
    if out is None:
        return result
    target = out[0] if isinstance(out, tuple) else out
    target[...] = result
    return target


def chosen(value: Any, default: Any) -> Any:
    return default if value is NO_VALUE else value


IDENTITY = {"add": 0, "multiply": 1}


def masked(a: SplitArray, ufunc: str, where: Any, initial: Any) -> Any:
    """Return the array with what does not count replaced by what changes nothing."""
    if where is NO_VALUE or where is True:
        return a
    neutral = IDENTITY.get(ufunc, initial)
    if neutral is NO_VALUE or neutral is None:
        raise ValueError(
            f"reduction operation '{ufunc}' does not have an identity, so to use a where mask one has to "
            "specify 'initial'"
        )
    return elementwise("where", (where, a, a.dtype.type(neutral)))


@functools.lru_cache(256)
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of NumPy's sum or product of cells of a dtype."""
    found: np.dtype[Any] = np.sum(np.ones(1, dtype)).dtype
    return found


def _reduction(ufunc: str) -> Callable[..., Any]:
    """Return numpy.sum and the like."""
    combine = getattr(np, ufunc)

    def reduce(
        a: SplitArray,
        axis: Axes = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE,
        where: Any = NO_VALUE,
    ) -> Any:
        kind = np.dtype(dtype) if dtype is not None else None
        if kind is None and ufunc in IDENTITY:
            kind = sum_dtype(a.dtype)
        of = masked(a, ufunc, where, initial)
        if initial is not NO_VALUE and initial is not None and 0 in a.shape and not of.size:
            shape = [n for number, n in enumerate(a.shape) if number not in axes_of(axis, a.ndim)]
            if not shape:
                return stored(np.asarray(initial, kind or a.dtype)[()], out)
        total = reduced(of, ufunc, axis, dtype=kind, keepdims=bool(chosen(keepdims, False)))
        if initial is not NO_VALUE and initial is not None:
            total = combine(total, total.dtype.type(initial))
        return stored(total, out)

    return reduce


_sum, _prod, _max, _min = map(_reduction, ("add", "multiply", "maximum", "minimum"))
implements(np.sum)(_sum)
implements(np.prod)(_prod)


@implements(np.max, np.amax)
def largest(a: SplitArray, axis: Axes = None, out: Any = None, *others: Any, **options: Any) -> Any:
    return _max(a, axis, None, out, *others, **options)


@implements(np.min, np.amin)
def smallest(a: SplitArray, axis: Axes = None, out: Any = None, *others: Any, **options: Any) -> Any:
    return _min(a, axis, None, out, *others, **options)


@implements("reduce")
def reduce(
    ufunc: np.ufunc,
    a: SplitArray,
    axis: Axes = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = NO_VALUE,
    where: Any = True,
) -> Any:
    """numpy.add.reduce and the like."""
    logical = {"logical_or": anything, "logical_and": everything}
    if ufunc.__name__ in logical:
        return logical[ufunc.__name__](a, axis, out, keepdims, where=where)
    by_name = {"add": _sum, "multiply": _prod, "maximum": _max, "minimum": _min}
    if ufunc.__name__ not in by_name:
        raise not_for_split_arrays(f"numpy.{ufunc.__name__}.reduce")
    return by_name[ufunc.__name__](a, axis, dtype, out, keepdims, initial, where)


@implements(np.any)
def anything(
    a: SplitArray, axis: Axes = None, out: Any = None, keepdims: Any = NO_VALUE, *, where: Any = NO_VALUE
) -> Any:
    return _truth(a, axis, out, keepdims, where, wanted=True)


@implements(np.all)
def everything(
    a: SplitArray, axis: Axes = None, out: Any = None, keepdims: Any = NO_VALUE, *, where: Any = NO_VALUE
) -> Any:
    return _truth(a, axis, out, keepdims, where, wanted=False)


def _truth(a: SplitArray, axis: Axes, out: Any, keepdims: Any, where: Any, *, wanted: bool) -> Any:
    """Return whether any cell is true, or if not `wanted`, whether all are."""
    cells = a if a.dtype == bool else a != 0
    if where is not NO_VALUE and where is not True:
        cells = elementwise("where", (where, cells, not wanted))
    if 0 in (a.shape[number] for number in axes_of(axis, a.ndim)):
        found = reduced(cells, "add" if wanted else "multiply", axis, keepdims=bool(chosen(keepdims, False)))
        return stored(found, out)
    ufunc = "maximum" if wanted else "minimum"
    return stored(reduced(cells, ufunc, axis, keepdims=bool(chosen(keepdims, False))), out)


@implements(np.count_nonzero)
def count_nonzero(a: SplitArray, axis: Axes = None, *, keepdims: bool = False) -> Any:
    return _sum(a != 0, axis, np.intp, keepdims=keepdims)


@implements(np.ptp)
def ptp(a: SplitArray, axis: Axes = None, out: Any = None, keepdims: Any = NO_VALUE) -> Any:
    kept = bool(chosen(keepdims, False))
    return stored(
        reduced(a, "maximum", axis, keepdims=kept) - reduced(a, "minimum", axis, keepdims=kept), out
    )


def _count(a: SplitArray, axis: Axes, where: Any, *, keepdims: bool) -> Any:
    """Return how many cells a reduction has."""
    if where is NO_VALUE or where is True:
        return math.prod(a.shape[number] for number in axes_of(axis, a.ndim))
    ones = elementwise("where", (where, elementwise("ones_like", (a,), dtype=np.intp), np.intp(0)))
    return _sum(ones, axis, keepdims=keepdims)


def _divided(total: Any, count: Any, kind: np.dtype[Any]) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = total / total.dtype.type(count) if np.ndim(count) == 0 else total / count
    return found.astype(kind)


@implements(np.mean)
def mean(
    a: SplitArray,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
) -> Any:
    kept, kind = bool(chosen(keepdims, False)), np.dtype(dtype) if dtype is not None else a.dtype
    if dtype is None and a.dtype.kind in "biu":
        kind = np.dtype(np.float64)
    working = np.dtype(np.float32) if kind == np.float16 else kind
    total = _sum(a, axis, working, keepdims=kept, where=where)
    return stored(_divided(total, _count(a, axis, where, keepdims=kept), kind), out)


@implements(np.average)
def average(
    a: SplitArray, axis: Axes = None, weights: Any = None, returned: bool = False, *, keepdims: Any = NO_VALUE
) -> Any:
    if weights is None:
        found = mean(a, axis, keepdims=keepdims)
        count = _count(a, axis, True, keepdims=False)
        return (found, found * 0 + count) if returned else found
    if np.shape(weights) != np.shape(a):
        (number,) = axes_of(axis, a.ndim)
        weights = np.reshape(weights, [-1 if n == number else 1 for n in range(a.ndim)])
    kept = bool(chosen(keepdims, False))
    heavy = a * weights
    scale = _sum(a * 0 + weights, axis, heavy.dtype, keepdims=kept)
    found = _sum(heavy, axis, keepdims=kept) / scale
    return (found, scale) if returned else found


@implements(np.var)
def var(
    a: SplitArray,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
    correction: Any = NO_VALUE,
) -> Any:
    ddof = chosen(correction, ddof)
    kept, kind = bool(chosen(keepdims, False)), np.dtype(dtype) if dtype is not None else a.dtype
    if dtype is None and a.dtype.kind in "biu":
        kind = np.dtype(np.float64)
    working = np.dtype(np.float32) if kind == np.float16 else kind
    apart = a.astype(working) - mean(a, axis, working, keepdims=True, where=where)
    squares = (apart * np.conjugate(apart)).real if apart.dtype.kind == "c" else apart * apart
    total = _sum(squares, axis, keepdims=kept, where=where)
    count = _count(a, axis, where, keepdims=kept)
    left = np.maximum(count - ddof, 0)
    return stored(_divided(total, left, kind.type(0).real.dtype), out)


@implements(np.std)
def std(a: SplitArray, *others: Any, out: Any = None, **options: Any) -> Any:
    return stored(np.sqrt(var(a, *others, **options)), out)


def _first(name: str) -> Callable[..., Any]:
    """Return numpy.argmax or numpy.argmin."""

    def find(a: SplitArray, axis: int | None = None, out: Any = None, *, keepdims: Any = NO_VALUE) -> Any:
        axes = axes_of(axis, a.ndim)
        begin(a.world, name, a, axes)
        if 0 in (a.shape[number] for number in axes):
            raise ValueError(f"attempt to get {name} of an empty sequence")
        source = partitioned(a)
        index = first_extreme(a.world, source.partition, axes, source.interior, name)
        return stored(
            spread(source, index.astype(np.intp), axes, keepdims=bool(chosen(keepdims, False))), out
        )

    return find


FUNCTIONS[np.argmax] = _first("argmax")
FUNCTIONS[np.argmin] = _first("argmin")


# Products


@implements(np.vdot)
def vdot(a: Any, b: Any) -> Any:
    if np.shape(a) != np.shape(b):
        raise ValueError("cannot reshape array: vdot of arrays of different sizes")
    first = np.conjugate(a) if np.result_type(a).kind == "c" else a
    return _sum(first * b, dtype=np.result_type(a, b))


@implements(np.linalg.norm)
def norm(x: SplitArray, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:
    cells = x if x.dtype.kind in "fc" else x.astype(np.float64)
    vector = axis is not None and not isinstance(axis, (tuple, list))
    if (
        ord is None or (ord == 2 and (vector or (axis is None and x.ndim == 1))) or str(ord)[:1] == "f"
    ):  # Frobenius
        squares = cells.real**2 + cells.imag**2 if cells.dtype.kind == "c" else cells * cells
        return np.sqrt(_sum(squares, axis, keepdims=keepdims))
    if not vector and not (axis is None and x.ndim == 1):
        raise not_for_split_arrays(f"numpy.linalg.norm(x, {ord!r}) of a matrix")
    lengths: Any = np.abs(cells)
    if ord in (np.inf, -np.inf):
        return reduced(lengths, "maximum" if ord > 0 else "minimum", axis, keepdims=keepdims)
    if ord == 0:
        return _sum((cells != 0).astype(lengths.dtype), axis, keepdims=keepdims)
    if ord == 1:
        return _sum(lengths, axis, keepdims=keepdims)
    return _sum(lengths**ord, axis, keepdims=keepdims) ** lengths.dtype.type(1 / ord)
