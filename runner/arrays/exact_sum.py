"""Sums of floats that are rounded once, at their end: no order, number of ranks or device changes their bits.

A sum is a whole number of units of 2^`LOWEST`, in digits of 32 bits: `SUM_WORDS` integers of 64 bits, which
ranks add to each other's. `compiler/kernels/exact.cuh` describes them; GPUs make them in the kernels that
compute the cells. Here, cells in memory are added: by a compiled loop on a CPU, else by functions of arrays.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import HEADER, KERNELS
from meshrun.runner.region import Array, HostArray
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.compiler import NotCompiled, find_compiler

DIGITS, LOWEST, SUM_WORDS = 68, -1088, 72  # as in exact.cuh; the words of digits come first
NANS, INFINITE, NEGATIVE = DIGITS, DIGITS + 1, DIGITS + 2  # words that count such cells
COMPILED_CELLS = 1 << 16  # of a call, at least, for which the loop is compiled
PART = {"cpu": 1 << 15, "cuda": 1 << 26}  # cells that functions add at a time: in a cache; on a device, many
PLACES = {
    np.dtype(np.float32): (24, -149),
    np.dtype(np.float64): (53, -1074),
}  # binary; the last power of two

LARGE, SMALL, SCALE = (
    2.0**800,
    2.0**-800,
    700,
)  # numbers that functions bring to the middle of the range; by 2^700

AddBox = Callable[..., None]


def zero_words() -> HostArray:
    """Return the words of a sum of nothing."""
    return np.zeros(SUM_WORDS, np.int64)


def add_cells(words: HostArray, xp: Any, cells: Array) -> None:
    """Add the cells of an array to a sum. cells: (...), of float32 or float64; on any device."""
    if cells.size == 0:
        return
    loop = _loop(str(cells.dtype)) if xp is np and cells.size >= COMPILED_CELLS else None
    if loop is not None:
        _by_loop(loop, words, cells)
    else:
        flat, total = cells.reshape(-1), 0
        step = PART["cpu" if xp is np else "cuda"]
        for begin in range(0, flat.size, step):
            total += _by_functions(words, xp, flat[begin : begin + step])
        _add_number(words, total)
    # Carry, so that a word has room for what the next call and other ranks add.
    carried = words[: DIGITS - 1] >> 32
    words[: DIGITS - 1] &= 0xFFFFFFFF
    words[1:DIGITS] += carried


def rounded(words: HostArray, dtype: np.dtype[Any]) -> Any:
    """Return a sum as a number, rounded to the nearest; of two, to the even one.

    dtype: float32 or float64; what is above its range becomes infinite.
    """
    # A word is a digit with a carry, or with one that is missing; few are not 0.
    numbers: dict[int, int] = {place: words.item(place) for place in words.nonzero()[0].tolist()}
    if NANS in numbers or (INFINITE in numbers and NEGATIVE in numbers):
        return dtype.type(np.nan)
    if INFINITE in numbers or NEGATIVE in numbers:
        return dtype.type(np.inf if INFINITE in numbers else -np.inf)
    total = sum(number << 32 * place for place, number in numbers.items() if place < DIGITS)
    places, least = PLACES[dtype]
    size = abs(total)
    dropped = max(size.bit_length() - places, least - LOWEST, 0)
    number, rest = divmod(size, 1 << dropped)
    half = 1 << dropped >> 1
    number += rest > half or (rest == half and number % 2 and dropped > 0)
    try:
        found = math.ldexp(number, dropped + LOWEST)
    except OverflowError:
        found = math.inf
    found = -found if total < 0 else found
    if dtype.itemsize == 8:
        return dtype.type(found)
    with np.errstate(over="ignore"):
        return dtype.type(found)


def _by_loop(loop: AddBox, words: HostArray, cells: HostArray) -> None:
    """Add cells by the compiled loop, which takes up to three axes, the last one contiguous."""
    if cells.ndim > 3 or cells.strides[-1] != cells.itemsize:
        cells = np.ascontiguousarray(cells).reshape(1, 1, -1)
    cells = cells.reshape((1,) * (3 - cells.ndim) + cells.shape)
    lengths = np.array(cells.shape, np.int64)
    pitches = np.array([stride // cells.itemsize for stride in cells.strides[:2]], np.int64)
    loop(*(ctypes.c_void_p(one.ctypes.data) for one in (cells, lengths, pitches, words)))


@functools.cache
def _loop(dtype: str) -> AddBox | None:
    """Return the compiled loop for cells of a dtype; None without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    texts = [
        path.read_text(encoding="utf-8")
        for path in (HEADER, KERNELS / "exact.cuh", KERNELS / "exact_sum.cpp")
    ]
    try:
        from meshrun.runner.compiler.cpp import host  # which most runs do without

        library = host.library("\n".join(texts), compiler, cache_folder())
    except NotCompiled:
        return None
    return library[f"add_{dtype}"]


def _by_functions(words: HostArray, xp: Any, cells: Array) -> int:
    """Return the sum of cells, (n,), in units; count those that are not finite in the words."""
    left, total = cells.astype(np.float64), 0
    top = max(float(left.max()), -float(left.min()))
    if not math.isfinite(top):
        words[NANS] += int(xp.isnan(left).sum())
        words[INFINITE] += int((left == math.inf).sum())
        words[NEGATIVE] += int((left == -math.inf).sum())
        left[~xp.isfinite(left)] = 0
    # Numbers near the ends of the range are brought to its middle, where no part of them is rounded.
    if top >= LARGE or not math.isfinite(top):
        large = xp.abs(left) >= LARGE
        if bool(large.any()):
            total = _by_slices(left[large] * 2.0**-SCALE, SCALE)
            left[large] = 0
    return total + _by_slices(left, 0)


def _by_slices(left: Array, power: int) -> int:
    """Return the sum of doubles times 2^power, in units. left: is changed.

    First the highest binary places of all numbers are added, then the next ones, until nothing is left: so
    few places that a double holds their sum, in any order.
    """
    places, total = 51 - int(left.size).bit_length(), 0
    while top := max(float(left.max()), -float(left.min())):
        if top < SMALL:
            left *= 2.0**SCALE
            top, power = top * 2.0**SCALE, power - SCALE
        # The sum with a number of fixed size drops the places that follow.
        fixed = math.ldexp(1.5, math.frexp(top)[1] - places + 52)
        high = left + fixed
        high -= fixed
        numerator, denominator = float(high.sum()).as_integer_ratio()
        total += (numerator << power - LOWEST) // denominator
        left -= high
    return total


def _add_number(words: HostArray, number: int) -> None:
    """Add a whole number of units."""
    sign, size, digit = (-1 if number < 0 else 1), abs(number), 0
    while size:
        words[digit] += sign * (size & 0xFFFFFFFF)
        size, digit = size >> 32, digit + 1
