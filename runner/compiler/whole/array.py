"""Stand-ins for the whole arrays of a function, which record what it does to them.

A traced array is a view of a storage. Each of its axes is an axis of space, along which all cells are
computed alike and element 0 has a place; or an inner axis, of which each element has nodes of its own. A view
that took one index along an axis of space has that axis fixed at a position. The values of a field at a list
of points have axes of that list instead (`points`).
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.convert import why_plain
from meshrun.runner.compiler.trace.array import (
    MOST_COMPONENTS,
    MOST_NODES,
    Functions,
    Nodes,
    ResultAxes,
    TracedArray,
    TracedCall,
    check_computable,
)
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed, nodes_of
from meshrun.runner.compiler.whole.functions.masks import Picked, picked, write_masked
from meshrun.runner.compiler.whole.functions.outside import Line, root_of
from meshrun.runner.compiler.whole.graph import EVERY_SECOND, Reduction, ValueCheck, WholeGraph, assumed
from meshrun.runner.compiler.whole.points import (
    MOST_POINTS,
    Listed,
    accumulated,
    is_line,
    listed_axes,
    picks_points,
    read_index,
    rows_of,
    with_one_list,
)
from meshrun.runner.compiler.whole.sizes import steps_of
from meshrun.runner.region import Shape, real_dtype

ONE_ROW = (
    "combines one row of an array with all rows of another",
    "the row as an input of its own, of one cell along that axis",
)
# What to write instead of functions that are not traced.
ANY_OTHER = "slices, np.roll, np.where and functions of each cell; or @meshrun.job, which has blocks of ranks"
_HINTS = (
    ("ravel flatten reshape resize", "the array in its own shape"),
    ("frexp ldexp spacing nextafter", "np.log2 and np.exp2"),
    ("vectorize apply_along_axis fromiter", "functions of whole arrays"),
    ("nonzero argwhere flatnonzero extract", "np.where(condition, a, b)"),
    ("dot matmul tensordot einsum inner", "sums of products of components"),
    ("diagonal diag trace", "np.where(i == j, u, 0) with np.indices"),
    ("hfft ihfft", "np.fft.irfft and np.fft.rfft"),
)
HINTS = {name: hint for names, hint in _HINTS for name in names.split()}
MOST_REVERSED = 8  # cells of a reversed axis, each of which is an operation of its own
MIRRORED = (
    "reverses an axis of an array, and combines cells with their mirror images",
    f"rows that are reversed, of which there may be {MOST_REVERSED}",
)
VALUE = "the value as it is, without float, int or item: arithmetic takes it, as in u / u.sum()"
OTHER_AXES = (
    "combines different axes of arrays",
    "arrays whose axes mean the same; what is transposed as an input of its own",
)


@dataclass(frozen=True)
class Along:
    """An axis of an array that is an axis of space.

    axis: of space; below 0: of a line that no field has been combined with yet. first: position of element 0.
    step: positions from one element to the next, below 0 if they are reversed. length: number of elements.
    """

    axis: int
    first: int
    step: int
    length: int

    @property
    def stop(self) -> int:
        """The position after the last element's."""
        return self.first + self.step * (self.length - 1) + 1

    @property
    def forward(self) -> Along:
        """The same positions, in increasing order."""
        if self.step > 0:
            return self
        return self.part(self.length - 1, -1, self.length)

    def part(self, first: int, step: int, length: int) -> Along:
        """Return every `step`-th element from `first` on."""
        return Along(self.axis, self.first + self.step * first, self.step * step, length)


@dataclass(frozen=True)
class Inner:
    """An axis of an array that is no axis of space."""

    length: int


class ItemRow(int):
    """The position of a row that a loop picks by its number, in the iteration that is traced.

    moves: the number of the tape that is the loop's item, and how many rows ahead the row is in the next one.
    """

    moves: tuple[int, int]

    @classmethod
    def of(cls, position: int, number: int, step: int) -> ItemRow:
        row = cls(position)
        row.moves = number, step
        return row


def move_together(one: int, other: int) -> bool:
    """Return whether two positions are as far apart in every iteration of the loops that are traced."""
    return getattr(one, "moves", None) == getattr(other, "moves", None)


Axis = Along | Inner | Listed


class Storage:
    """Memory that traced arrays share.

    nodes: per component, in C order of the inner axes. extents: the axes of space that it has. origin: of an
    input, its number; -1: made by the function. changed: whether the function has written to it, line: where
    it did first. born: counts storages.
    """

    numbers = itertools.count()

    def __init__(self, nodes: list[Node], extents: Mapping[int, Along], origin: int = -1) -> None:
        self.nodes, self.extents, self.origin, self.changed = nodes, dict(extents), origin, False
        self.line = 0
        self.born = next(self.numbers)


@dataclass(frozen=True, eq=False)
class ChosenMemory:
    """Memory of a variable that a branch binds to one array or else to another: `x = u if condition else v`.

    first, second: memory of these arrays. chosen: memory of the variable, which is the first where the
    condition is true, else the second: what is written to one of the three is written to the others. It is
    forgotten with the last name of the variable's memory.
    """

    condition: Node
    first: Storage
    second: Storage
    chosen: weakref.ref[Storage]
    line: int


