"""Stand-ins for the blocks of a function, which record what it does to them.

A traced array has two kinds of axes. Along a grid axis it is as long as the block, plus or minus a few
cells, and all its cells are computed alike: one node stands for all of them. Along any other axis it holds a
node for each element.
"""

from __future__ import annotations

import inspect
import operator
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import (
    MOST_COMPONENTS,
    Nodes,
    ResultAxes,
    TracedArray,
    TracedCall,
    check_computable,
)
from meshrun.runner.compiler.trace.context import TracedContext
from meshrun.runner.compiler.trace.functions.composites import FUNCTIONS
from meshrun.runner.compiler.trace.functions.whole_axes import WHOLE_AXES, cell_axes, whole_axes
from meshrun.runner.compiler.trace.graph import PLACE, Graph, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed, nodes_of
from meshrun.runner.region import Shape, real_dtype

NEAR = 16  # cells by which an array's length may differ from the block's, with halos of no cells
PLACES = "an array of the block's length"  # that was not made from the block and differs from cell to cell


class _Storage:
    """Memory that traced arrays share. version: number of changes made to it."""

    def __init__(self) -> None:
        self.version = 0


class _Window:
    """A part of a storage. Traced arrays of one window have the same cells along grid axes and share nodes.

    version: of the storage when the nodes were up to date. made: the line of the function that computed them.
    """

    def __init__(self, storage: _Storage, made: int) -> None:
        self.storage, self.version, self.made = storage, storage.version, made


@dataclass(frozen=True)
class BlockAxes(ResultAxes):
    """Lengths of axes, and which of the grid's each is, or None."""

    shape: Shape
    grid: tuple[int | None, ...]

    def with_axis(self, at: int, length: int) -> BlockAxes:
        shape, grid = self.shape, self.grid
        return BlockAxes((*shape[:at], length, *shape[at:]), (*grid[:at], None, *grid[at:]))


