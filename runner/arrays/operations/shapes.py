"""NumPy's functions that move cells or axes of distributed arrays: views, joins, shifts, other shapes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.arrays.operations import parts as geometry
from meshrun.runner.arrays.operations.reductions import NO_VALUE, axes_of
from meshrun.runner.arrays.operations.split_array import (
    SplitArray,
    begin,
    described,
    not_for_split_arrays,
)
from meshrun.runner.arrays.operations.table import implements
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.plan.grid import Partition, split_along
from meshrun.runner.region import Shape


def _one_axis(axis: int, ndim: int) -> int:
    (found,) = axes_of(axis, ndim)
    return found


def _along(ndim: int, axis: int, part: slice) -> tuple[slice, ...]:
    """Return an index that takes part of one axis."""
    return tuple(part if number == axis else slice(None) for number in range(ndim))


# Views


@implements(np.transpose)
def transpose(a: SplitArray, axes: Any = None) -> Any:
    return a.transpose(*(() if axes is None else (tuple(axes),)))


@implements(np.moveaxis)
def moveaxis(a: SplitArray, source: Any, destination: Any) -> Any:
    # NumPy's order of axes, of an array without cells.
    order = np.moveaxis(np.empty(range(a.ndim)), source, destination).shape
    return a.transpose(order)


@implements(np.swapaxes)
def swapaxes(a: SplitArray, axis1: int, axis2: int) -> Any:
    return a.transpose(np.swapaxes(np.empty(range(a.ndim)), axis1, axis2).shape)


@implements(np.expand_dims)
def expand_dims(a: SplitArray, axis: Any) -> Any:
    count = a.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    added = axes_of(axis, count)
    return a[tuple(None if number in added else slice(None) for number in range(count))]


@implements(np.squeeze)
def squeeze(a: SplitArray, axis: Any = None) -> Any:
    dropped = (
        [n for n, length in enumerate(a.shape) if length == 1] if axis is None else axes_of(axis, a.ndim)
    )
    if any(a.shape[number] != 1 for number in dropped):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return a[tuple(0 if number in dropped else slice(None) for number in range(a.ndim))]


@implements(np.flip)
def flip(m: SplitArray, axis: Any = None) -> Any:
    turned = axes_of(axis, m.ndim)
    return m[tuple(slice(None, None, -1 if number in turned else 1) for number in range(m.ndim))]


@implements(np.flipud)
def flipud(m: SplitArray) -> Any:
    return flip(m, 0)


@implements(np.fliplr)
def fliplr(m: SplitArray) -> Any:
    return flip(m, 1)


@implements(np.broadcast_to)
def broadcast_to(array: SplitArray, shape: Any, subok: bool = False) -> Any:
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    if geometry.broadcast_shape([array.shape, wanted]) != wanted:
        raise ValueError(
            f"operands could not be broadcast together with remapped shapes [original->remapped]: "
            f"{array.shape} and requested shape {wanted}"
        )
    parts = geometry.even_parts(wanted, array.world.size)
    cells = array.fetched(geometry.projected(parts, array.shape, array.world.size))
    own = array.world.xp.broadcast_to(cells, parts[array.world.rank].shape).copy()
    return array.made(parts, own).as_copy("np.broadcast_to", array)


@implements(np.atleast_1d)
def atleast_1d(a: SplitArray) -> Any:
    return a if a.ndim else a[None]


# Other shapes


@implements(np.reshape)
def reshape(a: SplitArray, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """Return the cells in C order in another shape; a copy, unless only axes of one cell come or go."""
    if order not in ("C", "A"):
        raise not_for_split_arrays(f"numpy.reshape with order={order!r}")
    a.check_readable()
    wanted = _lengths(a, shape)
    if wanted == a.shape:
        return a[...]
    begin(a.world, "reshape", a, wanted)
    ranks = a.world.size
    if not a.size:
        parts = geometry.even_parts(wanted, ranks)
        return a.made(parts, a.world.xp.empty(parts[a.world.rank].shape, a.dtype))
    # The cells of whole rows, as a line in C order, and those of the result's rows.
    rows = a.in_rows() if a.shape else a[None]
    line = rows.made(_flat(rows.partition, ranks), rows.interior.reshape(-1))
    if not wanted:
        return line[0]
    target = split_along(wanted, 0, ranks)
    cells = line.fetched(_flat(target, ranks)).reshape(target[a.world.rank].shape)
    found = a.made(target, cells.copy() if cells.base is not None else cells).evenly_split()
    return found.as_copy("a reshaped array", a)


@implements(np.ravel)
def ravel(a: SplitArray, order: str = "C") -> Any:
    return reshape(a, -1, order)


def _lengths(a: SplitArray, shape: Any) -> Shape:
    wanted = [operator.index(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    if wanted.count(-1) > 1:
        raise ValueError("can only specify one unknown dimension")
    known = math.prod(n for n in wanted if n != -1)
    if -1 in wanted and known and a.size % known == 0:
        wanted[wanted.index(-1)] = a.size // known
    if math.prod(wanted) != a.size:
        given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        raise ValueError(f"cannot reshape array of size {a.size} into shape {given}".replace(", ", ","))
    return tuple(wanted)


def _flat(parts: Any, ranks: int) -> Partition:
    """Return an array that is split into rows as a line in C order."""
    row = math.prod(parts.shape[1:])
    starts = tuple(parts[rank].start[0] * row for rank in range(ranks))
    return Partition((math.prod(parts.shape),), (ranks,), starts=(starts,))


# Joins and shifts


@implements(np.concatenate)
def concatenate(
    arrays: Sequence[Any], /, axis: int | None = 0, out: Any = None, *, dtype: Any = None, casting: Any = None
) -> Any:
    given = [one if isinstance(one, SplitArray) else np.asarray(one) for one in arrays]
    if axis is None:
        given, axis = [np.reshape(one, -1) for one in given], 0
    first = next(one for one in given if isinstance(one, SplitArray))
    if any(one.ndim != first.ndim for one in given):
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly"
        )
    number = _one_axis(axis, first.ndim)
    rest = [(*one.shape[:number], *one.shape[number + 1 :]) for one in given]
    if any(one != rest[0] for one in rest):
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly, but got "
            f"shapes {', '.join(str(one.shape) for one in given)}"
        )
    length = sum(one.shape[number] for one in given)
    shape = (*first.shape[:number], length, *first.shape[number + 1 :])
    kind = np.result_type(*(one.dtype for one in given)) if dtype is None else np.dtype(dtype)
    parts = geometry.even_parts(shape, first.world.size)
    result = first.made(parts, first.world.backend.empty(parts[first.world.rank].shape, kind))
    at = 0
    for one in given:
        result[_along(first.ndim, number, slice(at, at + one.shape[number]))] = one
        at += one.shape[number]
    if out is None:
        return result
    out[...] = result
    return out


@implements(np.stack)
def stack(
    arrays: Sequence[Any], axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Any = None
) -> Any:
    ndim = np.ndim(arrays[0]) + 1
    if any(np.shape(one) != np.shape(arrays[0]) for one in arrays):
        raise ValueError("all input arrays must have the same shape")
    number = _one_axis(axis, ndim)
    return concatenate([np.expand_dims(one, number) for one in arrays], number, out, dtype=dtype)


@implements(np.vstack)
def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Any:
    return concatenate([one if np.ndim(one) > 1 else np.reshape(one, (1, -1)) for one in tup], dtype=dtype)


@implements(np.hstack)
def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Any:
    return concatenate(tup, 0 if np.ndim(tup[0]) == 1 else 1, dtype=dtype)


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return np.reshape(roll(np.reshape(a, -1), shift, 0), a.shape).copy()
    found = a
    for by, given in np.broadcast(shift, axis):
        number = _one_axis(int(given), a.ndim)
        length = a.shape[number]
        distance = int(by) % length if length else 0
        if distance:
            found = _rolled(found, number, distance)
    return found.copy() if found is a else found


def _rolled(a: SplitArray, axis: int, distance: int) -> SplitArray:
    """Return an array whose cells have moved along an axis, of more than `distance` cells. Collective."""
    world = a.world
    if world.operations.is_needed:
        world.operations.note(f"roll by {distance} along axis {axis} of {described(a)}")
    a.check_readable()
    plan = geometry.roll_plan(a.partition, axis, distance, world.size, world.rank)
    cells = world.backend.empty(plan.parts[world.rank].shape, a.dtype)
    if not plan.crosses:
        for (_, source), (_, target) in zip(plan.sends, plan.receives, strict=True):
            cells[target] = a.interior[source]
        return a.made(plan.parts, cells)
    world.operations.agree()
    with named(world.arrays, "roll"):
        world.exchange(
            [(rank, a.interior[source]) for rank, source in plan.sends],
            [(rank, cells[target]) for rank, target in plan.receives],
        )
    return a.made(plan.parts, cells)


@implements(np.diff)
def diff(a: SplitArray, n: int = 1, axis: int = -1, prepend: Any = NO_VALUE, append: Any = NO_VALUE) -> Any:
    if prepend is not NO_VALUE or append is not NO_VALUE:
        raise not_for_split_arrays("numpy.diff with prepend or append")
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    number = _one_axis(axis, a.ndim)
    subtract = np.not_equal if a.dtype == bool else np.subtract
    for _ in range(n):
        a = subtract(a[_along(a.ndim, number, slice(1, None))], a[_along(a.ndim, number, slice(None, -1))])
    return a


# Products of lines


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    return np.multiply(np.reshape(a, -1)[:, None], np.reshape(b, -1)[None, :], out=out)
