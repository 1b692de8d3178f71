"""Convolution with a small kernel of any shape.

On a GPU, kernels of few taps are made for their taps, by the trace of the job's NumPy functions: on an H200
they take a quarter to two thirds of the time of convolve.cu, which is for kernels of more taps.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

import numpy as np

import meshrun
from meshrun.jobs import kernels
from meshrun.jobs.filters import dtypes
from meshrun.jobs.filters.weights import EXACT, Weights, read
from meshrun.runner.compiler.cuda.fill import fill
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

THREADS, COLUMNS = 128, 4  # as in convolve.cu
MOST_TAPS = 225  # of a kernel that is made for its taps; one of more takes long to compile
WIDEST = 2**20  # of weights on 64-bit integers: half of a sum fits a float64
Array = np.ndarray[Any, Any]


def accumulator(source: np.dtype[Any], result: np.dtype[Any], weights: Weights) -> np.dtype[Any]:
    """The narrowest of the types that give the documented result."""
    if source.kind == "f":
        return dtypes.floating(source, result)
    if not weights.whole:
        return np.dtype(np.float64)
    if dtypes.is_wide(source):
        return dtypes.WIDE
    return np.dtype(np.int32 if _bound(source, weights) < 2**31 else np.int64)


def _bound(source: np.dtype[Any], weights: Weights) -> float:
    return weights.total * dtypes.largest(source)


def _check(
    shape: tuple[int, ...],
    source: np.dtype[Any],
    /,
    *,
    kernel: str,
    normalize: bool = False,
    dtype: str = "same",
) -> None:
    dtypes.check("convolve", source)
    weights = read(kernel, normalize)
    if weights.values.ndim > len(shape):
        raise UserError(
            "the kernel has more axes than the array",
            got=f"a kernel of shape {weights.values.shape}",
            expected=f"at most {len(shape)} axes",
        )
    if not weights.whole or source.kind == "f":
        return
    if dtypes.is_wide(source) and weights.total >= WIDEST:
        raise UserError(
            f"sums of {source} elements under this kernel would not be exact",
            got=f"weights of total size {weights.total:,.0f}",
            expected=f"less than {WIDEST:,}",
            hint="smaller weights, or a float64 array",
        )
    if not dtypes.is_wide(source) and _bound(source, weights) >= EXACT:
        raise UserError(
            f"sums of {source} elements under this kernel can pass 2^53 and would not be exact",
            got=f"weights of total size {weights.total:g}",
            hint="smaller weights, or a float64 array",
        )


def _result(
    shape: tuple[int, ...],
    source: np.dtype[Any],
    /,
    *,
    kernel: str,
    normalize: bool = False,
    dtype: str = "same",
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return shape, dtypes.result(source, dtype)


def _halo(*, kernel: str, normalize: bool = False, dtype: str = "same") -> list[tuple[int, int]]:
    return read(kernel, normalize).widths


def _reference(
    block: Array,
    *,
    kernel: str,
    normalize: bool = False,
    dtype: str = "same",
    input_dtype: np.dtype[Any] | None = None,
) -> tuple[Array, Array]:
    """The definition, result[i] = sum over k of kernel[k] * array[i + size // 2 - k], last k first.

    That is the job's order of sums, so that fractional weights on integers agree to the bit too.
    The tolerance is the bound of Higham, Accuracy and Stability of Numerical Algorithms, 3.1.
    """
    weights = read(kernel, normalize)
    values, sizes = weights.values, weights.values.shape
    inner = tuple(length - size + 1 for length, size in zip(block.shape, sizes, strict=False))
    inner += block.shape[len(sizes) :]
    expected, magnitude, count = np.zeros(inner), np.zeros(inner), 0
    for k in reversed(list(np.ndindex(sizes))):
        if values[k]:
            start = [size - 1 - step for size, step in zip(sizes, k, strict=True)]
            part = block[tuple(slice(a, a + n) for a, n in zip(start, inner, strict=False))]
            expected = expected + values[k] * part
            magnitude += abs(values[k]) * np.abs(part)
            count += 1
    # Whole numbers below 2^24 are exact in float32 too; other integers are not summed there.
    whole = weights.whole and np.array_equal(block, np.rint(block)) and magnitude.max(initial=0) < 2**24
    whole = whole or (input_dtype is not None and dtypes.is_integer(input_dtype))
    roundoff = 2.0**-53 if whole else dtypes.unit_roundoff(block, dtype)
    tolerance = (count + 3) * 1.01 * roundoff * magnitude
    return expected / weights.divisor, tolerance / abs(weights.divisor)


@meshrun.map_blocks(
    halo=_halo,
    boundary="reflect",
    out=_result,
    check=_check,
    reference=_reference,
    strided_out=True,
    fuse="off",
    trials=[
        ((67, 41, 3), "uint8", {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True}),
        ((31, 50), "float32", {"kernel": "0.5 1 -2 3"}),
        ((40, 30), "int32", {"kernel": "1 0; -1 2; 3 0; 1 1"}),
        ((40, 30), "int64", {"kernel": "1 0; -1 2; 3 0; 1 1"}),
    ],
)
def convolve(
    block: Any,
    *,
    out: Any,
    xp: ModuleType,
    kernel: str,
    normalize: bool = False,
    dtype: dtypes.Result = "same",
) -> None:
    """Convolve with a kernel, as scipy.ndimage.convolve does at origin 0, even sizes included.

    The kernel's axes are the array's leading axes; further axes, such as channels, are filtered separately.
    Products are summed in the C order of the flipped kernel; a weight of 0 is not looked at, so
    that a NaN there does not spread. Integers under whole weights are summed exactly, or refused where
    that is not possible, under others in float64; bool counts as 0 and 1. float16 and float32 are
    summed in float32 for results of these types, else in float64. The division of `normalize` comes
    last, in float64. On a GPU a kernel has at most three axes.

    kernel: "1 2 1; 2 4 2; 1 2 1" (rows; "1 2 1" alone works along axis 0, "1 2 1;" along axis 1),
        or a .npy file of one to any number of axes.
    normalize: divide the result by the sum of the weights.
    dtype: of the result. Into integers, values are rounded half to even and saturate: nothing wraps.
        The same as bool is uint8. Sums of 64-bit integers become floats by way of float64.
    """
    weights = read(kernel, normalize)
    if not hasattr(block, "__cuda_array_interface__"):
        _filter(block, out=out, weights=weights)
        return
    axes = weights.values.ndim
    if axes > 3:
        raise UserError(
            "a kernel of so many axes runs on CPUs only",
            got=f"{axes} axes",
            expected="3 at most",
            hint=option("device", "cpu"),
        )
    if len(weights.taps) <= MOST_TAPS:
        fill(_filter, [block], [out], tuple(weights.widths), weights=weights)
    else:
        _by_table(block, out, weights, accumulator(block.dtype, out.dtype, weights), xp)


def _filter(block: Any, *, out: Any, weights: Weights) -> None:
    kind = accumulator(block.dtype, out.dtype, weights)
    if kind == dtypes.WIDE:
        exact = dtypes.ExactSums(lambda part: _sums(part, out.shape, weights), block, int(weights.total))
        if weights.divisor == 1:
            exact.store(out)
        else:
            dtypes.store(exact.floats() / weights.divisor, out)
        return
    total = _sums(block.astype(kind, copy=False), out.shape, weights)
    with np.errstate(all="ignore"):
        if weights.divisor != 1:
            total = np.divide(total, weights.divisor, dtype=np.float64)
    dtypes.store(total, out)


def _sums(block: Any, shape: tuple[int, ...], weights: Weights) -> Any:
    """Sums of products in the block's dtype. shape: of the result."""
    total: Any = None
    term: Any = None
    with np.errstate(all="ignore"):
        for place, weight in weights.taps:
            part = block[tuple(slice(a, a + n) for a, n in zip(place, shape, strict=False))]
            if total is None:
                total = np.multiply(part, block.dtype.type(weight))
            else:
                term = np.multiply(part, block.dtype.type(weight), out=term)
                total += term
    return total


def instance(source: np.dtype[Any], kind: np.dtype[Any], result: np.dtype[Any]) -> str:
    return kernels.instance("convolve", source, kind, result)


def _by_table(block: Any, out: Any, weights: Weights, kind: np.dtype[Any], xp: ModuleType) -> None:
    """By the kernel that reads its taps from memory: any number of them, but more slowly."""
    axes = weights.values.ndim
    # Planes x rows x width: the kernel's last axis and all behind it are one long row.
    width = math.prod(out.shape[axes - 1 :])
    planes, rows = (1, 1, *out.shape[: axes - 1])[-2:]
    strides = [math.prod(block.shape[axis + 1 :]) for axis in range(axes)]
    plane, pitch = (0, 0, *strides[:-1])[-2:]
    to = (0, 0, *(stride // out.itemsize for stride in out.strides[: axes - 1]))[-2:]
    columns = -(-width // (THREADS * COLUMNS))
    units = planes * rows * columns
    values, offsets = _device_taps(weights, kind, tuple(strides), xp, xp.cuda.Device().id)
    arguments = (
        *(block, out, values, offsets, np.int32(values.size), np.float64(weights.divisor)),
        *np.array([rows, width, plane, pitch, *to, columns, units], np.int64),
    )
    blocks = min(units, kernels.MOST_BLOCKS)
    kernels.launch("convolve.cu", instance(block.dtype, kind, out.dtype), blocks, THREADS, arguments)


@functools.lru_cache
def _device_taps(
    weights: Weights, kind: np.dtype[Any], strides: tuple[int, ...], xp: ModuleType, device: int
) -> tuple[Any, Any]:
    """Weights and distances from a result's first neighbour, on the device; kept, as blocks repeat."""
    taps = weights.taps
    distances = [sum(step * stride for step, stride in zip(place, strides, strict=True)) for place, _ in taps]
    arrays = (
        xp.asarray(np.array([weight for _, weight in taps], np.int64 if kind == dtypes.WIDE else kind)),
        xp.asarray(np.array(distances, np.int64)),
    )
    xp.cuda.get_current_stream().synchronize()  # any stream may use them from now on
    return arrays
