"""Compute a program of whole arrays position by position, with indices that NumPy takes literally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, compute, in_order
from meshrun.runner.compiler.whole.sizes import subgrid_of
from meshrun.runner.compiler.whole.trace import WholeProgram
from meshrun.runner.region import Region, Subgrid


def evaluate(program: WholeProgram, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the outputs. arrays: the whole inputs."""
    dimensions, found, space = len(program.space), [], Region((0,) * len(program.space), program.space)
    arrays = [spread(program, array) for array in arrays]
    for output in program.outputs:
        places = np.indices(program.space)
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
            elif node.op in ("point", "pick"):
                number, *_, shift = node.value
                which = np.full(program.space, -1)
                for index, at in enumerate(program.graph.points[number]):
                    which[tuple((a - s) % n for a, s, n in zip(at, shift, program.space, strict=True))] = (
                        index
                    )
                if node.op == "point":
                    values[node] = which >= 0
                else:
                    values[node] = np.asarray(program.graph.picked[node.value[1]])[which]
            elif node.op == "constant":
                values[node] = np.full(places[0].shape, node.value, node.dtype)
            else:
                values[node] = compute(node.op, node.dtype, [values[one] for one in node.operands])
        whole = np.stack([values[node] for node in output.nodes], -1)
        whole = whole.reshape(program.space + output.shape[dimensions:])
        cells = np.zeros(space.shape, bool)
        subgrid = Subgrid(output.shape[:dimensions], output.every)
        cells[subgrid.places(space)] = True
        assert not whole[~cells].any()  # zero where the array has no cell
        found.append(whole[subgrid.places(space)])
    return found


def spread(program: WholeProgram, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an input with a cell at each position of space."""
    if not array.ndim:
        return array
    subgrid = subgrid_of(array.shape, program.space)
    whole = np.zeros(subgrid.in_space(program.space), array.dtype)
    whole[subgrid.places(Region((0,) * whole.ndim, whole.shape))] = array
    return whole


def spread_results(
    program: WholeProgram, wanted: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Return results with a cell at each position of space: zero where they have none."""
    found = []
    for output, array in zip(program.outputs, wanted, strict=True):
        subgrid = Subgrid(output.shape, output.every)
        found.append(np.zeros(subgrid.in_space(program.space), array.dtype))
        found[-1][subgrid.places(Region((0,) * found[-1].ndim, found[-1].shape))] = array
    return found
