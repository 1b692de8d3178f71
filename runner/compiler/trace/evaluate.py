"""Compute a program's results with NumPy, node by node, to check a trace against the plain function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.runner.compiler.trace.graph import PLACES, SLOT, Extents, Node, Program, compute
from meshrun.runner.region import HostArray


def at_places(node: Node, places: HostArray) -> HostArray:
    """Return the values of a leaf of op "place" or "inside". places: of cells along its axis; integers."""
    if node.op == "place":
        shifted: HostArray = places + node.value[1]
        return shifted
    _, low, high, step = node.value
    inside: HostArray = (places >= low) & (places < high) & ((places - low) % step == 0)
    return inside


def evaluate(
    program: Program,
    blocks: Sequence[HostArray],
    widths: Extents,
    first: Sequence[int] = (),
    scalars: HostArray | None = None,
) -> list[HostArray]:
    """Return the results for all own cells.

    blocks: an array per input, with its halo. widths: of the halo, per grid axis; at least the footprint.
    first, scalars: as of `TaskKernel`, for a program with places or scalars.
    """
    own = tuple(n - low - high for n, (low, high) in zip(blocks[0].shape, widths, strict=False))
    values: dict[Node, HostArray] = {}
    for node in program.nodes:
        if node.op == "load":
            block = blocks[node.input]
            flat = block.reshape(*block.shape[: program.axes], program.inputs[node.input].components)
            cells = tuple(
                slice(low + at, low + at + n)
                for at, (low, _), n in zip(node.offset, widths, own, strict=True)
            )
            index: tuple[slice | int, ...] = (*cells, node.component)
            values[node] = flat[index]
        elif node.op == "constant":
            values[node] = np.full(own, node.value, node.dtype)
        elif node.op == "scalar":
            assert scalars is not None
            slot = scalars.view(np.uint8).reshape(-1, SLOT)[node.value, : node.dtype.itemsize]
            values[node] = np.full(own, slot.copy().view(node.dtype)[0])
        elif node.op in PLACES:
            axis = node.value[0]
            along = (first[axis] + np.arange(own[axis])) % program.lengths[axis]
            shape = [-1 if other == axis else 1 for other in range(program.axes)]
            values[node] = np.broadcast_to(at_places(node, along).reshape(shape), own)
        else:
            values[node] = compute(node.op, node.dtype, [values[one] for one in node.operands])
    return [
        np.stack([values[node] for node in result], -1).reshape(own + output.trailing)
        for output, result in zip(program.outputs, program.results, strict=True)
    ]
