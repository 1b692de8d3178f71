"""Trace a function of whole arrays: call it with stand-ins for them.

The function means what it means when NumPy calls it with the whole arrays. The shapes are those of the run, so
that an index is a place whatever the length of an axis is; a program is of one shape.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.trace.trace import NotTraceable, _line_of
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Recorder, Whole, inner_shape, made
from meshrun.runner.compiler.whole.graph import PLACE, WholeGraph
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
    around its end. changed: the inputs that the function changes, by number.
    """

    space: Shape
    inputs: tuple[WholeInput, ...]
    outputs: tuple[WholeOutput, ...]
    graph: WholeGraph
    changed: tuple[int, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(in_order(node for output in self.outputs for node in output.nodes))

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


def space_of(inputs: Sequence[WholeInput]) -> Shape:
    """Return the lengths of the axes that all fields share, from the first on.

    An array of faces has one cell more than one of cells; space is as long as the longer one. An input without
    axes belongs to no field.
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
) -> WholeProgram:
    """Return what `function` computes at each position. Raises NotTraceable, with the line.

    Parameters
    ----------
    function: takes whole arrays, and returns one for each of `names`; or changes its inputs and returns None.
    inputs: the arrays' shapes and dtypes.
    parameters: the function's keywords.
    names: of the results.
    axes: number of the axes that are split, from the first on. None: those that all inputs share.
    """
    space = space_of(inputs)
    if axes is not None:
        space = tuple(space[axis] for axis in axes)
    dimensions = len(space)
    lengths = [tuple(one.shape[:dimensions]) if one.shape else (0,) * dimensions for one in inputs]
    graph = WholeGraph(lengths)
    recorder = Recorder(function, graph, space)
    arrays = [_input(recorder, number, one) for number, one in enumerate(inputs)]
    try:
        with np.errstate(all="ignore"), made_by(recorder, function):
            returned = function(*arrays, **parameters)
        outputs = _outputs(recorder, returned, arrays, inputs, names)
    except NotTraceable as reason:
        reason.line = reason.line or _line_of(reason, function)
        raise
    except RecursionError:
        raise NotTraceable("is too deep an expression") from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:  # a user's function may raise anything
        failure = NotTraceable(f"raises {type(reason).__name__}: {reason}")
        failure.line = _line_of(reason, function)
        raise failure from reason
    changed = tuple(number for number, one in enumerate(arrays) if one._storage.changed)
    return WholeProgram(space, tuple(inputs), tuple(outputs), graph, changed)


def _input(recorder: Recorder, number: int, one: WholeInput) -> Whole:
    """Return the stand-in of an input."""
    dimensions = len(recorder.space)
    axes: list[Axis] = [Along(axis, 0, 1, n) for axis, n in enumerate(one.shape[:dimensions])]
    axes += [Inner(length) for length in one.shape[dimensions:]]
    nodes = np.empty(inner_shape(axes), object)
    for component in range(math.prod(nodes.shape)):
        offset = (0,) * dimensions
        nodes.ravel()[component] = recorder.graph.load(number, one.dtype, offset, component)
    return made(recorder, axes, {}, nodes, one.dtype, number)


def _outputs(
    recorder: Recorder,
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
        along = [axis for axis in one._axes if isinstance(axis, Along)]
        places = [(axis.axis, axis.step) for axis in along]
        if one._fixed or places != [(axis, 1) for axis in range(len(recorder.space))]:
            raise NotTraceable("returns an array without the axes of its inputs")
        # A result begins at position 0: move what was cut from the middle of a field.
        shift = tuple(axis.first for axis in along)
        nodes = recorder.graph.moved(one.read().ravel(), shift)
        outputs.append(WholeOutput(name, one.shape, one.dtype, tuple(nodes)))
    return outputs


class _Module:
    """The module numpy as a traced function sees it: arrays that it makes have places."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made = {name: getattr(self, f"_{name}") for name in MADE}

    def __getattr__(self, name: str) -> Any:
        if name in MADE:
            return self._made[name]
        return getattr(np, name)

    def _zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 0, dtype)

    _empty = _zeros  # cells that are not written yet may have any value

    def _ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 1, dtype)

    def _full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
        return self._recorder.filled(shape, fill_value, dtype)

    def _asarray(self, a: Any, dtype: Any = None) -> Any:
        if not isinstance(a, Whole):
            return np.asarray(a, dtype)
        return a if dtype is None else a.astype(dtype, copy=False)

    _ascontiguousarray = _asarray

    def _array(self, object: Any, dtype: Any = None, copy: bool = True, **options: Any) -> Any:
        if isinstance(object, (list, tuple)) and any(isinstance(one, Whole) for one in object):
            return np.stack(object)
        if not isinstance(object, Whole):
            return np.array(object, dtype, copy=copy, **options)
        return object.astype(object.dtype if dtype is None else dtype)

    def _arange(self, *bounds: Any, dtype: Any = None) -> Any:
        values = np.arange(*bounds, dtype=dtype)
        if values.dtype.kind in "iu":
            first, step = (int(values[0]), int(values[1] - values[0])) if len(values) > 1 else (0, 1)
            return self._line(values, lambda place: (place * step + first).astype(values.dtype))
        first = values[0] if len(values) else values.dtype.type(0)
        delta = values[1] - values[0] if len(values) > 1 else values.dtype.type(0)
        return self._line(values, lambda place: place.astype(values.dtype) * delta + first)

    def _linspace(
        self, start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None
    ) -> Any:
        values, step = np.linspace(start, stop, num, endpoint, retstep=True, dtype=dtype)

        def computed(place: Whole) -> Any:
            line = place.astype(np.float64) * np.float64(step) + np.float64(start)
            if endpoint and num > 1:
                line[-1] = stop
            return line.astype(values.dtype, copy=False)

        line = self._line(values, computed)
        return (line, step) if retstep else line

    def _line(self, values: np.ndarray[Any, Any], computed: Callable[[Whole], Any]) -> Any:
        """Return a line of numbers as a traced array, if space has an axis of its length.

        Raises NotTraceable if the numbers are not NumPy's to the bit.
        """
        recorder = self._recorder
        if not any(abs(len(values) - length) <= 1 for length in recorder.space) or len(values) < 2:
            return values
        number = recorder.new_line()
        node = np.full((), recorder.graph.place(number), object)
        place = made(recorder, [Along(number, 0, 1, len(values))], {}, node, PLACE)
        line = computed(place)
        (found,) = line._storage.nodes
        same = _evaluated(found, len(values))
        if same.dtype != values.dtype or same.tobytes() != values.tobytes():
            return values
        return line

    def _meshgrid(self, *lines: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> Any:
        if not any(isinstance(one, Whole) for one in lines):
            return np.meshgrid(*lines, indexing=indexing, sparse=sparse, copy=copy)
        count = len(lines)
        order = list(range(count))
        if indexing == "xy" and count > 1:
            order[:2] = [1, 0]
        spread = []
        for number, one in enumerate(lines):
            index: list[Any] = [None] * count
            index[order[number]] = slice(None)
            spread.append(one[tuple(index)])
        if sparse:
            return spread
        # Each line along the axis of space at its place.
        shape = tuple(next(len(lines[n]) for n in range(count) if order[n] == axis) for axis in range(count))
        frame = self._zeros(shape, bool)
        return [choose_first(one, frame) for one in spread]

    def _indices(self, dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
        lines = [self._arange(length, dtype=dtype) for length in dimensions]
        if not any(isinstance(one, Whole) for one in lines):
            return np.indices(dimensions, dtype, sparse)
        found = self._meshgrid(*lines, indexing="ij", sparse=sparse)
        return tuple(found) if sparse else np.stack(found)


def choose_first(line: Any, frame: Any) -> Any:
    """Return the line spread over the frame's axes."""
    from meshrun.runner.compiler.whole.array import choose

    return choose(frame, line, line)


MADE = (
    "zeros", "empty", "ones", "full", "asarray", "ascontiguousarray", "array", "arange", "linspace",
    "meshgrid", "indices",
)  # fmt: skip


def _evaluated(node: Node, length: int) -> np.ndarray[Any, Any]:
    """Return the values of a node that depends on one place alone."""
    from meshrun.runner.compiler.trace.graph import compute

    values: dict[Node, Any] = {}
    for one in in_order([node]):
        if one.op == "place":
            values[one] = np.arange(length) + one.value[1]
        elif one.op == "inside":
            _, low, high, step = one.value
            place = np.arange(length)
            values[one] = (place >= low) & (place < high) & ((place - low) % step == 0)
        elif one.op == "constant":
            values[one] = np.full(length, one.value, one.dtype)
        else:
            values[one] = compute(one.op, one.dtype, [values[operand] for operand in one.operands])
    return np.asarray(values[node])


@contextmanager
def made_by(recorder: Recorder, function: Callable[..., Any]) -> Iterator[None]:
    """Let `np.zeros` and the like in a function, and in the user's functions that it calls, make traced arrays.

    NumPy's protocols do not see them: while the function is called, the names of the module numpy, and of these
    functions of it, in the globals of these functions stand for ours.
    """
    module = _Module(recorder)
    ours = {id(getattr(np, name)): getattr(module, name) for name in MADE}
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for space in _globals_of(function):
            for name, value in list(space.items()):
                if value is np or getattr(value, "__name__", "") == "cupy" and isinstance(value, types.ModuleType):
                    changed.append((space, name, value))
                    space[name] = module
                elif id(value) in ours:
                    changed.append((space, name, value))
                    space[name] = ours[id(value)]
        yield
    finally:
        for space, name, value in changed:
            space[name] = value


def _globals_of(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the globals of a function and of the user's functions that it may call."""
    found: dict[int, dict[str, Any]] = {}
    open_functions: list[Any] = [function]
    seen: set[int] = set()
    while open_functions:
        one = open_functions.pop()
        one = getattr(one, "__wrapped__", one)
        if not isinstance(one, types.FunctionType) or id(one.__code__) in seen:
            continue
        seen.add(id(one.__code__))
        root = (one.__module__ or "").partition(".")[0]
        if root in ("numpy", "meshrun", "cupy", "scipy"):
            continue
        found[id(one.__globals__)] = one.__globals__
        codes = [one.__code__]
        while codes:
            code = codes.pop()
            open_functions += [one.__globals__.get(name) for name in code.co_names]
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        open_functions += [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
    return list(found.values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
