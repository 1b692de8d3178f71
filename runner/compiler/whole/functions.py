"""NumPy's functions on whole arrays that move cells: shifts, edges and joins, by places."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace import functions
from meshrun.runner.compiler.trace.array import Functions, choose, common_dtype, recorder_of, stored
from meshrun.runner.compiler.trace.functions import full_like, slices
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Inner, Whole, inner_shape, made

# Shifts


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
        rolled = full_like(found, 0)
        rolled[slices(a.ndim, along, slice(by, None))] = found[slices(a.ndim, along, slice(None, -by))]
        rolled[slices(a.ndim, along, slice(None, by))] = found[slices(a.ndim, along, slice(-by, None))]
        found = rolled
    return found


def _concatenate(
    arrays: Sequence[Any], axis: int = 0, out: Any = None, dtype: Any = None, **other: Any
) -> Any:
    recorder = recorder_of(arrays)
    traced = next(one for one in arrays if isinstance(one, Whole))
    axis %= traced.ndim
    kind = (
        np.dtype(dtype)
        if dtype is not None
        else common_dtype([one if isinstance(one, Whole) else np.asarray(one) for one in arrays])
    )
    lengths = [np.shape(one)[axis] if not isinstance(one, Whole) else one.shape[axis] for one in arrays]
    # The longest part stays where it is; the others are beside it.
    longest = max(range(len(arrays)), key=lambda n: (isinstance(arrays[n], Whole), lengths[n]))
    anchor = arrays[longest].astype(kind, copy=False)
    result = _lengthened(anchor, axis, sum(lengths[:longest]), sum(lengths))
    at = 0
    for one, length in zip(arrays, lengths, strict=True):
        result[slices(traced.ndim, axis, slice(at, at + length))] = recorder.operand(one)
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
            return slices(array.ndim, axis, slice(first, last))

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
            return slices(f.ndim, one, slice(first, last))

        result = full_like(values, 0, kind)
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


FUNCTIONS: Functions = {
    **functions.FUNCTIONS,
    np.concatenate: _concatenate,
    np.roll: _roll,
    np.pad: _pad,
    np.gradient: _gradient,
    np.copyto: lambda dst, src, casting="same_kind", where=True: dst.__setitem__(
        Ellipsis, src if where is True else choose(where, src, dst)
    ),
}
