"""Edges of an image or any array: the 3 x 3 Laplacian filter.

On a GPU it is one kernel, which the job makes itself from the trace of its NumPy functions: hence
`fuse="off"`, which leaves the function in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrun
from meshrun.jobs.filters import dtypes
from meshrun.runner.compiler.cuda.fill import fill
from meshrun.runner.errors import UserError

Array = np.ndarray[Any, Any]


def accumulator(source: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """The type that sums are made in; no sum of nine integers overflows it."""
    if source.kind == "f":
        return dtypes.floating(source, result)
    if dtypes.is_wide(source):
        return dtypes.WIDE
    return np.dtype(np.int64 if source.itemsize == 4 else np.int32)


def _check(shape: tuple[int, ...], source: np.dtype[Any], /, *, dtype: str = "same") -> None:
    dtypes.check("laplacian", source)
    if len(shape) < 2:
        raise UserError("laplacian needs rows and columns", got=f"shape {shape}", expected="2 axes or more")


def _result(
    shape: tuple[int, ...], source: np.dtype[Any], /, *, dtype: str = "same"
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return shape, dtypes.result(source, dtype)


def _reference(block: Array, *, dtype: str = "same", input_dtype: np.dtype[Any] | None = None) -> Any:
    """The eight differences to the centre, one after the other. Those of 64-bit integers are rounded from
    2^53 on: each element once, each of 16 operations."""
    rows, columns = block.shape[0] - 2, block.shape[1] - 2
    centre = block[1:-1, 1:-1]
    expected, magnitude = np.zeros_like(centre), 8 * np.abs(centre)
    for y, x in np.ndindex(3, 3):
        if (y, x) != (1, 1):
            neighbour = block[y : y + rows, x : x + columns]
            expected += neighbour - centre
            magnitude += np.abs(neighbour)
    if input_dtype is None or not dtypes.is_wide(input_dtype):
        return expected
    return expected, np.where(magnitude < 2.0**53, 0.0, 20 * 2.0**-53 * magnitude)


@meshrun.map_blocks(
    halo=(1, 1),
    boundary="reflect",
    out=_result,
    check=_check,
    reference=_reference,
    ulps=40,
    strided_out=True,
    fuse="off",
    trials=[
        ((67, 41, 3), "uint8", {}),
        ((129, 64), "float32", {}),
        ((65, 33), "int32", {}),
        ((65, 33), "int64", {}),
    ],
)
def laplacian(block: Any, *, out: Any, dtype: dtypes.Result = "same") -> None:
    """Edge filter: the eight neighbours along rows and columns, minus eight times the centre.

    Works on axes 0 and 1; further axes, such as channels, are filtered separately. Integers of any size are
    summed exactly; bool counts as 0 and 1. float16 and float32 are summed in float32 for results
    of these types, else in float64, in one order: (left + centre) + right along each row,
    (top + middle) + bottom of these sums, minus 9 * centre. Negative results need a signed `dtype`.

    dtype: of the result. Into integers, values are rounded half to even and saturate: nothing wraps.
        The same as bool is uint8. Sums of 64-bit integers become floats by way of float64.
    """
    if hasattr(block, "__cuda_array_interface__"):
        fill(_filter, [block], [out], ((1, 1), (1, 1)))
    else:
        _filter(block, out=out)


def _filter(block: Any, *, out: Any) -> None:
    kind = accumulator(block.dtype, out.dtype)
    if kind == dtypes.WIDE:
        dtypes.ExactSums(_sums, block, 16).store(out)
        return
    block = block.astype(kind, copy=False)
    total = _sums(block, out if out.dtype == kind else None)
    if total is not out:
        dtypes.store(total, out)


def _sums(block: Any, total: Any = None) -> Any:
    """The filter in the block's dtype, in `total` where that is given."""
    with np.errstate(all="ignore"):
        across = np.add(block[:, :-2], block[:, 1:-1])
        across += block[:, 2:]
        total = np.add(across[:-2], across[1:-1], out=total)
        total += across[2:]
        total -= np.multiply(block[1:-1, 1:-1], block.dtype.type(9), out=across[:-2])
    return total
