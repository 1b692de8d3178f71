"""Stand-ins for the whole arrays of a function, which record what it does to them.

A traced array is a view of a storage. Each of its axes is an axis of space, along which all cells are
computed alike and element 0 has a place; or an inner axis, of which each element has nodes of its own. A view
that took one index along an axis of space has that axis fixed at a position.
"""

from __future__ import annotations

import inspect
import operator
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.timed import StepTape, Timed, as_compared, nodes_of
from meshrun.runner.compiler.trace.trace import (
    COMPARISONS,
    MOST_COMPONENTS,
    MOST_NODES,
    UFUNCS,
    NotTraceable,
    fast_power,
    weak_dtype,
    within_range,
)
from meshrun.runner.compiler.whole.graph import EVERY_SECOND, WholeGraph
from meshrun.runner.compiler.whole.tables import Line, root_of
from meshrun.runner.region import Shape

ONE_ROW = "combines one row of an array with all rows of another"
OTHER_AXES = "combines different axes of arrays"


@dataclass(frozen=True)
class Along:
    """An axis of an array that is an axis of space.

    axis: of space; below 0: of a line that no field has been combined with yet. first: position of element 0.
    step: positions from one element to the next. length: number of elements.
    """

    axis: int
    first: int
    step: int
    length: int

    @property
    def stop(self) -> int:
        """The position after the last element's."""
        return self.first + self.step * (self.length - 1) + 1

    def part(self, first: int, step: int, length: int) -> Along:
        """Return every `step`-th element from `first` on."""
        return Along(self.axis, self.first + self.step * first, self.step * step, length)


@dataclass(frozen=True)
class Inner:
    """An axis of an array that is no axis of space."""

    length: int


Axis = Along | Inner


class Storage:
    """Memory that traced arrays share.

    nodes: per component, in C order of the inner axes. extents: the axes of space that it has. origin: of an
    input, its number; -1: made by the function. changed: whether the function has written to it.
    """

    def __init__(self, nodes: list[Node], extents: Mapping[int, Along], origin: int = -1) -> None:
        self.nodes, self.extents, self.origin, self.changed = nodes, dict(extents), origin, False


