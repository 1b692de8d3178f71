"""What a function of whole arrays computes: its arrays, and a node for each cell of a result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.passes.ends import narrowed
from meshrun.runner.compiler.trace.graph import FREE, Extents, Node, Operand, Program, in_order
from meshrun.runner.compiler.trace.timed import StepTape
from meshrun.runner.compiler.whole.functions.outside import Constant
from meshrun.runner.compiler.whole.graph import Definition, LoopResult, Reduction, ValueCheck, WholeGraph
from meshrun.runner.compiler.whole.sizes import subgrid_of
from meshrun.runner.region import HostArray, Shape, Sizes, Subgrid

ASSUMED_ITERATIONS = 100  # of a loop that a condition ends


@dataclass(frozen=True)
class WholeInput:
    """An array that a function takes, or uses besides.

    constant: the array in this case. packed: whether a coarse grid has no other cells in memory than its own.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    constant: Constant | None = None
    packed: bool = False


@dataclass(frozen=True)
class InputChange:
    """A change of an input. line: of the user's file. returned: whether the input is a result."""

    line: int
    returned: bool


@dataclass(frozen=True, eq=False)
class WholeOutput:
    """An array that a function returns.

    nodes: per component, in C order of the axes after those of space; zero at positions where the array has
    no cell. every: per axis of space, positions from one of its cells to the next. combine: as of `Operand`.
    origin: the input whose memory it has, by number; -1: none. packed: as of `WholeInput`.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    nodes: tuple[Node, ...]
    every: Shape
    combine: str = ""
    origin: int = -1
    packed: bool = False


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
    are no fields. between: of the arrays between stages, by number, what computes them: a node for each
    cell, a reduction along some axes, or what a loop leaves. values: what defines each scalar but the slots
    of the tape, which are the first scalars. checks: of values, in the function's order. tape: what is
    computed for each step.
    """

    space: Shape
    inputs: tuple[WholeInput, ...]
    outputs: tuple[WholeOutput, ...]
    graph: WholeGraph
    changed: Mapping[int, InputChange]
    series: tuple[WholeSeries, ...] = ()
    between: Mapping[int, Node | Reduction | LoopResult] = field(default_factory=dict)
    values: Mapping[int, Definition] = field(default_factory=dict)
    checks: tuple[ValueCheck, ...] = ()
    tape: StepTape = field(default_factory=StepTape)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """The last inputs, which the function does not take."""
        return tuple(one.constant for one in self.inputs if one.constant is not None)

    @cached_property
    def written(self) -> dict[int, Node]:
        """The arrays that stages write, by number: the node that computes their cells."""
        return {number: one for number, one in self.between.items() if isinstance(one, Node)}

    @cached_property
    def reduced(self) -> dict[int, Reduction]:
        """The results of reductions along some axes, by number."""
        return {number: one for number, one in self.between.items() if isinstance(one, Reduction)}

    @cached_property
    def left(self) -> dict[int, LoopResult]:
        """The arrays that loops leave, by number."""
        return {number: one for number, one in self.between.items() if isinstance(one, LoopResult)}

    @cached_property
    def loops(self) -> tuple[Any, ...]:
        """The `between.recorded_loop.Loop` whose results are among the arrays and values."""
        results = (*self.between.values(), *self.values.values())
        return tuple(dict.fromkeys(one.loop for one in results if isinstance(one, LoopResult)))

    def dtype_between(self, number: int) -> np.dtype[Any]:
        """Return the dtype of an array between stages."""
        return self.between[number].dtype

    @property
    def has_packed(self) -> bool:
        """Whether some coarse input or output has no other cells in memory than its own."""
        return any(one.packed for one in self.inputs) or any(one.packed for one in self.outputs)

    @property
    def staged(self) -> bool:
        """Whether one pass over the cells cannot compute it."""
        return bool(self.between or self.values)

    @cached_property
    def has_strides(self) -> bool:
        """Whether some cells are computed at every second position, or further apart, as coarse grids are."""
        return any(node.op == "inside" and node.value[3] > 1 for node in self.nodes)

    @cached_property
    def has_levels(self) -> bool:
        """Whether the cells of some array between stages are read at multiples of a distance alone.

        So are those of a coarse grid.
        """
        distances: dict[int, int] = {}
        for node in self.nodes:
            if node.op == "load" and isinstance(self.between.get(node.input), Node):
                distances[node.input] = math.gcd(distances.get(node.input, 0), *node.offset)
        return max(distances.values(), default=0) > 1

    @cached_property
    def program(self) -> Program:
        """The program of each cell, for kernels."""
        dimensions = len(self.space)
        inputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.inputs)
        outputs = tuple(
            Operand(one.name, one.dtype, one.shape[dimensions:], one.combine) for one in self.outputs
        )
        results = narrowed(self.graph, [one.nodes for one in self.outputs], (0,) * dimensions, self.space)
        program = Program(
            dimensions, inputs, outputs, results, self.graph, lengths=self.space, tape=self.tape
        )
        return program if program.has_places else replace(program, lengths=())

    @cached_property
    def fingerprint(self) -> tuple[str, ...]:
        """What tells the program from others."""
        graph = self.graph
        given = [*graph.points, *(one for one in graph.picked if isinstance(one, np.ndarray))]
        of_points = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in given)).hexdigest()
        digests = [one.digest for one in self.constants]
        bodies = [text for loop in self.loops for text in (loop.text, *loop.body.fingerprint)]
        return self.listing.text(), self.tape.text(), of_points, *digests, *bodies

    @cached_property
    def listing(self) -> Program:
        """All nodes of cells as results of one program, to be compared with another listing."""
        inputs = tuple(Operand(one.name, one.dtype) for one in self.inputs)
        return Program(len(self.space), inputs, (Operand("", np.dtype(bool)),), (self.roots,), self.graph)

    @property
    def wraps(self) -> list[set[int]]:
        return self.graph.wraps

    @property
    def sizes(self) -> Sizes | None:
        """Where the arrays' cells lie; None if each has a cell at each position."""
        inputs = tuple(replace(subgrid_of(one.shape, self.space), packed=one.packed) for one in self.inputs)
        outputs = tuple(Subgrid(one.shape, one.every, one.packed) for one in self.outputs)
        if not self.has_packed and all(one.fills(self.space) for one in (*inputs, *outputs)):
            return None
        return Sizes(self.space, inputs, outputs)

    def footprint(self, number: int) -> Extents:
        """Return how far from the own position an array is read, per axis: cells before and after."""
        if not self.staged and not self.series:
            return self.program.footprint(number)
        offsets = [node.offset for node in self.nodes if node.op == "load" and node.input == number]
        for loop in self.loops:
            for place, node in enumerate(loop.inputs):
                if node.op == "load" and node.input == number:
                    pairs = loop.body.footprint(place)
                    offsets += [tuple(-low for low, _ in pairs), tuple(high for _, high in pairs)]
        return tuple(
            (max([0, *(-at[axis] for at in offsets)]), max([0, *(at[axis] for at in offsets)]))
            for axis in range(len(self.space))
        )

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of cells, operands before their users."""
        return tuple(in_order(self.roots))

    @property
    def roots(self) -> tuple[Node, ...]:
        """All nodes of cells that something other than a node needs."""
        roots = [node for output in self.outputs for node in output.nodes]
        roots += [node for series in self.series for node in series.nodes]
        roots += self.written.values()
        reductions: list[Definition] = [*self.reduced.values(), *self.values.values()]
        for definition in reductions:
            if isinstance(definition, Reduction):
                roots += definition.nodes
        roots += [node for loop in self.loops for node in loop.outside]
        return tuple(roots)

    @property
    def operations(self) -> int:
        """Number of operations for each cell, of all stages.

        Of a loop, those of all iterations; it is unknown how many a condition ends.
        """
        own = sum(node.op not in FREE for node in self.nodes)
        in_loops: list[int] = [
            loop.body.operations
            * (ASSUMED_ITERATIONS if loop.numbers.items is None else len(loop.numbers.items))
            for loop in self.loops
        ]
        return own + sum(in_loops)

    @property
    def loop_bytes(self) -> int:
        """Bytes that loops read and write for each position, as if an iteration passed over its arrays once.

        A loop that its condition ends counts as one iteration.
        """
        total = 0
        for loop in self.loops:
            body: WholeProgram = loop.body
            arrays: list[WholeInput | WholeOutput] = [*body.inputs, *body.outputs]
            fields = [one.dtype.itemsize for one in arrays if one.shape]
            total += (sum(fields) + body.loop_bytes) * (
                1 if loop.numbers.items is None else len(loop.numbers.items)
            )
        return total

    @property
    def rounded(self) -> set[np.dtype[Any]]:
        """Dtypes of sums and products that are rounded in another order than NumPy's."""
        reductions = (one for one in self.values.values() if isinstance(one, Reduction))
        return {
            one.dtype
            for one in (*reductions, *self.reduced.values())
            if one.ufunc in ("add", "multiply") and one.dtype.kind == "f"
        }

    @property
    def inexact(self) -> bool:
        """Whether some function rounds its last bits as the device does."""
        return bool(inexact_operations(self.nodes)) or any(loop.body.inexact for loop in self.loops)
