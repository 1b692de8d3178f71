"""Indices that are arrays: the values of a field at a short list of points, and writes to them.

`u[ys, xs]` is an array along a list of points. Its node is a value per position, like that of a field, and
means the value at each point's position. A write to points is a condition, whether the own cell is one of
them, with what is written there; `point_pass` computes the few cells that such conditions change.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import Nodes, TracedArray
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.region import HostArray, Shape

MOST_POINTS = 1 << 16
AN_INDEX_EACH = "an index array or a number for each axis of the field, such as u[ys, xs]"
MOST_ROWS = 8  # that an index array picks of a field, each of which is read and written by itself
A_ROW_EACH = f"{AN_INDEX_EACH}; an index array of at most {MOST_ROWS} rows, such as u[[0, -1]]; or slices"


@dataclass(frozen=True)
class Listed:
    """An axis of an array whose elements are points of a list.

    points: the number of the list. axis: of the list's index arrays. length: of that axis.
    """

    points: int
    axis: int
    length: int


@dataclass(frozen=True)
class PointIndex:
    """What an index with arrays picks of an array.

    positions: of the points, in C order of the index arrays; (points, axes of space). shape: of the index
    arrays together. inner: index of the components. at: axis of the result before which the points' axes are.
    """

    positions: HostArray
    shape: Shape
    inner: tuple[Any, ...]
    at: int


def picks_points(index: Any) -> bool:
    """Return whether an index has arrays of integers."""
    items = index if isinstance(index, tuple) else (index,)
    return any(_is_list(item) for item in items)


def _is_list(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and np.asarray(item).dtype.kind in "iu"
    return isinstance(item, np.ndarray) and item.dtype.kind in "iu" and item.ndim > 0


def rows_of(array: Any, index: Any) -> tuple[int, list[tuple[Any, ...]]] | None:
    """Return the axis along which an index array picks rows of a field, and the index of each row.

    None if the index picks anything else, or more than `MOST_ROWS`.
    """
    items = _full_index(array.ndim, index)
    lists = [axis for axis, item in enumerate(items) if not isinstance(item, slice)]
    if len(lists) != 1 or not _is_list(items[lists[0]]):
        return None
    (axis,) = lists
    chosen = np.asarray(items[axis])
    others = [number for number in range(array.ndim) if number != axis and array.is_cells(number)]
    if not array.is_cells(axis) or not others or chosen.ndim != 1 or not 0 < len(chosen) <= MOST_ROWS:
        return None
    return axis, [(*items[:axis], int(row), *items[axis + 1 :]) for row in chosen]


def read_index(array: Any, index: Any) -> PointIndex:
    """Return what an index with arrays picks of a traced array. Raises IndexError as NumPy does."""
    items = _full_index(array.ndim, index)
    given: dict[int, HostArray] = {}  # by axis of space
    numbers: list[int] = []  # axes of the array with an index array or a number
    inner: list[Any] = []
    for number, (item, axis) in enumerate(zip(items, array._axes, strict=True)):
        if isinstance(item, TracedArray):
            raise NotTraceable("picks points by an array that is computed of fields")
        is_cells = array.is_cells(number)
        if isinstance(item, slice):
            if is_cells:
                count = max((np.size(one) for one in items if _is_list(one)), default=0)
                raise NotTraceable(f"picks {count} rows of a field by an array", A_ROW_EACH)
            inner.append(item)
            continue
        numbers.append(number)
        if not is_cells and _is_list(item):
            raise NotTraceable("picks components by an array", "a number for each component")
        indices = np.asarray(item if _is_list(item) else operator.index(item)).astype(np.int64)
        outside = indices[(indices < -axis.length) | (indices >= axis.length)]
        if outside.size:
            what = f"index {outside.flat[0]} is out of bounds for axis {number} with size {axis.length}"
            raise IndexError(what)
        if not is_cells:
            inner.append(int(indices))
            continue
        if isinstance(axis, Listed) or axis.axis < 0:
            raise NotTraceable("picks elements of an array that is no field by an array")
        given[axis.axis] = axis.first + axis.step * (indices % axis.length)
    given |= {axis: np.asarray(at) for axis, at in array._fixed.items()}
    axes = len(array._recorder.space)
    if sorted(given) != list(range(axes)):
        raise NotTraceable("picks points of an array that lacks an axis of the fields", AN_INDEX_EACH)
    together = np.broadcast_arrays(*(given[axis] for axis in range(axes)))
    if together[0].size > MOST_POINTS:
        raise NotTraceable(f"picks {together[0].size} points", f"at most {MOST_POINTS}, or slices")

    # As NumPy has it: the points' axes are in the place of indices that are side by side, else first.
    beside = numbers == list(range(numbers[0], numbers[-1] + 1))
    at = sum(isinstance(item, slice) for item in items[: numbers[0]]) if beside else 0
    positions = np.stack([one.ravel() for one in together], -1)
    return PointIndex(positions, together[0].shape, tuple(inner), at)


def _full_index(ndim: int, index: Any) -> list[Any]:
    """Return an index for each axis."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(item is None for item in items):
        raise NotTraceable("adds an axis where it picks points", "a new axis afterwards: u[ys, xs][:, None]")
    if any(item is Ellipsis for item in items):
        at = next(number for number, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
    if len(items) > ndim:
        raise IndexError(
            f"too many indices for array: array is {ndim}-dimensional, but {len(items)} were indexed"
        )
    return items + [slice(None)] * (ndim - len(items))


def listed_axes(graph: WholeGraph, index: PointIndex) -> list[Listed]:
    """Return the axes of a list of points, which the graph then has."""
    number = graph.list_points(index.positions)
    return [Listed(number, axis, length) for axis, length in enumerate(index.shape)]


def with_one_list(graph: WholeGraph, operands: Sequence[tuple[Sequence[Any], Nodes]]) -> list[Nodes]:
    """Return the operands' nodes for one list of points: the first operand's that has one.

    operands: axes and nodes of each, which have one element along axes of cells. An array with an element for
    each point becomes a value that is picked by the point.
    """
    found = [nodes for _, nodes in operands]
    if not graph.points:
        return found
    main = next((axes for axes, _ in operands if any(isinstance(one, Listed) for one in axes)), None)
    if main is None:
        return found
    backs = {len(main) - at: axis for at, axis in enumerate(main) if isinstance(axis, Listed)}
    points = next(iter(backs.values())).points
    for number, (axes, nodes) in enumerate(operands):
        mine = {len(axes) - at: axis for at, axis in enumerate(axes)}
        if any(isinstance(axis, Listed) for axis in axes):
            found[number] = _from_other_list(graph, points, backs, mine, nodes)
        elif any(mine[back].length > 1 for back in backs if back in mine):
            found[number] = _picked(graph, points, backs, mine, _elements(graph, axes, nodes))
    return found


def _from_other_list(
    graph: WholeGraph, points: int, backs: dict[int, Listed], mine: dict[int, Any], nodes: Nodes
) -> Nodes:
    """Return nodes of another list for points of one list, if all are as far apart."""
    other = next(axis.points for axis in mine.values() if isinstance(axis, Listed))
    same = {back: axis for back, axis in mine.items() if isinstance(axis, Listed)}
    if other == points and same == backs:
        return nodes
    here, there = graph.points[points], graph.points[other]
    if here.shape != there.shape or [a.length for a in same.values()] != [a.length for a in backs.values()]:
        raise NotTraceable("combines fields at different lists of points")
    apart = np.unique(there - here, axis=0)
    if len(apart) != 1 or set(same) != set(backs):
        raise NotTraceable(
            "combines fields at different lists of points",
            "lists that are the same, or shifted by a constant",
        )
    moved = np.empty(nodes.shape, object)
    moved.ravel()[:] = graph.for_other_list(nodes.ravel(), points, tuple(map(int, apart[0])))
    return moved


def is_line(axis: Any) -> bool:
    """Return whether an axis is one of a line of numbers, which is along no axis of space."""
    return not isinstance(axis, Listed) and getattr(axis, "axis", 0) < 0


def _elements(graph: WholeGraph, axes: Sequence[Any], nodes: Nodes) -> Nodes:
    """Return a node for each element along axes that are lines, such as those of an array times a number."""
    lines = [number for number, axis in enumerate(axes) if is_line(axis)]
    if not lines:
        return nodes
    shape = [axis.length if number in lines else nodes.shape[number] for number, axis in enumerate(axes)]
    full, found = np.broadcast_to(nodes, shape), np.empty(shape, object)
    for index in np.ndindex(*shape):
        at = {axes[n].axis: axes[n].first + axes[n].step * index[n] for n in lines}
        (found[index],) = graph.at_places([full[index]], at)
    return found


def _picked(
    graph: WholeGraph, points: int, backs: dict[int, Listed], mine: dict[int, Any], nodes: Nodes
) -> Nodes:
    """Return a value that is picked by the point for an array with an element for each of them."""
    if any(not hasattr(axis, "length") or nodes.shape[-back] != axis.length for back, axis in mine.items()):
        raise NotTraceable("combines points with an axis of a field")
    if graph.vary(nodes.ravel()):
        raise NotTraceable("combines a value of each point with cells of a field")
    full = nodes.reshape((1,) * (max(backs) - nodes.ndim) + nodes.shape) if nodes.ndim < max(backs) else nodes
    lengths = [backs[back].length if back in backs else full.shape[-back] for back in range(full.ndim, 0, -1)]
    full = np.broadcast_to(full, lengths)
    places = [full.ndim - back for back in backs]
    kept = [axis for axis in range(full.ndim) if axis not in places]
    ordered = full.transpose([*kept, *places]).reshape([*(full.shape[axis] for axis in kept), -1])
    found = np.empty(ordered.shape[:-1], object)
    for at in np.ndindex(found.shape):
        found[at] = graph.pick(points, list(ordered[at]))
    result: Nodes = np.expand_dims(found, sorted(places))
    return result


def rounds(index: PointIndex) -> list[HostArray]:
    """Return, as numbers of points, lists without repeated points that make up a list, in its order."""
    _, inverse = np.unique(index.positions, axis=0, return_inverse=True)
    counts: dict[int, int] = {}
    found: list[list[int]] = []
    for number, cell in enumerate(inverse.ravel()):
        turn = counts[int(cell)] = counts.get(int(cell), -1) + 1
        if turn == len(found):
            found.append([])
        found[turn].append(number)
    return [np.array(one, np.int64) for one in found]


def accumulated(ufunc: np.ufunc, array: Any, index: Any, *values: Any) -> None:
    """Record ufunc.at(array, index, values): once for each point, also for one that is repeated."""
    if not picks_points(index):
        array[index] = ufunc(array[index], *values)
        return
    items = [*index] if isinstance(index, tuple) else [index]
    chosen = read_index(array, index)
    if chosen.inner and any(isinstance(item, slice) for item in chosen.inner):
        raise NotTraceable(f"uses numpy.{ufunc.__name__}.at with points of several components")
    lists = np.broadcast_arrays(*(np.asarray(item) for item in items))
    every = [np.broadcast_to(value, chosen.shape).ravel() if np.ndim(value) else value for value in values]
    for turn in rounds(chosen):
        part = tuple(one.ravel()[turn] for one in lists)
        array[part] = ufunc(array[part], *(one[turn] if np.ndim(one) else one for one in every))
