"""NumPy's functions on whole arrays that are no ufuncs, by elementwise operations and places."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.compiler.trace.trace import (
    CLIP,
    LONGEST_SUM,
    NotTraceable,
    as_scalar,
    expand_dims,
    moveaxis,
    swapaxes,
)
from meshrun.runner.compiler.whole.array import (
    Along,
    Axis,
    Inner,
    Tracing,
    Whole,
    as_operand,
    choose,
    elementwise,
    inner_shape,
    made,
    stored,
)


def recorder_of(*values: Any) -> Tracing:
    for value in values:
        if isinstance(value, (list, tuple)):
            traced = [item for item in value if isinstance(item, Whole)]
            if traced:
                return traced[0]._recorder
        if isinstance(value, Whole):
            return value._recorder
    raise NotTraceable("computes with an array that is not traced")


# Elementwise


def _clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **limits: Any) -> Any:
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
    if isinstance(low, Timed) or isinstance(high, Timed):
        return stored(np.minimum(np.maximum(a, low), high), out)
    values = (a, low, high)
    weak = [
        v.dtype if isinstance(v, Whole) else type(v) if type(v) in (int, float) else v.dtype for v in values
    ]
    *kinds, kind = CLIP.resolve_dtypes((*weak, None))
    typed = [
        as_operand(recorder, v if isinstance(v, Whole) else as_scalar(v, k)).astype(kind, copy=False)
        for v, k in zip(values, kinds, strict=True)
    ]
    return stored(elementwise(recorder, np.minimum, (np.maximum(typed[0], typed[1]), typed[2])), out)


def _round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    if decimals != 0:
        raise NotTraceable("rounds to decimals", "np.rint(x * 10**d) / 10**d")
    return stored(a.copy() if a.dtype.kind in "iu" else np.rint(a), out)


# Arrays


def _like(value: Any) -> Callable[..., Any]:
    """Return numpy.zeros_like for any value."""

    def make(a: Whole, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
        return _full_like(a, value, dtype, order, subok, shape)

    return make


def _full_like(
    a: Whole, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    kind = a.dtype if dtype is None else np.dtype(dtype)
    if shape is not None:
        return a._recorder.filled(shape, fill_value, kind)
    result = made(
        a._recorder,
        a._axes,
        a._fixed,
        np.full(inner_shape(a._axes), a._recorder.graph.constant(np.zeros((), kind), kind), object),
        kind,
    )
    result[...] = fill_value
    return result


def _stack(arrays: Sequence[Any], axis: int = 0, out: Any = None) -> Any:
    recorder = recorder_of(arrays)
    values = [as_operand(recorder, one) for one in arrays]
    if any(one.shape != values[0].shape for one in values):
        raise ValueError("all input arrays must have the same shape")
    first = next(one for one in values if isinstance(one, Whole) and one._axes)
    kind = np.result_type(*(one.dtype for one in values))
    at = axis % (first.ndim + 1)
    axes: list[Axis] = [*first._axes[:at], Inner(len(values)), *first._axes[at:]]
    zero = recorder.graph.constant(np.zeros((), kind), kind)
    result = made(recorder, axes, first._fixed, np.full(inner_shape(axes), zero, object), kind)
    for number, one in enumerate(values):
        index = (*[slice(None)] * at, number)
        result[index] = one
    return stored(result, out)


# Shifts


def _axis_slices(ndim: int, axis: int, part: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, part, *[slice(None)] * (ndim - axis - 1))


def _lengthened(a: Whole, axis: int, before: int, length: int) -> Whole:
    """Return longer zeros: element `before` along the axis is at the place of a's first."""
    axes = list(a._axes)
    along = axes[axis]
    if isinstance(along, Along):
        axes[axis] = Along(along.axis, along.first - before * along.step, along.step, length)
    else:
        axes[axis] = Inner(length)
    zero = a._recorder.graph.constant(np.zeros((), a.dtype), a.dtype)
    return made(a._recorder, axes, a._fixed, np.full(inner_shape(axes), zero, object), a.dtype)


