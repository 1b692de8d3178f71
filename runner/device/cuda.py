"""The CUDA back end: CuPy on one GPU."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np

from meshrun.runner.device.api import HEADERS, Device, Shortage, bytes_needed
from meshrun.runner.device.copy_streams import CopyStreams
from meshrun.runner.device.cuda_graphs import capture
from meshrun.runner.device.kernel_text import with_headers
from meshrun.runner.device.nvrtc import compile_kernel
from meshrun.runner.errors import RunError, first_line
from meshrun.runner.region import Array, Shape
from meshrun.runner.system.compiler import NotCompiled

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def count() -> int:
    """Number of GPUs visible to this process; 0 without a driver."""
    try:
        visible: int = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
    return visible


def describe(index: int) -> Device:
    """Properties of device `index`, with peak memory bandwidth computed from clock and bus width."""
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    attributes = cupy.cuda.Device(index).attributes
    # Double data rate: two transfers per clock (kHz) over the bus (bits).
    peak = 2 * attributes["MemoryClockRate"] * 1e3 * attributes["GlobalMemoryBusWidth"] / 8
    return Device(
        kind="cuda",
        name=properties["name"].decode(),
        index=index,
        uuid=uuid(index),
        bus_id=cupy.cuda.runtime.deviceGetPCIBusId(index),
        memory=properties["totalGlobalMem"],
        bandwidth=peak or None,
        bandwidth_source="memory clock x bus width",
        compute_capability=10 * properties["major"] + properties["minor"],
        software=f"driver {cupy.cuda.runtime.driverGetVersion()}, NVRTC {cupy.cuda.nvrtc.getVersion()}",
    )


def uuid(index: int) -> str:
    """The GPU's UUID as NVML and nvidia-smi write it ("GPU-...").

    From the driver: CuPy (14.2) truncates it in the device properties at the first zero byte.
    """
    found = (ctypes.c_uint8 * 16)()
    status = ctypes.CDLL("libcuda.so.1").cuDeviceGetUuid_v2(found, index)
    if status:
        raise RunError(f"the driver does not report the UUID of GPU {index}", got=f"CUDA error {status}")
    text = bytes(found).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class CudaBackend:
    """One GPU with a main stream, a second stream for exchanges, and pinned host buffers of exact size."""

    xp: ModuleType = cupy
    asynchronous = True
    null_stream = cupy.cuda.Stream.null
    capture = staticmethod(capture)

    def __init__(self, index: int) -> None:
        cupy.cuda.Device(index).use()
        self.device = describe(index)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._side = self.new_stream()
        # Not `use`: CuPy's own blocks (`get` of cells that are not contiguous has one) end by making the
        # stream of the block around them current, which would be the default one.
        self.stream.__enter__()

    def new_stream(self) -> Any:
        # Higher priority (lower number): an exchange gets its few thread blocks scheduled while a kernel
        # runs.
        return cupy.cuda.Stream(non_blocking=True, priority=-1)

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        return cupy.empty(shape, dtype)

    def host_empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        # Not from CuPy's pinned memory pool, which rounds sizes up to powers of two.
        size = int(np.prod(shape, dtype=np.int64))
        memory = cupy.cuda.PinnedMemory(max(size * dtype.itemsize, 1))
        pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
        return np.frombuffer(pointer, dtype, size).reshape(shape)

    def upload(self, host: np.ndarray[Any, Any], device: Array) -> None:
        # Not by `device.set`, which refuses to while a CUDA graph is made.
        assert host.flags.c_contiguous
        assert device.flags.c_contiguous
        assert (host.shape, host.dtype) == (device.shape, device.dtype)
        stream = cupy.cuda.get_current_stream().ptr
        kind = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(device.data.ptr, host.ctypes.data, host.nbytes, kind, stream)

    def download(self, device: Array, host: np.ndarray[Any, Any]) -> None:
        # Not by `device.get`, which refuses to while a CUDA graph is made.
        source = cupy.ascontiguousarray(device)
        assert host.flags.c_contiguous
        assert (host.shape, host.dtype) == (device.shape, device.dtype)
        stream = cupy.cuda.get_current_stream().ptr
        kind = cupy.cuda.runtime.memcpyDeviceToHost
        cupy.cuda.runtime.memcpyAsync(host.ctypes.data, source.data.ptr, source.nbytes, kind, stream)

    def keep_row(self, row: Array, kept: Array, host: np.ndarray[Any, Any] | None, moves: Array) -> None:
        launch = kernel(HEADERS / "keep_row.cu", "keep_row")
        pointer = np.intp(0 if host is None else host.ctypes.data)
        launch((1,), (32,), (row, np.int32(row.size), pointer, kept, moves, np.int32(moves.shape[1])))

    def join(self) -> None:
        cupy.cuda.Device(self.device.index).use()

    def mark(self) -> Any:
        event = cupy.cuda.Event()
        event.record()
        return event

    def elapsed(self, begin: Any, end: Any) -> float:
        return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def passed(self, mark: Any) -> None:
        mark.synchronize()

    @contextmanager
    def beside(self, mark: Any) -> Iterator[None]:
        self._side.wait_event(mark)
        with self._side:
            yield
            done = self.mark()
        self.stream.wait_event(done)

    def synchronize(self) -> None:
        cupy.cuda.get_current_stream().synchronize()

    def free_memory(self) -> int:
        free: int = cupy.cuda.runtime.memGetInfo()[0]
        return free

    def release_memory(self) -> None:
        cupy.fft.config.get_plan_cache().clear()  # plans of cuFFT have work areas
        cupy.get_default_memory_pool().free_all_blocks()

    def shortage(self, failure: BaseException) -> Shortage | None:
        runtime = cupy.cuda.runtime
        refused = isinstance(failure, runtime.CUDARuntimeError) and failure.status == OUT_OF_MEMORY
        if not (refused or isinstance(failure, cupy.cuda.memory.OutOfMemoryError)):
            return None
        free, total = runtime.memGetInfo()
        pooled = cupy.get_default_memory_pool().free_bytes()
        return Shortage(bytes_needed(str(failure)), free + pooled, total)

    def copy_rate(self) -> float:
        source = cupy.ones(1 << 26, cupy.float32)  # 256 MiB: several times the largest L2
        target = cupy.empty_like(source)
        marks = []
        for _ in range(6):
            marks.append(self.mark())
            cupy.copyto(target, source)
        self.synchronize()
        return 2 * int(source.nbytes) / min(self.elapsed(a, b) for a, b in pairwise(marks[1:]))

    def copy_streams(self) -> CopyStreams:
        return CopyStreams(self.device.index, self.stream)


@contextmanager
def borrowed(array: Array) -> Iterator[CudaBackend]:
    """A back end on the GPU that holds `array`, for one call from a user's own CuPy program."""
    before = cupy.cuda.get_current_stream()
    before.synchronize()
    with cupy.cuda.Device(array.device.id):
        backend = CudaBackend(array.device.id)
        try:
            yield backend
            backend.synchronize()
        finally:
            backend.stream.__exit__()
            before.use()  # which no block may have made current


