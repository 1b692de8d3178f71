"""The spaces of a function with Fourier transforms: one for each shape of a transform's operand or result.

The first one is that of the function's inputs. Lines and values belong to none: they are brought to the space
of the field that they are combined with. Fields of different spaces cannot be combined.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Tracing, Whole, made, taken
from meshrun.runner.compiler.whole.graph import ImportedValue, StepSlot, WholeGraph
from meshrun.runner.region import Shape

Kind = Literal["complex", "forward", "inverse"]  # of complex numbers; of real ones to half of them, and back


class NewSpace(NotTraceable):
    """The function has arrays of another shape than those known: it is traced again, with this one.

    shape: () for a function that uses numpy.fft, of whose transforms nothing is known yet.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(f"transforms arrays of shape {shape}")
        self.shape = shape


@dataclass(frozen=True, eq=False)
class FieldTransform:
    """A Fourier transform without factors, of all cells of a space along some of its axes.

    kind, inverse: what is computed. axes: in the function's order; the last one is that of the half. length:
    of the result along the last axis. source, node: number of the space and what computes the operand's
    cells. target, array: number of the space and of the result there. dtype: of the result.
    """

    kind: Kind
    inverse: bool
    axes: Shape
    length: int
    source: int
    node: Node
    target: int
    array: int
    dtype: np.dtype[Any]
    line: int


@dataclass(frozen=True, eq=False)
class FieldProduct:
    """The product of two fields of a space as matrices.

    source, nodes: number of the space and what computes the operands' cells. turned: which of them is
    transposed. target, array: number of the space and of the result there. dtype: of all three.
    """

    source: int
    nodes: tuple[Node, Node]
    turned: tuple[bool, bool]
    target: int
    array: int
    dtype: np.dtype[Any]
    line: int


Between = FieldTransform | FieldProduct  # what is done between parts


