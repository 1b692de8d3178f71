"""Find values that the cells of several rows are computed from, for a kernel that goes down the rows.

`potential = c**3 - c - laplacian(c)`, then `c + 0.01 * laplacian(potential)`: a cell reads the potential in
three rows. A kernel that computes the rows one after another computes each row of the potential once, when
the last row that it is made of is at hand, and keeps it while later rows read it. Without that, it would
compute the potential of a cell three times in each step.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.passes.branches import cost
from meshrun.runner.compiler.trace.graph import FREE, Node, Offset, Operand, Program, in_order

LEAST_SAVED = 3.0  # operations of a cell that a value kept for one row more must save, in additions
WORD = 4  # bytes of a register


@dataclass(frozen=True)
class KeptStages:
    """A program, and the values that it keeps.

    Attributes
    ----------
    program: Its outputs are those of the whole program, then the values, each after those that it reads. It
        reads a value as an input after the inputs of the whole program.
    leads: Of each value, how many rows further down than the results it is computed.
    oldest: Of each input and component, and of each value, the first row that is read.
    """

    program: Program
    leads: tuple[int, ...]
    oldest: Mapping[tuple[int, int], int]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The values, as inputs of the program."""
        return self.program.inputs[len(self.program.inputs) - len(self.leads) :]

    @property
    def words(self) -> int:
        """Registers that hold what is kept for one column."""
        first = len(self.program.inputs) - len(self.leads)
        rows = (lead - self.oldest[first + number, 0] for number, lead in enumerate(self.leads))
        return sum(n * _words(one.dtype) for n, one in zip(rows, self.operands, strict=True))


@dataclass(frozen=True, eq=False)
class _Value:
    """Equal values of different cells. node, at: one of them, and its cell. operands: with their cells, from
    that of the value."""

    node: Node
    at: Offset
    operands: tuple[tuple[_Value, Offset], ...]


@functools.lru_cache(maxsize=16)  # the choices of a kernel ask for those of one program again and again
def kept_stages(program: Program, radius: int) -> KeptStages | None:
    """Return the values that are worth keeping, over two axes; None if there are none.

    Parameters
    ----------
    program: Nothing is kept if it has places: a value may then be another one for each cell that reads it.
    radius: Rows of the state that are at hand on each side of the results' row.
    """
    if program.axes != 2 or program.has_places:
        return None
    places = _places(program)
    leads: dict[_Value, int] = {}

    # Find the rows in which each value is needed, from that of the results: its readers come before it.
    rows: dict[_Value, set[int]] = {value: set() for value, _ in places.values()}
    for value, (row, _) in (places[node] for result in program.results for node in result):
        rows[value].add(row)
    for value in reversed(rows):
        needed = rows[value]
        if len(needed) > 1 and _is_worth_keeping(value, needed, radius):
            leads[value] = max(needed)
            needed = {leads[value]}
        for operand, (row, _) in value.operands:
            rows[operand] |= {at + row for at in needed}
    return _with_values(program, places, leads) if leads else None


def _places(program: Program) -> dict[Node, tuple[_Value, Offset]]:
    """Return the value of each node, and its cell; operands before their users."""
    made: dict[Hashable, _Value] = {}
    places: dict[Node, tuple[_Value, Offset]] = {}
    for node in program.nodes:
        operands = [places[one] for one in node.operands]
        if node.op == "load":
            at: Offset = node.offset
            key: Hashable = ("load", node.input, node.component)
        else:
            # The cell of a value is that of the first load that it reads.
            at = next((place for value, place in operands if value.at), ())
            operands = [(value, _minus(place, at) if value.at else (0, 0)) for value, place in operands]
            key = (node.op, node.dtype.str, *operands) if operands else node
        places[node] = made.setdefault(key, _Value(node, at, tuple(operands))), at or (0, 0)
    return places


def _minus(place: Offset, at: Offset) -> Offset:
    return tuple(a - b for a, b in zip(place, at, strict=True))


def _is_worth_keeping(value: _Value, rows: set[int], radius: int) -> bool:
    """Return whether to keep a value that is needed in several rows."""
    if value.node.op in FREE or not value.at:
        return False
    kept = max(rows) - min(rows)
    saved = (len(rows) - 1) * sum(map(cost, in_order([value.node])))
    return kept <= 2 * radius and saved >= LEAST_SAVED * kept * _words(value.node.dtype)


def _words(dtype: np.dtype[Any]) -> int:
    return -(-dtype.itemsize // WORD)


def _with_values(
    program: Program, places: Mapping[Node, tuple[_Value, Offset]], leads: Mapping[_Value, int]
) -> KeptStages:
    """Return the program that loads kept values."""
    graph, first = program.graph, len(program.inputs)
    kept = list(leads)[::-1]  # each after those that it reads
    number = {value: first + n for n, value in enumerate(kept)}

    def remade(nodes: tuple[Node, ...], own: _Value | None = None) -> tuple[Node, ...]:
        """Return nodes that load kept values. own: the value that is computed."""
        done = dict[Node, Node]()
        for node in in_order(nodes):
            value, at = places[node]
            if value in number and value is not own:
                done[node] = graph.load(number[value], node.dtype, at)
            else:
                operands = [done[one] for one in node.operands]
                done[node] = graph.operation(node.op, node.dtype, operands, node.line) if operands else node
        return tuple(done[node] for node in nodes)

    results = [remade(result) for result in program.results]
    for value in kept:
        (node,) = graph.shifted(remade((value.node,), value), tuple(-at for at in value.at))
        results.append((node,))
    operands = tuple(Operand(f"kept{n}", value.node.dtype) for n, value in enumerate(kept))
    changed = replace(
        program,
        inputs=(*program.inputs, *operands),
        outputs=(*program.outputs, *operands),
        results=tuple(results),
    )
    ahead = tuple(leads[value] for value in kept)
    oldest: dict[tuple[int, int], int] = {}
    for lead, result in zip((*[0] * len(program.results), *ahead), results, strict=True):
        for load in in_order(result):
            if load.op == "load":
                plane = load.input, load.component
                oldest[plane] = min(oldest.get(plane, load.offset[0] + lead), load.offset[0] + lead)
    return KeptStages(changed, ahead, oldest)
