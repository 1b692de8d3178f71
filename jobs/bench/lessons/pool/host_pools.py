"""Host memory from the C library, and from a pool of freed buffers: the protocol of `runner.Pool`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

Buffer = np.ndarray[Any, Any]
PAGE = 4096
SMALLEST = 64  # bytes: what buffers' sizes are multiples of
STEPS = 4  # sizes of buffers in each doubling


class HostPool:
    """What both ways have in common."""

    def __init__(self) -> None:
        self._held = 0

    def address(self, handle: Buffer) -> int:
        return handle.ctypes.data

    def settle(self, handle: Buffer | None = None) -> None:
        _touch(handle)

    def reserved(self) -> int:
        return self._held


class Malloc(HostPool):
    """np.empty: malloc, which asks the system for pages, and gives large buffers' back at once."""

    label = "np.empty"

    def allocate(self, nbytes: int) -> Buffer:
        self._held += nbytes
        return np.empty(nbytes, np.uint8)

    def release(self, handle: Buffer) -> None:
        self._held -= handle.nbytes
        # The caller's is the last reference; with it goes the memory.

    def trim(self) -> None:
        pass

    def close(self) -> None:
        pass


class FreeLists(HostPool):
    """Freed buffers wait in a list of their size for the next who asks; sizes are rounded up to a few.

    most: bytes to hold; when more would be needed, what waits is given back.
    """

    label = "free lists"

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)

    def allocate(self, nbytes: int) -> Buffer:
        size = rounded(nbytes)
        waiting = self._free[size]
        if waiting:
            return waiting.pop()
        if self._held + size > self._most:
            self.trim()
        self._held += size
        return np.empty(size, np.uint8)

    def release(self, handle: Buffer) -> None:
        self._free[handle.nbytes].append(handle)

    def trim(self) -> None:
        self._held -= sum(size * len(waiting) for size, waiting in self._free.items())
        self._free.clear()

    def close(self) -> None:
        self.trim()


def rounded(nbytes: int) -> int:
    """The size of the buffer for `nbytes`: less than a STEPS-th larger, or a multiple of SMALLEST."""
    step = max((1 << (nbytes - 1).bit_length()) // (2 * STEPS), SMALLEST)
    return -(-nbytes // step) * step


def _touch(buffer: Buffer | None) -> None:
    """The system gives a page its place, and zeroes it, when it is first written to."""
    if buffer is not None:
        buffer[::PAGE] = 0
