"""Trace a function of whole arrays: call it with stand-ins for them.

The function means what it means when NumPy calls it with the whole arrays. The shapes are those of the run,
so that an index is a place whatever the length of an axis is; a program is of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.refusal import NotTraceable, refused_with_line
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Tracing, Whole, inner_shape, made, taken
from meshrun.runner.compiler.whole.cuts import resolved
from meshrun.runner.compiler.whole.functions import FUNCTIONS
from meshrun.runner.compiler.whole.graph import InputValue, WholeGraph
from meshrun.runner.compiler.whole.module import Module, rebound
from meshrun.runner.compiler.whole.program import WholeInput, WholeOutput, WholeProgram
from meshrun.runner.compiler.whole.reductions import REDUCTIONS
from meshrun.runner.region import Shape

__all__ = ["WholeInput", "WholeOutput", "WholeProgram", "space_of", "trace_whole"]
LEAST_FACES = 8  # cells of an axis of which another array may have one more or one less


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
    kind: str | None = None,
) -> WholeProgram:
    """Return what `function` computes at each position. Raises NotTraceable, with the line.

    Parameters
    ----------
    function: takes whole arrays, and returns one for each of `names`; or changes its inputs and returns None.
    inputs: the arrays' shapes and dtypes.
    parameters: the function's keywords.
    names: of the results.
    axes: number of the axes that are split, from the first on. None: those that all inputs share.
    kind: of the device for which it is decided what stages write, "cpu" or "cuda". None: they write nothing
        that can be computed where it is read.
    """
    space = space_of(inputs)
    if axes is not None:
        space = tuple(space[axis] for axis in axes)
    dimensions = len(space)
    lengths = [tuple(one.shape[:dimensions]) if one.shape else (0,) * dimensions for one in inputs]
    graph = WholeGraph(lengths, space)
    recorder = Tracing(function, graph, space, {**FUNCTIONS, **REDUCTIONS})
    arrays = [_input(recorder, number, one) for number, one in enumerate(inputs)]
    with refused_with_line(function):
        returned = rebound(function, Module(recorder))(*arrays, **parameters)
        outputs = _outputs(recorder, returned, arrays, inputs, names)
    changed = tuple(number for number, one in enumerate(arrays) if one._storage.changed)
    values = dict(enumerate(graph.values))
    arrays_made = graph.written, graph.reduced
    checks = tuple(graph.checks)
    whole = WholeProgram(space, tuple(inputs), tuple(outputs), graph, changed, *arrays_made, values, checks)
    return resolved(whole, kind)


def _input(recorder: Tracing, number: int, one: WholeInput) -> Whole:
    """Return the stand-in of an input."""
    dimensions = len(recorder.space)
    if not one.shape:  # a value
        node = recorder.graph.value(InputValue(number), one.dtype)
        return made(recorder, (), {}, np.full((), node, object), one.dtype, number)
    axes: list[Axis] = [Along(axis, 0, 1, n) for axis, n in enumerate(one.shape[:dimensions])]
    axes += [Inner(length) for length in one.shape[dimensions:]]
    nodes = np.empty(inner_shape(axes), object)
    for component in range(math.prod(nodes.shape)):
        offset = (0,) * dimensions
        nodes.ravel()[component] = recorder.graph.load(number, one.dtype, offset, component)
    return made(recorder, axes, {}, nodes, one.dtype, number)


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
    for name, one in zip(names, found, strict=True):
        if not isinstance(one, Whole) or one._recorder is not recorder:
            raise NotTraceable(f"returns a {type(one).__name__} that does not come from its arrays")
        if not one._axes:
            outputs.append(WholeOutput(name, (), one.dtype, tuple(taken(one).ravel())))
            continue
        along = [axis for axis in one._axes if isinstance(axis, Along)]
        places = [(axis.axis, axis.step) for axis in along]
        if one._fixed or places != [(axis, 1) for axis in range(len(recorder.space))]:
            raise NotTraceable("returns an array without the axes of its inputs")
        # A result begins at position 0: move what was cut from the middle of a field.
        shift = tuple(axis.first for axis in along)
        nodes = recorder.graph.moved(one.read().ravel(), shift)
        outputs.append(WholeOutput(name, one.shape, one.dtype, tuple(nodes)))
    return outputs
