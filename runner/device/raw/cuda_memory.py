"""Raw memory of every kind, streams and timed copies on all GPUs of one host, from one process.

For measurements of the machine. Jobs on arrays use `Backend`, which has one GPU and one kind of host memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import cupy
import numpy as np
from cupy.cuda import runtime

from meshrun.runner.device.cuda import count, describe
from meshrun.runner.device.raw.huge_pages import huge_array
from meshrun.runner.device.raw.memory import GpuProperties, Kind, Mark, Memory, Stream
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Array
from meshrun.runner.system import sysfs

PORTABLE, MAPPED, COMBINED = 1, 2, 4  # flags of cudaHostAlloc; the first of cudaHostRegister, too
PINNED: dict[str, int] = {"pinned": PORTABLE, "combined": PORTABLE | COMBINED, "mapped": PORTABLE | MAPPED}
OUT_OF_MEMORY, ALREADY_CONNECTED = 2, 704  # cudaErrorMemoryAllocation, cudaErrorPeerAccessAlreadyEnabled


class _Location(ctypes.Structure):
    """The driver's CUmemLocation."""

    _fields_: ClassVar = [("type", ctypes.c_int), ("id", ctypes.c_int)]


HOST = _Location(2, 0)  # CU_MEM_LOCATION_TYPE_HOST
LAST_PREFETCH = 4  # CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
CPU, NOWHERE = -1, -2  # CU_DEVICE_CPU, CU_DEVICE_INVALID


class Box:
    """The GPUs visible to this process, and the host's memory. Not thread-safe.

    gpus: in CUDA's order; `gpus[i].index` is i.
    """

    def __init__(self) -> None:
        self.gpus = [_gpu(index) for index in range(count())]
        self._kept: dict[int, tuple[Memory, bool]] = {}  # address -> memory, attached

    @contextmanager
    def on(self, gpu: int) -> Iterator[None]:
        """Make this GPU current inside."""
        with cupy.cuda.Device(gpu):
            yield

    def allocate(self, kind: Kind, nbytes: int, gpu: int, *, near: bool = True) -> Memory:
        """Allocate uninitialised memory; host memory near `gpu`. Raises UserError if there is not enough.

        near: whether host memory has to be near the GPU, or is where the process runs.

        Managed memory larger than the GPU's free memory is refused: paging it can hang the GPU.
        """
        with self.on(gpu):
            if kind == "managed" and nbytes > self.free_memory(gpu):
                raise _too_much(kind, nbytes, gpu, f"at most the {self.free_memory(gpu):,} bytes free")
            try:
                memory = self._allocated(kind, nbytes, gpu, near)
            except (runtime.CUDARuntimeError, MemoryError) as reason:
                if getattr(reason, "status", OUT_OF_MEMORY) != OUT_OF_MEMORY:
                    raise
                raise _too_much(kind, nbytes, gpu, str(reason)) from reason
        self._kept[memory.address] = (memory, False)
        return memory

    def _allocated(self, kind: Kind, nbytes: int, gpu: int, near: bool) -> Memory:
        owner: Any = None
        if kind == "device":
            address = runtime.malloc(nbytes)
        elif kind == "managed":
            address = runtime.mallocManaged(nbytes)
        else:
            with _near(self.gpus[gpu]) if near else nullcontext():
                if kind == "pageable":
                    owner = np.empty(nbytes, np.uint8)
                    owner[::4096] = 0  # first touch allocates the page
                    address = owner.ctypes.data
                elif kind == "huge":
                    owner = huge_array(nbytes)
                    address = owner.ctypes.data
                    runtime.hostRegister(address, nbytes, PORTABLE)
                else:
                    address = runtime.hostAlloc(nbytes, PINNED[kind])
        return Memory(address, nbytes, kind, gpu, owner)

    def release(self, memory: Memory) -> None:
        """Free or detach memory. Work that uses it must be complete."""
        _, attached = self._kept.pop(memory.address)
        with self.on(memory.owner if attached else memory.gpu):  # where it was opened
            if attached:
                runtime.ipcCloseMemHandle(memory.address)
            elif memory.kind in ("device", "managed"):
                runtime.free(memory.address)
            elif memory.kind in PINNED:
                runtime.freeHost(memory.address)
            elif memory.kind == "huge":
                runtime.hostUnregister(memory.address)

    def array(self, memory: Memory) -> Array:
        """The bytes as a flat uint8 array for kernels of GPU `memory.gpu`; not for pageable memory."""
        if memory.kind == "pageable":
            raise ValueError("kernels cannot access pageable memory")
        with self.on(memory.gpu):
            raw = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, memory, memory.gpu)
            return cupy.ndarray(memory.nbytes, cupy.uint8, cupy.cuda.MemoryPointer(raw, 0))

    def host_array(self, memory: Memory) -> np.ndarray[Any, Any]:
        """The bytes as a flat uint8 array for the CPU; for host or managed memory."""
        if memory.kind == "device":
            raise ValueError("the CPU cannot access device memory")
        if memory.kind in ("pageable", "huge"):
            owned: np.ndarray[Any, Any] = memory.owner
            return owned
        return np.ctypeslib.as_array((ctypes.c_uint8 * memory.nbytes).from_address(memory.address))

    def export(self, memory: Memory) -> bytes:
        """A handle of device memory, for `attach` in other processes of this host."""
        with self.on(memory.gpu):
            handle: bytes = runtime.ipcGetMemHandle(memory.address)
        return handle

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        """Map memory of another process, which lies on GPU `gpu`; that process must keep it allocated.

        Call it inside `on` with the GPU that will access the memory.
        """
        address = runtime.ipcOpenMemHandle(handle)
        memory = Memory(address, nbytes, "device", gpu, owner=runtime.getDevice())
        self._kept[address] = (memory, True)
        return memory

    def connect(self, gpu: int, peer: int) -> bool:
        """Enable direct access of `gpu` to the memory of `peer`; False if they have none."""
        if gpu == peer:
            return True
        if not runtime.deviceCanAccessPeer(gpu, peer):
            return False
        with self.on(gpu):
            try:
                runtime.deviceEnablePeerAccess(peer)
            except runtime.CUDARuntimeError as reason:
                if reason.status != ALREADY_CONNECTED:
                    raise
        return True

    def stream(self, gpu: int) -> Stream:
        """A new stream."""
        with self.on(gpu):
            return cupy.cuda.Stream(non_blocking=True)

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        """Queue a copy of the first `nbytes` by a copy engine of the stream's GPU.

        For pageable memory the call itself copies, and may return before or after the copy is complete.
        """
        with self.on(stream.device_id):
            runtime.memcpyAsync(target.address, source.address, nbytes, runtime.memcpyDefault, stream.ptr)

    def prefetch(self, memory: Memory, stream: Stream, *, host: bool = False) -> None:
        """Queue the migration of managed memory to its GPU, or to the host. Raises RunError on failure."""
        with self.on(memory.gpu):
            if host:
                _prefetch_to_host(memory, stream)
                return
            try:
                runtime.memPrefetchAsync(memory.address, memory.nbytes, memory.gpu, stream.ptr)
            except runtime.CUDARuntimeError as reason:
                raise RunError("managed memory cannot be moved to the GPU", why=str(reason)) from reason

    def prefetched(self, memory: Memory, *, host: bool = False) -> bool:
        """Whether, according to the driver, the last prefetch of all this managed memory was to its GPU, or
        the host.

        The driver may accept a prefetch and not carry it out.
        """
        place = ctypes.c_int32(NOWHERE)
        call = ctypes.CDLL("libcuda.so.1").cuMemRangeGetAttribute
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t)
        with self.on(memory.gpu):
            status = call(ctypes.byref(place), 4, LAST_PREFETCH, memory.address, memory.nbytes)
        if status:
            raise RunError("the driver does not report where managed memory is", got=f"CUDA error {status}")
        return place.value == (CPU if host else memory.gpu)

    def mark(self, stream: Stream) -> Mark:
        """Record an event in `stream`."""
        with self.on(stream.device_id):
            event = cupy.cuda.Event()
            event.record(stream)
        return event

    def wait(self, stream: Stream, mark: Mark) -> None:
        """Make later work in `stream` wait for `mark`."""
        with self.on(stream.device_id):
            stream.wait_event(mark)

    def elapsed(self, begin: Mark, end: Mark) -> float:
        """Seconds between two marks of one GPU, once the device has passed both."""
        return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def synchronize(self, stream: Stream) -> None:
        """Return when all work in the stream is complete."""
        stream.synchronize()

    def free_memory(self, gpu: int) -> int:
        """Bytes of the GPU's memory that are free now."""
        with self.on(gpu):
            free: int = runtime.memGetInfo()[0]
        return free

    def close(self) -> None:
        """Release all memory that is still allocated or attached."""
        for memory, _ in list(self._kept.values()):
            self.release(memory)


