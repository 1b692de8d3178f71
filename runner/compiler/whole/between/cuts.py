"""Where a program is cut into stages: which arrays are written, and which are computed where they are read.

What is read at several distances can be computed again at each of them, by one kernel, from cells that lie
further away; or it can be written by one stage and read by the next. Both give the same bits. It is written
where the operations that would be repeated take longer than its bytes. Edges do not count: they are thin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshrun.runner.compiler.passes.real_parts import value_in_parts
from meshrun.runner.compiler.trace.array import MOST_NODES
from meshrun.runner.compiler.trace.graph import Node, Offset, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.between.levels import demands_of, lattices, positions_of, whole_space
from meshrun.runner.compiler.whole.between.recorded_loop import MappedLoops, loops_of
from meshrun.runner.compiler.whole.between.stage_costs import FREE, StageCosts, main_path
from meshrun.runner.compiler.whole.graph import (
    LEAVES,
    POSITIONED,
    Cut,
    Definition,
    LoopResult,
    Reduction,
    StepSlot,
    WholeGraph,
    rebuilt,
)
from meshrun.runner.compiler.whole.program import WholeProgram

# Operations for each byte that is written and read again, of a 4-byte and of an 8-byte dtype.
OPERATIONS_PER_BYTE = {"cuda": {4: 7.0, 8: 3.5}, "cpu": {4: 2.0, 8: 1.0}}
MOST_FUSED = 512  # nodes of an array that is computed where it is read, of a function with coarse grids
MOST_PARTS = 16  # in which a stage is computed, of one that reads coarser grids
MOST_MADE = 16 * MOST_NODES  # nodes that are made while arrays are computed where they are read


class TooManyNodes(Exception):
    """More nodes than `MOST_MADE` would be made."""


def resolved(program: WholeProgram, kind: str | None = None) -> WholeProgram:
    """Return the program with the arrays that stages write, and why.

    kind: of device, "cpu" or "cuda"; None: nothing is written that can be computed where it is read. Of
    `written`, `reduced` and `values`, those remain that are needed.
    """
    needed = Needed(program)
    staged = needed.staged
    if not staged and (program.graph.points or program.series):
        kind = None
    if program.has_strides:
        needed.add_coarse(program)
    cuts = _cuts(program, needed, kind or "cpu")
    choices = [[]] if kind is None else [[number for number, cut in cuts.items() if cut.written], list(cuts)]
    for kept in choices:
        try:
            found = _with_arrays(program, needed, set(kept))
        except TooManyNodes:
            continue
        if kind is not None:
            found = _with_shared(found, kind)
        if _most_nodes(found) <= MOST_NODES:
            program.graph.cuts += tuple(cuts.values())
            return _with_resolved_bodies(found, kind)
        program.graph.cuts = ()
    raise NotTraceable(f"does more than {MOST_NODES} operations for each cell")


class Needed:
    """The arrays and values that a program's outputs need; not the tape's slots.

    written: each array after those that it is computed of.
    """

    def __init__(self, program: WholeProgram) -> None:
        self.written: dict[int, Node] = {}
        self.reduced: dict[int, Reduction] = {}
        self.left: dict[int, LoopResult] = {}
        self.values: dict[int, Definition] = {}
        roots = [node for output in program.outputs for node in output.nodes]
        roots += [node for series in program.series for node in series.nodes]
        open_nodes = roots + [check.count for check in program.checks]
        seen = set[Node]()
        while open_nodes:
            for node in in_order([open_nodes.pop()], seen):
                seen.add(node)
                open_nodes += program.graph.picked_nodes([node])
                number = node.input if node.op == "load" else node.value
                if node.op == "load" and number in program.written and number not in self.written:
                    self.written[number] = program.written[number]
                    open_nodes.append(self.written[number])
                elif node.op == "load" and number in program.reduced and number not in self.reduced:
                    self.reduced[number] = program.reduced[number]
                    open_nodes += self.reduced[number].nodes
                elif node.op == "load" and number in program.left and number not in self.left:
                    self.left[number] = program.left[number]
                    open_nodes += self.left[number].loop.outside
                elif node.op == "scalar" and number in program.values and number not in self.values:
                    definition = self.values[number] = program.values[number]
                    if isinstance(definition, Reduction):
                        open_nodes += definition.nodes
                    elif isinstance(definition, LoopResult):
                        open_nodes += definition.loop.outside
        self.written = dict(sorted(self.written.items()))

    def add_coarse(self, program: WholeProgram) -> None:
        """Add what is computed of a finer grid and used more than once: it may be written, as the others.

        Where it is not, each stage that uses it reads the finer grid.
        """
        graph, space = program.graph, program.space
        definitions = {node: number for number, node in self.written.items()}
        found = lattices(replace(program, between=self.written), used=definitions)
        grids = found.grids
        results = [node for output in program.outputs for node in output.nodes]
        results += [node for one in self.reductions for node in one.nodes]
        results += [node for one in self.loops for node in one.outside]
        users: dict[Node, int] = {}
        for node in in_order([*results, *self.written.values()]):
            for operand in set(node.operands):
                users[operand] = users.get(operand, 0) + 1

        def cells(number: int) -> int:
            return math.prod(grids[number].lengths(space)) if number in grids else math.prod(space)

        ordered: dict[int, Node] = {}
        known = set(definitions)
        for number, array in [*self.written.items(), (-1, None)]:
            if array is None:
                needs = demands_of(results, positions_of(whole_space(len(space)), space), found.complete)
            else:
                needs = found.needs[number]
            for node in in_order(results if array is None else [array], found.complete - {array}):
                if node in known or node not in needs or users.get(node, 0) < 2 or node.op in LEAVES:
                    continue
                own = math.prod(map(len, needs[node]))
                path = main_path(program, [node], known.difference([node]).__contains__)
                finer = [one for one in path if one.op == "load" and cells(one.input) > own]
                if finer and all(graph.varies([node], axis) for axis in range(len(space))):
                    ordered[graph.array_between(node)] = node
                    known.add(node)
            if array is not None:
                ordered[number] = array
        self.written = ordered

    @property
    def loops(self) -> list[Any]:
        """The loops whose results are needed."""
        return loops_of([*self.left.values(), *self.values.values()])

    @property
    def staged(self) -> bool:
        """Whether the program runs in stages: it has values, reductions or loops."""
        return bool(self.reduced or self.values or self.left)

    @property
    def reductions(self) -> list[Reduction]:
        of_values = [one for one in self.values.values() if isinstance(one, Reduction)]
        return [*self.reduced.values(), *of_values]


def _cuts(program: WholeProgram, needed: Needed, kind: str) -> dict[int, Cut]:
    """Decide from the last array to the first: how far from a cell one is read depends on the later ones."""
    results = [[node for output in program.outputs for node in output.nodes]]
    results += [list(one.nodes) for one in needed.reductions]
    results += [list(loop.outside) for loop in needed.loops]
    if not program.has_strides:  # `_with_shared` decides what several stages of one grid share
        results = [[node for nodes in results for node in nodes]]
    costs, found = StageCosts(program, needed.written, results), dict[int, Cut]()
    for number in reversed(needed.written):
        work, node = costs.of(number), needed.written[number]
        size = 8 if node.dtype.itemsize > 4 else 4
        worth = int(work.nbytes * OPERATIONS_PER_BYTE["cpu" if kind == "cpu" else "cuda"][size])
        repeated = round(work.operations)
        cut = Cut(number, node.line, work.distances, repeated, worth, splits=work.parts > MOST_PARTS)
        found[number] = cut
        costs.decide(number, written=cut.written)
    return dict(sorted(found.items()))


def _with_arrays(program: WholeProgram, needed: Needed, kept: set[int]) -> WholeProgram:
    """Return the program in which stages write the arrays `kept`."""
    graph, done = program.graph, dict[Node, Node]()
    definitions: dict[int, Node] = {}
    moves = Moves(program)
    zero, before = (0,) * len(program.space), len(graph)

    def of(nodes: Iterable[Node]) -> tuple[Node, ...]:
        wanted = list(nodes)
        for node in in_order(wanted, done):
            if node.op == "load" and node.input in needed.written:
                if node.input in kept:
                    done[node] = moves.load(node, node.offset)
                else:
                    done[node] = moves.moved(definitions[node.input], node.offset)
                    if len(graph) - before > MOST_MADE:
                        raise TooManyNodes
            elif node.op in LEAVES:
                done[node] = node
            else:
                done[node] = rebuilt(graph, node, [done[one] for one in node.operands])
        return tuple(done[node] for node in wanted)

    # Arrays and the values that they need, in the function's order.
    for number in needed.written:
        (definitions[number],) = of([needed.written[number]])
        # From level to level, expressions would grow: what has become long is written.
        fused = len(in_order([definitions[number]]))
        if program.has_strides and fused > MOST_FUSED:
            kept.add(number)
        if number in kept:  # other stages read what one has written, also of the own cell
            node = needed.written[number]
            done[node] = graph.load_at(number, node.dtype, zero)
    uniform = _Uniform(graph)

    def cells(nodes: Iterable[Node]) -> tuple[Node, ...]:
        return uniform.of(of(nodes))

    # What a loop begins with are arrays and values.
    begun: dict[int, Node] = {}

    def begins(nodes: Sequence[Node], are_values: Sequence[bool]) -> list[Node]:
        found = []
        for node, is_value in zip(of(nodes), are_values, strict=True):
            if is_value:
                found.append(uniform.stored(node))
            elif node.op == "load" and node.offset == zero and node.component == 0:
                found.append(node)
            else:
                number = graph.array_between(node)
                begun[number] = node
                found.append(graph.load(number, node.dtype, zero))
        return found

    mapped = MappedLoops(begins)
    left = {number: mapped.result(one) for number, one in needed.left.items()}

    def reduction(one: Reduction) -> Reduction:
        return replace(one, nodes=cells(one.nodes))

    outputs = tuple(
        replace(output, nodes=cells(output.nodes) if output.shape else uniform.values(of(output.nodes)))
        for output in program.outputs
    )

    def series(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return a series' values at points, or numbers as values of stages."""
        if needed.staged and not graph.vary(nodes):
            return uniform.values(of(nodes))
        return cells(nodes) if needed.staged else of(nodes)

    values: dict[int, Definition] = {
        number: reduction(one)
        if isinstance(one, Reduction)
        else mapped.result(one)
        if isinstance(one, LoopResult)
        else one
        for number, one in needed.values.items()
    }
    reduced = {number: reduction(one) for number, one in needed.reduced.items()}
    written = {number: uniform.of([definitions[number]])[0] for number in sorted(kept)}
    written |= {number: uniform.of([node])[0] for number, node in begun.items() if number not in written}
    checks = tuple(replace(one, count=uniform.values([one.count])[0]) for one in program.checks)
    return replace(
        program,
        outputs=outputs,
        series=tuple(replace(one, nodes=series(one.nodes)) for one in program.series),
        between={**written, **reduced, **left},
        values=values | uniform.made,
        checks=checks,
    )


