"""NumPy's functions on traced arrays that are no ufuncs, by elementwise operations and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import (
    TracedArray,
    as_scalar,
    choose,
    common_dtype,
    elementwise,
    recorder_of,
    stored,
    weak_dtype,
)
from meshrun.runner.compiler.trace.refusal import NotTraceable

CLIP: Any = vars(np)["_core"].umath.clip
LONGEST_SUM = 7  # elements that NumPy adds from left to right; more are added pairwise


# Elementwise


def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **limits: Any) -> Any:
    low, high = limits.get("min", a_min), limits.get("max", a_max)
    recorder = recorder_of(a, low, high)
    if a.dtype.kind in "iu":  # of Python's numbers, those beyond the dtype are no limits
        bounds = np.iinfo(a.dtype)
        low = None if type(low) is int and low <= bounds.min else low
        high = None if type(high) is int and high >= bounds.max else high
    if low is None and high is None:
        return stored(elementwise(recorder, np.positive, (a,)), out)
    if low is None or high is None:
        ufunc, limit = (np.minimum, high) if low is None else (np.maximum, low)
        return stored(elementwise(recorder, ufunc, (a, limit)), out)
    values = (a, low, high)
    *kinds, kind = CLIP.resolve_dtypes((*map(weak_dtype, values), None))
    typed = [
        recorder.operand(as_scalar(v, k)).astype(kind, copy=False) for v, k in zip(values, kinds, strict=True)
    ]
    return stored(elementwise(recorder, np.minimum, (np.maximum(typed[0], typed[1]), typed[2])), out)


def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    if decimals != 0:
        raise NotTraceable("rounds to decimals", f"{a.MODULE}.rint(x * 10**d) / 10**d")
    return stored(a.copy() if a.dtype.kind in "iu" else np.rint(a), out)


def angle(z: Any, deg: bool = False) -> Any:
    turned = np.arctan2(z.imag, z.real)
    return turned * (180 / np.pi) if deg else turned


# New arrays


def _like(value: Any) -> Callable[..., Any]:
    """Return numpy.zeros_like for any value."""

    def make(
        a: TracedArray, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
    ) -> Any:
        return full_like(a, value, dtype, order, subok, shape)

    return make


def full_like(
    a: TracedArray,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
) -> Any:
    kind = a.dtype if dtype is None else np.dtype(dtype)
    if shape is not None:
        return a._recorder.filled(shape, fill_value, kind)
    zero = a._recorder.graph.constant(np.zeros((), kind), kind)
    result = a.new(np.full(a.nodes_shape, zero, object), kind)
    result[...] = fill_value
    return result


# Axes


def moveaxis(array: Any, source: Any, destination: Any) -> Any:
    order = [int(axis) for axis in np.moveaxis(np.empty(range(array.ndim)), source, destination).shape]
    return array.transpose(order)


def swapaxes(array: Any, axis1: int, axis2: int) -> Any:
    order = list(range(array.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return array.transpose(order)


def expand_dims(array: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    ndim = array.ndim + len(axes)
    new = {one % ndim for one in axes}
    return array[tuple(None if number in new else slice(None) for number in range(ndim))]


def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, dtype: Any = None) -> Any:
    recorder = recorder_of(arrays)
    values = [recorder.operand(one) for one in arrays]
    if any(one.shape != values[0].shape for one in values):
        raise ValueError("all input arrays must have the same shape")
    kind = common_dtype(values) if dtype is None else np.dtype(dtype)
    layout, nodes = recorder.aligned(values)
    at = axis % (values[0].ndim + 1)
    typed = [one.cast(cells, kind) for one, cells in zip(values, nodes, strict=True)]
    stacked = np.stack(np.broadcast_arrays(*typed), at)
    return stored(recorder.result(layout.with_axis(at, len(values)), stacked, kind), out)


def slices(ndim: int, axis: int, part: slice) -> tuple[slice, ...]:
    """Return the index of a part along one axis."""
    return (*[slice(None)] * axis, part, *[slice(None)] * (ndim - axis - 1))


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis %= a.ndim
    parts = [part for part in (prepend, a, append) if part is not None]
    if len(parts) > 1:
        one = list(a.shape)
        one[axis] = 1
        a = np.concatenate(
            [p if isinstance(p, TracedArray) else np.broadcast_to(np.asarray(p), one) for p in parts], axis
        )
    compare: Any = np.not_equal if a.dtype == bool else np.subtract
    for _ in range(n):
        after, before = (slices(a.ndim, axis, part) for part in (slice(1, None), slice(None, -1)))
        a = compare(a[after], a[before])
    return a


# Reductions of axes that are not of cells


def _axes(a: TracedArray, axis: Any) -> list[int]:
    """Return the axes of a reduction, in order."""
    given = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return sorted({one % a.ndim for one in given})


def _reduce(ufunc: np.ufunc, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numpy.sum and the like: of few elements, from left to right as NumPy computes it."""
    name = function.__name__

    def reduce(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **options: Any
    ) -> Any:
        if options:
            raise NotTraceable(f"uses numpy.{name} with {', '.join(f'{key}=' for key in options)}")
        axes = _axes(a, axis)
        if any(map(a.is_cells, axes)):
            return a.reduce_cells(name, axes, dtype, out, keepdims)
        count = int(np.prod([a.shape[one] for one in axes]))
        kind = function(np.ones(1, a.dtype), **({} if dtype is None else {"dtype": dtype})).dtype
        if ufunc is np.add and (count > LONGEST_SUM or kind == np.float16 or len(axes) > 1):
            raise NotTraceable(f"adds {count} {kind} elements in an order of NumPy's own", "a sum by +")
        typed = a.astype(kind, copy=False)
        total: Any = None
        for element in np.ndindex(*(a.shape[one] for one in axes)):
            index: list[Any] = [slice(None)] * a.ndim
            for one, at in zip(axes, element, strict=True):
                index[one] = slice(at, at + 1) if keepdims else at
            part = typed[tuple(index)]
            total = part.copy() if total is None else ufunc(total, part)
        if total is None:
            raise NotTraceable("reduces an axis without elements")
        if ufunc is np.add and kind.kind in "fc":
            total = np.add(total, kind.type(0))  # NumPy starts with it: the sum of negative zeros is positive
        return stored(total, out)

    return reduce


