"""What a function of whole arrays computes: its arrays, and a node for each cell of a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.passes.ends import narrowed
from meshrun.runner.compiler.trace.graph import FREE, Extents, Node, Operand, Program, in_order
from meshrun.runner.compiler.whole.graph import Definition, Reduction, ValueCheck, WholeGraph
from meshrun.runner.compiler.whole.sizes import subgrid_of
from meshrun.runner.region import HostArray, Shape, Sizes, Subgrid


@dataclass(frozen=True)
class WholeInput:
    """An array that a function takes."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class WholeOutput:
    """An array that a function returns.

    nodes: per component, in C order of the axes after those of space; zero at positions where the array has
    no cell. every: per axis of space, positions from one of its cells to the next. combine: as of `Operand`.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    nodes: tuple[Node, ...]
    every: Shape
    combine: str = ""


@dataclass(frozen=True, eq=False)
class WholeSeries:
    """A short array that a function returns: the values of fields at points, or numbers.

    nodes: per component. positions: at which they are computed, (points, axes of space). listed: shape of the
    list's index arrays; at: the axis of the series before which these axes are.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    nodes: tuple[Node, ...]
    positions: HostArray
    listed: Shape
    at: int


@dataclass(frozen=True, eq=False)
class WholeProgram:
    """What a function of whole arrays computes at each position.

    space: lengths of the axes that are split. wraps: of each input, the axes of space along which it is read
    around the end of space. changed: the inputs that the function changes, by number. series: results that
    are no fields. lost: the changed inputs that are no results, and the line of the first change. between: of
    the arrays between stages, by number, what computes them: a node for each cell, or a reduction along some
    axes. values: what defines each scalar. checks: of values, in the function's order.
    """

    space: Shape
    inputs: tuple[WholeInput, ...]
    outputs: tuple[WholeOutput, ...]
    graph: WholeGraph
    changed: tuple[int, ...]
    series: tuple[WholeSeries, ...] = ()
    lost: Mapping[int, int] = field(default_factory=dict)
    between: Mapping[int, Node | Reduction] = field(default_factory=dict)
    values: Mapping[int, Definition] = field(default_factory=dict)
    checks: tuple[ValueCheck, ...] = ()

    @property
    def written(self) -> dict[int, Node]:
        """The arrays that stages write, by number: the node that computes their cells."""
        return {number: one for number, one in self.between.items() if isinstance(one, Node)}

    @property
    def reduced(self) -> dict[int, Reduction]:
        """The results of reductions along some axes, by number."""
        return {number: one for number, one in self.between.items() if isinstance(one, Reduction)}

    @property
    def staged(self) -> bool:
        """Whether one pass over the cells cannot compute it."""
        return bool(self.between or self.values)

    @cached_property
    def program(self) -> Program:
        """The program of each cell, for kernels."""
        dimensions = len(self.space)
        inputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.inputs)
        outputs = tuple(
            Operand(one.name, one.dtype, one.shape[dimensions:], one.combine) for one in self.outputs
        )
        results = narrowed(self.graph, [one.nodes for one in self.outputs], (0,) * dimensions, self.space)
        program = Program(dimensions, inputs, outputs, results, self.graph, lengths=self.space)
        return program if program.has_places else replace(program, lengths=())

    @property
    def wraps(self) -> list[set[int]]:
        return self.graph.wraps

    @property
    def sizes(self) -> Sizes | None:
        """Where the arrays' cells lie; None if each has a cell at each position."""
        inputs = tuple(subgrid_of(one.shape, self.space) for one in self.inputs)
        outputs = tuple(Subgrid(one.shape, one.every) for one in self.outputs)
        if all(one.fills(self.space) for one in (*inputs, *outputs)):
            return None
        return Sizes(self.space, inputs, outputs)

    def footprint(self, number: int) -> Extents:
        """Return how far from the own position an array is read, per axis: cells before and after."""
        if not self.staged and not self.series:
            return self.program.footprint(number)
        offsets = [node.offset for node in self.nodes if node.op == "load" and node.input == number]
        return tuple(
            (max((-at[axis] for at in offsets), default=0), max((at[axis] for at in offsets), default=0))
            for axis in range(len(self.space))
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of cells, operands before their users."""
        roots = [node for output in self.outputs for node in output.nodes]
        roots += [node for series in self.series for node in series.nodes]
        roots += self.written.values()
        reductions: list[Definition] = [*self.reduced.values(), *self.values.values()]
        for definition in reductions:
            if isinstance(definition, Reduction):
                roots += definition.nodes
        return tuple(in_order(roots))

    @property
    def operations(self) -> int:
        """Number of operations for each cell, of all stages."""
        return sum(node.op not in FREE for node in self.nodes)

    @property
    def inexact(self) -> bool:
        """Whether some function rounds its last bits as the device does."""
        return bool(inexact_operations(self.nodes))

    def bytes_between(self, cells: Shape) -> int:
        """Return the bytes that a block of so many own cells needs for arrays between stages, at most.

        With their halos, and with what is reduced.
        """
        numbers = [*self.written, *self.reduced]
        dtypes = [one.dtype for one in self.written.values()]
        dtypes += [one.dtype for one in self.reduced.values()]
        reads = [self.footprint(number) for number in (*range(len(self.inputs)), *numbers)]
        wide = [
            n + max(read[axis][0] for read in reads) + max(read[axis][1] for read in reads)
            for axis, n in enumerate(cells[: len(self.space)])
        ]
        return math.prod(wide) * (sum(dtype.itemsize for dtype in dtypes) + 8)
