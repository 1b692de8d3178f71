"""Find what a program computes far from the ends of the whole array, where conditions are decided.

A function of whole arrays writes edges by index: conditions on the place change a few cells from an end. The
interior program has none of these conditions, nor what only they need; kernels compute most cells by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshrun.runner.compiler.operations import INEXACT
from meshrun.runner.compiler.trace.graph import Extents, Graph, Node, Program
from meshrun.runner.region import Shape

NEAR = 4  # a condition that changes further from an end than this part of an axis stays in the interior


def ends_of(program: Program) -> Extents:
    """Return how many cells from each end conditions differ from those of the middle.

    Returns
    -------
    Per grid axis: cells before and after the interior, which has at least half of the axis' cells.
    """
    found = []
    for axis in range(program.axes):
        length = program.lengths[axis] if program.lengths else 0
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

    def decided(node: Node) -> Node:
        axis, low, high, step = node.value
        if last[axis] <= low or first[axis] >= high:
            return graph.constant(False, node.dtype)
        covered = low <= first[axis] and last[axis] <= high
        if covered and (step == 1 or last[axis] - first[axis] == 1):
            return graph.constant((first[axis] - low) % step == 0, node.dtype)
        return node

    # From the results down: what a condition leaves out is not looked at.
    for result in [node for nodes in results for node in nodes]:
        open_nodes = [result]
        while open_nodes:
            node = open_nodes[-1]
            if node in done:
                open_nodes.pop()
            elif node.op == "inside":
                done[node] = decided(node)
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
    if all(a is b for a, b in zip(operands, node.operands, strict=True)):
        return node
    if node.op == "where" and operands[1] is operands[2]:
        return operands[1]
    # NumPy would compute it now, and the device where conditions are not decided: with other last bits.
    if node.op in INEXACT and all(operand.op == "constant" for operand in operands):
        return node
    return graph.operation(node.op, node.dtype, operands, node.line)
