"""NumPy's functions that are made of elementwise operations, with the bits that NumPy's own have."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace import functions
from meshrun.runner.compiler.trace.array import (
    TracedArray,
    as_scalar,
    choose,
    common_dtype,
    is_typed,
    recorder_of,
    stored,
    weak_dtype,
)
from meshrun.runner.compiler.trace.functions import moveaxis
from meshrun.runner.compiler.trace.refusal import NotTraceable

MOST_ENTRIES = 32  # of a table that is looked up by choices


# Ufuncs


def _heaviside(x: Any, at_zero: Any) -> Any:
    kind = np.heaviside.resolve_dtypes((weak_dtype(x), weak_dtype(at_zero), None))[-1]
    recorder = recorder_of(x, at_zero)
    x, at_zero = (recorder.operand(as_scalar(v, kind)).astype(kind, copy=False) for v in (x, at_zero))
    zero, one = kind.type(0), kind.type(1)
    return choose(np.isnan(x), x, choose(x == zero, at_zero, choose(x < zero, zero, one)))


def _modf(x: Any) -> Any:
    whole = np.trunc(x if x.dtype.kind == "f" else x.astype(np.result_type(x.dtype, np.float16)))
    x = x.astype(whole.dtype, copy=False)
    return np.copysign(choose(np.isinf(x), x.dtype.type(0), x - whole), x), whole


def _divmod(a: Any, b: Any) -> Any:
    return np.floor_divide(a, b), np.remainder(a, b)


# Choices


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if any(one.dtype != bool for one in condlist):
        raise TypeError("invalid entry in condlist: should be boolean ndarray")
    kind = common_dtype([*choicelist, default])
    recorder = recorder_of(*condlist, *choicelist, default)
    result = recorder.operand(np.asarray(default).astype(kind) if not is_typed(default) else default)
    for condition, choice in list(zip(condlist, choicelist, strict=True))[::-1]:
        result = choose(condition, as_scalar(choice, kind), result)
    return result.astype(kind, copy=False)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if x.dtype.kind == "c":
        parts = [nan_to_num(one, True, nan, posinf, neginf) for one in (x.real, x.imag)]
        result = x.copy() if copy else x
        result.real, result.imag = parts
        return result
    if x.dtype.kind != "f":
        return x.copy() if copy else x
    kind, limits = x.dtype.type, np.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    cells = choose(np.isnan(x), kind(nan), x)
    cells = choose(np.isposinf(x), kind(high), choose(np.isneginf(x), kind(low), cells))
    if copy:
        return cells
    x[...] = cells
    return x


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    if is_typed(b):
        b = b.astype(common_dtype([b, 1.0]))
    elif isinstance(b, int):
        b = float(b)
    near = np.less_equal(abs(a - b), atol + rtol * abs(b)) & np.isfinite(b) | (a == b)
    return near | (np.isnan(a) & np.isnan(b)) if equal_nan else near


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """numpy.interp with a table of few entries, by choices between its lines."""
    if any(isinstance(one, TracedArray) for one in (xp, fp)):
        raise NotTraceable("uses numpy.interp with a table of cells", "a table of numbers")
    places, heights = np.asarray(xp, float), np.asarray(fp)
    if heights.dtype.kind == "c" or period is not None:
        raise NotTraceable(
            "uses numpy.interp with complex heights or a period", "x % period, and a longer table"
        )
    heights = heights.astype(float)
    if places.ndim != 1 or places.shape != heights.shape or places.size == 0:
        raise ValueError("fp and xp are not of the same length.")
    if places.size > MOST_ENTRIES:
        raise NotTraceable(
            f"uses numpy.interp with a table of {places.size} entries", f"at most {MOST_ENTRIES} of them"
        )
    x = x.astype(np.float64, copy=False)
    below = heights[0] if left is None else np.float64(left)
    above = heights[-1] if right is None else np.float64(right)
    with np.errstate(all="ignore"):
        slopes = np.diff(heights) / np.diff(places)
    result = recorder_of(x).operand(heights[-1])
    for at in range(len(slopes))[::-1]:
        line = slopes[at] * (x - places[at]) + heights[at]
        other = slopes[at] * (x - places[at + 1]) + heights[at + 1]
        flat = heights[at] if heights[at] == heights[at + 1] else np.float64(np.nan)
        line = choose(np.isnan(line), choose(np.isnan(other), flat, other), line)
        line = choose(x == places[at], heights[at], line)
        result = choose(x < places[at + 1], line, result)
    result = choose(x < places[0], below, choose(x > places[-1], above, result))
    return choose(np.isnan(x), x, result)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    """numpy.take along an axis of few elements, by choices between them."""
    if not isinstance(indices, TracedArray):
        return _take_elements(a, indices, axis, out)
    if isinstance(a, TracedArray):
        raise NotTraceable("gathers cells by an array of indices", "slices, np.roll or np.where")
    if indices.dtype.kind not in "iub":
        raise TypeError("Cannot cast array data to dtype('int64') according to the rule 'safe'")
    table = np.asarray(a)
    table = table.reshape(-1) if axis is None else np.moveaxis(table, axis, 0)
    count = len(table)
    if count > MOST_ENTRIES or (axis not in (None, 0) and table.ndim > 1):
        raise NotTraceable(
            f"looks up a table of shape {np.shape(a)} by an array",
            f"a table of at most {MOST_ENTRIES} entries",
        )
    if mode == "wrap":
        indices = indices.astype(np.int64) % count
    elif mode == "clip":
        indices = np.clip(indices.astype(np.int64), 0, count - 1)
    else:
        low, high = _bounds(indices)
        if not (-count <= low and high < count):
            raise NotTraceable(
                "looks up a table by an array whose values may lie outside of it",
                f"np.take(table, labels, mode='clip'), or table[labels % {count}]",
            )
        indices = choose(indices < 0, indices + count, indices) if low < 0 else indices
    labels = indices[(Ellipsis,) + (None,) * (table.ndim - 1)]
    result = recorder_of(indices).operand(table[-1])
    for entry in range(count - 1)[::-1]:
        result = choose(labels == entry, table[entry], result)
    return stored(result, out)


def _take_elements(a: Any, indices: Any, axis: Any, out: Any) -> Any:
    """numpy.take of elements with known numbers, along an axis that is not one of cells."""
    if axis is None or a.is_cells(operator.index(axis) % a.ndim):
        raise NotTraceable("gathers cells by an array of indices", "slices, np.roll or np.where")
    axis = operator.index(axis) % a.ndim
    numbers = np.asarray(indices)
    before = (slice(None),) * axis
    indices_of = [(*before, int(one)) for one in numbers.ravel()]
    parts = [a[index] for index in indices_of]
    if numbers.ndim == 0:
        return stored(parts[0].copy(), out)
    if numbers.ndim > 1:
        raise NotTraceable("takes elements by a matrix of indices", "a list of indices")
    return stored(np.stack(parts, axis), out)


def _bounds(labels: TracedArray) -> tuple[int, int]:
    """Return limits of the values of integers, by what computes them."""
    limits = [_node_bounds(node) for node in labels.read().ravel()]
    return min(low for low, _ in limits), max(high for _, high in limits)


def _node_bounds(node: Any) -> tuple[int, int]:
    if node.dtype.kind == "b":
        return 0, 1
    low, high = int(np.iinfo(node.dtype).min), int(np.iinfo(node.dtype).max)
    if node.op == "constant":
        return int(node.value), int(node.value)
    if node.op == "cast" and node.operands[0].dtype.kind in "biu":
        inner = _node_bounds(node.operands[0])
        return inner if low <= inner[0] and inner[1] <= high else (low, high)
    if node.op in ("remainder", "minimum", "maximum", "where", "bitwise_and"):
        a, b = (_node_bounds(one) for one in node.operands[-2:])
        if node.op == "remainder" and b[0] == b[1] > 0:
            return 0, b[0] - 1
        if node.op == "bitwise_and" and b[0] == b[1] >= 0:
            return 0, b[0]
        if node.op == "minimum":
            return min(a[0], b[0]), min(a[1], b[1])
        if node.op == "maximum":
            return max(a[0], b[0]), max(a[1], b[1])
        if node.op == "where":
            return min(a[0], b[0]), max(a[1], b[1])
    if node.op in ("add", "subtract") and node.dtype.itemsize == 8:
        a, b = (_node_bounds(one) for one in node.operands)
        low_sum, high_sum = (a[0] + b[0], a[1] + b[1]) if node.op == "add" else (a[0] - b[1], a[1] - b[0])
        return (low_sum, high_sum) if low <= low_sum and high_sum <= high else (low, high)
    return low, high


# Vectors along axes that are not of cells


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    recorder = recorder_of(a, b)
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = (moveaxis(recorder.operand(one), at, -1) for one, at in ((a, axisa), (b, axisb)))
    if a.is_cells(a.ndim - 1) or b.is_cells(b.ndim - 1) or a.shape[-1] != 3 or b.shape[-1] != 3:
        raise NotTraceable(
            "uses numpy.cross of other vectors than of 3 components", "a[..., 0] * b[..., 1] - ..."
        )
    kind = common_dtype([a, b])
    (a0, a1, a2), (b0, b1, b2) = ([one[..., n].astype(kind, copy=False) for n in range(3)] for one in (a, b))
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return moveaxis(np.stack(parts, -1), -1, axisc)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord not in (None, 1, 2, np.inf, -np.inf) or (axis is None and x.ndim != 1) or isinstance(axis, tuple):
        if axis is None and ord is None:
            flat: Any = np.sum((x.conj() * x).real)
            return np.sqrt(flat)
        raise NotTraceable(
            f"uses numpy.linalg.norm with ord={ord} and axis={axis}", "np.sqrt of a sum of squares"
        )
    x = x if x.dtype.kind in "fc" else x.astype(np.float64)
    axis = 0 if axis is None else axis
    if ord == 1:
        return np.sum(abs(x), axis=axis, keepdims=keepdims)
    if ord in (np.inf, -np.inf):
        extreme: Any = np.max if ord > 0 else np.min
        return extreme(abs(x), axis=axis, keepdims=keepdims)
    return np.sqrt(np.sum((x.conj() * x).real, axis=axis, keepdims=keepdims))


def flip(m: Any, axis: Any = None) -> Any:
    axes = range(m.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    index: list[Any] = [slice(None)] * m.ndim
    for one in axes:
        index[one] = slice(None, None, -1)
    return m[tuple(index)]


def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    first, second = (one % m.ndim for one in axes)
    if k % 4 == 0:
        return m[...]
    if k % 4 == 2:
        return flip(flip(m, first), second)
    order = list(range(m.ndim))
    order[first], order[second] = order[second], order[first]
    if k % 4 == 1:
        return flip(m, second).transpose(order)
    return flip(m.transpose(order), second)


def squeeze(a: Any, axis: Any = None) -> Any:
    axes = [n for n, length in enumerate(a.shape) if length == 1]
    if axis is not None:
        axes = [one % a.ndim for one in (axis if isinstance(axis, tuple) else (axis,))]
    if any(a.shape[one] != 1 for one in axes):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return a[tuple(0 if n in axes else slice(None) for n in range(a.ndim))]


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if np.ndim(repeats) or axis is None or a.is_cells(axis % a.ndim):
        raise NotTraceable("repeats cells, each its own number of times or along an axis of cells")
    return _take_elements(a, np.repeat(np.arange(a.shape[axis]), repeats), axis, None)


def tile(A: Any, reps: Any) -> Any:
    counts = [reps] if np.ndim(reps) == 0 else list(reps)
    a = A[(None,) * (len(counts) - A.ndim) + (Ellipsis,)]
    counts = [1] * (a.ndim - len(counts)) + counts
    for axis, count in enumerate(counts):
        if count != 1:
            if a.is_cells(axis):
                raise NotTraceable("repeats an array along an axis of cells")
            a = _take_elements(a, np.tile(np.arange(a.shape[axis]), count), axis, None)
    return a.copy() if a is A else a


def sinc(x: Any) -> Any:
    y = np.pi * choose(x == 0, 1.0e-20, x)
    return np.sin(y) / y


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return np.subtract(
        np.max(a, axis=axis, keepdims=keepdims), np.min(a, axis=axis, keepdims=keepdims), out=out
    )


def outer(a: Any, b: Any, out: Any = None) -> Any:
    a, b = (one if isinstance(one, TracedArray) else np.asarray(one) for one in (a, b))
    if a.ndim != 1 or b.ndim != 1:
        raise NotTraceable("uses numpy.outer of arrays that are no lines", "a[:, None] * b[None, :]")
    return stored(a[:, None] * b[None, :], out)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **functions.FUNCTIONS,
    np.heaviside: _heaviside,
    np.modf: _modf,
    np.divmod: _divmod,
    np.select: select,
    np.nan_to_num: nan_to_num,
    np.isclose: isclose,
    np.interp: interp,
    np.take: take,
    np.cross: cross,
    np.linalg.norm: norm,
    np.flip: flip,
    np.flipud: lambda m: flip(m, 0),
    np.fliplr: lambda m: flip(m, 1),
    np.rot90: rot90,
    np.squeeze: squeeze,
    np.repeat: repeat,
    np.tile: tile,
    np.sinc: sinc,
    np.ptp: ptp,
    np.outer: outer,
    np.isposinf: lambda x, out=None: stored(np.isinf(x) & ~np.signbit(x), out),
    np.isneginf: lambda x, out=None: stored(np.isinf(x) & np.signbit(x), out),
    np.result_type: lambda *values: common_dtype(values),
}
