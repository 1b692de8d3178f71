"""Coarse grids: fields in groups of cells, `u.reshape(n // 2, 2, m // 2, 2)`, and their cells repeated."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS, stored
from meshrun.runner.compiler.trace.functions import basic, composites
from meshrun.runner.compiler.trace.functions.basic import LONGEST_SUM
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Whole, inner_shape, made

GROUPS = "groups of cells along each axis: u.reshape(n // 2, 2, m // 2, 2)"


def reshape(
    a: Whole, shape: Any = None, order: str = "C", *, copy: Any = None, newshape: Any = None
) -> Whole:
    """Record numpy.reshape, of axes of cells into groups of neighbours."""
    given = shape if shape is not None else newshape
    several = (given,) if isinstance(given, (int, np.integer)) else given
    wanted: list[int] = [operator.index(one) for one in several]
    if order != "C":
        raise NotTraceable(f"reshapes in order {order!r}")
    if wanted.count(-1) == 1:
        wanted[wanted.index(-1)] = a.size // max(-math.prod(wanted), 1)
    if math.prod(wanted) != a.size or min(wanted, default=0) < 0:
        raise ValueError(f"cannot reshape array of size {a.size} into shape {tuple(wanted)}")
    axes: list[Axis] = []
    left = list(wanted)
    for axis in a._axes:
        if left and left[0] == axis.length:
            axes.append(axis)
            left.pop(0)
            continue
        if not isinstance(axis, Along) or len(left) < 2 or left[0] * left[1] != axis.length:
            raise NotTraceable(f"reshapes an array of shape {a.shape} to {tuple(wanted)}", GROUPS)
        count, group = left.pop(0), left.pop(0)
        axes += [Along(axis.axis, axis.first, axis.step * group, count), Inner(group)]
    if any(length != 1 for length in left):
        raise NotTraceable(f"reshapes an array of shape {a.shape} to {tuple(wanted)}", GROUPS)
    axes += [Inner(1) for _ in left]
    return _grouped(a, axes)


def _grouped(a: Whole, axes: list[Axis]) -> Whole:
    """Return an array whose new inner axes are the neighbours of its cells."""
    shape = inner_shape(axes)
    if math.prod(shape) > MOST_COMPONENTS:
        raise NotTraceable(f"puts {math.prod(shape)} cells into a group")
    # Which inner axis of the result is a group, along which axis of space, and which is one of `a`.
    source = [isinstance(axis, Inner) for axis in a._axes]
    fine = {axis.axis: axis for axis in a._axes if isinstance(axis, Along)}
    kinds: list[Along | None] = []
    for number, axis in enumerate(axes):
        if isinstance(axis, Inner):
            before = axes[number - 1] if number else None
            group = isinstance(before, Along) and before.step != fine[before.axis].step
            kinds.append(fine[before.axis] if isinstance(before, Along) and group else None)
    graph, nodes = a._recorder.graph, a.read().reshape(inner_shape(a._axes))
    found = np.empty(shape, object)
    for index in np.ndindex(shape):
        shift = [0] * len(a._recorder.space)
        own = []
        for at, along in zip(index, kinds, strict=True):
            if along is None:
                own.append(at)
            else:
                shift[along.axis] = along.step * at
        node = nodes[tuple(own[: sum(source)])]
        (found[index],) = graph.moved([node], tuple(shift))
    return made(a._recorder, axes, a._fixed, found, a.dtype)


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Record numpy.repeat: the cells of a coarse grid along an axis, each several times."""
    number = None if axis is None else operator.index(axis) % a.ndim
    if number is None or np.ndim(repeats) or not isinstance(a, Whole) or not a.is_cells(number):
        return composites.repeat(a, repeats, axis)
    count, along = operator.index(repeats), a._axes[number]
    if not isinstance(along, Along) or along.axis < 0 or along.step % count:
        raise NotTraceable(
            "repeats the cells of an array that is no coarse grid",
            "fine[::2] = coarse; fine[1::2] = coarse",
        )
    axes = list(a._axes)
    axes[number] = Along(along.axis, along.first, along.step // count, along.length * count)
    zero = a._recorder.graph.constant(np.zeros((), a.dtype), a.dtype)
    result = made(a._recorder, axes, a._fixed, np.full(inner_shape(axes), zero, object), a.dtype)
    for turn in range(count):
        part = [slice(None)] * number + [slice(turn, None, count)]
        result[tuple(part)] = a
    return result


def sum_(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **options: Any
) -> Any:
    """Record numpy.sum; of groups of cells along several axes, in NumPy's order."""
    plain: Callable[..., Any] = basic.FUNCTIONS[np.sum]
    axes = sorted(one % a.ndim for one in axis) if isinstance(axis, tuple) else []
    if len(axes) < 2 or options or not _are_groups(a, axes):
        return plain(a, axis, dtype, out, keepdims, **options)
    # Along the last axis first; then group after group.
    inner = plain(a, axes[-1], dtype, None, keepdims)
    total: Any = None
    for element in np.ndindex(*(a.shape[one] for one in axes[:-1])):
        index: list[Any] = [slice(None)] * inner.ndim
        for one, at in zip(axes[:-1], element, strict=True):
            index[one] = slice(at, at + 1) if keepdims else at
        part = inner[tuple(index)]
        total = part.copy() if total is None else np.add(total, part)
    return stored(total, out)


def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    """Record numpy.mean; of groups of cells along several axes, in NumPy's order."""
    axes = sorted(one % a.ndim for one in axis) if isinstance(axis, tuple) else []
    if len(axes) < 2 or not _are_groups(a, axes):
        return basic.mean(a, axis, dtype, out, keepdims)
    kind = np.mean(np.ones(1, a.dtype), dtype=dtype).dtype
    total = sum_(a, axis, kind, None, keepdims)
    return np.divide(total, kind.type(a.size // total.size), **({} if out is None else {"out": out}))


def _are_groups(a: Any, axes: list[int]) -> bool:
    """Return whether axes are all inner ones, each behind one of several cells, and few elements long."""
    if not isinstance(a, Whole) or a.dtype == np.float16:
        return False
    alternate = [axis % 2 == 1 for axis in range(a.ndim)]
    return (
        axes == [axis for axis in range(a.ndim) if not a.is_cells(axis)]
        and alternate == [not a.is_cells(axis) for axis in range(a.ndim)]
        and all(a.shape[axis] > 1 for axis in range(0, a.ndim, 2))
        and all(a.shape[axis] <= LONGEST_SUM for axis in axes)
    )


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.reshape: reshape,
    np.repeat: repeat,
    np.sum: sum_,
    np.mean: mean,
}