@dataclass
class Alignment(ResultAxes):
    """Axes and fixed positions of a result."""

    axes: list[Axis] = field(default_factory=list)
    fixed: dict[int, int] = field(default_factory=dict)

    def has(self, axis: int) -> bool:
        """Return whether an axis of space is one of the axes."""
        return any(isinstance(one, Along) and one.axis == axis for one in self.axes)

    def with_axis(self, at: int, length: int) -> Alignment:
        return Alignment([*self.axes[:at], Inner(length), *self.axes[at:]], self.fixed)


class Tracing(TracedCall):
    """One call of the function: its graph and the lengths of space. checks: of values, in order.

    Of a function with arrays between stages, no stage has all nodes; `between.cuts` counts those of each.
    """

    graph: WholeGraph
    most_nodes = 16 * MOST_NODES

    def __init__(
        self, function: Callable[..., Any], graph: WholeGraph, space: Shape, functions: Functions
    ) -> None:
        super().__init__(function, graph, functions)
        self.space = space
        self.checks: list[ValueCheck] = []
        self.lines = itertools.count(-1, -1)
        self.spaces: Any = None  # of the function, `spaces.Spaces`
        self.tape.lift = self.lift
        self.levels: set[Shape] = set()  # steps along all axes of space, of coarse grids
        # Of iterations that are traced: the memory that they write, as it was.
        self.journals: list[dict[Storage, tuple[list[Node], bool, int]]] = []
        self.item_rows: Any = None  # of loops that are traced, `between.item_rows.ItemRows`
        self.chosen: list[ChosenMemory] = []  # by branches on values
        self.has_inner = False  # whether inputs have axes that are none of space

    def note_write(self, storage: Storage) -> None:
        """Note memory as it is before it is written."""
        for journal in self.journals:
            journal.setdefault(storage, (list(storage.nodes), storage.changed, storage.line))

    def note_written(self, storage: Storage, passed: tuple[ChosenMemory, ...] = ()) -> None:
        """Let memory that may be the same as some that has been written have what it has.

        passed: by which it is known to be the same already.
        """
        for one in self.chosen:
            chosen = one.chosen()
            if chosen is None or one in passed or storage not in (one.first, one.second, chosen):
                continue
            if storage is chosen:
                self._write(one, one.first, chosen, one.first)
                self.note_written(one.first, (*passed, one))
                self._write(one, one.second, one.second, chosen)
                self.note_written(one.second, (*passed, one))
            else:
                self._write(one, chosen, one.first, one.second)
                self.note_written(chosen, (*passed, one))

    def _write(self, by: ChosenMemory, target: Storage, first: Storage, second: Storage) -> None:
        """Write to memory what one has where a condition is true, and another where it is false."""
        self.note_write(target)
        sides = ((first, True), (second, False))
        known = [[assumed(node, {by.condition: true}) for node in side.nodes] for side, true in sides]
        target.nodes[:] = [
            self.graph.operation("where", one.dtype, [by.condition, one, other], by.line)
            for one, other in zip(*known, strict=True)
        ]

    def lift(self, array: np.ndarray[Any, Any]) -> Whole:
        """Return an array of NumPy's, of which nothing tells where its axes lie, as a traced array."""
        lines = likely_lines(self.space, array) if self.has_inner else range(array.ndim)
        return lifted(self, array, lines)

    def new_line(self) -> int:
        """Return the number of a line that is along no axis of space yet, below 0."""
        return next(self.lines)

    def axes_of(self, shape: Shape) -> tuple[Axis, ...]:
        """Return the axes of a new array: along space where it is as long, from the first axis on."""
        steps = steps_of(shape, self.space, self.levels)
        along = [Along(axis, 0, step, n) for axis, (step, n) in enumerate(zip(steps, shape, strict=False))]
        return (*along, *(Inner(length) for length in shape[len(along) :]))

    def filled(self, shape: Any, value: Any, dtype: Any = None) -> Any:
        """Return numpy.full's result, as a traced array if it has an axis of space."""
        wanted = tuple(map(operator.index, (shape,) if isinstance(shape, (int, np.integer)) else shape))
        if isinstance(value, Timed):
            found = self.filled(shape, 0, np.asarray(value.sample).dtype if dtype is None else dtype)
            found[...] = value
            return found
        kind = np.asarray(value).dtype if dtype is None else np.dtype(dtype)
        axes = self.axes_of(wanted)
        if all(isinstance(axis, Inner) for axis in axes):
            return np.full(wanted, value, kind)
        node = self.graph.constant(np.asarray(value).astype(kind), kind)
        return made(self, axes, {}, np.full(inner_shape(axes), node, object), kind)

    def operand(self, value: Any, like: np.dtype[Any] | None = None) -> Whole:
        if isinstance(value, Whole):
            if value._recorder is not self:
                raise NotTraceable("keeps an array from one call to the next")
            return value
        if isinstance(value, Timed):
            nodes = nodes_of(self.graph, value, like)
            return made(self, tuple(Inner(n) for n in nodes.shape), {}, nodes, value.dtype_of(like))
        array = np.asarray(value).view(np.ndarray)
        if like is not None and not isinstance(value, (np.ndarray, np.generic)):
            array = array.astype(like)
        check_computable(array.dtype)
        plain = array
        if array.size > MOST_COMPONENTS:
            if array.tobytes() != array.ravel()[:1].tobytes() * array.size:
                traced = self.lift(array)
                traced._plain = plain
                return traced
            array = array.ravel()[:1].reshape((1,) * array.ndim)
        nodes = np.empty(array.shape, object)
        nodes.ravel()[:] = [self.graph.constant(element, array.dtype) for element in array.ravel()]
        traced = made(self, tuple(Inner(length) for length in array.shape), {}, nodes, array.dtype)
        traced._plain = plain if array.size > 1 else None
        return traced

    def aligned(self, operands: Sequence[Whole], *, to_first: bool = False) -> tuple[Alignment, list[Nodes]]:
        """Bring operands to the places of the first that has an axis; return the result's axes and their
        nodes.

        to_first: whether rows are brought to that of the first operand, rather than to one that moves.
        Raises NotTraceable if cells of one operand are needed far from those of another, ValueError as NumPy
        does.
        """
        axes = _same_axes(operands)
        if axes is not None:  # as of most operands: nothing is moved
            return Alignment([*axes]), [one.read() for one in operands]
        shape = np.broadcast_shapes(*(one.shape for one in operands))
        operands = [self._beside(one, operands) for one in operands]
        operands = _in_order(operands)
        nodes = with_one_list(self.graph, [(one._axes, one.read()) for one in operands])
        layout = Alignment()
        moves = [_Moves(one, mine) for one, mine in zip(operands, nodes, strict=True)]
        for back in range(len(shape), 0, -1):
            here = [(move, move.operand._axes[-back]) for move in moves if move.operand.ndim >= back]
            along = [(move, axis) for move, axis in here if isinstance(axis, Along)]
            listed = next((axis for _, axis in here if isinstance(axis, Listed)), None)
            if listed is not None:
                if not all(is_line(axis) for _, axis in along):
                    raise NotTraceable("combines points with an axis of a field")
                layout.axes.append(listed)
                continue
            if not along:
                layout.axes.append(Inner(shape[-back]))
                continue
            if any(isinstance(axis, Inner) and axis.length > 1 for _, axis in here):
                raise NotTraceable(
                    f"combines an axis of a field with an array of {shape[-back]} elements",
                    "np.arange and the like in the function, or an input of the function",
                )
            # An axis of space that a field has, before one of a line.
            long = [axis for _, axis in along if axis.length == shape[-back]]
            reference = next((axis for axis in long if axis.axis >= 0), long[0])
            if layout.has(reference.axis):
                raise NotTraceable(*OTHER_AXES)
            layout.axes.append(reference)
            for move, axis in along:
                move.along(axis, reference)
        fixed = [move for move in moves if move.operand._fixed]
        if not to_first:
            fixed.sort(
                key=lambda move: not any(isinstance(at, ItemRow) for at in move.operand._fixed.values())
            )
        for move in fixed:
            move.fix(layout)
        if layout.fixed:
            for move in moves:
                move.check(layout)
        return layout, [move.moved() for move in moves]

    def _beside(self, operand: Whole, others: Sequence[Whole]) -> Whole:
        """Return an array of NumPy's as it lies beside other operands: along points, or with lines."""
        array = operand._plain
        if array is None or operand.shape != array.shape:
            return operand
        if not any(other._axes for other in others if other is not operand):  # values, which lie nowhere
            return operand
        if any(isinstance(axis, Listed) for other in others for axis in other._axes):
            return _of_numpy(self, array) if array.size <= MOST_POINTS else operand
        lines = {
            operand.ndim - back
            for other in others
            for back in range(1, min(operand.ndim, other.ndim) + 1)
            if other is not operand and isinstance(other._axes[-back], Along) and other.shape[-back] > 1
        }
        mine = {number for number, axis in enumerate(operand._axes) if isinstance(axis, Along)}
        wanted = {axis for axis in lines if array.shape[axis] > 1}
        return operand if wanted == mine else lifted(self, array, wanted)

    def result(self, layout: Alignment, nodes: Nodes, dtype: np.dtype[Any]) -> Whole:
        if not layout.axes:
            return made_scalar(self, layout.fixed, nodes.ravel()[0])
        return made(self, layout.axes, layout.fixed, nodes.reshape(inner_shape(layout.axes)), dtype)


