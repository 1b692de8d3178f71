"""NumPy's reductions of whole arrays: to a value that all cells share, or to an array with fewer axes.

A value can be used in further arithmetic, with NumPy's rules for dtypes. What it is, no rank knows while the
function is traced. A reduction combines cells of space; the elements of axes that are none of space are
combined first, cell by cell.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import OF_UFUNCS, choose, stored
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import (
    Along,
    Inner,
    Scalar,
    Whole,
    made,
    made_scalar,
)
from meshrun.runner.compiler.whole.functions import products
from meshrun.runner.compiler.whole.functions.masks import Picked
from meshrun.runner.compiler.whole.functions.shifts import FUNCTIONS as OTHERS
from meshrun.runner.compiler.whole.graph import Reduction, ValueCheck
from meshrun.runner.compiler.whole.module import evaluated

NOT_GIVEN: Any = np._NoValue
BY_PARTS = "the real and the imaginary parts, each by itself"
# Of each ufunc, what changes no cell that it is combined with.
IDENTITY: dict[Any, Any] = {np.add: 0, np.multiply: 1, np.logical_and: True, np.logical_or: False}


# Reductions of traced arrays: `a` is Whole, axes are its own


def _axes_of(a: Any, axis: Any) -> tuple[int, ...]:
    """Return the axes to reduce, in order. Raises NumPy's error for one that the array does not have."""
    if axis is None:
        return tuple(range(a.ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for one in map(operator.index, given):
        if not -a.ndim <= one < a.ndim:
            raise np.exceptions.AxisError(one, a.ndim)
        found.append(one % a.ndim)
    if len(set(found)) < len(found):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(found))


def combined(ufunc: Any, a: Whole, axes: Sequence[int], *, keepdims: bool = False) -> Any:
    """Combine the cells along axes by a ufunc of two cells."""
    # Elements of a cell first, from left to right.
    inner = [axis for axis in axes if isinstance(a._axes[axis], Inner)]
    elements = list(np.ndindex(*(a.shape[axis] for axis in inner)))
    if not elements:
        raise NotTraceable("reduces an axis without elements")
    total: Any = None
    for element in elements:
        index: list[Any] = [slice(None)] * a.ndim
        for axis, at in zip(inner, element, strict=True):
            index[axis] = at
        part = a.view(tuple(index))
        total = part if total is None else ufunc(total, part)
    kept = [axis for axis in range(a.ndim) if axis not in inner]
    space = [kept.index(axis) for axis in axes if axis in kept]
    found = _over_space(ufunc.__name__, total, space) if space else total.copy()
    return _with_axes(found, a.ndim, axes) if keepdims else found


def _with_axes(a: Whole, ndim: int, axes: Sequence[int]) -> Whole:
    """Return a view with axes of length 1 where they were reduced."""
    index = tuple(None if axis in axes else slice(None) for axis in range(ndim))
    return a.view(index)


def _over_space(kind: str, a: Whole, axes: Sequence[int], dtype: np.dtype[Any] | None = None) -> Any:
    """Reduce axes of space; each remaining element of a cell by itself."""
    recorder, graph = a._recorder, a._recorder.graph
    if a.dtype.kind == "c" and kind != "add":
        raise NotTraceable(f"reduces complex numbers (numpy.{kind})", BY_PARTS)
    if any(isinstance(axis, Along) and axis.axis < 0 for axis in a._axes):
        return _of_line(kind, a, axes)
    a = _forward(kind, a, axes)
    taken = [a._axes[axis] for axis in axes]
    kept = [axis for number, axis in enumerate(a._axes) if number not in axes]
    if a.dtype.kind == "c":
        real, imag = (_over_space(kind, a.part(name), axes) for name in ("real", "imag"))
        return real.new(recorder.each("complex", a.dtype, real.read(), imag.read()), a.dtype)
    along = {axis.axis: axis for axis in taken if isinstance(axis, Along)}
    along |= {axis: Along(axis, at, 1, 1) for axis, at in a._fixed.items()}
    remain = {axis.axis for axis in kept if isinstance(axis, Along)}
    places = [
        along.get(axis, Along(axis, 0, 1, n if axis in remain else 1))
        for axis, n in enumerate(recorder.space)
    ]
    # Cells beyond the fields, of a view of a longer array, are brought to the first places.
    shift = [0] * len(places)
    for axis, (one, n) in enumerate(zip(places, recorder.space, strict=True)):
        if one.length and (one.first < 0 or one.stop > n):
            if one.stop - one.first > n:
                raise NotTraceable("reduces an array that is longer than the fields", "a part of it")
            shift[axis], places[axis] = one.first, Along(axis, 0, one.step, one.length)
    kept = [
        Along(one.axis, one.first - shift[one.axis], one.step, one.length) if isinstance(one, Along) else one
        for one in kept
    ]
    reduced = tuple(axis for axis in range(len(recorder.space)) if axis not in remain)

    def of(nodes: tuple[Node, ...]) -> Node:
        reduction = Reduction(
            kind,
            nodes,
            nodes[0].dtype if dtype is None else dtype,
            tuple(one.first for one in places),
            tuple(one.step for one in places),
            tuple(one.length for one in places),
            reduced,
            recorder.line(),
        )
        return graph.reduced_array(reduction) if remain else graph.value(reduction, reduction.dtype)

    nodes = a.read()
    found = np.empty(nodes.shape, object)
    empty = any(axis.length == 0 for axis in taken)
    for place, node in np.ndenumerate(nodes):
        identity = kind in ("multiply", "minimum")
        (cell,) = graph.substituted([node], tuple(shift))
        found[place] = graph.constant(identity, node.dtype) if empty else of((cell,))
    if not kept:
        return made_scalar(recorder, {}, found.ravel()[0])
    inner = tuple(axis.length for axis in kept if isinstance(axis, Inner))
    return made(recorder, kept, {}, found.reshape(inner), found.ravel()[0].dtype)


def _forward(kind: str, a: Whole, axes: Sequence[int]) -> Whole:
    """Return a view without reversed axes among those that are reduced."""
    turned = {number for number in axes if isinstance(one := a._axes[number], Along) and one.step < 0}
    if not turned:
        return a
    if kind in ("argmax", "argmin"):
        raise NotTraceable(f"takes numpy.{kind} along a reversed axis", "the array in its own order")
    return a.view(tuple(slice(None, None, -1 if number in turned else 1) for number in range(a.ndim)))


def _of_line(kind: str, a: Whole, axes: Sequence[int]) -> Any:
    """Return a reduction of numbers that are known: of a line that is along no axis of space yet."""
    if a.ndim != 1 or a._fixed:
        raise NotTraceable(
            "reduces lines of numbers beside a field", "their sum with zeros_like(field) first"
        )
    (node,) = a.read().ravel()
    first = a._axes[0].first if isinstance(a._axes[0], Along) else 0
    step = a._axes[0].step if isinstance(a._axes[0], Along) else 1
    values = evaluated(a._recorder.graph, node, first + step * len(a))[first::step]
    known: Any = getattr(np, kind)
    return known(values) if kind in ("argmax", "argmin") else known.reduce(values)


def _masked(a: Any, where: Any, fill: Any) -> Any:
    """Return an array whose cells that a mask does not pick are `fill`. a: a traced array or a selection."""
    if isinstance(a, Picked):
        mask = a.mask if where is True else np.logical_and(a.mask, where)
        return choose(mask, a.cells, a.dtype.type(fill))
    return a if where is True else choose(where, a, a.dtype.type(fill))


def _count_of(a: Any, axes: Sequence[int], where: Any, *, keepdims: bool = False) -> Any:
    """Return the number of cells that are reduced: an intp, or what counts a mask's."""
    mask = a.mask if isinstance(a, Picked) else None
    if where is not True:
        mask = where if mask is None else np.logical_and(mask, where)
    if mask is not None:
        return _count_nonzero(mask, axes, keepdims=keepdims)
    return np.intp(np.prod([a.shape[axis] for axis in axes], dtype=np.int64))


def _extreme_of(dtype: np.dtype[Any], ufunc: Any) -> Any:
    """Return what changes no cell that it is compared with."""
    if dtype.kind == "b":
        return ufunc is np.minimum
    if dtype.kind == "c":
        raise NotTraceable(f"reduces complex numbers (numpy.{ufunc.__name__})", BY_PARTS)
    if dtype.kind == "f":
        return np.inf if ufunc is np.minimum else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if ufunc is np.minimum else limits.min


def _reduction(ufunc: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numpy.sum, prod, min, max, any and all."""
    inner = OTHERS.get(function)

    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NOT_GIVEN,
        where: Any = True,
    ) -> Any:
        array = a.cells if isinstance(a, Picked) else a
        axes, keep = _axes_of(array, axis), keepdims is True
        if isinstance(a, Picked) and a.mask.shape != array.shape:
            raise NotTraceable("picks cells with several elements", "a condition of each element")
        if isinstance(a, Picked) and axes != tuple(range(array.ndim)):
            raise NotTraceable("reduces the cells that a condition picks along an axis", "where=condition")
        plain = array is a and where is True and initial is NOT_GIVEN
        if inner is not None and plain and not any(isinstance(array._axes[one], Along) for one in axes):
            of_dtype = {} if dtype is None else {"dtype": dtype}
            return inner(a, axis=axis, out=out, keepdims=keep, **of_dtype)
        # The dtype of NumPy's result, and the one to compute in.
        given = {} if dtype is None else {"dtype": dtype}
        kind = function(np.ones(1, array.dtype), **given).dtype
        if ufunc in (np.logical_or, np.logical_and):
            typed, combine = array.astype(bool), np.maximum if ufunc is np.logical_or else np.minimum
        else:
            typed, combine = array.astype(kind, copy=False), ufunc
        fill = IDENTITY[ufunc] if ufunc in IDENTITY else _extreme_of(typed.dtype, ufunc)
        if ufunc not in IDENTITY and initial is NOT_GIVEN:  # NumPy's errors
            name = ufunc.__name__
            if 0 in (array.shape[one] for one in axes):
                raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
            if where is not True:
                raise ValueError(
                    f"reduction operation '{name}' does not have an identity, so to use a where mask one has "
                    "to specify 'initial'"
                )
        if isinstance(a, Picked) and ufunc not in IDENTITY and initial is NOT_GIVEN:
            (count,) = _count_nonzero(a.mask).read().ravel()
            what = f"takes numpy.{function.__name__} of the cells that a condition picks, and it picks none"
            array._recorder.checks.append(ValueCheck(count, what, array._recorder.line()))
        cells = _masked(Picked(a.mask, typed) if isinstance(a, Picked) else typed, where, fill)
        if kind == np.float16 and ufunc in (np.add, np.multiply):  # rounded once
            found = combined(combine, cells.astype(np.float32), axes, keepdims=keep).astype(kind)
        else:
            found = combined(combine, cells, axes, keepdims=keep)
        if initial is not NOT_GIVEN and initial is not None:
            found = combine(found, kind.type(initial))
        return stored(found, out)

    return reduce


def _without_dtype(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction that takes no dtype, as numpy.max."""

    def of_function(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **options: Any) -> Any:
        return reduce(a, axis, None, out, keepdims, **options)

    return of_function


_BY_UFUNC = {ufunc: _reduction(ufunc, function) for ufunc, function in OF_UFUNCS.items()}
_sum, _max, _min, _any = (_BY_UFUNC[one] for one in (np.add, np.maximum, np.minimum, np.logical_or))


def _count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    array = a.cells if isinstance(a, Picked) else a
    nonzero = array if array.dtype == bool else np.not_equal(array, array.dtype.type(0))
    cells = Picked(a.mask, nonzero) if isinstance(a, Picked) else nonzero
    found = _sum(cells, axis, np.intp, None, keepdims)
    counted: Any = np.count_nonzero(np.ones(1))
    if isinstance(found, Scalar) and not isinstance(counted, np.generic):  # of older NumPys
        found._weak = int
    return found


def _mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    array = a.cells if isinstance(a, Picked) else a
    axes, keep = _axes_of(array, axis), keepdims is True
    kind = np.mean(np.ones(1, array.dtype), **({} if dtype is None else {"dtype": dtype})).dtype
    adding = np.dtype(np.float32) if kind == np.float16 and dtype is None else kind
    total = _sum(a, axis, adding, None, keep, where=where)
    count = _count_of(a, axes, where, keepdims=keep)
    return stored(np.true_divide(total, count).astype(kind), out)


def _average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False
) -> Any:
    if returned:
        raise NotTraceable("uses returned= of numpy.average", "weights.sum()")
    if weights is None:
        return _mean(a, axis, keepdims=keepdims)
    if weights.shape != a.shape:
        raise NotTraceable("uses weights of another shape than the array's", "weights of the array's shape")
    integers = a.dtype.kind in "iub"
    kind = np.result_type(a.dtype, weights.dtype, *(["f8"] if integers else []))
    scale = _sum(weights, axis, kind, None, keepdims)
    total = _sum(np.multiply(a, weights, dtype=kind), axis, None, None, keepdims)
    return np.divide(total, scale)


def _var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    where: Any = True,
    **options: Any,
) -> Any:
    """numpy.var, by a second pass over the differences from the mean, as NumPy computes it."""
    array = a.cells if isinstance(a, Picked) else a
    axes, keep = _axes_of(array, axis), keepdims is True
    if unknown := options.keys() - {"mean", "correction"}:
        raise TypeError(f"var() got an unexpected keyword argument {min(unknown)!r}")
    ddof, mean = options.get("correction", ddof), options.get("mean", NOT_GIVEN)
    kind = np.var(np.ones(1, array.dtype), **({} if dtype is None else {"dtype": dtype})).dtype
    adding = np.dtype(np.float32) if kind == np.float16 and dtype is None else kind
    of_cells = np.result_type(adding, array.dtype) if array.dtype.kind == "c" else adding
    count = _count_of(a, axes, where, keepdims=True)
    if mean is NOT_GIVEN:
        mean = np.true_divide(_sum(a, axis, of_cells, None, True, where=where), count).astype(of_cells)
    apart = np.subtract(array.astype(of_cells, copy=False), mean)
    squares: Any = np.multiply(apart, np.conjugate(apart) if of_cells.kind == "c" else apart).real
    cells = Picked(a.mask, squares) if isinstance(a, Picked) else squares
    total = _sum(cells, axis, adding, None, keep, where=where)
    count = _count_of(a, axes, where, keepdims=keep)
    degrees = np.maximum(count - ddof, 0)
    return stored(np.true_divide(total, degrees).astype(kind), out)