class Tracing:
    """One call of the function: its graph and the lengths of space.

    functions: NumPy's functions, and what computes each of them on traced arrays. tape: what is computed of
    the step's number and of tables in time.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        graph: WholeGraph,
        space: Shape,
        functions: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.graph, self.space, self.functions = graph, space, functions
        self._file = code.co_filename if isinstance(code, types.CodeType) else ""
        self._lines = 0
        self.tape = StepTape(self._file, lift=self.lift)

    def lift(self, array: np.ndarray[Any, Any]) -> Whole:
        """Return an array of NumPy's that is combined with a number of the step as a traced array."""
        return lifted(self, array, likely_lines(self.space, array))

    def line(self) -> int:
        """Return the line of the user's file that runs now; 0 if unknown."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def new_line(self) -> int:
        """Return the number of a line that is along no axis of space yet, below 0."""
        self._lines -= 1
        return self._lines

    def axes_of(self, shape: Shape) -> tuple[Axis, ...]:
        """Return the axes of a new array: along space where it is as long, from the first axis on."""
        axes: list[Axis] = []
        for number, length in enumerate(shape):
            along = number < len(self.space) and abs(length - self.space[number]) <= 1 and len(axes) == number
            axes.append(Along(number, 0, 1, length) if along else Inner(length))
        if not any(isinstance(axis, Along) for axis in axes):
            return tuple(Inner(length) for length in shape)
        return tuple(axes)

    def filled(self, shape: Any, value: Any, dtype: Any) -> Any:
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


def inner_shape(axes: Sequence[Axis]) -> Shape:
    return tuple(axis.length for axis in axes if isinstance(axis, Inner))


def made(
    recorder: Tracing,
    axes: Sequence[Axis],
    fixed: Mapping[int, int],
    nodes: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
    origin: int = -1,
) -> Whole:
    """Return a new array. nodes: an element for each of its inner axes, in order."""
    flat = list(nodes.ravel())
    if len(flat) > MOST_COMPONENTS:
        raise NotTraceable(f"computes with {len(flat)} elements for each cell")
    storage = Storage(flat, {axis.axis: axis for axis in axes if isinstance(axis, Along)}, origin)
    cells = np.arange(len(flat)).reshape(nodes.shape)
    return Whole(recorder, storage, tuple(axes), dict(fixed), cells, dtype)


class Whole(NDArrayOperatorsMixin):
    """A stand-in for a whole array.

    axes: of the array. fixed: positions along the axes of space at which one index was taken. cells: which of
    the storage's components its inner axes have.
    """

    __array_priority__ = 1000.0
    _plain: Any = None  # of an array of NumPy's: that array

    def __init__(
        self,
        recorder: Tracing,
        storage: Storage,
        axes: tuple[Axis, ...],
        fixed: dict[int, int],
        cells: np.ndarray[Any, Any],
        dtype: np.dtype[Any],
    ) -> None:
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
            raise NotTraceable(f"computes in {dtype.str if dtype.kind in 'biuf' else dtype}")
        self._recorder, self._storage, self._axes = recorder, storage, axes
        self._fixed, self._cells, self.dtype = fixed, cells, dtype

    # What NumPy's arrays have

    @property
    def shape(self) -> Shape:
        return tuple(axis.length for axis in self._axes)

    @property
    def ndim(self) -> int:
        return len(self._axes)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Whole:  # NumPy's name
        return self.transpose()

    @property
    def flat(self) -> Any:
        raise NotTraceable("uses .flat of an array", "an index per axis")

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        if isinstance(self._axes[0], Along):
            raise NotTraceable("iterates over the cells of an array", "slices instead of a loop over cells")
        return (self[number] for number in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise NotTraceable(
            "decides by the value of a cell (if, while, and, or, not)", "np.where(condition, a, b), or & | ~"
        )

    def _as_number(self) -> Any:
        raise NotTraceable("converts a cell to a Python number", "NumPy's functions instead of those of math")

    __float__ = __int__ = __complex__ = __index__ = _as_number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise NotTraceable("makes an array that NumPy fills from the cells of a field")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(np.ndarray, name) and callable(getattr(np, name, None)):
            return partial(getattr(np, name), self)
        raise NotTraceable(f"uses .{name} of an array, which is not traced")

    def copy(self, order: str = "C") -> Whole:
        return self._new(self.read(), self.dtype)

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> Whole:
        kind = np.dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        if casting != "unsafe":
            raise NotTraceable("uses casting= of astype")
        return self._new(self.cast(self.read(), kind), kind)

    def transpose(self, *axes: Any) -> Whole:
        if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)):
            axes = tuple(axes[0]) if axes[0] is not None else ()
        order = tuple(axis % self.ndim for axis in axes) or tuple(reversed(range(self.ndim)))
        inner = [number for number, axis in enumerate(self._axes) if isinstance(axis, Inner)]
        moved = [inner.index(number) for number in order if number in inner]
        taken = tuple(self._axes[number] for number in order)
        cells = self._cells.transpose(moved)
        return Whole(self._recorder, self._storage, taken, self._fixed, cells, self.dtype)

    def fill(self, value: Any) -> None:
        self[...] = value

    def __pow__(self, exponent: Any) -> Any:
        fast = fast_power(self.dtype, exponent)
        return np.power(self, exponent) if fast is None else fast(self)

    def __ipow__(self, exponent: Any) -> Any:
        self[...] = self**exponent
        return self

    # Places

    def __getitem__(self, index: Any) -> Whole:
        axes: list[Axis] = []
        inner: list[Any] = []
        fixed = dict(self._fixed)
        number = 0
        for item in full_index(index, self.ndim):
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
                if isinstance(axis, Inner):
                    axes.append(Inner(length))
                    inner.append(item)
                    continue
                if step < 0:
                    raise NotTraceable("reverses an axis of an array")
                axes.append(axis.part(first, step, length))
                continue
            at = operator.index(item)
            if not -axis.length <= at < axis.length:
                what = f"index {at} is out of bounds for axis {number - 1} with size {axis.length}"
                raise IndexError(what)
            if isinstance(axis, Inner):
                inner.append(at)
            else:
                fixed[axis.axis] = axis.first + axis.step * (at % axis.length)
        cells = self._cells[tuple(inner)] if inner else self._cells
        return Whole(self._recorder, self._storage, tuple(axes), fixed, np.asarray(cells), self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        recorder, graph = self._recorder, self._recorder.graph
        if isinstance(index, np.ndarray) and index.dtype == bool and index.size > 1:
            index = lifted(recorder, index, range(index.ndim))
        if isinstance(index, Whole) and index.dtype == bool:
            _write_masked(self, index, value)
            return
        target = self[index]
        given = as_operand(recorder, value, self.dtype)
        if not _fits(given.shape, target.shape):
            raise ValueError(
                f"could not broadcast input array from shape {given.shape} into shape {target.shape}"
            )
        layout, (_, nodes) = aligned([target, given])
        if tuple(layout.axes) != target._axes:
            raise NotTraceable("writes cells of a field into an array that has no axis of it")
        nodes = target.cast(nodes, self.dtype)
        # One element along axes of space; the others as the target's.
        whole = np.broadcast_to(nodes, tuple(1 if isinstance(a, Along) else a.length for a in target._axes))
        line, storage = recorder.line(), self._storage
        conditions = target._conditions()
        for cell, node in zip(target._cells.ravel(), whole.ravel(), strict=True):
            chosen, old = node, storage.nodes[cell]
            for condition in conditions:
                chosen = graph.where(condition, chosen, old, line)
            storage.nodes[cell] = chosen
        storage.changed = True

    def _conditions(self) -> list[Node]:
        """Return the conditions on the position under which a view has cells; none if it is all of it."""
        mine = {axis.axis: axis for axis in self._axes if isinstance(axis, Along)}
        mine |= {axis: Along(axis, at, 1, 1) for axis, at in self._fixed.items()}
        graph, found = self._recorder.graph, []
        for number, extent in self._storage.extents.items():
            part = mine[number]
            if part.length == 0:
                found.append(graph.constant(False, np.dtype(bool)))
            elif part != extent:
                found.append(graph.inside(number, part.first, part.stop, part.step))
        return found

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise NotTraceable(f"uses numpy.{name}, which is not traced")
        for name in options.keys() - {"where", "out", "dtype"}:
            raise NotTraceable(f"uses {name}= of numpy.{ufunc.__name__}")
        (out,) = options.get("out") or (None,)
        result = elementwise(self._recorder, ufunc, inputs, options.get("dtype"))
        return stored(result, out, options.get("where", True))

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        known = self._recorder.functions.get(function)
        if known is None:
            raise NotTraceable(f"uses numpy.{function.__name__}, which is not traced")
        return known(*args, **kwargs)

    # Within this package

    def read(self) -> np.ndarray[Any, Any]:
        """Return the nodes: one element along axes of space."""
        nodes = np.empty(self._cells.shape, object)
        nodes.ravel()[:] = [self._storage.nodes[cell] for cell in self._cells.ravel()]
        places = tuple(number for number, axis in enumerate(self._axes) if isinstance(axis, Along))
        return np.expand_dims(nodes, places) if places else nodes

    def cast(self, nodes: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return each(self._recorder, "cast", dtype, nodes)

    def _new(self, nodes: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Whole:
        """Return a new array with these axes. nodes: as `read` returns them."""
        inner = nodes.reshape(inner_shape(self._axes))
        return made(self._recorder, self._axes, self._fixed, inner, dtype)


def _fits(shape: Shape, target: Shape) -> bool:
    """Return whether an array of a shape can be written to a target of another."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def full_index(index: Any, ndim: int) -> list[Any]:
    """Return an index for each axis, and None for each new axis. Raises NotTraceable for arrays."""
    found: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        if item is Ellipsis or item is None or isinstance(item, slice):
            found.append(item)
        elif isinstance(item, (bool, np.bool_, np.ndarray, Whole, list)) or not hasattr(item, "__index__"):
            raise NotTraceable("picks cells by an array or a condition", "np.where(condition, a, b)")
        else:
            found.append(operator.index(item))
    count = sum(item is not None and item is not Ellipsis for item in found)
    if count > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {count} were indexed")
    if not any(item is Ellipsis for item in found):
        found.append(Ellipsis)
    at = next(number for number, item in enumerate(found) if item is Ellipsis)
    return found[:at] + [slice(None)] * (ndim - count) + found[at + 1 :]


