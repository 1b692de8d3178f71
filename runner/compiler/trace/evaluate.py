"""Compute a program's results with NumPy, node by node, to check a trace against the plain function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.runner.compiler.trace.graph import Extents, Node, Program, compute
from meshrun.runner.region import HostArray


def evaluate(program: Program, blocks: Sequence[HostArray], widths: Extents) -> list[HostArray]:
    """Return the results for all own cells.

    blocks: an array per input, with its halo. widths: of the halo, per grid axis; at least the footprint.
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
        else:
            values[node] = compute(node.op, node.dtype, [values[one] for one in node.operands])
    return [
        np.stack([values[node] for node in result], -1).reshape(own + output.trailing)
        for output, result in zip(program.outputs, program.results, strict=True)
    ]
