"""Find what a program computes far from the ends of the whole array, where conditions are decided.

A function of whole arrays writes edges by index: conditions on the place change a few cells from an end. The
interior program has none of these conditions, nor what only they need; kernels compute most cells by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.trace.graph import Extents, Graph, Node, Program, in_order
from meshrun.runner.region import Shape

ADDED = 8  # operations of a cell for each that conditions along rows may add to it
HIDDEN = 3  # operations for each byte of a cell that a GPU does while it waits for memory, whatever they are
NEAR = 4  # a condition that changes further from an end than this part of an axis stays in the interior
MOST_VISITED = 20_000  # nodes, each once for each box in which it is wanted

Part = tuple[Node, Shape, Shape]  # a node, and the box in which it is wanted


def ends_of(program: Program) -> Extents:
    """Return how many cells from each end conditions differ from those of the middle.

    Returns
    -------
    Per grid axis: cells before and after the interior, which has at least half of the axis' cells.
    """
    found = []
    for axis in range(program.axes):
        length = program.lengths[axis] if program.lengths else 0
        if program.whole_rows and axis == program.axes - 1:
            length = 0
        changes = [
            at
            for node in program.conditions
            if node.value[0] == axis
            for at in node.value[1:3]
            if 0 < at < length
        ]
        near = length // NEAR
        before = max((at for at in changes if at <= near), default=0)
        after = max((length - at for at in changes if length - at <= near), default=0)
        found.append((before, after))
    return tuple(found)


def interior(program: Program) -> Program:
    """Return the program of the cells that are further from all ends than `ends_of` says.

    Conditions that change in the middle of the array, or from cell to cell (a stride), stay. Without ends it
    is the program itself.
    """
    ends = ends_of(program)
    if not any(map(any, ends)):
        return program
    first = tuple(before for before, _ in ends)
    last = tuple(length - after for length, (_, after) in zip(program.lengths, ends, strict=True))
    return replace(program, results=specialised(program.graph, program.results, first, last))


def with_whole_rows(program: Program) -> Program:
    """Return a program over three axes with whole rows in its interior, if that adds little to a cell.

    The ends of the rows of a volume are two columns, of which each cell is in another line of memory: cells
    that others than their neighbours compute take longer than many conditions.
    """
    if program.axes < 3 or not any(ends_of(program)[-1]):
        return program
    changed = replace(program, whole_rows=True)
    inner, rows = interior(program), interior(changed)
    added = rows.operations - inner.operations
    operands = (*program.inputs, *program.outputs)
    nbytes = sum(one.dtype.itemsize * one.components for one in operands if not one.combine)
    little = added * ADDED <= inner.operations or rows.operations <= HIDDEN * nbytes
    return changed if little and set(rows.loads) == set(inner.loads) else program


def specialised(
    graph: Graph, results: Sequence[Sequence[Node]], first: Shape, last: Shape
) -> tuple[tuple[Node, ...], ...]:
    """Return the results for the places of one box, conditions decided that are the same for all of them.

    Parameters
    ----------
    graph: of the nodes.
    results: of each output, a node per component.
    first, last: per axis, the first place and the one after the last.
    """
    done = dict[Node, Node]()

    # From the results down: what a condition leaves out is not looked at.
    for result in [node for nodes in results for node in nodes]:
        open_nodes = [result]
        while open_nodes:
            node = open_nodes[-1]
            if node in done:
                open_nodes.pop()
            elif node.op == "inside":
                done[node] = _decided(graph, node, first, last)
            elif not node.operands:
                done[node] = node
            elif node.op == "where" and node.operands[0] not in done:
                open_nodes.append(node.operands[0])
            elif node.op == "where" and done[node.operands[0]].op == "constant":
                chosen = node.operands[1 if done[node.operands[0]].value else 2]
                if chosen in done:
                    done[node] = done[chosen]
                else:
                    open_nodes.append(chosen)
            elif missing := [operand for operand in node.operands if operand not in done]:
                open_nodes += missing
            else:
                done[node] = _rebuilt(graph, node, [done[operand] for operand in node.operands])
    return tuple(tuple(done[node] for node in nodes) for nodes in results)


def _rebuilt(graph: Graph, node: Node, operands: Sequence[Node]) -> Node:
    """Return the operation on other operands."""
    if tuple(operands) == node.operands:  # nodes are equal if they are the same
        return node
    if node.op == "where" and operands[1] is operands[2]:
        return operands[1]
    # NumPy would compute it now, and the device where conditions are not decided: with other last bits.
    if all(operand.op == "constant" for operand in operands) and inexact_operations([node]):
        return node
    return graph.operation(node.op, node.dtype, operands, node.line)


def narrowed(
    graph: Graph, results: Sequence[Sequence[Node]], first: Shape, last: Shape
) -> tuple[tuple[Node, ...], ...]:
    """Return the results for the places of a box, conditions decided by those around them.

    What a cell has if its place is within one condition is wanted there alone, and so is what it has
    otherwise, if that is a box, too: conditions in it are decided that are the same for all of its places. An
    edge that is a copy of the row beside it is then the same expression as that row.

    Parameters
    ----------
    graph, results, first, last: as of `specialised`, which does the rest for very large programs.
    """
    placed: set[Node] = set()  # those with conditions
    for node in in_order(node for nodes in results for node in nodes):
        if node.op == "inside" or not placed.isdisjoint(node.operands):
            placed.add(node)
    done = dict[Part, Node]()
    needs = dict[Part, list[Part]]()  # of those that wait
    for result in [node for nodes in results for node in nodes]:
        waiting: list[Part] = [(result, first, last)]
        while waiting:
            if len(done) > MOST_VISITED:
                return specialised(graph, results, first, last)
            part = node, low, high = waiting[-1]
            needed = needs.pop(part, [])
            if not needed and part not in done and node in placed:
                needed = _needed(graph, part)
                if missing := [one for one in needed if one not in done]:
                    needs[part] = needed
                    waiting += missing
                    continue
            waiting.pop()
            if node not in placed:
                done[part] = node
            elif node.op == "inside":
                done[part] = _decided(graph, node, low, high)
            elif len(needed) == 1 < len(node.operands):
                done[part] = done[needed[0]]
            elif part not in done:
                done[part] = _rebuilt(graph, node, [done[one] for one in needed])
    return tuple(tuple(done[node, first, last] for node in nodes) for nodes in results)


def _needed(graph: Graph, part: Part) -> list[Part]:
    """Return the operands of a node, each with the box in which it is wanted.

    Of a choice that is decided in the whole box, what is chosen alone.
    """
    node, low, high = part
    if node.op != "where" or node.operands[0].op != "inside":
        return [(operand, low, high) for operand in node.operands]
    condition, chosen, other = node.operands
    decided = _decided(graph, condition, low, high)
    if decided.op == "constant":
        return [(chosen if decided.value else other, low, high)]
    within, beside = _sides(condition, low, high)
    return [(condition, low, high), (chosen, *within), (other, *beside)]


def _decided(graph: Graph, node: Node, first: Shape, last: Shape) -> Node:
    """Return a condition on the place as a constant, if it is the same for all places of a box."""
    axis, low, high, step = node.value
    if last[axis] <= low or first[axis] >= high:
        return graph.truth(False)
    covered = low <= first[axis] and last[axis] <= high
    if covered and (step == 1 or last[axis] - first[axis] == 1):
        return graph.truth((first[axis] - low) % step == 0)
    return node


def _sides(condition: Node, first: Shape, last: Shape) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
    """Return the boxes of the places within a condition and of the others, as far as these are boxes."""
    axis, low, high, step = condition.value

    def box(begin: int, end: int) -> tuple[Shape, Shape]:
        return (*first[:axis], begin, *first[axis + 1 :]), (*last[:axis], end, *last[axis + 1 :])

    begin, end = first[axis], last[axis]
    within = box(max(low, begin), min(high, end))
    if step > 1 or (begin < low and high < end):
        return within, (first, last)
    return within, box(high, end) if low <= begin else box(begin, low)
