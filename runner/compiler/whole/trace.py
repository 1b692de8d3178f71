"""Trace a function of whole arrays: call it with stand-ins for them.

The function means what it means when NumPy calls it with the whole arrays. The shapes are those of the run,
so that an index is a place whatever the length of an axis is; a program is of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.function_key import key_of
from meshrun.runner.compiler.trace.graph import Node, Operand, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable, refused_with_line
from meshrun.runner.compiler.trace.timed import StepTape, given_of
from meshrun.runner.compiler.trace.trace import first_difference
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Tracing, Whole, inner_shape, made
from meshrun.runner.compiler.whole.constants import Constant, as_space, constants_of
from meshrun.runner.compiler.whole.functions import FUNCTIONS
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.module import Module, WholePlace, rebound
from meshrun.runner.job.signature import STEP
from meshrun.runner.region import Shape

LEAST_FACES = 8  # cells of an axis of which another array may have one more or one less


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
    around its end. changed: the inputs that the function changes, by number. tape: what is computed for each
    step. constants: the last inputs, which the function does not take.
    """

    space: Shape
    inputs: tuple[WholeInput, ...]
    outputs: tuple[WholeOutput, ...]
    graph: WholeGraph
    changed: tuple[int, ...]
    tape: StepTape = field(default_factory=StepTape)
    constants: tuple[Constant, ...] = ()

    @cached_property
    def program(self) -> Program:
        """The program of each cell, for kernels."""
        dimensions = len(self.space)
        inputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.inputs)
        outputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in self.outputs)
        results = tuple(one.nodes for one in self.outputs)
        graph, tape = self.graph, self.tape
        return Program(dimensions, inputs, outputs, results, graph, lengths=self.space, tape=tape)

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """What tells the program from others."""
        return self.program.text(), self.tape.text(), *(one.digest for one in self.constants)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.program.nodes

    @property
    def wraps(self) -> list[set[int]]:
        return self.graph.wraps


def space_of(inputs: Sequence[WholeInput]) -> Shape:
    """Return the lengths of the axes that all fields share, from the first on.

    An array of faces has one cell more than one of cells; space is as long as the longer one. An input
    without axes belongs to no field.
    """
    shapes = [one.shape for one in inputs if one.shape]
    space: list[int] = []
    for lengths in zip(*shapes, strict=False):
        near = max(lengths) - min(lengths) <= 1 and min(lengths) >= LEAST_FACES
        if len(set(lengths)) > 1 and not near:
            break
        space.append(max(lengths))
    return tuple(space)


def trace_whole(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    parameters: dict[str, Any],
    names: Sequence[str] = ("output",),
    axes: Sequence[int] | None = None,
    services: Collection[str] = (),
) -> WholeProgram:
    """Return what `function` computes at each position. Raises NotTraceable, with the line.

    Parameters
    ----------
    function: takes whole arrays, and returns one for each of `names`; or changes its inputs and returns None.
    inputs: the arrays' shapes and dtypes.
    parameters: the function's keywords.
    names: of the results.
    axes: number of the axes that are split, from the first on. None: those that all inputs share.
    services: the function's parameters that the runner passes to it, of `step`, `xp` and `here`.
    """
    program = _traced(function, inputs, parameters, names, axes, services)
    if key_of([function, parameters]) is None:  # it may read anything, such as random numbers
        again = _traced(function, inputs, parameters, names, axes, services)
        if program.fingerprint != again.fingerprint:
            reason = NotTraceable(
                "computes something else at each call, with numpy.random or a variable that it changes",
                "here.uniform(seed, step) for random numbers, an input or a parameter for others",
            )
            reason.line = first_difference(program.program, again.program) or _line_of_constants(
                program, again
            )
            raise reason
    return program


def _line_of_constants(one: WholeProgram, other: WholeProgram) -> int:
    """Return the line that uses the first array that differs between two programs; 0 if unknown."""
    pairs = enumerate(zip(one.constants, other.constants, strict=False), len(one.inputs) - len(one.constants))
    differing = {number for number, (a, b) in pairs if a.digest != b.digest}
    users = (node for node in one.nodes if any(load.input in differing for load in node.operands))
    return next((node.line for node in users if node.line), 0)


