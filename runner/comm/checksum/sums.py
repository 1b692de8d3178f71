"""Checksums of arrays, each in a trailer: three 64-bit words that follow the array in a message of their own.

Host arrays: CRC-32, which differs for every change within 32 consecutive bits, and for other changes but one
in 2^32. Device arrays: a sum of hashed words (kernels/checksum.cu), which differs for every change within one
aligned word, and for other changes but one in about 2^64.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshrun.runner.comm.api import as_bytes
from meshrun.runner.device.api import Backend
from meshrun.runner.region import Array, HostArray

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables

WORDS = 3  # of a trailer: the message's number, its bytes, its checksum
KERNEL = Path(__file__).with_name("kernels") / "checksum.cu"
THREADS, BLOCKS = 256, 1024  # of a launch; BLOCKS is the most
WORD = np.dtype(np.uint64)


class Sums(Protocol):
    """Computes checksums of arrays of one kind of memory."""

    def trailers(self, count: int) -> Array:
        """Return (count, WORDS) uint64, all 0, in memory that crosses ranks as the arrays do."""

    def write(self, trailer: Array, array: Array, number: int) -> None:
        """Write an array's number, bytes and checksum to a trailer that is 0, in stream order."""

    def read(self, trailers: Array) -> HostArray:
        """Return the trailers on the host, after what has been issued to the current stream."""


class HostSums:
    def trailers(self, count: int) -> HostArray:
        return np.zeros((count, WORDS), WORD)

    def write(self, trailer: HostArray, array: HostArray, number: int) -> None:
        trailer[:] = number, array.nbytes, zlib.crc32(as_bytes(array))

    def read(self, trailers: HostArray) -> HostArray:
        return trailers


class DeviceSums:
    def __init__(self, backend: Backend, kernels: DeviceTables) -> None:
        self._backend, self._address = backend, kernels.address
        self._kernel = kernels.kernel(KERNEL, "checksum")
        self._landing = backend.host_empty((16, WORDS), WORD)  # pinned memory, which takes long to allocate

    def trailers(self, count: int) -> Array:
        found = self._backend.empty((count, WORDS), WORD)
        found.fill(0)
        return found

    def write(self, trailer: Array, array: Array, number: int) -> None:
        nbytes = int(array.nbytes)
        blocks = min(max(-(-nbytes // (8 * THREADS)), 1), BLOCKS)
        arguments: tuple[Any, ...] = (
            np.uint64(self._address(array)), np.int64(nbytes), np.uint64(number),
            np.uint64(self._address(trailer)),
        )  # fmt: skip
        self._kernel((blocks,), (THREADS,), arguments)

    def read(self, trailers: Array) -> HostArray:
        count = len(trailers)
        if len(self._landing) < count:
            self._landing = self._backend.host_empty((count, WORDS), WORD)
        self._backend.download(trailers, self._landing[:count])
        self._backend.synchronize()
        return self._landing[:count]


def sums_of(backend: Backend) -> Sums:
    """Return what computes checksums of a back end's arrays."""
    if not backend.asynchronous:
        return HostSums()
    from meshrun.runner.comm.peer_arrays import DeviceTables

    return DeviceSums(backend, DeviceTables())
