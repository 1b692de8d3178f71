"""Colour image to grey levels. On a GPU it is one kernel, by the trace of its NumPy functions."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import meshrun
from meshrun.jobs.filters import dtypes
from meshrun.runner.compiler.cuda.fill import fill
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

ACCUMULATOR = {
    "bool": "uint32",
    "uint8": "uint32",
    "int8": "int32",
    "uint16": "uint32",  # 65535 * 65536 + 32768 is below 2^32
    "int16": "int64",
    "uint32": "int64",
    "int32": "int64",
    "uint64": "int64",  # of either half of an element
    "int64": "int64",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
}
UNIT = 65536  # weights are whole multiples of 1 / UNIT
REC601 = "0.299 0.587 0.114"


@functools.lru_cache
def parse(weights: str) -> tuple[int, int, int]:
    """Three numbers as whole multiples of 1/65536 that sum to 1."""
    try:
        numbers = [float(word) for word in weights.replace(",", " ").split()]
    except ValueError:
        numbers = []
    total = sum(numbers)
    if len(numbers) != 3 or min(numbers) < 0 or not 0 < total < math.inf:
        raise UserError(
            "the weights of red, green and blue are not as they should be",
            got=repr(weights),
            expected="three numbers, none negative, not all 0",
            hint=option("weights", "0.2126 0.7152 0.0722"),
        )
    parts = [round(number / total * UNIT) for number in numbers]
    parts[parts.index(max(parts))] += UNIT - sum(parts)
    return parts[0], parts[1], parts[2]


def _check(shape: tuple[int, ...], source: np.dtype[Any], /, *, weights: str = REC601) -> None:
    dtypes.check("grayscale", source)
    parse(weights)
    if len(shape) != 3 or shape[2] not in (3, 4):
        raise UserError(
            "grayscale needs a colour image",
            got=f"shape {shape}",
            expected="(rows, columns, 3) or (rows, columns, 4)",
        )


def _result(
    shape: tuple[int, ...], source: np.dtype[Any], /, *, weights: str = REC601
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return shape[:-1], dtypes.result(source, "same")


def _reference(
    block: np.ndarray[Any, Any], *, weights: str = REC601, input_dtype: np.dtype[Any] | None = None
) -> Any:
    parts = np.array(parse(weights)) / UNIT
    expected: np.ndarray[Any, Any] = block[..., :3] @ parts
    # Halves round up here, to even in the comparison: a last bit more settles that.
    np.nextafter(expected, np.inf, out=expected)
    if input_dtype is None or not dtypes.is_wide(input_dtype):
        return expected
    # Products with weights of 16 bits are exact up to 2^37.
    magnitude = np.abs(block[..., :3]).max(axis=-1)
    return expected, np.where(magnitude < 2.0**37, 0.0, 8 * 2.0**-53 * magnitude)


@meshrun.map_blocks(
    fuse="off",
    out=_result,
    check=_check,
    reference=_reference,
    trials=[((67, 41, 3), "uint8", {}), ((33, 20, 4), "float32", {})],
)
def grayscale(block: Any, *, out: Any, weights: str = REC601) -> None:
    """Grey levels of a colour image, by default with the weights of Rec. 601.

    (rows, columns, 3 or 4) to (rows, columns) of the same dtype, of bool, which counts as 0 and 1, to uint8;
    a fourth channel, alpha, is dropped.
    Weights become whole multiples of 1/65536 that sum to 1, so that white stays white and
    nothing overflows: 19595, 38470 and 7471 by default, which gives Pillow's "L" to the bit.
    Integers of any size: the exact sum, halves rounded up. float16 and float32 are computed in
    float32, float64 in float64: (red + green) + blue.

    weights: of red, green and blue, in any proportion: divided by their sum.
    """
    if hasattr(block, "__cuda_array_interface__"):
        fill(_grey, [block], [out], ((0, 0), (0, 0)), weights=weights)
    else:
        _grey(block, out=out, weights=weights)


def _grey(block: Any, *, out: Any, weights: str) -> None:
    parts, accumulator = parse(weights), np.dtype(ACCUMULATOR[block.dtype.name])
    if accumulator.kind == "f":
        total = _sums(block, [accumulator.type(part / UNIT) for part in parts], accumulator)
        dtypes.store(total, out)
        return
    whole = [accumulator.type(part) for part in parts]
    if not dtypes.is_wide(block.dtype):
        total = _sums(block, whole, accumulator)
        total += accumulator.type(UNIT // 2)
        total >>= accumulator.type(16)
        out[...] = total
        return
    half, mask = block.dtype.type(dtypes.HALF), block.dtype.type(2**dtypes.HALF - 1)
    total = _sums(block & mask, whole, accumulator)
    total += accumulator.type(UNIT // 2)
    total >>= accumulator.type(16)
    high = _sums(block >> half, whole, accumulator)
    high <<= accumulator.type(dtypes.HALF - 16)  # bits beyond 64 are those of a sign
    total += high
    out[...] = total.astype(block.dtype)


def _sums(block: Any, weights: list[Any], accumulator: np.dtype[Any]) -> Any:
    """(red + green) + blue of products in `accumulator`."""
    total: Any = None
    with np.errstate(all="ignore"):
        for channel, weight in enumerate(weights):
            term = block[..., channel].astype(accumulator)
            term *= weight
            if total is None:
                total = term
            else:
                total += term
    return total
