"""What stand-ins for arrays have in common, be they blocks or whole arrays.

A stand-in implements NumPy's array protocols (NEP 13, NEP 18). Along an axis of cells, all its cells are
computed alike: one node stands for all of them. Along any other axis it holds a node for each element. How
arrays lie beside each other, and which parts can be read and written, differs between blocks and whole
arrays; what an operation computes does not.
"""

from __future__ import annotations

import operator
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshrun.runner.compiler.trace.graph import Graph
from meshrun.runner.compiler.trace.refusal import NotTraceable, file_of
from meshrun.runner.compiler.trace.timed import StepTape, Timed, as_compared
from meshrun.runner.region import Shape

MOST_COMPONENTS = 16  # elements of the trailing axes of a cell
MOST_NODES = 4000

_UFUNCS = """
    negative positive absolute sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p cbrt sin cos tan
    arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh floor ceil trunc rint sign fabs deg2rad
    rad2deg degrees radians conjugate isnan isinf isfinite signbit logical_not invert
    add subtract multiply divide floor_divide remainder fmod power float_power maximum minimum fmax fmin hypot
    arctan2 copysign equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor left_shift right_shift
"""
UFUNCS = frozenset(_UFUNCS.split())
COMPUTABLE = "?bhilqBHILQefdFD"  # NumPy's codes of dtypes
NOT_FOREIGN = ("", "numpy", "cupy", "meshrun", "runner")
COMPARISONS = frozenset(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])

# NumPy's reductions, each by the ufunc of two cells that it repeats.
OF_UFUNCS: Mapping[np.ufunc, Any] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_or: np.any,
    np.logical_and: np.all,
}

Nodes = np.ndarray[Any, Any]  # of dtype object: one element along each axis of cells
Functions = Mapping[Callable[..., Any], Callable[..., Any]]
UNKNOWN = "whose values are not known in a trace"  # of an array, in its text


class ResultAxes(ABC):
    """The axes of a result."""

    @abstractmethod
    def with_axis(self, at: int, length: int) -> ResultAxes:
        """Return the layout with one more axis, of few elements, in front of axis `at`."""


