"""Context of one call of a block's function: its place in the array, its rank, random numbers."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.job import philox
from meshrun.runner.region import Array, Shape

UNIFORM, RADIUS, ANGLE = range(3)  # streams of a seed


@dataclass(frozen=True)
class BlockContext:
    """Position of the block that a function is called on: a job's parameter `here`.

    Attributes
    ----------
    rank, size : int
        The rank that computes the block, and the number of ranks.
    host : str
        The rank's host.
    offset : tuple of int
        Index, per axis, of the block's first own cell (after the halo) in the whole array.
    block : tuple of int
        Shape of the block's own cells.
    shape : tuple of int
        Shape of the whole array.
    stream : cupy.cuda.Stream or None
        CUDA stream to issue work to; None on a CPU.
    xp : module
        numpy or cupy.
    step : int
        Number of the time step, from 0 on; 0 in one pass.

    Examples
    --------
    >>> @meshrun.map_blocks
    ... def noisy(block, here, *, seed: int = 0):
    ...     return block + 0.01 * here.normal(seed)
    """

    rank: int
    size: int
    host: str
    offset: Shape
    block: Shape
    shape: Shape
    stream: Any
    xp: ModuleType
    step: int = 0

    def coordinates(self) -> tuple[Array, ...]:
        """Return the places of the own cells in the whole array: int64, an array for each axis.

        That of axis k has the block's length along axis k and one element along the others, so that the
        arrays broadcast against each other and against the block.
        """
        axes = len(self.shape)
        found = []
        for axis, (first, length) in enumerate(zip(self.offset, self.block, strict=False)):
            places = self.xp.arange(first, first + length, dtype=np.int64)
            found.append(places.reshape([-1 if other == axis else 1 for other in range(axes)]))
        return tuple(found)

    def uniform(self, seed: int = 0, step: int = 0) -> Array:
        """Return one float64 in [0, 1) for each own cell, a function of the cell's index in the whole array.

        The bits do not depend on the rank or device that holds the cell: over the whole array they equal
        NumPy's `Generator(Philox(key=seed, counter=[0, step, 0, 0])).random(shape)`. Different seeds, and
        different steps, give independent numbers.

        Parameters
        ----------
        seed, step : int
            From 0 to 2^64 - 1.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            Of the shape `block`.

        Raises
        ------
        UserError
            For a seed or step outside of the range.
        """
        return self._fractions(seed, step, UNIFORM)

    def normal(self, seed: int = 0, step: int = 0) -> Array:
        """Return one float64 of the standard normal distribution for each own cell (Box and Muller, 1958).

        Reproducible like `uniform`, except for the last bits of the device's logarithm and cosine, and
        independent of its numbers for any seed. The magnitude is at most 8.6.

        Parameters
        ----------
        seed, step : int
            From 0 to 2^64 - 1.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            Of the shape `block`.

        Raises
        ------
        UserError
            For a seed or step outside of the range.
        """
        xp, radius = self.xp, self._fractions(seed, step, RADIUS)
        xp.negative(radius, out=radius)
        xp.log1p(radius, out=radius)  # of more than -1
        radius *= -2.0
        xp.sqrt(radius, out=radius)
        angle = self._fractions(seed, step, ANGLE)
        angle *= 2.0 * math.pi
        xp.cos(angle, out=angle)
        radius *= angle
        return radius

    def _fractions(self, seed: int, step: int, stream: int) -> Array:
        key, number = (checked_word("seed", seed), stream), checked_word("step", step)
        return philox.fractions(self.xp, key, self.offset, self.block, self.shape, number)


def checked_word(name: str, value: Any) -> Any:
    """Return the seed or the step of random numbers. Raises UserError for what is no 64-bit word."""
    if hasattr(value, "sample"):  # a number of the step, in a trace
        return value
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if not 0 <= whole < 2**64:
        raise UserError(
            f"the {name} of random numbers must be an unsigned 64-bit integer",
            got=value,
            expected="0 to 2^64 - 1",
        )
    return whole