def inner_shape(axes: Sequence[Axis]) -> Shape:
    return tuple(axis.length for axis in axes if isinstance(axis, Inner))


def made(
    recorder: Tracing,
    axes: Sequence[Axis],
    fixed: Mapping[int, int],
    nodes: Nodes,
    dtype: np.dtype[Any],
    origin: int = -1,
) -> Whole:
    """Return a new array. nodes: an element for each of its inner axes, in order."""
    flat = list(nodes.ravel())
    if len(flat) > MOST_COMPONENTS:
        raise NotTraceable(
            f"computes with {len(flat)} elements for each cell",
            "np.zeros_like(field) + line for a line of numbers",
        )
    storage = Storage(flat, {axis.axis: axis for axis in axes if isinstance(axis, Along)}, origin)
    coarse = [number for number, one in storage.extents.items() if number >= 0 and one.step > 1]
    if coarse and len(coarse) == len(recorder.space):
        recorder.levels.add(tuple([storage.extents[axis].step for axis in range(len(coarse))]))
    cells = np.arange(len(flat)).reshape(nodes.shape)
    return Whole(recorder, storage, tuple(axes), dict(fixed), cells, dtype)


def made_scalar(recorder: Tracing, fixed: Mapping[int, int], node: Node) -> Scalar:
    """Return a NumPy scalar."""
    return Scalar(recorder, Storage([node], {}), (), dict(fixed), np.zeros((), int), node.dtype)


