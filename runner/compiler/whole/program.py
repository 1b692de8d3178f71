"""What a function of whole arrays computes: its arrays, and a node for each cell of a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.trace.graph import FREE, Node, Operand, Program, in_order
from meshrun.runner.compiler.whole.graph import Definition, Reduction, ValueCheck, WholeGraph
from meshrun.runner.region import Shape


@dataclass(frozen=True)
class Cut:
    """Why an array is written, or is not. number: of the array. line: of the user's file that computes it.

    distances: at which it is read. repeated: operations of a cell that one kernel would do again. worth: as
    many operations as take as long as its bytes.
    """

    number: int
    line: int
    distances: int
    repeated: int
    worth: int

    @property
    def written(self) -> bool:
        return self.repeated > self.worth


@dataclass(frozen=True)
class WholeInput:
    """An array that a function takes."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class WholeOutput:
    """An array that a function returns. nodes: per component, in C order of the axes after those of space."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class WholeProgram:
    """What a function of whole arrays computes at each position.

    space: lengths of the axes that are split. wraps: of each input, the axes of space along which it is read
    around its end. changed: the inputs that the function changes, by number. written, reduced, values: see
    `WholeGraph`; `cuts.resolved` leaves those that are needed. cuts: why arrays are written, or are not.
    """

    space: Shape
    inputs: tuple[WholeInput, ...]
    outputs: tuple[WholeOutput, ...]
    graph: WholeGraph
    changed: tuple[int, ...]
    written: Mapping[int, Node] = field(default_factory=dict)
    reduced: Mapping[int, Reduction] = field(default_factory=dict)
    values: Mapping[int, Definition] = field(default_factory=dict)
    checks: tuple[ValueCheck, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def staged(self) -> bool:
        """Whether one pass over the cells cannot compute it."""
        return bool(self.written or self.reduced or self.values)

    @cached_property
    def program(self) -> Program:
        """The program of each cell, for kernels: of a function that is computed in one stage."""
        dimensions = len(self.space)
        inputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.inputs)
        outputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.outputs)
        results = tuple(one.nodes for one in self.outputs)
        return Program(dimensions, inputs, outputs, results, self.graph, lengths=self.space)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of cells, operands before their users."""
        roots = [node for output in self.outputs for node in output.nodes] + list(self.written.values())
        for one in (*self.reduced.values(), *self.values.values()):
            roots += one.nodes if isinstance(one, Reduction) else ()
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
        dtypes = [node.dtype for node in self.nodes if node.op == "load" and node.input in numbers]
        size = max((dtype.itemsize for dtype in dtypes), default=0)
        reads = [self.footprint(number) for number in range(len(self.inputs) + len(numbers))]
        wide = [
            n + max(read[axis][0] for read in reads) + max(read[axis][1] for read in reads)
            for axis, n in enumerate(cells[: len(self.space)])
        ]
        return math.prod(wide) * (size * len(numbers) + 8)

    @property
    def wraps(self) -> list[set[int]]:
        return self.graph.wraps

    def footprint(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return how far from the own position an input is read, per axis: cells before and after."""
        offsets = [node.offset for node in self.nodes if node.op == "load" and node.input == number]
        return tuple(
            (max((-at[axis] for at in offsets), default=0), max((at[axis] for at in offsets), default=0))
            for axis in range(len(self.space))
        )
