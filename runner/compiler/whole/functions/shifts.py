"""NumPy's functions on whole arrays that move cells: shifts, edges and joins, by places."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import Functions, choose, common_dtype, recorder_of, stored
from meshrun.runner.compiler.trace.functions import composites
from meshrun.runner.compiler.trace.functions.basic import full_like, slices
from meshrun.runner.compiler.trace.graph import PLACE, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Whole, made
from meshrun.runner.compiler.whole.functions import coarse, masks, products
from meshrun.runner.compiler.whole.functions.padding import lengthened, pad
from meshrun.runner.compiler.whole.module import evaluated

# Shifts

MOST_WEIGHTS = 11  # of a convolution, which NumPy adds from left to right


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
    result = lengthened(anchor, axis, sum(lengths[:longest]), sum(lengths))
    at = 0
    for one, length in zip(arrays, lengths, strict=True):
        result[slices(traced.ndim, axis, slice(at, at + length))] = recorder.operand(one)
        at += length
    return stored(result, out)


def _gradient(f: Whole, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    given = range(f.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [number % f.ndim for number in given]
    distances = list(spacing) or [1.0]
    distances = distances * len(axes) if len(distances) == 1 and np.ndim(distances[0]) == 0 else distances
    if len(distances) != len(axes):
        raise TypeError("invalid number of arguments")
    if edge_order > 2:
        raise ValueError("'edge_order' greater than 2 not supported")
    values = f if f.dtype.kind in "fc" else f.astype(np.float64)
    slopes = [_slope(values, n, h, edge_order) for n, h in zip(axes, distances, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(f: Whole, axis: int, spacing: Any, edge_order: int) -> Whole:
    """Return numpy.gradient along one axis. spacing: between cells, or the cells' coordinates."""

    def at(first: int | None, last: int | None) -> Any:
        return f[slices(f.ndim, axis, slice(first, last))]

    def write(first: int | None, last: int | None, value: Any) -> None:
        result[slices(f.ndim, axis, slice(first, last))] = value

    steps = _steps(spacing, f.shape[axis])
    result: Whole = full_like(f, 0)

    # Inside: by both neighbours, weighted where the spacing differs.
    if np.ndim(steps) == 0:
        write(1, -1, (at(2, None) - at(None, -2)) / (2.0 * steps))
        first = last = (steps, steps)
    else:
        low, high = steps[:-1], steps[1:]
        weights = (
            -high / (low * (low + high)),
            (high - low) / (low * high),
            low / (high * (low + high)),
        )
        shape = [-1 if number == axis else 1 for number in range(f.ndim)]
        a, b, c = (one.reshape(shape) for one in weights)
        write(1, -1, a * at(None, -2) + b * at(1, -1) + c * at(2, None))
        first, last = tuple(steps[:2]), tuple(steps[-2:])

    # At the ends.
    if edge_order == 1:
        write(0, 1, (at(1, 2) - at(0, 1)) / first[0])
        write(-1, None, (at(-1, None) - at(-2, -1)) / last[-1])
        return result
    if np.ndim(steps) == 0:
        a, b, c = -1.5 / steps, 2.0 / steps, -0.5 / steps
    else:
        near, far = first
        a = -(2.0 * near + far) / (near * (near + far))
        b, c = (near + far) / (near * far), -near / (far * (near + far))
    write(0, 1, a * at(0, 1) + b * at(1, 2) + c * at(2, 3))
    if np.ndim(steps) == 0:
        a, b, c = 0.5 / steps, -2.0 / steps, 1.5 / steps
    else:
        far, near = last
        a, b = near / (far * (far + near)), -(near + far) / (far * near)
        c = (2.0 * near + far) / (near * (far + near))
    write(-1, None, a * at(-3, -2) + b * at(-2, -1) + c * at(-1, None))
    return result


def _steps(spacing: Any, length: int) -> Any:
    """Return the distance of cells; for coordinates with several distances, all of them."""
    if isinstance(spacing, Whole):
        if spacing.ndim == 0:
            return spacing
        (node,) = spacing.read().ravel()
        if spacing.ndim != 1 or any(one.op == "load" for one in in_order([node])):
            raise NotTraceable(
                "uses numpy.gradient with coordinates that are cells of a field",
                "a constant spacing, or np.linspace and the like",
            )
        spacing = evaluated(spacing._recorder.graph, node, len(spacing))
    if np.ndim(spacing) == 0:
        return spacing
    coordinates = np.asarray(spacing)
    if coordinates.ndim != 1:
        raise ValueError("distances must be either scalars or 1d")
    if len(coordinates) != length:
        raise ValueError("when 1d, distances must match the length of the corresponding dimension")
    steps = np.diff(coordinates if coordinates.dtype.kind in "fc" else coordinates.astype(np.float64))
    return steps[0] if bool((steps == steps[0]).all()) else steps


