"""The GPUs of one host as one process drives them: raw memory of every kind, streams, copies, their times.

For measurements of the machine. Jobs on arrays have `Backend`, which does not know of other GPUs than its
rank's, nor of memory that is slow on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from runner.errors import UserError
from runner.region import Array

# pinned: page-locked. combined: page-locked and write-combined, which a processor writes fast and reads
# slowly. mapped: page-locked, for kernels to read where it is. managed: pages move to whoever touches them.
Kind = Literal["device", "pageable", "pinned", "combined", "mapped", "managed"]
Stream = Any  # a queue of work on one GPU
Mark = Any  # a point in a stream


@dataclass(frozen=True)
class GpuProperties:
    """One GPU. index: CUDA's in this process. processors: streaming multiprocessors. cache: bytes of L2.

    memory: bytes. bandwidth: bytes per second that its memory could move, read plus written, from its clock
    and bus width; None when not known. capability: 90 for 9.0. integrated: it has no memory of its own.
    """

    index: int
    name: str
    uuid: str
    bus_id: str
    processors: int
    memory: int
    cache: int
    bandwidth: float | None
    capability: int
    integrated: bool = False


@dataclass(frozen=True)
class Memory:
    """`nbytes` at `address`, valid in every process that it was allocated in or attached to.

    gpu: the index of the GPU whose memory it is; of host and managed memory, of the one it is near.
    """

    address: int
    nbytes: int
    kind: Kind
    gpu: int
    owner: Any = field(default=None, repr=False, compare=False)


class Box(Protocol):
    """GPUs and the host beside them. Not for several threads."""

    @property
    def gpus(self) -> Sequence[GpuProperties]:
        """Those that this process sees, in CUDA's order: `gpus[i].index` is i."""

    def on(self, gpu: int) -> AbstractContextManager[None]:
        """What is launched inside runs on this GPU."""

    def allocate(self, kind: Kind, nbytes: int, gpu: int) -> Memory:
        """New memory, not initialised; host memory near `gpu`. UserError where there is not enough.

        Managed memory larger than what the GPU has free is refused: paging it can hang the GPU.
        """

    def release(self, memory: Memory) -> None:
        """Give back what was allocated or attached. Work that uses it must be done."""

    def array(self, memory: Memory) -> Array:
        """The bytes as a flat uint8 array for kernels of GPU `memory.gpu`; not of pageable memory."""

    def host_array(self, memory: Memory) -> np.ndarray[Any, Any]:
        """The bytes as a flat uint8 array for the processor; of host or managed memory."""

    def export(self, memory: Memory) -> bytes:
        """A handle of device memory, for `attach` in other processes of this host."""

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        """Another process's memory, on the GPU that is `gpu` here; that process keeps it allocated.

        To be called `on` the GPU that will reach it.
        """

    def connect(self, gpu: int, peer: int) -> bool:
        """Let kernels and copies of `gpu` reach the memory of `peer` directly; False where they cannot."""

    def stream(self, gpu: int) -> Stream:
        """A new stream."""

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        """Queue a copy of the first `nbytes` by a copy engine of the stream's GPU.

        Of pageable memory the call itself copies, and may return before or after the copy is done.
        """

    def prefetch(self, memory: Memory, stream: Stream, *, host: bool = False) -> None:
        """Queue the move of managed memory to its GPU, or to the host. RunError where that cannot be."""

    def prefetched(self, memory: Memory, *, host: bool = False) -> bool:
        """Whether the last prefetch of all this managed memory was to there, by what the driver knows.

        Of one that it has taken and does not carry out it knows nothing.
        """

    def mark(self, stream: Stream) -> Mark:
        """A point in the work issued to `stream` so far."""

    def wait(self, stream: Stream, mark: Mark) -> None:
        """What is issued to `stream` from now on comes after `mark`."""

    def elapsed(self, begin: Mark, end: Mark) -> float:
        """Seconds between two marks of one GPU, once the device has passed both."""

    def synchronize(self, stream: Stream) -> None:
        """Return when all work of the stream is done."""

    def free_memory(self, gpu: int) -> int:
        """Bytes of the GPU's memory that nobody uses now."""

    def close(self) -> None:
        """Release what is still allocated or attached."""


def open_box() -> Box:
    """The GPUs of this process; close it at the end. Raises UserError where there are none."""
    from runner.device.raw.cuda_memory import CudaBox

    box = CudaBox()
    if not box.gpus:
        raise UserError("this needs a GPU, and CUDA shows none", hint="meshrun doctor says why")
    return box