class TracedCall(ABC):
    """One call of the function, and its graph.

    functions: NumPy's functions, and what computes each of them on traced arrays. tape: what is computed of
    the number of the step and of tables in time. most_nodes: of the graph.
    """

    most_nodes: ClassVar[int] = MOST_NODES

    def __init__(self, function: Callable[..., Any], graph: Graph, functions: Functions) -> None:
        self.graph, self.functions = graph, functions
        self._file = file_of(function)
        self.tape = StepTape(self._file)

    def line(self) -> int:
        """Return the line of the user's file that runs now; 0 if unknown."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def library(self) -> str:
        """Return the library that the user's file calls now; "" for NumPy, except for numpy.ma."""
        frame: types.FrameType | None = sys._getframe(1)
        name = ""
        while frame is not None and frame.f_code.co_filename != self._file:
            name = frame.f_globals.get("__name__", "")
            frame = frame.f_back
        if name.startswith("numpy.ma."):
            return "numpy.ma"
        package = name.partition(".")[0]
        own = (*NOT_FOREIGN, *sys.stdlib_module_names)
        return "" if frame is None or package in own else ".".join(name.split(".")[:2])

    @abstractmethod
    def operand(self, value: Any, like: np.dtype[Any] | None = None) -> TracedArray:
        """Return `value` as a traced array.

        like: dtype for a Python number, of the array that it is written to.
        """

    @abstractmethod
    def aligned(self, operands: Sequence[Any]) -> tuple[ResultAxes, list[Nodes]]:
        """Return the layout of the operands' broadcast result, and their nodes for its cells.

        Raises ValueError as NumPy does.
        """

    @abstractmethod
    def result(self, layout: Any, nodes: Nodes, dtype: np.dtype[Any]) -> TracedArray:
        """Return a new array, which shares neither memory nor nodes."""

    @abstractmethod
    def filled(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Return numpy.full's result, as a traced array if it has an axis of cells."""

    def each(self, op: str, dtype: np.dtype[Any], *operands: Nodes) -> Nodes:
        """Return the nodes of an elementwise operation on arrays of nodes, which are broadcast."""
        line = self.line()
        if all(one.size == 1 for one in operands):  # most arrays have one element per cell
            result = np.empty(max([one.shape for one in operands], key=len), object)
            result.fill(self.graph.operation(op, dtype, [one.item() for one in operands], line))
        else:
            every = np.broadcast_arrays(*operands)
            result = np.empty(every[0].shape, object)
            for index in np.ndindex(result.shape):
                result[index] = self.graph.operation(op, dtype, [one[index] for one in every], line)
        if len(self.graph) > self.most_nodes:
            raise NotTraceable(f"does more than {self.most_nodes} operations for each cell")
        return result


class TracedArray(NDArrayOperatorsMixin, ABC):
    """A stand-in for an array.

    MODULE: by which name hints call NumPy. KIND: what messages call the array. FOREIGN: reason and hint if
    NumPy would make an array of the cells, or write them into one.
    """

    __array_priority__ = 1000.0
    MODULE: ClassVar[str]
    KIND: ClassVar[str]
    FOREIGN: ClassVar[tuple[str, str]]
    PICKED: ClassVar[str]
    FORMATTED: ClassVar[str | None]
    dtype: np.dtype[Any]
    _recorder: Any  # of the class's own kind
    _weak: type | None = None  # of a value that is a Python number, its type
    _part: str  # "real" or "imag", of a view of these parts of complex numbers; else ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("real", "imag"):
            getattr(self, name)[...] = value
        elif name.startswith("_") or (name == "dtype" and name not in self.__dict__):
            super().__setattr__(name, value)
        else:
            raise NotTraceable(f"sets .{name} of an array")

    # How its cells lie

    @property
    @abstractmethod
    def shape(self) -> Shape: ...

    @abstractmethod
    def is_cells(self, axis: int) -> bool:
        """Return whether an axis is one of cells, which are computed alike."""

    @abstractmethod
    def read(self) -> Nodes:
        """Return the nodes: one element along axes of cells."""

    @abstractmethod
    def layout(self) -> ResultAxes: ...

    @abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    @abstractmethod
    def __setitem__(self, index: Any, value: Any) -> None: ...

    @abstractmethod
    def transposed(self, order: Shape) -> Any:
        """Return a view with the axes in another order."""

    @abstractmethod
    def part(self, name: str) -> Any:
        """Return a view of the real or the imaginary parts. name: "real" or "imag"."""

    @abstractmethod
    def reduce_cells(self, name: str, axes: Sequence[int], dtype: Any, out: Any, keepdims: bool) -> Any:
        """Return numpy's reduction of that name along axes of which some are axes of cells."""

    @abstractmethod
    def untraced(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> NotTraceable:
        """Return the refusal of a function or ufunc's method that is not traced."""

    # What NumPy's arrays have

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Any:  # NumPy's name
        return self.transpose()

    @property
    def real(self) -> Any:
        return self.part("real") if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        if self.dtype.kind == "c":
            return self.part("imag")
        return self.new(np.full(self.nodes_shape, self._recorder.graph.constant(0, self.dtype), object))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{self.dtype} array of shape {self.shape}, {UNKNOWN}>"

    def __format__(self, form: str) -> str:
        if form:
            raise NotTraceable("formats a value, which is not known in a trace", self.FORMATTED)
        return repr(self)

    def __iter__(self) -> Any:
        if self.is_cells(0):
            raise NotTraceable(
                f"iterates over the cells of {self.KIND}", "slices instead of a loop over cells"
            )
        return (self[number] for number in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise NotTraceable(
            "decides by the value of a cell (if, while, and, or, not)",
            f"{self.MODULE}.where(condition, a, b), or & | ~",
        )

    def _as_number(self) -> Any:
        raise NotTraceable(
            "converts cells to a Python number", f"{self.MODULE} functions instead of those of math"
        )

    __float__ = __int__ = __complex__ = __index__ = _as_number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        library = self._recorder.library()
        if library:
            raise NotTraceable(
                f"calls {library} with an array that is cut over ranks",
                f"{self.MODULE}.roll, {self.MODULE}.pad and slices; or @meshrun.map_blocks(fuse='off'), "
                "whose blocks are NumPy's arrays",
            )
        raise NotTraceable(*self.FOREIGN)

    def __getattr__(self, name: str) -> Any:
        # Methods are NumPy's functions of the same name.
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(np.ndarray, name):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        if callable(getattr(np, name, None)):
            return partial(getattr(np, name), self)
        refusal = self.untraced(name, np.empty, (), {})
        raise NotTraceable(f"uses .{name} of an array, which is not traced", refusal.hint)

    def copy(self, order: str = "C") -> Any:
        return self.new(self.read())

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, known: Any) -> Any:
        return self.copy()

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> Any:
        kind = np.dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        if casting != "unsafe":
            raise NotTraceable("uses casting= of astype")
        return self.new(self.cast(self.read(), kind), kind)

    def transpose(self, *axes: Any) -> Any:
        if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)):
            axes = tuple(axes[0]) if axes[0] is not None else ()
        order = tuple(axes) or tuple(reversed(range(self.ndim)))
        if sorted(axis % self.ndim for axis in order) != list(range(self.ndim)):
            raise ValueError("axes don't match array")
        return self.transposed(tuple(axis % self.ndim for axis in order))

    def fill(self, value: Any) -> None:
        self[...] = value

    def __pow__(self, exponent: Any) -> Any:
        fast = fast_power(self.dtype, exponent)
        return np.power(self, exponent) if fast is None else fast(self)

    def __ipow__(self, exponent: Any) -> Any:
        fast = fast_power(self.dtype, exponent)
        if fast is None:
            return stored(elementwise(self._recorder, np.power, (self, exponent)), self)
        return fast(self, out=self)

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        # What other functions do.
        if method == "reduce" and ufunc in OF_UFUNCS:
            reduction: Any = OF_UFUNCS[ufunc]
            (out,) = options.get("out") or (None,)
            others = {name: value for name, value in options.items() if name not in ("axis", "out")}
            return reduction(*inputs, axis=options.get("axis", 0), out=out, **others)
        if method == "outer":
            first, second = (one if isinstance(one, TracedArray) else np.asarray(one) for one in inputs)
            spread = first[(Ellipsis,) + (None,) * second.ndim]
            return ufunc(spread, second, **options)
        if method == "__call__" and ufunc in self._recorder.functions:
            return self._recorder.functions[ufunc](*inputs, **options)

        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise self.untraced(name, ufunc, inputs, options)
        for name in options.keys() - {"where", "out", "dtype"}:
            raise NotTraceable(f"uses {name}= of numpy.{ufunc.__name__}")
        (out,) = options.get("out") or (None,)
        result = elementwise(self._recorder, ufunc, inputs, options.get("dtype"))
        return stored(result, out, options.get("where", True))

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        known = self._recorder.functions.get(function)
        if known is None:
            raise self.untraced(function.__name__, function, args, kwargs)
        return known(*args, **kwargs)

    # Within the compiler

    @property
    def nodes_shape(self) -> Shape:
        """The shape of `read()`."""
        return tuple(1 if self.is_cells(axis) else length for axis, length in enumerate(self.shape))

    def cast(self, nodes: Nodes, dtype: np.dtype[Any]) -> Nodes:
        if all(node.dtype == dtype for node in nodes.ravel()):
            return nodes
        cast: Nodes = self._recorder.each("cast", dtype, nodes)
        return cast

    def new(self, nodes: Nodes, dtype: np.dtype[Any] | None = None) -> Any:
        """Return a new array with the same axes. nodes: as `read` returns them."""
        return self._recorder.result(self.layout(), nodes, self.dtype if dtype is None else dtype)

    def seen(self, nodes: Nodes) -> Nodes:
        """Return the nodes of a view. nodes: of what it is a view of."""
        if not self._part:
            return nodes
        seen: Nodes = self._recorder.each(self._part, self.dtype, nodes)
        return seen

    def merged(self, old: Nodes, new: Nodes) -> Nodes:
        """Return what becomes of nodes that a view of them writes. new: cells of the view."""
        if not self._part:
            return new
        each, kind = self._recorder.each, old.ravel()[0].dtype
        other = each("imag" if self._part == "real" else "real", self.dtype, old)
        merged: Nodes = each("complex", kind, *((new, other) if self._part == "real" else (other, new)))
        return merged

    def _integer(self, item: Any) -> Any:
        """Return an index of one element."""
        return operator.index(item)

    def full_index(self, index: Any) -> list[Any]:
        """Return an index for each axis, and None for each new axis. Raises NotTraceable for arrays."""
        items: list[Any] = []
        given = index if isinstance(index, tuple) else (index,)
        for item in (np.asarray(one) if isinstance(one, list) else one for one in given):
            if item is Ellipsis or item is None or isinstance(item, slice):
                items.append(item)
            elif isinstance(item, (np.ndarray, TracedArray)) and item.dtype.kind in "iu" and item.ndim:
                raise NotTraceable("picks cells by an array of integers", self.PICKED)
            elif isinstance(item, (bool, np.bool_, np.ndarray, TracedArray)):
                raise NotTraceable("picks cells by a condition", f"{self.MODULE}.where(condition, a, b)")
            elif not hasattr(type(item), "__index__"):
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or "
                    f"boolean arrays are valid indices, not {type(item).__name__}"
                )
            else:
                items.append(self._integer(item))
        count = sum(item is not None and item is not Ellipsis for item in items)
        if count > self.ndim:
            raise IndexError(
                f"too many indices for array: array is {self.ndim}-dimensional, but {count} were indexed"
            )
        if not any(item is Ellipsis for item in items):
            items.append(Ellipsis)
        at = next(number for number, item in enumerate(items) if item is Ellipsis)
        return items[:at] + [slice(None)] * (self.ndim - count) + items[at + 1 :]


