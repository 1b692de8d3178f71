"""What the built-in jobs agree on: dtypes taken, result dtypes offered, how a result is rounded."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

import runner

SUPPORTED = ("uint8", "uint16", "int32", "float16", "float32", "float64")
Result = Literal["same", "int16", "int32", "float32", "float64"]


def check(job: str, dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that the job does not take."""
    if dtype.name not in SUPPORTED:
        raise runner.UserError(
            f"{job} cannot work on elements of this type",
            got=dtype.name,
            expected=", ".join(SUPPORTED),
            hint="array.astype(numpy.float32)",
        )


def result(dtype: np.dtype[Any], choice: str) -> np.dtype[Any]:
    """The result's dtype for a `--dtype` choice."""
    return np.dtype(dtype if choice == "same" else choice)


def store(values: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """Write `values` to `out`, as convert() in kernels/common.cuh does; may overwrite `values`.

    Into integers: round half to even, saturate, NaN becomes 0. Into floats: round to nearest.
    """
    with np.errstate(over="ignore"):
        if out.dtype.kind == "f":
            out[...] = values
            return
        if values.dtype.kind == "f":
            values = np.rint(values, dtype=np.float64)  # holds every int32, as float32 does not
            values[np.isnan(values)] = 0
    limits = np.iinfo(out.dtype)
    if np.can_cast(values.dtype, out.dtype):
        out[...] = values
    else:
        np.clip(values, limits.min, limits.max, out=values)
        np.copyto(out, values, casting="unsafe")


def unit_roundoff(block: np.ndarray[Any, Any]) -> float:
    """Largest relative error of one operation of a job on this data, from the data's float64 copy.

    Data that float32 cannot hold were int32 or float64, which jobs compute in float64. Other
    data may have been of any type: float32's error bounds those of all.
    """
    with np.errstate(over="ignore"):
        narrow = np.array_equal(block.astype(np.float32), block, equal_nan=True)
    return 2.0**-24 if narrow else 2.0**-53
