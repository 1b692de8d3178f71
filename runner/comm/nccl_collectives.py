"""Collectives in device memory through NCCL: `runner.comm.collectives` for GPUs.

All work goes to one stream, in order.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import cupy

from runner.comm import Array, Control, nccl
from runner.comm.collectives import Buffer, Function
from runner.comm.nccl_calls import Calls
from runner.errors import RunError, UserError

SYMMETRIC_WINDOWS = 22700
LOOK = 256  # polls of the stream between two looks at NCCL's own state
NOT_READY = 600  # cudaErrorNotReady


class NcclBuffer:
    """Memory that NCCL allocated (ncclMemAlloc), which it can register and map without a copy."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            with nccl.failures(f"allocating {nbytes} bytes"):
                self.address: int = nccl.load().mem_alloc(nbytes)
        except nccl.NcclFailure as reason:
            if "out of memory" in str(reason):
                raise MemoryError(f"NCCL could not allocate {nbytes} bytes of device memory") from reason
            raise
        memory = cupy.cuda.UnownedMemory(self.address, nbytes, self)
        self.array: Array = cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def free(self) -> None:
        with nccl.failures("freeing a buffer"):
            nccl.load().mem_free(self.address)


class EventMark:
    """A CUDA event."""

    def __init__(self, stream: Any) -> None:
        self.event = cupy.cuda.Event()
        self.record: Function = functools.partial(self.event.record, stream)


class NcclCollectives:
    """One rank of a group, over its own NCCL communicator.

    control: the group's ranks. stream: CuPy's, that everything is issued to. cta_policy, peers:
    as `nccl.Communicator` takes them.
    """

    asynchronous = True

    def __init__(
        self, control: Control, stream: Any, *, cta_policy: int | None = None, peers: int | None = None
    ) -> None:
        self.control, self.rank, self.size = control, control.rank, control.size
        self.library = nccl.version_number()
        versions = control.allgather(nccl.version())
        if len({*versions}) > 1:
            other = next(rank for rank, version in enumerate(versions) if version != versions[0])
            raise UserError(
                "ranks have different versions of NCCL",
                got=f"{versions[0]} on rank 0, {versions[other]} on rank {other}",
                expected="one version",
                hint="the same environment on every host",
                everywhere=True,
            )
        self.label = f"NCCL {nccl.version()} ({nccl.library_path()})"
        self._stream = stream
        self._aborted = threading.Event()
        identity = control.broadcast(nccl.new_identity() if control.rank == 0 else None)
        self.comm = nccl.Communicator(
            control.size, control.rank, identity, cta_policy=cta_policy, peers=peers
        )
        self._nccl, self._handle = self.comm.nccl, self.comm.handle
        self._calls = Calls(self.comm, stream.ptr)
        self.bind, self.message, self.grouped = self._calls.bind, self._calls.message, self._calls.grouped
        self._buffers: list[NcclBuffer] = []
        self._registered: list[Callable[[], object]] = []

    def allocate(self, nbytes: int) -> NcclBuffer:
        buffer = NcclBuffer(max(nbytes, 1))
        self._buffers.append(buffer)
        return buffer

    def register(self, buffer: Buffer, how: int) -> None:
        with nccl.failures("registering a buffer", self._handle):
            if how == 2 and self.library >= SYMMETRIC_WINDOWS:
                window = self._nccl.comm_window_register(
                    self._handle, buffer.address, buffer.nbytes, nccl.SYMMETRIC
                )
                undo = functools.partial(self._nccl.comm_window_deregister, self._handle, window)
            else:
                handle = self._nccl.comm_register(self._handle, buffer.address, buffer.nbytes)
                undo = functools.partial(self._nccl.comm_deregister, self._handle, handle)
        self._registered.append(undo)

    def captured(self, calls: Sequence[Function]) -> Function:
        # Thread-local: NCCL may allocate while a first call is captured, which the global mode forbids.
        self._stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            self.issue(calls)
        finally:
            graph = self._stream.end_capture()
        launch: Function = functools.partial(graph.launch, self._stream)
        return launch

    def issue(self, calls: Sequence[Function]) -> None:
        with nccl.failures("starting an operation", self._handle):
            for call in calls:
                call()

    def marks(self, count: int) -> list[EventMark]:
        return [EventMark(self._stream) for _ in range(count)]

    def elapsed(self, begin: EventMark, end: EventMark) -> float:
        return float(cupy.cuda.get_elapsed_time(begin.event, end.event)) / 1e3

    def passed(self, mark: EventMark) -> bool:
        done: bool = mark.event.done
        return done

    def wait(self, poll: Function | None = None) -> None:
        query, stream = cupy.cuda.runtime.streamQuery, self._stream.ptr
        while True:
            if self._aborted.is_set():  # by another thread, which is about to end the process
                threading.Event().wait()
            for _ in range(LOOK):
                status = query(stream)
                if status == 0:
                    return
                if status != NOT_READY:
                    _cuda_failure(status)
            self.comm.check()
            if poll is not None:
                poll()

    def abort(self) -> None:
        self._aborted.set()
        self.comm.abort()

    def close(self) -> None:
        self._stream.synchronize()
        with nccl.failures("closing", self._handle):
            self._calls.close()
            for undo in self._registered:
                undo()
        self.comm.close()
        for buffer in self._buffers:
            buffer.free()


class CudaFailure(RunError):
    """CUDA said no: exit status 2, as nccl-tests has it."""

    exit_code = 2


def _cuda_failure(status: int) -> None:
    try:
        cupy.cuda.runtime.check_status(status)
    except cupy.cuda.runtime.CUDARuntimeError as reason:
        raise CudaFailure(
            "CUDA failed while work was under way",
            got=str(reason),
            hint="nvidia-smi and the kernel's log (dmesg | grep -i xid) for the GPU's state",
        ) from reason