def lifted(recorder: Tracing, array: np.ndarray[Any, Any], lines: Collection[int]) -> Whole:
    """Return an array of NumPy's as a traced array. lines: the axes that are to be axes of space."""
    array = array.view(np.ndarray)
    axes: list[Axis] = [
        Along(recorder.new_line(), 0, 1, length) if axis in lines and length > 1 else Inner(length)
        for axis, length in enumerate(array.shape)
    ]
    along = [axis.axis for axis in axes if isinstance(axis, Along)]
    nodes = np.empty(inner_shape(axes), object)
    if nodes.size > MOST_COMPONENTS:
        raise NotTraceable(f"uses an array of shape {array.shape} whose axes are none of a field")
    for index in np.ndindex(nodes.shape):
        inner = iter(index)
        squeezed = tuple(slice(None) if isinstance(axis, Along) else next(inner) for axis in axes)
        part = array[squeezed]
        if along:
            root, starts = root_of(part)
            nodes[index] = recorder.graph.table(root, along, starts)
        else:
            nodes[index] = recorder.graph.constant(part, array.dtype)
    return made(recorder, axes, {}, nodes, array.dtype)


def likely_lines(space: Shape, array: np.ndarray[Any, Any]) -> list[int]:
    """Return which axes of an array are axes of space, if nothing tells: those that are long, or as long.

    Of a slice, the array that it is taken of counts.
    """
    array, _ = root_of(array)
    return [
        axis
        for axis, length in enumerate(array.shape)
        if length > MOST_COMPONENTS or any(abs(length - n) <= 1 for n in space)
    ]


def _of_numpy(recorder: Tracing, array: np.ndarray[Any, Any]) -> Whole:
    """Return an array of many elements, to be combined with a list of points only."""
    nodes = [recorder.graph.constant(element, array.dtype) for element in array.ravel()]
    cells = np.arange(array.size).reshape(array.shape)
    axes = tuple(Inner(length) for length in array.shape)
    return Whole(recorder, Storage(nodes, {}), axes, {}, cells, array.dtype)


