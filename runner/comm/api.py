"""How ranks talk. One protocol, parallel implementations:

`mpi` moves control values and host arrays; `nccl` moves device arrays; `staged` moves device
arrays through host memory where NCCL cannot (two ranks on one GPU); `simulated` makes ranks of
threads, and of a lone process the one rank of its world, with no MPI.

Arrays that cross are C-contiguous and are never pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from runner.region import Array

Message = tuple[int, Array]  # (peer, C-contiguous array)
Operation = Literal["sum", "prod", "min", "max"]


def check_contiguous(array: Array) -> None:
    """Refuse an array with gaps: a copy of it would be sent, or filled and dropped, without a word."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"only C-contiguous arrays cross ranks, not strides {array.strides} of {array.shape}"
        )


def as_bytes(array: Array) -> Array:
    """A flat uint8 view of a C-contiguous array: MPI has no type for float16, nor for other byte orders."""
    check_contiguous(array)
    return array.reshape(-1).view(np.uint8)


class Pending(Protocol):
    """Messages under way."""

    def wait(self) -> None:
        """Return when every array received may be read and every array sent may be reused.

        For device arrays that is: by work issued to the current stream from now on.
        """


class Arrays(Protocol):
    """Moves arrays between ranks."""

    @property
    def label(self) -> str:
        """How the bytes travel, for the report."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Start all messages as one group. Between two ranks, order of sending is order of receiving."""

    def all_reduce(self, array: Array, operation: Operation) -> None:
        """Replace `array` on every rank by the elementwise reduction over all ranks."""

    def close(self) -> None:
        """Orderly end; every rank calls it."""


class Counters(Protocol):
    """One number per rank, from 0 up, that every rank can take from; for one thread of each rank."""

    def take(self, owner: int) -> int:
        """Add 1 to rank `owner`'s counter; its value before. No two calls get the same one."""

    def read(self) -> list[int]:
        """Every rank's counter, in rank order; others may have taken since."""

    def poke(self) -> None:
        """Serve who waits for this rank's counter: to be called every millisecond by a rank that waits."""

    def close(self) -> None:
        """Orderly end; every rank calls it."""


class Control(Arrays, Protocol):
    """A world of ranks: small Python values, host arrays, the end."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def library(self) -> str:
        """What carries messages between ranks, and its version; empty where nothing does."""

    def barrier(self) -> None: ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def allgather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, in rank order."""

    def shared_memory_size(self) -> int | None:
        """How many ranks share this rank's memory, as the transport sees it; None when it cannot tell."""

    def counters(self) -> Counters:
        """Counters that the ranks share, all 0; every rank calls it."""

    def split(self, color: int, key: int = 0) -> Control:
        """The ranks that say the same color, in the order of their keys; every rank calls it.

        Those of one key: in the order they have here.
        """

    def abort(self, status: int) -> None:
        """End every rank of the run now."""