def check_computable(dtype: np.dtype[Any]) -> None:
    """Refuse dtypes that no kernel computes in."""
    if dtype.char not in COMPUTABLE or not dtype.isnative:
        found = dtype if dtype.isnative else dtype.str
        raise NotTraceable(f"computes in {found}", "numbers of a dtype such as float64 or complex128")


def recorder_of(*values: Any) -> Any:
    """Return the recorder of the first traced array among values and lists of them."""
    for value in values:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, TracedArray):
                return one._recorder
    raise NotTraceable("computes with an array that is not traced")


# Dtypes


def is_typed(value: Any) -> bool:
    """Return whether a value has a dtype, unlike Python's numbers (NEP 50)."""
    return isinstance(value, (TracedArray, np.ndarray, np.generic))


def weak_dtype(value: Any) -> Any:
    """Return an operand's dtype, or the type of a Python number, to resolve a loop's types (NEP 50)."""
    if isinstance(value, Timed):
        value = value.sample
    if is_typed(value):
        return getattr(value, "_weak", None) or value.dtype
    if isinstance(value, bool):
        return np.dtype(bool)
    for kind in (int, float, complex):
        if isinstance(value, kind):
            return kind
    raise NotTraceable(f"computes with a {type(value).__name__}")


def common_dtype(values: Sequence[Any]) -> np.dtype[Any]:
    """Return NumPy's common dtype of values, in which Python's numbers are weak (NEP 50)."""
    given = [value.sample if isinstance(value, Timed) else value for value in values]
    return np.result_type(
        *(np.empty(0, v.dtype) if isinstance(v, (TracedArray, np.ndarray)) else v for v in given)
    )


