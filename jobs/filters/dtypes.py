"""What the built-in jobs agree on: dtypes taken, result dtypes offered, how a result is rounded."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from runner.errors import UserError

SUPPORTED = ("uint8", "uint16", "int32", "float16", "float32", "float64")
Result = Literal["same", "int16", "int32", "float32", "float64"]


def check(job: str, dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that the job does not take."""
    if dtype.name not in SUPPORTED:
        raise UserError(
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


def floating(source: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """The type that floating-point work is done in.

    float32 where it holds every element and the result is float16 or float32; else float64,
    so that an integer result is rounded once, from the right value.
    """
    narrow = source.name not in ("int32", "float64") and result.name in ("float16", "float32")
    return np.dtype(np.float32 if narrow else np.float64)


def unit_roundoff(block: np.ndarray[Any, Any], choice: str) -> float:
    """Largest relative error of one operation in `floating`, from the data's float64 copy and `--dtype`.

    Data that float32 cannot hold were int32 or float64. Other data may have been of any type:
    float32's error bounds those of both.
    """
    if choice in ("same", "float", "float16", "float32"):
        with np.errstate(over="ignore"):
            if np.array_equal(block.astype(np.float32), block, equal_nan=True):
                return 2.0**-24
    return 2.0**-53