class Whole(TracedArray):
    """A stand-in for a whole array.

    axes: of the array. fixed: positions along the axes of space at which one index was taken. cells: which of
    the storage's components its inner axes have.
    """

    MODULE = "np"
    KIND = "an array"
    FOREIGN = (
        "makes an array that NumPy fills from the cells of a field, or writes cells into one",
        "np.zeros(shape) or np.zeros_like(field) in the function for an array to write into",
    )
    PICKED = "slices, np.roll, or an index array of a few points for each axis, u[ys, xs]"
    FORMATTED = "a result of its own, with series=('name',) in the decorator and a file for it"
    _recorder: Tracing
    _storage: Storage
    _axes: tuple[Axis, ...]
    _fixed: dict[int, int]
    _cells: np.ndarray[Any, Any]
    _shape: Shape
    _plain: Any = None  # of an array of NumPy's: that array

    def __init__(
        self,
        recorder: Tracing,
        storage: Storage,
        axes: tuple[Axis, ...],
        fixed: dict[int, int],
        cells: np.ndarray[Any, Any],
        dtype: np.dtype[Any],
        part: str = "",
    ) -> None:
        check_computable(dtype)
        # Not through __setattr__, which is for users: there are thousands of views.
        own = vars(self)
        own["_recorder"], own["_storage"], own["_axes"] = recorder, storage, axes
        own["_fixed"], own["_cells"], own["dtype"], own["_part"] = fixed, cells, dtype, part
        own["_shape"] = tuple([axis.length for axis in axes])

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def flat(self) -> Any:
        raise NotTraceable("uses .flat of an array", "an index per axis")

    def is_cells(self, axis: int) -> bool:
        return not isinstance(self._axes[axis], Inner)

    def layout(self) -> Alignment:
        return Alignment(list(self._axes), self._fixed)

    def read(self) -> Nodes:
        # An axis of one node in place of each axis of cells.
        shape = [axis.length if isinstance(axis, Inner) else 1 for axis in self._axes]
        return self.seen(self._stored()).reshape(shape)

    def transposed(self, order: Shape) -> Whole:
        inner = [number for number, axis in enumerate(self._axes) if isinstance(axis, Inner)]
        moved = [inner.index(number) for number in order if number in inner]
        taken = tuple(self._axes[number] for number in order)
        cells = self._cells.transpose(moved)
        return Whole(self._recorder, self._storage, taken, self._fixed, cells, self.dtype, self._part)

    def part(self, name: str) -> Whole:
        kind = real_dtype(self.dtype)
        return Whole(self._recorder, self._storage, self._axes, self._fixed, self._cells, kind, name)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        return self._recorder.functions[np.reshape](self, shape[0] if len(shape) == 1 else shape, order)

    def copy(self, order: str = "C") -> Any:
        if self._axes or isinstance(self, Scalar):
            return self.new(self.read())
        return made(self._recorder, (), self._fixed, self.read(), self.dtype)

    def reduce_cells(self, name: str, axes: Sequence[int], dtype: Any, out: Any, keepdims: bool) -> Any:
        raise NotTraceable(f"reduces the cells of an array (numpy.{name})")

    def moved(self, nodes: Iterable[Node], shift: Shape) -> list[Node]:
        """Return values of this array's for the position that is `shift` ahead."""
        graph = self._recorder.graph
        # An array between stages has the positions of space, and no more.
        return graph.moved(nodes, shift) if self._is_within_space else graph.substituted(nodes, shift)

    @property
    def _is_within_space(self) -> bool:
        """Whether all cells of its memory are at positions of space."""
        space = self._recorder.space
        extents = [one for one in self._storage.extents.values() if one.axis >= 0]
        return all(one.first >= 0 and one.stop <= space[one.axis] for one in extents)

    def _of_cells(self) -> bool:
        """Return whether its values differ from cell to cell, or are one cell's."""
        return any(isinstance(axis, Along) for axis in self._axes) or bool(self._fixed)

    def __bool__(self) -> bool:
        if self._of_cells():
            hint = "np.where(condition, a, b), or & | ~"
            raise NotTraceable("decides by the value of a cell (if, while, and, or, not)", hint)
        hint = "an if statement in a function with def, or np.where(condition, a, b)"
        raise NotTraceable(f"decides by the value of a reduction {why_plain()}", hint)

    def _as_number(self) -> Any:
        what = "cells" if self._of_cells() else "a value of a reduction"
        hint = "np functions instead of those of math" if self._of_cells() else VALUE
        raise NotTraceable(f"converts {what} to a Python number", hint)

    __float__ = __int__ = __complex__ = __index__ = _as_number

    def untraced(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> NotTraceable:
        module = getattr(function, "__module__", None) or "numpy"
        of_numpy = module if module in ("numpy.fft", "numpy.linalg") else "numpy"
        return NotTraceable(f"uses {of_numpy}.{name}, which is not traced", HINTS.get(name, ANY_OTHER))

    # Places

    def __getitem__(self, index: Any) -> Any:
        """Return a view; of one element a copy, as NumPy does; of a mask, the cells that it picks."""
        if isinstance(index, Whole) and index.dtype == bool and index.ndim:
            return picked(*self._together((self, index)))
        if picks_points(index):
            if (rows := rows_of(self, index)) is not None:
                axis, indices = rows
                return np.stack([self[row] for row in indices], axis)
            target = self._at_points(index)
            return made(
                self._recorder, target._axes, {}, target.read().reshape(target._cells.shape), self.dtype
            )
        view = self.view(index)
        if view._axes or index is Ellipsis or (isinstance(index, tuple) and Ellipsis in index):
            return view
        fixed = {axis: at for axis, at in view._fixed.items() if axis >= 0}
        (node,) = self._recorder.graph.at_places(view.read().ravel(), view._fixed)
        return node.value if node.op == "constant" else made_scalar(self._recorder, fixed, node)

    def view(self, index: Any) -> Whole:
        """Return a view of the cells at an index, in all cases."""
        axes: list[Axis] = []
        inner: list[Any] = []
        fixed = dict(self._fixed)
        number = 0
        for item in self.full_index(index):
            # A new axis has one element, and none of space.
            if item is None:
                axes.append(Inner(1))
                inner.append(None)
                continue
            axis = self._axes[number]
            number += 1
            if isinstance(item, slice):
                first, last, step = item.indices(axis.length)
                length = len(range(first, last, step))
                if isinstance(axis, Listed):
                    if (first, step, length) != (0, 1, axis.length):
                        raise NotTraceable("takes part of the points of an array", "shorter index arrays")
                    axes.append(axis)
                    continue
                if isinstance(axis, Inner):
                    axes.append(Inner(length))
                    inner.append(item)
                    continue
                axes.append(axis.part(first, step, length))
                continue
            at = self._position(item, axis)
            if not -axis.length <= at < axis.length:
                what = f"index {at} is out of bounds for axis {number - 1} with size {axis.length}"
                raise IndexError(what)
            if isinstance(axis, Listed):
                raise NotTraceable(
                    "takes one of the points of an array", "a number for each axis of the field"
                )
            if isinstance(axis, Inner):
                inner.append(at)
            else:
                place = axis.first + axis.step * (at % axis.length)
                fixed[axis.axis] = ItemRow.of(place, *at.moves) if isinstance(at, ItemRow) else place
        cells = self._cells[tuple(inner)] if inner else self._cells
        view = np.asarray(cells)
        return Whole(self._recorder, self._storage, tuple(axes), fixed, view, self.dtype, self._part)

    def _integer(self, item: Any) -> Any:
        by_loop = isinstance(item, Timed) and self._recorder.item_rows is not None
        return item if by_loop else operator.index(item)

    def _position(self, item: Any, axis: Axis) -> int:
        """Return the index of one element along an axis."""
        rows = self._recorder.item_rows
        if isinstance(item, Timed) and isinstance(axis, Along) and axis.step == 1 and rows is not None:
            row: ItemRow | None = rows.position(item, axis.length)
            if row is not None:
                return row
        return operator.index(item)

    def __setitem__(self, index: Any, value: Any) -> None:
        recorder, graph = self._recorder, self._recorder.graph
        if recorder.spaces is not None:
            index, value = (recorder.spaces.brought(one, recorder) for one in (index, value))
        if isinstance(index, np.ndarray) and index.dtype == bool and index.size > 1:
            index = lifted(recorder, index, range(index.ndim))
        if isinstance(index, Whole) and index.dtype == bool:
            write_masked(self, index, value)
            return
        if picks_points(index) and (rows := rows_of(self, index)) is not None:
            self._write_rows(*rows, value)
            return
        target = self._at_points(index) if picks_points(index) else self.view(index)
        given = recorder.operand(value, self.dtype)
        # A view that is reversed is written in order, and what is written is reversed.
        for back in range(1, target.ndim + 1):
            axis = target._axes[-back]
            if isinstance(axis, Along) and axis.step < 0:
                turned = (Ellipsis, slice(None, None, -1), *[slice(None)] * (back - 1))
                target = target[turned]
                given = given[turned] if given.ndim >= back else given
        if not _fits(given.shape, target.shape):
            raise ValueError(
                f"could not broadcast input array from shape {given.shape} into shape {target.shape}"
            )
        layout, (_, nodes) = recorder.aligned([target, given], to_first=True)
        if tuple(layout.axes) != target._axes:
            raise NotTraceable("writes cells of a field into an array that has no axis of it")
        if given._is_within_space and not self._is_within_space:
            nodes = graph.kept(nodes)  # what moves with a longer array is read from one of space
        nodes = target.cast(nodes, self.dtype)
        # One element along axes of space; the others as the target's.
        shape = tuple([axis.length if isinstance(axis, Inner) else 1 for axis in target._axes])
        whole = nodes if nodes.shape == shape else np.broadcast_to(nodes, shape)
        line, storage = recorder.line(), self._storage
        recorder.note_write(storage)
        conditions = target._conditions()
        before = target._stored()
        after = self.merged(before, whole.reshape(before.shape))
        values = graph.written(after.ravel()) if conditions else after.ravel()
        for cell, old, new in zip(target._cells.ravel(), before.ravel(), values, strict=True):
            # Where a cell is written, what the same cells were before is needed by no result.
            known = dict.fromkeys(conditions, True)
            chosen = assumed(new, known)
            for condition in conditions:
                known[condition] = False
                kept = assumed(old, known)
                del known[condition]
                chosen = graph.operation("where", old.dtype, (condition, chosen, kept), line)
            storage.nodes[cell] = chosen
        recorder.note_written(storage)
        if not storage.changed:
            storage.changed, storage.line = True, line

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(one, Picked) for one in inputs):
            return NotImplemented  # what a condition picked stays so
        inputs = self._together(inputs)
        other = next((one for one in inputs if isinstance(one, Whole)), self)
        if other._recorder is not self._recorder:  # of a space of its own
            return other.__array_ufunc__(ufunc, method, *inputs, **options)
        if method == "at" and inputs[0] is self:
            return accumulated(ufunc, *inputs)
        return super().__array_ufunc__(ufunc, method, *inputs, **options)

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        args, kwargs = self._together((tuple(args), kwargs))
        return super().__array_function__(function, kinds, args, kwargs)

    def _together(self, values: Any) -> Any:
        """Return what a function is called with, all arrays of it in one space."""
        spaces = self._recorder.spaces
        return values if spaces is None else spaces.together(values)

    def _write_rows(self, axis: int, indices: Sequence[tuple[Any, ...]], value: Any) -> None:
        """Write rows that an index array picks, in its order. axis: along which they are."""
        # The right side is read before a row is written; a number stays as Python has it.
        given: Any = value if isinstance(value, TracedArray) or np.ndim(value) == 0 else np.asarray(value)
        given = given.copy() if np.ndim(given) else given
        ndim, back = np.ndim(given), self.ndim - axis
        shape = self[indices[0]].shape
        shape = (*shape[:axis], len(indices), *shape[axis:])
        if not _fits(np.shape(given), shape):
            raise ValueError(f"could not broadcast input array from shape {given.shape} into shape {shape}")
        for number, row in enumerate(indices):
            if ndim < back:
                self[row] = given
                continue
            own = number if given.shape[-back] > 1 else 0
            part = (Ellipsis, own, *[slice(None)] * (back - 1))
            self[row] = given[part]

    def _at_points(self, index: Any) -> Whole:
        """Return the array's memory at a list of points."""
        chosen = read_index(self, index)
        cells = np.asarray(self._cells[chosen.inner])
        axes: list[Axis] = [Inner(length) for length in cells.shape]
        axes[chosen.at : chosen.at] = listed_axes(self._recorder.graph, chosen)
        return Whole(self._recorder, self._storage, tuple(axes), {}, cells, self.dtype, self._part)

    def _stored(self) -> Nodes:
        """Return the nodes of the storage: one for each element of the inner axes."""
        nodes = np.empty(self._cells.shape, object)
        nodes.ravel()[:] = [self._storage.nodes[cell] for cell in self._cells.ravel()]
        return nodes

    def _conditions(self) -> list[Node]:
        """Return the conditions on the position under which a view has cells; none if it is all of it."""
        listed = next((axis.points for axis in self._axes if isinstance(axis, Listed)), None)
        if listed is not None and self._storage.extents:
            return [self._recorder.graph.point(listed, (0,) * len(self._recorder.space))]
        mine = {axis.axis: axis for axis in self._axes if isinstance(axis, Along)}
        mine |= {axis: Along(axis, at, 1, 1) for axis, at in self._fixed.items()}
        graph, found = self._recorder.graph, []
        for number, extent in self._storage.extents.items():
            part = mine[number]
            if part.length == 0:
                found.append(graph.constant(False, np.dtype(bool)))
            elif part.forward != extent:
                found.append(graph.inside(number, part.forward.first, part.forward.stop, abs(part.step)))
        return found


