"""NumPy's functions of each cell that are no universal functions, and new arrays like others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.arrays.operations.split_array import SplitArray, elementwise, not_for_split_arrays
from meshrun.runner.arrays.operations.table import FUNCTIONS, implements

UNARY = ("nan_to_num", "angle", "sinc", "i0", "fix", "isreal", "iscomplex")


def _unary(name: str) -> Callable[..., Any]:
    """Return a function of one array's cells, such as numpy.angle."""

    def call(a: SplitArray, *, out: Any = None, **options: Any) -> Any:
        found = elementwise(name, (a,), **options)
        return found if out is None else _filled(out, found)

    return call


FUNCTIONS.update({getattr(np, name): _unary(name) for name in UNARY})


def _filled(out: Any, values: Any) -> Any:
    out[...] = values
    return out


@implements(np.round, np.around)
def rounded(a: SplitArray, decimals: int = 0, out: Any = None) -> Any:
    a.check_readable()
    found = a.made(a.partition, a.interior.round(decimals))
    return found if out is None else _filled(out, found)


@implements(np.clip)
def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,  # NumPy's names
    max: Any = None,
    **options: Any,
) -> Any:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return np.positive(a, out=out, **options)
    if low is None or high is None:
        bound = np.minimum if low is None else np.maximum
        return bound(a, high if low is None else low, out=out, **options)
    return np.minimum(np.maximum(a, low, **options), high, out=out, **options)


@implements(np.where)
def where(condition: Any, *choices: Any) -> Any:
    if len(choices) != 2:
        raise not_for_split_arrays("numpy.where(condition) without two arrays to choose from")
    return elementwise("where", (condition, *choices), function=np.where)


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return elementwise("isclose", (a, b), rtol=rtol, atol=atol, equal_nan=equal_nan)


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(np.all(isclose(a, b, rtol, atol, equal_nan)))


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    same = np.equal(a1, a2)
    if equal_nan:
        same = same | (np.isnan(a1) & np.isnan(a2))
    return bool(np.all(same))


@implements(np.real)
def real(val: SplitArray) -> Any:
    return val.real


@implements(np.imag)
def imag(val: SplitArray) -> Any:
    return val.imag


@implements(np.copy)
def copy(a: SplitArray, order: str = "K", subok: bool = False) -> Any:
    return a.copy()


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, SplitArray):
        raise not_for_split_arrays("numpy.copyto into an array of NumPy's")
    kind = getattr(src, "dtype", None)
    if kind is not None and not np.can_cast(kind, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast array data from {kind!r} to {dst.dtype!r} according to the rule {casting!r}"
        )
    dst[...] = src if where is True else elementwise("where", (where, src, dst))


@implements(np.putmask)
def putmask(a: SplitArray, mask: Any, values: Any) -> None:
    a[...] = elementwise("where", (mask, values, a))


# New arrays


def _like(name: str) -> Callable[..., Any]:
    """Return numpy.zeros_like and the like."""

    def make(
        a: SplitArray, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
    ) -> Any:
        if shape is not None and tuple(np.atleast_1d(shape)) != a.shape:
            raise not_for_split_arrays(f"numpy.{name} with another shape")
        fill = getattr(a.world.xp, name)
        cells = fill(a.interior, dtype=a.dtype if dtype is None else dtype)
        return a.made(a.partition, cells).evenly_split()

    return make


FUNCTIONS.update({getattr(np, name): _like(name) for name in ("zeros_like", "ones_like", "empty_like")})


@implements(np.full_like)
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    if not isinstance(a, SplitArray):
        raise not_for_split_arrays("numpy.full_like of an array of NumPy's with a distributed value")
    found = FUNCTIONS[np.empty_like](a, dtype, shape=shape)
    found[...] = fill_value
    return found


# What is asked of an array


@implements(np.shape)
def shape_of(a: SplitArray) -> Any:
    return a.shape


@implements(np.ndim)
def ndim_of(a: SplitArray) -> int:
    return a.ndim


@implements(np.size)
def size_of(a: SplitArray, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


@implements(np.iscomplexobj)
def is_complex(x: SplitArray) -> bool:
    return x.dtype.kind == "c"


@implements(np.isrealobj)
def is_real(x: SplitArray) -> bool:
    return x.dtype.kind != "c"


@implements(np.result_type)
def result_type(*values: Any) -> Any:
    return np.result_type(*(one.dtype if isinstance(one, SplitArray) else one for one in values))


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype, getattr(to, "dtype", to), casting)


@implements(np.array_repr, np.array_str)
def text(a: SplitArray, *others: Any, **options: Any) -> str:
    return repr(a)