def as_operand(recorder: Tracing, value: Any, like: np.dtype[Any] | None = None) -> Whole:
    """Return `value` as a traced array. like: dtype for a Python number, of the array it is written to."""
    if isinstance(value, Whole):
        if value._recorder is not recorder:
            raise NotTraceable("keeps an array from one call to the next")
        return value
    if isinstance(value, Timed):
        nodes = nodes_of(recorder.graph, value, like)
        kind = np.asarray(value.sample).dtype if like is None else like
        return made(recorder, tuple(Inner(length) for length in nodes.shape), {}, nodes, kind)
    array = np.asarray(value)
    if like is not None and not isinstance(value, (np.ndarray, np.generic)):
        array = array.astype(like)
    if array.dtype.kind not in "biuf":
        raise NotTraceable(f"computes with {array.dtype}")
    plain = array
    if array.size > MOST_COMPONENTS:
        if array.tobytes() != array.ravel()[:1].tobytes() * array.size:
            found = lifted(recorder, array, likely_lines(recorder.space, array))
            found._plain = plain
            return found
        array = array.ravel()[:1].reshape((1,) * array.ndim)
    nodes = np.empty(array.shape, object)
    for place, element in np.ndenumerate(array):
        nodes[place] = recorder.graph.constant(element, array.dtype)
    found = made(recorder, tuple(Inner(length) for length in array.shape), {}, nodes, array.dtype)
    found._plain = plain if array.size > 1 else None
    return found


