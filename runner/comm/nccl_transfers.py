"""Device arrays between ranks over NCCL (NVLink, PCIe, InfiniBand, sockets)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import cupy
import numpy as np

from meshrun.runner.comm import nccl
from meshrun.runner.comm.api import Control, Message, Operation, check_contiguous
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS
from meshrun.runner.comm.recorded import Trail, record_operations
from meshrun.runner.comm.small.collectives import SmallCollectives, is_small, open_small
from meshrun.runner.device.api import Backend
from meshrun.runner.device.cuda_graphs import release_graphs
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array, HostArray
from meshrun.runner.system.launcher import default_variable

CODES = {known.numpy: known.code for known in DATATYPES.values()}
BYTES = CODES["uint8"]
# What NCCL reduces in place of elements that it does not know: the low bits of wider ones, and real parts.
WIDER = {"int16": "int32", "uint16": "uint32"}
REAL = {"complex64": "float32", "complex128": "float64"}
# Of bytes that are 0 or 1.
OF_BOOL: Mapping[Operation, Operation] = {"sum": "max", "prod": "min", "max": "max", "min": "min"}
NOT_OPENED = "NCCL, not opened"  # in place of its version, which is unknown until it is loaded


class _Event:
    """Nothing to wait for: later work in the same stream runs after NCCL's."""

    def progress(self) -> None:
        pass

    def wait(self) -> None:
        pass


class NcclComm:
    """One rank of an NCCL communicator over all of `control`'s ranks, on the current device.

    Calls are issued to CuPy's current stream. `control` broadcasts the unique id. `close` destroys the
    CUDA graphs of this device, as NCCL would wait for those that hold its calls. later: load NCCL and
    open the communicator, which takes most of a second, at the first call, which all ranks must make.
    variables: of NCCL, as defaults when it opens. backend: this rank's GPU, whose main stream also reduces
    small arrays without NCCL (`small.collectives`) where its host's GPUs reach each other; None: it does not.
    """

    capturable = True
    trail: Trail | None = None

    def __init__(
        self,
        control: Control,
        *,
        later: bool = False,
        variables: Mapping[str, str] | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._label = NOT_OPENED
        self._control, self._variables, self._backend = control, variables or {}, backend
        self.rank = control.rank
        if control.trail is not None:
            record_operations(self, control.trail.on_device())
        self._opened: nccl.Communicator | None = None
        if not later:
            self._open()

    def _open(self) -> nccl.Communicator:
        control = self._control
        self._label = nccl.common_version(control)
        with ExitStack() as defaults:
            for name, value in self._variables.items():
                defaults.enter_context(default_variable(name, value))
            unique_id = control.broadcast(nccl.new_unique_id() if control.rank == 0 else None)
            self._opened = nccl.Communicator(control.size, control.rank, unique_id)
        return self._opened

    @property
    def _comm(self) -> nccl.Communicator:
        return self._opened or self._open()

    @property
    def peer_slots(self) -> HostArray | None:
        small = self._small if self._is_in_main_stream() else None
        return None if small is None else small.members

    def _is_in_main_stream(self) -> bool:
        """Whether small operations are in order: a rank's are only within one stream, NCCL's in any."""
        return self._backend is not None and cupy.cuda.get_current_stream().ptr == self._backend.stream.ptr

    @functools.cached_property
    def _small(self) -> SmallCollectives | None:
        return None if self._backend is None else open_small(self._control, self._backend)

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def label(self) -> str:
        return self._label

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

    def all_reduce(self, array: Array, operation: Operation) -> None:
        check_contiguous(array)
        kind = _name_of(array.dtype)
        if kind in WIDER:
            wide = array.astype(WIDER[kind])
            self._all_reduce(wide, operation)
            array[...] = wide
        elif kind == "bool":
            self._all_reduce(array.view(np.uint8), OF_BOOL[operation])
        elif kind in REAL and operation == "sum":
            self._all_reduce(array.view(REAL[kind]), operation)
        else:
            self._all_reduce(array, operation)

    def _all_reduce(self, array: Array, operation: Operation) -> None:
        kind = _name_of(array.dtype)
        small = self._is_in_main_stream() and is_small(array, operation, self._control.size)
        if small and self._small is not None:
            self._small.all_reduce(array, operation)
            return
        if kind not in CODES:
            raise UserError("NCCL cannot reduce this dtype", got=kind, expected=", ".join(CODES))
        pointer, stream, comm = array.data.ptr, cupy.cuda.get_current_stream().ptr, self._comm.handle
        with nccl.failures("reducing an array"):
            self._comm.nccl.all_reduce(
                pointer, pointer, array.size, CODES[kind], REDUCTIONS.index(operation), comm, stream
            )

    def close(self) -> None:
        cupy.cuda.get_current_stream().synchronize()
        small = vars(self).get("_small")
        if self._opened is not None or small is not None:
            release_graphs()
        if small is not None:
            small.close()
        if self._opened is not None:
            self._opened.close()


@functools.cache
def _name_of(dtype: Any) -> str:
    """Return a dtype's name, which NumPy makes anew each time."""
    name: str = np.dtype(dtype).name
    return name
