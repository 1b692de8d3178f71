"""Sums of floats as sums of integers: no order of the cells, and no number of ranks, changes their bits.

Each float is cut into slices of `bits` binary digits, counted from the largest float of all. A slice is an
integer, and so few digits are in it that doubles add all slices exactly. Together the slices have at least 64
digits, 11 more than a double.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.region import Array
from meshrun.runner.world.world import World

DIGITS = 64  # of the largest float, at least, that are added exactly
HOST_SLAB = 1 << 16  # cells that are counted at a time
DEVICE_SLAB = 1 << 26  # likewise on a device, whose launches take long
MANTISSA = 52  # digits of a double; a sum of integers below 2^52 is exact


@dataclass(frozen=True)
class FixedPoint:
    """How floats are cut into slices; the same on every rank.

    exponent: every finite float is below 2^exponent. bits: of a slice. odd: whether there are infinities or
    NaNs, which are added apart.
    """

    exponent: int
    bits: int
    odd: bool

    @property
    def slices(self) -> int:
        """Number of arrays that `split` yields."""
        return -(-DIGITS // self.bits) + self.odd

    def split(self, xp: Any, floats: Array) -> Iterator[Array]:
        """Yield the slices of floats, the first digits first, as doubles."""
        floats = floats.astype(np.float64)
        finite = xp.isfinite(floats)
        rest = xp.ldexp(xp.where(finite, floats, 0.0), -self.exponent)
        for _ in range(self.slices - self.odd):
            rest = xp.ldexp(rest, self.bits)
            part = xp.rint(rest)
            rest -= part
            yield part
        if self.odd:
            yield xp.where(finite, 0.0, floats)

    def add(self, xp: Any, sums: Array, bins: Array, floats: Array) -> None:
        """Add the slices of floats to the sums of their bins: an array of shape (slices, bins)."""
        for number, part in enumerate(self.split(xp, floats)):
            sums[number] += own_sums(xp, bins, part, sums.shape[1])

    def join(self, xp: Any, sums: Sequence[Array]) -> Array:
        """Return the sums of floats of the sums of their slices, as doubles."""
        total = xp.zeros(sums[0].shape, np.float64)
        for number in reversed(range(self.slices - self.odd)):
            total = total + xp.ldexp(sums[number], self.exponent - self.bits * (number + 1))
        return total + sums[-1] if self.odd else total


def fixed_point(world: World, floats: Array, terms: int = 1) -> FixedPoint:
    """Return how to cut this rank's floats and those of the others. Collective.

    terms: how many terms of at most its size each float gives.
    """
    xp, own_largest, own_odd = world.xp, 0.0, False
    for part in slabs(xp, floats.size):
        some = floats[part].astype(np.float64)
        finite = xp.isfinite(some)
        own_odd = own_odd or not bool(finite.all())
        own_largest = max(own_largest, float(xp.abs(xp.where(finite, some, 0.0)).max()))
    of_ranks = world.control.allgather((own_largest, own_odd, int(floats.size)))
    count = sum(number for _, _, number in of_ranks)
    odd = any(is_odd for _, is_odd, _ in of_ranks)
    _, exponent = np.frexp(max(largest for largest, _, _ in of_ranks))
    return FixedPoint(int(exponent), MANTISSA - max(count * terms, 1).bit_length(), odd)


def binned_sums(world: World, bins: Array, floats: Array, length: int) -> Array:
    """Return the sum, over all ranks, of the floats of each bin, as doubles on every rank. Collective.

    bins: this rank's, from 0 to length - 1. floats: as many.
    """
    form = fixed_point(world, floats)
    sums = world.xp.zeros((form.slices, length), np.float64)
    for part in slabs(world.xp, bins.size):
        form.add(world.xp, sums, bins[part], floats[part])
    return form.join(world.xp, world.all_reduce(sums))


def own_sums(xp: Any, bins: Array, parts: Array, length: int) -> Array:
    """Return this rank's sum of the parts of each bin."""
    return xp.bincount(bins, parts, minlength=length) if bins.size else xp.zeros(length, np.float64)


def own_counts(xp: Any, bins: Array, length: int) -> Array:
    """Return the number of this rank's cells in each bin, as int64."""
    counts = xp.bincount(bins, minlength=length) if bins.size else xp.zeros(length, np.int64)
    return counts.astype(np.int64, copy=False)


def slabs(xp: Any, size: int) -> Iterator[slice]:
    """Yield slices of so many cells that what is computed of them fits the cache, or a part of a device."""
    most = HOST_SLAB if xp is np else DEVICE_SLAB
    for first in range(0, size, most):
        yield slice(first, min(first + most, size))
