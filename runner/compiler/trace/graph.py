"""Expression graph of a function on blocks: how each result cell is computed.

A node is one value per own cell. A `Graph` makes nodes, and returns the same node for the same expression:
a common subexpression is computed once, and programs of equal text are equal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from meshrun.runner.region import Shape

Offset = tuple[int, ...]
Extents = tuple[tuple[int, int], ...]  # per grid axis: cells before and after the own cell
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Node:
    """One value per own cell.

    op: "load", "constant", "place", "inside", "scalar", "cast", "where" (of a bool and two values), "real",
        "imag", "complex" (of two parts) or the name of a NumPy ufunc. All operands of a ufunc have the dtype
        that NumPy's loop computes in; the operation is rounded to it.
    dtype: of the value. operands: in the ufunc's order.
    input, offset, component: of a load: which input, how far from the own cell along each grid axis, and
        which element of the trailing axes, in C order.
    value: of a constant, a NumPy scalar; of a place, (axis, shift); of an inside, (axis, low, high, step);
        of a scalar, its number.
    line: in the user's file, where the value is computed first; 0 if unknown.
    """

    op: str
    dtype: np.dtype[Any]
    operands: tuple[Node, ...] = field(default=(), repr=False)  # shared ones would be shown at each use
    input: int = -1
    offset: Offset = ()
    component: int = 0
    value: Any = None
    line: int = 0


PLACE = np.dtype(np.int64)
BOOL = np.dtype(bool)
SLOT = 8  # bytes of a scalar's slot
UNIT_BYTES = 16  # that one access to memory moves, at most
SMALLEST_PART = 4  # bytes of a component that is accessed together with others
PLACES = ("place", "inside")  # leaves that depend on the cell's place
FREE = ("load", "constant", "place", "scalar", "cast")  # nodes that are no operation


class Graph:
    """Make nodes, one for each distinct expression.

    Leaves beside loads and constants:

    place   the own cell's position along an axis of the whole array, counted from 0, plus a constant
    inside  whether that position is one of low, low + step, ..., below high
    scalar  a number that all cells share in one step, and that the kernel is given with the step: of time, or
            the result of a reduction
    """

    def __init__(self) -> None:
        self._nodes: dict[Key, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def load(self, number: int, dtype: np.dtype[Any], offset: Offset, component: int = 0) -> Node:
        key = ("load", number, offset, component)
        return self._node(key, lambda: Node("load", dtype, (), number, offset, component))

    def constant(self, value: Any, dtype: np.dtype[Any]) -> Node:
        """Return a constant. value: a NumPy scalar or array of one element of that dtype."""
        scalar = np.asarray(value, dtype).reshape(())[()]
        return self._node(
            ("constant", dtype.str, scalar.tobytes()), lambda: Node("constant", dtype, value=scalar)
        )

    def truth(self, value: bool) -> Node:
        """Return a constant of bool."""
        return self._node(("truth", value), lambda: self.constant(value, BOOL))

    def place(self, axis: int, shift: int = 0) -> Node:
        return self._node(("place", axis, shift), lambda: Node("place", PLACE, value=(axis, shift)))

    def inside(self, axis: int, low: int, high: int, step: int = 1) -> Node:
        if high - low == 1:
            step = 1
        key = ("inside", axis, low, high, step)
        return self._node(key, lambda: Node("inside", BOOL, value=key[1:]))

    def scalar(self, number: int, dtype: np.dtype[Any]) -> Node:
        return self._node(("scalar", number), lambda: Node("scalar", dtype, value=number))

    def step_slot(self, slot: int, dtype: np.dtype[Any]) -> Node:
        """Return the scalar of a slot of the step's tape."""
        return self.scalar(slot, dtype)

    def leaf(self, node: Node) -> Node:
        """Return this graph's constant, place, inside or scalar for that of another graph."""
        if node.op == "constant":
            return self.constant(node.value, node.dtype)
        if node.op == "scalar":
            return self.scalar(node.value, node.dtype)
        return self.place(*node.value) if node.op == "place" else self.inside(*node.value)

    def operation(self, op: str, dtype: np.dtype[Any], operands: Sequence[Node], line: int = 0) -> Node:
        """Return an operation. Compute it now, with NumPy, if all operands are constants; a choice, if it
        is known."""
        if op == "cast" and operands[0].dtype == dtype:
            return operands[0]
        if op in ("real", "imag") and operands[0].op == "complex":
            return operands[0].operands[op == "imag"]
        if op == "where":
            condition, chosen, other = operands
            if chosen is other:
                return chosen
            if condition.op == "constant":
                return chosen if condition.value else other
        if operands[0].op == "constant" and all(node.op == "constant" for node in operands):
            values = [np.full(1, node.value, node.dtype) for node in operands]
            return self.constant(compute(op, dtype, values), dtype)
        key = (op, dtype.str, *operands)
        return self._node(key, lambda: Node(op, dtype, tuple(operands), line=line))

    def shifted(self, nodes: Iterable[Node], shift: Offset) -> list[Node]:
        """Return the same values for the cell that is `shift` cells away along the grid axes."""
        if not any(shift):
            return list(nodes)
        wanted, done = list(nodes), dict[Node, Node]()
        for node in in_order(wanted):
            if node.op == "load":
                offset = tuple(a + b for a, b in zip(node.offset, shift, strict=True))
                done[node] = self.load(node.input, node.dtype, offset, node.component)
            elif node.op == "place":
                axis, further = node.value
                done[node] = self.place(axis, further + shift[axis])
            elif node.op == "inside":
                axis, low, high, step = node.value
                done[node] = self.inside(axis, low - shift[axis], high - shift[axis], step)
            elif node.op in ("constant", "scalar"):
                done[node] = node
            else:
                moved = [done[operand] for operand in node.operands]
                done[node] = self.operation(node.op, node.dtype, moved, node.line)
        return [done[node] for node in wanted]

    def copied(self, node: Node) -> Node:
        """Return this graph's place, inside or scalar for that of another graph."""
        key = ("scalar", node.value) if node.op == "scalar" else (node.op, *node.value)
        return self._node(key, lambda: node)

    def _node(self, key: Key, make: Any) -> Node:
        if key not in self._nodes:
            self._nodes[key] = make()
        return self._nodes[key]


