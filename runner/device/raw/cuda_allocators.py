"""GPU memory from the driver, from the driver's stream-ordered pool, and from CuPy's pool.

All use the current device, and the current stream where stream order matters.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import runtime

from meshrun.runner.errors import UserError, first_line

# Raised by CUDA's runtime and CuPy's pool.
FAILURES = (runtime.CUDARuntimeError, MemoryError)
KEEP = 2**64 - 1  # bytes: everything


class DriverPool:
    """No pool: every call goes to the driver, and a release waits for all work on the device."""

    label = "cudaMalloc"

    def __init__(self) -> None:
        self._stream = cupy.cuda.get_current_stream()
        self._live = 0
        self.trim()

    def allocate(self, nbytes: int) -> tuple[int, int]:
        try:
            address: int = runtime.malloc(nbytes)
        except FAILURES as reason:
            raise _refused(self.label, self.reserved(), nbytes, reason) from reason
        self._live += nbytes
        return address, nbytes

    def release(self, handle: tuple[int, int]) -> None:
        address, nbytes = handle
        runtime.free(address)
        self._live -= nbytes

    def address(self, handle: tuple[int, int]) -> int:
        return handle[0]

    def settle(self, handle: tuple[int, int] | None = None) -> None:
        self._stream.synchronize()

    def reserved(self) -> int:
        # The driver does not report how much it rounds up to whole pages; the decrease of free memory shows
        # it, as long as no other process uses the GPU. Small allocations may fit into a page already taken.
        return max(self._free_before - int(runtime.memGetInfo()[0]), self._live)

    def trim(self) -> None:
        if not self._live:
            self._free_before = int(runtime.memGetInfo()[0])

    def close(self) -> None:
        pass


class AsyncPool:
    """cudaMallocAsync and cudaFreeAsync: in stream order, from a pool of the driver.

    keep: release threshold, the bytes kept when the stream is synchronised; CUDA's default is 0.
    """

    def __init__(self, keep: int = 0) -> None:
        self.label = "cudaMallocAsync, keeping" if keep else "cudaMallocAsync"
        self._stream = cupy.cuda.get_current_stream()
        properties = runtime.MemPoolProps(
            runtime.cudaMemAllocationTypePinned,
            runtime.cudaMemHandleTypeNone,
            runtime.cudaMemLocationTypeDevice,
            runtime.getDevice(),
        )
        # A new pool, because the device's default pool is shared with the rest of the process.
        self._pool = runtime.memPoolCreate(properties)
        runtime.memPoolSetAttribute(self._pool, runtime.cudaMemPoolAttrReleaseThreshold, keep)

    def allocate(self, nbytes: int) -> int:
        try:
            address: int = runtime.mallocFromPoolAsync(nbytes, self._pool, self._stream.ptr)
        except FAILURES as reason:
            raise _refused(self.label, self.reserved(), nbytes, reason) from reason
        return address

    def release(self, handle: int) -> None:
        runtime.freeAsync(handle, self._stream.ptr)

    def address(self, handle: int) -> int:
        return handle

    def settle(self, handle: int | None = None) -> None:
        self._stream.synchronize()

    def reserved(self) -> int:
        attribute = runtime.cudaMemPoolAttrReservedMemCurrent
        return int(runtime.memPoolGetAttribute(self._pool, attribute))

    def trim(self) -> None:
        self._stream.synchronize()  # cudaFreeAsync takes effect in stream order
        runtime.memPoolTrimTo(self._pool, 0)

    def close(self) -> None:
        self.trim()
        runtime.memPoolDestroy(self._pool)


class CupyPool:
    """CuPy's memory pool: splits, merges and reuses blocks from cudaMalloc.

    most: limit in bytes.
    """

    label = "CuPy's pool"

    def __init__(self, most: int) -> None:
        self._pool = cupy.cuda.MemoryPool()
        self._pool.set_limit(size=most)
        self._stream = cupy.cuda.get_current_stream()

    def allocate(self, nbytes: int) -> Any:
        try:
            return self._pool.malloc(nbytes)
        except FAILURES as reason:
            raise _refused(self.label, self.reserved(), nbytes, reason) from reason

    def release(self, handle: Any) -> None:
        handle.mem.free()  # now, not when the last reference to the handle goes

    def address(self, handle: Any) -> int:
        address: int = handle.ptr
        return address

    def settle(self, handle: Any = None) -> None:
        self._stream.synchronize()

    def reserved(self) -> int:
        return int(self._pool.total_bytes())

    def trim(self) -> None:
        self._pool.free_all_blocks()

    def close(self) -> None:
        self.trim()


def _refused(pool: str, reserved: int, nbytes: int, reason: Exception) -> UserError:
    return UserError(
        f"{pool} failed to allocate memory ({first_line(reason)})",
        got=f"{nbytes:,} bytes in addition to the {reserved:,} already held",
        expected="that much free GPU memory",
        hint="a smaller -e; nvidia-smi lists other processes on the GPU",
    )
