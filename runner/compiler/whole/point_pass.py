"""Compute a few cells of fields: those that a write to points changes, and the points of a series.

A function's dense program has no points: all cells but few are computed as if there were none. The others,
at a point or so near to one that they depend on it, are computed here from the same blocks, and written over
the dense results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.evaluate import at_places
from meshrun.runner.compiler.trace.graph import (
    PLACES,
    SLOT,
    Extents,
    Node,
    Operand,
    Program,
    compute,
    in_order,
)
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.pieces import on_device
from meshrun.runner.compiler.whole.trace import WholeProgram, WholeSeries
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.region import Array, HostArray, Shape

MOST_CELLS = 1 << 20  # that depend on points, of an output
MOST_KEPT = 256  # blocks whose indices are kept
Rows = Array | None  # the slots of a step; None for a program without numbers of the step


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
    """Nodes, and the positions at which to compute them. known: nodes whose values are given."""

    graph: WholeGraph
    space: Shape
    nodes: tuple[Node, ...]
    positions: HostArray
    known: tuple[Node, ...] = ()
    _kept: dict[Any, Any] = field(default_factory=dict)

    def owned(self, first: Shape, last: Shape) -> tuple[HostArray, HostArray]:
        """Return the numbers of the positions within a box, and where they are: a box may go beyond space."""
        numbers, places, lengths = [], [], np.array(self.space)
        turns = (range(-(a < 0), 1 + (b > n)) for a, b, n in zip(first, last, self.space, strict=True))
        for turn in product(*turns):
            moved = self.positions + np.array(turn) * lengths
            inside = ((moved >= np.array(first)) & (moved < np.array(last))).all(axis=1)
            numbers.append(np.flatnonzero(inside))
            places.append(moved[inside])
        return np.concatenate(numbers), np.concatenate(places)

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """The nodes to compute, operands before their users."""
        found: dict[Node, None] = {}
        open_nodes = list(self.nodes)
        while open_nodes:
            node = open_nodes[-1]
            missing = [one for one in node.operands if one not in found and one not in self.known]
            if missing and node not in found and node not in self.known:
                open_nodes += missing
            else:
                found.setdefault(open_nodes.pop())
        return tuple(node for node in found if node not in self.known)

    def compute(
        self, blocks: Blocks, row: Rows = None, results: Array | None = None
    ) -> tuple[list[Array], tuple[Array, ...]]:
        """Return the nodes' values at the positions that are own cells, and these cells' indices.

        results: an array that has the values of `known`, one for each of its components.
        """
        indices, cells = self._indices(blocks)
        count, xp = len(cells[0]) if cells else 0, blocks.xp
        values: dict[Node, Any] = {}
        if results is not None:
            components = np.ndindex(results.shape[len(cells) :])
            values = {node: results[cells + at] for node, at in zip(self.known, components, strict=True)}
        for node in self.order:
            if node.op == "load":
                block = blocks.arrays[node.input]
                inner = np.unravel_index(node.component, block.shape[len(indices[node]) :] or (1,))
                at = indices[node] + (tuple(map(int, inner)) if block.ndim > len(indices[node]) else ())
                values[node] = block[at]
            elif node.op == "pick":
                table = self.graph.picked[node.value[1]]
                if isinstance(table, tuple):
                    table = xp.concatenate([scalar_value(xp, one, row) for one in table])
                values[node] = xp.asarray(table)[indices[node]]
            elif node.op in ("point", "place", "inside"):
                values[node] = indices[node]
            elif node.op in ("constant", "scalar"):
                values[node] = node.value if node.op == "constant" else scalar_value(xp, node, row)
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
        (mine, here), asarray = self.owned(blocks.first, blocks.last), blocks.xp.asarray
        at = self.positions[mine]
        found: dict[Node, Any] = {}
        for node in self.order:
            if node.op == "load":
                # The block of an array that broadcasts has all axes, too: it repeats its cells.
                found[node] = tuple(
                    asarray(_cells(blocks, axis, here[:, axis] + offset, length))
                    for axis, (offset, length) in enumerate(zip(node.offset, self.space, strict=True))
                )
            elif node.op in ("point", "pick"):
                points, *_, shift = node.value
                if shift is None:
                    place = mine
                else:
                    place = numbers_of(self.graph.points[points], at + np.array(shift), self.space)
                found[node] = asarray(place >= 0 if node.op == "point" else place)
            elif node.op in PLACES:
                found[node] = asarray(at_places(node, at[:, node.value[0]]))
        return found, tuple(asarray(here[:, axis] - a) for axis, a in enumerate(blocks.first))


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


def array_module(array: Array) -> ModuleType:
    """Return numpy or cupy."""
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


def scalar_value(xp: ModuleType, node: Node, row: Rows) -> Array:
    """Return the value of a node that depends on no position, as an array of one element."""
    values: dict[Node, Any] = {}
    for one in in_order([node]):
        if one.op == "constant":
            values[one] = xp.full(1, one.value, one.dtype)
        elif one.op == "scalar":
            assert row is not None
            slot = row.view(np.uint8).reshape(-1)[SLOT * one.value : SLOT * one.value + one.dtype.itemsize]
            values[one] = slot.view(one.dtype)
        elif xp is np:
            values[one] = compute(one.op, one.dtype, [values[operand] for operand in one.operands])
        else:
            values[one] = on_device(xp, one, [values[operand] for operand in one.operands])
    return values[node]


@dataclass(eq=False)
class PointWrites:
    """The cells of each output that depend on a write to points.

    widths: of the blocks' halo, per axis of space. outputs: of the program.
    """

    widths: Extents
    outputs: tuple[Operand, ...]
    cells: tuple[PointCells, ...]

    @property
    def nodes(self) -> Iterator[Node]:
        """All values that are computed."""
        return (node for cells in self.cells for node in cells.order)

    @property
    def count(self) -> int:
        """Number of cells, of all outputs."""
        return sum(len(one.positions) for one in self.cells)

    def fill(
        self, blocks: Sequence[Array], outs: Sequence[Array], first: Sequence[int], row: Rows = None
    ) -> None:
        """Write these cells of a block over the results of the dense program.

        blocks, outs, first: as of `TaskKernel`. row: its `scalars`.
        """
        xp = array_module(outs[0])
        start, axes = tuple(first[: len(self.widths)]), len(self.widths)
        last = tuple(a + n for a, n in zip(start, outs[0].shape, strict=False))
        here = Blocks(xp, blocks, self.widths, start, last, (False,) * axes)
        for output, cells, out in zip(self.outputs, self.cells, outs, strict=True):
            if len(cells.positions) == 0:
                continue
            values, at = cells.compute(here, row, out)
            for component, value in zip(np.ndindex(output.trailing), values, strict=True):
                out[at + component] = value


def point_writes(program: Program, widths: Extents) -> PointWrites | None:
    """Return the cells that depend on a write to points; None without one.

    Raises NotTraceable for too many.
    """
    assert isinstance(program.graph, WholeGraph)
    found, space = [], np.array(program.graph.space)
    for nodes in program.results:
        near = [np.empty((0, program.axes), np.int64)]
        for node in in_order(nodes):
            if node.op == "point":
                points, shift = node.value
                near.append((program.graph.points[points] - np.array(shift)) % space)
        count = sum(map(len, near))
        if count > MOST_CELLS:
            raise NotTraceable(f"has {count} cells that depend on points", f"at most {MOST_CELLS}")
        cells = np.unique(np.concatenate(near), axis=0)
        # What the dense program has computed of these cells is not computed again.
        known = tuple(program.graph.without_points(nodes))
        found.append(PointCells(program.graph, program.graph.space, nodes, cells, known))
    if not any(len(one.positions) for one in found):
        return None
    return PointWrites(widths, program.outputs, tuple(found))


def without_points(program: Program) -> Program:
    """Return the program of the cells that depend on no point."""
    assert isinstance(program.graph, WholeGraph)
    if not any(node.op == "point" for node in program.nodes):
        return program
    results = tuple(tuple(program.graph.without_points(nodes)) for nodes in program.results)
    return replace(program, results=results)


@dataclass(eq=False)
class SeriesPass:
    """What a function's series are in a step: computed from the blocks before it.

    axes: of space. names, types: of each series; shape and dtype of a row. same_as: the output that has the
    values of a series after the step; None: none has.
    """

    axes: int
    same_as: tuple[int | None, ...]

    names: tuple[str, ...]
    types: tuple[ArrayType, ...]
    series: tuple[WholeSeries, ...]
    cells: tuple[PointCells, ...]

    @classmethod
    def of(cls, program: WholeProgram) -> SeriesPass:
        cells = [PointCells(program.graph, program.space, one.nodes, one.positions) for one in program.series]
        types = tuple((one.shape, one.dtype) for one in program.series)
        outputs = [one.nodes for one in program.outputs]
        same = [outputs.index(one.nodes) if one.nodes in outputs else None for one in program.series]
        names = tuple(one.name for one in program.series)
        return cls(len(program.space), tuple(same), names, types, program.series, tuple(cells))

    def owned(self, number: int, first: Shape, last: Shape) -> HostArray:
        """Return the numbers of the points of a series within a box, in the order of `compute`."""
        return self.cells[number].owned(first, last)[0]

    def reads_halo(self, *, after: bool) -> bool:
        """Return whether a cell beside a point is read. after: series that an output has are read of that."""
        pairs = zip(self.series, self.same_as, strict=True)
        every = in_order(node for one, same in pairs if not after or same is None for node in one.nodes)
        return any(node.op == "load" and any(node.offset) for node in every)

    def fed(self, feeds: Sequence[int | None]) -> list[bool]:
        """Return whether each series is read of a field after the step: of an output that feeds an input."""
        return [same is not None and feeds[same] is not None for same in self.same_as]

    def inputs_read(self, feeds: Sequence[int | None]) -> set[int]:
        """Return the inputs of whose blocks the other series are computed."""
        computed = (one for one, known in zip(self.series, self.fed(feeds), strict=True) if not known)
        nodes = in_order(node for one in computed for node in one.nodes)
        return {node.input for node in nodes if node.op == "load"}

    def gather(self, number: int, own: Array, first: Shape, last: Shape, xp: ModuleType) -> Array:
        """Return (components, points) of a series of the output that has it.

        own: the output's cells from position `first` to before `last`.
        """
        cells = self.cells[number]
        key = first, last, xp.__name__
        if key not in cells._kept:
            _, here = cells.owned(first, last)
            cells._kept[key] = tuple(xp.asarray(here[:, axis] - a) for axis, a in enumerate(first))
        at = cells._kept[key]
        return xp.stack([own[at + component] for component in np.ndindex(own.shape[self.axes :])])

    def compute(self, number: int, blocks: Blocks, row: Rows = None) -> Array:
        """Return (components, points) of a series within the blocks' own cells."""
        values, _ = self.cells[number].compute(blocks, row)
        return blocks.xp.stack(values) if len(values) > 1 else values[0][None]

    def recorded(self, fed: Sequence[bool]) -> list[PointCells]:
        """Return the cells of each series. fed: whether a series is read of the output that has it."""
        pairs = zip(self.cells, fed, strict=True)
        return [replace(one, known=one.nodes, _kept={}) if known else one for one, known in pairs]

    def rows(self, number: int, values: Array) -> Array:
        """Return rows of a series. values: (rows, components, points)."""
        one = self.series[number]
        inner = (*one.shape[: one.at], *one.shape[one.at + len(one.listed) :])
        found = values.reshape((len(values), *inner, *one.listed))
        front, listed = 1 + one.at, len(one.listed)
        order = [*range(front), *range(found.ndim - listed, found.ndim), *range(front, found.ndim - listed)]
        return found.transpose(order)
