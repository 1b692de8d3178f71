"""A block of a field in pieces, in each of which every condition on the position has one value.

Edges that a function writes by index are thin pieces with expressions of their own; in the large piece
between them nothing of the edges is computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.passes.ends import specialised
from meshrun.runner.compiler.trace.evaluate import at_places
from meshrun.runner.compiler.trace.graph import (
    PLACES,
    Extents,
    Node,
    Program,
    compute_aloud,
    in_order,
    joined,
    slot_of,
)
from meshrun.runner.region import Array, Shape


@dataclass(frozen=True)
class UniformBox:
    """A box of positions.

    first, last: per axis, of its cells; last is the position after them. results: a node per component of
    each output, without conditions but those of strides.
    """

    first: Shape
    last: Shape
    results: tuple[tuple[Node, ...], ...]

    @functools.cached_property
    def order(self) -> list[Node]:
        """The nodes of all results, operands before their users."""
        return in_order(one for result in self.results for one in result)

    @property
    def cells(self) -> int:
        return math.prod(b - a for a, b in zip(self.first, self.last, strict=True))


def pieces_of(program: Program, first: Shape, last: Shape) -> list[UniformBox]:
    """Cut the box from `first` to before `last` at all positions where a condition changes."""
    cuts: list[set[int]] = [{a, b} for a, b in zip(first, last, strict=True)]
    for node in program.conditions:
        axis, low, high, _ = node.value
        cuts[axis] |= {at for at in (low, high) if first[axis] < at < last[axis]}
    spans = [list(pairwise(sorted(places))) for places in cuts]

    # Pieces side by side along the last axis with the same expressions are one.
    found: list[UniformBox] = []
    for spanned in product(*spans):
        begin, end = (tuple(side) for side in zip(*spanned, strict=True))
        results = specialised(program.graph, program.results, begin, end)
        before = found[-1] if found else None
        beside = (
            before is not None
            and before.results == results
            and (before.first[:-1], before.last[:-1]) == (begin[:-1], end[:-1])
            and before.last[-1] == begin[-1]
        )
        if beside:
            assert before is not None
            found[-1] = UniformBox(before.first, end, results)
        else:
            found.append(UniformBox(begin, end, results))
    return found


def compute_piece(
    xp: ModuleType,
    program: Program,
    piece: UniformBox,
    blocks: Sequence[Array],
    widths: Extents,
    offset: Shape,
    scalars: Array | None = None,
) -> list[Array]:
    """Return the outputs' cells of a piece.

    Parameters
    ----------
    xp: numpy or cupy, of the blocks.
    blocks: of each input, with its halo.
    widths: of the blocks' halo, per axis: cells before and after.
    offset: position of the blocks' first own cell.
    scalars: as of `TaskKernel`, for a program that takes some.
    """
    shape = tuple(b - a for a, b in zip(piece.first, piece.last, strict=True))
    dimensions, values = len(shape), dict[Node, Any]()
    corner = [at - begin + low for at, begin, (low, _) in zip(piece.first, offset, widths, strict=True)]
    with np.errstate(all="ignore"):
        for node in piece.order:
            if node.op == "load":
                block = blocks[node.input]
                starts = [start + further for start, further in zip(corner, node.offset, strict=True)]
                cells = tuple([slice(start, start + n) for start, n in zip(starts, shape, strict=True)])
                if block.ndim > dimensions:
                    inner = np.unravel_index(node.component, block.shape[dimensions:])
                    index = (*cells, *inner)
                    values[node] = block[index]
                else:
                    values[node] = block[cells]
            elif node.op in PLACES:
                axis = node.value[0]
                along = [-1 if number == axis else 1 for number in range(dimensions)]
                places = xp.arange(piece.first[axis], piece.last[axis]).reshape(along)
                values[node] = at_places(node, places)
            elif node.op == "constant":
                values[node] = node.value
            elif node.op == "scalar":
                assert scalars is not None
                values[node] = slot_of(scalars, node.value, node.dtype)
            elif xp is np:
                operands = [values[one] for one in node.operands]
                values[node] = compute_aloud(node.op, node.dtype, operands)
            else:
                values[node] = on_device(xp, node, [values[one] for one in node.operands])
    return [
        _stacked(xp, [values[node] for node in result], output.trailing, shape, output.dtype)
        for output, result in zip(program.outputs, piece.results, strict=True)
    ]


def on_device(xp: ModuleType, node: Node, values: Sequence[Any]) -> Any:
    """Compute one operation by CuPy."""
    if node.op == "complex":
        return joined(xp, node.dtype, *values)
    if node.op == "cast":
        cells = xp.asarray(values[0])
        return (cells.real if node.dtype.kind not in "bc" else cells).astype(node.dtype)
    function = xp.where if node.op == "where" else getattr(xp, node.op)
    return function(*values)


def _stacked(
    xp: ModuleType, values: Sequence[Any], inner: Shape, shape: Shape, dtype: np.dtype[Any]
) -> Array:
    """Return the components of an output as one array."""
    cells = [xp.broadcast_to(xp.asarray(one, dtype), shape) for one in values]
    if not inner:
        return cells[0]
    stacked: Array = xp.stack(cells, -1).reshape(shape + inner)
    return stacked
