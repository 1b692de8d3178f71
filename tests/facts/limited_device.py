"""A queued device whose allocator refuses more than so many bytes at once, as a GPU's memory does.

`backend.xp.empty` and `backend.empty` count what is alive: an array that a failed call leaves behind shows.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from queued_device import QueuedBackend

from meshrun.runner.device.api import Shortage, bytes_needed


class OutOfMemoryError(MemoryError):
    """With CuPy's sentence."""


class LimitedBackend(QueuedBackend):
    """limit: bytes that may be alive together. memory: what is free, as far as planning knows."""

    def __init__(self, limit: int, *, memory: int = 1 << 30) -> None:
        super().__init__(memory=memory)
        self.limit, self.live, self.refused = limit, 0, 0
        self.xp: Any = Counting(self)

    def empty(self, shape: Any, dtype: Any) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if self.live + size > self.limit:
            self.refused += 1
            raise OutOfMemoryError(
                f"Out of memory allocating {size:,} bytes (allocated so far: {self.live:,} bytes)."
            )
        memory = super().empty(shape, dtype)
        self.live += size
        weakref.finalize(memory, self._free, size)
        return memory

    def _free(self, size: int) -> None:
        self.live -= size

    def shortage(self, failure: BaseException) -> Shortage | None:
        if not isinstance(failure, OutOfMemoryError):
            return None
        return Shortage(bytes_needed(str(failure)), self.limit - self.live, self.limit)


class Counting:
    """NumPy, whose `empty` is the device's."""

    def __init__(self, backend: LimitedBackend) -> None:
        self.empty = backend.empty

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
