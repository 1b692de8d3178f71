"""Collectives in device memory through NCCL: `runner.comm.collectives.api` for GPUs.

All work goes to one stream, in order.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import cupy

from meshrun.runner.comm import nccl
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collectives.api import Buffer, Function, NcclChoice, NcclTuning
from meshrun.runner.comm.collectives.call_batch import BUILT
from meshrun.runner.comm.collectives.nccl_calls import NcclCalls
from meshrun.runner.comm.nccl_log import logged_choices
from meshrun.runner.errors import Exit, RunError, UserError, first_line
from meshrun.runner.region import Array

SYMMETRIC_WINDOWS = 22700
POLLS = 256  # stream queries between two readings of the clock
# Seconds between checks for NCCL's asynchronous errors. Each check briefly releases the GIL, and a thread
# that waits for the GIL requests it only after 5 ms without a release: more frequent checks starve the
# watchdog.
CHECK_INTERVAL = 0.02
NOT_READY = 600  # cudaErrorNotReady


class NcclBuffer:
    """Memory allocated by NCCL (ncclMemAlloc), which it can register and map without a copy."""

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


class NcclCollectives(NcclCalls):
    """One rank of a group, over its own NCCL communicator.

    control: the group's communicator. stream: a CuPy stream; all work is issued to it. cta_policy, peers,
    tuning: as in `nccl.Communicator`.
    """

    asynchronous = True

    def __init__(
        self,
        control: Control,
        stream: Any,
        *,
        cta_policy: int | None = None,
        peers: int | None = None,
        tuning: NcclTuning | None = None,
    ) -> None:
        self.control = control
        self.label = nccl.common_version(control) + ("" if BUILT else ", called from Python")
        self.stream = stream
        unique_id = control.broadcast(nccl.new_unique_id() if control.rank == 0 else None)
        self.comm = nccl.Communicator(
            control.size, control.rank, unique_id, cta_policy=cta_policy, peers=peers, tuning=tuning
        )
        super().__init__(self.comm, stream.ptr)
        self._buffers: list[NcclBuffer] = []
        self._registered: list[Callable[[], object]] = []

    def allocate(self, nbytes: int) -> NcclBuffer:
        buffer = NcclBuffer(max(nbytes, 1))
        self._buffers.append(buffer)
        return buffer

    def register(self, buffer: Buffer, how: int) -> None:
        if how == 2 and self.library < SYMMETRIC_WINDOWS:
            raise UserError(
                "this NCCL has no symmetric registration (-R 2)",
                got=f"NCCL {nccl.version()}",
                expected=f"{nccl.dotted(SYMMETRIC_WINDOWS)} or later",
                hint="-R 1",
                everywhere=True,
            )
        with nccl.failures("registering a buffer"):
            if how == 2:
                window = self._nccl.comm_window_register(
                    self._handle, buffer.address, buffer.nbytes, nccl.SYMMETRIC
                )
                undo = functools.partial(self._nccl.comm_window_deregister, self._handle, window)
            else:
                handle = self._nccl.comm_register(self._handle, buffer.address, buffer.nbytes)
                undo = functools.partial(self._nccl.comm_deregister, self._handle, handle)
        self._registered.append(undo)

    def captured(self, calls: Sequence[Function]) -> Function:
        # Thread-local: NCCL may allocate during the first captured call, which the global mode forbids.
        # A failure does not restore the stream: it ends the run.
        with cuda_failures("recording a graph"):
            self.stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            self.issue(calls)
            graph = self.stream.end_capture()
        launch: Function = functools.partial(graph.launch, self.stream)
        return launch

    def issue(self, calls: Sequence[Function]) -> None:
        # Not `nccl.failures`: a try costs nothing, and -z waits for each call.
        try:
            for call in calls:
                call()
        except self._nccl.NCCLError as reason:
            self.comm.block_if_aborted()
            raise nccl.failure("starting an operation", reason) from reason
        except cupy.cuda.runtime.CUDARuntimeError as reason:
            raise cuda_failure("starting an operation", reason) from reason

    def warm_up(self) -> None:
        self.issue(())
        self.wait()

    def marks(self, count: int) -> list[EventMark]:
        return [EventMark(self.stream) for _ in range(count)]

    def elapsed(self, begin: EventMark, end: EventMark) -> float:
        return float(cupy.cuda.get_elapsed_time(begin.event, end.event)) / 1e3

    def passed(self, mark: EventMark) -> bool:
        done: bool = mark.event.done
        return done

    def wait(self, poll: Function | None = None) -> None:
        query, stream = cupy.cuda.runtime.streamQuery, self.stream.ptr
        checked = time.monotonic()
        while True:
            for _ in range(POLLS):
                status = query(stream)
                if status == 0:
                    self.comm.block_if_aborted()
                    return
                if status != NOT_READY:
                    with cuda_failures("working on the GPU"):
                        cupy.cuda.runtime.check_status(status)
            if time.monotonic() - checked < CHECK_INTERVAL:
                continue
            self.comm.check()
            self.comm.block_if_aborted()
            checked = time.monotonic()
            if poll is not None:
                poll()

    def observed(self) -> AbstractContextManager[list[NcclChoice] | None]:
        reset = nccl.debug_reset()
        return nullcontext() if reset is None else logged_choices(reset)

    def abort(self) -> None:
        self.comm.abort()

    def close(self) -> None:
        self.stream.synchronize()
        with nccl.failures("closing"):
            super().close()
            for undo in self._registered:
                undo()
        self.comm.close()
        for buffer in self._buffers:
            buffer.free()


class CudaFailure(RunError):
    """A CUDA error."""

    exit_code = Exit.BENCH_CUDA_FAILED


def cuda_failure(doing: str, reason: Exception) -> CudaFailure:
    return CudaFailure(
        f"CUDA failed while {doing}",
        why=first_line(reason),
        hint="nvidia-smi and the kernel's log (dmesg | grep -i xid) for the GPU's state",
    )


@contextmanager
def cuda_failures(doing: str) -> Iterator[None]:
    """Convert CuPy's CUDA error to CudaFailure."""
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as reason:
        raise cuda_failure(doing, reason) from reason
