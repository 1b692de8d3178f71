"""Find costly values that several cells read: a kernel on the host computes each of them once.

`b = sin(a); b[1:-1, 2:] - b[1:-1, :-2]` reads the same sine at two cells. A program has a node for each of
them, so a loop over its nodes computes each sine twice. Here, one loop over a row of cells computes values
and stores them in rows of memory, from which the program loads them. A row is kept while cells read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from meshrun.runner.compiler.operations import INEXACT, whole_exponent
from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program, in_order

SCALAR = frozenset(["floor_divide", "remainder", "fmod"])  # operations that have no vectors
Range = tuple[int, int]  # first and last offset
Offset = tuple[int, int]  # along the axis before the last one (0 if there is none), and along the last one


@dataclass(frozen=True)
class KeptRows:
    """Values that are computed together, for the cells at all offsets from `rows` and `columns`.

    program: its outputs are the values. Its inputs are those of the whole program, and values that other
    `KeptRows` computed before. first: number of the input that its first output becomes.
    """

    program: Program
    first: int
    rows: Range
    columns: Range


@dataclass(frozen=True)
class _Group:
    """Offsets at which values are read. level: 0 if only results read the values, otherwise 1 more than the
    level of the groups that do."""

    level: int
    rows: Range
    columns: Range


RESULTS = _Group(-1, (0, 0), (0, 0))  # the program's own results read at their own cell


def is_costly(node: Node) -> bool:
    """Return whether an operation takes longer than to store its result and to load it again."""
    return is_scalar(node) or (node.op in INEXACT and not whole_exponent(node))


def is_scalar(node: Node) -> bool:
    """Return whether no loop over an operation is vectorised."""
    return node.op in SCALAR or (node.op == "power" and node.dtype.kind in "iu")


def kept_rows(program: Program) -> tuple[Program, list[KeptRows]]:
    """Return the program that loads values which are kept, and what computes them, in order.

    Values that are read at one offset stay in the program. If its cells have places, all values stay: a value
    may then be a different one for each cell that reads it.
    """
    if program.has_places or not any(map(is_costly, program.nodes)):
        return program, []
    groups = _groups(program)

    # The values are inputs after those of the program.
    inputs, number = list(program.inputs), dict[Node, int]()
    for node in (node for members in groups.values() for node in members):
        number[node] = len(inputs)
        inputs.append(Operand(f"kept{len(number)}", node.dtype))

    graph, kept = Graph(), []
    for group, members in groups.items():
        results = tuple(
            (
                graph.operation(
                    node.op, node.dtype, _loading(node.operands, program, number, graph), node.line
                ),
            )
            for node in members
        )
        outputs = tuple(inputs[number[node]] for node in members)
        own = replace(program, inputs=tuple(inputs), outputs=outputs, results=results, graph=graph)
        kept.append(KeptRows(own, number[members[0]], group.rows, group.columns))
    loading = tuple(tuple(_loading(result, program, number, graph)) for result in program.results)
    return replace(program, inputs=tuple(inputs), results=loading, graph=graph), kept


def _groups(program: Program) -> dict[_Group, list[Node]]:
    """Return the values to keep, each moved to its own cell, in the order in which they are computed."""
    values = dict.fromkeys(_moved(node, program)[0] for node in program.nodes if _is_movable(node))
    reads: dict[Node, set[tuple[_Group, Offset]]] = {value: set() for value in values}
    groups: dict[_Group, list[Node]] = {}

    def read(nodes: Iterable[Node], reader: _Group, offset: Offset) -> None:
        for node in _costly_needs(nodes):
            value, at = _moved(node, program)
            reads[value].add((reader, (offset[0] + at[0], offset[1] + at[1])))

    # What reads a value comes before it.
    read([node for result in program.results for node in result], RESULTS, (0, 0))
    for value in reversed(values):
        if len(reads[value]) == 1:  # its only reader computes it
            (read_by,) = reads[value]
            read(value.operands, *read_by)
            continue
        rows = [at + row for reader, (row, _) in reads[value] for at in reader.rows]
        columns = [at + column for reader, (_, column) in reads[value] for at in reader.columns]
        level = max(reader.level for reader, _ in reads[value]) + 1
        group = _Group(level, (min(rows), max(rows)), (min(columns), max(columns)))
        groups.setdefault(group, []).append(value)
        read(value.operands, group, (0, 0))
    return dict(sorted(groups.items(), key=lambda item: -item[0].level))


def _is_movable(node: Node) -> bool:
    """Return whether a costly value depends on the cell."""
    return is_costly(node) and any(one.op == "load" for one in in_order([node]))


def _moved(node: Node, program: Program) -> tuple[Node, Offset]:
    """Return the same value for the cell of its first load, and the offset of that cell.

    Along the last two axes: values of different planes are different values.
    """
    first = next(one.offset for one in in_order([node]) if one.op == "load")
    row, column = (0, *first)[-2:]
    shift = (*[0] * program.axes, -row, -column)[-program.axes :]
    (moved,) = program.graph.shifted([node], shift)
    return moved, (row, column)


def _costly_needs(nodes: Iterable[Node]) -> list[Node]:
    """Return the costly values that nodes are computed from, without those that only these need."""
    found: dict[Node, None] = {}
    seen, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if _is_movable(node):
            found.setdefault(node)
        else:
            waiting += node.operands
    return list(found)


def _loading(nodes: Iterable[Node], program: Program, number: Mapping[Node, int], graph: Graph) -> list[Node]:
    """Return nodes of another graph that load the values that are kept. number: the input of each value."""
    wanted, made = list(nodes), dict[Node, Node]()
    for node in in_order(wanted):
        value, offset = _moved(node, program) if _is_movable(node) else (node, (0, 0))
        if value in number and is_costly(value):
            at = (*[0] * program.axes, *offset)[-program.axes :]
            made[node] = graph.load(number[value], node.dtype, at)
        elif node.op == "load":
            made[node] = graph.load(node.input, node.dtype, node.offset, node.component)
        elif not node.operands:
            made[node] = graph.leaf(node)
        else:
            operands = [made[operand] for operand in node.operands]
            made[node] = graph.operation(node.op, node.dtype, operands, node.line)
    return [made[node] for node in wanted]
