"""Where arrays live and kernels run. One protocol, parallel implementations: `cpu` (NumPy), `cuda` (CuPy)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from runner.region import Array, Shape

HostBytes = np.ndarray[Any, Any]  # of uint8
Mark = Any  # a point in the work of a stream
POISON = 0xA5  # what unwritten integer memory holds; unwritten floats hold NaN


@dataclass(frozen=True)
class Device:
    """What a rank computes on.

    uuid: of a GPU, the only name that is the same however a launcher renumbers devices; "" on a CPU.
    bandwidth: bytes per second its memory could move, read plus written; None when not known.
    bandwidth_source: what that figure is taken from. compute_capability: 90 for 9.0; 0 on a CPU.
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

    def __str__(self) -> str:
        return f"GPU {self.index}" if self.kind == "cuda" else "CPU"


class Backend(Protocol):
    """Arrays, copies and ordering on one device."""

    device: Device

    @property
    def xp(self) -> ModuleType:
        """The array module: numpy or cupy."""

    @property
    def asynchronous(self) -> bool:
        """Whether work is queued and runs later; copies to and from the host are then real."""

    @property
    def stream(self) -> Any:
        """The stream that work is issued to; None on a CPU."""

    @property
    def null_stream(self) -> Any:
        """CUDA's default stream; None on a CPU."""

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A device array, not initialised."""

    def host_empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A host array, not initialised; pinned where that makes copies faster."""

    def upload(self, host: np.ndarray[Any, Any], device: Array) -> None:
        """Copy host to device, in stream order; both C-contiguous."""

    def download(self, device: Array, host: np.ndarray[Any, Any]) -> None:
        """Copy device to host, in stream order; both C-contiguous. Complete after `synchronize`."""

    def mark(self) -> Any:
        """A point in the work issued so far, for `beside` and `elapsed`."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed."""

    def beside(self, mark: Any) -> AbstractContextManager[None]:
        """Work issued inside runs beside what was issued after `mark`, and before what follows the block."""

    def synchronize(self) -> None:
        """Return when all issued work is done."""

    def free_memory(self) -> int:
        """Bytes of the device's memory that nobody uses now."""

    def copy_rate(self) -> float:
        """Bytes per second, read plus written, of a large copy inside this device's memory; measured now."""

    def lanes(self) -> Lanes:
        """Copies beside what is computed; of an asynchronous device."""


class Lanes(Protocol):
    """Copies in both directions beside what an asynchronous device computes.

    Only `passed` is for threads other than the one that computes; those threads `join` first.
    """

    def join(self) -> None:
        """For a thread: work on this rank's device."""

    def mark(self) -> Mark:
        """A point in what is computed."""

    def wait(self, mark: Mark) -> None:
        """What is computed from now on comes after `mark`."""

    def send(self, host: HostBytes, device: Array) -> tuple[Mark, Mark]:
        """Copy `host`, pinned, to `device`; begin and end."""

    def fetch(self, device: Array, host: HostBytes, after: Mark) -> tuple[Mark, Mark]:
        """Copy `device` to `host`, pinned, after `after`; begin and end."""

    def passed(self, mark: Mark) -> float:
        """Return when the device has passed `mark`: the time of that, as `time.perf_counter` has it."""

    def named(self, name: str) -> AbstractContextManager[None]:
        """What is issued inside has this name in a profiler."""


def poison(array: Array) -> None:
    """Fill with what no kernel writes by accident, so that a cell left unwritten shows."""
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    else:
        dtype = np.dtype(array.dtype)
        array.fill(np.full(dtype.itemsize, POISON, np.uint8).view(dtype)[0])
