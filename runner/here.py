"""What a block's function may know of where it is."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from runner import philox
from runner.comm import Array
from runner.errors import UserError
from runner.partition import Shape

UNIFORM, RADIUS, ANGLE = range(3)  # streams of a seed


@dataclass(frozen=True)
class Here:
    """The place of one call's block.

    rank, size, host: which rank of how many computes it, where.
    offset: of the block's first own cell (after the halo) in the whole array, per axis.
    block: shape of the block's own cells. shape: of the whole array.
    stream: the CUDA stream to issue work to; None on a CPU. xp: numpy or cupy.
    """

    rank: int
    size: int
    host: str
    offset: Shape
    block: Shape
    shape: Shape
    stream: Any
    xp: ModuleType

    def uniform(self, seed: int = 0) -> Array:
        """One float64 in [0, 1) for each own cell, from the cell's place in the whole array.

        The same bits whatever rank or device holds the cell. The whole array has what NumPy makes of
        `Generator(Philox(key=seed)).random(shape)`. Numbers of two seeds are independent.
        seed: 0 to 2^64 - 1; UserError for another.
        """
        return self._fractions(seed, UNIFORM)

    def normal(self, seed: int = 0) -> Array:
        """One float64 of the standard normal distribution for each own cell (Box and Muller, 1958).

        As `uniform`, but for the last bits of the device's own logarithm and cosine; independent of what
        that makes of any seed. No number is beyond 8.6.
        """
        xp, radius = self.xp, self._fractions(seed, RADIUS)
        xp.negative(radius, out=radius)
        xp.log1p(radius, out=radius)  # of more than -1
        radius *= -2.0
        xp.sqrt(radius, out=radius)
        angle = self._fractions(seed, ANGLE)
        angle *= 2.0 * math.pi
        xp.cos(angle, out=angle)
        radius *= angle
        return radius

    def _fractions(self, seed: int, stream: int) -> Array:
        try:
            whole = operator.index(seed)
        except TypeError:
            whole = -1
        if not 0 <= whole < 2**64:
            raise UserError(
                "a seed of random numbers is a whole number of 64 bits", got=seed, expected="0 to 2^64 - 1"
            )
        return philox.fractions(self.xp, (whole, stream), self.offset, self.block, self.shape)
