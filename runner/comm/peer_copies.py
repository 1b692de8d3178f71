"""Copies into other ranks' memory by a GPU's copy engines, beside its kernels."""

from __future__ import annotations

import cupy

from runner.comm.api import Arrays
from runner.device.api import Mark

BEFORE_KERNELS = -5  # priority of a stream; CUDA takes the highest that there is


class PeerCopies:
    """A stream of copies from this GPU. Kernels stay in the caller's stream.

    arrays: of all ranks.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays, self._word = arrays, cupy.zeros(1, cupy.float32)
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=BEFORE_KERNELS)

    def follow(self) -> None:
        """Let later copies wait for all that the caller's stream has been given."""
        self._stream.wait_event(_event(cupy.cuda.get_current_stream()))

    def rows(self, target: int, source: int, pitch: int, width: int, rows: int) -> None:
        """Copy `rows` rows of `width` bytes. target, source: addresses; pitch: bytes between rows in both."""
        kind = cupy.cuda.runtime.memcpyDefault
        cupy.cuda.runtime.memcpy2DAsync(target, pitch, source, pitch, width, rows, kind, self._stream.ptr)

    def arrived(self) -> Mark:
        """Return a mark that is passed after all copies so far of all ranks. Collective."""
        before = cupy.cuda.get_current_stream()
        self._stream.use()
        try:
            self._arrays.all_reduce(self._word, "max")
        finally:
            before.use()
        return _event(self._stream)

    def wait(self, mark: Mark) -> None:
        """Let later work of the caller's stream wait for `mark`."""
        cupy.cuda.get_current_stream().wait_event(mark)


def _event(stream: cupy.cuda.Stream) -> cupy.cuda.Event:
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    return event
