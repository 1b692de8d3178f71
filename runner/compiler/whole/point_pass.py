"""Compute a few cells of fields: those that a write to points changes, and the points of a series.

A function's dense program has no points: all cells but few are computed as if there were none. The others,
at a point or so near to one that they depend on it, are computed here from the same blocks, and written over
the dense results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Extents, Node, compute, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.trace import WholeProgram, WholeSeries
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.region import Array, HostArray, Shape

MOST_CELLS = 1 << 20  # that depend on points, of an output
MOST_KEPT = 256  # blocks whose indices are kept
Rows = HostArray | None  # the slots of a step; None for a program without numbers of the step


@dataclass(frozen=True)
class Blocks:
    """Padded blocks of the inputs.

    xp: numpy or cupy. arrays: of each input, with its halo. widths: of the halo, per axis. first, last: of
    the own cells; last is the position after them. whole: per axis, whether the own cells are all of space,
    and are read instead of a halo.
    """

    xp: ModuleType
    arrays: Sequence[Array]
    widths: Extents
    first: Shape
    last: Shape
    whole: tuple[bool, ...]


@dataclass(eq=False)
class PointCells:
    """Nodes, and the positions at which to compute them."""

    graph: WholeGraph
    space: Shape
    nodes: tuple[Node, ...]
    positions: HostArray
    _kept: dict[Any, Any] = field(default_factory=dict)

    def owned(self, first: Shape, last: Shape) -> HostArray:
        """Return the numbers of the positions within a box."""
        inside = (self.positions >= np.array(first)) & (self.positions < np.array(last))
        return np.flatnonzero(inside.all(axis=1))

    def compute(self, blocks: Blocks, row: Rows = None) -> tuple[list[Array], tuple[Array, ...]]:
        """Return the nodes' values at the positions that are own cells, and these cells' indices."""
        indices, cells = self._indices(blocks)
        count, xp = len(cells[0]) if cells else 0, blocks.xp
        values: dict[Node, Any] = {}
        for node in in_order(self.nodes):
            if node.op == "load":
                block = blocks.arrays[node.input]
                inner = np.unravel_index(node.component, block.shape[len(indices[node]) :] or (1,))
                at = indices[node] + (tuple(map(int, inner)) if block.ndim > len(indices[node]) else ())
                values[node] = block[at]
            elif node.op == "pick":
                table = self.graph.picked[node.value[1]]
                if isinstance(table, tuple):
                    table = np.array([scalar_value(one, row) for one in table], node.dtype)
                values[node] = xp.asarray(table)[indices[node]]
            elif node.op in ("point", "place", "inside"):
                values[node] = indices[node]
            elif node.op in ("constant", "scalar"):
                values[node] = node.value if node.op == "constant" else scalar_value(node, row)
            elif xp is np:
                values[node] = compute(node.op, node.dtype, [values[one] for one in node.operands])
            else:
                values[node] = on_device(xp, node, [values[one] for one in node.operands])
        filled = [xp.broadcast_to(xp.asarray(values[node], node.dtype), (count,)) for node in self.nodes]
        return filled, cells

    def _indices(self, blocks: Blocks) -> tuple[dict[Node, Any], tuple[Array, ...]]:
        """Return for each leaf where its values are, or the values of conditions; and the cells' indices."""
        key = blocks.first, blocks.last, blocks.widths, blocks.whole, blocks.xp.__name__
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._indexed(blocks)
        found: tuple[dict[Node, Any], tuple[Array, ...]] = self._kept[key]
        return found

    def _indexed(self, blocks: Blocks) -> tuple[dict[Node, Any], tuple[Array, ...]]:
        mine, asarray = self.owned(blocks.first, blocks.last), blocks.xp.asarray
        at = self.positions[mine]
        found: dict[Node, Any] = {}
        for node in in_order(self.nodes):
            if node.op == "load":
                lengths = self.graph.lengths[node.input]
                found[node] = tuple(
                    asarray(_cells(blocks, axis, at[:, axis] + offset, length))
                    for axis, (offset, length) in enumerate(zip(node.offset, lengths, strict=True))
                    if length
                )
            elif node.op in ("point", "pick"):
                points, *_, shift = node.value
                if shift is None:
                    place = mine
                else:
                    place = numbers_of(self.graph.points[points], at + np.array(shift), self.space)
                found[node] = asarray(place >= 0 if node.op == "point" else place)
            elif node.op == "place":
                found[node] = asarray(at[:, node.value[0]] + node.value[1])
            elif node.op == "inside":
                axis, low, high, step = node.value
                place = at[:, axis]
                found[node] = asarray((place >= low) & (place < high) & ((place - low) % step == 0))
        return found, tuple(asarray(at[:, axis] - a) for axis, a in enumerate(blocks.first))


