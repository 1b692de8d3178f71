"""Hold streams behind a gate: work is queued while the gate is closed, and starts when it opens.

This excludes the time to queue the work, some microseconds per operation, from the measurement. The gate is a
kernel that spins on a word of pinned host memory (jobs/kernels/gate.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.runner.errors import RunError

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

# Most operations to queue behind a closed gate. A stream takes about a thousand, including events; then the
# host blocks, and would wait for the gate.
MAX_QUEUED = 200
TIMEOUT = 20_000_000_000  # clock cycles until a gate opens by itself, about ten seconds


class Gate:
    """A gate for any number of streams of this process; open except inside `closed`."""

    def __init__(self, box: Box, gpu: int) -> None:
        """gpu: the GPU near which its word of host memory is allocated."""
        self.box = box
        self._latch = box.allocate("pinned", 4096, gpu)
        self._words = box.host_array(self._latch)[:8].view(np.uint32)
        self._words[:] = 1, 0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the gate for the block; streams held inside continue at its end.

        Inside, nothing may wait for a GPU: do not allocate, copy pageable memory, create a stream or launch a
        kernel for the first time, including the gate's own.
        """
        self._words[:] = 0
        try:
            yield
        finally:
            self._words[0] = 1

    def hold(self, gpu: int, stream: Any) -> None:
        """Make later work on this stream of GPU `gpu` wait for the gate, if it is closed."""
        arguments = (np.uint64(self._latch.address), np.uint64(TIMEOUT))
        with self.box.on(gpu):
            kernels.load("gate.cu", "gate")((1,), (1,), arguments, stream=stream)

    def check(self) -> None:
        """Raise RunError if the gate opened by itself. Call it when the streams are done."""
        if self._words[1]:
            raise RunError("the gate opened by itself before all work was queued behind it")

    def release(self) -> None:
        """Free the gate; no stream may still wait on it."""
        self.box.release(self._latch)
