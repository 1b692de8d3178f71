"""A formula applied to every element. On a GPU it is one kernel, by the trace of its NumPy functions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

import meshrun
from meshrun.jobs.filters import dtypes
from meshrun.jobs.filters.bounds import Intervals
from meshrun.jobs.filters.expression import evaluate, fold, parse
from meshrun.runner.compiler.cuda.fill import fill

Result = Literal["float", "same", "uint8", "uint16", "int32", "int64", "float16", "float32", "float64"]


def _check(
    shape: tuple[int, ...], source: np.dtype[Any], /, *, expression: str, dtype: str = "float"
) -> None:
    dtypes.check("elementwise", source)
    parse(expression)


def _result(
    shape: tuple[int, ...], source: np.dtype[Any], /, *, expression: str, dtype: str = "float"
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if dtype != "float":
        return shape, dtypes.result(source, dtype)
    return shape, source if source.kind == "f" else dtypes.floating(source, np.dtype(np.float32))


def _reference(
    block: np.ndarray[Any, Any], *, expression: str, dtype: str = "float"
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The formula in float64, and how far from it a correct result may be, not counting the last
    rounding to the result's dtype."""
    narrow = dtypes.unit_roundoff(block, dtype) == 2.0**-24
    intervals = Intervals(np.dtype(np.float32 if narrow else np.float64))
    bound = fold(parse(expression), intervals.exact(block), intervals.constant, intervals.apply)
    return np.broadcast_to(bound.value, block.shape), np.broadcast_to(bound.tolerance, block.shape)


@meshrun.map_blocks(
    fuse="off",
    out=_result,
    check=_check,
    reference=_reference,
    trials=[
        ((53, 29), "float32", {"expression": "sqrt(x) + 1"}),
        ((53, 29), "uint8", {"expression": "where(x > 100, x * 2, 255 - x)", "dtype": "uint8"}),
    ],
)
def elementwise(block: Any, *, out: Any, expression: str, dtype: Result = "float") -> None:
    """Apply a formula in x to every element.

    Computed in float32 where it holds every element and the result is float16 or float32, else in
    float64; constants are of that type too. bool counts as 0 and 1; 64-bit integers beyond 2^53 are
    rounded to float64 first. A comparison is 1 or 0. Division, // and % by zero
    and functions outside their domain give inf or NaN, as in NumPy.

    expression: numbers, x, pi, e; + - * / // % **; comparisons; abs sqrt exp expm1 log log1p log2
        log10 sin cos tan arcsin arccos arctan sinh cosh tanh floor ceil; min(a, b), max(a, b),
        clip(a, low, high), where(condition, a, b).
    dtype: of the result. float: the input's own if floating, float32 for bool and integers of 1 or 2
        bytes, float64 for others. Into integers: rounded half to even, saturated, NaN becomes 0. The
        same as bool is uint8.
    """
    if hasattr(block, "__cuda_array_interface__"):
        fill(_apply, [block.reshape(-1)], [out.reshape(-1)], ((0, 0),), expression=expression)
    else:
        _apply(block, out=out, expression=expression)


def _apply(block: Any, *, out: Any, expression: str) -> None:
    kind = dtypes.floating(block.dtype, out.dtype)
    with np.errstate(all="ignore"):
        x = block.astype(kind, copy=False)
        values = evaluate(parse(expression), x, kind)
        dtypes.store(values if np.ndim(values) else np.full_like(x, values), out)
