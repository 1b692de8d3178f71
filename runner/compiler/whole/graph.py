"""Nodes of whole arrays: values per position in space, and conditions on the position.

All arrays of a function share one space, whose positions along an axis are counted from 0. A node is a value
per position p. A load reads an array at the position plus an offset. Offsets count around the array's end:
what lies n - 1 cells ahead of n is the cell before.

Arrays are numbered: first the function's inputs; then those that may be written between stages, each with
the node that computes it; and those that reductions along some axes give. A load of an array that may be
written keeps its offset as it is, until `cuts` has decided whether the array is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Graph, Node, Offset, in_order
from meshrun.runner.region import Shape

LEAVES = ("load", "place", "inside", "constant", "scalar")


@dataclass(frozen=True)
class Reduction:
    """A reduction of cells along axes of space.

    ufunc: NumPy's name of what combines two cells; or "argmax", "argmin"; or "take", of one cell. nodes: one,
    of the cells at each position. dtype: of the result. first, step, length: per axis of space, the positions
    of the cells. axes: of space, along which cells are combined. line: in the user's file.
    """

    ufunc: str
    nodes: tuple[Node, ...]
    dtype: np.dtype[Any]
    first: Shape
    step: Shape
    length: Shape
    axes: tuple[int, ...]
    line: int = 0


@dataclass(frozen=True)
class InputValue:
    """A value that is an input of the function. number: of the input."""

    number: int


@dataclass(frozen=True)
class ValueCheck:
    """A count that must not be 0, where NumPy raises an error.

    what: the function does then. line: in the user's file.
    """

    count: Node
    what: str
    line: int


Definition = InputValue | Reduction | Node  # of a value; a node is an expression of other values


class WholeGraph(Graph):
    """Make nodes of whole arrays.

    lengths: of each array, its cells along each axis of space; 0 along an axis that it does not have. wraps:
    of each array, the axes along which some load counts around its end. space: lengths of the axes of space.
    written: of the arrays that may be written between stages, by number, the node that computes their cells.
    reduced: likewise, of the results of reductions along some axes. values: of each scalar, what defines it.
    checks: of values, in the function's order.
    """

    def __init__(self, lengths: Sequence[Shape], space: Shape) -> None:
        super().__init__()
        self.lengths, self.space = list(lengths), space
        self.wraps: list[set[int]] = [set() for _ in lengths]
        self.written: dict[int, Node] = {}
        self.reduced: dict[int, Reduction] = {}
        self.values: list[Definition] = []
        self.checks: list[ValueCheck] = []
        self._numbers: dict[Any, int] = {}  # of arrays and values, by what defines them

    def written_array(self, node: Node) -> int:
        """Return the number of the array that holds a node's values, if it is written."""
        if node not in self._numbers:
            self._numbers[node] = self._new_array(self.space)
            self.written[self._numbers[node]] = node
        return self._numbers[node]

    def reduced_array(self, reduction: Reduction) -> Node:
        """Return the load of a reduction's result along some axes."""
        if reduction not in self._numbers:
            lengths = tuple(0 if axis in reduction.axes else n for axis, n in enumerate(self.space))
            self._numbers[reduction] = self._new_array(lengths)
            self.reduced[self._numbers[reduction]] = reduction
        return self.load(self._numbers[reduction], reduction.dtype, (0,) * len(self.space))

    def value(self, definition: Definition, dtype: np.dtype[Any]) -> Node:
        """Return the scalar of a value."""
        key = "value", definition
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(definition)
        return self.scalar(self._numbers[key], dtype)

    def _new_array(self, lengths: Shape) -> int:
        self.lengths.append(lengths)
        self.wraps.append(set())
        return len(self.lengths) - 1

    def load_at(self, number: int, dtype: np.dtype[Any], offset: Offset, component: int = 0) -> Node:
        """Return a load. Its offset is brought to the nearest of those that lead to the same cell."""
        near = []
        for axis, (at, length) in enumerate(zip(offset, self.lengths[number], strict=True)):
            if length == 0:  # the same cell for all positions along this axis
                near.append(0)
                continue
            around = (at + (length - 1) // 2) % length - (length - 1) // 2
            if around != at:
                self.wraps[number].add(axis)
            near.append(around)
        return self.load(number, dtype, tuple(near), component)

    def moved(self, nodes: Iterable[Node], shift: Offset) -> list[Node]:
        """Return the same values for the position that is `shift` ahead.

        What is computed of cells is read from an array that may be written between two stages.
        """
        if not any(shift):
            return list(nodes)
        every = range(len(self.space))
        found = []
        for node in nodes:
            if node.op not in LEAVES and all(self.varies([node], axis) for axis in every) and _reads([node]):
                found.append(self.load(self.written_array(node), node.dtype, shift))
            else:
                found += self.substituted([node], shift)
        return found

    def substituted(self, nodes: Iterable[Node], shift: Offset) -> list[Node]:
        """Return the same values for the position that is `shift` ahead, computed there."""
        if not any(shift):
            return list(nodes)
        return self._rewritten(nodes, lambda node: self._moved_leaf(node, shift))

    def renamed(self, nodes: Iterable[Node], axes: Mapping[int, tuple[int, int]]) -> list[Node]:
        """Return the same values with other axes. axes: of an axis, another, and what is added to a place."""
        if not axes:
            return list(nodes)

        def leaf(node: Node) -> Node:
            if node.op not in ("place", "inside") or node.value[0] not in axes:
                return node
            axis, further = axes[node.value[0]]
            if node.op == "place":
                return self.place(axis, node.value[1] + further)
            _, low, high, step = node.value
            return self.inside(axis, low - further, high - further, step)

        return self._rewritten(nodes, leaf)

    def at_places(self, nodes: Iterable[Node], places: Mapping[int, int]) -> list[Node]:
        """Return the same values at given places of lines that are along no axis yet."""

        def leaf(node: Node) -> Node:
            axis = node.value[0] if node.op in ("place", "inside") else 0
            if axis >= 0 or axis not in places:
                return node
            if node.op == "place":
                return self.constant(places[axis] + node.value[1], node.dtype)
            _, low, high, step = node.value
            return self.constant(places[axis] in range(low, high, step), node.dtype)

        return self._rewritten(nodes, leaf)

    def _moved_leaf(self, node: Node, shift: Offset) -> Node:
        if node.op == "load":
            offset = tuple(a + b for a, b in zip(node.offset, shift, strict=True))
            if node.input in self.written:
                return self.load(node.input, node.dtype, offset)
            return self.load_at(node.input, node.dtype, offset, node.component)
        axis = node.value[0]
        if axis < 0:  # a line that is along no axis yet
            return node
        if node.op == "place":
            return self.place(axis, node.value[1] + shift[axis])
        _, low, high, step = node.value
        return self.inside(axis, low - shift[axis], high - shift[axis], step)

    def _rewritten(self, nodes: Iterable[Node], leaf: Any) -> list[Node]:
        wanted, done = list(nodes), dict[Node, Node]()
        for node in in_order(wanted):
            if node.op in ("load", "place", "inside"):
                done[node] = leaf(node)
            elif node.op in ("constant", "scalar"):
                done[node] = node
            else:
                operands = [done[one] for one in node.operands]
                done[node] = self.operation(node.op, node.dtype, operands, node.line)
        return [done[node] for node in wanted]

    def varies(self, nodes: Iterable[Node], axis: int) -> bool:
        """Return whether values differ from position to position along an axis."""
        for node in in_order(nodes):
            if node.op == "load" and self.lengths[node.input][axis]:
                return True
            if node.op in ("place", "inside") and node.value[0] == axis:
                return True
        return False


def _reads(nodes: Iterable[Node]) -> bool:
    """Return whether values depend on cells of arrays."""
    return any(node.op == "load" for node in in_order(nodes))