def in_order(nodes: Iterable[Node], done: Collection[Node] = ()) -> list[Node]:
    """Return nodes and all nodes that they depend on, each once, operands before their users.

    done: nodes to leave out, with all that only they depend on.
    """
    found: dict[Node, None] = {}
    open_nodes: list[Node | None] = [*reversed(list(nodes))]
    while open_nodes:
        node = open_nodes.pop()
        if node is None:  # all that the next node depends on is found
            found[cast(Node, open_nodes.pop())] = None
        elif node not in found and node not in done:
            if node.operands:
                open_nodes += (node, None, *node.operands[::-1])
            else:
                found[node] = None
    return list(found)


def slot_of(scalars: Any, number: int, dtype: np.dtype[Any]) -> Any:
    """Return the view, of no axes, of a scalar in slots of `SLOT` bytes. scalars: of uint64."""
    found = scalars[number : number + 1].view(np.uint8)[: dtype.itemsize]
    return found.view(dtype).reshape(())


def joined(xp: Any, dtype: np.dtype[Any], real: Any, imag: Any) -> Any:
    """Return the complex numbers of two parts. xp: numpy or cupy."""
    numbers = xp.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype)
    numbers.real, numbers.imag = real, imag
    return numbers


def compute(op: str, dtype: np.dtype[Any], values: Sequence[Any]) -> Any:
    """Compute one operation on arrays with NumPy, without its warnings."""
    with np.errstate(all="ignore"):
        return compute_aloud(op, dtype, values)


def compute_aloud(op: str, dtype: np.dtype[Any], values: Sequence[Any]) -> Any:
    """Compute one operation on arrays with NumPy, which warns as the caller has set it."""
    if op == "complex":
        return joined(np, dtype, *values)
    if op == "cast":
        value = values[0].real if dtype.kind not in "bc" else values[0]  # without NumPy's warning
        return value.astype(dtype)
    if op == "where":
        return np.where(*values)
    return getattr(np, op)(*values)


@dataclass(frozen=True)
class Operand:
    """An input or output of a program.

    trailing: lengths of the axes after the grid axes. combine: of an output that is not written, but of which
    all cells are combined, "maximum", "minimum" or "add"; of 4 or 8 bytes. unit: components that one access
    to memory moves, if all cells begin at multiples of so many (`with_units`). repeated: of an input that
    broadcasts, its number of axes, and the grid axes along which it has one cell.
    """

    name: str
    dtype: np.dtype[Any]
    trailing: Shape = ()
    combine: str = ""
    unit: int = 1
    repeated: tuple[int, tuple[int, ...]] | None = None

    @property
    def components(self) -> int:
        return math.prod(self.trailing)


