"""Boundaries that differ by input, axis or side become part of the program: a choice at each end.

What a block function reads beyond the array is the array's own cell, at another distance, or a constant. So
a load near an end is a choice by place, as in functions of whole arrays, and no cell beyond the array is read
but where ends meet. Conditions at ends cost nothing in the interior: see `ends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from meshrun.runner.compiler.passes.ends import narrowed
from meshrun.runner.compiler.trace.graph import Extents, Node, Offset, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import nodes_of, table_of
from meshrun.runner.job.series import Parameters
from meshrun.runner.plan.beyond import Rules, Side
from meshrun.runner.plan.halo import source_index
from meshrun.runner.region import Shape


def with_rules(
    program: Program, rules: Sequence[Rules], lengths: Shape, widths: Extents, parameters: Parameters
) -> Program:
    """Return the program with the rules of all cells beyond the array.

    Parameters
    ----------
    program: of a block's own cells.
    rules: of each input, per axis.
    lengths: of the whole array, per grid axis.
    widths: of the halo, per grid axis.
    parameters: with the tables in time of which rules take the row of the step.

    Raises NotTraceable for a program that would need a wider halo.
    """
    graph = program.graph

    def constant(side: Side, dtype: np.dtype[np.generic]) -> Node:
        """Return the constant beyond an end."""
        if not isinstance(side.value, str):
            return graph.constant(np.asarray(side.value).astype(dtype), dtype)
        row = table_of(program.tape, side.value, parameters[side.value])[program.tape.step]
        nodes: Any = nodes_of(graph, row, dtype)
        return cast(Node, nodes[()])

    def chosen(load: Node, offset: Offset, axis: int) -> Node:
        """Return what a load reads.

        offset: of the load; along the axes after `axis`, that of the own cell that is read.
        """
        if axis < 0:
            return graph.load(load.input, load.dtype, offset, load.component)
        node = chosen(load, offset, axis - 1)
        far, length, (low, high) = offset[axis], lengths[axis], widths[axis]
        side = rules[load.input][axis][far > 0]
        if far == 0 or side.mode == "wrap":
            return node
        first, last = (0, min(-far, length)) if far < 0 else (max(length - far, 0), length)
        if side.mode == "constant":
            inside = graph.inside(axis, first, last)
            return graph.operation("where", load.dtype, [inside, constant(side, load.dtype), node])
        for place in range(first, last):
            source = source_index(place + far, length, side.mode)
            assert source is not None
            if not -low <= source - place <= high:
                raise NotTraceable(
                    f"has a halo of {low} cells before and {high} after along axis {axis}, of which the "
                    f"boundary {side.mode} needs {abs(source - place)} on both sides",
                    f"halo={max(low, high)} along axis {axis}",
                )
            nearer = (*offset[:axis], source - place, *offset[axis + 1 :])
            inside = graph.inside(axis, place, place + 1)
            node = graph.operation("where", load.dtype, [inside, chosen(load, nearer, axis - 1), node])
        return node

    # The last axis decides first: beyond the ends of several axes its rule counts.
    done: dict[Node, Node] = {}
    for node in program.nodes:
        if node.op == "load":
            done[node] = chosen(node, node.offset, program.axes - 1)
        elif node.operands:
            operands = [done[one] for one in node.operands]
            done[node] = graph.operation(node.op, node.dtype, operands, node.line)
        else:
            done[node] = node
    results = [tuple(done[node] for node in result) for result in program.results]
    found = narrowed(graph, results, (0,) * program.axes, lengths)
    return replace(program, results=found, lengths=lengths)
