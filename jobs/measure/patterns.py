"""Test data that reveals any wrong, lost or misplaced element, and the exact bits of every result.

An element is a function of a seed, of its index modulo PERIOD and, in reductions, of the rank
(`jobs.measure.exact_reductions`). Only integer arithmetic is used, so that kernels/bench_data.cu makes the
same bits on a GPU. Values are handled as bits: unsigned integers as wide as the element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs.measure.exact_reductions import Recipe, RecipeKind, recipe
from meshrun.runner.comm.collectives.api import Datatype

# A prime, so that data does not repeat after a whole number of chunks, blocks or ranks.
PERIOD = 1048573
BLOCK = 1 << 14  # elements computed at a time; they stay in the cache
POISON = 0xA5  # the byte that memory holds before anything is written to it
GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1

Words = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Copied:
    """Random bits that operations move and do not compute with. index: of the segment's first element."""

    seed: int
    index: int


@dataclass(frozen=True)
class Contributed:
    """The contribution of `rank` of `ranks` to a reduction."""

    seed: int
    index: int
    reduction: str
    ranks: int
    rank: int


@dataclass(frozen=True)
class Reduced:
    """The result of all ranks' contributions."""

    seed: int
    index: int
    reduction: str
    ranks: int


@dataclass(frozen=True)
class Untouched:
    """Poison: memory that must not have been written to."""


Data = Copied | Contributed | Reduced | Untouched


@dataclass(frozen=True)
class Segment:
    """A part of memory and its contents. start, count: elements, from the beginning of the memory.

    source: the rank of the group whose data it is; None for a reduction, or if untouched.
    """

    start: int
    count: int
    data: Data
    source: int | None = None


def values(datatype: Datatype, data: Data, offset: int, count: int) -> Words:
    """Compute elements offset .. offset + count - 1 of a segment: (count,) unsigned integers."""
    out = np.empty(count, f"u{datatype.itemsize}")
    if isinstance(data, Untouched):
        out.view(np.uint8).fill(POISON)
        return out
    how, rank = recipe_of(datatype, data)
    base, first = key(data.seed), data.index + offset
    for begin in range(0, min(count, PERIOD), BLOCK):
        block = out[begin : min(begin + BLOCK, PERIOD)]
        start = (first + begin) % PERIOD
        index = np.arange(start, start + block.size, dtype=np.uint64)
        index[PERIOD - start :] -= PERIOD
        index += base
        block[...] = _combine(how, mix(index), rank)
    for begin in range(PERIOD, count, PERIOD):
        block = out[begin : begin + PERIOD]
        block[...] = out[: block.size]
    return out


def recipe_of(datatype: Datatype, data: Data) -> tuple[Recipe, int | None]:
    """Return the recipe of a segment's elements, and the only rank that contributes; None for all ranks."""
    match data:
        case Untouched():
            return Recipe(RecipeKind.UNTOUCHED, 8 * datatype.itemsize), None
        case Copied():
            return Recipe(RecipeKind.COPIED, 8 * datatype.itemsize), None
        case Contributed():
            return recipe(datatype, data.reduction, data.ranks).inputs, data.rank
        case Reduced():
            return recipe(datatype, data.reduction, data.ranks), None


def key(seed: int) -> int:
    """Return the 64-bit key of a seed; data of different seeds is unrelated."""
    return int(mix(np.array([seed & MASK], np.uint64))[0])


def mix(x: Words) -> Words:
    """Apply splitmix64's finalizer in place (Steele, Lea, Flood, OOPSLA 2014; variant 13 of Stafford)."""
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    return x


def _draw(element: Words, rank: Words) -> Words:
    """Draw a rank's random bits for an element. Half a mix suffices: the element's hash is mixed already."""
    x = rank * GOLDEN
    x += element
    x ^= x >> 32
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 32
    return x


def _below(bits: Words, number: int) -> Words:
    """Scale the low 32 bits to 0 .. number - 1 (Lemire, ACM TOMACS 29, 2019)."""
    scaled: Words = (bits & 0xFFFFFFFF) * number >> 32
    return scaled


