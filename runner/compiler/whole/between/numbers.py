"""The final numbers of a program's arrays and scalars.

While a function is traced, arrays between stages and scalars are numbered as they come up. In the program,
arrays from outside of the function are the last of the inputs, before the arrays between stages; and the
slots of the step's tape are the first scalars, before the other values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.whole.between.cuts import Needed
from meshrun.runner.compiler.whole.between.recorded_loop import MappedLoops, with_bodies
from meshrun.runner.compiler.whole.functions.outside import check_sizes, constants_of
from meshrun.runner.compiler.whole.graph import (
    LoopResult,
    Recorded,
    Reduction,
    StateValue,
    StepSlot,
    WholeGraph,
)
from meshrun.runner.compiler.whole.program import WholeInput, WholeProgram


def numbered(program: WholeProgram, function: Callable[..., Any]) -> WholeProgram:
    """Return the program with loads of further inputs in place of tables, and with the final numbers.

    program: as it was recorded. function: the user's, which tells the names of arrays.
    """
    program = with_bodies(program, partial(numbered, function=function))
    old, inputs = program.graph, program.inputs
    needed = Needed(program)
    roots = [node for output in program.outputs for node in output.nodes]
    roots += [node for series in program.series for node in series.nodes]
    roots += [check.count for check in program.checks] + [*needed.written.values()]
    roots += [node for reduction in needed.reductions for node in reduction.nodes]
    roots += [node for loop in needed.loops for node in loop.outside]
    picks = {node.value[1] for node in in_order(roots) if node.op == "pick"}
    nodes = in_order([*roots, *old.picked_nodes(in_order(roots))])

    # The tables that are read, and the scalars: first those of the tape.
    tables = list(dict.fromkeys((node.input, node.value) for node in nodes if node.op == "table"))
    scalars = {node.value: node.dtype for node in nodes if node.op == "scalar"}
    slots = {n: one for n in scalars if isinstance(one := old.values[n], StepSlot)}
    if not tables and not slots:
        program.tape.slots = {}
        return program
    order = [*sorted(slots, key=lambda n: slots[n].slot), *sorted(n for n in scalars if n not in slots)]
    of_value = {number: place for place, number in enumerate(order)}
    keys = {slot: key for key, slot in program.tape.slots.items()}
    program.tape.slots = {keys[slots[n].slot]: place for place, n in enumerate(order) if n in slots}

    # A graph with the final numbers, of the inputs, the tables, and the arrays between stages.
    own, space = len(inputs), program.space
    taken = [(old.tables.roots[number], axes) for number, axes in tables]
    users = (node.line for node in nodes if any(one.op == "table" for one in node.operands))
    check_sizes(function, taken, space, next(filter(None, users), 0))
    of_tables = [tuple(n if axis in axes else 0 for axis, n in enumerate(space)) for _, axes in taken]
    graph = WholeGraph([*old.lengths[:own], *of_tables, *old.lengths[own:]], space)
    graph.wraps = [*old.wraps[:own], *(set[int]() for _ in tables), *old.wraps[own:]]
    graph.points = old.points
    done: dict[Node, Node] = {}

    def leaf(node: Node) -> Node:
        if node.op == "load":
            number = node.input + (len(tables) if node.input >= own else 0)
            return graph.load(number, node.dtype, node.offset, node.component)
        if node.op == "table":
            offset = [0] * len(space)
            for axis, at in zip(node.value, node.offset, strict=True):
                offset[axis] = at
            return graph.load_at(own + tables.index((node.input, node.value)), node.dtype, tuple(offset))
        if node.op == "scalar":
            return graph.scalar(of_value[node.value], node.dtype)
        return graph.leaf(node)

    for node in nodes:
        operands = [done[one] for one in node.operands]
        done[node] = graph.operation(node.op, node.dtype, operands, node.line) if operands else leaf(node)

    def of(wanted: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(done[node] for node in wanted)

    mapped = MappedLoops(lambda nodes, _: of(nodes))

    def definition(number: int, place: int) -> Recorded:
        one = old.values[number]
        assert not isinstance(one, StateValue)
        if isinstance(one, StepSlot):
            return StepSlot(place)
        if isinstance(one, LoopResult):
            return mapped.result(one)
        return replace(one, nodes=of(one.nodes)) if isinstance(one, Reduction) else one

    # Lists that only the bodies of loops pick from have no values here.
    graph.picked = [
        one if isinstance(one, np.ndarray) else of(one) if number in picks else ()
        for number, one in enumerate(old.picked)
    ]
    shift = len(tables)
    between: dict[int, Node | Reduction | LoopResult] = {
        **{n + shift: done[node] for n, node in needed.written.items()},
        **{n + shift: replace(one, nodes=of(one.nodes)) for n, one in needed.reduced.items()},
        **{n + shift: mapped.result(one) for n, one in needed.left.items()},
    }
    graph.define(between, [definition(number, place) for place, number in enumerate(order)])

    constants = constants_of(function, taken, space, [one.name for one in inputs])
    return replace(
        program,
        inputs=(*inputs, *(WholeInput(one.name, space, one.values.dtype, one) for one in constants)),
        outputs=tuple(replace(one, nodes=of(one.nodes)) for one in program.outputs),
        graph=graph,
        series=tuple(replace(one, nodes=of(one.nodes)) for one in program.series),
        between=between,
        values=graph.definitions,
        checks=tuple(replace(one, count=done[one.count]) for one in program.checks),
    )
