"""Raw memory of every kind, streams and timed copies on all GPUs of one host, from one process.

For measurements of the machine. Jobs on arrays use `Backend`, which has one GPU and one kind of host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.region import Array

# pinned: page-locked. huge: page-locked, in huge pages. combined: page-locked and write-combined, which the
# CPU writes fast and reads slowly. mapped: page-locked and accessible to kernels. managed: pages migrate to
# the device that accesses them.
Kind = Literal["device", "pageable", "pinned", "huge", "combined", "mapped", "managed"]
Stream = Any  # of one GPU
Mark = Any  # a point in a stream


@dataclass(frozen=True)
class GpuProperties:
    """One GPU. index: CUDA's in this process. processors: streaming multiprocessors. cache: bytes of L2.

    memory: bytes. bandwidth: peak memory bandwidth in bytes per second, read plus written, from clock and bus
    width; None if unknown.
    """

    index: int
    name: str
    uuid: str
    bus_id: str
    processors: int
    memory: int
    cache: int
    bandwidth: float | None


@dataclass(frozen=True)
class Memory:
    """`nbytes` at `address`, valid in the process that allocated or attached it.

    gpu: index of the GPU that holds it; for host and managed memory, of the nearby GPU.
    """

    address: int
    nbytes: int
    kind: Kind
    gpu: int
    owner: Any = field(default=None, repr=False, compare=False)


class Box(Protocol):
    """The GPUs of this host and the host's memory. Not thread-safe."""

    @property
    def gpus(self) -> Sequence[GpuProperties]:
        """The GPUs visible to this process, in CUDA's order: `gpus[i].index` is i."""

    def on(self, gpu: int) -> AbstractContextManager[None]:
        """Make this GPU current inside."""

    def allocate(self, kind: Kind, nbytes: int, gpu: int) -> Memory:
        """Allocate uninitialised memory; host memory near `gpu`. Raises UserError if there is not enough.

        Managed memory larger than the GPU's free memory is refused: paging it can hang the GPU.
        """

    def release(self, memory: Memory) -> None:
        """Free or detach memory. Work that uses it must be complete."""

    def array(self, memory: Memory) -> Array:
        """The bytes as a flat uint8 array for kernels of GPU `memory.gpu`; not for pageable memory."""

    def host_array(self, memory: Memory) -> np.ndarray[Any, Any]:
        """The bytes as a flat uint8 array for the CPU; for host or managed memory."""

    def export(self, memory: Memory) -> bytes:
        """A handle of device memory, for `attach` in other processes of this host."""

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        """Map memory of another process, which lies on GPU `gpu`; that process must keep it allocated.

        Call it inside `on` with the GPU that will access the memory.
        """

    def connect(self, gpu: int, peer: int) -> bool:
        """Enable direct access of `gpu` to the memory of `peer`; False if they have none."""

    def stream(self, gpu: int) -> Stream:
        """A new stream."""

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        """Queue a copy of the first `nbytes` by a copy engine of the stream's GPU.

        For pageable memory the call itself copies, and may return before or after the copy is complete.
        """

    def prefetch(self, memory: Memory, stream: Stream, *, host: bool = False) -> None:
        """Queue the migration of managed memory to its GPU, or to the host. Raises RunError on failure."""

    def prefetched(self, memory: Memory, *, host: bool = False) -> bool:
        """Whether, according to the driver, the last prefetch of all this managed memory was to its GPU, or
        the host.

        The driver may accept a prefetch and not carry it out.
        """

    def mark(self, stream: Stream) -> Mark:
        """Record an event in `stream`."""

    def wait(self, stream: Stream, mark: Mark) -> None:
        """Make later work in `stream` wait for `mark`."""

    def elapsed(self, begin: Mark, end: Mark) -> float:
        """Seconds between two marks of one GPU, once the device has passed both."""

    def synchronize(self, stream: Stream) -> None:
        """Return when all work in the stream is complete."""

    def free_memory(self, gpu: int) -> int:
        """Bytes of the GPU's memory that are free now."""

    def close(self) -> None:
        """Release all memory that is still allocated or attached."""


def open_box() -> Box:
    """The GPUs of this process; close it when done. Raises UserError without a GPU."""
    from meshrun.runner.device.raw.cuda_memory import CudaBox

    box = CudaBox()
    if not box.gpus:
        raise UserError("this needs a GPU, and CUDA finds none", hint="meshrun doctor shows the reason")
    return box