_sum = _reduce(np.add, np.sum)


def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    axes = _axes(a, axis)
    if any(map(a.is_cells, axes)):
        return a.reduce_cells("mean", axes, dtype, out, keepdims)
    kind = np.mean(np.ones(1, a.dtype), dtype=dtype).dtype
    total = _sum(a, axis, kind, None, keepdims)
    return np.divide(total, kind.type(a.size // total.size), **({} if out is None else {"out": out}))


def _extreme(ufunc: np.ufunc, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numpy.min and the like, which take no dtype."""
    reduce = _reduce(ufunc, function)

    def extreme(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **options: Any) -> Any:
        return reduce(a, axis, None, out, keepdims, **options)

    return extreme


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: choose,
    np.clip: clip,
    np.round: round_,
    np.around: round_,
    np.zeros_like: _like(0),
    np.empty_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: full_like,
    np.copy: lambda a, *_, **__: a.copy(),
    np.transpose: lambda a, axes=None: a.transpose(axes),
    np.moveaxis: moveaxis,
    np.swapaxes: swapaxes,
    np.stack: stack,
    np.expand_dims: expand_dims,
    np.diff: diff,
    np.sum: _sum,
    np.min: _extreme(np.minimum, np.min),
    np.max: _extreme(np.maximum, np.max),
    np.mean: mean,
    np.prod: _reduce(np.multiply, np.prod),
    np.any: _extreme(np.logical_or, np.any),
    np.all: _extreme(np.logical_and, np.all),
    np.real: lambda val: val.real,
    np.imag: lambda val: val.imag,
    np.angle: angle,
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.ndim: lambda a: a.ndim,
    np.shape: lambda a: a.shape,
    np.size: lambda a: a.size,
}