def _gpu(index: int) -> GpuProperties:
    device, properties = describe(index), runtime.getDeviceProperties(index)
    return GpuProperties(
        index=index,
        name=device.name,
        uuid=device.uuid,
        bus_id=device.bus_id,
        processors=properties["multiProcessorCount"],
        memory=device.memory,
        cache=properties["l2CacheSize"],
        bandwidth=device.bandwidth,
        capability=device.compute_capability,
    )


def _prefetch_to_host(memory: Memory, stream: Stream) -> None:
    """Call the driver (CUDA 12.2 or later): CuPy built for CUDA 13 treats every location as a GPU."""
    call = ctypes.CDLL("libcuda.so.1").cuMemPrefetchAsync_v2
    call.argtypes = (ctypes.c_uint64, ctypes.c_size_t, _Location, ctypes.c_uint, ctypes.c_void_p)
    status = call(memory.address, memory.nbytes, HOST, 0, stream.ptr)
    if status:
        raise RunError("managed memory cannot be moved to the host", got=f"CUDA error {status}")


@contextmanager
def _near(gpu: GpuProperties) -> Iterator[None]:
    """Run on the cores near the GPU: memory is allocated on the NUMA node of the calling core."""
    before = os.sched_getaffinity(0)
    cores = Path("/sys/bus/pci/devices") / gpu.bus_id.lower() / "local_cpulist"
    near = before.intersection(sysfs.numbers(sysfs.text(cores))) or before
    os.sched_setaffinity(0, near)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _too_much(kind: Kind, nbytes: int, gpu: int, expected: str) -> UserError:
    return UserError(
        f"there is not enough {kind} memory for GPU {gpu}", got=f"{nbytes:,} bytes", expected=expected
    )