class Scalar(Whole):
    """A stand-in for a NumPy scalar, or for a Python number that depends on cells: it cannot be changed."""

    def _replaced(self, other: Any) -> Any:
        return NotImplemented  # so that Python makes a new one

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _replaced
    __ipow__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = __imatmul__ = _replaced

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(f"'numpy.{self.dtype.name}' object does not support item assignment")

    item = Whole._as_number


class ArrayOrScalar(Scalar):
    """A stand-in for what is an array of shape () or a NumPy scalar: which one, a condition decides."""

    def _replaced(self, other: Any) -> Any:
        raise NotTraceable(
            "changes in place what is an array of shape () or, after a loop or a condition, a number",
            "t = t + 1 in place of t += 1",
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _replaced
    __ipow__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = __imatmul__ = _replaced

    def __setitem__(self, index: Any, value: Any) -> None:
        self._replaced(value)


def _fits(shape: Shape, target: Shape) -> bool:
    """Return whether an array of a shape can be written to a target of another."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _same_axes(operands: Sequence[Whole]) -> tuple[Axis, ...] | None:
    """Return the axes of operands that are along the same cells of space, or are values; else None."""
    axes = next((one._axes for one in operands if one._axes), ())
    if not all(one._axes in (axes, ()) and not one._fixed and one._plain is None for one in operands):
        return None
    along = {axis.axis for axis in axes if isinstance(axis, Along)}
    return axes if len(along) == len(axes) else None


def _in_order(operands: Sequence[Whole]) -> Sequence[Whole]:
    """Return operands that have no axis of few cells reversed, if others of them have it in order."""
    found = list(operands)
    if all(axis.step > 0 for one in found for axis in one._axes if isinstance(axis, Along)):
        return found
    for back in range(1, max(one.ndim for one in operands) + 1):
        axes = [one._axes[-back] if one.ndim >= back else Inner(1) for one in found]
        steps = {axis.step > 0 for axis in axes if isinstance(axis, Along) and axis.length > 1}
        if len(steps) < 2:
            continue
        for number, axis in enumerate(axes):
            if isinstance(axis, Along) and axis.step < 0 and axis.length > 1:
                found[number] = _turned(found[number], back, axis)
    return found


def forward(array: Whole, refusal: tuple[str, str]) -> Whole:
    """Return an array whose elements are at increasing positions: itself, or a copy of it.

    refusal: of an axis of many cells that is reversed, what the function does and a hint.
    """
    for back, axis in enumerate(reversed(array._axes), 1):
        if isinstance(axis, Along) and axis.step < 0 and axis.length > 1:
            array = _turned(array, back, axis, refusal)
    return array


def _turned(array: Whole, back: int, axis: Along, refusal: tuple[str, str] = MIRRORED) -> Whole:
    """Return a copy whose elements along a reversed axis of few cells are at increasing positions."""
    if axis.length > MOST_REVERSED:
        raise NotTraceable(*refusal)
    axes = list(array._axes)
    axes[-back] = axis.forward
    zero = array._recorder.graph.constant(np.zeros((), array.dtype), array.dtype)
    copied = made(array._recorder, axes, array._fixed, np.full(inner_shape(axes), zero, object), array.dtype)
    for at in range(axis.length):
        row = (Ellipsis, slice(at, at + 1), *[slice(None)] * (back - 1))
        copied[row] = array[row]
    return copied


class _Moves:
    """How an operand is brought to the places of a result.

    nodes: of the operand, for the result's list of points. shift: positions ahead, per axis of space. names:
    of its lines, how they meet the axes that they are along in the result.
    """

    def __init__(self, operand: Whole, nodes: Nodes) -> None:
        self.operand, self.nodes = operand, nodes
        self.shift = [0] * len(operand._recorder.space)
        self.names: dict[int, Line] = {}

    def varies(self, axis: int) -> bool:
        return self.operand._recorder.graph.varies(self.nodes.ravel(), axis)

    def along(self, axis: Along, reference: Along) -> None:
        """Bring one axis to the places of the result's."""
        if axis.axis >= 0 and axis.length == 1 and reference.length > 1:
            if self.varies(axis.axis):
                raise NotTraceable(*ONE_ROW)
            return
        if axis.axis < 0:
            if axis != reference:
                at = reference.axis, axis.first, axis.step, reference.first, reference.step
                self.names[axis.axis] = Line(*at, axis.length)
            return
        if axis.step != reference.step and axis.length > 1:
            raise NotTraceable(EVERY_SECOND)
        if axis.axis != reference.axis:
            raise NotTraceable(*OTHER_AXES)
        else:
            self.shift[axis.axis] = axis.first - reference.first

    def fix(self, layout: Alignment) -> None:
        """Bring positions at which one index was taken to the result's, which gets those that it lacks."""
        fixed = self.operand._fixed
        lacking = [axis for axis in fixed if axis not in layout.fixed and layout.has(axis)]
        if any(map(self.varies, lacking)):
            if any(isinstance(axis, Along) for axis in self.operand._axes):
                raise NotTraceable(*ONE_ROW)
            self.nodes = taken(self.operand)  # one cell with all cells
            return
        for axis, at in fixed.items():
            if axis in layout.fixed:
                if move_together(at, layout.fixed[axis]):
                    self.shift[axis] = at - layout.fixed[axis]
                elif self.varies(axis):
                    self.nodes = one_row(self.operand._recorder, self.nodes, axis, at)
            elif not layout.has(axis):
                layout.fixed[axis] = at

    def check(self, layout: Alignment) -> None:
        """Refuse an operand without an axis along which the result has a position, if it varies along it."""
        has = {axis.axis for axis in self.operand._axes if isinstance(axis, Along)} | set(self.operand._fixed)
        if any(self.varies(axis) for axis in set(layout.fixed) - has):
            raise NotTraceable("combines cells of different places")

    def moved(self) -> Nodes:
        if not self.names and not any(self.shift):
            return self.nodes
        graph = self.operand._recorder.graph
        nodes = np.empty(self.nodes.shape, object)
        renamed = graph.renamed(self.nodes.ravel(), self.names)
        nodes.ravel()[:] = self.operand.moved(renamed, tuple(self.shift))
        return nodes


def one_row(recorder: Tracing, nodes: Nodes, axis: int, at: int) -> Nodes:
    """Return the values at one position along an axis as values that all positions along it share."""
    graph, space, line = recorder.graph, recorder.space, recorder.line()
    condition = graph.inside(axis, at, at + 1)
    zero, ones = (0,) * len(space), (1,) * len(space)

    def of(node: Node) -> Node:
        kind = node.dtype
        if kind.kind == "c":
            real = real_dtype(kind)
            parts = [of(graph.operation(part, real, [node], line)) for part in ("real", "imag")]
            return graph.operation("complex", kind, parts, line)
        if kind.kind == "b":
            small = graph.operation("cast", np.dtype(np.uint8), [node], line)
            return graph.operation("cast", kind, [of(small)], line)
        lowest = graph.constant(-np.inf if kind.kind == "f" else np.iinfo(kind).min, kind)
        cell = graph.operation("where", kind, [condition, node, lowest], line)
        return graph.reduced_array(Reduction("maximum", (cell,), kind, zero, ones, space, (axis,), line))

    found = np.empty(nodes.shape, object)
    for place, node in np.ndenumerate(nodes):
        found[place] = of(node) if graph.varies([node], axis) else node
    return found


def taken(operand: Whole) -> Nodes:
    """Return the nodes of an array that is one cell, as values that all cells share."""
    recorder, nodes = operand._recorder, operand.read()
    graph, count = recorder.graph, len(recorder.space)
    at = tuple(operand._fixed.get(axis, 0) for axis in range(count))
    ones, axes, line = (1,) * count, tuple(range(count)), recorder.line()
    # A place beyond the fields, of a longer array, becomes the first one.
    first = tuple(place if 0 <= place < n else 0 for place, n in zip(at, recorder.space, strict=True))
    shift = tuple(a - b for a, b in zip(at, first, strict=True))
    for place, node in np.ndenumerate(nodes):
        if any(graph.varies([node], axis) for axis in operand._fixed):
            (cell_node,) = graph.substituted([node], shift)
            kind, cells = real_dtype(node.dtype), [cell_node]
            if node.dtype.kind == "c":
                cells = [graph.operation(part, kind, cells, line) for part in ("real", "imag")]
            values = [
                graph.value(Reduction("take", (one,), kind, first, ones, ones, axes, line), kind)
                for one in cells
            ]
            is_complex = node.dtype.kind == "c"
            nodes[place] = graph.operation("complex", node.dtype, values, line) if is_complex else values[0]
    return nodes
