"""Device arrays between ranks over NCCL (NVLink, PCIe, InfiniBand, sockets). The only speaker of NCCL.

Through `cupy.cuda.nccl`, which comes with CuPy and finds libnccl as CuPy does. Group calls,
send/receive and all-reduce are all that array jobs need of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from runner.comm import Array, Control, Message, Operation, check_contiguous
from runner.errors import UserError


def load() -> Any:
    """`cupy.cuda.nccl` with a libnccl behind it; UserError that says which package brings one."""
    from cupy.cuda import nccl

    if not nccl.available:
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise UserError(
            "device data crosses ranks through NCCL, and CuPy found no libnccl",
            expected="libnccl.so.2",
            hint=f"pip install 'meshrun[cuda{major}]' (it brings nvidia-nccl-cu{major}), or --device cpu",
        )
    return nccl


def version() -> str:
    """The loaded libnccl's version, such as "2.28.9"."""
    number = load().get_version()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def library_path() -> str:
    """The file that the loaded libnccl came from, as the process's memory map names it."""
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if "libnccl.so" in line})
    return ", ".join(paths) or "not loaded"


class _Event:
    """NCCL's work is in the stream already; what is issued to that stream later comes after it."""

    def wait(self) -> None:
        pass


class NcclComm:
    """One rank of an NCCL communicator over all of `control`'s ranks, on the current device.

    Calls are issued to CuPy's current stream. The unique id travels over `control`.
    """

    def __init__(self, control: Control) -> None:
        self._nccl = load()
        identity = control.broadcast(self._nccl.get_unique_id() if control.rank == 0 else None)
        self._comm = self._nccl.NcclCommunicator(control.size, identity, control.rank)
        self.rank = control.rank

    @property
    def label(self) -> str:
        return f"NCCL {version()} ({library_path()})"

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Event:
        for _, array in [*sends, *receives]:
            check_contiguous(array)
        stream = cupy.cuda.get_current_stream().ptr
        if sends or receives:
            self._nccl.groupStart()
            for peer, array in receives:
                self._comm.recv(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, peer, stream)
            for peer, array in sends:
                self._comm.send(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, peer, stream)
            self._nccl.groupEnd()
        return _Event()

    def all_reduce(self, array: Array, operation: Operation) -> None:
        check_contiguous(array)
        types = {
            "int8": self._nccl.NCCL_INT8,
            "uint8": self._nccl.NCCL_UINT8,
            "int32": self._nccl.NCCL_INT32,
            "uint32": self._nccl.NCCL_UINT32,
            "int64": self._nccl.NCCL_INT64,
            "uint64": self._nccl.NCCL_UINT64,
            "float16": self._nccl.NCCL_FLOAT16,
            "float32": self._nccl.NCCL_FLOAT32,
            "float64": self._nccl.NCCL_FLOAT64,
        }
        kind = np.dtype(array.dtype).name
        if kind not in types:
            raise UserError("NCCL cannot reduce this dtype", got=kind, expected=", ".join(types))
        operations = {
            name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in ("sum", "prod", "min", "max")
        }
        pointer, stream = array.data.ptr, cupy.cuda.get_current_stream().ptr
        self._comm.allReduce(pointer, pointer, array.size, types[kind], operations[operation], stream)

    def close(self) -> None:
        cupy.cuda.get_current_stream().synchronize()
        self._comm.destroy()