def as_scalar(value: Any, kind: np.dtype[Any]) -> Any:
    """Return a Python number, or one of the step, as a NumPy scalar of dtype `kind`; others unchanged."""
    if isinstance(value, Timed):
        return value.typed(kind)
    return value if is_typed(value) else kind.type(value)


def fast_power(kind: np.dtype[Any], exponent: Any) -> Any:
    """Return the ufunc that NumPy's ** calls instead of power for this exponent; None if it calls power."""
    if not isinstance(exponent, (int, float)) or isinstance(exponent, (bool, np.generic)):
        return None
    if kind.kind in "fc":
        return {1: np.positive, 2: np.square, -1: np.reciprocal, 0.5: np.sqrt}.get(exponent)
    squared = isinstance(exponent, int) and exponent == 2
    if kind.kind == "b":  # depends on NumPy's version
        return np.square if squared and (np.ones(1, bool) ** 2).dtype == np.int8 else None
    return np.square if squared else None


# Operations


def elementwise(recorder: TracedCall, ufunc: Any, inputs: Sequence[Any], dtype: Any = None) -> Any:
    """Record one call of a ufunc: its loop's dtypes are NumPy's."""
    if ufunc.__name__ in COMPARISONS and dtype is None:
        inputs = within_range(inputs)
    fixed = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
    weak = list(map(weak_dtype, inputs))
    if ufunc.__name__ in COMPARISONS and dtype is None:
        weak = as_compared(inputs, weak)
        if all(kind is int for kind in weak):  # NumPy compares Python's integers as objects
            weak = [np.dtype(np.int64)] * len(weak)
    kinds = ufunc.resolve_dtypes((*weak, None), **fixed)
    for kind in kinds:
        check_computable(kind)
    values = [recorder.operand(as_scalar(value, kind)) for value, kind in zip(inputs, kinds, strict=False)]
    if ufunc.__name__ == "reciprocal" and kinds[-1].kind not in "fc":
        raise NotTraceable("divides integers by numpy.reciprocal", "1 / x")
    if ufunc.__name__ == "power" and kinds[-1].kind in "iu":
        for node in values[1].read().ravel():
            if node.op != "constant":
                raise NotTraceable("raises integers to a power that is not constant")
            if node.value < 0:
                raise ValueError("Integers to negative integer powers are not allowed.")
    layout, nodes = recorder.aligned(values)
    operands = [one.cast(array, kind) for one, array, kind in zip(values, nodes, kinds, strict=False)]
    name = ufunc.__name__
    if name == "conjugate" and kinds[-1].kind != "c":
        return recorder.result(layout, operands[0], kinds[-1])
    result = recorder.result(layout, recorder.each(name, kinds[-1], *operands), kinds[-1])
    if not any(isinstance(weak_dtype(one), np.dtype) for one in inputs):  # Python's operators on its numbers
        result._weak = {"b": None, "f": float, "c": complex}.get(kinds[-1].kind, int)
    return result


