"""Trace a function of whole arrays: call it with stand-ins for them.

The function means what it means when NumPy calls it with the whole arrays. The shapes are those of the run,
so that an index is a place whatever the length of an axis is; a program is of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.refusal import NotTraceable, refused_with_line
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Tracing, Whole, inner_shape, made, taken
from meshrun.runner.compiler.whole.between.cuts import resolved
from meshrun.runner.compiler.whole.between.reductions import REDUCTIONS
from meshrun.runner.compiler.whole.functions.shifts import FUNCTIONS
from meshrun.runner.compiler.whole.graph import InputValue, Reduction, WholeGraph
from meshrun.runner.compiler.whole.module import Module, rebound
from meshrun.runner.compiler.whole.points import Listed
from meshrun.runner.compiler.whole.program import WholeInput, WholeOutput, WholeProgram, WholeSeries
from meshrun.runner.compiler.whole.sizes import only_own, space_of, subgrid_of
from meshrun.runner.region import Shape, Subgrid

__all__ = ["WholeInput", "WholeOutput", "WholeProgram", "WholeSeries", "trace_whole"]


def trace_whole(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    parameters: dict[str, Any],
    names: Sequence[str] = ("output",),
    axes: Sequence[int] | None = None,
    series: Sequence[str] = (),
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
    series: names of further results, which are no fields.
    kind: of the device for which it is decided what stages write, "cpu" or "cuda". None: they write nothing
        that can be computed where it is read.
    """
    space = space_of([one.shape for one in inputs])
    if axes is not None:
        space = tuple(space[axis] for axis in axes)
    program = _traced(function, inputs, parameters, (names, series), space)
    # Space is as long as the longest array: a result may have faces at both ends.
    shapes = [(*one.shape[: len(space)], *space[len(one.shape) :]) for one in program.outputs]
    longest = tuple(max(lengths) for lengths in zip(space, *shapes, strict=True))
    if longest != space:
        program = _traced(function, inputs, parameters, (names, series), longest)
    return resolved(program, kind)


def _traced(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    parameters: dict[str, Any],
    names: tuple[Sequence[str], Sequence[str]],
    space: Shape,
) -> WholeProgram:
    """Return what the function computes at each position of so long a space. names: of fields and series."""
    dimensions = len(space)
    graph = WholeGraph([space if one.shape else (0,) * dimensions for one in inputs], space)
    recorder = Tracing(function, graph, space, {**FUNCTIONS, **REDUCTIONS})
    arrays = [_input(recorder, number, one) for number, one in enumerate(inputs)]
    with refused_with_line(function):
        returned = rebound(function, Module(recorder))(*arrays, **parameters)
        fields, numbers = _separate(returned, arrays, *names)
        outputs = _outputs(recorder, fields, names[0])
        series = [_series(recorder, name, one) for name, one in zip(names[1], numbers, strict=True)]
    changed = {number: one._storage.line for number, one in enumerate(arrays) if one._storage.changed}
    kept = [one._storage for one in fields if isinstance(one, Whole)]
    lost = {number: line for number, line in changed.items() if arrays[number]._storage not in kept}
    between: dict[int, Node | Reduction] = {**graph.between, **graph.reduced}
    parts = between, dict(enumerate(graph.values)), tuple(recorder.checks)
    results = tuple(outputs), graph, tuple(changed), tuple(series), lost
    return WholeProgram(space, tuple(inputs), *results, *parts)


def _input(recorder: Tracing, number: int, one: WholeInput) -> Whole:
    """Return the stand-in of an input."""
    dimensions = len(recorder.space)
    if not one.shape:  # a value
        node = recorder.graph.value(InputValue(number), one.dtype)
        return made(recorder, (), {}, np.full((), node, object), one.dtype, number)
    subgrid = subgrid_of(one.shape, recorder.space)
    pairs = zip(subgrid.every, one.shape[:dimensions], strict=True)
    axes: list[Axis] = [Along(axis, 0, step, n) for axis, (step, n) in enumerate(pairs)]
    axes += [Inner(length) for length in one.shape[dimensions:]]
    nodes = np.empty(inner_shape(axes), object)
    for component in range(math.prod(nodes.shape)):
        offset = (0,) * dimensions
        nodes.ravel()[component] = recorder.graph.load(number, one.dtype, offset, component)
    return made(recorder, axes, {}, nodes, one.dtype, number)