def _std(a: Any, *args: Any, **options: Any) -> Any:
    return np.sqrt(_var(a, *args, **options))


def _ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return stored(_max(a, axis, keepdims=keepdims) - _min(a, axis, keepdims=keepdims), out)


def _arg(name: str) -> Callable[..., Any]:
    """Return numpy.argmax or argmin: the first index of ties; of NaN, the first."""

    def arg(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        if isinstance(a, Picked):
            raise NotTraceable(f"takes numpy.{name} of the cells that a condition picks")
        axes = _axes_of(a, axis)
        if any(isinstance(a._axes[one], Inner) and a.shape[one] > 1 for one in axes):
            raise NotTraceable(f"takes numpy.{name} along an axis of components", "each component by itself")
        if 0 in (a.shape[one] for one in axes):
            raise ValueError(f"attempt to get {name} of an empty sequence")
        index = tuple(
            0 if one in axes and isinstance(a._axes[one], Inner) else slice(None) for one in range(a.ndim)
        )
        view = a.view(index)
        kept = [one for one in range(a.ndim) if index[one] != 0]
        space = [kept.index(one) for one in axes if one in kept]
        found = _over_space(name, view, space, np.dtype(np.intp))
        return stored(_with_axes(found, a.ndim, axes) if keepdims is True else found, out)

    return arg


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if not np.ndim(a) or not np.ndim(b):
        return stored(np.multiply(a, b), out)
    if np.ndim(a) != 1 or np.ndim(b) != 1:
        return products.dot(a, b, out)  # over components
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} not aligned")
    return stored(_product(a, b), out)


