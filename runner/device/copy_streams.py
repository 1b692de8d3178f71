"""Host-device copies that overlap a GPU's kernels: one stream per direction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from meshrun.runner.region import Array, HostArray

Mark = Any  # cupy.cuda.Event
UP, DOWN = cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost


class CopyStreams:
    """Host-device copies in both directions that overlap the kernels of GPU `index` in stream `computing`.

    Threads other than the computing one may call only `passed`, after `join`.
    """

    def __init__(self, index: int, computing: cupy.cuda.Stream) -> None:
        self._index, self._computing = index, computing
        self._up, self._down = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._origin = self.mark()
        self._origin.synchronize()
        self._began = time.perf_counter()

    def join(self) -> None:
        """Make the rank's GPU current in the calling thread."""
        cupy.cuda.Device(self._index).use()

    def mark(self) -> Mark:
        """Record an event in the compute stream."""
        return self._mark(self._computing)

    def wait(self, mark: Mark) -> None:
        """Make later work in the compute stream wait for `mark`."""
        self._computing.wait_event(mark)

    def send(self, host: HostArray, device: Array) -> tuple[Mark, Mark]:
        """Copy to the device; returns events at the copy's begin and end."""
        return self._copy(self._up, device.data.ptr, host.ctypes.data, host.nbytes, UP)

    def fetch(self, device: Array, host: HostArray, after: Mark) -> tuple[Mark, Mark]:
        """Copy from the device after `after`; returns events at begin and end. Keep both arrays until
        then."""
        self._down.wait_event(after)
        return self._copy(self._down, host.ctypes.data, device.data.ptr, host.nbytes, DOWN)

    def passed(self, mark: Mark) -> float:
        """Wait until the device has passed `mark`; returns when it did, on the clock `time.perf_counter`."""
        mark.synchronize()
        return self._began + float(cupy.cuda.get_elapsed_time(self._origin, mark)) / 1e3

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """An NVTX range, if CuPy was built with NVTX."""
        if not cupy.cuda.nvtx.available:
            yield
            return
        cupy.cuda.nvtx.RangePush(name)
        try:
            yield
        finally:
            cupy.cuda.nvtx.RangePop()

    def _copy(
        self, stream: cupy.cuda.Stream, target: int, source: int, nbytes: int, kind: int
    ) -> tuple[Mark, Mark]:
        begin = self._mark(stream)
        cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)
        return begin, self._mark(stream)

    def _mark(self, stream: cupy.cuda.Stream) -> Mark:
        event = cupy.cuda.Event(block=True)  # a waiting thread sleeps instead of spinning
        event.record(stream)
        return event