def _separate(
    returned: Any, arrays: Sequence[Whole], names: Sequence[str], series: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Return the fields and the series among what a function returned: its last results are the series.

    One that returns no fields has those that it changed.
    """
    found = list(returned) if isinstance(returned, (tuple, list)) else [] if returned is None else [returned]
    if len(found) == len(series):
        changed = [one for one in arrays if one._storage.changed]
        if not changed:
            raise NotTraceable("returns nothing and changes none of its arrays")
        found = [*changed, *found]
    if len(found) != len(names) + len(series):
        raise NotTraceable(f"returns {len(found)} results, not {len(names) + len(series)}")
    return found[: len(names)], found[len(names) :]


def _series(recorder: Tracing, name: str, value: Any) -> WholeSeries:
    """Return a result that is no field."""
    one = recorder.operand(value)
    if any(isinstance(axis, Along) for axis in one._axes):
        raise NotTraceable(
            f"returns a field of shape {one.shape} as the series {name}",
            "its values at points, such as u[ys, xs]",
        )
    graph, listed = recorder.graph, [axis for axis in one._axes if isinstance(axis, Listed)]
    nodes = tuple(one.read().ravel())
    if listed:
        positions, shape = graph.points[listed[0].points], tuple(axis.length for axis in listed)
        at = next(number for number, axis in enumerate(one._axes) if isinstance(axis, Listed))
        return WholeSeries(name, one.shape, one.dtype, nodes, positions, shape, at)
    # One point, or none: a number has one value everywhere.
    if set(one._fixed) != set(range(len(recorder.space))) and graph.vary(nodes):
        raise NotTraceable(
            f"returns one row of a field as the series {name}", "a number for each axis: u[5, 7]"
        )
    position = np.array([[one._fixed.get(axis, 0) for axis in range(len(recorder.space))]])
    return WholeSeries(name, one.shape, one.dtype, nodes, position, (), 0)


def _check_apart(fields: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse results that share memory: each would change with the other in the next step."""
    for (name, one), (other, two) in combinations(zip(names, fields, strict=True), 2):
        if not (isinstance(one, Whole) and isinstance(two, Whole)) or one._storage is not two._storage:
            continue
        apart = {one._part, two._part} == {"real", "imag"}
        if not apart and np.intersect1d(one._cells, two._cells).size:
            raise NotTraceable(f"returns {name} and {other}, which share memory", f"{other}.copy()")


def _outputs(recorder: Tracing, fields: Sequence[Any], names: Sequence[str]) -> list[WholeOutput]:
    """Return the results that are fields."""
    _check_apart(fields, names)
    outputs = []
    for name, one in zip(names, fields, strict=True):
        if not isinstance(one, Whole) or one._recorder is not recorder:
            raise NotTraceable(f"returns a {type(one).__name__} that does not come from its arrays")
        if not one._axes:
            outputs.append(WholeOutput(name, (), one.dtype, tuple(taken(one).ravel()), ()))
            continue
        along = [axis for axis in one._axes if isinstance(axis, Along)]
        if one._fixed or [axis.axis for axis in along] != [*range(len(recorder.space))]:
            raise NotTraceable("returns an array without the axes of its inputs")
        # A result begins at position 0: move what was cut from the middle of a field.
        shift = tuple(axis.first for axis in along)
        nodes = one.moved(one.read().ravel(), shift)
        every = tuple(axis.step for axis in along)
        own = only_own(recorder.graph, nodes, Subgrid(one.shape, every), recorder.space)
        outputs.append(WholeOutput(name, one.shape, one.dtype, tuple(own), every))
    return outputs
