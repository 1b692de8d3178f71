"""Communicator over MPI, through mpi4py: control values and host arrays."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Message, Operation, as_bytes
from meshrun.runner.comm.recorded import Trail, record_operations
from meshrun.runner.comm.shared_counters import MpiCounters
from meshrun.runner.processes import TERMINATING, mapped_files
from meshrun.runner.region import Array

GPU_SUPPORT_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA, MPICH
PIECE = 1 << 30  # bytes: Open MPI 4 counts in a C int, so larger messages are sent in pieces


def load() -> Any:
    """mpi4py's MPI module, initialised. Raises RuntimeError or ImportError without an MPI library."""
    wheel = Path(sys.prefix, "lib", "libmpi.so.40")
    if wheel.exists() and "mpi4py.MPI" not in sys.modules:
        # Disable two unneeded components of the Open MPI wheel: one sleeps 1 s at start, the other prints
        # warnings on machines without its network.
        os.environ.setdefault("OMPI_MCA_btl", "^ofi")
        os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    with _default_signals():
        from mpi4py import MPI

    return MPI


@contextmanager
def _default_signals() -> Iterator[None]:
    """Let the signals that end a run end this process at once, without Python's handlers.

    MPI_Init waits forever for a rank that is gone, and mpi4py holds Python's lock meanwhile: neither handlers
    nor the thread of `world.termination` run.
    """
    handled = []
    if threading.current_thread() is threading.main_thread() and "mpi4py.MPI" not in sys.modules:
        handled = [number for number in TERMINATING if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def device_memory_support() -> tuple[bool, str]:
    """Whether this process's MPI says that it takes CUDA device memory, and its name with what it was asked.

    Asks for memory kinds (MPI 4.1), MPIX_Query_cuda_support (Open MPI, MPICH, MVAPICH) and
    MPIX_GPU_query_support (MPICH).
    """
    mpi = load()
    name, version = mpi.get_vendor()
    library = f"{name} {'.'.join(map(str, version))}"
    kinds = mpi.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in (kind.partition(":")[0].strip() for kind in kinds.split(",")):
        return True, f"{library}: mpi_memory_alloc_kinds is {kinds}"
    for path in (path for path in mapped_files() if path.rpartition("/")[2].startswith("libmpi")):
        loaded = ctypes.CDLL(path)
        if hasattr(loaded, "MPIX_Query_cuda_support"):
            said = int(loaded.MPIX_Query_cuda_support())
            return said == 1, f"{library} ({path}): MPIX_Query_cuda_support() is {said}"
        if hasattr(loaded, "MPIX_GPU_query_support"):
            answer = ctypes.c_int(0)
            loaded.MPIX_GPU_query_support(GPU_SUPPORT_CUDA, ctypes.byref(answer))
            return answer.value == 1, f"{library} ({path}): MPIX_GPU_query_support tells {answer.value}"
    return False, f"{library} has no MPIX_Query_cuda_support"


class _Requests:
    def __init__(self, mpi: Any, requests: list[Any]) -> None:
        self._mpi, self._requests = mpi, requests

    def progress(self) -> None:
        self._mpi.Request.Testall(self._requests)

    def wait(self) -> None:
        self._mpi.Request.Waitall(self._requests)


class MpiComm:
    """Communicator of `comm`, or of a duplicate of MPI.COMM_WORLD."""

    label = "MPI, host memory"
    capturable = False
    peer_slots = None
    is_open = True
    trail: Trail | None = None

    def __init__(self, comm: Any = None) -> None:
        self._mpi = load()
        self._comm = self._mpi.COMM_WORLD.Dup() if comm is None else comm
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        name, version = self._mpi.get_vendor()
        self.library = f"{name} {'.'.join(map(str, version))}"

    def barrier(self) -> None:
        self._comm.Barrier()

    def broadcast(self, value: Any) -> Any:
        return self._comm.bcast(value, root=0)

    def allgather(self, value: Any) -> list[Any]:
        gathered: list[Any] = self._comm.allgather(value)
        return gathered

    def counters(self) -> MpiCounters:
        return MpiCounters(self._mpi, self._comm, self._shared_memory_size() == self.size)

    def split(self, color: int, key: int = 0) -> MpiComm:
        part = MpiComm(self._comm.Split(color, key))
        if self.trail is not None:
            record_operations(part, self.trail.part(color, part._comm.allgather(self.rank)))
        return part

    def shared_memory_size(self) -> int | None:
        return self._shared_memory_size()

    def _shared_memory_size(self) -> int:
        shared = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        size: int = shared.size
        shared.Free()
        return size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Requests:
        # Post receives first, so that no message arrives unexpected.
        requests = [
            self._comm.Irecv(piece, peer) for peer, array in receives for piece in self._pieces(array)
        ]
        requests += [self._comm.Isend(piece, peer) for peer, array in sends for piece in self._pieces(array)]
        return _Requests(self._mpi, requests)

    def _pieces(self, array: Array) -> list[list[Any]]:
        flat = as_bytes(array)
        return [[flat[i : i + PIECE], self._mpi.BYTE] for i in range(0, max(flat.size, 1), PIECE)]

    def all_reduce(self, array: Array, operation: Operation) -> None:
        mpi_operation = getattr(self._mpi, operation.upper())
        if array.dtype == np.float16:  # not an MPI type: sum in float32, round once
            wide = array.astype(np.float32)
            self._comm.Allreduce(self._mpi.IN_PLACE, wide, mpi_operation)
            array[...] = wide
        elif array.dtype.itemsize == 1:
            # MPI has only logical operations for bool. Open MPI's AVX code saturates sums of bytes; NumPy and
            # NCCL wrap around.
            wide = array.astype(np.int64)
            self._comm.Allreduce(self._mpi.IN_PLACE, wide, mpi_operation)
            array[...] = wide.astype(array.dtype)
        else:
            self._comm.Allreduce(self._mpi.IN_PLACE, array, mpi_operation)

    def abort(self, status: int) -> None:
        self._mpi.COMM_WORLD.Abort(status)
        os._exit(status)  # MPICH's Abort has been seen to return

    def close(self) -> None:
        # MPI itself stays initialised, because it cannot be initialised twice. mpi4py finalises it when
        # the process ends.
        self._comm.Free()
