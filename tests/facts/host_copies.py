"""Copies between ranks that are threads, in place of those of GPUs' copy engines."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshrun.runner.world.world import World


class Queue:
    """Copies of all ranks that are not done, each with the number of its rank's marks before it."""

    def __init__(self) -> None:
        self.lock, self.copies = threading.Lock(), list[tuple[int, Any]]()

    def do(self, mark: int) -> None:
        """Do those before a mark."""
        with self.lock:
            for before, copies in self.copies:
                if before < mark:
                    move(copies)
            self.copies = [one for one in self.copies if one[0] >= mark]


class HostCopies:
    """Copies to ranks that are threads: at once or, if `queue` is given, when a rank waits for them."""

    def __init__(self, world: World, queue: Queue | None) -> None:
        self.world, self.queue = world, queue
        self.issued = self.followed = self.marks = 0

    def follow(self) -> None:
        self.followed = self.issued

    def rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        assert self.followed == self.issued, "what is copied may not be computed yet"
        copies = [(target + row * pitches[0], source + row * pitches[1], width) for row in range(rows)]
        if self.queue is None:
            move(copies)
        else:
            with self.queue.lock:
                self.queue.copies.append((self.marks, copies))

    def arrived(self) -> int:
        self.world.control.barrier()
        self.marks += 1
        return self.marks

    @contextmanager
    def issuing(self) -> Iterator[None]:
        """What is issued is done at once."""
        yield

    def mark(self) -> int:
        return self.marks

    def wait(self, mark: int) -> None:
        if self.queue is not None:
            self.queue.do(mark)


def move(copies: list[tuple[int, int, int]]) -> None:
    for copy in copies:
        ctypes.memmove(*copy)