def lifted(recorder: Tracing, array: np.ndarray[Any, Any], lines: Collection[int]) -> Whole:
    """Return an array of NumPy's as a traced array. lines: the axes that are to be axes of space."""
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
    """Return which axes of an array are axes of space, if nothing tells: those that are long, or as long."""
    return [
        axis
        for axis, length in enumerate(array.shape)
        if length > MOST_COMPONENTS or any(abs(length - n) <= 1 for n in space)
    ]


def _as_lines(operand: Whole, others: Sequence[Whole]) -> Whole:
    """Return an array of NumPy's with lines along the axes where other operands have axes of space."""
    if operand._plain is None:
        return operand
    lines = {
        operand.ndim - back
        for other in others
        for back in range(1, min(operand.ndim, other.ndim) + 1)
        if other is not operand and isinstance(other._axes[-back], Along) and other._axes[-back].length > 1
    }
    mine = {number for number, axis in enumerate(operand._axes) if isinstance(axis, Along)}
    array = operand._plain
    wanted = {axis for axis in lines if array.shape[axis] > 1}
    return (
        operand
        if wanted == mine or operand.shape != array.shape
        else lifted(operand._recorder, array, wanted)
    )


@dataclass
class Alignment:
    """Axes and fixed positions of a result."""

    axes: list[Axis] = field(default_factory=list)
    fixed: dict[int, int] = field(default_factory=dict)

    def has(self, axis: int) -> bool:
        """Return whether an axis of space is one of the axes."""
        return any(isinstance(one, Along) and one.axis == axis for one in self.axes)


