"""Check in O(n^2) whether C is A B: compare C r with A (B r) in float64 for a random r.

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. Done twice: with factors
of -1, 0 and 1, whose products every precision holds exactly, so that any difference is a wrong element; and
with real factors, where rounding bounds the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshrun.jobs.bench.lessons import pseudorandom
from meshrun.jobs.bench.lessons.matmul.methods import DOUBLE, LessonPrecision, Matrices, ProductShape

DEVIATIONS = 8.0  # standard deviations that a sum of random signs stays within, except for one in 10^13
SPREAD = 16.0  # standard deviation of integer products: bfloat16 holds 16 of these, 256, exactly
LARGEST = 1 << 20  # largest number in r, for integer products


def fill(
    xp: Any, matrices: Matrices, shape: ProductShape, precision: LessonPrecision, *, exact: bool
) -> None:
    """Fill the factors with random numbers: -1, 0, 1 if `exact`, else uniform in [-1, 1)."""
    probability = min(0.5, SPREAD / math.sqrt(shape[2]))
    for seed, words in enumerate((matrices.a, matrices.b), 1):
        for first, index in pseudorandom.indices(xp, words.size, seed):
            values = pseudorandom.signs(index, probability) if exact else pseudorandom.uniform(index)
            words[first : first + index.size] = _stored(values, precision, words.dtype)


def wrong_rows(xp: Any, matrices: Matrices, shape: ProductShape, precision: LessonPrecision) -> int:
    """Count the rows of the product of `exact` factors that have a wrong element, with one random r.

    A wrong row is missed with a probability of 2^-21.
    """
    vector = pseudorandom.mixed(xp.arange(shape[1], dtype=xp.uint64) + np.uint64(7 << 48))
    # Every sum below is of integers, and less than k^2 2^20: exact in float64 up to k = 2^16.
    vector = (vector % np.uint64(2 * LARGEST + 1)).astype(np.float64) - LARGEST
    through = _times(xp, matrices.b, shape[2], shape[1], precision, vector)
    wrong = 0
    for a, c in _rows(matrices, shape, precision):
        # NaN equals nothing.
        wrong += int((~(c @ vector == a @ through)).sum())
    return wrong


def error(xp: Any, matrices: Matrices, shape: ProductShape, precision: LessonPrecision) -> float:
    """Return the largest |C r - A (B r)| of a row for random signs r, relative to the row of |A| times the
    2-norms of B's rows; infinite if any is NaN. At most `bound` if only rounding contributes."""
    bits = pseudorandom.mixed(xp.arange(shape[1], dtype=xp.uint64) + np.uint64(9 << 48))
    vector = 1.0 - 2.0 * (bits >> np.uint64(63)).astype(np.float64)
    through = _times(xp, matrices.b, shape[2], shape[1], precision, vector)
    norms = xp.concatenate(
        [xp.sqrt((block * block).sum(axis=1)) for block in _blocks(matrices.b, shape[2], shape[1], precision)]
    )
    largest = 0.0
    for a, c in _rows(matrices, shape, precision):
        part = float((abs(c @ vector - a @ through) / (abs(a) @ norms)).max())
        largest = max(largest, part) if math.isfinite(part) else math.inf
    return largest


def bound(shape: ProductShape, precision: LessonPrecision) -> float:
    """Return the largest `error` that rounding explains.

    An element's error is at most k eps (|A| |B|), eps being that of the sums, plus the rounding of inputs and
    results. The errors of a row have random signs and add up to less than 8 times their 2-norm, except for
    one row in 10^13 (Hoeffding).
    """
    _, n, k = shape
    return (
        DEVIATIONS * (k * precision.sums + 2 * precision.inputs + precision.results) + 4 * max(n, k) * DOUBLE
    )


def _stored(values: Any, precision: LessonPrecision, words: Any) -> Any:
    """Convert float32 values to the bits of the precision's elements."""
    if precision.name != "bfloat16":
        return values.astype(precision.dtype).view(words)
    bits = values.view(np.uint32)  # round half to even; there is no NaN
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        words
    )


def _float64(words: Any, precision: LessonPrecision) -> Any:
    if precision.name == "bfloat16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return words.view(precision.dtype).astype(np.float64)


def _blocks(words: Any, rows: int, columns: int, precision: LessonPrecision) -> Iterator[Any]:
    """Yield whole rows of a matrix, as float64."""
    step = max(1, pseudorandom.BLOCK // columns)
    for begin in range(0, rows, step):
        part = words[begin * columns : min(begin + step, rows) * columns]
        yield _float64(part, precision).reshape(-1, columns)


def _rows(matrices: Matrices, shape: ProductShape, precision: LessonPrecision) -> Iterator[tuple[Any, Any]]:
    """Yield rows of A and the same rows of C, as float64."""
    m, n, k = shape
    step = max(1, pseudorandom.BLOCK // max(n, k))
    for begin in range(0, m, step):
        end = min(begin + step, m)
        a = _float64(matrices.a[begin * k : end * k], precision).reshape(-1, k)
        yield a, _float64(matrices.c[begin * n : end * n], precision).reshape(-1, n)


def _times(xp: Any, words: Any, rows: int, columns: int, precision: LessonPrecision, vector: Any) -> Any:
    return xp.concatenate([block @ vector for block in _blocks(words, rows, columns, precision)])
