"""What the built-in jobs agree on: dtypes taken, result dtypes offered, how a result is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from meshrun.runner.errors import UserError

SUPPORTED = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
Result = Literal["same", "int16", "int32", "int64", "float32", "float64"]
# The accumulator of sums of 64-bit integers, high * 2^32 + low, as struct Wide in kernels/common.cuh.
WIDE = np.dtype([("high", np.int64), ("low", np.int64)])
HALF = 32  # bits of `low`, and of the part of an element that `high` sums
Array = np.ndarray[Any, Any]


def check(job: str, dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that the job does not take."""
    if dtype.name not in SUPPORTED:
        raise UserError(
            f"{job} cannot work on elements of this type",
            got=dtype.name,
            expected=", ".join(SUPPORTED),
            hint="array.astype(numpy.float32)",
        )


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether sums of such elements are exact: integers, and bool, which counts as 0 and 1."""
    return dtype.kind in "biu"


def is_wide(dtype: np.dtype[Any]) -> bool:
    """Whether sums of such elements may pass 64 bits, and float64 may not hold one of them."""
    return dtype.kind in "iu" and dtype.itemsize == 8


def largest(dtype: np.dtype[Any]) -> int:
    """The largest magnitude of an integer dtype."""
    if dtype.kind == "b":
        return 1
    limits = np.iinfo(dtype)
    return max(-int(limits.min), int(limits.max))


def result(dtype: np.dtype[Any], choice: str) -> np.dtype[Any]:
    """The result's dtype for a choice of `dtype`. The same as bool is uint8, which holds counts."""
    if choice == "same":
        return np.dtype(np.uint8) if dtype.kind == "b" else dtype
    return np.dtype(choice)


def store(values: Array, out: Array) -> None:
    """Write `values` to `out`, as convert() in kernels/common.cuh does; may overwrite integer `values`.

    Into integers: round half to even, saturate, NaN becomes 0. Into floats: round to nearest. Of plain NumPy
    functions, so that one kernel can be made of it.
    """
    with np.errstate(over="ignore"):
        if out.dtype.kind == "f":
            out[...] = values
            return
        if values.dtype.kind == "f":
            values = np.rint(values, dtype=np.float64)  # holds every int32, as float32 does not
            values = np.where(np.isnan(values), 0.0, values)
    limits = np.iinfo(out.dtype)
    if np.can_cast(values.dtype, out.dtype):
        out[...] = values
    elif values.dtype.kind == "f" and out.dtype.itemsize == 8:
        end = float(limits.max)  # one more than the largest integer, which is no float64
        beyond = values >= end
        np.clip(values, float(limits.min), np.nextafter(end, 0), out=values)
        out[...] = np.where(beyond, limits.max, values.astype(out.dtype))
    else:
        np.clip(values, limits.min, limits.max, out=values)
        out[...] = values


class ExactSums:
    """Sums of a block's 64-bit integers, whatever their size.

    sums: a linear function from int64 elements to int64 sums. total: of the magnitudes of a sum's weights,
    below 2^20.
    """

    def __init__(self, sums: Callable[[Array], Array], block: Array, total: int) -> None:
        self.high: Array | None = None  # where int64 holds every sum
        if isinstance(block, np.ndarray):  # a stand-in for one has no values
            ends = (int(block.min()), int(block.max())) if block.size else (0, 0)
            if max(-ends[0], ends[1]) * total < 2**63:
                self.low = sums(block.astype(np.int64, copy=False))
                return
        half, mask = block.dtype.type(HALF), block.dtype.type(2**HALF - 1)
        self.high = sums((block >> half).astype(np.int64, copy=False))
        self.low = sums((block & mask).astype(np.int64, copy=False))
        self.high += self.low >> np.int64(HALF)
        self.low &= np.int64(2**HALF - 1)

    def floats(self) -> Array:
        """The sums as float64, rounded to nearest."""
        low = self.low.astype(np.float64)
        return low if self.high is None else self.high.astype(np.float64) * 2.0**HALF + low

    def store(self, out: Array) -> None:
        """Write the sums to `out`: saturated into integers, by way of float64 into floats."""
        if out.dtype.kind == "f":
            store(self.floats(), out)
            return
        unsigned = out.dtype == np.uint64
        if self.high is None:
            if unsigned:
                np.copyto(out, np.maximum(self.low, 0, out=self.low), casting="unsafe")
            else:
                store(self.low, out)
            return
        ends = (0, 2**HALF - 1) if unsigned else (-(2 ** (HALF - 1)), 2 ** (HALF - 1) - 1)
        most = np.int64(2**HALF - 1)
        low = np.where(self.high < ends[0], np.int64(0), np.where(self.high > ends[1], most, self.low))
        np.clip(self.high, *ends, out=self.high)
        self.high <<= np.int64(HALF)
        self.high |= low
        if unsigned:
            out[...] = self.high.astype(np.uint64)
        else:
            store(self.high, out)


def floating(source: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """The type that floating-point work is done in.

    float32 where it holds every element and the result is float16 or float32; else float64,
    so that an integer result is rounded once, from the right value.
    """
    narrow = np.can_cast(source, np.float32) and result.name in ("float16", "float32")
    return np.dtype(np.float32 if narrow else np.float64)


def unit_roundoff(block: Array, choice: str) -> float:
    """Largest relative error of one operation in `floating`, from the data's float64 copy and `dtype`.

    Data that float32 cannot hold were integers of 4 or 8 bytes or float64. Other data may have been of any
    type: float32's error bounds those of both.
    """
    if choice in ("same", "float", "float16", "float32"):
        with np.errstate(over="ignore"):
            if np.array_equal(block.astype(np.float32), block, equal_nan=True):
                return 2.0**-24
    return 2.0**-53
