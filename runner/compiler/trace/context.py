"""The `here` of a traced function: places of cells, and random numbers that belong to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.job import philox
from meshrun.runner.job.block_context import ANGLE, RADIUS, UNIFORM, checked_word
from meshrun.runner.region import Shape

WORDS = 4  # that one counter gives
OF_A_BLOCK = ("rank", "size", "host", "offset", "block", "stream")


class TracedContext(ABC):
    """What a traced function gets in place of `BlockContext`.

    shape: of the whole array. xp: of the traced function. step: the number of the step.
    """

    def __init__(self, shape: Shape, xp: Any, step: Timed) -> None:
        self.shape, self.xp, self.step = shape, xp, step

    @abstractmethod
    def places(self, axis: int) -> Any:
        """Return the places of the cells along an axis of cells: int64, one element along other axes."""

    @property
    @abstractmethod
    def axes(self) -> int:
        """The number of axes of cells."""

    def __getattr__(self, name: str) -> Any:
        if name in OF_A_BLOCK:
            raise NotTraceable(
                f"uses here.{name}: what it computes depends on how the array is cut",
                "here.coordinates(), the places of cells in the whole array",
            )
        raise AttributeError(f"'BlockContext' object has no attribute {name!r}")

    def coordinates(self) -> tuple[Any, ...]:
        """Return the places of all cells along each axis."""
        found = [self.places(axis) for axis in range(self.axes)]
        for axis in range(self.axes, len(self.shape)):
            shape = [-1 if other == axis else 1 for other in range(len(self.shape))]
            found.append(np.arange(self.shape[axis]).reshape(shape))
        return tuple(found)

    def uniform(self, seed: Any = 0, step: Any = 0) -> Any:
        return self._fractions(seed, step, UNIFORM)

    def normal(self, seed: Any = 0, step: Any = 0) -> Any:
        radius = np.sqrt(np.log1p(-self._fractions(seed, step, RADIUS)) * -2.0)
        return radius * np.cos(self._fractions(seed, step, ANGLE) * (2.0 * math.pi))

    def _fractions(self, seed: Any, step: Any, stream: int) -> Any:
        """Return the fraction of each cell: `philox.fractions`, by operations of one cell."""
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        number: Any = 0
        for places, stride in zip(self.coordinates(), strides, strict=True):
            number = number + places * stride
        place = number.astype(np.uint64)
        counters = [(place >> np.uint64(2)) + np.uint64(1)]
        counters += [np.zeros_like(place) for _ in range(WORDS - 1)]
        counters[1][...] = checked_word("step", step)
        words = philox.encrypt(np, counters, (checked_word("seed", seed), stream))
        word, last = words[0], place & np.uint64(WORDS - 1)
        for turn in range(1, WORDS):
            word = np.where(last == np.uint64(turn), words[turn], word)
        return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