class Spaces:
    """The recorders of one call of the function, one for each space.

    recorders: that of the inputs first. halves: whether lines may be as long as half a spectrum. transforms:
    in the function's order. results: of each space, by number of the array.
    """

    def __init__(self, function: Callable[..., Any], main: Tracing, shapes: Sequence[Shape]) -> None:
        self.recorders = [main]
        self.halves = bool(shapes)
        self.transforms: list[Between] = []
        self._known: dict[Any, Between] = {}
        main.spaces = self
        for shape in filter(None, shapes):
            other = Tracing(function, WholeGraph([], shape), shape, main.functions)
            other.tape, other.spaces, other.lines = main.tape, self, main.lines
            other.journals = main.journals  # an iteration writes memory of any space
            self.recorders.append(other)

    @property
    def results(self) -> list[dict[int, Between]]:
        numbers = range(len(self.recorders))
        return [{one.array: one for one in self.transforms if one.target == n} for n in numbers]

    @property
    def lengths(self) -> set[int]:
        """The lengths of lines: of all spaces' axes, and of halves of them."""
        halves = {length // 2 + 1 for length in self.recorders[0].space if self.halves}
        return halves | {length for one in self.recorders for length in one.space}

    def expect_transforms(self) -> None:
        """Note that the function uses numpy.fft. Raises NewSpace if that was not known."""
        if not self.halves:
            raise NewSpace(())

    def of_shape(self, shape: Shape) -> Tracing:
        """Return the recorder of a space. Raises NewSpace."""
        for one in self.recorders:
            if one.space == shape:
                return one
        raise NewSpace(shape)

    def filled(self, shape: Any, value: Any, dtype: Any = None) -> Any:
        """Return numpy.full's result, as a traced array of the space of that shape if there is one."""
        lengths = tuple(map(operator.index, (shape,) if isinstance(shape, (int, np.integer)) else shape))
        own = next((one for one in self.recorders if one.space == lengths), self.recorders[0])
        return own.filled(lengths, value, dtype)

    def transformed(
        self,
        kind: Kind,
        inverse: bool,
        axes: Shape,
        length: int,
        operand: tuple[Tracing, Node],
        dtype: np.dtype[Any],
    ) -> tuple[Tracing, Node]:
        """Return the load of a transform's result, and its recorder. operand: recorder and cells."""
        recorder, node = operand
        lengths = list(recorder.space)
        lengths[axes[-1]] = length
        target = self.of_shape(tuple(lengths))
        key = kind, inverse, axes, length, node
        if key not in self._known:
            one = FieldTransform(
                kind,
                inverse,
                axes,
                length,
                self.recorders.index(recorder),
                node,
                self.recorders.index(target),
                target.graph.new_array(target.space),
                dtype,
                recorder.line(),
            )
            self._known[key] = one
            self.transforms.append(one)
        number = self._known[key].array
        return target, target.graph.load(number, dtype, (0,) * len(target.space))

    def multiplied(
        self,
        recorder: Tracing,
        nodes: tuple[Node, Node],
        turned: tuple[bool, bool],
        shape: Shape,
        dtype: np.dtype[Any],
    ) -> tuple[Tracing, Node]:
        """Return the load of the product of two fields of a space, and its recorder. shape: of the result."""
        target, key = self.of_shape(shape), ("product", *nodes, turned)
        if key not in self._known:
            source, number = self.recorders.index(recorder), self.recorders.index(target)
            array = target.graph.new_array(target.space)
            one = FieldProduct(source, nodes, turned, number, array, dtype, recorder.line())
            self._known[key] = one
            self.transforms.append(one)
        return target, target.graph.load(self._known[key].array, dtype, (0, 0))

    def together(self, values: Any) -> Any:
        """Return what a function is called with, all arrays of it in one space: that of a field if one is
        there."""
        if len(self.recorders) < 2:
            return values
        operands = list(_arrays(values))
        recorders = {id(one._recorder): one._recorder for one in operands}
        if len(recorders) < 2 or any(one.spaces is not self for one in recorders.values()):
            return values

        def weight(one: Whole) -> tuple[bool, bool]:
            along = any(isinstance(axis, Along) and axis.axis >= 0 for axis in one._axes)
            return along and has_cells(one), along

        target = max(operands, key=weight)._recorder

        def replaced(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)([replaced(one) for one in value])
            if isinstance(value, dict):
                return {name: replaced(one) for name, one in value.items()}
            return self.brought(value, target)

        return replaced(values)

    def brought(self, one: Any, target: Tracing) -> Any:
        """Return an array of one space as one of another; others unchanged. Refuses a field."""
        if not isinstance(one, Whole) or one._recorder is target or one._recorder.spaces is not self:
            return one
        recorder = one._recorder
        number, graph = self.recorders.index(recorder), target.graph
        nodes = one.read() if one._axes or not has_cells(one) else taken(one)
        done: dict[Node, Node] = {}
        for node in in_order(nodes.ravel()):
            if node.op == "table":
                root = recorder.graph.tables.roots[node.input]
                done[node] = graph.table(root, node.value, node.offset)
            elif node.op == "scalar":
                definition = recorder.graph.values[node.value]
                step = isinstance(definition, StepSlot)
                done[node] = graph.value(definition if step else ImportedValue(number, node), node.dtype)
            elif node.op in ("load", "point", "pick"):
                self._refuse(recorder.space, target.space)
            elif not node.operands:
                axis = node.value[0] if node.op in ("place", "inside") else -1
                if axis >= 0 and recorder.space[axis : axis + 1] != target.space[axis : axis + 1]:
                    self._refuse(recorder.space, target.space)
                done[node] = graph.leaf(node)
            else:
                operands = [done[operand] for operand in node.operands]
                done[node] = graph.operation(node.op, node.dtype, operands, node.line)
        brought = np.empty(nodes.shape, object)
        brought.ravel()[:] = [done[node] for node in nodes.ravel()]
        kept = tuple(axis.length for axis in one._axes if not isinstance(axis, Along))
        found = made(target, one._axes, {} if not one._axes else one._fixed, brought.reshape(kept), one.dtype)
        found._weak = one._weak
        return found

    @staticmethod
    def _refuse(space: Shape, other: Shape) -> None:
        raise NotTraceable(
            f"combines arrays of shapes {space} and {other}",
            "the transform of one of them, so that both are physical or both are spectral",
        )


def has_cells(one: Whole) -> bool:
    """Return whether values are computed of cells."""
    graph: WholeGraph = one._recorder.graph
    return any("load" in graph.dependence(node).leaves for node in one.read().ravel())


def _arrays(values: Any) -> Iterator[Whole]:
    """Yield the traced arrays among what a function is called with."""
    if isinstance(values, Whole):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for one in values.values() if isinstance(values, dict) else values:
            yield from _arrays(one)