def _with_resolved_bodies(program: WholeProgram, kind: str | None) -> WholeProgram:
    """Return a program in which the stages of the loops' bodies are decided, too."""
    loops = {
        one: replace(one, body=resolved(one.body, kind or "cpu"))
        for one in loops_of([*program.left.values(), *program.values.values()])
    }

    def of(one: Any) -> Any:
        return replace(one, loop=loops[one.loop]) if isinstance(one, LoopResult) else one

    between = {number: of(one) for number, one in program.between.items()}
    return replace(program, between=between, values={n: of(one) for n, one in program.values.items()})


def _with_shared(program: WholeProgram, kind: str) -> WholeProgram:
    """Return the program in which a stage also writes what several stages would compute of one cell.

    Every reduction is a stage, and so is all that fields and arrays between stages need.
    """
    graph = program.graph
    reductions = [one for one in program.values.values() if isinstance(one, Reduction)]
    stages = [list(one.nodes) for one in (*program.reduced.values(), *reductions)]
    stages.append([node for output in program.outputs if output.shape for node in output.nodes])
    stages += [[node] for node in program.written.values()]
    # How many stages compute each node.
    computing: dict[Node, int] = {}
    for roots in stages:
        for node in main_path(program, roots):
            computing[node] = computing.get(node, 0) + 1
    # From the results down, the first that is worth its bytes.
    chosen: dict[Node, Node] = {}
    open_nodes, seen = [node for roots in stages for node in roots], set[Node]()
    while open_nodes:
        node = open_nodes.pop()
        if node in seen or node in chosen:
            continue
        seen.add(node)
        again = computing.get(node, 1) - 1
        if again and node.op not in LEAVES and node not in program.written.values():
            own = [one for one in main_path(program, [node]) if one.op not in FREE]
            varies = all(graph.varies([node], axis) for axis in range(len(program.space)))
            size = max(node.dtype.itemsize, 1)
            worth = int(2 * size * OPERATIONS_PER_BYTE[kind][8 if size > 4 else 4])
            if varies and again * len(own) > worth:
                number = graph.array_between(node)
                chosen[node] = graph.load(number, node.dtype, (0,) * len(program.space))
                graph.cuts += (Cut(number, node.line, again + 1, again * len(own), worth),)
                continue
        open_nodes += node.operands
    if not chosen:
        return program

    done = dict(chosen)

    def of(nodes: Iterable[Node]) -> tuple[Node, ...]:
        wanted = list(nodes)
        for node in in_order(wanted, done):
            operands = [done[one] for one in node.operands]
            done[node] = rebuilt(graph, node, operands) if operands else node
        return tuple(done[node] for node in wanted)

    written = {number: of([node])[0] for number, node in program.written.items()}
    for node, load in chosen.items():
        operands = of(node.operands)
        written[load.input] = rebuilt(graph, node, operands)
    reduced = {number: replace(one, nodes=of(one.nodes)) for number, one in program.reduced.items()}
    values: dict[int, Definition] = {
        number: replace(one, nodes=of(one.nodes)) if isinstance(one, Reduction) else one
        for number, one in program.values.items()
    }
    return replace(
        program,
        outputs=tuple(replace(one, nodes=of(one.nodes)) for one in program.outputs),
        between={**written, **reduced, **program.left},
        values=values,
    )