def _cells(blocks: Blocks, axis: int, positions: HostArray, length: int) -> HostArray:
    """Return where some positions are in a block along an axis of so many positions."""
    if blocks.whole[axis]:
        positions = positions % length
    return positions - blocks.first[axis] + blocks.widths[axis][0]


def numbers_of(points: HostArray, positions: HostArray, space: Shape) -> HostArray:
    """Return which point of a list each position is, the last one if it is repeated; -1: none.

    Positions count around the ends of space.
    """
    flat = np.ravel_multi_index(tuple(points.T), space)
    wanted = np.ravel_multi_index(tuple((positions % np.array(space)).T), space)
    known, last = np.unique(flat[::-1], return_index=True)
    if not len(known):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    found: HostArray = np.where(known[place] == wanted, len(flat) - 1 - last[place], -1)
    return found


def scalar_value(node: Node, row: Rows) -> Any:
    """Return the value of a node that depends on no position."""
    values: dict[Node, Any] = {}
    for one in in_order([node]):
        if one.op == "constant":
            values[one] = np.full(1, one.value, one.dtype)
        elif one.op == "scalar":
            assert row is not None
            values[one] = row.view(np.uint8).reshape(-1, 8)[one.value, : one.dtype.itemsize].view(one.dtype)
        else:
            values[one] = compute(one.op, one.dtype, [values[operand] for operand in one.operands])
    return values[node][0]


def on_device(xp: ModuleType, node: Node, values: Sequence[Any]) -> Any:
    """Compute one operation by CuPy."""
    if node.op == "cast":
        return xp.asarray(values[0]).astype(node.dtype)
    function = xp.where if node.op == "where" else getattr(xp, node.op)
    return function(*values)


def dense(program: WholeProgram) -> WholeProgram:
    """Return the program of the cells that depend on no point."""
    graph = program.graph
    if not any(node.op == "point" for node in program.nodes):
        return program
    outputs = [replace(one, nodes=tuple(graph.without_points(one.nodes))) for one in program.outputs]
    return replace(program, outputs=tuple(outputs))


def changed_cells(program: WholeProgram) -> list[PointCells]:
    """Return of each output the cells that depend on a write to points. Raises NotTraceable for too many."""
    found, space = [], program.space
    for output in program.outputs:
        near = [np.empty((0, len(space)), np.int64)]
        for node in in_order(output.nodes):
            if node.op == "point":
                points, shift = node.value
                near.append((program.graph.points[points] - np.array(shift)) % np.array(space))
        count = sum(map(len, near))
        if count > MOST_CELLS:
            raise NotTraceable(f"has {count} cells that depend on points", f"at most {MOST_CELLS}")
        cells = np.unique(np.concatenate(near), axis=0)
        found.append(PointCells(program.graph, space, output.nodes, cells))
    return found


def fill_points(
    program: WholeProgram, sparse: Sequence[PointCells], blocks: Blocks, outs: Sequence[Array]
) -> None:
    """Write the cells that depend on points over the others' results."""
    for output, cells, out in zip(program.outputs, sparse, outs, strict=True):
        if len(cells.positions) == 0:
            continue
        values, at = cells.compute(blocks)
        inner = output.shape[len(program.space) :]
        for component, value in zip(np.ndindex(inner), values, strict=True):
            out[at + component] = value


@dataclass(eq=False)
class SeriesPass:
    """What a function's series are in a step: computed from the blocks before it.

    names, types: of each series; shape and dtype of a row.
    """

    names: tuple[str, ...]
    types: tuple[ArrayType, ...]
    series: tuple[WholeSeries, ...]
    cells: tuple[PointCells, ...]

    @classmethod
    def of(cls, program: WholeProgram) -> SeriesPass:
        cells = [PointCells(program.graph, program.space, one.nodes, one.positions) for one in program.series]
        types = tuple((one.shape, one.dtype) for one in program.series)
        return cls(tuple(one.name for one in program.series), types, program.series, tuple(cells))

    def owned(self, number: int, first: Shape, last: Shape) -> HostArray:
        """Return the numbers of the points of a series within a box, in the order of `compute`."""
        return self.cells[number].owned(first, last)

    def compute(self, number: int, blocks: Blocks, row: Rows = None) -> Array:
        """Return (components, points) of a series within the blocks' own cells."""
        values, _ = self.cells[number].compute(blocks, row)
        return blocks.xp.stack(values) if len(values) > 1 else values[0][None]

    def rows(self, number: int, values: HostArray) -> HostArray:
        """Return rows of a series. values: (rows, components, points)."""
        one = self.series[number]
        inner = (*one.shape[: one.at], *one.shape[one.at + len(one.listed) :])
        found = values.reshape((len(values), *inner, *one.listed))
        axes = range(1 + len(inner), found.ndim)
        return np.moveaxis(found, axes, range(1 + one.at, 1 + one.at + len(one.listed)))