class _Moves:
    """How an operand is brought to the places of a result.

    nodes: of the operand. shift: positions ahead, per axis of space. names: of its lines, how they meet the
    axes that they are along in the result.
    """

    def __init__(self, operand: Whole) -> None:
        self.operand, self.nodes = operand, operand.read()
        self.shift = [0] * len(operand._recorder.space)
        self.names: dict[int, Line] = {}

    def varies(self, axis: int) -> bool:
        return self.operand._recorder.graph.varies(self.nodes.ravel(), axis)

    def along(self, axis: Along, reference: Along) -> None:
        """Bring one axis to the places of the result's."""
        if axis.axis >= 0 and axis.length == 1 and reference.length > 1:
            if self.varies(axis.axis):
                raise NotTraceable(ONE_ROW)
            return
        if axis.axis < 0:
            if axis != reference:
                at = reference.axis, axis.first, axis.step, reference.first, reference.step
                self.names[axis.axis] = Line(*at, axis.length)
            return
        if axis.step != reference.step and axis.length > 1:
            raise NotTraceable(EVERY_SECOND)
        if axis.axis != reference.axis:
            raise NotTraceable(OTHER_AXES)
        else:
            self.shift[axis.axis] = axis.first - reference.first

    def fix(self, layout: Alignment) -> None:
        """Bring positions at which one index was taken to the result's, which gets those that it lacks."""
        for axis, at in self.operand._fixed.items():
            if axis in layout.fixed:
                self.shift[axis] = at - layout.fixed[axis]
            elif not layout.has(axis):
                layout.fixed[axis] = at
            elif self.varies(axis):
                raise NotTraceable(ONE_ROW)

    def check(self, layout: Alignment) -> None:
        """Refuse an operand without an axis along which the result has a position, if it varies along it."""
        has = {axis.axis for axis in self.operand._axes if isinstance(axis, Along)} | set(self.operand._fixed)
        if any(self.varies(axis) for axis in set(layout.fixed) - has):
            raise NotTraceable("combines cells of different places")

    def moved(self) -> np.ndarray[Any, Any]:
        graph = self.operand._recorder.graph
        nodes = np.empty(self.nodes.shape, object)
        renamed = graph.renamed(self.nodes.ravel(), self.names)
        nodes.ravel()[:] = graph.moved(renamed, tuple(self.shift))
        return nodes


def aligned(operands: Sequence[Whole]) -> tuple[Alignment, list[np.ndarray[Any, Any]]]:
    """Bring operands to the places of the first that has an axis; return the result's axes and their nodes.

    Raises NotTraceable if cells of one operand are needed far from those of another, ValueError as NumPy
    does.
    """
    shape = np.broadcast_shapes(*(one.shape for one in operands))
    operands = [_as_lines(one, operands) for one in operands]
    layout, moves = Alignment(), [_Moves(one) for one in operands]
    for back in range(len(shape), 0, -1):
        here = [(move, move.operand._axes[-back]) for move in moves if move.operand.ndim >= back]
        along = [(move, axis) for move, axis in here if isinstance(axis, Along)]
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
            raise NotTraceable(OTHER_AXES)
        layout.axes.append(reference)
        for move, axis in along:
            move.along(axis, reference)
    for move in moves:
        move.fix(layout)
    for move in moves:
        move.check(layout)
    return layout, [move.moved() for move in moves]


