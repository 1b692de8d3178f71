"""Trace a user's function: call it with stand-ins for its blocks, which record the operations on them.

The function is plain Python over plain arrays. A stand-in implements NumPy's array protocols (NEP 13,
NEP 18), so that the function runs unchanged. Operations that depend on the values of cells, or on their
number, cannot be recorded: `NotTraceable` says why, on which line, and what to write instead.

A traced array has two kinds of axes. Along a grid axis it is as long as the block, plus or minus a few
cells, and all its cells are computed alike: one node stands for all of them. Along any other axis it holds a
node for each element.
"""

from __future__ import annotations

import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshrun.runner.compiler.trace.graph import Graph, Operand, Program, in_order
from meshrun.runner.compiler.trace.rebound import with_numbers
from meshrun.runner.compiler.trace.refusal import NotTraceable as NotTraceable  # noqa: PLC0414 (for others)
from meshrun.runner.compiler.trace.timed import StepTape, Timed, as_compared, given_of, nodes_of
from meshrun.runner.job.signature import STEP
from meshrun.runner.region import Shape

NEAR = 16  # cells by which an array's length may differ from the block's, with halos of no cells
MOST_COMPONENTS = 16  # elements of the trailing axes of a cell
MOST_NODES = 4000
CLIP: Any = vars(np)["_core"].umath.clip
LONGEST_SUM = 7  # elements that NumPy adds from left to right; more are added pairwise

_UFUNCS = """
    negative positive absolute sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p cbrt sin cos tan
    arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh floor ceil trunc rint sign fabs deg2rad
    rad2deg degrees radians isnan isinf isfinite signbit logical_not invert
    add subtract multiply divide floor_divide remainder fmod power float_power maximum minimum fmax fmin hypot
    arctan2 copysign equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor left_shift right_shift
"""
UFUNCS = frozenset(_UFUNCS.split())
_WHOLE_AXES = """
    all any amax amin argmax argmin average count_nonzero cumprod cumsum max mean median min nanargmax
    nanargmin nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanquantile nanstd nansum nanvar
    percentile prod ptp quantile std sum var
"""
# Functions and methods whose results depend on all elements along axes; None: along all if no axis is named.
WHOLE_AXES: dict[str, Any] = {
    **dict.fromkeys(_WHOLE_AXES.split()),
    **dict.fromkeys(["sort", "argsort", "partition", "argpartition", "trapezoid", "unwrap"], -1),
    **dict.fromkeys(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"], -1),
    **dict.fromkeys(["fft2", "ifft2", "rfft2", "irfft2"], (-2, -1)),
    **dict.fromkeys(["fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift", "flip", "unique"]),
    **{"flipud": 0, "fliplr": 1, "rot90": (0, 1), "histogram": None, "roll": None, "gradient": None},
    **dict.fromkeys(["trace", "diagonal", "diag"], (0, 1)),
    **dict.fromkeys(
        ["tril", "triu", "inv", "det", "solve", "svd", "eig", "eigh", "qr", "cholesky"], (-2, -1)
    ),
    **dict.fromkeys(["norm", "cov", "corrcoef", "convolve", "correlate"]),
    **dict.fromkeys(["pad", "matmul", "dot", "inner", "vdot", "tensordot", "einsum"]),  # see _summed_over
}
# Of them, those that are right inside a halo.
SHIFTS = frozenset(f"numpy.{name}" for name in ("roll", "gradient", "pad", "convolve", "correlate"))
PLACES = "an array of the block's length"  # that was not made from the block and differs from cell to cell
COMPARISONS = frozenset(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])


class _Storage:
    """Memory that traced arrays share. version: number of changes made to it."""

    def __init__(self) -> None:
        self.version = 0


class _Window:
    """A part of a storage. Traced arrays of one window have the same cells along grid axes and share nodes.

    version: of the storage when the nodes were up to date. made: the line of the function that computed them.
    """

    def __init__(self, storage: _Storage, made: int) -> None:
        self.storage, self.version, self.made = storage, storage.version, made


class _Recorder:
    """One call of the function: its graph, and the lengths that identify grid axes.

    widths: cells of the blocks before and after the own ones. stages: of `Program`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        lengths: Shape,
        widths: Sequence[tuple[int, int]],
    ) -> None:
        self._near, self.widths = _near(widths), widths
        self.graph, self.lengths, self._file = Graph(), lengths, _file_of(function)
        self._code = getattr(inspect.unwrap(function), "__code__", None)
        self.stages: dict[tuple[int, int], None] = {}
        self.tape = StepTape(self._file)

    def line(self) -> int:
        """Return the line of the user's file that runs now; 0 if unknown."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def outer_line(self) -> int:
        """Return the line of the function itself that runs now; 0 if unknown."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def axis_of(self, length: int) -> int | None:
        """Return the grid axis with about this length; None if there is none."""
        near = [axis for axis, own in enumerate(self.lengths) if abs(length - own) <= self._near]
        return near[0] if near else None

    def is_length(self, length: int, axis: int) -> bool:
        """Return whether a block has this length along a grid axis, with its halo, a part of it or none."""
        return 0 <= length - self.lengths[axis] <= self._near - NEAR

    def filled(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Return numpy.full's result, as a traced array if it is as large as the block."""
        whole = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        grid = tuple(self.axis_of(length) for length in whole)
        if all(axis is None for axis in grid):
            return np.full(whole, value, dtype)
        if isinstance(value, Timed):
            found = self.filled(shape, 0, np.asarray(value.sample).dtype if dtype is None else dtype)
            found[...] = value
            return found
        kind = np.asarray(value).dtype if dtype is None else np.dtype(dtype)
        node = self.graph.constant(np.asarray(value).astype(kind), kind)
        nodes = np.full([1 if axis is not None else n for n, axis in zip(whole, grid, strict=True)], node)
        return Traced(self, nodes, whole, grid, kind)


