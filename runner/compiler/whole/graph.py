"""Nodes of whole arrays: values per position in space, and conditions on the position.

All arrays of a function share one space, whose positions along an axis are counted from 0. A node is a value
per position p. A load reads an input at the position plus an offset. Offsets count around the end of space:
what lies n - 1 positions ahead of n is the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import BOOL, Graph, Node, Offset, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.outside import Line, spread
from meshrun.runner.region import HostArray, Shape

EVERY_SECOND = "combines every cell with every second one"
POSITIONED = ("load", "place", "inside", "point", "pick", "table")  # leaves that depend on the position


class WholeGraph(Graph):
    """Make nodes of whole arrays.

    Further leaves, of lists of points:

    point   whether the position plus a shift is one of a list
    pick    what a list has for the point at the position plus a shift, for the last one if it is repeated;
            without a shift, for the point itself, where values are those of a list

    A leaf "table" is an element of a table: input is its number, value has the axis of space that each of its
    axes is along, or a line below 0, and offset how far ahead it is read along each. `loaded` makes loads of
    them, of further inputs.

    points: the positions of each list. picked: constants or nodes for each point of a list, of `pick`.
    lengths: of each input, the positions along each axis of space; 0 along an axis that it does not have.
    space: positions along each axis. wraps: of each input, the axes along which some load counts around the
    end of space.
    """

    def __init__(self, lengths: Sequence[Shape], space: Shape) -> None:
        super().__init__()
        self.lengths, self.space = list(lengths), space
        self.wraps: list[set[int]] = [set() for _ in lengths]
        self.points: list[HostArray] = []
        self.picked: list[HostArray | tuple[Node, ...]] = []
        self.tables: list[HostArray] = []
        self._spread: dict[Any, HostArray] = {}

    def table(self, root: HostArray, axes: Sequence[int], starts: Sequence[int]) -> Node:
        """Return an element of a table. axes, starts: value and offset of the leaf."""
        number = next((n for n, one in enumerate(self.tables) if one is root), len(self.tables))
        if number == len(self.tables):
            self.tables.append(root)
        offset, value = tuple(starts), tuple(axes)
        key = ("table", number, offset, value)
        return self._node(key, lambda: Node("table", root.dtype, (), number, offset, value=value))

    def loaded(self, nodes: Iterable[Node]) -> tuple[list[Node], list[tuple[HostArray, tuple[int, ...]]]]:
        """Return the same values with loads in place of tables, and the further inputs.

        Of each of these, the table and the axes of space that it has. To be called once, for all results.
        """
        wanted = list(nodes)
        leaves = [node for node in in_order(wanted) if node.op == "table"]
        used = list(dict.fromkeys((node.input, node.value) for node in leaves))
        first = len(self.lengths)
        for _, axes in used:
            self.lengths.append(tuple(n if axis in axes else 0 for axis, n in enumerate(self.space)))
            self.wraps.append(set())

        def leaf(node: Node) -> Node:
            if node.op != "table":
                return node
            offset = [0] * len(self.space)
            for axis, at in zip(node.value, node.offset, strict=True):
                offset[axis] = at
            return self.load_at(first + used.index((node.input, node.value)), node.dtype, tuple(offset))

        return self._rewritten(wanted, leaf), [(self.tables[number], axes) for number, axes in used]

    def list_points(self, positions: HostArray) -> int:
        """Return the number of a list of points. positions: (points, axes of space)."""
        for number, known in enumerate(self.points):
            if known.shape == positions.shape and bool((known == positions).all()):
                return number
        self.points.append(positions)
        return len(self.points) - 1

    def point(self, points: int, shift: Offset) -> Node:
        return self._node(("point", points, shift), lambda: Node("point", BOOL, value=(points, shift)))

    def pick(self, points: int, values: Sequence[Node]) -> Node:
        """Return a leaf. values: of each point of the list; they depend on no position."""
        if all(value is values[0] for value in values):
            return values[0]
        constant = all(value.op == "constant" for value in values)
        kind = values[0].dtype
        self.picked.append(np.array([one.value for one in values], kind) if constant else tuple(values))
        return self._pick(points, len(self.picked) - 1, None, kind)

    def _pick(self, points: int, number: int, shift: Offset | None, dtype: np.dtype[Any]) -> Node:
        key = "pick", points, number, shift
        return self._node(key, lambda: Node("pick", dtype, value=(points, number, shift)))

    def for_other_list(self, nodes: Iterable[Node], other: int, shift: Offset) -> list[Node]:
        """Return the values at a list's points for those of another list, which lie `shift` before them."""

        def leaf(node: Node) -> Node:
            if node.op == "pick" and node.value[2] is None:
                return self._pick(other, node.value[1], None, node.dtype)
            return self._moved_leaf(node, shift)

        return self._rewritten(nodes, leaf)

    def written(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the values of a list's points as those of the cells that they are written to."""

        def leaf(node: Node) -> Node:
            if node.op != "pick" or node.value[2] is not None:
                return node
            points, number, _ = node.value
            return self._pick(points, number, (0,) * self.points[points].shape[1], node.dtype)

        return self._rewritten(nodes, leaf)

    def without_points(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the values at positions that are none of any list."""
        return self._rewritten(nodes, lambda node: self.constant(False, BOOL) if node.op == "point" else node)

    def vary(self, nodes: Iterable[Node]) -> bool:
        """Return whether values differ from position to position."""
        return any(node.op in POSITIONED for node in in_order(nodes))

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
        """Return the same values for the position that is `shift` ahead."""
        if not any(shift):
            return list(nodes)
        return self._rewritten(nodes, lambda node: self._moved_leaf(node, shift))

    def renamed(self, nodes: Iterable[Node], lines: Mapping[int, Line]) -> list[Node]:
        """Return the same values with lines along other axes. lines: how each of them meets its axis."""
        if not lines:
            return list(nodes)

        def leaf(node: Node) -> Node:
            if node.op == "table":
                for place, number in enumerate(node.value):
                    if number in lines:
                        node = self._renamed_table(node, place, lines[number])
                return node
            if node.op not in ("place", "inside") or node.value[0] not in lines:
                return node
            line = lines[node.value[0]]
            if line.step != line.step_there and line.length > 1:
                raise NotTraceable(EVERY_SECOND)
            axis, further = line.axis, line.further
            if node.op == "place":
                return self.place(axis, node.value[1] + further)
            _, low, high, step = node.value
            return self.inside(axis, low - further, high - further, step)

        return self._rewritten(nodes, leaf)

    def _renamed_table(self, node: Node, place: int, line: Line) -> Node:
        """Return a table with its axis number `place` along another axis."""
        root, axes, starts = self.tables[node.input], list(node.value), list(node.offset)
        axes[place] = line.axis
        alike = line.step == line.step_there
        if line.axis < 0 and not alike:
            raise NotTraceable(EVERY_SECOND)
        if alike and (line.axis < 0 or root.shape[place] == self.space[line.axis]):
            starts[place] += line.further
            return self.table(root, axes, starts)
        key = node.input, place, starts[place], line
        if key not in self._spread:
            self._spread[key] = spread(root, place, starts[place], line, self.space[line.axis])
        starts[place] = 0
        return self.table(self._spread[key], axes, starts)

    def _moved_leaf(self, node: Node, shift: Offset) -> Node:
        if node.op == "load":
            offset = tuple(a + b for a, b in zip(node.offset, shift, strict=True))
            return self.load_at(node.input, node.dtype, offset, node.component)
        if node.op in ("point", "pick"):
            at = node.value[-1]
            assert at is not None
            further = tuple(a + b for a, b in zip(at, shift, strict=True))
            if node.op == "point":
                return self.point(node.value[0], further)
            points, number, _ = node.value
            return self._pick(points, number, further, node.dtype)
        if node.op == "table":
            pairs = zip(node.value, node.offset, strict=True)
            starts = [at + (shift[axis] if axis >= 0 else 0) for axis, at in pairs]
            return self.table(self.tables[node.input], node.value, starts)
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
            if node.op in POSITIONED:
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
            if node.op in ("point", "pick"):
                return True
            if node.op in ("place", "inside") and node.value[0] == axis:
                return True
            if node.op == "table" and axis in node.value:
                return True
        return False
