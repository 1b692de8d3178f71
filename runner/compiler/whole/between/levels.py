"""Levels: which positions each array between stages needs, so that a coarse grid has no others in memory.

All nodes are values per position of one space. An array that is read at every second position alone, as a
coarse grid is, can be stored as these positions; then a stage that computes it does a quarter of the work of
one in the fine grid, in two dimensions. From the results down, `lattices` finds the positions at which each
array is read. `cells_of` writes the nodes of a stage as values per cell of a lattice: conditions on the
position become conditions on the cell, and offsets become distances between cells.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from meshrun.runner.compiler.trace.graph import BOOL, PLACE, Node, in_order
from meshrun.runner.compiler.whole.graph import Reduction, WholeGraph, rebuilt
from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.region import Shape

FEW = 3  # positions that are looked at one by one
NEAR = 8  # cells of a coarse grid, up to which a distance is not counted around the ends of space
MOST_PHASES = 64  # lattices in which a stage is computed, of one that reads coarser arrays


@dataclass(frozen=True)
class LevelGrid:
    """Positions of space: along each axis first, first + step, and so on, to the end of space."""

    first: Shape
    step: Shape

    @property
    def is_space(self) -> bool:
        """Whether these are all positions."""
        return set(self.step) <= {1}

    def lengths(self, space: Shape) -> Shape:
        """Return the number of positions along each axis."""
        return tuple(
            max(-(-(n - first) // step), 0)
            for n, first, step in zip(space, self.first, self.step, strict=True)
        )

    def cell(self, axis: int, position: int) -> int:
        """Return the first cell that is at a position along an axis, or after it."""
        return max(-(-(position - self.first[axis]) // self.step[axis]), 0)


def whole_space(dimensions: int) -> LevelGrid:
    """Return the lattice of all positions."""
    return LevelGrid((0,) * dimensions, (1,) * dimensions)


class Progression(NamedTuple):
    """Positions along an axis: from low to high, one every `step`; step is 0 if low is high.

    A tuple, as a trace of a function in levels compares some hundred thousands. Its length is that of the
    positions.
    """

    low: int
    high: int
    step: int

    def __len__(self) -> int:
        return 1 if self.step == 0 else (self.high - self.low) // self.step + 1

    @property
    def positions(self) -> range:
        return range(self.low, self.high + 1, self.step or 1)

    def joined(self, other: Progression | None) -> Progression:
        """Return the progression of fewest positions that has those of both."""
        if other is None or self == other:
            return self
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Progression(low, high, math.gcd(self.step, other.step, abs(self.low - other.low)))

    def between(self, low: int, high: int) -> Progression | None:
        """Return the positions from low to high, or None."""
        if self.step == 0:
            return self if low <= self.low <= high else None
        first = self.low + max(-(-(low - self.low) // self.step), 0) * self.step
        last = self.high - max(-(-(self.high - high) // self.step), 0) * self.step
        return None if first > last else Progression(first, last, self.step if first < last else 0)

    def shared(self, first: int, step: int) -> Progression | None:
        """Return the positions that are first plus a multiple of step, or None."""
        if self.step == 0:
            return self if (self.low - first) % step == 0 else None
        divisor = math.gcd(self.step, step)
        if (first - self.low) % divisor:
            return None
        turns = (first - self.low) // divisor * pow(self.step // divisor, -1, step // divisor)
        low = self.low + self.step * (turns % (step // divisor))
        return self.from_(low, self.step // divisor * step)

    def moved(self, shift: int) -> Progression:
        return Progression(self.low + shift, self.high + shift, self.step)

    def within(self, condition: Node) -> Progression | None:
        """Return the positions at which a condition on the position is true, or None."""
        return _within(self, condition.value[1:])

    def without(self, condition: Node) -> Progression | None:
        """Return the positions at which it is false, and perhaps more; None if there are none."""
        return _without(self, condition.value[1:])

    def from_(self, low: int, step: int) -> Progression | None:
        """Return the positions that are low plus a multiple of step, none of them before low; or None."""
        if low > self.high:
            return None
        high = low + (self.high - low) // step * step
        return Progression(low, high, step if high > low else 0)


# A function in levels has few conditions, and asks for the same ones thousands of times.
@lru_cache(maxsize=1 << 14)
def _within(positions: Progression, condition: tuple[int, int, int]) -> Progression | None:
    """Return `Progression.within`. condition: first position, last + 1, and step."""
    low, high, step = condition
    inner = positions.between(low, high - 1)
    return inner and inner.shared(low, step)


@lru_cache(maxsize=1 << 14)
def _without(positions: Progression, condition: tuple[int, int, int]) -> Progression | None:
    """Return `Progression.without`. condition: as of `_within`."""
    low, high, _ = condition
    inner, true = positions.between(low, high - 1), _within(positions, condition)
    if inner is None or true is None:
        return positions
    parts = [positions.between(positions.low, low - 1), positions.between(high, positions.high)]
    if len(inner) <= FEW:
        false = sorted({*inner.positions} - {*true.positions})
        parts += [Progression(at, at, 0) for at in false]
    elif true.step == 2 * inner.step:
        other = inner.low + (inner.step if true.low == inner.low else 0)
        parts.append(inner.from_(other, true.step))
    elif len(true) < len(inner):
        parts.append(inner)
    found: Progression | None = None
    for part in parts:
        found = found if part is None else part.joined(found)
    return found


Demand = tuple[Progression, ...]  # the positions along each axis of space


@dataclass(frozen=True)
class Lattices:
    """Where the arrays that stages write are read.

    grids: of each array, by number, the positions. needs: where each of the nodes is needed that its cells
    are computed of. complete: nodes of arrays; what other arrays need to compute these is not in their needs.
    """

    grids: dict[int, LevelGrid]
    needs: dict[int, dict[Node, Demand]]
    complete: set[Node]


def lattices(
    program: WholeProgram, reduced: Collection[int] = (), used: Mapping[Node, int] | None = None
) -> Lattices:
    """Return the positions at which each of the arrays that stages write is read.

    reduced: numbers of arrays that reductions alone read, at the own cell. used: what arrays hold, where it
    is used at the own cell without a load: the arrays' numbers.
    """
    graph, space, written, used = program.graph, program.space, program.written, used or {}
    demands: dict[int, Demand] = {}
    found = Lattices({}, {}, _complete(written, used) if used else set())
    everywhere = tuple(_steps(0, 1, n) for n in space)
    # The longest distance of each array along each axis that is shorter around the ends of space.
    longest = {number: [0] * len(space) for number in written}

    def note(nodes: Sequence[Node], demand: Demand) -> dict[Node, Demand]:
        needs = demands_of(nodes, demand, found.complete)
        for node in needs.keys() & used.keys() - set(nodes):
            demands[used[node]] = _joined(needs[node], demands.get(used[node], needs[node]))
        for load, needed in _loads_of(graph, needs, written):
            demands[load.input] = _joined(needed, demands.get(load.input, needed))
            for axis, (at, n) in enumerate(zip(load.offset, space, strict=True)):
                if 2 * abs(at) > n:
                    longest[load.input][axis] = max(longest[load.input][axis], abs(at))
        return needs

    for output in program.outputs:
        if output.shape:
            note(output.nodes, everywhere)
    for one in [*program.reduced.values(), *program.values.values()]:
        if isinstance(one, Reduction) and 0 not in one.length:
            note(one.nodes, _of_reduction(one))
    for loop in program.loops:  # its body computes all cells
        note(loop.outside, everywhere)
    for number in reversed(list(written) if used else _in_order_of_reads(written)):
        single = number in reduced
        cells = _lattice(demands.get(number, everywhere), space, longest[number], single=single)
        found.grids[number] = cells
        found.needs[number] = note([written[number]], positions_of(cells, space))
    return found


def positions_of(cells: LevelGrid, space: Shape) -> Demand:
    """Return the positions of a lattice along each axis."""
    return tuple(map(_steps, cells.first, cells.step, cells.lengths(space)))


def demands_of(nodes: Sequence[Node], demand: Demand, complete: Collection[Node] = ()) -> dict[Node, Demand]:
    """Return the positions at which each node is needed, for nodes that are needed at some.

    demand: where the given nodes are needed. complete: nodes of which nothing further is asked, unless they
    are among the given ones.
    """
    found = dict.fromkeys(nodes, demand)

    def need(node: Node, wanted: Demand) -> None:
        known = found.setdefault(node, wanted)
        if known is not wanted and known != wanted:
            found[node] = _joined(wanted, known)

    for node in reversed(in_order(nodes, set(complete).difference(nodes))):
        if node not in found:
            continue  # in no branch that is taken
        wanted = found[node]
        if node.op != "where" or node.operands[0].op != "inside":
            for operand in node.operands:
                need(operand, wanted)
            continue
        condition, chosen, other = node.operands
        axis = condition.value[0]
        need(condition, wanted)
        for operand, along in (
            (chosen, wanted[axis].within(condition)),
            (other, wanted[axis].without(condition)),
        ):
            if along is not None:
                need(operand, (*wanted[:axis], along, *wanted[axis + 1 :]))
    return found


def shared_cells(cells: LevelGrid, distance: Shape, others: LevelGrid, space: Shape) -> int:
    """Return about how many cells of a lattice have one of another lattice at a distance."""
    count = 1
    axes = zip(cells.first, cells.step, distance, others.first, others.step, space, strict=True)
    for first, step, further, other, every, n in axes:
        is_there = (first + further - other) % math.gcd(step, every) == 0
        count *= -(-n // math.lcm(step, every)) if is_there else 0
    return count


def parts_of(step: Shape, other: Shape) -> int:
    """Return in how many parts cells of a lattice are computed that read those of another. step: of each."""
    return math.prod(math.lcm(a, b) // a for a, b in zip(step, other, strict=True))


def _of_reduction(reduction: Reduction) -> Demand:
    return tuple(map(_steps, reduction.first, reduction.step, reduction.length))


def with_nearest(program: WholeProgram, where: Mapping[int, LevelGrid]) -> WholeProgram:
    """Return the program in which each array is read at the nearest of the distances that lead to a cell.

    where: of arrays that have not all positions, the lattice. A lattice that does not go on around the ends
    of space as between them, and cells that are near, are read at the distances that they are.
    """
    if not program.has_strides:  # it is already
        return program
    graph, done = program.graph, dict[Node, Node]()

    def of(nodes: Sequence[Node]) -> tuple[Node, ...]:
        for node in in_order(nodes, done):
            if node.op == "load":
                cells = where.get(node.input)
                axes = zip(node.offset, cells.step if cells else (), graph.space, strict=False)
                if cells and all(abs(at) <= NEAR * step or n % step for at, step, n in axes):
                    done[node] = node
                else:
                    done[node] = graph.load_at(node.input, node.dtype, node.offset, node.component)
            elif node.operands:
                done[node] = rebuilt(graph, node, [done[one] for one in node.operands])
            else:
                done[node] = node
        return tuple(done[node] for node in nodes)

    def of_definition(one: Any) -> Any:
        """Return what defines a value or an array; of loops, what they read are whole arrays."""
        return replace(one, nodes=of(one.nodes)) if isinstance(one, Reduction) else one

    return replace(
        program,
        outputs=tuple(replace(one, nodes=of(one.nodes)) for one in program.outputs),
        between={
            number: of([one])[0] if isinstance(one, Node) else of_definition(one)
            for number, one in program.between.items()
        },
        values={number: of_definition(one) for number, one in program.values.items()},
    )


def _lattice(demand: Demand, space: Shape, longest: Sequence[int], *, single: bool) -> LevelGrid:
    """Return the lattice of all positions at which an array is read.

    An array that is read around the ends of space goes on there as between them. A single position is part of
    the coarsest grid that has it: of 3 vertices, the one between two edges that are constants. The first
    position is part of all grids: its axis is as coarse as the others.

    longest: the longest distance along each axis that is shorter around the ends. single: whether the
    lattice may be of one position along an axis.
    """
    pairs = []
    coarsest = max(one.step or one.low & -one.low for one in demand) or 1
    for one, n, further in zip(demand, space, longest, strict=True):
        step = one.step or (n if single else one.low & -one.low or coarsest)
        step = 1 if n % step and further > NEAR * step else step
        pairs.append((one.low % step, step))
    return LevelGrid(tuple(first for first, _ in pairs), tuple(step for _, step in pairs))


def _in_order_of_reads(written: Mapping[int, Node]) -> list[int]:
    """Return the numbers of arrays, each after those that it is computed of."""
    found: dict[int, None] = {}
    open_numbers = list(written)[::-1]
    reads = {
        number: {one.input for one in in_order([node]) if one.op == "load" and one.input in written}
        for number, node in written.items()
    }
    while open_numbers:
        number = open_numbers[-1]
        missing = [one for one in reads[number] if one not in found]
        if missing and number not in found:
            open_numbers += missing
        else:
            found.setdefault(number, None)
            open_numbers.pop()
    return list(found)


def _complete(written: Mapping[int, Node], used: Mapping[Node, int]) -> set[Node]:
    """Return the nodes of arrays that come after all those that they are computed of.

    What such an array is computed of is noted with it: its users need not look further.
    """
    position = {number: place for place, number in enumerate(written)}
    last: dict[Node, int] = {}  # position of the last array that is read for a node
    found = set[Node]()
    for node in in_order(written.values()):
        read = position.get(node.input, -1) if node.op == "load" else -1
        read = max((last[one] for one in node.operands), default=read)
        own = position[used[node]] if node in used else -1
        if own > read:
            found.add(node)
        last[node] = max(own, read)
    return found


@lru_cache(maxsize=1 << 14)
def _joined(one: Demand, other: Demand) -> Demand:
    return tuple([a.joined(b) for a, b in zip(one, other, strict=True)])


def _loads_of(
    graph: WholeGraph, needs: Mapping[Node, Demand], arrays: Collection[int]
) -> Iterable[tuple[Node, Demand]]:
    """Yield the loads of some arrays among nodes, each with the positions at which its array is read.

    needs: the positions at which each node is needed.
    """
    for node, wanted in needs.items():
        if node.op != "load" or node.input not in arrays:
            continue
        parts = [
            _read_along(one, shift, n, wraps=axis in graph.wraps[node.input])
            for axis, (one, shift, n) in enumerate(zip(wanted, node.offset, graph.space, strict=True))
        ]
        if all(part is not None for part in parts):
            yield node, tuple(part for part in parts if part is not None)


def _read_along(positions: Progression, shift: int, length: int, *, wraps: bool) -> Progression | None:
    """Return the positions that are read along an axis; None if none is one of the array's."""
    moved = positions.moved(shift)
    inner = moved.between(0, length - 1)
    if not wraps:
        return inner
    for beyond, further in (
        (moved.between(-length, -1), length),
        (moved.between(length, 2 * length - 1), -length),
    ):
        if beyond is not None:
            inner = beyond.moved(further).joined(inner)
    return inner


