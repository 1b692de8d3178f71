"""Counter-based random numbers: Philox4x64 with 10 rounds (Salmon, Moraes, Dror and Shaw, SC 2011).

A key of two 64-bit words selects a stream, and a counter of four words a block of four 64-bit words in it.
Word `place` of a stream is word `place % 4` at counter `place // 4 + 1`, as in numpy.random.Philox. The
second word of a counter is the number of a time step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.region import Array, Shape

Key = tuple[int, int]
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # what a round adds to the key
ROUNDS = 10
ON_DEVICE = 1 << 22  # cells at a time: about 200 MiB; the kernels take longer than their launches
ON_HOST = 1 << 14  # cells at a time, which fit a core's caches
SHORT = 100  # cells in a row: computing so many takes as long as setting NumPy's generator to a place
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def fractions(xp: ModuleType, key: Key, offset: Shape, block: Shape, shape: Shape, step: int = 0) -> Array:
    """Return a float64 in [0, 1) for each cell of a block of an array of `shape`, from the word at its place.

    xp: numpy or cupy; both give the same bits. step: number of a time step.
    """
    starts, length = runs(offset, block, shape)
    if xp is np and length >= SHORT:
        return by_numpy(key, starts, length, step).reshape(block)
    most = ON_HOST if xp is np else ON_DEVICE
    return by_arithmetic(xp, key, starts, length, most, step).reshape(block)


def runs(offset: Shape, block: Shape, shape: Shape) -> tuple[np.ndarray[Any, Any], int]:
    """Return the places, in C order, where a block's runs of neighbouring cells begin, and a run's length."""
    if not shape:  # a scalar
        return np.zeros(1, np.uint64), 1
    axis = len(shape) - 1
    while axis > 0 and block[axis] == shape[axis]:
        axis -= 1
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    starts = np.array([offset[axis] * strides[axis]], np.uint64)
    for first, count, stride in reversed(list(zip(offset[:axis], block[:axis], strides[:axis], strict=True))):
        along = np.arange(first, first + count, dtype=np.uint64) * np.uint64(stride)
        starts = (along[:, None] + starts).reshape(-1)
    return starts, math.prod(block[axis:])


def by_numpy(key: Key, starts: np.ndarray[Any, Any], length: int, step: int = 0) -> np.ndarray[Any, Any]:
    """Return `length` fractions from each of `starts` on, from NumPy's own generator."""
    made = np.empty((starts.size, length))
    generator = np.random.Philox(key=np.array(key, np.uint64))
    draw, state = np.random.Generator(generator), generator.state
    state["state"]["counter"][1] = step
    for row, start in zip(made, starts.tolist(), strict=True):
        state["state"]["counter"][0] = start // 4
        generator.state = state
        generator.random_raw(start % 4, output=False)
        draw.random(out=row)
    return made


def by_arithmetic(
    xp: ModuleType, key: Key, starts: np.ndarray[Any, Any], length: int, most: int, step: int = 0
) -> Array:
    """Return the same by operations on arrays of NumPy or CuPy, about `most` cells at a time."""
    made = xp.empty((starts.size, length), np.float64)
    columns = max(min(length, most), 1)
    rows = max(most // (columns + 8), 1)  # for each row, some words before and after it are computed too
    for first in range(0, starts.size, rows):
        for begin in range(0, length, columns):
            part = made[first : first + rows, begin : begin + columns]
            places = xp.asarray(starts[first : first + rows])[:, None] + np.uint64(begin)
            part[...] = _words(xp, key, places, part.shape[1], step) >> np.uint64(11)
    made *= 2.0**-53
    return made


def _words(xp: ModuleType, key: Key, places: Array, length: int, step: int) -> Array:
    """Return uint64 of shape (rows, length): the words from each of `places`, of shape (rows, 1), on."""
    counters = xp.arange(1, length // 4 + 3, dtype=np.uint64) + (places >> np.uint64(2))
    others = [xp.zeros_like(counters) for _ in range(3)]
    others[0] += np.uint64(step)
    words = xp.stack(encrypt(xp, [counters, *others], key), axis=-1).reshape(len(places), -1)
    wanted = xp.arange(length) + (places & np.uint64(3)).astype(np.int64)
    return xp.take_along_axis(words, wanted, axis=1)


def encrypt(xp: ModuleType, counter: Sequence[Array], key: Key) -> list[Array]:
    """Return the four words at each counter. counter: four arrays of uint64, which are overwritten."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, high1 = (_high(xp, c, m) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
        c0 *= np.uint64(MULTIPLIERS[0])
        c2 *= np.uint64(MULTIPLIERS[1])
        high1 ^= c1
        high1 ^= np.uint64(k0) if isinstance(k0, int) else k0  # a number of the step, in a trace
        high0 ^= c3
        high0 ^= np.uint64(k1)
        c0, c1, c2, c3 = high1, c2, high0, c0
        k0, k1 = (k0 + WEYL[0]) % 2**64, (k1 + WEYL[1]) % 2**64
    return [c0, c1, c2, c3]


def _high(xp: ModuleType, values: Array, multiplier: int) -> Array:
    """Return the upper 64 bits of 128-bit products, computed from products of halves."""
    times_low, times_high = np.uint64(multiplier & 0xFFFFFFFF), np.uint64(multiplier >> 32)
    low, high = values & LOW, values >> HALF
    middle = high * times_low
    carried = low * times_low
    carried >>= HALF
    low *= times_high
    carried += low
    carried += middle & LOW  # all three together are below 2^64
    carried >>= HALF
    middle >>= HALF
    high *= times_high
    high += middle
    high += carried
    return high
