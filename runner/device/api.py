"""The compute back end protocol, implemented by `cpu` (NumPy) and `cuda` (CuPy)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshrun.runner.region import Array, Shape

if TYPE_CHECKING:
    from meshrun.runner.device.copy_streams import CopyStreams

HostBytes = np.ndarray[Any, Any]  # of uint8
Mark = Any  # a point in a stream, such as a CUDA event
HEADERS = Path(__file__).parent / "kernels"  # what kernels of several rooms include
POISON = 0xA5  # byte that fills unwritten integer memory; unwritten floats are NaN


class NotCapturable(RuntimeError):
    """Device work cannot be recorded; the text is the reason."""


@dataclass(frozen=True)
class Device:
    """The device that a rank computes on.

    uuid: of a GPU, which unlike its index does not depend on the launcher; "" on a CPU. memory: bytes.
    bandwidth: peak memory bandwidth in bytes per second, read plus written; None if unknown.
    bandwidth_source: how it was determined. compute_capability: 90 for 9.0; 0 on a CPU.
    software: versions of CUDA's driver and compiler; "" on a CPU.
    """

    kind: str
    name: str
    index: int = 0
    uuid: str = ""
    bus_id: str = ""
    memory: int = 0
    bandwidth: float | None = None
    bandwidth_source: str = ""
    compute_capability: int = 0
    software: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index}" if self.kind == "cuda" else "CPU"


@dataclass(frozen=True)
class Shortage:
    """An allocation that a device has refused, in bytes. needed: None if unknown. free: for this process."""

    needed: int | None
    free: int
    total: int

    def __str__(self) -> str:
        needed = "an allocation of unknown size" if self.needed is None else f"{self.needed:,} bytes needed"
        return f"{needed}, {self.free:,} of {self.total:,} free"


def bytes_needed(message: str) -> int | None:
    """Return the bytes that CuPy's OutOfMemoryError names; None if it names none."""
    found = re.search(r"allocating ([\d,]+) bytes", message)
    return int(found[1].replace(",", "")) if found else None


class Backend(Protocol):
    """Arrays, copies and ordering on one device."""

    device: Device

    @property
    def xp(self) -> ModuleType:
        """The array module: numpy or cupy."""

    @property
    def asynchronous(self) -> bool:
        """Whether work is queued and runs later, in memory separate from the host's."""

    @property
    def stream(self) -> Any:
        """The main stream; None on a CPU."""

    @property
    def null_stream(self) -> Any:
        """CUDA's default stream; None on a CPU."""

    def new_stream(self) -> Any:
        """A stream whose kernels get room on the device before those of the main one; None on a CPU."""

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A new device array, uninitialised."""

    def host_empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A new host array, uninitialised; pinned if the device is a GPU."""

    def upload(self, host: np.ndarray[Any, Any], device: Array) -> None:
        """Copy host to device, in stream order; both C-contiguous."""

    def download(self, device: Array, host: np.ndarray[Any, Any]) -> None:
        """Copy device to host, in stream order; both C-contiguous. Complete after `synchronize`."""

    def keep_row(self, row: Array, kept: Array, host: np.ndarray[Any, Any] | None, moves: Array) -> None:
        """Copy a row of 8-byte words to `kept`, and to the host; then words of it to others, in stream order.

        host: of `host_empty`. moves: (2, pairs), int64, of the device: from which words, and to which. In
        a CUDA graph, this is a kernel, where copies would each hold up what comes next.
        """

    def join(self) -> None:
        """Make the device current in the calling thread."""

    def mark(self) -> Any:
        """Record a point in the current stream, for `beside` and `elapsed`."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed."""

    def passed(self, mark: Any) -> None:
        """Return when the device has passed a mark; work issued later may still be under way."""

    def beside(self, mark: Any) -> AbstractContextManager[None]:
        """Issue the work inside to a second stream: it starts after `mark` and may overlap work issued since.

        Work issued after the block waits for it.
        """

    def synchronize(self) -> None:
        """Return when all issued work is complete."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the device work that `work` issues to the current stream, without doing it; return what does
        it. On asynchronous devices only.

        Raises NotCapturable, with the reason, if `work` allocates device memory or waits for the device.
        """

    def free_memory(self) -> int:
        """Bytes of the device's memory that are free now, without those that are kept for later arrays."""

    def release_memory(self) -> None:
        """Give back the memory that this process keeps for later arrays."""

    def shortage(self, failure: BaseException) -> Shortage | None:
        """Return what did not fit if `failure` says that the device's memory is exhausted, else None."""

    def copy_rate(self) -> float:
        """Measure a large copy inside this device's memory; bytes per second, read plus written."""

    def copy_streams(self) -> CopyStreams:
        """New streams for copies that overlap kernels; on asynchronous devices only."""


def poison(array: Array, *, other: bool = False) -> None:
    """Fill with values that no kernel writes by accident, so that an unwritten cell is noticed.

    other: with different ones, so that a cell that neither of two computations writes differs between them.
    """
    dtype = np.dtype(array.dtype)
    if dtype.kind in "fc":
        array.fill(0 if other else np.nan)
    elif dtype.kind == "b":
        array.fill(not other)
    else:
        byte = ~POISON & 0xFF if other else POISON
        array.fill(np.full(dtype.itemsize, byte, np.uint8).view(dtype)[0])


def poisoned(
    backend: Backend, types: Sequence[tuple[Shape, np.dtype[Any]]] | None, *, other: bool = False
) -> list[Array] | None:
    """Return new arrays of these shapes and dtypes, poisoned; None for None. other: as of `poison`."""
    if types is None:
        return None
    arrays = [backend.empty(shape, dtype) for shape, dtype in types]
    for array in arrays:
        poison(array, other=other)
    return arrays
