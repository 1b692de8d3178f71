"""A gate in front of streams: work is queued behind it first and begins when it is opened, all at once.

So the time that the host takes to queue it, some microseconds an operation, is not in what is measured. The
gate is a kernel that spins on a word of pinned host memory (jobs/kernels/gate.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import runner
from jobs import kernels
from runner import Box

# Operations to queue behind a closed gate: a stream takes about a thousand, marks among them, before the host
# waits for room, and it would wait for the gate.
MOST = 200
PATIENCE = 20_000_000_000  # clock cycles until a gate opens by itself, about ten seconds


class Gate:
    """One for any number of streams of this process. It is open, but inside `closed`."""

    def __init__(self, box: Box, gpu: int) -> None:
        """gpu: the one that its word in host memory is near."""
        self.box = box
        self._latch = box.allocate("pinned", 4096, gpu)
        self._words = box.host_array(self._latch)[:8].view(np.uint32)
        self._words[:] = 1, 0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """What `hold` holds inside goes on at the end.

        Inside, nothing may wait for a GPU, and so nothing may allocate, copy pageable memory, make a stream,
        or launch a kernel for the first time, the gate's own included.
        """
        self._words[:] = 0
        try:
            yield
        finally:
            self._words[0] = 1

    def hold(self, gpu: int, stream: Any) -> None:
        """What is issued to this stream of GPU `gpu` from now on waits for the gate, if that is closed."""
        arguments = (np.uint64(self._latch.address), np.uint64(PATIENCE))
        with self.box.on(gpu):
            kernels.load("gate.cu", "gate")((1,), (1,), arguments, stream=stream)

    def check(self) -> None:
        """To be called once the streams are done. Raises RunError where the gate opened before it should."""
        if self._words[1]:
            raise runner.RunError("the work was not queued before the gate in front of it gave way")

    def release(self) -> None:
        """No stream may have it before it any more."""
        self.box.release(self._latch)
