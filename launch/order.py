"""Which rank ended first. A launcher that kills the others may name one of its own victims (MPICH's does)."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable


class EndOrder:
    """Processes of any parentage, and which of them ended before all others.

    Nothing needs to run when they end: an epoll instance queues them in the order in which the
    kernel saw them go, microseconds apart. Empty where the kernel (before 5.3) or this build of
    Python cannot refer to processes by file descriptor.
    """

    def __init__(self) -> None:
        self._queue = select.epoll()
        self._pids: dict[int, int] = {}  # by file descriptor

    def watch(self, pids: Iterable[int]) -> None:
        """Look after these as well; those known already, or gone, are left out."""
        for pid in set(pids) - set(self._pids.values()):
            with contextlib.suppress(OSError, AttributeError):
                descriptor = os.pidfd_open(pid)
                self._pids[descriptor] = pid
                self._queue.register(descriptor, select.EPOLLIN)

    def first(self) -> int | None:
        """The process number of the first to end; None when none has."""
        ended = self._queue.poll(0)
        return self._pids[ended[0][0]] if ended else None

    def close(self) -> None:
        self._queue.close()
        for descriptor in self._pids:
            os.close(descriptor)
