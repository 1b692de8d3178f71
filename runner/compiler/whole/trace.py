"""Trace a function of whole arrays: call it with stand-ins for them.

The function means what it means when NumPy calls it with the whole arrays. The shapes are those of the run,
so that an index is a place whatever the length of an axis is; a program is of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations, product
from types import CoroutineType
from typing import Any

import numpy as np

from meshrun.runner.compiler.function_key import key_of
from meshrun.runner.compiler.trace.outside_state import ChangesOutside
from meshrun.runner.compiler.trace.refusal import NotTraceable, refused_with_line
from meshrun.runner.compiler.trace.timed import given_of
from meshrun.runner.compiler.trace.trace import first_difference
from meshrun.runner.compiler.whole.array import (
    Along,
    Axis,
    Inner,
    Tracing,
    Whole,
    forward,
    inner_shape,
    made,
    taken,
)
from meshrun.runner.compiler.whole.between.control_flow import TracedControl
from meshrun.runner.compiler.whole.between.cuts import resolved
from meshrun.runner.compiler.whole.between.numbers import numbered
from meshrun.runner.compiler.whole.between.reductions import REDUCTIONS
from meshrun.runner.compiler.whole.functions.shifts import FUNCTIONS
from meshrun.runner.compiler.whole.graph import InputValue, WholeGraph
from meshrun.runner.compiler.whole.module import Module, WholePlace, copies_with
from meshrun.runner.compiler.whole.points import Listed
from meshrun.runner.compiler.whole.program import (
    InputChange,
    WholeInput,
    WholeOutput,
    WholeProgram,
    WholeSeries,
)
from meshrun.runner.compiler.whole.sizes import only_own, space_of, subgrid_of
from meshrun.runner.compiler.whole.spaces.fourier import FUNCTIONS as FOURIER
from meshrun.runner.compiler.whole.spaces.matrices import FUNCTIONS as PRODUCTS
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram, spectral_program
from meshrun.runner.compiler.whole.spaces.spaces import NewSpace, Spaces
from meshrun.runner.job.signature import STEP
from meshrun.runner.region import Shape, Subgrid, real_dtype

__all__ = ["WholeInput", "WholeOutput", "WholeProgram", "WholeSeries", "trace_whole"]

MOST_SPACES = 4  # shapes of transforms, besides that of the inputs
REVERSED = "returns an array with a reversed axis", "the array in its own order, reversed where it is read"
FIELD = "return with an array for each output; np.full_like(field, value) for one of a number"
# The function's keywords, the services that it takes, the names of its fields and series, and the device.
Given = tuple[dict[str, Any], Collection[str], tuple[Sequence[str], Sequence[str]], str | None]


def trace_whole(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    parameters: dict[str, Any],
    names: Sequence[str] = ("output",),
    axes: Sequence[int] | None = None,
    series: Sequence[str] = (),
    kind: str | None = None,
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
    series: names of further results, which are no fields.
    kind: of the device for which it is decided what stages write, "cpu" or "cuda". None: they write nothing
        that can be computed where it is read.
    """
    given = parameters, services, (names, series), kind
    try:
        program = _in_space(function, inputs, given, axes)
    except ChangesOutside:  # such as tables that are made when they are needed first
        program = _in_space(function, inputs, given, axes)
    except NotTraceable as refused:
        if refused.nests:
            refused.hint = _lengths_that_nest(function, inputs, given, axes)
        raise
    if key_of([function, parameters]) is None:  # it may read anything, such as random numbers
        again = _in_space(function, inputs, given, axes)
        if program.fingerprint != again.fingerprint:
            reason = NotTraceable(
                "computes something else at each call, with numpy.random or a variable that it changes",
                "here.uniform(seed, step) for random numbers, an input or a parameter for others",
            )
            line = first_difference(program.listing, again.listing)
            reason.line = line or _line_of_constants(program, again)
            raise reason
    return program if isinstance(program, SpectralProgram) else resolved(program, kind)


