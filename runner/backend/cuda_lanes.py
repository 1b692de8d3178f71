"""Copies beside a GPU's kernels: a stream for each direction, and files that the GPU copies from itself."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from runner.backend import HostBytes, Mark, NotMapped
from runner.comm import Array

UP, DOWN = cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost
READ_ONLY = 8  # cudaHostRegisterReadOnly


class CudaLanes:
    """The copy engines of GPU `index`, beside the stream `computing`."""

    def __init__(self, index: int, computing: cupy.cuda.Stream) -> None:
        self._index, self._computing = index, computing
        self._up, self._down = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._origin = self.mark()
        self._origin.synchronize()
        self._began = time.perf_counter()

    def join(self) -> None:
        """For a thread of this rank: the rank's GPU is the one it works on."""
        cupy.cuda.Device(self._index).use()

    def mark(self) -> Mark:
        """A point in the work issued to the computing stream so far."""
        return self._mark(self._computing)

    def wait(self, mark: Mark) -> None:
        """What is computed from now on comes after `mark`."""
        self._computing.wait_event(mark)

    def send(self, host: HostBytes, device: Array) -> tuple[Mark, Mark]:
        """Copy to the device; its begin and end."""
        return self._copy(self._up, device.data.ptr, host.ctypes.data, host.nbytes, UP)

    def fetch(self, device: Array, host: HostBytes, after: Mark) -> tuple[Mark, Mark]:
        """Copy from the device once `after` is passed; its begin and end. Both arrays stay until then."""
        self._down.wait_event(after)
        return self._copy(self._down, host.ctypes.data, device.data.ptr, host.nbytes, DOWN)

    def passed(self, mark: Mark) -> float:
        """Return when the device has passed `mark`: when that was, on `time.perf_counter`."""
        mark.synchronize()
        return self._began + float(cupy.cuda.get_elapsed_time(self._origin, mark)) / 1e3

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """A range of this name for NVIDIA's profilers."""
        cupy.cuda.nvtx.RangePush(name)
        try:
            yield
        finally:
            cupy.cuda.nvtx.RangePop()

    def map(self, path: Path, offset: int, nbytes: int, *, writable: bool) -> Mapping:
        """Bytes of a file as host memory that the device copies from or to without a copy in between."""
        return Mapping(path, offset, nbytes, writable)

    def _copy(
        self, stream: cupy.cuda.Stream, target: int, source: int, nbytes: int, kind: int
    ) -> tuple[Mark, Mark]:
        begin = self._mark(stream)
        cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)
        return begin, self._mark(stream)

    def _mark(self, stream: cupy.cuda.Stream) -> Mark:
        event = cupy.cuda.Event(block=True)  # a thread that waits leaves its core to others
        event.record(stream)
        return event


class Mapping:
    """A part of a file in the page cache, its pages pinned.

    Each has addresses of its own, so that two that share a page, as neighbouring chunks do, can both
    be pinned. NotMapped where the file system does not let a device write to its pages (only those
    in memory do), or the mapping fails otherwise.
    """

    def __init__(self, path: Path, offset: int, nbytes: int, writable: bool) -> None:
        skipped = offset % mmap.ALLOCATIONGRANULARITY
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            with open(path, "r+b" if writable else "rb") as file:
                self._map = mmap.mmap(file.fileno(), skipped + nbytes, offset=offset - skipped, access=access)
        except (OSError, ValueError) as reason:
            raise NotMapped(str(reason)) from reason
        self._whole: Any = np.frombuffer(self._map, np.uint8)
        try:
            cupy.cuda.runtime.hostRegister(
                self._whole.ctypes.data, self._whole.nbytes, 0 if writable else READ_ONLY
            )
        except cupy.cuda.runtime.CUDARuntimeError as reason:
            self._whole = None
            self._map.close()
            raise NotMapped(str(reason)) from reason
        self.bytes: HostBytes = self._whole[skipped:]

    def close(self) -> None:
        """Give the pages back; nothing may be under way."""
        cupy.cuda.runtime.hostUnregister(self._whole.ctypes.data)
        del self.bytes
        self._whole = None
        self._map.close()