@dataclass(frozen=True, eq=False)
class Program:
    """What a function computes for each own cell.

    axes: number of grid axes, the leading axes that inputs and outputs share. results: of each output, a
    node per component. stages: the lines of the function where a value that neighbours decide is computed for
    cells beyond the array's edges, and where such cells are read. lengths: cells of the whole array along
    each grid axis, if the program has places or conditions on them; else (). tape: what its scalars are
    computed of in each step (`timed.StepTape`). whole_rows: whether the conditions along the last axis are
    among those of the interior (`passes.ends`).
    """

    axes: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    results: tuple[tuple[Node, ...], ...]
    graph: Graph = field(repr=False)
    stages: tuple[tuple[int, int], ...] = ()
    lengths: Shape = ()
    tape: Any = field(default=None, repr=False)
    whole_rows: bool = False

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, operands before their users."""
        return tuple(in_order(node for result in self.results for node in result))

    @property
    def loads(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.op == "load")

    @property
    def operations(self) -> int:
        """Number of operations for each own cell; leaves and casts are none, conditions on the place are."""
        return sum(node.op not in FREE for node in self.nodes)

    @cached_property
    def conditions(self) -> tuple[Node, ...]:
        """The conditions on the place: nodes of op "inside"."""
        return tuple(node for node in self.nodes if node.op == "inside")

    @cached_property
    def has_places(self) -> bool:
        """Whether a cell's values depend on its place in the whole array."""
        return any(node.op in PLACES for node in self.nodes)

    @cached_property
    def scalars(self) -> int:
        """Number of slots, of `SLOT` bytes each, of one step's row; also of those that only points read."""
        used = max((node.value + 1 for node in self.nodes if node.op == "scalar"), default=0)
        return used if self.tape is None else max(used, len(self.tape.slots))

    def footprint(self, number: int) -> Extents:
        """Return how far from the own cell input `number` is read, per grid axis: cells before and after."""
        offsets = [node.offset for node in self.loads if node.input == number]
        return tuple(
            (max((-one[axis] for one in offsets), default=0), max((one[axis] for one in offsets), default=0))
            if offsets
            else (0, 0)
            for axis in range(self.axes)
        )

    def lines(self) -> list[str]:
        """Return a line of text per node."""
        number = {node: place for place, node in enumerate(self.nodes)}
        return [f"%{number[node]} = {_text(node, number)}" for node in self.nodes]

    def text(self) -> str:
        """Return the program as text, a line per node; equal for equal programs."""
        number = {node: place for place, node in enumerate(self.nodes)}
        lines = [f"lengths {self.lengths}"] if self.has_places else []
        lines += [f"input {one.name} {one.dtype} {one.trailing}" for one in self.inputs] + self.lines()
        for one, result in zip(self.outputs, self.results, strict=True):
            cells = " ".join(f"%{number[node]}" for node in result)
            lines.append(f"output {one.combine}{one.name} {one.dtype} {one.trailing} = {cells}")
        return "\n".join(lines)


def _text(node: Node, number: dict[Node, int]) -> str:
    if node.op == "load":
        return f"load {node.input} {node.offset} {node.component}"
    if node.op == "constant":
        return f"constant {node.dtype} {node.value!r} {node.value.tobytes().hex()}"
    if not node.operands:
        return f"{node.op} {node.dtype} {node.value}"
    return f"{node.op} {node.dtype} " + " ".join(f"%{number[one]}" for one in node.operands)


def with_units(program: Program) -> Program:
    """Return the program for arrays whose cells begin at multiples of their units in memory.

    A unit is 8 or 16 bytes of components of 4 bytes or more, and divides a cell: the two parts of a complex
    number, which lie beside each other.
    """

    def of(one: Operand) -> Operand:
        size, cell = one.dtype.itemsize, one.dtype.itemsize * one.components
        unit = min(cell & -cell, UNIT_BYTES) // size if size >= SMALLEST_PART else 1
        return replace(one, unit=max(unit, 1))

    return replace(program, inputs=tuple(map(of, program.inputs)), outputs=tuple(map(of, program.outputs)))


def without_units(program: Program) -> Program:
    """Return the program for arrays at any addresses."""
    operands = ([replace(one, unit=1) for one in each] for each in (program.inputs, program.outputs))
    inputs, outputs = map(tuple, operands)
    return replace(program, inputs=inputs, outputs=outputs)


def merge_components(program: Program) -> tuple[Program, int]:
    """Merge the trailing axes of a program into its last grid axis, if it treats all components alike.

    Return the merged program and the number of elements that a cell had; otherwise the program unchanged, and
    1. An offset of one cell along the last grid axis becomes an offset of that number of elements. A program
    in which cells have places along that axis stays as it is.
    """
    trailing = {one.trailing for one in (*program.inputs, *program.outputs)}
    count = program.outputs[0].components
    placed = any(node.op in PLACES and node.value[0] == program.axes - 1 for node in program.nodes)
    if len(trailing) != 1 or count < 2 or placed:
        return program, 1
    graph = Graph()

    def of(result: Node, component: int) -> Node | None:
        made: dict[Node, Node] = {}
        for node in in_order([result]):
            if node.op == "load":
                if node.component != component:
                    return None
                offset = (*node.offset[:-1], node.offset[-1] * count)
                made[node] = graph.load(node.input, node.dtype, offset)
            elif not node.operands:
                made[node] = graph.leaf(node)
            else:
                operands = [made[operand] for operand in node.operands]
                made[node] = graph.operation(node.op, node.dtype, operands, node.line)
        return made[result]

    results = []
    for result in program.results:
        cells = [of(node, component) for component, node in enumerate(result)]
        if cells[0] is None or any(cell is not cells[0] for cell in cells):
            return program, 1
        results.append((cells[0],))

    def flat(one: Operand) -> Operand:
        return Operand(one.name, one.dtype, combine=one.combine)

    inputs, outputs = tuple(map(flat, program.inputs)), tuple(map(flat, program.outputs))
    lengths = program.lengths and (*program.lengths[:-1], program.lengths[-1] * count)
    return Program(program.axes, inputs, outputs, tuple(results), graph, lengths=lengths), count
