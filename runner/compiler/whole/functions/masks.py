"""Cells that a condition picks: a[mask], and what is written to them.

How many cells a condition picks is known in the run only. What is picked keeps its places: an operation on it
is one on all cells, of which those at other places are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshrun.runner.compiler.trace.array import OF_UFUNCS, Functions, TracedArray, choose
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed

OTHER_CELLS = (
    "combines cells that different conditions pick",
    "np.where(condition, a, b) on the whole arrays",
)


# Reductions, which take the cells that a condition picks, too.
REDUCED = (
    *OF_UFUNCS.values(),
    *(np.mean, np.average, np.var, np.std, np.ptp, np.count_nonzero, np.argmax, np.argmin),
)


class Picked(NDArrayOperatorsMixin):
    """a[mask]. mask: what picks the cells. cells: values at all places, a copy."""

    __array_priority__ = 1001.0

    def __init__(self, mask: TracedArray, cells: TracedArray) -> None:
        self.mask, self.cells = mask, cells
        self.dtype = cells.dtype

    def same_cells(self, mask: TracedArray) -> bool:
        """Return whether another condition picks the same cells."""
        mine, other = self.mask.read().ravel(), mask.read().ravel()
        return self.mask.shape == mask.shape and all(a is b for a, b in zip(mine, other, strict=True))

    def values_for(self, mask: TracedArray) -> TracedArray:
        """Return the values to write where a condition is true. Raises NotTraceable if it is another one."""
        if not self.same_cells(mask):
            raise NotTraceable(*OTHER_CELLS)
        return self.cells

    def astype(self, dtype: Any, **options: Any) -> Picked:
        return Picked(self.mask, self.cells.astype(dtype, **options))

    def copy(self, order: str = "C") -> Picked:
        return Picked(self.mask, self.cells.copy())

    def __pow__(self, exponent: Any) -> Any:
        return Picked(self.mask, self.cells ** self._plain(exponent))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce" and ufunc in OF_UFUNCS:
            return self._functions[OF_UFUNCS[ufunc]](*inputs, **options)
        if method != "__call__" or options.get("out", (self,))[0] is not self:
            raise NotTraceable(
                f"uses numpy.{ufunc.__name__}.{method} of the cells that a condition picks",
                "np.where(mask, a, b) first",
            )
        others = {name: value for name, value in options.items() if name != "out"}
        return Picked(self.mask, ufunc(*map(self._plain, inputs), **others))

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if function in REDUCED:
            return self._functions[function](*args, **kwargs)
        # Functions of each cell by itself.
        if function not in (np.clip, np.where, np.nan_to_num, np.round, np.real, np.imag, np.angle):
            raise NotTraceable(
                f"uses numpy.{function.__name__} of the cells that a condition picks",
                "np.where(mask, a, b) first",
            )
        return Picked(self.mask, function(*map(self._plain, args), **kwargs))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise NotTraceable(
            "makes an array of the cells that a condition picks, whose number is not known",
            "np.where(mask, a, b)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function: Any = getattr(np, name, None)
        if function in REDUCED:
            return partial(self._functions[function], self)
        raise NotTraceable(
            f"uses .{name} of the cells that a condition picks, whose number is not known",
            "np.where(mask, a, b) on the whole arrays",
        )

    @property
    def size(self) -> Any:
        return self._functions[np.count_nonzero](self.mask)

    def __len__(self) -> int:
        raise NotTraceable("takes the number of cells that a condition picks", "np.count_nonzero(condition)")

    @property
    def _functions(self) -> Functions:
        functions: Functions = self.cells._recorder.functions
        return functions

    def __bool__(self) -> bool:
        raise NotTraceable("decides by the cells that a condition picks", "np.where(condition, a, b)")

    def _plain(self, value: Any) -> Any:
        """Return an operand of an operation on all cells."""
        if isinstance(value, Picked):
            return value.values_for(self.mask)
        if np.ndim(value) if not isinstance(value, TracedArray) else value.ndim:
            raise NotTraceable(*OTHER_CELLS)
        return value


def picked(array: TracedArray, mask: TracedArray) -> Picked:
    """Return array[mask]."""
    _check(array, mask)
    return Picked(mask.copy(), array.copy())


def write_masked(array: TracedArray, mask: TracedArray, value: Any) -> None:
    """array[mask] = value: a number, or what the same condition picked."""
    _check(array, mask)
    if isinstance(value, Timed):
        value = array._recorder.operand(value, array.dtype)
    if isinstance(value, Picked):
        value = value.values_for(mask)
    elif value.ndim if isinstance(value, TracedArray) else np.size(value) != 1 and np.ndim(value):
        raise NotTraceable(
            "writes an array to the cells that a condition picks",
            "a[mask] = b[mask], or np.where(mask, b, a)",
        )
    elif not isinstance(value, TracedArray):
        value = np.asarray(value).reshape(()).astype(array.dtype)
    chosen = mask[(Ellipsis,) + (None,) * (array.ndim - mask.ndim)]
    array[...] = choose(chosen, value.astype(array.dtype, copy=False), array)


def _check(array: TracedArray, mask: TracedArray) -> None:
    if mask.shape != array.shape[: mask.ndim]:
        raise IndexError(f"boolean index did not match indexed array: shapes {mask.shape} and {array.shape}")


def putmask(a: TracedArray, mask: Any, values: Any) -> None:
    if isinstance(values, Timed):
        values = a._recorder.operand(values, a.dtype)
    values = values if isinstance(values, TracedArray) else np.asarray(values)
    if values.shape not in ((), (1,), a.shape):
        raise NotTraceable("repeats values to the cells that a condition picks", "np.where(mask, b, a)")
    a[...] = choose(mask, values.astype(a.dtype), a)


def place(arr: TracedArray, mask: Any, vals: Any) -> None:
    write_masked(arr, arr._recorder.operand(mask).astype(bool, copy=False), vals)


def copyto(dst: TracedArray, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    dst[...] = src if where is True else choose(where, src, dst)


def piecewise(x: TracedArray, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    conditions = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if len(funclist) == len(conditions) + 1:
        otherwise = ~conditions[0]
        for condition in conditions[1:]:
            otherwise = otherwise & ~condition
        conditions.append(otherwise)
    if len(funclist) != len(conditions):
        raise ValueError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or {len(conditions) + 1} "
            "functions are expected"
        )
    y = np.zeros_like(x)
    for condition, function in zip(conditions, funclist, strict=True):
        y[condition] = function(x[condition], *args, **kw) if callable(function) else function
    return y
