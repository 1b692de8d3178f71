"""Device arrays between ranks over NCCL (NVLink, PCIe, InfiniBand, sockets)."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from meshrun.runner.comm import nccl
from meshrun.runner.comm.api import Control, Message, Operation, check_contiguous
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS
from meshrun.runner.comm.recorded import recorded, recorded_exchange
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array

CODES = {known.numpy: known.code for known in DATATYPES.values()}
BYTES = CODES["uint8"]


class _Event:
    """Nothing to wait for: later work in the same stream runs after NCCL's."""

    def progress(self) -> None:
        pass

    def wait(self) -> None:
        pass


class NcclComm:
    """One rank of an NCCL communicator over all of `control`'s ranks, on the current device.

    Calls are issued to CuPy's current stream. `control` broadcasts the unique id. Graphs that hold calls must
    be gone before `close`, which waits for them.
    """

    capturable = True

    def __init__(self, control: Control) -> None:
        self._label = nccl.common_version(control)
        unique_id = control.broadcast(nccl.new_unique_id() if control.rank == 0 else None)
        self._comm = nccl.Communicator(control.size, control.rank, unique_id)
        self.rank = control.rank
        self.trail = control.trail and control.trail.on_device()

    @property
    def label(self) -> str:
        return self._label

    @recorded_exchange
    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Event:
        for _, array in [*sends, *receives]:
            check_contiguous(array)
        stream, call, comm = cupy.cuda.get_current_stream().ptr, self._comm.nccl, self._comm.handle
        if sends or receives:
            with nccl.failures("exchanging blocks"):
                call.group_start()
                for peer, array in receives:
                    call.recv(array.data.ptr, array.nbytes, BYTES, peer, comm, stream)
                for peer, array in sends:
                    call.send(array.data.ptr, array.nbytes, BYTES, peer, comm, stream)
                call.group_end()
        return _Event()

    @recorded("all_reduce")
    def all_reduce(self, array: Array, operation: Operation) -> None:
        check_contiguous(array)
        kind = np.dtype(array.dtype).name
        if kind not in CODES:
            raise UserError("NCCL cannot reduce this dtype", got=kind, expected=", ".join(CODES))
        pointer, stream, comm = array.data.ptr, cupy.cuda.get_current_stream().ptr, self._comm.handle
        with nccl.failures("reducing an array"):
            self._comm.nccl.all_reduce(
                pointer, pointer, array.size, CODES[kind], REDUCTIONS.index(operation), comm, stream
            )

    @recorded("close")
    def close(self) -> None:
        cupy.cuda.get_current_stream().synchronize()
        self._comm.close()