class BlockCall(TracedCall):
    """One call of the function: its graph, and the lengths that identify grid axes.

    widths: cells of the blocks before and after the own ones. stages: of `Program`.
    """

    def __init__(
        self, function: Callable[..., Any], lengths: Shape, widths: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(function, Graph(), FUNCTIONS)
        self._near, self.lengths, self.widths = near_of(widths), lengths, widths
        self._code = getattr(inspect.unwrap(function), "__code__", None)
        self.stages: dict[tuple[int, int], None] = {}

    def outer_line(self) -> int:
        """Return the line of the function itself that runs now; 0 if unknown."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def axis_of(self, length: int) -> int | None:
        """Return the grid axis with about this length; None if there is none."""
        near = [axis for axis, own in enumerate(self.lengths) if abs(length - own) <= self._near]
        return near[0] if near else None

    def is_length(self, length: int, axis: int) -> bool:
        """Return whether a block has this length along a grid axis, with its halo, a part of it or none."""
        return 0 <= length - self.lengths[axis] <= self._near - NEAR

    def filled(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Return numpy.full's result, as a traced array if it is as large as the block."""
        whole = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        grid = tuple(self.axis_of(length) for length in whole)
        if all(axis is None for axis in grid):
            return np.full(whole, value, dtype)
        if isinstance(value, Timed):
            found = self.filled(shape, 0, np.asarray(value.sample).dtype if dtype is None else dtype)
            found[...] = value
            return found
        kind = np.asarray(value).dtype if dtype is None else np.dtype(dtype)
        node = self.graph.constant(np.asarray(value).astype(kind), kind)
        nodes = np.full([1 if axis is not None else n for n, axis in zip(whole, grid, strict=True)], node)
        return Traced(self, nodes, whole, grid, kind)

    def operand(self, value: Any, like: np.dtype[Any] | None = None) -> Traced:
        if isinstance(value, Traced):
            if value._recorder is not self:
                raise NotTraceable("keeps an array from one call to the next")
            return value
        if isinstance(value, Timed):
            nodes = nodes_of(self.graph, value, like)
            return Traced(self, nodes, nodes.shape, (None,) * nodes.ndim, value.dtype_of(like))
        array = np.asarray(value)
        if like is not None and not isinstance(value, (np.ndarray, np.generic)):
            array = array.astype(like)
        check_computable(array.dtype)
        grid = [self.axis_of(length) for length in array.shape]
        if any(axis is not None for axis in grid):
            varies = {
                axis
                for number, axis in enumerate(grid)
                if axis is not None and self.is_length(array.shape[number], axis) and _varies(array, number)
            }
            raise NotTraceable(
                "uses an array of the block's size that was not made from the block",
                "xp.zeros(shape), or zeros_like(block)",
                whole=(PLACES, tuple(sorted(varies))),
            )
        if array.size > MOST_COMPONENTS:
            raise NotTraceable(f"uses an array of {array.size} elements beside the block")
        nodes = np.empty(array.shape, object)
        for index, element in np.ndenumerate(array):
            nodes[index] = self.graph.constant(element, array.dtype)
        return Traced(self, nodes, array.shape, (None,) * array.ndim, array.dtype)

    def aligned(self, operands: Sequence[Traced]) -> tuple[BlockAxes, list[Nodes]]:
        shape = np.broadcast_shapes(*(one.shape for one in operands))
        grid: list[int | None] = []
        for back in range(len(shape), 0, -1):
            axes = {one._grid[-back] for one in operands if one.ndim >= back and one.shape[-back] != 1}
            if len(axes) > 1:
                raise NotTraceable("combines different axes of the block")
            grid.append(axes.pop() if axes else None)
        return BlockAxes(shape, tuple(grid)), [one.read() for one in operands]

    def result(self, layout: BlockAxes, nodes: Nodes, dtype: np.dtype[Any]) -> Traced:
        return Traced(self, nodes.copy(), layout.shape, layout.grid, dtype)


class BlockPlace(TracedContext):
    """The `here` of a traced block. shape: of the whole array."""

    def __init__(self, recorder: BlockCall, shape: Shape, xp: Namespace) -> None:
        super().__init__(shape, xp, recorder.tape.step)
        self._recorder = recorder

    @property
    def axes(self) -> int:
        return len(self._recorder.lengths)

    def places(self, axis: int) -> Traced:
        recorder = self._recorder
        # Results are shifted by the halo at last.
        low, _ = recorder.widths[axis]
        grid = tuple(number if number == axis else None for number in range(self.axes))
        grid += (None,) * (len(self.shape) - self.axes)
        shape = tuple(1 if number is None else recorder.lengths[number] for number in grid)
        nodes = np.full((1,) * len(shape), recorder.graph.place(axis, low), object)
        return Traced(recorder, nodes, shape, grid, PLACE)


class Namespace:
    """The `xp` of a traced function: NumPy, but zeros, ones, full and empty return traced arrays."""

    def __init__(self, recorder: BlockCall) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 0, dtype)

    empty = zeros  # cells that are not written yet may have any value

    def ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 1, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
        return self._recorder.filled(shape, fill_value, dtype)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        if not isinstance(a, Traced):
            return np.asarray(a, dtype)
        return a if dtype is None else a.astype(dtype, copy=False)

    ascontiguousarray = asarray