class _Namespace:
    """The `xp` of a traced function: NumPy, but zeros, ones, full and empty return traced arrays."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 0, dtype)

    empty = zeros  # cells that are not written yet may have any value

    def ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self._recorder.filled(shape, 1, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
        return self._recorder.filled(shape, fill_value, dtype)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        if not isinstance(a, Traced):
            return np.asarray(a, dtype)
        return a if dtype is None else a.astype(dtype, copy=False)

    ascontiguousarray = asarray


class Traced(NDArrayOperatorsMixin):
    """A stand-in for an array.

    nodes: of its cells, one element along each grid axis. shape: as the function sees it. grid: for each
    axis, the grid axis that it is, or None.
    """

    __array_priority__ = 1000.0

    def __init__(
        self,
        recorder: _Recorder,
        nodes: np.ndarray[Any, Any],
        shape: Shape,
        grid: tuple[int | None, ...],
        dtype: np.dtype[Any],
        window: _Window | None = None,
    ) -> None:
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
            raise NotTraceable(f"computes in {dtype.str if dtype.kind in 'biuf' else dtype}")
        self._recorder, self._nodes, self._grid = recorder, nodes, grid
        self.shape, self.dtype = shape, dtype
        self._window = _Window(_Storage(), recorder.outer_line()) if window is None else window

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or not (name.startswith("_") or name in ("shape", "dtype")):
            raise NotTraceable(f"sets .{name} of an array")
        super().__setattr__(name, value)

    # What NumPy arrays have

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def T(self) -> Traced:  # NumPy's name
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        if self._grid[0] is not None:
            raise NotTraceable("iterates over the cells of a block", "slices instead of a loop over cells")
        return (self[place] for place in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise NotTraceable(
            "decides by the value of a cell (if, while, and, or, not)", "xp.where(condition, a, b), or & | ~"
        )

    def _as_number(self) -> Any:
        raise NotTraceable("converts cells to a Python number", "xp functions instead of those of math")

    __float__ = __int__ = __complex__ = __index__ = _as_number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise NotTraceable(
            "makes a NumPy array of a block's cells, or writes them into one",
            "xp.zeros(shape, dtype) or zeros_like(block) for an array to write into",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in WHOLE_AXES and hasattr(np.ndarray, name):
            return partial(getattr(np, name), self)
        raise NotTraceable(f"uses .{name} of an array, which is not traced")

    def copy(self, order: str = "C") -> Traced:
        return self._new(self._read())

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> Traced:
        kind = np.dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        if casting != "unsafe":
            raise NotTraceable("uses casting= of astype")
        return self._new(self._cast(self._read(), kind), kind)

    def transpose(self, *axes: Any) -> Traced:
        if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)):
            axes = tuple(axes[0]) if axes[0] is not None else ()
        order = tuple(axes) or tuple(reversed(range(self.ndim)))
        nodes = self._read().transpose(order)
        order = tuple(axis % self.ndim for axis in order)
        shape, grid = tuple(self.shape[a] for a in order), tuple(self._grid[a] for a in order)
        return Traced(self._recorder, nodes, shape, grid, self.dtype, self._window)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        return _clip(self, min, max, out)

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return _round(self, decimals, out)

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _reduce(np.add, np.sum, self, axis, keepdims, dtype, out)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _reduce(np.minimum, np.min, self, axis, keepdims, None, out)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _reduce(np.maximum, np.max, self, axis, keepdims, None, out)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _mean(self, axis, dtype, out, keepdims)

    def fill(self, value: Any) -> None:
        self[...] = value

    def __pow__(self, exponent: Any) -> Any:
        fast = fast_power(self.dtype, exponent)
        return np.power(self, exponent) if fast is None else fast(self)

    def __ipow__(self, exponent: Any) -> Any:
        fast = fast_power(self.dtype, exponent)
        return (
            _apply(self._recorder, np.power, (self, exponent), None, self)
            if fast is None
            else fast(self, out=self)
        )

    # Reading and writing parts

    def __getitem__(self, index: Any) -> Traced:
        nodes, shape, grid, shift = self._part(self._read(), index)
        if self._has_all(shape, grid, shift):
            return Traced(self._recorder, nodes, shape, grid, self.dtype, self._window)
        if len(shape) == self.ndim and self._has_stage(nodes, shape, shift):
            self._recorder.stages[self._window.made, self._recorder.outer_line()] = None
        part = _Window(self._window.storage, self._window.made)
        moved = np.empty(nodes.shape, object)
        moved.ravel()[:] = self._recorder.graph.shifted(nodes.ravel(), shift)
        return Traced(self._recorder, moved, shape, grid, self.dtype, part)

    def _has_stage(self, nodes: np.ndarray[Any, Any], shape: Shape, shift: Shape) -> bool:
        """Return whether a part has cells beyond the array's edges that were computed from their neighbours.

        A value between two cells, such as a flux, belongs to an edge itself, not to a cell beyond it.
        """
        recorder = self._recorder
        loads = [node for node in in_order(nodes.ravel()) if node.op == "load"]
        for length, along in zip(shape, self._grid, strict=False):
            places = set() if along is None else {node.offset[along] + shift[along] for node in loads}
            if along is None or len(places) < 2:
                continue
            low, own = recorder.widths[along][0], recorder.lengths[along]
            first = min(places) + max(places)  # twice the centre of the first cell
            if first <= 2 * low - 2 or first + 2 * (length - 1) >= 2 * (low + own):
                return True
        return False

    def __setitem__(self, index: Any, value: Any) -> None:
        partly = NotTraceable(
            "writes a part of an array", "an expression for all cells, such as xp.where(condition, a, b)"
        )
        _full_index(index, self.ndim)
        try:
            _, shape, grid, shift = self._part(self._nodes, index)
        except NotTraceable:
            raise partly from None
        if not self._has_all(shape, grid, shift):
            raise partly
        part = Traced(self._recorder, self._nodes[self._own_index(index)], shape, grid, self.dtype)
        values = _operand(self._recorder, value, self.dtype)
        nodes = self._cast(values._read(), self.dtype)
        _check_broadcast([part, values], target=part)
        self._read()
        self._window.storage.version += 1
        self._window.version = self._window.storage.version
        self._nodes[self._own_index(index)] = np.broadcast_to(nodes, part._nodes.shape).copy()

    def _has_all(self, shape: Shape, grid: tuple[int | None, ...], shift: tuple[int, ...]) -> bool:
        """Return whether a part has all cells along each grid axis."""
        lengths = [n for n, axis in zip(shape, grid, strict=True) if axis is not None]
        own = [n for n, axis in zip(self.shape, self._grid, strict=True) if axis is not None]
        return not any(shift) and lengths == own

    def _own_index(self, index: Any) -> tuple[Any, ...]:
        """Return the index of a part in `_nodes`, which is whole along grid axes."""
        found: list[Any] = []
        axis = 0
        for one in _full_index(index, self.ndim):
            if one is None:
                found.append(None)
                continue
            found.append(slice(None) if self._grid[axis] is not None else one)
            axis += 1
        return tuple(found)

    def _part(
        self, nodes: np.ndarray[Any, Any], index: Any
    ) -> tuple[np.ndarray[Any, Any], Shape, tuple[int | None, ...], tuple[int, ...]]:
        """Return nodes, shape and grid axes of a part, and its first cell along each grid axis."""
        shape: list[int] = []
        grid: list[int | None] = []
        shift = [0] * len(self._recorder.lengths)
        axis = 0
        for one in _full_index(index, self.ndim):
            if one is None:
                shape.append(1)
                grid.append(None)
                continue
            length, along = self.shape[axis], self._grid[axis]
            axis += 1
            if isinstance(one, slice):
                first, last, step = one.indices(length)
                if along is not None and step != 1:
                    whole = ("the slice [::-1]", (along,)) if step < 0 else ("", ())
                    raise NotTraceable(
                        f"takes every {step} cells of a block", "slices with step 1", whole=whole
                    )
                shape.append(len(range(first, last, step)))
                grid.append(along)
                if along is not None:
                    shift[along] = first
                    if shape[-1] == 0 or self._recorder.axis_of(shape[-1]) != along:
                        raise NotTraceable(
                            "takes a few rows of a block",
                            "slices relative to both ends",
                            whole=(f"the index [{first}:{last}]", (along,)),
                        )
                continue
            if along is not None:
                whole = (f"the index [{operator.index(one)}]", (along,))
                raise NotTraceable(
                    "takes single rows or cells of a block", "slices of the whole block", whole=whole
                )
            if not -length <= one < length:
                raise IndexError(f"index {one} is out of bounds for axis {axis - 1} with size {length}")
        return nodes[self._own_index(index)], tuple(shape), tuple(grid), tuple(shift)

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            axes = _along(inputs[0], options.get("axis", 0)) if method in ("reduce", "accumulate") else ()
            if name == "matmul":
                axes = _whole_axes(ufunc, inputs, {})
            raise NotTraceable(f"uses numpy.{name}, which is not traced", whole=(f"numpy.{name}", axes))
        if options.get("where", True) is not True:
            raise NotTraceable(f"uses where= of numpy.{ufunc.__name__}", "xp.where(condition, a, b)")
        for name in options.keys() - {"where", "out", "dtype"}:
            raise NotTraceable(f"uses {name}= of numpy.{ufunc.__name__}")
        (out,) = options.get("out") or (None,)
        return _apply(self._recorder, ufunc, inputs, options.get("dtype"), out)

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        known = FUNCTIONS.get(function)
        if known is None:
            hint = "slices of the block with its halo" if function in (np.roll, np.pad) else None
            name = function.__name__
            axes = _whole_axes(function, args, kwargs) if name in WHOLE_AXES and args else ()
            raise NotTraceable(f"uses numpy.{name}, which is not traced", hint, whole=(f"numpy.{name}", axes))
        return known(*args, **kwargs)

    # Within this module

    def _read(self) -> np.ndarray[Any, Any]:
        if self._window.version != self._window.storage.version:
            raise NotTraceable(
                "reads an array after a part of it, or what it is a part of, was changed in place",
                "a new array instead of one that is changed in place",
            )
        return self._nodes

    def _new(self, nodes: np.ndarray[Any, Any], dtype: np.dtype[Any] | None = None) -> Traced:
        """Return a new array, which shares neither memory nor nodes."""
        nodes = nodes.copy()
        return Traced(self._recorder, nodes, self.shape, self._grid, self.dtype if dtype is None else dtype)

    def _cast(self, nodes: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return _each(self._recorder, "cast", dtype, nodes)


def _full_index(index: Any, ndim: int) -> list[Any]:
    """Return an index for each axis, and None for each new axis. Raises NotTraceable for an array."""
    given = index if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    for one in given:
        if one is Ellipsis or one is None or isinstance(one, slice):
            found.append(one)
        elif isinstance(one, (bool, np.bool_)) or not hasattr(type(one), "__index__") or _is_array(one):
            raise NotTraceable("picks cells by an array or a condition", "xp.where(condition, a, b)")
        else:
            found.append(operator.index(one))
    count = sum(one is not None and one is not Ellipsis for one in found)
    if count > ndim:
        raise IndexError(f"too many indices: the array has {ndim} axes, but {count} were indexed")
    if not any(one is Ellipsis for one in found):
        found.append(Ellipsis)
    place = next(at for at, one in enumerate(found) if one is Ellipsis)
    return found[:place] + [slice(None)] * (ndim - count) + found[place + 1 :]


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, Traced))


def _operand(recorder: _Recorder, value: Any, like: np.dtype[Any] | None = None) -> Traced:
    """Return `value` as a traced array. like: dtype for a Python number, of the array it is written to."""
    if isinstance(value, Traced):
        if value._recorder is not recorder:
            raise NotTraceable("keeps an array from one call to the next")
        return value
    if isinstance(value, Timed):
        kind = np.asarray(value.sample).dtype if like is None else like
        nodes = nodes_of(recorder.graph, value, kind)
        return Traced(recorder, nodes, nodes.shape, (None,) * nodes.ndim, kind)
    array = np.asarray(value)
    if like is not None and not isinstance(value, (np.ndarray, np.generic)):
        array = array.astype(like)
    if array.dtype.kind not in "biuf":
        raise NotTraceable(f"computes with {array.dtype}")
    grid = [recorder.axis_of(length) for length in array.shape]
    if any(axis is not None for axis in grid):
        varies = {
            axis
            for place, axis in enumerate(grid)
            if axis is not None and recorder.is_length(array.shape[place], axis) and _varies(array, place)
        }
        raise NotTraceable(
            "uses an array of the block's size that was not made from the block",
            "xp.zeros(shape), or zeros_like(block)",
            whole=(PLACES, tuple(sorted(varies))),
        )
    if array.size > MOST_COMPONENTS:
        raise NotTraceable(f"uses an array of {array.size} elements beside the block")
    nodes = np.empty(array.shape, object)
    for place, element in np.ndenumerate(array):
        nodes[place] = recorder.graph.constant(element, array.dtype)
    return Traced(recorder, nodes, array.shape, (None,) * array.ndim, array.dtype)


def _varies(array: np.ndarray[Any, Any], axis: int) -> bool:
    """Return whether an array's elements differ along an axis."""
    return bool((array != np.take(array, [0], axis)).any())