class Misaligned(Exception):
    """Why coarse grids have cells at all positions. line: of the user's file; 0 if unknown."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


def _line_of(nodes: Iterable[Node], load: Node) -> int:
    """Return the line where an array is read at a distance; 0 if unknown."""

    def reads(node: Node) -> bool:
        return any((one.input, one.offset) == (load.input, load.offset) for one in node.operands)

    return next((node.line for node in nodes if node.line and reads(node)), 0)


@dataclass(frozen=True)
class Read:
    """How the cells of a lattice read an array.

    array: number. ratio: cells of the array from one cell of the lattice to the next, per axis. Along the
    last axis, so many cells of the array are the components of one. index: the array's cell that is read for
    cell 0, per axis; below the ratio, and 0 along the last axis.
    """

    array: int
    ratio: Shape
    index: Shape


def phases_of(lattice: LevelGrid, nodes: Sequence[Node], where: Mapping[int, LevelGrid]) -> Shape:
    """Return in how many lattices along each axis the cells of one are computed, as some arrays are coarser.

    Raises Misaligned if these are too many.
    """
    steps = list(lattice.step)
    for number in {node.input for node in in_order(nodes) if node.op == "load"}:
        if number in where:
            steps = [math.lcm(a, b) for a, b in zip(steps, where[number].step, strict=True)]
    found = tuple(a // b for a, b in zip(steps, lattice.step, strict=True))
    if math.prod(found) > MOST_PHASES:
        line = next((node.line for node in in_order(nodes)[::-1] if node.line), 0)
        raise Misaligned(f"cells are computed of a grid {max(found)} times as coarse at once", line)
    return found


def part_of(lattice: LevelGrid, phases: Shape, phase: Shape) -> LevelGrid:
    """Return the lattice of every `phases`-th cell of a lattice along each axis, from cell `phase` on."""
    axes = zip(lattice.first, lattice.step, phase, strict=True)
    first = tuple(a + step * at for a, step, at in axes)
    return LevelGrid(first, tuple(step * n for step, n in zip(lattice.step, phases, strict=True)))


@dataclass(eq=False)
class LatticeGraph:
    """Nodes per cell of lattices.

    source: the program, whose nodes are per position. where: of its arrays that have not all positions, the
    lattice. graph: of the new nodes. reads: the inputs of the new nodes, in order. offsets: of each array,
    how far from the own position it is read.
    """

    source: WholeProgram
    where: Mapping[int, LevelGrid]
    graph: WholeGraph
    reads: dict[Read, int] = field(default_factory=dict)
    offsets: dict[int, list[Shape]] = field(default_factory=dict)

    def of(self, nodes: Sequence[Node], lattice: LevelGrid) -> tuple[Node, ...]:
        """Return nodes per position as nodes per cell. Raises Misaligned."""
        graph, done = self.graph, dict[Node, Node]()
        counts = lattice.lengths(self.source.space)
        if 0 in counts:
            return tuple(graph.constant(np.zeros((), node.dtype), node.dtype) for node in nodes)
        demands = demands_of(nodes, tuple(map(_steps, lattice.first, lattice.step, counts)))
        open_nodes = list(nodes)[::-1]
        while open_nodes:
            node = open_nodes[-1]
            # What no cell chooses is not computed.
            needed: Sequence[Node] = node.operands
            chosen = _only_choice(node, demands)
            if chosen is not None:
                needed = (chosen,)
            missing = [one for one in needed if one not in done]
            if missing and node not in done:
                open_nodes += missing[::-1]
                continue
            open_nodes.pop()
            if node in done:
                continue
            if not node.operands:
                done[node] = self._leaf(node, lattice)
            elif chosen is not None:
                done[node] = done[chosen]
            else:
                operands = [done[one] for one in node.operands]
                done[node] = graph.operation(node.op, node.dtype, operands, node.line)
        return tuple(done[node] for node in nodes)

    def _leaf(self, node: Node, lattice: LevelGrid) -> Node:
        graph = self.graph
        if node.op == "place":
            axis, shift = node.value
            first, step = lattice.first[axis], lattice.step[axis]
            if step == 1:
                return graph.place(axis, shift + first)
            scaled = graph.operation("multiply", PLACE, (graph.place(axis), graph.constant(step, PLACE)))
            return graph.operation("add", PLACE, (scaled, graph.constant(shift + first, PLACE)))
        if node.op == "inside":
            return self._inside(node, lattice)
        if node.op == "load":
            return self._load(node, lattice)
        return graph.leaf(node)

    def _inside(self, node: Node, lattice: LevelGrid) -> Node:
        """Return the condition of cells; a constant if it is the same for all of them."""
        axis = node.value[0]
        first, every = lattice.first[axis], lattice.step[axis]
        count = lattice.lengths(self.source.space)[axis]
        positions = _steps(first, every, count) if count else None
        true = positions and positions.within(node)
        if true is None or len(true) == count:
            return self.graph.constant(true is not None, BOOL)
        begin, end = ((at - first) // every for at in (true.low, true.high))
        return self.graph.inside(axis, begin, end + 1, max(true.step // every, 1))

    def _load(self, node: Node, lattice: LevelGrid) -> Node:
        space = self.source.space
        cells = self.where.get(node.input) or whole_space(len(space))
        ratio, index = [], []
        axes = zip(lattice.first, lattice.step, node.offset, cells.first, cells.step, strict=True)
        for first, step, offset, first_cell, every in axes:
            if step % every or (first + offset - first_cell) % every:
                reason = f"cells {max(every, step)} positions apart are read between them"
                raise Misaligned(reason, _line_of(self.source.nodes, node))
            ratio.append(step // every)
            index.append((first + offset - first_cell) // every)
        self.offsets.setdefault(node.input, []).append(node.offset)
        phase = [at % n for at, n in zip(index, ratio, strict=True)]
        distance = tuple(at // n for at, n in zip(index, ratio, strict=True))
        inputs = self.source.inputs
        inner = inputs[node.input].shape[len(space) :] if node.input < len(inputs) else ()
        component = phase[-1] * math.prod(inner) + node.component
        read = Read(node.input, tuple(ratio), (*phase[:-1], 0))
        number = self.reads.setdefault(read, len(self.reads))
        return self.graph.load(number, node.dtype, distance, component)


def _only_choice(node: Node, demands: Mapping[Node, Demand]) -> Node | None:
    """Return what a choice by position is wherever it is needed; None if it is not one of its two values."""
    if node.op != "where" or node.operands[0].op != "inside":
        return None
    condition, chosen, other = node.operands
    along = demands[node][condition.value[0]]
    if along.within(condition) is None:
        return other
    return chosen if along.without(condition) is None else None


def _steps(first: int, step: int, count: int) -> Progression:
    return Progression(first, first + step * (count - 1), step if count > 1 else 0)
