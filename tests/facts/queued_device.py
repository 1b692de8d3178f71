"""A device that copies as late as it may: what nobody waited for, or what is used again too early, shows.

Its arrays are NumPy's. What is computed runs when it is issued; a copy stays in its lane until something
is ordered after it. Memory begins poisoned. What the protocol asks of its callers is checked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshrun.runner.device.api import POISON, Device
from meshrun.runner.device.cpu import CpuBackend

LATER = 0.003  # seconds that a copy gives what is computed next to come before it


class QueuedBackend(CpuBackend):
    """late: copies wait until they must be done; else they are done when they are issued.

    allocated: the sizes of all pinned buffers, in bytes.
    """

    asynchronous = True

    def __init__(self, *, late: bool = True, memory: int = 1 << 30) -> None:
        self.device = Device("queued", "a queue", memory=memory, bandwidth=1e9, bandwidth_source="made up")
        self.late = late
        self.allocated: list[int] = []

    def empty(self, shape: Any, dtype: Any) -> Any:
        return poisoned(np.empty(shape, dtype))

    def host_empty(self, shape: Any, dtype: Any) -> Any:
        buffer = poisoned(np.empty(shape, dtype))
        self.allocated.append(buffer.nbytes)
        return buffer

    def free_memory(self) -> int:
        return self.device.memory

    def copy_streams(self) -> Any:
        return QueuedCopyStreams(self)


class GraphBackend(QueuedBackend):
    """Its graphs are the calls themselves. captured: how many were made."""

    captured = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        type(self).captured += 1
        return work


class Mark:
    """A point in a lane, passed when it has a time."""

    time: float | None = None


class Lane:
    """Copies and marks that are done in order, as far as somebody waits for them."""

    def __init__(self, late: bool) -> None:
        self._lock, self._late = threading.Lock(), late
        self._queue: deque[Mark | Callable[[], None]] = deque()

    def copy(self, do: Callable[[], None]) -> tuple[Mark, Mark]:
        begin, end = Mark(), Mark()
        with self._lock:
            self._queue.extend((begin, do, end))
        if not self._late:
            self.reach(end)
        return begin, end

    def reach(self, mark: Mark) -> None:
        with self._lock:
            while mark.time is None:
                step = self._queue.popleft()
                if isinstance(step, Mark):
                    step.time = time.perf_counter()
                else:
                    step()


class QueuedCopyStreams:
    def __init__(self, backend: QueuedBackend) -> None:
        self._backend = backend
        self._up, self._down = (Lane(backend.late) for _ in range(2))
        self._lane: dict[Mark, Lane] = {}
        self._newest: Mark | None = None  # of those in what is computed
        self._issued = threading.Condition()
        self._computes = threading.get_ident()
        self._joined = {self._computes}

    def join(self) -> None:
        self._joined.add(threading.get_ident())

    def mark(self) -> Mark:
        self._from_the_computing_thread()
        with self._issued:
            self._newest = Mark()
            self._newest.time = time.perf_counter()
            self._issued.notify_all()
            return self._newest

    def wait(self, mark: Mark) -> None:
        self._from_the_computing_thread()
        self._reach(mark)

    def send(self, host: Any, device: Any) -> tuple[Mark, Mark]:
        self._from_the_computing_thread()
        assert host.dtype == device.dtype == np.uint8
        assert host.nbytes <= device.nbytes

        def copy() -> None:
            device[: host.nbytes] = host

        return self._on(self._up, copy)

    def fetch(self, device: Any, host: Any, after: Mark) -> tuple[Mark, Mark]:
        self._from_the_computing_thread()
        assert after is self._newest, "something may be computed after what the copy waits for"
        assert device.flags.c_contiguous
        assert host.nbytes == device.nbytes

        def copy() -> None:
            host[...] = device.reshape(-1).view(np.uint8)

        return self._on(self._down, copy)

    def passed(self, mark: Mark) -> float:
        assert threading.get_ident() in self._joined
        if self._backend.late and mark.time is None:
            newest = self._newest
            with self._issued:
                self._issued.wait_for(lambda: self._newest is not newest, LATER)
        self._reach(mark)
        assert mark.time is not None
        return mark.time

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        yield

    def _on(self, lane: Lane, copy: Callable[[], None]) -> tuple[Mark, Mark]:
        begin, end = lane.copy(copy)
        self._lane |= {begin: lane, end: lane}
        return begin, end

    def _reach(self, mark: Mark) -> None:
        if mark in self._lane:
            self._lane[mark].reach(mark)

    def _from_the_computing_thread(self) -> None:
        assert threading.get_ident() == self._computes


def poisoned(array: Any) -> Any:
    array.reshape(-1).view(np.uint8)[...] = POISON
    return array
