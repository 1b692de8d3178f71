"""Collective operations on raw memory, as measuring needs them: no arrays, no allocation, nothing left to
decide once a call is bound.

One protocol, three implementations: `nccl_collectives` (device memory), `mpi_collectives` (host memory),
`simulated_collectives` (ranks as threads, and the lone rank of a world without MPI).

Words follow nccl-tests: `count` is the argument that NCCL's function takes, datatypes and reductions
carry its names and come in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runner.comm.api import Control
from runner.errors import UserError
from runner.region import Array

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
    """An element type. name: nccl-tests' word. code: ncclDataType_t. numpy: the dtype's name, of NumPy or
    ml_dtypes. mantissa, exponent: bits stored, of a floating-point type; 0 for integers."""

    name: str
    code: int
    itemsize: int
    numpy: str
    mantissa: int = 0
    exponent: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype, or ml_dtypes' where NumPy has none."""
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
class Place:
    """Where in a buffer something begins; offset in bytes."""

    buffer: Buffer
    offset: int = 0

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset

    def bytes(self, count: int) -> Array:
        """`count` bytes from here on, as a flat uint8 array."""
        return self.buffer.array[self.offset : self.offset + count]


@dataclass(frozen=True)
class Call:
    """One operation with all its arguments.

    count: elements, as NCCL's function of that name takes them: per rank for all_gather,
    reduce_scatter, gather, scatter and hypercube, per pair of ranks for alltoall, in all for the others;
    not used by alltoallv. in_place: `send` is the part of the receive buffer that NCCL's in-place form names.
    traffic: of alltoallv, elements from rank i to rank j in row i, column j.

    sendrecv sends to the next rank and receives from the one before. hypercube is an all_gather by
    log2(ranks) exchanges with the rank whose number differs in one bit. mulsum multiplies by
    1 on even and by 2 on odd ranks before it sums.
    """

    operation: str
    send: Place
    recv: Place
    count: int
    datatype: Datatype
    reduction: str = "sum"
    root: int = 0
    in_place: bool = False
    traffic: tuple[tuple[int, ...], ...] | None = None


def premultiplier(rank: int) -> int:
    """What mulsum multiplies a rank's elements by (nccl-tests' rule)."""
    return 2 if rank % 2 else 1


def hypercube(rank: int, size: int) -> list[tuple[int, int, int, int]]:
    """The exchanges of an all_gather on a hypercube, in order.

    Each: the peer, the first block that this rank has, the first that the peer has, how many blocks.
    Raises UserError when the number of ranks is no power of two.
    """
    if size & (size - 1):
        raise UserError(
            "a hypercube needs a number of ranks that is a power of two",
            got=size,
            hint="other ranks, or all_gather",
            everywhere=True,
        )
    masks = [1 << bit for bit in range(size.bit_length() - 1)]
    firsts = [(mask, rank & ~(mask - 1)) for mask in masks]
    return [(rank ^ mask, first, first ^ mask, mask) for mask, first in firsts]


class Mark(Protocol):
    """A point in the work issued so far, once recorded."""

    @property
    def record(self) -> Function: ...


class Collectives(Protocol):
    """The ranks of one group, as one of them sees it, with the memory and the clock of its device.

    rank, size: within the group. control: the group's ranks, for what is not measured. asynchronous: a
    bound call returns when its work is queued, and the work runs later, in order.
    """

    rank: int
    size: int

    @property
    def control(self) -> Control: ...

    @property
    def label(self) -> str:
        """How the bytes travel, and through which library."""

    @property
    def library(self) -> int:
        """NCCL's version as it counts, such as 22809 for 2.28.9; 0 without NCCL."""

    @property
    def asynchronous(self) -> bool: ...

    def allocate(self, nbytes: int) -> Buffer:
        """Memory as the library likes it best; not initialised. MemoryError where there is too little."""

    def register(self, buffer: Buffer, how: int) -> None:
        """Register with the library: 1 for local use, 2 symmetric, on every rank at the same point."""

    def bind(self, call: Call) -> Function:
        """The call as a function without arguments that does nothing in Python but make it."""

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Function:
        """`call.count` elements to one rank, or from one, or both at once; as `bind`."""

    def grouped(self, calls: Sequence[Function]) -> Function:
        """All of them as one launch, where the library has such a thing; else one after another."""

    def packed(self, calls: Sequence[Function]) -> Sequence[Function]:
        """The same, with as little between the library's calls as can be."""

    def captured(self, calls: Sequence[Function]) -> Function:
        """All of them recorded into a graph, which the result launches; UserError without graphs."""

    def issue(self, calls: Sequence[Function]) -> None:
        """Make the calls; RunError when the library refuses one."""

    def rehearse(self) -> None:
        """Go through `issue` and `wait` with nothing to do, so that what they run is in the caches."""

    def marks(self, count: int) -> Sequence[Mark]:
        """That many marks, not recorded yet."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has done all that was issued before the mark."""

    def wait(self, poll: Function | None = None) -> None:
        """Return when all issued work is done; RunError when the library reports a failure meanwhile.

        poll: called now and then while work is under way.
        """

    def abort(self) -> None:
        """Give up what is under way; callable from another thread, returns even when ranks are gone."""

    def close(self) -> None:
        """Orderly end, buffers too; every rank of the group calls it."""
