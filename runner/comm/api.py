"""The communicator protocols, with four implementations:

`mpi` moves control values and host arrays; `nccl` moves device arrays; `staged` moves device
arrays through host memory where NCCL cannot (two ranks on one GPU); `threads` runs ranks as
threads, or a single process as the only rank, without MPI.

Arrays that cross are C-contiguous and are never pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from meshrun.runner.region import Array, HostArray

if TYPE_CHECKING:
    from meshrun.runner.comm.recorded import Trail

Message = tuple[int, Array]  # (peer, C-contiguous array)
Operation = Literal["sum", "prod", "min", "max"]
UFUNCS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}  # of each operation


def check_contiguous(array: Array) -> None:
    """Refuse a non-contiguous array, of which only a temporary copy would be sent or filled."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"only C-contiguous arrays cross ranks, not strides {array.strides} of {array.shape}"
        )


def as_bytes(array: Array) -> Array:
    """A flat uint8 view of a C-contiguous array: MPI has no types for float16 and non-native byte orders."""
    check_contiguous(array)
    return array.reshape(-1).view(np.uint8)


class Pending(Protocol):
    """Messages in flight."""

    def progress(self) -> None:
        """Let the messages advance; to be called between parts of a long computation of the host."""

    def wait(self) -> None:
        """Return when received arrays may be read and sent arrays may be reused.

        Device arrays: by work issued to the current stream after this call.
        """


class Arrays(Protocol):
    """Moves arrays between ranks."""

    @property
    def label(self) -> str:
        """The transport, for the report."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold exchanges: they are work of the device alone."""

    @property
    def peer_slots(self) -> HostArray | None:
        """What kernels take that combine a few words of all ranks themselves; None: they cannot.

        See `small.collectives.SmallCollectives.members`. Collective.
        """

    @property
    def is_open(self) -> bool:
        """Whether the next messages need no connection to be made first; the same on every rank."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Start all messages as one group. Messages between two ranks arrive in the order sent."""

    def all_reduce(self, array: Array, operation: Operation) -> None:
        """Replace `array` on every rank by the elementwise reduction over all ranks."""

    def close(self) -> None:
        """Free the communicator. Collective."""


class Counters(Protocol):
    """One counter per rank, starting at 0, that every rank can increment; for one thread of each rank."""

    def take(self, owner: int) -> int:
        """Atomically add 1 to rank `owner`'s counter; return its previous value."""

    def read(self) -> list[int]:
        """Every rank's counter, in rank order; other ranks may have incremented them since."""

    def progress(self) -> None:
        """Serve other ranks' requests for this rank's counter; a waiting rank calls this every
        millisecond."""

    def close(self) -> None:
        """Free the counters. Collective."""


class Control(Arrays, Protocol):
    """A communicator for small Python values and host arrays, which can also abort the run.

    trail: what records its operations; None if they are not recorded.
    """

    trail: Trail | None

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def library(self) -> str:
        """Name and version of the message library; empty without one."""

    def barrier(self) -> None: ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def allgather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, in rank order."""

    def shared_memory_size(self) -> int | None:
        """Number of ranks that share memory with this rank, according to the transport; None if unknown."""

    def counters(self) -> Counters:
        """New counters shared by the ranks, all 0. Collective."""

    def split(self, color: int, key: int = 0) -> Control:
        """The communicator of the ranks with the same color, ordered by key, then by rank. Collective."""

    def abort(self, status: int) -> None:
        """End every rank of the run immediately."""
