"""Nodes of whole arrays: values per position in space, and conditions on the position.

All arrays of a function share one space, whose positions along an axis are counted from 0. A node is a value
per position p. A load reads an array at the position plus an offset. Offsets count around the end of space:
what lies n - 1 positions ahead of n is the one before.

Arrays are numbered: first the function's inputs; then those that may be written between stages, each with
the node that computes it; and those that reductions along some axes give. A load of an array that may be
written keeps its offset as it is, until `cuts` has decided whether the array is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import BOOL, Graph, Node, Offset, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.functions.outside import Line, Tables, spread
from meshrun.runner.region import HostArray, Shape

MOST_REWRITTEN = 3_000_000  # nodes, which takes about half a minute
EVERY_SECOND = "combines every cell with every second one"
POSITIONED = ("load", "place", "inside", "point", "pick", "table")  # leaves that depend on the position

LEAVES = (*POSITIONED, "constant", "scalar")


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
    """A value that is an input of the function, or a part of one.

    number: of the input. part: "real" or "imag" of a complex number; else "".
    """

    number: int
    part: str = ""


@dataclass(frozen=True)
class StepSlot:
    """A value that the host computes for each step. slot: of the tape."""

    slot: int


@dataclass(frozen=True)
class ValueCheck:
    """A count that must not be 0, where NumPy raises an error.

    what: what the function does then, from the verb on. line: in the user's file.
    """

    count: Node
    what: str
    line: int


@dataclass(frozen=True)
class Cut:
    """Why an array is written, or is not. number: of the array. line: of the user's file that computes it.

    distances: at which it is read. repeated: operations of a cell that one kernel would do again. worth: as
    many operations as take as long as its bytes; below 0 if more are read where it is not written. splits:
    whether what reads it would be computed in too many parts otherwise.
    """

    number: int
    line: int
    distances: int
    repeated: int
    worth: int
    splits: bool = False

    @property
    def written(self) -> bool:
        return self.splits or self.repeated > self.worth


@dataclass(frozen=True)
class Dependence:
    """What a value depends on.

    axes: of space, and lines, along which it differs. leaves: the kinds, of POSITIONED.
    """

    axes: frozenset[int]
    leaves: frozenset[str]

    @property
    def on_points(self) -> bool:
        return not self.leaves.isdisjoint(("point", "pick"))


@dataclass(frozen=True)
class StateValue:
    """An array or a value of a loop's state, as an iteration finds it.

    loop: its number. slot: of its state. part: as of `InputValue`.
    """

    loop: int
    slot: int
    part: str = ""


@dataclass(frozen=True, eq=False)
class LoopResult:
    """What a loop leaves: an array, or a value. output: of its body. part: as of `InputValue`."""

    loop: Any  # a `loops.RecordedLoop` while the function is traced, then a `loops.Loop`
    output: int
    dtype: np.dtype[Any]
    part: str = ""


@dataclass(frozen=True)
class ImportedValue:
    """A value of another space. space: its number. node: what it is there."""

    space: int
    node: Node


Definition = InputValue | Reduction | Node | LoopResult  # of a value; a node: an expression of other values
Recorded = Definition | StepSlot | ImportedValue | StateValue  # of a value, while a function is traced


class WholeGraph(Graph):
    """Make nodes of whole arrays.

    Further leaves, of lists of points:

    point   whether the position plus a shift is one of a list
    pick    what a list has for the point at the position plus a shift, for the last one if it is repeated;
            without a shift, for the point itself, where values are those of a list

    A leaf "table" is an element of a table: input is its number, value has the axis of space that each of its
    axes is along, or a line below 0, and offset how far ahead it is read along each. `between.numbers` makes
    loads of them, of further inputs.

    points: the positions of each list. picked: constants or nodes for each point of a list, of `pick`.
    lengths: of each array, the positions along each axis of space; 0 along an axis that it does not have.
    space: positions along each axis. wraps: of each array, the axes along which some load counts around the
    end of space. between: of the arrays between stages, by number, what computes them: the node of their
    cells, where they may be written, a reduction along some axes, what a loop leaves, or a loop's state,
    which no stage computes. values: of each scalar, what defines it. cuts: why arrays are written, or are
    not.
    """

    _rewrites = 0  # nodes, in all rewritings

    def __init__(self, lengths: Sequence[Shape], space: Shape) -> None:
        super().__init__()
        self.lengths, self.space = list(lengths), space
        self.wraps: list[set[int]] = [set() for _ in lengths]
        self.between: dict[int, Node | Reduction | LoopResult | StateValue] = {}
        self.values: list[Recorded] = []
        self.cuts: tuple[Cut, ...] = ()
        self._numbers: dict[Any, int] = {}  # of arrays and values, by what defines them
        self.points: list[HostArray] = []
        self.picked: list[HostArray | tuple[Node, ...]] = []
        self.tables = Tables()

    def table(self, root: HostArray, axes: Sequence[int], starts: Sequence[int]) -> Node:
        """Return an element of a table. axes, starts: value and offset of the leaf."""
        number = self.tables.number_of(root)
        offset, value = tuple(starts), tuple(axes)
        key = ("table", number, offset, value)
        return self._node(key, lambda: Node("table", root.dtype, (), number, offset, value=value))

    def step_slot(self, slot: int, dtype: np.dtype[Any]) -> Node:
        return self.value(StepSlot(slot), dtype)

    def array_between(self, node: Node) -> int:
        """Return the number of the array that holds a node's values, if it is written."""
        if node not in self._numbers:
            self._numbers[node] = self.new_array(self.space)
            self.between[self._numbers[node]] = node
        return self._numbers[node]

    def reduced_array(self, reduction: Reduction) -> Node:
        """Return the load of a reduction's result along some axes."""
        if reduction not in self._numbers:
            lengths = tuple(0 if axis in reduction.axes else n for axis, n in enumerate(self.space))
            self._numbers[reduction] = self.new_array(lengths)
            self.between[self._numbers[reduction]] = reduction
        return self.load(self._numbers[reduction], reduction.dtype, (0,) * len(self.space))

    def left_array(self, result: LoopResult) -> Node:
        """Return the load of an array that a loop leaves."""
        number = self.new_array(self.space)
        self.between[number] = result
        return self.load(number, result.dtype, (0,) * len(self.space))

    def value(self, definition: Recorded, dtype: np.dtype[Any]) -> Node:
        """Return the scalar of a value."""
        key = "value", definition
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(definition)
        return self.scalar(self._numbers[key], dtype)

    @property
    def definitions(self) -> dict[int, Definition]:
        """What defines each scalar of a program, by number; not the slots of the tape."""
        kinds = (InputValue, Reduction, Node, LoopResult)
        return {number: one for number, one in enumerate(self.values) if isinstance(one, kinds)}

    @property
    def computed_arrays(self) -> dict[int, Node | Reduction | LoopResult]:
        """The arrays between stages that stages compute, by number."""
        return {n: one for n, one in self.between.items() if not isinstance(one, StateValue)}

    def define(
        self,
        between: Mapping[int, Node | Reduction | LoopResult],
        values: Sequence[Recorded],
    ) -> None:
        """Set what defines the arrays between stages and the scalars, by their numbers."""
        self.between, self.values = dict(between), list(values)
        self._numbers = {one: number for number, one in between.items()}
        self._numbers |= {("value", one): number for number, one in enumerate(values)}

    def leaf(self, node: Node) -> Node:
        """Return this graph's leaf for that of another graph; not a load or a table."""
        if node.op not in ("point", "pick"):
            return super().leaf(node)
        if node.op == "point":
            return self.point(*node.value)
        points, number, shift = node.value
        return self.pick_of(points, number, shift, node.dtype)

    def new_array(self, lengths: Shape) -> int:
        """Return the number of a further array. lengths: as of `lengths`."""
        self.lengths.append(lengths)
        self.wraps.append(set())
        return len(self.lengths) - 1

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
        return self.pick_of(points, len(self.picked) - 1, None, kind)

    def pick_of(self, points: int, number: int, shift: Offset | None, dtype: np.dtype[Any]) -> Node:
        """Return the leaf of what a list has. number: in `picked`. shift: as of the leaf."""
        key = "pick", points, number, shift
        return self._node(key, lambda: Node("pick", dtype, value=(points, number, shift)))

    def picked_nodes(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the values that lists have, where these are computed, of `pick` among some nodes."""
        lists = {node.value[1] for node in nodes if node.op == "pick"}
        return [one for number in sorted(lists) for one in self.picked[number] if isinstance(one, Node)]

    def for_other_list(self, nodes: Iterable[Node], other: int, shift: Offset) -> list[Node]:
        """Return the values at a list's points for those of another list, which lie `shift` before them."""

        def leaf(node: Node) -> Node:
            if node.op == "pick" and node.value[2] is None:
                return self.pick_of(other, node.value[1], None, node.dtype)
            return self.moved_leaf(node, shift)

        return self._rewritten(nodes, leaf)

    def written(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the values of a list's points as those of the cells that they are written to."""

        def leaf(node: Node) -> Node:
            if node.op != "pick" or node.value[2] is not None:
                return node
            points, number, _ = node.value
            return self.pick_of(points, number, (0,) * self.points[points].shape[1], node.dtype)

        wanted = list(nodes)
        on_points = any("pick" in self.dependence(node).leaves for node in wanted)
        return self._rewritten(wanted, leaf) if on_points else wanted

    def without_points(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the values at positions that are none of any list."""
        return self._rewritten(nodes, lambda node: self.constant(False, BOOL) if node.op == "point" else node)

    def with_constant_picks(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the same values, with lists of computed numbers computed of lists of constants."""

        def leaf(node: Node) -> Node:
            picked = self.picked[node.value[1]] if node.op == "pick" else None
            if not isinstance(picked, tuple):
                return node
            points, _, shift = node.value
            return self._picked(points, shift, picked)

        return self._rewritten(nodes, leaf)

    def _picked(self, points: int, shift: Offset | None, values: Sequence[Node]) -> Node:
        """Return what a list has for a point, by operations on what lists of constants have for it.

        Values that are computed alike are computed together; of the others, the point's is chosen.
        """
        groups: dict[Any, list[int]] = {}
        for number, one in enumerate(values):
            alike = one if one.op == "scalar" else (one.op, *(operand.dtype for operand in one.operands))
            groups.setdefault(alike, []).append(number)

        def list_of(constants: HostArray) -> Node:
            self.picked.append(constants)
            return self.pick_of(points, len(self.picked) - 1, shift, constants.dtype)

        found: Node | None = None
        for members in groups.values():
            # The group's values; of other points, any.
            main = values[members[0]]
            every = [main] * len(values)
            for number in members:
                every[number] = values[number]
            if main.op == "constant":
                value = list_of(np.array([one.value for one in every], main.dtype))
            elif main.op == "scalar":
                value = main
            else:
                columns = zip(*(one.operands for one in every), strict=True)
                operands = [self._picked(points, shift, column) for column in columns]
                value = self.operation(main.op, main.dtype, operands, main.line)
            chosen = np.isin(np.arange(len(values)), members)
            if found is None:
                found = value
            else:
                found = self.operation("where", main.dtype, [list_of(chosen), value, found])
        assert found is not None
        return found

    def vary(self, nodes: Iterable[Node]) -> bool:
        """Return whether values differ from position to position."""
        return any(self.dependence(node).leaves for node in nodes)

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
        found = []
        for node in nodes:
            if self.is_stored(node):
                found.append(self.load(self.array_between(node), node.dtype, shift))
            else:
                found += self.substituted([node], shift)
        return found

    def kept(self, nodes: HostArray) -> HostArray:
        """Return the same values, those that may be written between two stages read from the array."""
        found: HostArray = nodes.copy()
        zero = (0,) * len(self.space)
        for place, node in np.ndenumerate(nodes):
            if self.is_stored(node):
                found[place] = self.load(self.array_between(node), node.dtype, zero)
        return found

    def is_stored(self, node: Node) -> bool:
        """Return whether a value of each position is computed of cells."""
        every, on = frozenset(range(len(self.space))), self.dependence(node)
        return node.op not in LEAVES and "load" in on.leaves and not on.on_points and every <= on.axes

    def substituted(self, nodes: Iterable[Node], shift: Offset) -> list[Node]:
        """Return the same values for the position that is `shift` ahead, computed there."""
        if not any(shift):
            return list(nodes)
        return self._rewritten(nodes, lambda node: self.moved_leaf(node, shift))

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

    def at_places(self, nodes: Iterable[Node], places: Mapping[int, int]) -> list[Node]:
        """Return the same values at given places of lines that are along no axis yet."""

        def leaf(node: Node) -> Node:
            if node.op == "table":
                return self._table_at(node, places)
            axis = node.value[0] if node.op in ("place", "inside") else 0
            if axis >= 0 or axis not in places:
                return node
            if node.op == "place":
                return self.constant(places[axis] + node.value[1], node.dtype)
            _, low, high, step = node.value
            return self.constant(places[axis] in range(low, high, step), node.dtype)

        return self._rewritten(nodes, leaf)

    def _table_at(self, node: Node, places: Mapping[int, int]) -> Node:
        """Return a table at given places of some of the lines that its axes are along."""
        taken = [number for number, axis in enumerate(node.value) if axis < 0 and axis in places]
        if not taken:
            return node
        root, left = self.tables.roots[node.input], [n for n in range(len(node.value)) if n not in taken]
        at = tuple(
            node.offset[number] + places[axis] if number in taken else slice(None)
            for number, axis in enumerate(node.value)
        )
        if not left:
            return self.constant(root[at], node.dtype)
        key = node.input, tuple((number, at[number]) for number in taken)
        made = self.tables.made
        if key not in made:
            made[key] = root[at]
        axes, starts = [node.value[n] for n in left], [node.offset[n] for n in left]
        return self.table(made[key], axes, starts)

    def _renamed_table(self, node: Node, place: int, line: Line) -> Node:
        """Return a table with its axis number `place` along another axis."""
        root, axes, starts = self.tables.roots[node.input], list(node.value), list(node.offset)
        axes[place] = line.axis
        alike = line.step == line.step_there
        if line.axis < 0 and not alike:
            raise NotTraceable(EVERY_SECOND)
        if alike and (line.axis < 0 or root.shape[place] == self.space[line.axis]):
            starts[place] += line.further
            return self.table(root, axes, starts)
        key = node.input, place, starts[place], line
        made = self.tables.made
        if key not in made:
            made[key] = spread(root, place, starts[place], line, self.space[line.axis])
        starts[place] = 0
        return self.table(made[key], axes, starts)

    def moved_leaf(self, node: Node, shift: Offset) -> Node:
        """Return a leaf for the position that is `shift` ahead; it depends on the position."""
        if node.op == "load":
            offset = tuple(a + b for a, b in zip(node.offset, shift, strict=True))
            if isinstance(self.between.get(node.input), Node):
                return self.load(node.input, node.dtype, offset)
            return self.load_at(node.input, node.dtype, offset, node.component)
        if node.op in ("point", "pick"):
            at = node.value[-1]
            assert at is not None
            further = tuple(a + b for a, b in zip(at, shift, strict=True))
            if node.op == "point":
                return self.point(node.value[0], further)
            points, number, _ = node.value
            return self.pick_of(points, number, further, node.dtype)
        if node.op == "table":
            pairs = zip(node.value, node.offset, strict=True)
            starts = [at + (shift[axis] if axis >= 0 else 0) for axis, at in pairs]
            return self.table(self.tables.roots[node.input], node.value, starts)
        axis = node.value[0]
        if axis < 0:  # a line that is along no axis yet
            return node
        if node.op == "place":
            return self.place(axis, node.value[1] + shift[axis])
        _, low, high, step = node.value
        return self.inside(axis, low - shift[axis], high - shift[axis], step)

    def _rewritten(self, nodes: Iterable[Node], leaf: Any) -> list[Node]:
        wanted, done = list(nodes), dict[Node, Node]()
        ordered = in_order(wanted)
        self._rewrites += len(ordered)
        if self._rewrites > MOST_REWRITTEN:
            raise NotTraceable("computes many cells one by one", "slices in place of a loop over cells")
        for node in ordered:
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
        return any(one.on_points or axis in one.axes for one in map(self.dependence, nodes))

    @cached_property
    def _dependences(self) -> dict[Node, Dependence]:
        return {}

    def dependence(self, node: Node) -> Dependence:
        """Return what a value depends on; kept, as it is asked of every operand."""
        known = self._dependences
        for one in () if node in known else in_order([node], known):
            if one.op in POSITIONED:
                known[one] = Dependence(frozenset(self._axes_of_leaf(one)), frozenset((one.op,)))
                continue
            of_operands = [known[operand] for operand in one.operands]
            axes = frozenset[int]().union(*(each.axes for each in of_operands))
            leaves = frozenset[str]().union(*(each.leaves for each in of_operands))
            known[one] = Dependence(axes, leaves)
        return known[node]

    def _axes_of_leaf(self, leaf: Node) -> Iterable[int]:
        if leaf.op == "load":
            return (axis for axis, length in enumerate(self.lengths[leaf.input]) if length)
        if leaf.op in ("place", "inside"):
            return (leaf.value[0],)
        return leaf.value if leaf.op == "table" else ()


def assumed(node: Node, known: Mapping[Node, bool]) -> Node:
    """Return what a choice is where some conditions are known. Other nodes stay as they are."""
    while node.op == "where" and node.operands[0] in known:
        node = node.operands[1 if known[node.operands[0]] else 2]
    return node


def rebuilt(graph: WholeGraph, node: Node, operands: Sequence[Node]) -> Node:
    """Return an operation on other operands."""
    if tuple(operands) == node.operands:  # nodes are equal if they are the same
        return node
    return graph.operation(node.op, node.dtype, operands, node.line)
