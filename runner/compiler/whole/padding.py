"""numpy.pad on whole arrays: axis after axis, as NumPy does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.functions import slices
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Inner, Whole, inner_shape, made

MOST_ROWS = 7  # of a statistic, which are added from left to right
# The options of each mode, with their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {"constant_values": 0},
    "edge": {},
    "linear_ramp": {"end_values": 0},
    "maximum": {"stat_length": None},
    "mean": {"stat_length": None},
    "median": {"stat_length": None},
    "minimum": {"stat_length": None},
    "reflect": {"reflect_type": "even"},
    "symmetric": {"reflect_type": "even"},
    "wrap": {},
}


def pad(array: Whole, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(axis, 0) for axis in range(array.ndim)]
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    if callable(mode) or mode not in OPTIONS:
        raise NotTraceable(
            f"pads by {'a function' if callable(mode) else f'mode={mode!r}'}",
            f"one of the modes {', '.join(OPTIONS)}",
        )
    if unknown := options.keys() - OPTIONS[mode].keys():
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {unknown}")
    given = {**OPTIONS[mode], **options}
    result = array
    for axis, width in enumerate(widths):
        if width != [0, 0]:
            sides = {name: _of_axis(value, array.ndim, axis) for name, value in given.items()}
            result = _padded(result, axis, width, mode, sides)
    return result if result is not array else array.copy()


def _of_axis(value: Any, ndim: int, axis: int) -> Any:
    """Return an option's values before and after an axis."""
    if value is None or isinstance(value, str):
        return (value, value)
    if isinstance(value, Whole):
        return (value, value)
    return tuple(np.broadcast_to(np.asarray(value), (ndim, 2))[axis])


def lengthened(a: Whole, axis: int, before: int, length: int) -> Whole:
    """Return longer zeros: element `before` along the axis is at the place of a's first."""
    axes = list(a._axes)
    along = axes[axis]
    if isinstance(along, Along):
        axes[axis] = Along(along.axis, along.first - before * along.step, along.step, length)
    else:
        axes[axis] = Inner(length)
    zero = a._recorder.graph.constant(np.zeros((), a.dtype), a.dtype)
    return made(a._recorder, axes, a._fixed, np.full(inner_shape(axes), zero, object), a.dtype)


def _padded(a: Whole, axis: int, width: Any, mode: str, sides: dict[str, Any]) -> Whole:
    """Return an array that is padded along one axis."""
    before, after = width
    length = a.shape[axis]
    result = lengthened(a, axis, before, before + length + after)

    def put(at: int, value: Any, count: int = 1) -> None:
        result[slices(a.ndim, axis, slice(at, at + count))] = value

    def row(at: int) -> Whole:
        taken: Whole = result[slices(a.ndim, axis, slice(at, at + 1))]
        return taken

    put(before, a, length)
    last = before + length - 1
    if mode == "constant":
        for at, count, value in ((0, before, 0), (last + 1, after, 1)):
            if count:
                put(at, np.asarray(sides["constant_values"][value]).astype(a.dtype), count)
        return result
    if mode in ("maximum", "mean", "median", "minimum"):
        for side, (at, count) in enumerate(((0, before), (last + 1, after))):
            rows = _rows(length, sides["stat_length"][side], from_end=side == 1)
            statistic = _statistic(mode, [row(before + one) for one in rows], a.dtype) if count else None
            for number in range(count):
                put(at + number, statistic)
        return result
    if mode == "linear_ramp":
        for side, count in enumerate((before, after)):
            edge = row(before if side == 0 else last)
            for number, step in enumerate(_ramp(edge, sides["end_values"][side], count)):
                put(number if side == 0 else last + after - number, step)
        return result
    for at in [*range(before), *range(last + 1, last + 1 + after)]:
        source, turned = _source(at - before, length, mode)
        put(at, row(before + source))
        if turned and sides["reflect_type"][0] == "odd":
            _turn(put, row, at, before, source, length, mode)
    return result


def _turn(put: Any, row: Any, at: int, before: int, source: int, length: int, mode: str) -> None:
    """Reflect a row at the value of the edge, as NumPy does for the row that `source` is."""
    if not -length < at - before < 2 * length - (mode == "reflect"):
        raise NotTraceable("reflects more rows than an array has, by reflect_type='odd'", "several calls")
    edge = before if at < before else before + length - 1
    put(at, 2 * row(edge) - row(before + source))


def _source(at: int, length: int, mode: str) -> tuple[int, bool]:
    """Return the element that is copied to place `at`, and whether it is reflected."""
    if mode == "edge":
        return min(max(at, 0), length - 1), False
    if mode == "wrap":
        return at % length, False
    period = 2 * length if mode == "symmetric" else max(2 * length - 2, 1)
    at %= period
    return (at if at < length else period - at - (1 if mode == "symmetric" else 0)), True


def _rows(length: int, count: Any, *, from_end: bool) -> range:
    """Return the rows of which a statistic is taken."""
    if count is None or count > length:
        count = length
    if count > MOST_ROWS:
        raise NotTraceable(
            f"pads by a statistic of {count} rows",
            "stat_length= of at most 7, or np.max(a, axis) and np.concatenate",
        )
    if count < 1:
        raise ValueError("stat_length of 0 yields no value for padding")
    return range(length - count, length) if from_end else range(count)


def _statistic(mode: str, rows: list[Whole], dtype: np.dtype[Any]) -> Any:
    """Return the maximum, mean, median or minimum of rows."""
    if mode in ("maximum", "minimum"):
        result: Any = rows[0]
        for one in rows[1:]:
            result = np.maximum(result, one) if mode == "maximum" else np.minimum(result, one)
        return result
    wide = [one if one.dtype.kind in "fc" else one.astype(np.float64) for one in rows]
    if dtype == np.float16:
        raise NotTraceable(f"pads float16 by mode={mode!r}", "float32")
    if mode == "median":
        # Sort by exchanges; the middle is that of one or of two rows.
        for end in range(len(wide) - 1, 0, -1):
            for at in range(end):
                pair = wide[at], wide[at + 1]
                wide[at], wide[at + 1] = np.minimum(*pair), np.maximum(*pair)
        wide = wide[(len(wide) - 1) // 2 : len(wide) // 2 + 1]
    total = wide[0].copy()
    for one in wide[1:]:
        total = total + one
    result = (total + wide[0].dtype.type(0)) / wide[0].dtype.type(len(wide))
    return np.rint(result).astype(dtype) if dtype.kind in "iu" else result


def _ramp(edge: Whole, end: Any, count: int) -> list[Any]:
    """Return the rows between an end value and an edge, the edge left out, as numpy.linspace makes them."""
    if not count:
        return []
    kind = np.result_type(
        np.asarray(end).dtype, edge.dtype, np.float64 if edge.dtype.kind != "c" else np.complex128
    )
    start = np.asarray(end).astype(kind)
    span = edge.astype(kind) - start
    step = span / count
    # NumPy computes otherwise if any step is 0, in which case each quotient is rounded before the product.
    vanishes = np.any(step == 0)
    rows = []
    for number in range(count):
        row = np.where(vanishes, np.float64(number) / count * span, np.float64(number) * step) + start
        rows.append(np.floor(row).astype(edge.dtype) if edge.dtype.kind in "iu" else row.astype(edge.dtype))
    return rows