def each(
    recorder: Tracing, op: str, dtype: np.dtype[Any], *operands: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the nodes of an elementwise operation on arrays of nodes, which are broadcast."""
    line = recorder.line()
    every = np.broadcast_arrays(*operands)
    found = np.empty(every[0].shape, object)
    for place in np.ndindex(found.shape):
        nodes = [one[place] for one in every]
        if op == "where":
            found[place] = recorder.graph.where(nodes[0], nodes[1], nodes[2], line)
        else:
            found[place] = recorder.graph.operation(op, dtype, nodes, line)
    if len(recorder.graph._nodes) > MOST_NODES:
        raise NotTraceable(f"does more than {MOST_NODES} operations for each cell")
    return found


def result_of(
    recorder: Tracing, layout: Alignment, nodes: np.ndarray[Any, Any], dtype: np.dtype[Any]
) -> Whole:
    """Return a new array. nodes: one element along axes of space."""
    return made(recorder, layout.axes, layout.fixed, nodes.reshape(inner_shape(layout.axes)), dtype)


def elementwise(recorder: Tracing, ufunc: Any, inputs: Sequence[Any], dtype: Any = None) -> Whole:
    """Record one call of a ufunc: its loop's dtypes are NumPy's."""
    if ufunc.__name__ in COMPARISONS and dtype is None:
        inputs = within_range(inputs, Whole)
    fixed = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
    weak = list(map(_weak_of, inputs))
    if ufunc.__name__ in COMPARISONS and dtype is None:
        weak = as_compared(inputs, weak)
    kinds = ufunc.resolve_dtypes((*weak, None), **fixed)
    if any(kind.kind not in "biuf" or kind.itemsize > 8 for kind in kinds):
        raise NotTraceable(f"computes in {kinds[-1]}")
    values = []
    for value, kind in zip(inputs, kinds, strict=False):
        if isinstance(value, Timed):
            values.append(as_operand(recorder, value, kind))
            continue
        typed = isinstance(value, (Whole, np.ndarray, np.generic))
        values.append(as_operand(recorder, value if typed else kind.type(value)))
    if ufunc.__name__ == "reciprocal" and kinds[-1].kind != "f":
        raise NotTraceable("divides integers by numpy.reciprocal", "1 / x")
    if ufunc.__name__ == "power" and kinds[-1].kind in "iu":
        for node in values[1].read().ravel():
            if node.op != "constant":
                raise NotTraceable("raises integers to a power that is not constant")
            if node.value < 0:
                raise ValueError("Integers to negative integer powers are not allowed.")
    layout, nodes = aligned(values)
    operands = [one.cast(array, kind) for one, array, kind in zip(values, nodes, kinds, strict=False)]
    return result_of(recorder, layout, each(recorder, ufunc.__name__, kinds[-1], *operands), kinds[-1])


def _weak_of(value: Any) -> Any:
    return value.dtype if isinstance(value, Whole) else weak_dtype(value)


def stored(result: Whole, out: Any, where: Any = True) -> Any:
    """Return `out` with the result in it, or the result. where: of a ufunc."""
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        if where is not True:
            raise NotTraceable("uses where= without out=", "np.where(condition, a, b)")
        return result
    if not isinstance(out, Whole):
        raise NotTraceable("writes into an array that NumPy made outside of the function")
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast ufunc output from {result.dtype} to {out.dtype} with casting rule 'same_kind'"
        )
    out[...] = result if where is True else choose(where, result.astype(out.dtype, copy=False), out)
    return out


def choose(condition: Any, *given: Any) -> Whole:
    """Record numpy.where(condition, a, b)."""
    if len(given) != 2:
        raise NotTraceable("looks for cells by numpy.where(condition)", "np.where(condition, a, b)")
    recorder = next(one._recorder for one in (condition, *given) if isinstance(one, Whole))
    values = tuple(v.sample if isinstance(v, Timed) else v for v in given)
    weak = [np.empty(0, v.dtype) if isinstance(v, (Whole, np.ndarray)) else v for v in values]
    kind = np.result_type(*weak)
    operands = [as_operand(recorder, condition)]
    operands += [as_operand(recorder, v, kind if isinstance(v, Timed) else None) for v in given]
    layout, nodes = aligned(operands)
    chosen = operands[0].cast(nodes[0], np.dtype(bool))
    typed = [one.cast(array, kind) for one, array in zip(operands[1:], nodes[1:], strict=True)]
    return result_of(recorder, layout, each(recorder, "where", kind, chosen, *typed), kind)


def _write_masked(array: Whole, mask: Whole, value: Any) -> None:
    """a[mask] = value, with a number or what has one value for every cell."""
    if (isinstance(value, Whole) and value.ndim) or (np.ndim(value) > 0 and np.size(value) > 1):
        raise NotTraceable("writes an array to the cells that a condition picks", "np.where(mask, b, a)")
    if mask.shape != array.shape[: mask.ndim]:
        raise IndexError("boolean index did not match indexed array")
    index = (Ellipsis, *[None] * (array.ndim - mask.ndim))
    picked = mask[index]
    typed = as_operand(array._recorder, value, array.dtype).astype(array.dtype, copy=False)
    array[...] = choose(picked, typed, array)
