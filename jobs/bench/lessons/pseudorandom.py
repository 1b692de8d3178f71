"""Numbers that look random, are a function of their index alone, and are made where they are needed.

By the array module of the array that they go to, NumPy or CuPy, a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 22  # elements at a time
# The first two bits of the exponent, 01: never all of it ones or all zeros.
EXPONENT_BELOW, EXPONENT_ABOVE = ~np.uint64(1 << 62), np.uint64(1 << 61)


def mixed(index: Any) -> Any:
    """splitmix64 of `index` (uint64, any shape): 64 random bits; different ones for different indices."""
    x = (index + np.uint64(1)) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def indices(xp: ModuleType, count: int, seed: int = 0) -> Iterator[tuple[int, Any]]:
    """(first, uint64 indices from there) of 0 .. count - 1, in blocks; of different seeds, other indices."""
    for first in range(0, count, BLOCK):
        index = xp.arange(first, min(first + BLOCK, count), dtype=xp.uint64)
        yield first, index + np.uint64(seed << 48)


def words(index: Any, itemsize: int) -> Any:
    """(n,) unsigned integers of `itemsize` bytes: what the elements of a matrix to be moved are.

    As floating point, of whatever precision, they are normal numbers of either sign, less than 2: whoever
    moves them by arithmetic, times 1 plus 0, changes no bit of them. Of a NaN it might.
    """
    bits = mixed(index) & EXPONENT_BELOW | EXPONENT_ABOVE
    return (bits >> np.uint64(64 - 8 * itemsize)).astype(f"u{itemsize}")


def uniform(index: Any) -> Any:
    """(n,) float32 in [-1, 1)."""
    return (mixed(index) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def signs(index: Any, chance: float) -> Any:
    """(n,) float32: 1 or -1, each with half the `chance`, else 0."""
    x = mixed(index)
    there = (x & np.uint64(0xFFFFFFFF)) < np.uint64(int(chance * 2**32))
    return there.astype(np.float32) * (
        (x >> np.uint64(63)).astype(np.float32) * np.float32(-2) + np.float32(1)
    )