def _roll(a: Whole, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        if a.ndim != 1:
            raise NotTraceable("rolls the flattened array", "np.roll(a, shift, axis)")
        axis = 0
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,)
    pairs = np.broadcast(np.asarray(shifts), np.asarray(axes))
    found = a
    for distance, number in pairs:
        along = operator.index(int(number)) % a.ndim
        length = a.shape[along]
        by = int(distance) % length if length else 0
        if by == 0:
            found = found.copy()
            continue
        rolled = _full_like(found, 0)
        rolled[_axis_slices(a.ndim, along, slice(by, None))] = found[
            _axis_slices(a.ndim, along, slice(None, -by))
        ]
        rolled[_axis_slices(a.ndim, along, slice(None, by))] = found[
            _axis_slices(a.ndim, along, slice(-by, None))
        ]
        found = rolled
    return found


def _diff(a: Whole, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis %= a.ndim
    parts = [part for part in (prepend, a, append) if part is not None]
    if len(parts) > 1:
        one = list(a.shape)
        one[axis] = 1
        filled = [p if isinstance(p, Whole) else np.broadcast_to(np.asarray(p), one) for p in parts]
        a = _concatenate(filled, axis)
    compare: Any = np.not_equal if a.dtype == bool else np.subtract
    for _ in range(n):
        after, before = (_axis_slices(a.ndim, axis, part) for part in (slice(1, None), slice(None, -1)))
        a = compare(a[after], a[before])
    return a


def _concatenate(
    arrays: Sequence[Any], axis: int = 0, out: Any = None, dtype: Any = None, **other: Any
) -> Any:
    recorder = recorder_of(arrays)
    traced = next(one for one in arrays if isinstance(one, Whole))
    axis %= traced.ndim
    kind = (
        np.dtype(dtype)
        if dtype is not None
        else np.result_type(*(one.dtype if isinstance(one, Whole) else np.asarray(one) for one in arrays))
    )
    lengths = [np.shape(one)[axis] if not isinstance(one, Whole) else one.shape[axis] for one in arrays]
    # The longest part stays where it is; the others are beside it.
    longest = max(range(len(arrays)), key=lambda n: (isinstance(arrays[n], Whole), lengths[n]))
    anchor = arrays[longest].astype(kind, copy=False)
    result = _lengthened(anchor, axis, sum(lengths[:longest]), sum(lengths))
    at = 0
    for one, length in zip(arrays, lengths, strict=True):
        result[_axis_slices(traced.ndim, axis, slice(at, at + length))] = as_operand(recorder, one)
        at += length
    return stored(result, out)


def _pad(array: Whole, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    """numpy.pad, axis after axis as NumPy does it."""
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(axis, 0) for axis in range(array.ndim)]
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    if mode not in ("constant", "edge", "reflect", "symmetric", "wrap"):
        raise NotTraceable(
            f"pads by mode={mode!r}", "mode 'constant', 'edge', 'reflect', 'symmetric' or 'wrap'"
        )
    constants = options.get("constant_values", 0)
    values = np.broadcast_to(np.asarray(constants, array.dtype), (array.ndim, 2))
    for name in options.keys() - {"constant_values"}:
        raise NotTraceable(f"pads with {name}=")
    found = array
    for axis, (before, after) in enumerate(widths):
        if before == after == 0:
            continue
        length = found.shape[axis]
        result = _lengthened(found, axis, before, before + length + after)

        def part(first: int, last: int, axis: int = axis) -> tuple[slice, ...]:
            return _axis_slices(array.ndim, axis, slice(first, last))

        result[part(before, before + length)] = found
        for at in [*range(before), *range(before + length, before + length + after)]:
            source = _padded_from(at - before, length, mode)
            if source is None:
                result[part(at, at + 1)] = values[axis, 0 if at < before else 1]
            else:
                result[part(at, at + 1)] = found[part(source, source + 1)]
        found = result
    return found if found is not array else array.copy()


def _padded_from(at: int, length: int, mode: str) -> int | None:
    """Return the element that is copied to place `at` of an array that is padded; None: a constant."""
    if mode == "constant":
        return None
    if mode == "edge":
        return min(max(at, 0), length - 1)
    if mode == "wrap":
        return at % length
    period = 2 * length if mode == "symmetric" else max(2 * length - 2, 1)
    at %= period
    return at if at < length else period - at - (1 if mode == "symmetric" else 0)


def _gradient(f: Whole, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """numpy.gradient with constant spacing."""
    given = range(f.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [number % f.ndim for number in given]
    distances = list(spacing) or [1.0]
    distances = distances * len(axes) if len(distances) == 1 else distances
    if len(distances) != len(axes):
        raise TypeError("invalid number of arguments")
    if any(np.ndim(one) for one in distances) or any(isinstance(one, Whole) for one in distances):
        raise NotTraceable("uses numpy.gradient with coordinates", "a constant spacing")
    kind = f.dtype if f.dtype.kind == "f" else np.dtype(np.float64)
    values = f if f.dtype.kind == "f" else f.astype(kind)
    found = []
    for one, h in zip(axes, distances, strict=True):

        def at(first: int | None, last: int | None, one: int = one) -> tuple[slice, ...]:
            return _axis_slices(f.ndim, one, slice(first, last))

        result = _full_like(values, 0, kind)
        result[at(1, -1)] = (values[at(2, None)] - values[at(None, -2)]) / (2.0 * h)
        if edge_order == 1:
            result[at(0, 1)] = (values[at(1, 2)] - values[at(0, 1)]) / h
            result[at(-1, None)] = (values[at(-1, None)] - values[at(-2, -1)]) / h
        else:
            a, b, c = -1.5 / h, 2.0 / h, -0.5 / h
            result[at(0, 1)] = a * values[at(0, 1)] + b * values[at(1, 2)] + c * values[at(2, 3)]
            a, b, c = 0.5 / h, -2.0 / h, 1.5 / h
            result[at(-1, None)] = a * values[at(-3, -2)] + b * values[at(-2, -1)] + c * values[at(-1, None)]
        found.append(result)
    return found[0] if len(found) == 1 else tuple(found)


# Sums over inner axes


def _reduce(ufunc: np.ufunc, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numpy.sum and the like, over inner axes of few elements, from left to right as NumPy does."""

    def reduce(a: Whole, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        axes = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        places = sorted({one % a.ndim for one in axes})
        if any(isinstance(a._axes[place], Along) for place in places):
            raise NotTraceable(f"reduces the cells of an array (numpy.{function.__name__})")
        count = int(np.prod([a.shape[place] for place in places]))
        kind = function(np.ones(1, a.dtype), **({} if dtype is None else {"dtype": dtype})).dtype
        if ufunc is np.add and (count > LONGEST_SUM or kind == np.float16 or len(places) > 1):
            raise NotTraceable(f"adds {count} {kind} elements in an order of NumPy's own", "a sum by +")
        typed = a.astype(kind, copy=False)
        total: Any = None
        for element in np.ndindex(*(a.shape[place] for place in places)):
            index: list[Any] = [slice(None)] * a.ndim
            for place, at in zip(places, element, strict=True):
                index[place] = slice(at, at + 1) if keepdims else at
            part = typed[tuple(index)]
            total = part.copy() if total is None else ufunc(total, part)
        if total is None:
            raise NotTraceable("reduces an axis without elements")
        if ufunc is np.add and kind.kind == "f":
            total = np.add(total, kind.type(0))  # NumPy starts with it: the sum of negative zeros is positive
        return stored(total, out)

    return reduce


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: choose,
    np.clip: _clip,
    np.round: _round,
    np.around: _round,
    np.zeros_like: _like(0),
    np.empty_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: _full_like,
    np.copy: lambda a, *_, **__: a.copy(),
    np.transpose: lambda a, axes=None: a.transpose(axes),
    np.moveaxis: moveaxis,
    np.swapaxes: swapaxes,
    np.expand_dims: expand_dims,
    np.stack: _stack,
    np.concatenate: _concatenate,
    np.roll: _roll,
    np.diff: _diff,
    np.pad: _pad,
    np.gradient: _gradient,
    np.sum: _reduce(np.add, np.sum),
    np.min: _reduce(np.minimum, np.min),
    np.max: _reduce(np.maximum, np.max),
    np.ndim: lambda a: a.ndim,
    np.shape: lambda a: a.shape,
    np.size: lambda a: a.size,
    np.copyto: lambda dst, src, casting="same_kind", where=True: dst.__setitem__(
        Ellipsis, src if where is True else choose(where, src, dst)
    ),
}
