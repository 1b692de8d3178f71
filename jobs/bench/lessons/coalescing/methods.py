"""Strided reads and a plain copy of a buffer, by a kernel and by NumPy, and the check of the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from jobs import kernels
from jobs.bench.lessons import pseudorandom
from jobs.bench.lessons.coalescing.access import Access, shifted
from jobs.bench.lessons.protocol import Context
from jobs.measure import check
from jobs.measure.timers import gated_event_seconds, sampled_host_seconds

THREADS, ELEMENTS_PER_THREAD = 256, 8


class Reads(Protocol):
    """piece: elements that memory moves together. pieces: their name. lanes: of a warp; 0 on a CPU.

    cache: bytes of the last-level cache, 0 if unknown.
    """

    piece: int
    pieces: str
    lanes: int
    cache: int

    def copy(self) -> float:
        """Return median seconds of a copy of the whole buffer."""

    def gather(self, access: Access) -> float:
        """Return median seconds of one access."""

    def mismatches(self, access: Access) -> int:
        """Return the number of wrong elements after one access into poisoned memory."""


class GpuReads:
    piece, pieces, lanes = 8, "sectors", 32

    def __init__(self, context: Context, elements: int) -> None:
        self.context, self.box, self.gpu = context, context.required_box, context.gpu
        self.cache = self.box.gpus[self.gpu].cache
        self.stream = self.box.stream(self.gpu)
        self.memory = [self.box.allocate("device", 4 * elements, self.gpu) for _ in range(2)]
        self.source, self.target = (self.box.array(memory).view(np.uint32) for memory in self.memory)
        self.strided = kernels.load("strided.cu", kernels.instance("strided", ELEMENTS_PER_THREAD))
        pseudorandom.fill(context.world.xp, self.source)
        context.world.backend.synchronize()

    def copy(self) -> float:
        source, target = self.memory
        return self._seconds(lambda turn: self.box.copy(target, source, target.nbytes, self.stream))

    def gather(self, access: Access) -> float:
        return self._seconds(lambda turn: self._launch(shifted(access, turn, self.piece)))

    def mismatches(self, access: Access) -> int:
        check.poison(self.box.array(self.memory[1]))
        self.context.world.backend.synchronize()
        self._launch(access)
        self.box.synchronize(self.stream)
        return count_mismatches(self.context.world.xp, self.target, access)

    def _seconds(self, issue: Callable[[int], None]) -> float:
        return gated_event_seconds(self.box, self.gpu, self.stream, issue, self.context.median)

    def _launch(self, access: Access) -> None:
        words = np.array([access.count, access.stride, access.first], np.uint64)
        blocks = math.ceil(access.count / (THREADS * ELEMENTS_PER_THREAD))
        with self.box.on(self.gpu):
            self.strided((blocks,), (THREADS,), (self.source, self.target, *words), stream=self.stream)


class CpuReads:
    piece, pieces, lanes, cache = 16, "cache lines", 0, 0

    def __init__(self, context: Context, elements: int) -> None:
        context.require_host_memory(2 * 4 * elements)
        self.context = context
        self.source, self.target = (np.zeros(elements, np.uint32) for _ in range(2))
        pseudorandom.fill(np, self.source)

    def copy(self) -> float:
        return self._seconds(lambda turn: np.copyto(self.target, self.source))

    def gather(self, access: Access) -> float:
        return self._seconds(lambda turn: self._read(shifted(access, turn, self.piece)))

    def mismatches(self, access: Access) -> int:
        check.poison(self.target.view(np.uint8))
        self._read(access)
        return count_mismatches(np, self.target, access)

    def _read(self, access: Access) -> None:
        apart = self.source[access.first :: access.stride]
        np.copyto(self.target[: access.count], apart[: access.count])

    def _seconds(self, read: Callable[[int], None]) -> float:
        turn = itertools.count()
        return self.context.median(lambda: sampled_host_seconds(lambda: read(next(turn))))


def count_mismatches(xp: Any, target: Any, access: Access) -> int:
    """Count the elements that are not those which the access reads from a filled buffer."""

    def source_of(place: Any) -> Any:
        return place * np.uint64(access.stride) + np.uint64(access.first)

    return pseudorandom.count_mismatches(xp, target[: access.count], source_of)[0]
