"""NumPy as a traced function sees it.

NumPy's protocols do not see `np.zeros(shape)` and the like: no traced array is among their arguments. A
traced function is therefore called as a copy (`trace.rebound`), in whose globals the names of NumPy, and of
the functions in MADE, stand for those of `Module`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import PlainControl
from meshrun.runner.compiler.trace.array import choose
from meshrun.runner.compiler.trace.context import TracedContext
from meshrun.runner.compiler.trace.functions.composites import take
from meshrun.runner.compiler.trace.graph import PLACE, Node, compute, in_order
from meshrun.runner.compiler.trace.rebound import FunctionCopies
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Axis, Inner, Tracing, Whole, made
from meshrun.runner.compiler.whole.functions.outside import as_table, protected
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.region import Shape

MADE = (
    "zeros", "empty", "ones", "full", "asarray", "ascontiguousarray", "array", "arange", "linspace",
    "meshgrid", "indices", "take", "fromfunction", "ogrid", "mgrid",
)  # fmt: skip


class Module:
    """The module numpy as a traced function sees it: arrays that it makes have places."""

    def __init__(self, recorder: Tracing) -> None:
        self._recorder, self.tape = recorder, recorder.tape
        self._full = recorder.filled
        self._made = {name: getattr(self, f"_{name}") for name in MADE}

    def __getattr__(self, name: str) -> Any:
        if name in MADE:
            return self._made[name]
        if name == "ndarray":
            return ArrayType
        return getattr(np, name)

    def _zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 0, dtype)

    _empty = _zeros  # cells that are not written yet may have any value

    def _ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 1, dtype)

    def _asarray(self, a: Any, dtype: Any = None) -> Any:
        if not isinstance(a, Whole):
            return np.asarray(a, dtype)
        return a if dtype is None else a.astype(dtype, copy=False)

    _ascontiguousarray = _asarray

    def _array(self, object: Any, dtype: Any = None, copy: bool = True, **options: Any) -> Any:
        if isinstance(object, (list, tuple)) and any(isinstance(one, Whole) for one in object):
            return np.stack(object)
        if not isinstance(object, Whole):
            return as_table(np.array(object, dtype, copy=copy, **options), self.tape)
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
        self,
        start: Any,
        stop: Any,
        num: int = 50,
        endpoint: bool = True,
        retstep: bool = False,
        dtype: Any = None,
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
        same = evaluated(recorder.graph, found, len(values))
        if same.dtype != values.dtype or same.tobytes() != values.tobytes():
            return values
        return line

    def _meshgrid(self, *lines: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> Any:
        if not any(isinstance(one, Whole) for one in lines):
            of_numpy: Any = np.meshgrid
            return of_numpy(*lines, indexing=indexing, sparse=sparse, copy=copy)
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
        return [choose(frame, one, one) for one in spread]

    def _take(self, a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
        # NumPy's protocol does not look at the indices.
        if isinstance(indices, Whole) or isinstance(a, Whole):
            return take(a, indices, axis, out, mode)
        of_numpy: Any = np.take
        return of_numpy(a, indices, axis, out, mode)

    def _fromfunction(
        self, function: Callable[..., Any], shape: Any, *, dtype: Any = float, **options: Any
    ) -> Any:
        return function(*self._indices(shape, dtype), **options)

    @property
    def _ogrid(self) -> IndexGrid:
        return IndexGrid(self, sparse=True)

    @property
    def _mgrid(self) -> IndexGrid:
        return IndexGrid(self, sparse=False)

    def line_of(self, part: slice) -> Any:
        """Return the line of one slice of numpy.ogrid: an imaginary step is the number of points."""
        values: Any = np.ogrid[part]
        if isinstance(part.step, complex):
            first = values.dtype.type(part.start or 0)
            delta = (part.stop - first) / (len(values) - 1) if len(values) > 1 else first
            return self._line(values, lambda place: place.astype(values.dtype) * delta + first)
        return self._arange(part.start or 0, part.stop, 1 if part.step is None else part.step)

    def _indices(self, dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
        lines = [self._arange(length, dtype=dtype) for length in dimensions]
        if not any(isinstance(one, Whole) for one in lines):
            of_numpy: Any = np.indices
            return of_numpy(dimensions, dtype, sparse)
        found = self._meshgrid(*lines, indexing="ij", sparse=sparse)
        return tuple(found) if sparse else np.stack(found)


def evaluated(graph: WholeGraph, node: Node, length: int) -> np.ndarray[Any, Any]:
    """Return the values of a node that depends on the place along one line alone.

    Raises NotTraceable for one that also depends on the step.
    """
    values: dict[Node, Any] = {}
    for one in in_order([node]):
        if one.op == "place":
            values[one] = np.arange(length) + one.value[1]
        elif one.op == "inside":
            _, low, high, step = one.value
            place = np.arange(length)
            values[one] = (place >= low) & (place < high) & ((place - low) % step == 0)
        elif one.op == "table":
            root = graph.tables.roots[one.input]
            values[one] = np.take(root, np.arange(length) + one.offset[0], mode="clip")
        elif one.op == "scalar":
            raise NotTraceable(
                "reduces a line of numbers that depend on the step",
                "the reduction of np.zeros_like(field) + line",
            )
        elif one.op == "constant":
            values[one] = np.full(length, one.value, one.dtype)
        else:
            values[one] = compute(one.op, one.dtype, [values[operand] for operand in one.operands])
    return np.asarray(values[node])


class WholePlace(TracedContext):
    """The `here` of a traced function of whole arrays. shape: of the first one."""

    def __init__(self, recorder: Tracing, shape: Shape, xp: Module) -> None:
        super().__init__(shape, xp, recorder.tape.step)
        self._recorder = recorder

    @property
    def axes(self) -> int:
        return len(self._recorder.space)

    def places(self, axis: int) -> Whole:
        number, length = len(self.shape), self.shape[axis]
        axes: list[Axis] = [Along(axis, 0, 1, length) if at == axis else Inner(1) for at in range(number)]
        node = np.full((1,) * (number - 1), self._recorder.graph.place(axis), object)
        return made(self._recorder, axes, {}, node, PLACE)


class _ArrayKind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (np.ndarray, Whole))

    def __call__(cls, *values: Any, **options: Any) -> Any:
        return np.ndarray(*values, **options)


class ArrayType(metaclass=_ArrayKind):
    """numpy.ndarray of a traced function: stand-ins are instances of it, too."""


class IndexGrid:
    """numpy.ogrid, or numpy.mgrid if not `sparse`, of a traced function."""

    def __init__(self, module: Module, *, sparse: bool) -> None:
        self._module, self._sparse = module, sparse

    def __getitem__(self, key: Any) -> Any:
        of_numpy = np.ogrid if self._sparse else np.mgrid
        if not isinstance(key, tuple):
            return self._module.line_of(key)
        lines = [self._module.line_of(part) for part in key]
        if not any(isinstance(one, Whole) for one in lines):
            return of_numpy[key]
        found = self._module.meshgrid(*lines, indexing="ij", sparse=self._sparse)
        return found if self._sparse else np.stack(found)


class _Copies(FunctionCopies):
    """Copies of functions of whole arrays."""

    def of(self, value: Any) -> Any:
        """Return a value as a copied function sees it: no array from outside is to be written."""
        return self.of_array(value) if type(value) is np.ndarray else super().of(value)

    def of_array(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return protected(array, self._tape)


def copies_with(module: Module, control: PlainControl) -> FunctionCopies:
    """Return what copies functions so that they use `module` in place of NumPy.

    control: does what their loops and conditions say.
    """
    made = {id(getattr(np, name)): getattr(module, name) for name in (*MADE, "ndarray")}
    return _Copies(module.tape, {"numpy": module, "cupy": module}, made, control)
