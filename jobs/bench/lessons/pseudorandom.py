"""Pseudorandom numbers as a function of their index, computed where they are needed.

All functions work on arrays of NumPy and CuPy, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 22  # elements at a time
# Sets the two upper bits of the exponent to 01: it is then neither all ones nor all zeros.
EXPONENT_MASK, EXPONENT_BITS = ~np.uint64(1 << 62), np.uint64(1 << 61)


def mixed(index: Any) -> Any:
    """Compute splitmix64 of `index` (uint64, any shape): 64 random bits, different for each index."""
    x = (index + np.uint64(1)) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def indices(xp: ModuleType, count: int, seed: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield 0 .. count - 1 in blocks: (first, uint64 indices from there); other seeds, other indices."""
    for first in range(0, count, BLOCK):
        index = xp.arange(first, min(first + BLOCK, count), dtype=xp.uint64)
        yield first, index + np.uint64(seed << 48)


def words(index: Any, itemsize: int) -> Any:
    """Return (n,) unsigned integers of `itemsize` bytes as matrix elements.

    As floating point of any precision they are normal numbers below 2 of either sign, so that a method that
    moves them by arithmetic (times 1 plus 0) keeps every bit, which it might not for a NaN.
    """
    bits = mixed(index) & EXPONENT_MASK | EXPONENT_BITS
    return (bits >> np.uint64(64 - 8 * itemsize)).astype(f"u{itemsize}")


def fill(xp: ModuleType, target: Any) -> None:
    """Fill with elements that depend on their index. target: flat array of unsigned integers."""
    for first, index in indices(xp, target.size):
        target[first : first + index.size] = words(index, target.itemsize)


def count_mismatches(xp: ModuleType, target: Any, source_of: Callable[[Any], Any]) -> tuple[int, int]:
    """Count the elements of `target` that differ from a filled array's; also return the index of the first.

    source_of: indices in `target` (uint64) -> indices in the filled array.
    """
    count = first = 0
    for begin, place in indices(xp, target.size):
        wrong = target[begin : begin + place.size] != words(source_of(place), target.itemsize)
        found = int(wrong.sum())
        if found and not count:
            first = begin + int(wrong.argmax())
        count += found
    return count, first


def uniform(index: Any) -> Any:
    """Return (n,) float32 in [-1, 1)."""
    return (mixed(index) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def signs(index: Any, probability: float) -> Any:
    """Return (n,) float32: 1 and -1, each with half the probability, else 0."""
    x = mixed(index)
    nonzero = (x & np.uint64(0xFFFFFFFF)) < np.uint64(int(probability * 2**32))
    return nonzero.astype(np.float32) * (
        (x >> np.uint64(63)).astype(np.float32) * np.float32(-2) + np.float32(1)
    )