def _traced(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    parameters: dict[str, Any],
    names: Sequence[str],
    axes: Sequence[int] | None,
    services: Collection[str],
) -> WholeProgram:
    """Call the function once; see `trace_whole`."""
    space = space_of(inputs)
    if axes is not None:
        space = tuple(space[axis] for axis in axes)
    dimensions = len(space)
    lengths = [tuple(one.shape[:dimensions]) if one.shape else (0,) * dimensions for one in inputs]
    graph = WholeGraph(lengths, space)
    recorder = Tracing(function, graph, space, FUNCTIONS)
    arrays = [_input(recorder, number, one) for number, one in enumerate(inputs)]
    module = Module(recorder)
    here = WholePlace(recorder, inputs[0].shape, module)
    served = {STEP: recorder.tape.step, "xp": module, "here": here}
    known = given_of(recorder.tape, parameters) | {name: served[name] for name in services}
    with refused_with_line(function):
        returned = rebound(function, module, tables=bool({STEP, "here"} & {*services}))(*arrays, **known)
        outputs = _outputs(recorder, returned, arrays, inputs, names)
    outputs, constants = _with_loads(function, graph, space, outputs, inputs)
    inputs = [*inputs, *(WholeInput(one.name, space, one.values.dtype) for one in constants)]
    changed = tuple(number for number, one in enumerate(arrays) if one._storage.changed)
    program = WholeProgram(space, tuple(inputs), tuple(outputs), graph, changed, recorder.tape, constants)
    recorder.tape.keep(program.program.scalars)
    return program


def _input(recorder: Tracing, number: int, one: WholeInput) -> Whole:
    """Return the stand-in of an input."""
    dimensions = len(recorder.space)
    axes: list[Axis] = [Along(axis, 0, 1, n) for axis, n in enumerate(one.shape[:dimensions])]
    axes += [Inner(length) for length in one.shape[dimensions:]]
    nodes = np.empty(inner_shape(axes), object)
    for component in range(math.prod(nodes.shape)):
        offset = (0,) * dimensions
        nodes.ravel()[component] = recorder.graph.load(number, one.dtype, offset, component)
    return made(recorder, axes, {}, nodes, one.dtype, number)


def _with_loads(
    function: Callable[..., Any],
    graph: WholeGraph,
    space: Shape,
    outputs: Sequence[WholeOutput],
    inputs: Sequence[WholeInput],
) -> tuple[list[WholeOutput], tuple[Constant, ...]]:
    """Return the results with loads in place of the elements of tables, which become further inputs."""
    nodes, tables = graph.loaded(node for output in outputs for node in output.nodes)
    left = iter(nodes)
    found = [replace(output, nodes=tuple(next(left) for _ in output.nodes)) for output in outputs]
    return found, tuple(constants_of(function, tables, space, [one.name for one in inputs]))


def _outputs(
    recorder: Tracing,
    returned: Any,
    arrays: Sequence[Whole],
    inputs: Sequence[WholeInput],
    names: Sequence[str],
) -> list[WholeOutput]:
    """Return the results: what the function returned, or the inputs that it changed."""
    if returned is None:
        returned = [one for one in arrays if one._storage.changed]
        if not returned:
            raise NotTraceable("returns nothing and changes none of its arrays")
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(names):
        raise NotTraceable(f"returns {len(found)} results, not {len(names)}")
    outputs = []
    for name, result in zip(names, found, strict=True):
        one = as_space(recorder, result)
        if not isinstance(one, Whole) or one._recorder is not recorder:
            raise NotTraceable(f"returns a {type(one).__name__} that does not come from its arrays")
        along = [axis for axis in one._axes if isinstance(axis, Along)]
        places = [(axis.axis, axis.step) for axis in along]
        if one._fixed or places != [(axis, 1) for axis in range(len(recorder.space))]:
            raise NotTraceable("returns an array without the axes of its inputs")
        # A result begins at position 0: move what was cut from the middle of a field.
        shift = tuple(axis.first for axis in along)
        nodes = recorder.graph.moved(one.read().ravel(), shift)
        outputs.append(WholeOutput(name, one.shape, one.dtype, tuple(nodes)))
    return outputs
