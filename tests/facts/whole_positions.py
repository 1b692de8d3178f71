"""Compute a program of whole arrays position by position, with indices that NumPy takes literally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, compute, in_order
from meshrun.runner.compiler.whole.trace import WholeProgram


def evaluate(program: WholeProgram, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the outputs. arrays: the whole inputs."""
    dimensions, found = len(program.space), []
    for output in program.outputs:
        places = np.indices(output.shape[:dimensions])
        values: dict[Node, Any] = {}
        for node in in_order(output.nodes):
            if node.op == "load":
                array, lengths = arrays[node.input], program.graph.lengths[node.input]
                index = tuple(
                    (place + at) % max(n, 1)
                    for place, at, n in zip(places, node.offset, lengths, strict=True)
                )
                values[node] = array.reshape(*array.shape[:dimensions], -1)[(*index, node.component)]
            elif node.op == "place":
                values[node] = places[node.value[0]] + node.value[1]
            elif node.op == "inside":
                axis, low, high, step = node.value
                place = places[axis]
                values[node] = (place >= low) & (place < high) & ((place - low) % step == 0)
            elif node.op == "constant":
                values[node] = np.full(places[0].shape, node.value, node.dtype)
            else:
                values[node] = compute(node.op, node.dtype, [values[one] for one in node.operands])
        found.append(np.stack([values[node] for node in output.nodes], -1).reshape(output.shape))
    return found