def _check_broadcast(
    operands: Sequence[Traced], target: Traced | None = None
) -> tuple[Shape, tuple[int | None, ...]]:
    """Return shape and grid axes of the operands' broadcast result. Raises ValueError as NumPy does."""
    shape = np.broadcast_shapes(*(one.shape for one in operands))
    if target is not None and shape != target.shape:
        raise ValueError(f"could not broadcast to shape {target.shape} from {shape}")
    grid: list[int | None] = []
    for back in range(len(shape), 0, -1):
        axes = {one._grid[-back] for one in operands if one.ndim >= back and one.shape[-back] != 1}
        if len(axes) > 1:
            raise NotTraceable("combines different axes of the block")
        grid.append(axes.pop() if axes else None)
    return shape, tuple(grid)


def _each(
    recorder: _Recorder, op: str, dtype: np.dtype[Any], *operands: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the nodes of an elementwise operation on arrays of nodes, which are broadcast."""
    line = recorder.line()
    every = np.broadcast_arrays(*operands)
    found = np.empty(every[0].shape, object)
    for place in np.ndindex(found.shape):
        found[place] = recorder.graph.operation(op, dtype, [one[place] for one in every], line)
    if len(recorder.graph._nodes) > MOST_NODES:
        raise NotTraceable(f"does more than {MOST_NODES} operations for each cell")
    return found


def weak_dtype(value: Any) -> Any:
    """Return an operand's dtype, or the type of a Python number, to resolve a loop's types (NEP 50)."""
    if isinstance(value, Timed):
        value = value.sample
    if isinstance(value, (Traced, np.ndarray, np.generic)):
        return value.dtype
    if isinstance(value, bool):
        return np.dtype(bool)
    if isinstance(value, (int, float)):
        return type(value) if type(value) in (int, float) else (int if isinstance(value, int) else float)
    raise NotTraceable(f"computes with a {type(value).__name__}")


def _apply(recorder: _Recorder, ufunc: Any, inputs: Sequence[Any], dtype: Any = None, out: Any = None) -> Any:
    """Record one call of a ufunc."""
    if ufunc.__name__ in COMPARISONS and dtype is None:
        inputs = within_range(inputs, Traced)
    fixed = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
    weak = list(map(weak_dtype, inputs))
    if ufunc.__name__ in COMPARISONS and dtype is None:
        weak = as_compared(inputs, weak)
    kinds = ufunc.resolve_dtypes((*weak, None), **fixed)
    values = []
    for value, kind in zip(inputs, kinds, strict=False):
        if isinstance(value, Timed):
            values.append(_operand(recorder, value, kind))
            continue
        python = not isinstance(value, (Traced, np.ndarray, np.generic))
        values.append(_operand(recorder, kind.type(value) if python else value))
    if any(kind.kind not in "biuf" or kind.itemsize > 8 for kind in kinds):
        raise NotTraceable(f"computes in {kinds[-1]}")
    if ufunc.__name__ == "reciprocal" and kinds[-1].kind != "f":
        raise NotTraceable("divides integers by numpy.reciprocal", "1 / x")
    if ufunc.__name__ == "power" and kinds[-1].kind in "iu":
        _check_integer_power(values[1])
    shape, grid = _check_broadcast(values)
    operands = [one._cast(one._read(), kind) for one, kind in zip(values, kinds, strict=False)]
    nodes = _each(recorder, ufunc.__name__, kinds[-1], *operands)
    return _stored(recorder, nodes, shape, grid, kinds[-1], out)


def within_range(inputs: Sequence[Any], traced: type[Any]) -> Sequence[Any]:
    """Return the operands of a comparison. An integer beyond the range of the other operand's dtype becomes
    an infinite float, which compares alike."""
    a, b = inputs
    for number, other in ((a, b), (b, a)):
        if type(number) is int and isinstance(other, traced) and other.dtype.kind in "iu":
            limits = np.iinfo(other.dtype)
            if not limits.min <= number <= limits.max:
                beyond = np.float64(np.inf if number > 0 else -np.inf)
                return (beyond, b) if number is a else (a, beyond)
    return inputs


def _check_integer_power(exponent: Traced) -> None:
    for node in exponent._read().ravel():
        if node.op != "constant":
            raise NotTraceable("raises integers to a power that is not constant")
        if node.value < 0:
            raise ValueError("Integers to negative integer powers are not allowed.")


def _stored(
    recorder: _Recorder,
    nodes: np.ndarray[Any, Any],
    shape: Shape,
    grid: tuple[int | None, ...],
    dtype: np.dtype[Any],
    out: Any,
) -> Any:
    result = Traced(recorder, nodes.copy(), shape, grid, dtype)
    if out is None:
        return result
    if isinstance(out, tuple):
        (out,) = out
    if not isinstance(out, Traced):
        return result.__array__()  # raises
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"cannot cast the output from {dtype} to {out.dtype} by the rule 'same_kind'")
    out[...] = result
    return out


def fast_power(kind: np.dtype[Any], exponent: Any) -> Any:
    """Return the ufunc that NumPy's ** calls instead of power for this exponent; None if it calls power."""
    if not isinstance(exponent, (int, float)) or isinstance(exponent, (bool, np.generic)):
        return None
    if kind.kind == "f":
        return {1: np.positive, 2: np.square, -1: np.reciprocal, 0.5: np.sqrt}.get(exponent)
    squared = isinstance(exponent, int) and exponent == 2
    if kind.kind == "b":  # depends on NumPy's version
        return np.square if squared and (np.ones(1, bool) ** 2).dtype == np.int8 else None
    return np.square if squared else None


# NumPy's functions that are no ufuncs


def _recorder_of(*values: Any) -> _Recorder:
    for value in values:
        if isinstance(value, (list, tuple)):
            found = [one for one in value if isinstance(one, Traced)]
            if found:
                return found[0]._recorder
        if isinstance(value, Traced):
            return value._recorder
    raise NotTraceable("computes with an array that is not traced")


def _where(condition: Any, *values: Any) -> Any:
    if len(values) != 2:
        raise NotTraceable("looks for cells by numpy.where(condition)", "xp.where(condition, a, b)")
    recorder = _recorder_of(condition, *values)
    kind = _common_dtype(values)
    chosen = _operand(recorder, condition)
    cells = [
        _operand(recorder, value, kind if isinstance(value, Timed) else None) for value in values
    ]  # a Python number that is too large wraps
    shape, grid = _check_broadcast([chosen, *cells])
    nodes = _each(
        recorder,
        "where",
        kind,
        chosen._cast(chosen._read(), np.dtype(bool)),
        *(one._cast(one._read(), kind) for one in cells),
    )
    return Traced(recorder, nodes, shape, grid, kind)


def _common_dtype(values: Sequence[Any]) -> np.dtype[Any]:
    """Return NumPy's common dtype of values, in which Python's numbers are weak (NEP 50)."""
    values = [value.sample if isinstance(value, Timed) else value for value in values]
    weak = [
        np.empty(0, value.dtype) if isinstance(value, (Traced, np.ndarray)) else value for value in values
    ]
    return np.result_type(*weak)


def as_scalar(value: Any, kind: np.dtype[Any]) -> Any:
    """Return a Python number as a NumPy scalar of dtype `kind`, and any other value unchanged."""
    return value if isinstance(value, (Traced, np.ndarray, np.generic)) else kind.type(value)


def _clip(array: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **limits: Any) -> Any:
    low, high = limits.get("min", a_min), limits.get("max", a_max)
    recorder = _recorder_of(array, low, high)
    if array.dtype.kind in "iu":  # of Python's numbers, those beyond the dtype are no limits
        bounds = np.iinfo(array.dtype)
        low = None if type(low) is int and low <= bounds.min else low
        high = None if type(high) is int and high >= bounds.max else high
    if low is None and high is None:
        return _apply(recorder, np.positive, (array,), None, out)
    if low is None or high is None:
        ufunc, other = (np.minimum, high) if low is None else (np.maximum, low)
        return _apply(recorder, ufunc, (array, other), None, out)
    if isinstance(low, Timed) or isinstance(high, Timed):
        return _apply(recorder, np.minimum, (np.maximum(array, low), high), None, out)
    values = (array, low, high)
    *kinds, kind = CLIP.resolve_dtypes((*map(weak_dtype, values), None))
    typed = [_operand(recorder, as_scalar(v, k)) for v, k in zip(values, kinds, strict=True)]
    typed = [one.astype(kind, copy=False) for one in typed]
    return _apply(recorder, np.minimum, (np.maximum(typed[0], typed[1]), typed[2]), None, out)


def _round(array: Any, decimals: int = 0, out: Any = None) -> Any:
    if decimals != 0:
        raise NotTraceable("rounds to decimals", "xp.rint(x * 10**d) / 10**d")
    if array.dtype.kind in "iu":
        return _stored(array._recorder, array._read(), array.shape, array._grid, array.dtype, out)
    return np.rint(array) if out is None else np.rint(array, out=out)


def _like(value: Any) -> Callable[..., Any]:
    """Return the traced numpy.zeros_like, for any value."""

    def make(a: Traced, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
        return _full_like(a, value, dtype, order, subok, shape)

    return make


def _full_like(
    a: Traced, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Traced:
    if shape is not None or np.ndim(fill_value) != 0 or isinstance(fill_value, Traced):
        raise NotTraceable("uses numpy.full_like with shape= or an array", "xp.full(shape, number)")
    kind = a.dtype if dtype is None else np.dtype(dtype)
    node = a._recorder.graph.constant(np.asarray(fill_value).astype(kind), kind)
    return a._new(np.full(a._nodes.shape, node), kind)


def moveaxis(array: Any, source: Any, destination: Any) -> Any:
    order = [int(place) for place in np.moveaxis(np.empty(range(array.ndim)), source, destination).shape]
    return array.transpose(order)


def swapaxes(array: Any, axis1: int, axis2: int) -> Any:
    order = list(range(array.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return array.transpose(order)


def _stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, **options: Any) -> Any:
    recorder = _recorder_of(arrays)
    values = [_operand(recorder, one) for one in arrays]
    shape, grid = values[0].shape, values[0]._grid
    if any((one.shape, one._grid) != (shape, grid) for one in values):
        raise ValueError("all input arrays must have the same shape")
    kind = np.dtype(options.get("dtype") or _common_dtype(values))
    place = axis % (len(shape) + 1)
    nodes = np.stack([one._cast(one._read(), kind) for one in values], place)
    shape, grid = (*shape[:place], len(values), *shape[place:]), (*grid[:place], None, *grid[place:])
    return _stored(recorder, nodes, shape, grid, kind, out)


def expand_dims(array: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    ndim = array.ndim + len(axes)
    places = {one % ndim for one in axes}
    return array[tuple(None if place in places else slice(None) for place in range(ndim))]


def _diff(array: Traced, n: int = 1, axis: int = -1, **options: Any) -> Any:
    if n != 1 or options:
        raise NotTraceable("uses numpy.diff with more than one difference", "slices")
    before: list[Any] = [slice(None)] * array.ndim
    after = list(before)
    before[axis], after[axis] = slice(None, -1), slice(1, None)
    compare = np.not_equal if array.dtype == bool else np.subtract
    return _apply(array._recorder, compare, (array[tuple(after)], array[tuple(before)]))


def _along(array: Any, axis: Any) -> tuple[int, ...]:
    """Return the grid axes among an array's axes. axis: as NumPy's functions take it."""
    if not isinstance(array, Traced):
        return ()
    axes = range(array.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    found = (array._grid[operator.index(one)] for one in axes)
    return tuple(sorted({one for one in found if one is not None}))


def _whole_axes(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the grid axes whose cells one result of this call depends on. function: one of WHOLE_AXES."""
    name = function.__name__
    if name in ("matmul", "dot", "inner", "vdot", "tensordot", "einsum"):
        summed = _summed_over(name, *args, **kwargs)
        return tuple(sorted({axis for array, axes in summed for axis in _along(array, axes)}))
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    if name == "pad":
        widths = np.broadcast_to(np.asarray(given["pad_width"]), (args[0].ndim, 2))
        return _along(args[0], np.flatnonzero(widths.any(1)).tolist())
    return _along(args[0], given.get("axis", given.get("axes", WHOLE_AXES[name])))


def _summed_over(
    name: str, a: Any, b: Any, *others: Any, axes: Any = 2, **options: Any
) -> list[tuple[Any, Any]]:
    """Return the operands of a product of arrays, each with those of its axes that it sums over."""
    if name == "einsum":
        return _summed_by_einsum(a, [b, *others])
    if name == "vdot":
        return [(a, None), (b, None)]
    if name == "tensordot":
        axes = others[0] if others else axes
        pairs = (range(-axes, 0), range(axes)) if isinstance(axes, int) else axes
        of_a, of_b = (list(one) if isinstance(one, (list, tuple, range)) else [one] for one in pairs)
        return [(a, of_a), (b, of_b)]
    return [(a, -1), (b, -1 if name == "inner" or np.ndim(b) < 2 else -2)]


def _summed_by_einsum(subscripts: Any, operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the operands of numpy.einsum, each with those of its axes that it sums over; [] if unknown."""
    if not isinstance(subscripts, str) or "." in subscripts:
        return []
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    kept = output if arrow else [one for one in inputs if inputs.count(one) == 1]
    return [
        (array, [axis for axis, letter in enumerate(letters) if letter not in kept])
        for array, letters in zip(operands, inputs.split(","), strict=True)
    ]


def _reduce(
    ufunc: np.ufunc,
    function: Callable[..., Any],
    array: Traced,
    axis: Any = None,
    keepdims: bool = False,
    dtype: Any = None,
    out: Any = None,
    name: str = "",
) -> Any:
    """Record a reduction of trailing axes, of few elements, from left to right as NumPy computes it.

    name: of the function that is called; `function`'s if that is the one.
    """
    name = name or function.__name__
    if along := _along(array, axis):
        raise NotTraceable(
            f"reduces the cells of a block (numpy.{name})",
            "@meshrun.reduce_blocks",
            whole=(f"numpy.{name}", along),
        )
    axes = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    places = sorted({one % array.ndim for one in axes})
    count = int(np.prod([array.shape[place] for place in places]))
    kind = function(np.ones(1, array.dtype), **({} if dtype is None else {"dtype": dtype})).dtype
    if ufunc is np.add and (count > LONGEST_SUM or kind == np.float16 or len(places) > 1):
        raise NotTraceable(f"adds {count} {kind} elements in an order of NumPy's own", "a sum by +")
    typed = array.astype(kind, copy=False)
    others = [slice(None)] * array.ndim
    total: Any = None
    for element in np.ndindex(*(array.shape[place] for place in places)):
        index: list[Any] = list(others)
        for place, at in zip(places, element, strict=True):
            index[place] = slice(at, at + 1) if keepdims else at
        part = typed[tuple(index)]
        total = part.copy() if total is None else ufunc(total, part)
    if total is None:
        raise NotTraceable("reduces an axis without elements")
    if ufunc is np.add and kind.kind == "f":
        total = np.add(total, kind.type(0))  # NumPy starts with it: the sum of negative zeros is positive
    return _stored(array._recorder, total._read(), total.shape, total._grid, kind, out)


def _mean(array: Traced, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    kind = np.mean(np.ones(1, array.dtype), dtype=dtype).dtype
    total = _reduce(np.add, np.sum, array, axis, keepdims, kind, name="mean")
    return np.divide(total, kind.type(array.size // total.size), **({} if out is None else {"out": out}))


def _sum(
    a: Traced, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **options: Any
) -> Any:
    if options:
        raise NotTraceable("uses numpy.sum with initial= or where=")
    return _reduce(np.add, np.sum, a, axis, keepdims, dtype, out)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: _where,
    np.clip: _clip,
    np.round: _round,
    np.around: _round,
    np.zeros_like: _like(0),
    np.empty_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: _full_like,
    np.copy: lambda a, *_, **__: a.copy(),
    np.transpose: lambda a, axes=None: a.transpose(axes),
    np.moveaxis: moveaxis,
    np.swapaxes: swapaxes,
    np.stack: _stack,
    np.expand_dims: expand_dims,
    np.diff: _diff,
    np.sum: _sum,
    np.min: lambda a, axis=None, out=None, keepdims=False: a.min(axis, out, keepdims),
    np.max: lambda a, axis=None, out=None, keepdims=False: a.max(axis, out, keepdims),
    np.mean: _mean,
    np.ndim: lambda a: a.ndim,
    np.shape: lambda a: a.shape,
    np.size: lambda a: a.size,
}


def _near(widths: Sequence[tuple[int, int]]) -> int:
    """Return the cells by which the length of an array along a grid axis may differ from the own cells."""
    return NEAR + max((low + high for low, high in widths), default=0)


def _lengths(widths: Sequence[tuple[int, int]]) -> tuple[Shape, Shape]:
    """Return the own cells along each grid axis for two traces.

    The lengths of a trace are so far apart that each identifies its axis, halo included. They are odd in one
    trace and even in the other. They are small, because a function may create arrays of this size, but over
    few axes those of the second trace are as large as those of real blocks.
    """
    near = _near(widths)
    apart, axes = 2 * near + 1, range(len(widths))
    least = MOST_COMPONENTS + near + 1
    large = {1: 2000, 2: 2000, 3: 150}.get(len(axes), 0)
    second = max(large, MOST_COMPONENTS) // 2 * 2 + near
    return tuple(least + axis * apart for axis in axes), tuple(
        second + 2 + axis * (apart + 2) for axis in axes
    )


def trace(
    function: Callable[..., Any],
    inputs: Sequence[Operand],
    widths: Sequence[tuple[int, int]],
    parameters: dict[str, Any],
    services: frozenset[str] = frozenset(),
    names: Sequence[str] = ("output",),
    declared: Sequence[Operand] | None = None,
) -> Program:
    """Return the program that `function` computes for each own cell. Raises NotTraceable.

    inputs: the function's arrays. widths: halo before and after the own cells, per grid axis. services: those
    that the function takes, of `out`, `xp` and `here`. names: of its results. declared: dtype and trailing
    axes of each result, for a function that fills `out`.
    """
    programs = [
        _trace_once(function, inputs, widths, parameters, services, names, declared, lengths)
        for lengths in _lengths(widths)
    ]
    if len({program.text() + program.tape.text() for program in programs}) > 1:
        reason = NotTraceable(
            "computes with the number of cells of its block, or differs from one call to the next",
            "a parameter",
        )
        reason.line = _first_difference(*programs)
        raise reason
    return programs[0]


def _first_difference(one: Program, other: Program) -> int:
    """Return the line of the first node that differs between two programs; 0 if unknown."""
    for a, b, text, changed in zip(one.nodes, other.nodes, one.lines(), other.lines(), strict=False):
        if text != changed:
            users = (node for node in one.nodes if a in node.operands)
            return a.line or b.line or next(users, a).line
    return 0


def _trace_once(
    function: Callable[..., Any],
    inputs: Sequence[Operand],
    widths: Sequence[tuple[int, int]],
    parameters: dict[str, Any],
    services: frozenset[str],
    names: Sequence[str],
    declared: Sequence[Operand] | None,
    lengths: Shape,
) -> Program:
    if "here" in services:
        raise NotTraceable("takes `here`: what it computes depends on the place of the block")
    recorder = _Recorder(function, lengths, widths)
    axes = len(lengths)
    padded = tuple(n + low + high for n, (low, high) in zip(lengths, widths, strict=True))
    blocks = [_block(recorder, number, one, padded) for number, one in enumerate(inputs)]
    outs = [_unwritten(recorder, one, lengths) for one in declared or ()]
    tape = recorder.tape
    given = {"out": outs[0] if len(outs) == 1 else tuple(outs), "xp": _Namespace(recorder), STEP: tape.step}
    known = given_of(tape, parameters) | {name: given[name] for name in services}
    with refused_with_line(function, tape):
        called = with_numbers(tape, function) if STEP in services else function
        returned = called(*blocks, **known)
        results = _results(recorder, returned, outs, names)
    shift = tuple(-low for low, _ in widths)
    outputs = []
    nodes = []
    for name, result in zip(names, results, strict=True):
        outputs.append(Operand(name, result.dtype, result.shape[axes:]))
        nodes.append(tuple(recorder.graph.shifted(result._read().ravel(), shift)))
    results_of = tuple(nodes)
    stages = tuple(recorder.stages)
    return Program(axes, tuple(inputs), tuple(outputs), results_of, recorder.graph, stages, tape=tape)


def _block(recorder: _Recorder, number: int, one: Operand, padded: Shape) -> Traced:
    axes = len(padded)
    if one.components > MOST_COMPONENTS:
        raise NotTraceable(f"has {one.components} elements per cell of its input {one.name}")
    if one.dtype.kind not in "biuf" or one.dtype.itemsize > 8:
        raise NotTraceable(f"computes in {one.dtype}")
    nodes = np.empty((1,) * axes + one.trailing, object)
    for place in range(one.components):
        nodes.ravel()[place] = recorder.graph.load(number, one.dtype, (0,) * axes, place)
    grid = (*range(axes), *(None,) * len(one.trailing))
    return Traced(recorder, nodes, padded + one.trailing, grid, one.dtype)


def _unwritten(recorder: _Recorder, one: Operand, lengths: Shape) -> Traced:
    """Return an array for a result. Its cells are NaN or 0 until they are written."""
    empty = np.full((), np.nan if one.dtype.kind == "f" else 0)
    found: Traced = recorder.filled(lengths + one.trailing, empty.astype(one.dtype), one.dtype)
    return found


def _results(
    recorder: _Recorder, returned: Any, outs: Sequence[Traced], names: Sequence[str]
) -> list[Traced]:
    if returned is None and outs:
        returned = tuple(outs)
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(names):
        raise NotTraceable(f"returns {len(found)} results, not {len(names)}")
    for one in found:
        if isinstance(one, Traced) and one._recorder is not recorder:
            raise NotTraceable("keeps an array from one call to the next")
        if not isinstance(one, Traced):
            raise NotTraceable(f"returns a {type(one).__name__} that does not come from its block")
        lengths, axes = recorder.lengths, len(recorder.lengths)
        if one._grid != (*range(axes), *(None,) * (one.ndim - axes)):
            raise NotTraceable("returns an array with other axes than its block")
        if one.shape[:axes] != lengths:
            shorter = tuple(a - b for a, b in zip(lengths, one.shape, strict=False))
            raise NotTraceable("returns a block of another size than its own cells", shorter=shorter)
    return found


@contextmanager
def refused_with_line(function: Callable[..., Any], tape: StepTape | None = None) -> Iterator[None]:
    """Raise NotTraceable, with its line in the user's file, for what a traced call of `function` raises.

    tape: of the call.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except NotTraceable as reason:
        reason.line, reason.tape = raised_at(reason, function), tape
        raise
    except RecursionError:
        raise NotTraceable("is too deep an expression") from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:  # a user's function may raise anything
        failure = NotTraceable(f"raises {type(reason).__name__}: {reason}")
        failure.line = raised_at(reason, function)
        raise failure from reason


def raised_at(failure: BaseException, function: Callable[..., Any]) -> int:
    """Return the line of the user's file that raised `failure`; 0 if unknown."""
    file, line = _file_of(function), 0
    trail = failure.__traceback__
    while trail is not None:
        if trail.tb_frame.f_code.co_filename == file:
            line = trail.tb_lineno
        trail = trail.tb_next
    return line


def _file_of(function: Callable[..., Any]) -> str:
    """Return the source file of a function; "" if it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if isinstance(code, types.CodeType) else ""
