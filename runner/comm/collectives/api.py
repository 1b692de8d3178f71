"""Collective operations on raw memory, for measurements: a bound call only communicates, without array
objects, allocations or decisions.

One protocol, three implementations: `nccl` (device memory), `mpi` (host memory) and `threads` (ranks as
threads, and the single rank of a process without MPI).

Terms follow nccl-tests: `count` is the argument of the NCCL function; datatypes and reductions
have its names and order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array

Function = Callable[[], object]

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
)
REDUCTIONS = ("sum", "prod", "max", "min", "avg", "mulsum")


@dataclass(frozen=True)
class Datatype:
    """An element type. name: as in nccl-tests. code: ncclDataType_t. numpy: name of the dtype in NumPy or
    ml_dtypes. mantissa, exponent: stored bits of a floating-point type; 0 for integers."""

    name: str
    code: int
    itemsize: int
    numpy: str
    mantissa: int = 0
    exponent: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of NumPy, or else of ml_dtypes."""
        module: Any = np
        if not hasattr(np, self.numpy):
            import ml_dtypes

            module = ml_dtypes
        dtype: np.dtype[Any] = np.dtype(getattr(module, self.numpy))
        return dtype

    @property
    def floating(self) -> bool:
        return self.exponent > 0

    @property
    def signed(self) -> bool:
        return self.floating or not self.numpy.startswith("u")


DATATYPES = {
    known.name: known
    for known in (
        Datatype("int8", 0, 1, "int8"),
        Datatype("uint8", 1, 1, "uint8"),
        Datatype("int32", 2, 4, "int32"),
        Datatype("uint32", 3, 4, "uint32"),
        Datatype("int64", 4, 8, "int64"),
        Datatype("uint64", 5, 8, "uint64"),
        Datatype("half", 6, 2, "float16", 10, 5),
        Datatype("float", 7, 4, "float32", 23, 8),
        Datatype("double", 8, 8, "float64", 52, 11),
        Datatype("bfloat16", 9, 2, "bfloat16", 7, 8),
        Datatype("f8e4m3", 10, 1, "float8_e4m3fn", 3, 4),
        Datatype("f8e5m2", 11, 1, "float8_e5m2", 2, 5),
    )
}


class Buffer(Protocol):
    """Memory of this rank's device that collectives may use."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def array(self) -> Array:
        """All of it, as a flat uint8 array of NumPy or CuPy."""


@dataclass(frozen=True)
class Pointer:
    """A position in a buffer; offset in bytes."""

    buffer: Buffer
    offset: int = 0

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset

    def bytes(self, count: int) -> Array:
        """`count` bytes starting here, as a flat uint8 array."""
        return self.buffer.array[self.offset : self.offset + count]


@dataclass(frozen=True)
class Call:
    """One operation with all its arguments.

    count: elements, as the NCCL function takes them: per rank for all_gather, reduce_scatter, gather, scatter
    and hypercube, per pair of ranks for alltoall, in total for the others; unused by alltoallv. in_place:
    `send` is the part of the receive buffer that NCCL specifies for in-place operation. traffic: for
    alltoallv, elements from rank i to rank j in row i, column j.

    sendrecv sends to the next rank and receives from the previous one. hypercube is an all_gather by
    log2(ranks) exchanges with the rank whose number differs in one bit. mulsum multiplies by
    1 on even and by 2 on odd ranks before summing.
    """

    operation: str
    send: Pointer
    recv: Pointer
    count: int
    datatype: Datatype
    reduction: str = "sum"
    root: int = 0
    in_place: bool = False
    traffic: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class NcclChoice:
    """What a library chose for one operation. algorithm, protocol: names as in NCCL_ALGO and NCCL_PROTO, or
    the kind and name of another kernel. channels: thread blocks; None if unknown."""

    algorithm: str
    protocol: str
    channels: int | None


@dataclass(frozen=True)
class NcclTuning:
    """How a library is to carry out operations; None for its own choice. algorithm, protocol: as in NCCL_ALGO
    and NCCL_PROTO. channels: thread blocks, neither more nor fewer."""

    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None


def premultiplier(rank: int) -> int:
    """The factor of a rank's elements in mulsum (as in nccl-tests)."""
    return 2 if rank % 2 else 1


def hypercube(rank: int, size: int) -> list[tuple[int, int, int, int]]:
    """The exchanges of an all_gather on a hypercube, in order.

    Each: the peer, this rank's first block, the peer's first block, number of blocks.
    Raises UserError if the number of ranks is not a power of two.
    """
    if size & (size - 1):
        raise UserError(
            "a hypercube needs a number of ranks that is a power of two",
            got=size,
            hint="another number of ranks, or all_gather",
            everywhere=True,
        )
    masks = [1 << bit for bit in range(size.bit_length() - 1)]
    firsts = [(mask, rank & ~(mask - 1)) for mask in masks]
    return [(rank ^ mask, first, first ^ mask, mask) for mask, first in firsts]


class Mark(Protocol):
    """A point in the issued work, such as a CUDA event."""

    @property
    def record(self) -> Function: ...


class Collectives(Protocol):
    """One rank of a group, with the memory and the clock of its device.

    rank, size: within the group. control: the group's communicator, for everything not measured.
    asynchronous: a bound call returns when its work is queued; the work runs later, in order.
    """

    rank: int
    size: int

    @property
    def control(self) -> Control: ...

    @property
    def label(self) -> str:
        """Transport and library, for reports."""

    @property
    def library(self) -> int:
        """NCCL's version number, such as 22809 for 2.28.9; 0 without NCCL."""

    @property
    def asynchronous(self) -> bool: ...

    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised memory, allocated as the library prefers. Raises MemoryError."""

    def register(self, buffer: Buffer, how: int) -> None:
        """Register a buffer with the library: 1 locally, 2 as a symmetric window (collective)."""

    def bind(self, call: Call) -> Function:
        """The call as a function without arguments, with as little Python as possible."""

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Function:
        """Bind a message of `call.count` elements to one rank, or from one, or both at once."""

    def grouped(self, calls: Sequence[Function]) -> Function:
        """The calls as one group (ncclGroupStart/End) where the library has groups; else in sequence."""

    def packed(self, calls: Sequence[Function]) -> Sequence[Function]:
        """Equivalent calls with less Python between the library's calls."""

    def captured(self, calls: Sequence[Function]) -> Function:
        """Capture the calls into a graph; the result launches it. Raises UserError without graphs."""

    def issue(self, calls: Sequence[Function]) -> None:
        """Make the calls. Raises RunError if the library reports an error."""

    def warm_up(self) -> None:
        """Run `issue` and `wait` without work, so that their code is in the processor's caches."""

    def marks(self, count: int) -> Sequence[Mark]:
        """New marks, not recorded yet."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has completed all work issued before the mark."""

    def wait(self, poll: Function | None = None) -> None:
        """Return when all issued work is complete. Raises RunError if the library reports a failure.

        poll: called periodically while work is in progress.
        """

    def observed(self) -> AbstractContextManager[list[NcclChoice] | None]:
        """Make calls inside it: afterwards the list has the library's choices for them, in order; it is empty
        if this rank's library did not report any. None if the library cannot report."""

    def abort(self) -> None:
        """Abort the work in progress; callable from another thread, returns even if ranks are dead."""

    def close(self) -> None:
        """Free the communicator and all buffers. Collective over the group."""
