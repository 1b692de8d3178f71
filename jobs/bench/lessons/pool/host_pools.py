"""Host memory from malloc and from a pool of freed buffers; both are `runner.device.raw.allocators.Pool`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

PoolArray = np.ndarray[Any, Any]
PAGE = 4096
SMALLEST = 64  # bytes; sizes of buffers are multiples of it
STEPS = 4  # buffer sizes per doubling


class HostPool:
    """Common part of both."""

    def __init__(self) -> None:
        self._held = 0

    def address(self, handle: PoolArray) -> int:
        return handle.ctypes.data

    def settle(self, handle: PoolArray | None = None) -> None:
        if handle is not None:  # the system maps and clears a page when it is first written
            handle[::PAGE] = 0

    def reserved(self) -> int:
        return self._held


class Malloc(HostPool):
    """np.empty: malloc, which takes pages from the system and returns those of large buffers at once."""

    label = "np.empty"

    def allocate(self, nbytes: int) -> PoolArray:
        self._held += nbytes
        return np.empty(nbytes, np.uint8)

    def release(self, handle: PoolArray) -> None:
        self._held -= handle.nbytes
        # The caller has the last reference; the memory is freed with it.

    def trim(self) -> None:
        pass

    def close(self) -> None:
        pass


class FreeLists(HostPool):
    """Keep freed buffers in a list for each size; sizes are rounded up to a few.

    most: bytes to hold; beyond that, free buffers are returned to the system.
    """

    label = "free lists"

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._free: defaultdict[int, list[PoolArray]] = defaultdict(list)

    def allocate(self, nbytes: int) -> PoolArray:
        size = rounded(nbytes)
        free = self._free[size]
        if free:
            return free.pop()
        if self._held + size > self._most:
            self.trim()
        self._held += size
        return np.empty(size, np.uint8)

    def release(self, handle: PoolArray) -> None:
        self._free[handle.nbytes].append(handle)

    def trim(self) -> None:
        self._held -= sum(size * len(free) for size, free in self._free.items())
        self._free.clear()

    def close(self) -> None:
        self.trim()


def rounded(nbytes: int) -> int:
    """Return the size of the buffer for `nbytes`: less than a STEPS-th larger, or a multiple of SMALLEST."""
    step = max((1 << (nbytes - 1).bit_length()) // (2 * STEPS), SMALLEST)
    return -(-nbytes // step) * step
