"""NumPy on the host."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.device.api import Device, NotCapturable, Shortage
from meshrun.runner.region import Array, Shape
from meshrun.runner.system.host_memory import free_host_memory, keep_freed_memory

if TYPE_CHECKING:
    from meshrun.runner.device.copy_streams import CopyStreams

PAGE, LINE = 4096, 64  # bytes, of memory and of a cache
SPREAD = 39  # lines from one array to the next: any number of them is spread evenly (64 / golden ratio)


class CpuBackend:
    """NumPy in host memory; every call is synchronous."""

    xp: ModuleType = np
    asynchronous = False
    stream = None
    null_stream = None

    def __init__(self) -> None:
        self.device = Device(kind="cpu", name=_processor())
        self._made = 0
        keep_freed_memory()

    def new_stream(self) -> None:
        pass

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array; those of more than a page begin at different places of their pages.

        A kernel reads and writes the same cell of many arrays. At the same place of a page, all of them would
        share the few lines of one set of the first cache, and a read would wait for the write before it.
        """
        size = math.prod(shape) * dtype.itemsize
        if size <= PAGE:
            return np.empty(shape, dtype)
        self._made += 1
        memory = np.empty(size + PAGE, np.uint8)
        first = (self._made * SPREAD * LINE - memory.ctypes.data) % PAGE
        return memory[first : first + size].view(dtype).reshape(shape)

    host_empty = empty

    def upload(self, host: np.ndarray[Any, Any], device: Array) -> None:
        device[...] = host

    def download(self, device: Array, host: np.ndarray[Any, Any]) -> None:
        host[...] = device

    def keep_row(self, row: Array, kept: Array, host: np.ndarray[Any, Any] | None, moves: Array) -> None:
        kept[...] = row
        if host is not None:
            host[...] = row
        if moves.size:
            row[moves[1]] = kept[moves[0]]

    def join(self) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed(self, begin: float, end: float) -> float:
        return end - begin

    def passed(self, mark: Any) -> None:
        pass

    def beside(self, mark: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def free_memory(self) -> int:
        return free_host_memory()

    def release_memory(self) -> None:
        """NumPy keeps none."""

    def shortage(self, failure: BaseException) -> Shortage | None:
        return None  # a CPU computes in the host's memory, where Linux promises more than there is

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise NotCapturable("a CPU queues no work")

    def copy_rate(self) -> float:
        source = np.ones(1 << 21)  # 16 MiB: larger than one core's share of most caches, takes milliseconds
        target = source.copy()
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            np.copyto(target, source)
            times.append(time.perf_counter() - begin)
        return 2 * source.nbytes / min(times)

    def copy_streams(self) -> CopyStreams:
        raise NotImplementedError("a CPU computes in host memory, without copies")


@functools.cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else os.uname().machine