def _combine(how: Recipe, element: Words, only: int | None) -> Words:
    """Combine all contributions to each element, or return one rank's, as bits. element: hashes."""
    if how.kind is RecipeKind.COPIED:
        return element
    rank = _below(element, how.ranks)
    total = np.full_like(element, how.identity)
    if only is not None:
        position = only - rank
        position[rank > only] += how.ranks
        part = _part(how, element, _draw(element, np.full_like(element, only)), position)
        total = np.where(position < how.window, _add(how, total, part), np.uint64(how.identity))
    else:
        for place in range(how.window):
            part = _part(how, element, _draw(element, rank), np.uint64(place))
            if how.odd > 1:
                part *= 1 + (rank & 1) * (how.odd - 1)
            total = _add(how, total, part)
            rank += 1
            rank[rank == how.ranks] = 0
    return _finish(how, element, total)


def _part(how: Recipe, element: Words, x: Words, position: Words | np.uint64) -> Words:
    """Make a contribution of random bits x, in the form that `_add` combines."""
    sign = x >> 63
    match how.kind:
        case RecipeKind.SUM:
            return np.bitwise_and(x, (1 << how.bits) - 1, out=x)
        case RecipeKind.PRODUCT:
            return x | 1
        case RecipeKind.FLOAT_SUM:
            if how.alike:
                sign = element & 1
            x &= (1 << how.bits) - 1
            x += 1
            x ^= -sign  # with the next line: the negative, in two's complement
            x += sign
            return x
        case RecipeKind.FLOAT_PRODUCT:
            # The difference of the factor's bits from those of 1.0. Multiplication by a power of two adds
            # exponents and signs, which is a sum of bits, modulo the width.
            power = ((x >> 62 & 1) * 2 - 1 << how.mantissa) * (position < how.powers)
            factor: Words = (sign << how.width - 1) + power + (x & (1 << how.mantissa) - 1) * (position == 0)
            return factor
    if not how.mantissa:
        return x & (1 << how.width) - 1
    exponent = 1 + _below(x >> 31, how.choices)
    magnitude = (exponent << how.mantissa) + (x & (1 << how.mantissa) - 1)
    return ordered(magnitude + (sign << how.width - 1), how.width)


def _add(how: Recipe, total: Words, part: Words) -> Words:
    if how.kind is RecipeKind.PRODUCT:
        return np.multiply(total, part, out=total)
    if how.kind is RecipeKind.EXTREME:
        return (np.minimum if how.minimum else np.maximum)(total, part, out=total)
    return np.add(total, part, out=total)


def _finish(how: Recipe, element: Words, total: Words) -> Words:
    """Convert a combination to the element's bits."""
    match how.kind:
        case RecipeKind.SUM if how.divisor > 1:
            total = (total & (1 << how.width) - 1) // how.divisor
        case RecipeKind.EXTREME if how.mantissa:
            negative = ~total >> how.width - 1 & 1
            total = total ^ (-negative | 1 << how.width - 1)
        case RecipeKind.EXTREME if how.signed:
            total = total ^ 1 << how.width - 1
        case RecipeKind.FLOAT_SUM:
            # A double holds the integer, normalised, in a layout that differs by two shifts.
            number = total.view(np.int64)
            bits = np.abs(number).astype(np.float64).view(np.uint64) >> 52 - how.mantissa
            exponent = _below(element >> 32, how.choices) + (how.low + how.shift - 1023) % 2**64
            bits += (exponent << how.mantissa) + how.extra
            bits += total >> 63 << how.width - 1
            bits[number == 0] = 0
            total = bits
    return total


def ordered(bits: Words, width: int) -> Words:
    """Return keys in the order of the floating-point numbers with these bits."""
    negative = bits >> width - 1
    keys: Words = (bits ^ (-negative | 1 << width - 1)) & (1 << width) - 1
    return keys