def _lengths_that_nest(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    given: Given,
    axes: Sequence[int] | None,
) -> str | None:
    """Return the nearest lengths of arrays, shorter and longer ones, for which levels nest; None if unknown.

    Levels are halved cells, 2^k m along an axis, or every second vertex, 2^k m + 1. The function tells which
    of these it takes.
    """
    shapes = {one.shape for one in inputs if one.shape}
    if len(shapes) != 1:
        return None
    (own,) = shapes
    candidates: dict[Shape, None] = {}
    for step, vertex, up in product((2**k for k in range(1, max(own).bit_length())), (0, 1), (0, 1)):
        lengths = ((n - vertex + (step - 1) * up) // step * step + vertex for n in own)
        candidates[tuple(lengths)] = None
    found: dict[bool, Shape] = {}  # by whether there are more cells
    for shape in sorted(
        candidates, key=lambda one: sum(abs(a - b) / b for a, b in zip(one, own, strict=True))
    ):
        longer = math.prod(shape) > math.prod(own)
        if min(shape) < 2 or longer in found or shape == own:
            continue
        with suppress(NotTraceable, ChangesOutside):
            _in_space(
                function, [replace(one, shape=shape if one.shape else ()) for one in inputs], given, axes
            )
            found[longer] = shape
    texts = [" x ".join(map(str, found[longer])) for longer in sorted(found)]
    return f"arrays of {' or '.join(texts)}, whose levels nest" if texts else None


def _line_of_constants(one: WholeProgram, other: WholeProgram) -> int:
    """Return the line that uses the first array that differs between two programs; 0 if unknown."""
    pairs = enumerate(zip(one.constants, other.constants, strict=False), len(one.inputs) - len(one.constants))
    differing = {number for number, (a, b) in pairs if a.digest != b.digest}
    users = (node for node in one.nodes if any(load.input in differing for load in node.operands))
    return next((node.line for node in users if node.line), 0)


def _in_space(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    given: Given,
    axes: Sequence[int] | None,
) -> WholeProgram:
    """Return what the function computes in a space as long as its longest array."""
    space = space_of([one.shape for one in inputs])
    if axes is not None:
        space = tuple(space[axis] for axis in axes)
    program = _traced(function, inputs, given, space)
    if isinstance(program, SpectralProgram):
        return program
    # Space is as long as the longest array: a result may have faces at both ends.
    shapes = [(*one.shape[: len(space)], *space[len(one.shape) :]) for one in program.outputs]
    longest = tuple(max(lengths) for lengths in zip(space, *shapes, strict=True))
    if longest != space:
        program = _traced(function, inputs, given, longest)
    return program


@contextmanager
def _nesting(recorder: Tracing) -> Iterator[None]:
    """Note of an error whether other lengths of arrays may prevent it."""
    try:
        yield
    except NotTraceable as reason:
        reason.nests = bool(recorder.levels) and isinstance(reason.__cause__, ValueError)
        raise


def _traced(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    given: Given,
    space: Shape,
) -> WholeProgram:
    """Return what the function computes at each position of so long a space."""
    shapes: list[Shape] = []
    while True:
        try:
            return _called(function, inputs, given, space, shapes)
        except NewSpace as new:
            if sum(map(bool, shapes)) == MOST_SPACES:
                refusal = NotTraceable(
                    f"transforms to arrays of more than {MOST_SPACES} shapes", "one function for each few"
                )
                refusal.line = new.line
                raise refusal from None
            shapes.append(new.shape)


def _called(
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    given: Given,
    space: Shape,
    shapes: Sequence[Shape],
) -> WholeProgram:
    """Return what one call of the function computes. shapes: of transforms, other than that of space."""
    parameters, services, names, kind = given
    dimensions = len(space)
    graph = WholeGraph([space if one.shape else (0,) * dimensions for one in inputs], space)
    recorder = Tracing(function, graph, space, {**FUNCTIONS, **REDUCTIONS, **FOURIER, **PRODUCTS})
    spaces = Spaces(function, recorder, shapes)
    arrays = [_input(recorder, number, one) for number, one in enumerate(inputs)]
    recorder.has_inner = any(len(one.shape) > dimensions for one in inputs)
    module = Module(recorder)
    here = WholePlace(recorder, inputs[0].shape, module)
    served = {STEP: recorder.tape.step, "xp": module, "here": here}
    known = given_of(recorder.tape, parameters) | {name: served[name] for name in services}
    control = TracedControl(recorder, [one.dtype for one in inputs])
    copies = copies_with(module, control)
    with _nesting(recorder), refused_with_line(function):
        returned = copies.of(function)(*arrays, **known)
        copies.check_unchanged()
        fields, numbers = _separate(returned, arrays, *names)
        outputs = _outputs(recorder, fields, names[0])
        series = [_series(recorder, name, one) for name, one in zip(names[1], numbers, strict=True)]
        if spaces.transforms:
            changed = _changes(fields, arrays)
            return spectral_program(spaces, function, inputs, outputs, series, changed, kind)
    changed = _changes(fields, arrays)
    parts = graph.computed_arrays, graph.definitions, tuple(recorder.checks)
    results = tuple(one for _, one in outputs), graph, changed, tuple(series)
    program = WholeProgram(space, tuple(inputs), *results, *parts, recorder.tape)
    return numbered(program, function)


def _changes(fields: Sequence[Any], arrays: Sequence[Whole]) -> dict[int, InputChange]:
    """Return the inputs that the function changes. fields: its results."""
    kept = [one._storage for one in fields if isinstance(one, Whole)]
    storages = enumerate(array._storage for array in arrays)
    return {number: InputChange(one.line, one in kept) for number, one in storages if one.changed}


def _input(recorder: Tracing, number: int, one: WholeInput) -> Whole:
    """Return the stand-in of an input."""
    dimensions = len(recorder.space)
    if not one.shape:  # a value
        graph, kind = recorder.graph, real_dtype(one.dtype)
        if one.dtype.kind == "c":
            parts = [graph.value(InputValue(number, part), kind) for part in ("real", "imag")]
            node = graph.operation("complex", one.dtype, parts)
        else:
            node = graph.value(InputValue(number), one.dtype)
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
            raise NotTraceable("returns nothing and changes none of its arrays", "return with the results")
        found = [*changed, *found]
    if len(found) != len(names) + len(series):
        wanted = len(names) + len(series)
        hint = f"outputs={len(found) - len(series)} in the decorator" if len(found) > len(series) else None
        raise NotTraceable(f"returns {len(found)} results, not {wanted}", hint)
    return found[: len(names)], found[len(names) :]


def _series(recorder: Tracing, name: str, value: Any) -> WholeSeries:
    """Return a result that is no field."""
    own = value.shape if isinstance(value, Whole) and value._recorder is not recorder else ()
    if own and any(isinstance(axis, Along) for axis in value._axes):
        raise NotTraceable(f"returns a spectrum of shape {own} as the series {name}", "sums of it")
    one = recorder.operand(recorder.spaces.brought(value, recorder))
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


def _as_space(recorder: Tracing, result: Any) -> Any:
    """Return a result, its lines along axes of space, and one of NumPy's as a traced array."""
    lined = isinstance(result, Whole) and any(isinstance(a, Along) and a.axis < 0 for a in result._axes)
    if not lined and not (isinstance(result, np.ndarray) and result.ndim):
        return result
    frame = recorder.filled(result.shape, 0, result.dtype)
    if not isinstance(frame, Whole):
        return result
    frame[...] = result
    return frame


def _outputs(recorder: Tracing, fields: Sequence[Any], names: Sequence[str]) -> list[tuple[int, WholeOutput]]:
    """Return the results that are fields, each with the number of its space."""
    _check_apart(fields, names)
    spaces, outputs = recorder.spaces, list[tuple[int, WholeOutput]]()
    assert spaces is not None
    for name, result in zip(names, fields, strict=True):
        one = _as_space(recorder, result)
        if not isinstance(one, Whole) or one._recorder.spaces is not spaces:
            what = "an array" if isinstance(one, Whole) else f"a {type(one).__name__}"
            if isinstance(one, CoroutineType):
                one.close()  # Python would warn that it was never awaited
            raise NotTraceable(f"returns {what} that does not come from its arrays", FIELD)
        if not one._axes:
            number = spaces.recorders.index(one._recorder)
            values = tuple(taken(one).ravel())
            outputs.append((number, WholeOutput(name, (), one.dtype, values, (), origin=one._storage.origin)))
            continue
        one = forward(one, REVERSED)
        along = [axis for axis in one._axes if isinstance(axis, Along)]
        if one._fixed or [axis.axis for axis in along] != [*range(len(one._recorder.space))]:
            raise NotTraceable(
                "returns an array without the axes of its inputs", "a result with their axes, in their order"
            )
        # A result begins at position 0: move what was cut from the middle of a field.
        shift = tuple(axis.first for axis in along)
        nodes = one.moved(one.read().ravel(), shift)
        every = tuple(axis.step for axis in along)
        own = only_own(one._recorder.graph, nodes, Subgrid(one.shape, every), one._recorder.space)
        number = spaces.recorders.index(one._recorder)
        if number and any(n > most for n, most in zip(one.shape, recorder.space, strict=False)):
            raise NotTraceable(
                f"returns an array of shape {one.shape}, larger than its inputs",
                "an input of the shape of the result",
            )
        origin = one._storage.origin
        outputs.append((number, WholeOutput(name, one.shape, one.dtype, tuple(own), every, origin=origin)))
    return outputs