def _place(a: Whole, axis: int) -> Any:
    """Return the number of each element along an axis, as a line along it."""
    along = a._axes[axis]
    if not isinstance(along, Along):
        return np.arange(along.length)
    graph = a._recorder.graph
    number = graph.place(along.axis, -along.first)
    if along.step != 1:
        divisor = graph.constant(along.step, PLACE)
        number = graph.operation("floor_divide", PLACE, [number, divisor])
    return made(a._recorder, [along], {}, np.full((), number, object), PLACE)


def _triangle(m: Whole, k: int, *, upper: bool) -> Any:
    """Return numpy.triu or numpy.tril: zeros on one side of a diagonal."""
    if m.ndim < 2:
        raise NotTraceable("uses the triangle of a line", "an array of two axes")
    below = _place(m, m.ndim - 2)[:, None] - _place(m, m.ndim - 1)[None, :] + k
    zero = m.dtype.type(0)
    return choose(below <= 0, m, zero) if upper else choose(below >= 0, m, zero)


def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """numpy.convolve of a line with few numbers; a sum of shifted lines, in NumPy's order."""
    if not isinstance(a, Whole) or (isinstance(v, Whole) and v.ndim):
        a, v = v, a
    weights = np.zeros(0) if isinstance(v, Whole) else np.asarray(v).reshape(-1)
    if a.ndim != 1 or not 0 < len(weights) <= MOST_WEIGHTS or len(weights) > len(a):
        raise NotTraceable(
            "convolves two fields, or a line with many numbers",
            f"at most {MOST_WEIGHTS} numbers, or np.fft in a program",
        )
    kind = np.result_type(a.dtype, weights.dtype)
    line, weights = a.astype(kind, copy=False), weights.astype(kind)
    more = len(weights) - 1

    # Every place at which the line and the numbers overlap.
    result = lengthened(line, 0, more, len(a) + more)
    ends = [*range(more), *range(len(a), len(a) + more)]
    for first, last in [(more, len(a)), *((at, at + 1) for at in ends)]:
        total: Any = None
        for shift in range(more, -1, -1):
            begin = first - shift
            if last - first == 1 and not 0 <= begin < len(a):
                continue
            term = line[begin : begin + last - first] * weights[shift]
            total = term if total is None else total + term
        result[first:last] = total
    if mode == "full":
        return result
    cut = more // 2 if mode == "same" else more
    return result[cut : cut + len(a)] if mode == "same" else result[cut : len(a)]


def _vstack(tup: Sequence[Any], **options: Any) -> Any:
    lines = [_line(one) for one in tup]
    if all(np.ndim(one) == 1 for one in lines):
        return np.stack(lines, 0, **options)
    rows = [one[np.newaxis] if np.ndim(one) == 1 else one for one in lines]
    return np.concatenate(rows, 0, **options)


def _dstack(tup: Sequence[Any], **options: Any) -> Any:
    lines = [_line(one) for one in tup]
    if all(np.ndim(one) < 3 for one in lines):
        stacked = np.stack(lines, -1, **options)
        return stacked[np.newaxis] if stacked.ndim == 2 else stacked
    return np.concatenate([one[..., np.newaxis] if np.ndim(one) == 2 else one for one in lines], 2, **options)


def _hstack(tup: Sequence[Any], **options: Any) -> Any:
    lines = [_line(one) for one in tup]
    return np.concatenate(lines, 0 if np.ndim(lines[0]) == 1 else 1, **options)


def _append(arr: Any, values: Any, axis: int | None = None) -> Any:
    if axis is not None:
        return np.concatenate([arr, values], axis)
    if max(np.ndim(arr), np.ndim(values)) > 1:
        raise NotTraceable("flattens arrays (numpy.append without axis)", "axis=0, or np.concatenate")
    return np.concatenate([_line(arr), _line(values)])


def _line(value: Any) -> Any:
    """Return a number as an array of one axis; arrays as they are."""
    if np.ndim(value):
        return value
    return value[np.newaxis] if isinstance(value, Whole) else np.array([value])


FUNCTIONS: Functions = {
    **composites.FUNCTIONS,
    **coarse.FUNCTIONS,
    np.concatenate: _concatenate,
    np.roll: _roll,
    np.pad: pad,
    np.gradient: _gradient,
    np.triu: lambda m, k=0: _triangle(m, k, upper=True),
    np.tril: lambda m, k=0: _triangle(m, k, upper=False),
    np.convolve: _convolve,
    np.correlate: lambda a, v, mode="valid": _convolve(a, np.conj(v)[::-1], mode),
    np.vstack: _vstack,
    np.hstack: _hstack,
    np.dstack: _dstack,
    np.append: _append,
    np.copyto: masks.copyto,
    np.putmask: masks.putmask,
    np.place: masks.place,
    np.einsum: products.einsum,
    np.tensordot: products.tensordot,
    np.dot: products.dot,
    np.inner: products.inner,
    np.matmul: products.matmul,
    np.piecewise: masks.piecewise,
}
