"""Strided reads and a plain copy of a buffer, by a kernel and by NumPy, and the check of the data."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import pseudorandom
from meshrun.jobs.bench.lessons.devices import GpuDevice, HostDevice
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.measure import check

THREADS, ELEMENTS_PER_THREAD = 256, 8


@dataclass(frozen=True)
class Access:
    """Read `count` elements of 4 bytes, `stride` apart from `first` on, and write them contiguously."""

    stride: int
    first: int
    count: int

    @property
    def useful(self) -> int:
        """Bytes of the elements read and written."""
        return 2 * 4 * self.count


def pieces(access: Access, size: int) -> int:
    """Count the different pieces that the reads touch."""
    if access.stride >= size:
        return access.count
    last = access.first + (access.count - 1) * access.stride
    return last // size - access.first // size + 1


def moved(access: Access, size: int) -> int:
    """Return the bytes that memory must move: each touched piece once, and the written bytes."""
    return 4 * size * pieces(access, size) + 4 * access.count


def pieces_of_load(access: Access, size: int, lanes: int = 32) -> int:
    """Count the pieces that one load of a warp touches; its first lane reads element `first`."""
    return len({(access.first + lane * access.stride) // size for lane in range(lanes)})


def ceiling(access: Access, size: int) -> float:
    """Return useful over moved bytes: the access's best rate as a fraction of a plain copy's."""
    return access.useful / moved(access, size)


def shifted(access: Access, turn: int, size: int) -> Access:
    """Shift the access, so that repetitions do not find their pieces in a cache.

    Strides below a piece touch every piece anyway, and are not shifted.
    """
    if access.stride <= size:
        return access
    return Access(access.stride, access.first + turn * size % access.stride, access.count)


class GpuReads(GpuDevice):
    """Reads of a buffer by a kernel. piece: elements that memory moves together. pieces: their name.

    lanes: of a warp. cache: bytes of the last-level cache.
    """

    piece, pieces, lanes = 8, "sectors", 32

    def __init__(self, context: Context, elements: int) -> None:
        super().__init__(context)
        self.cache = self.box.gpus[self.gpu].cache
        self.memory = [self.box.allocate("device", 4 * elements, self.gpu) for _ in range(2)]
        self.source, self.target = (self.box.array(memory).view(np.uint32) for memory in self.memory)
        self.strided = kernels.load("strided.cu", kernels.instance("strided", ELEMENTS_PER_THREAD))
        pseudorandom.fill(context.world.xp, self.source)
        context.world.backend.synchronize()

    def copy(self) -> float:
        """Return median seconds of a copy of the whole buffer."""
        source, target = self.memory
        return self.seconds(lambda: self.box.copy(target, source, target.nbytes, self.stream))

    def gather(self, access: Access) -> float:
        """Return median seconds of one access."""
        turn = itertools.count()
        return self.seconds(lambda: self._launch(shifted(access, next(turn), self.piece)))

    def mismatches(self, access: Access) -> int:
        """Return the number of wrong elements after one access into poisoned memory."""
        check.poison(self.box.array(self.memory[1]))
        self.settle()
        self._launch(access)
        self.settle()
        return count_mismatches(self.context.world.xp, self.target, access)

    def _launch(self, access: Access) -> None:
        words = np.array([access.count, access.stride, access.first], np.uint64)
        blocks = math.ceil(access.count / (THREADS * ELEMENTS_PER_THREAD))
        with self.box.on(self.gpu):
            self.strided((blocks,), (THREADS,), (self.source, self.target, *words), stream=self.stream)


class CpuReads(HostDevice):
    """Reads of a buffer by NumPy: as GpuReads, without warps and of unknown cache."""

    piece, pieces, lanes, cache = 16, "cache lines", 0, 0

    def __init__(self, context: Context, elements: int) -> None:
        super().__init__(context)
        context.require_host_memory(2 * 4 * elements)
        self.source, self.target = (np.zeros(elements, np.uint32) for _ in range(2))
        pseudorandom.fill(np, self.source)

    def copy(self) -> float:
        return self.seconds(lambda: np.copyto(self.target, self.source))

    def gather(self, access: Access) -> float:
        turn = itertools.count()
        return self.seconds(lambda: self._read(shifted(access, next(turn), self.piece)))

    def mismatches(self, access: Access) -> int:
        check.poison(self.target.view(np.uint8))
        self._read(access)
        return count_mismatches(np, self.target, access)

    def _read(self, access: Access) -> None:
        apart = self.source[access.first :: access.stride]
        np.copyto(self.target[: access.count], apart[: access.count])


Reads = GpuReads | CpuReads


def count_mismatches(xp: Any, target: Any, access: Access) -> int:
    """Count the elements that are not those which the access reads from a filled buffer."""

    def source_of(place: Any) -> Any:
        return place * np.uint64(access.stride) + np.uint64(access.first)

    return pseudorandom.count_mismatches(xp, target[: access.count], source_of)[0]
