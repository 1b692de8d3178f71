"""Whether C is A B, in time of order n^2: C r against A (B r) in float64 for a random r.

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. Twice: with factors of
-1, 0 and 1, whose products every precision holds exactly, so that any difference is an element that is wrong;
and with real numbers, where the difference is bounded by what rounding may do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jobs.bench.lessons import pseudorandom as scrambled
from jobs.bench.lessons.matmul.methods import DOUBLE, Open, Precision, Shape

SURE = 8.0  # standard deviations that a sum of random signs stays within: but for one in 10^13
SPREAD = 16.0  # of the integer products: 16 of these are what bfloat16 holds exactly, 256
INTEGERS = 1 << 20  # the largest number in r, for integer products


def fill(xp: Any, matrices: Open, shape: Shape, precision: Precision, *, exact: bool) -> None:
    """Random factors: -1, 0, 1 where `exact`, else uniform in [-1, 1)."""
    chance = min(0.5, SPREAD / math.sqrt(shape[2]))
    for seed, words in enumerate((matrices.a, matrices.b), 1):
        for first, index in scrambled.indices(xp, words.size, seed):
            values = scrambled.signs(index, chance) if exact else scrambled.uniform(index)
            words[first : first + index.size] = _stored(values, precision, words.dtype)


def wrong_rows(xp: Any, matrices: Open, shape: Shape, precision: Precision) -> int:
    """How many rows of the product of `exact` factors have a wrong element, by one random r.

    A row with one is missed with a chance of 1 in 2^21.
    """
    vector = scrambled.mixed(xp.arange(shape[1], dtype=xp.uint64) + np.uint64(7 << 48))
    # Every sum below is of integers, and less than k^2 2^20: exact in float64 up to k = 2^16.
    vector = (vector % np.uint64(2 * INTEGERS + 1)).astype(np.float64) - INTEGERS
    through = _times(xp, matrices.b, shape[2], shape[1], precision, vector)
    wrong = 0
    for a, c in _rows(matrices, shape, precision):
        # NaN is unlike anything.
        wrong += int((~(c @ vector == a @ through)).sum())
    return wrong


def error(xp: Any, matrices: Open, shape: Shape, precision: Precision) -> float:
    """The largest |C r - A (B r)| of a row, r being random signs; as a part of the row of |A| times the
    2-norms of B's rows. Infinite where it is no number. `bound` says how large it may be."""
    bits = scrambled.mixed(xp.arange(shape[1], dtype=xp.uint64) + np.uint64(9 << 48))
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


def bound(shape: Shape, precision: Precision) -> float:
    """What rounding explains of `error`.

    An element's error is at most k eps (|A| |B|), with the eps of the sums, plus what rounding inputs and
    results adds. The errors of a row, of random sign, add up to less than 8 times their 2-norm, but for one
    row in 10^13 (Hoeffding).
    """
    _, n, k = shape
    return SURE * (k * precision.sums + 2 * precision.inputs + precision.results) + 4 * max(n, k) * DOUBLE


def _stored(values: Any, precision: Precision, words: Any) -> Any:
    """float32 as the bits of the precision's elements."""
    if precision.name != "bfloat16":
        return values.astype(precision.dtype).view(words)
    bits = values.view(np.uint32)  # round half to even; there is no NaN
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        words
    )


def _float64(words: Any, precision: Precision) -> Any:
    if precision.name == "bfloat16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return words.view(precision.dtype).astype(np.float64)


def _blocks(words: Any, rows: int, columns: int, precision: Precision) -> Iterator[Any]:
    """Whole rows of a matrix, as float64."""
    step = max(1, scrambled.BLOCK // columns)
    for begin in range(0, rows, step):
        part = words[begin * columns : min(begin + step, rows) * columns]
        yield _float64(part, precision).reshape(-1, columns)


def _rows(matrices: Open, shape: Shape, precision: Precision) -> Iterator[tuple[Any, Any]]:
    """Rows of A and the same of C, as float64."""
    m, n, k = shape
    step = max(1, scrambled.BLOCK // max(n, k))
    for begin in range(0, m, step):
        end = min(begin + step, m)
        a = _float64(matrices.a[begin * k : end * k], precision).reshape(-1, k)
        yield a, _float64(matrices.c[begin * n : end * n], precision).reshape(-1, n)


def _times(xp: Any, words: Any, rows: int, columns: int, precision: Precision, vector: Any) -> Any:
    return xp.concatenate([block @ vector for block in _blocks(words, rows, columns, precision)])