def _vdot(a: Any, b: Any) -> Any:
    if a.shape != b.shape:
        if a.size != b.size:
            raise ValueError("cannot reshape array")
        raise NotTraceable("takes numpy.vdot of arrays of different shapes", "arrays of one shape")
    return _product(np.conjugate(a), b) if a.dtype.kind == "c" else _product(a, b)


def _product(a: Any, b: Any) -> Any:
    """Return the sum of the products of all cells, in the dtype of both."""
    cells = np.multiply(a, b)
    return _any(cells) if cells.dtype == bool else _sum(cells, None, cells.dtype)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """numpy.linalg.norm of vectors, and of matrices where that is a norm of all their cells."""
    axes = _axes_of(x, axis)
    if x.dtype.kind == "c":
        values: Any = np.absolute(x)
    else:
        values = x if x.dtype.kind == "f" else x.astype(np.float64)
    euclidean = {1: (None, 2), 2: (None, "fro")}  # codespell:ignore fro
    if ord is None or ord in euclidean.get(len(axes), ()):
        return np.sqrt(_sum(np.multiply(values, values), axis, values.dtype, None, keepdims))
    if len(axes) != 1:
        raise NotTraceable(f"uses numpy.linalg.norm(x, {ord!r}) of a matrix", "sums and maxima along axes")
    if ord in (np.inf, -np.inf):
        extreme = _max if ord > 0 else _min
        return extreme(np.absolute(values), axis, keepdims=keepdims)
    if ord == 1:
        return _sum(np.absolute(values), axis, values.dtype, None, keepdims)
    raise NotTraceable(f"uses numpy.linalg.norm(x, {ord!r})", "sums of powers")


REDUCTIONS: dict[Any, Callable[..., Any]] = {
    **{
        function: reduce if ufunc in (np.add, np.multiply) else _without_dtype(reduce)
        for (ufunc, function), reduce in zip(OF_UFUNCS.items(), _BY_UFUNC.values(), strict=True)
    },
    np.mean: _mean,
    np.average: _average,
    np.var: _var,
    np.std: _std,
    np.ptp: _ptp,
    np.count_nonzero: _count_nonzero,
    np.argmax: _arg("argmax"),
    np.argmin: _arg("argmin"),
    np.dot: _dot,
    np.vdot: _vdot,
    np.linalg.norm: _norm,
}