@contextmanager
def on_own_stream(backend: CudaBackend) -> Iterator[None]:
    """Issue work to a back end's own stream inside the block, which ends when that work is done."""
    theirs = cupy.cuda.get_current_stream()
    theirs.synchronize()
    with cupy.cuda.Device(backend.device.index):
        try:
            with backend.stream:
                yield
                backend.synchronize()
        finally:
            theirs.use()  # which no block may have made current


def kernel(path: Path, name: str, options: tuple[str, ...] = (), shared: int = 0) -> Callable[..., None]:
    """Compile the kernel `name` of a .cu file, as `kernel_file.kernel` describes.

    shared: bytes of dynamic shared memory of a block.
    """
    include = (f"-I{path.parent}", f"-I{HEADERS}")
    return _compiled(_text(path), name, (*include, *options), cupy.cuda.runtime.getDevice(), shared)


def kernel_of_text(
    source: str, name: str, options: tuple[str, ...] = (), shared: int = 0
) -> Callable[..., None]:
    """Compile the kernel `name` of a text without files of its own to include; as `kernel` otherwise.

    shared: bytes of dynamic shared memory of a block. Raises NotCompiled if CUDA's compiler refuses the text,
    or the device the kernel.
    """
    try:
        return _compiled(source, name, options, cupy.cuda.runtime.getDevice(), shared)
    except cupy.cuda.compiler.CompileException as reason:
        found = re.search(r"\((\d+)\): [\w ]*error[^:]*: (.*)", str(reason))
        error, at = (found[2], int(found[1])) if found else (first_line(reason), 0)
        raise NotCompiled(f"CUDA's compiler fails: {error}", at) from reason
    except RuntimeError as reason:  # CUDA's and NVRTC's errors
        raise NotCompiled(f"CUDA refuses the kernel: {first_line(reason)}") from reason


@functools.cache
def _text(path: Path) -> str:
    """Return a file's text and a checksum of its headers: the binary is kept under both."""
    return f"{path.read_text()}\n// {sha256(with_headers(path).encode()).hexdigest()}"


@functools.cache
def _compiled(
    source: str, name: str, options: tuple[str, ...], device: int, shared: int = 0
) -> Callable[..., None]:
    fused = () if "--fmad=true" in options else ("--fmad=false",)
    return compile_kernel(source, name, (*fused, *options), shared)  # loaded into the current device