class Moves:
    """Computes nodes at a distance.

    Of arrays that are written, the nearest of equal distances is read; of a function with coarse grids, once
    their lattices are known (`levels.with_nearest`).
    """

    def __init__(self, program: WholeProgram) -> None:
        self._graph, self._program = program.graph, program
        self._done: dict[Offset, dict[Node, Node]] = {}

    def load(self, node: Node, offset: Offset) -> Node:
        """Return a load of the same array at another distance."""
        if self._program.has_strides and node.input >= len(self._program.inputs):
            return self._graph.load(node.input, node.dtype, offset, node.component)
        return self._graph.load_at(node.input, node.dtype, offset, node.component)

    def moved(self, node: Node, shift: Offset) -> Node:
        if not any(shift):
            return node
        done = self._done.setdefault(shift, {})
        for one in in_order([node], done):
            done[one] = self._one(one, shift, done)
        return done[node]

    def _one(self, node: Node, shift: Offset, done: Mapping[Node, Node]) -> Node:
        graph = self._graph
        if node.op == "load":
            return self.load(node, tuple(a + b for a, b in zip(node.offset, shift, strict=True)))
        if node.op in LEAVES:
            return graph.moved_leaf(node, shift) if node.op in POSITIONED else node
        return rebuilt(graph, node, [done[one] for one in node.operands])


