"""What a block's function may know of where it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from runner.comm import Array
from runner.partition import Shape


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

        The same number whatever rank or device holds the cell: the SplitMix64 generator
        (Steele, Lea and Flood, OOPSLA 2014) at position `index` of the stream `seed`.
        """
        with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the generator
            start = _mix(np.array([seed % 2**64], np.uint64))
            state = self._index() * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int(start[0]))
            bits = _mix(state)
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, seed: int = 0) -> Array:
        """One float64 of the standard normal distribution for each own cell (Box and Muller, 1958).

        As `uniform`, up to the last bits of the device's own log and cos.
        """
        radius = self.xp.sqrt(-2.0 * self.xp.log1p(-self.uniform(2 * seed)))
        return radius * self.xp.cos(2.0 * math.pi * self.uniform(2 * seed + 1))

    def _index(self) -> Array:
        """Position of each own cell in the whole array, in C order."""
        index = self.xp.zeros((1,) * len(self.shape), np.uint64)
        for axis, (first, count) in enumerate(zip(self.offset, self.block, strict=True)):
            stride = math.prod(self.shape[axis + 1 :])
            along = self.xp.arange(first, first + count, dtype=np.uint64) * np.uint64(stride)
            index = index + along.reshape((1,) * axis + (-1,) + (1,) * (len(self.shape) - axis - 1))
        return index


def _mix(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