class Traced(TracedArray):
    """A stand-in for a block.

    nodes: of its cells, one element along each grid axis. shape: as the function sees it. grid: for each
    axis, the grid axis that it is, or None.
    """

    MODULE = "xp"
    KIND = "a block"
    FOREIGN = (
        "makes a NumPy array of a block's cells, or writes them into one",
        "xp.zeros(shape, dtype) or zeros_like(block) for an array to write into",
    )
    PICKED = "slices of the block with its halo, or xp.where(condition, a, b)"
    FORMATTED = None
    _recorder: BlockCall

    def __init__(
        self,
        recorder: BlockCall,
        nodes: Nodes,
        shape: Shape,
        grid: tuple[int | None, ...],
        dtype: np.dtype[Any],
        window: _Window | None = None,
        part: str = "",
    ) -> None:
        check_computable(dtype)
        self._recorder, self._nodes, self._grid = recorder, nodes, grid
        self._shape, self.dtype, self._part = shape, dtype, part
        self._window = _Window(_Storage(), recorder.outer_line()) if window is None else window

    @property
    def shape(self) -> Shape:
        return self._shape

    def is_cells(self, axis: int) -> bool:
        return self._grid[axis] is not None

    def layout(self) -> BlockAxes:
        return BlockAxes(self.shape, self._grid)

    def read(self) -> Nodes:
        if self._window.version != self._window.storage.version:
            raise NotTraceable(
                "reads an array after a part of it, or what it is a part of, was changed in place",
                "a new array instead of one that is changed in place",
            )
        return self.seen(self._nodes)

    def transposed(self, order: Shape) -> Traced:
        self.read()
        nodes = self._nodes.transpose(order)
        shape, grid = tuple(self.shape[a] for a in order), tuple(self._grid[a] for a in order)
        return Traced(self._recorder, nodes, shape, grid, self.dtype, self._window, self._part)

    def part(self, name: str) -> Traced:
        self.read()
        kind = real_dtype(self.dtype)
        return Traced(self._recorder, self._nodes, self.shape, self._grid, kind, self._window, name)

    def reduce_cells(self, name: str, axes: Sequence[int], dtype: Any, out: Any, keepdims: bool) -> Any:
        raise NotTraceable(
            f"reduces the cells of a block (numpy.{name})",
            "@meshrun.reduce_blocks",
            whole=(f"numpy.{name}", cell_axes(self, list(axes))),
        )

    def untraced(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> NotTraceable:
        # A result may depend on all cells along an axis.
        axes: tuple[int, ...] = ()
        if name.endswith((".reduce", ".accumulate")):
            axes = cell_axes(args[0], kwargs.get("axis", 0))
        elif name in WHOLE_AXES and args:
            axes = whole_axes(function, args, {} if isinstance(function, np.ufunc) else kwargs)
        hint = "slices of the block with its halo" if name in ("roll", "pad") else None
        return NotTraceable(f"uses numpy.{name}, which is not traced", hint, whole=(f"numpy.{name}", axes))

    # Reading and writing parts

    def __getitem__(self, index: Any) -> Traced:
        self.read()
        nodes, shape, grid, shift = self._cut(self._nodes, index)
        if self._has_all(shape, grid, shift):
            return Traced(self._recorder, nodes, shape, grid, self.dtype, self._window, self._part)
        if len(shape) == self.ndim and self._has_stage(nodes, shape, shift):
            self._recorder.stages[self._window.made, self._recorder.outer_line()] = None
        part = _Window(self._window.storage, self._window.made)
        moved = np.empty(nodes.shape, object)
        moved.ravel()[:] = self._recorder.graph.shifted(nodes.ravel(), shift)
        return Traced(self._recorder, moved, shape, grid, self.dtype, part, self._part)

    def _has_stage(self, nodes: Nodes, shape: Shape, shift: Shape) -> bool:
        """Return whether a part has cells beyond the array's edges that were computed from their neighbours.

        A value between two cells, such as a flux, belongs to an edge itself, not to a cell beyond it.
        """
        recorder = self._recorder
        loads = [node for node in in_order(nodes.ravel()) if node.op == "load"]
        for length, along in zip(shape, self._grid, strict=False):
            places = set() if along is None else {node.offset[along] + shift[along] for node in loads}
            if along is None or len(places) < 2:
                continue
            low, own = recorder.widths[along][0], recorder.lengths[along]
            first = min(places) + max(places)  # twice the centre of the first cell
            if first <= 2 * low - 2 or first + 2 * (length - 1) >= 2 * (low + own):
                return True
        return False

    def __setitem__(self, index: Any, value: Any) -> None:
        partly = NotTraceable(
            "writes a part of an array", "an expression for all cells, such as xp.where(condition, a, b)"
        )
        self.full_index(index)
        try:
            _, shape, grid, shift = self._cut(self._nodes, index)
        except NotTraceable:
            raise partly from None
        if not self._has_all(shape, grid, shift):
            raise partly
        part = Traced(self._recorder, self._nodes[self._own_index(index)], shape, grid, self.dtype)
        values = self._recorder.operand(value, self.dtype)
        nodes = self.cast(values.read(), self.dtype)
        layout, _ = self._recorder.aligned([part, values])
        if layout.shape != part.shape:
            raise ValueError(f"could not broadcast to shape {part.shape} from {layout.shape}")
        self.read()
        self._window.storage.version += 1
        self._window.version = self._window.storage.version
        written = np.broadcast_to(nodes, part._nodes.shape).copy()
        self._nodes[self._own_index(index)] = self.merged(part._nodes, written)

    def _has_all(self, shape: Shape, grid: tuple[int | None, ...], shift: tuple[int, ...]) -> bool:
        """Return whether a part has all cells along each grid axis."""
        lengths = [n for n, axis in zip(shape, grid, strict=True) if axis is not None]
        own = [n for n, axis in zip(self.shape, self._grid, strict=True) if axis is not None]
        return not any(shift) and lengths == own

    def _own_index(self, index: Any) -> tuple[Any, ...]:
        """Return the index of a part in `_nodes`, which is whole along grid axes."""
        found: list[Any] = []
        axis = 0
        for one in self.full_index(index):
            if one is None:
                found.append(None)
                continue
            found.append(slice(None) if self._grid[axis] is not None else one)
            axis += 1
        return tuple(found)

    def _cut(self, nodes: Nodes, index: Any) -> tuple[Nodes, Shape, tuple[int | None, ...], tuple[int, ...]]:
        """Return nodes, shape and grid axes of a part, and its first cell along each grid axis."""
        shape: list[int] = []
        grid: list[int | None] = []
        shift = [0] * len(self._recorder.lengths)
        axis = 0
        for one in self.full_index(index):
            if one is None:
                shape.append(1)
                grid.append(None)
                continue
            length, along = self.shape[axis], self._grid[axis]
            axis += 1
            if isinstance(one, slice):
                first, last, step = one.indices(length)
                if along is not None and step != 1:
                    whole = ("the slice [::-1]", (along,)) if step < 0 else ("", ())
                    raise NotTraceable(
                        f"takes every {step} cells of a block", "slices with step 1", whole=whole
                    )
                shape.append(len(range(first, last, step)))
                grid.append(along)
                if along is not None:
                    shift[along] = first
                    if shape[-1] == 0 or self._recorder.axis_of(shape[-1]) != along:
                        raise NotTraceable(
                            "takes a few rows of a block",
                            "slices relative to both ends",
                            whole=(f"the index [{first}:{last}]", (along,)),
                        )
                continue
            if along is not None:
                whole = (f"the index [{operator.index(one)}]", (along,))
                raise NotTraceable(
                    "takes single rows or cells of a block", "slices of the whole block", whole=whole
                )
            if not -length <= one < length:
                raise IndexError(f"index {one} is out of bounds for axis {axis - 1} with size {length}")
        return nodes[self._own_index(index)], tuple(shape), tuple(grid), tuple(shift)


def _varies(array: np.ndarray[Any, Any], axis: int) -> bool:
    """Return whether an array's elements differ along an axis."""
    return bool((array != np.take(array, [0], axis)).any())


def near_of(widths: Sequence[tuple[int, int]]) -> int:
    """Return the cells by which the length of an array along a grid axis may differ from the own cells."""
    return NEAR + max((low + high for low, high in widths), default=0)