class _Uniform:
    """Replaces operations on values alone by values. made: their definitions.

    What is computed of the tape's slots alone stays where it is: it needs no value of its own.
    """

    def __init__(self, graph: WholeGraph) -> None:
        self._graph, self.made = graph, dict[int, Definition]()
        self._done: dict[Node, Node] = {}
        self._alike: dict[Node, bool] = {}  # whether all cells share it
        self._known: dict[Node, bool] = {}  # and whether it is computed of values of stages

    def _is_uniform(self, node: Node) -> bool:
        return node.op in ("scalar", "constant") or self._alike.get(node, False)

    def _has_value(self, node: Node) -> bool:
        slot = node.op == "scalar" and isinstance(self._graph.values[node.value], StepSlot)
        return (node.op == "scalar" and not slot) or self._known.get(node, False)

    def of(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return nodes of cells, in which each value is computed once for all cells."""
        wanted, done = list(nodes), self._done
        for node in in_order(wanted, done):
            if node.op in LEAVES:
                done[node] = node
                continue
            self._alike[node] = all(map(self._is_uniform, node.operands))
            self._known[node] = self._alike[node] and any(map(self._has_value, node.operands))
            if not self._known[node]:
                operands = [
                    self.value(done[one]) if self._known.get(one) else done[one] for one in node.operands
                ]
                done[node] = rebuilt(self._graph, node, operands)
            else:
                done[node] = node
        return tuple(self.value(node) if self._known.get(node) else done[node] for node in wanted)

    def values(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the scalars of values."""
        return tuple(self.value(node) for node in self.of(nodes))

    def value(self, node: Node) -> Node:
        """Return the scalar of a value; of a complex one, the number that its two scalars are."""
        if node.op == "scalar":
            return node
        if any(one.dtype.kind == "c" for one in in_order([node])):
            parts = [self.value(part) for part in value_in_parts(self._graph, node)]
            return parts[0] if len(parts) == 1 else self._graph.operation("complex", node.dtype, parts)
        scalar = self._graph.value(node, node.dtype)
        self.made[scalar.value] = node
        return scalar

    def stored(self, node: Node) -> Node:
        """Return the scalar of a value that has one also where it is a constant; of a complex one, both."""
        if node.dtype.kind == "c":
            parts = [self.stored(part) for part in value_in_parts(self._graph, node)]
            return self._graph.operation("complex", node.dtype, parts)
        (node,) = self.of([node])
        return self.value(node)


def _most_nodes(program: WholeProgram) -> int:
    """Return the number of nodes of the largest stage."""
    stages: list[Sequence[Node]] = [[node for output in program.outputs for node in output.nodes]]
    stages += [[node] for node in program.written.values()]
    definitions: Mapping[int, Definition] = program.values
    for one in (*program.reduced.values(), *definitions.values()):
        stages.append(one.nodes if isinstance(one, Reduction) else [one] if isinstance(one, Node) else [])
    return max(len(in_order(nodes)) for nodes in stages)
