"""Strided reads and a plain copy of the same buffer, by a kernel and by NumPy; and whether they are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from jobs import kernels
from jobs.bench.lessons.coalescing.access import Access, turned
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.timers import by_clock, by_marks, refuse_beyond
from jobs.measure import check

THREADS, EACH = 256, 8  # EACH: elements that a thread reads at once
ODD = 0x9E3779B1  # times this, modulo 2^32, numbers stay different and differ in all bits
BLOCK = 1 << 22  # elements filled and compared at a time


class Reads(Protocol):
    """grain: elements that memory moves together. pieces: what they are called. lanes: of a warp, 0 without.

    cache: bytes of the last cache before the memory, 0 where that is not known.
    """

    grain: int
    pieces: str
    lanes: int
    cache: int

    def copy(self) -> float:
        """Median seconds of a copy of the whole buffer."""

    def gather(self, access: Access) -> float:
        """Median seconds of one access."""

    def wrong(self, access: Access) -> int:
        """Do it once, into spoilt memory; how many elements are not what they must be."""


class GpuReads:
    grain, pieces, lanes = 8, "sectors", 32

    def __init__(self, stage: Stage, elements: int) -> None:
        self.stage, self.box, self.gpu = stage, stage.gpus, stage.gpu
        self.cache = self.box.gpus[self.gpu].cache
        self.stream = self.box.stream(self.gpu)
        self.memory = [self.box.allocate("device", 4 * elements, self.gpu) for _ in range(2)]
        self.source, self.target = (self.box.array(memory).view(np.uint32) for memory in self.memory)
        self.strided = kernels.load("strided.cu", kernels.instance("strided", EACH))
        fill(stage.world.xp, self.source)
        stage.world.backend.synchronize()

    def copy(self) -> float:
        source, target = self.memory
        return by_marks(
            self.stage, self.stream, lambda turn: self.box.copy(target, source, target.nbytes, self.stream)
        )

    def gather(self, access: Access) -> float:
        return by_marks(self.stage, self.stream, lambda turn: self._launch(turned(access, turn, self.grain)))

    def wrong(self, access: Access) -> int:
        check.poison(self.box.array(self.memory[1]))
        self.stage.world.backend.synchronize()
        self._launch(access)
        self.box.synchronize(self.stream)
        return differing(self.stage.world.xp, self.target, access)

    def _launch(self, access: Access) -> None:
        words = np.array([access.count, access.stride, access.first], np.uint64)
        blocks = math.ceil(access.count / (THREADS * EACH))
        with self.box.on(self.gpu):
            self.strided((blocks,), (THREADS,), (self.source, self.target, *words), stream=self.stream)


class CpuReads:
    grain, pieces, lanes, cache = 16, "cache lines", 0, 0

    def __init__(self, stage: Stage, elements: int) -> None:
        refuse_beyond(stage, 2 * 4 * elements)
        self.stage = stage
        self.source, self.target = (np.zeros(elements, np.uint32) for _ in range(2))
        fill(np, self.source)

    def copy(self) -> float:
        return self._seconds(lambda turn: np.copyto(self.target, self.source))

    def gather(self, access: Access) -> float:
        return self._seconds(lambda turn: self._read(turned(access, turn, self.grain)))

    def wrong(self, access: Access) -> int:
        check.poison(self.target.view(np.uint8))
        self._read(access)
        return differing(np, self.target, access)

    def _read(self, access: Access) -> None:
        apart = self.source[access.first :: access.stride]
        np.copyto(self.target[: access.count], apart[: access.count])

    def _seconds(self, read: Callable[[int], None]) -> float:
        turn = iter(range(1 << 62))
        return self.stage.median(lambda: by_clock(lambda: read(next(turn))))


def fill(xp: Any, words: Any) -> None:
    """Each element made of its index."""
    for begin, end in _blocks(words.size):
        words[begin:end] = (xp.arange(begin, end, dtype=np.uint64) * ODD).astype(np.uint32)


def differing(xp: Any, words: Any, access: Access) -> int:
    """How many of the first `count` elements are not those that the access reads from filled memory."""
    count = 0
    for begin, end in _blocks(access.count):
        place = access.first + xp.arange(begin, end, dtype=np.uint64) * access.stride
        count += int(xp.count_nonzero(words[begin:end] != (place * ODD).astype(np.uint32)))
    return count


def _blocks(elements: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, elements, BLOCK):
        yield begin, min(begin + BLOCK, elements)