def within_range(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the operands of a comparison. An integer beyond the range of the other operand's dtype becomes
    an infinite float, which compares alike."""
    a, b = inputs
    for number, other in ((a, b), (b, a)):
        if type(number) is int and isinstance(other, TracedArray) and other.dtype.kind in "iu":
            limits = np.iinfo(other.dtype)
            if not limits.min <= number <= limits.max:
                beyond = np.float64(np.inf if number > 0 else -np.inf)
                return (beyond, b) if number is a else (a, beyond)
    return inputs


def stored(result: Any, out: Any, where: Any = True) -> Any:
    """Return `out` with the result in it, or the result. where: of a ufunc."""
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        if where is not True:
            raise NotTraceable(
                "uses where= without out=, which leaves cells without a value",
                f"{result.MODULE}.where(condition, a, b)",
            )
        return result
    if not isinstance(out, TracedArray):
        return result.__array__()  # raises
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast ufunc output from {result.dtype} to {out.dtype} with casting rule 'same_kind'"
        )
    out[...] = result if where is True else choose(where, result.astype(out.dtype, copy=False), out)
    return out


def choose(condition: Any, *values: Any) -> Any:
    """Record numpy.where(condition, a, b)."""
    recorder = recorder_of(condition, *values)
    if len(values) != 2:
        (array,) = (one for one in (condition, *values) if isinstance(one, TracedArray))
        raise NotTraceable(
            "looks for cells by numpy.where(condition)", f"{array.MODULE}.where(condition, a, b)"
        )
    kind = common_dtype(values)
    values = tuple(value.typed(kind) if isinstance(value, Timed) else value for value in values)
    operands = [recorder.operand(value) for value in (condition, *values)]  # a number that is too large wraps
    layout, (chosen, *cells) = recorder.aligned(operands)
    nodes = recorder.each(
        "where",
        kind,
        operands[0].cast(chosen, np.dtype(bool)),
        *(one.cast(array, kind) for one, array in zip(operands[1:], cells, strict=True)),
    )
    return recorder.result(layout, nodes, kind)
