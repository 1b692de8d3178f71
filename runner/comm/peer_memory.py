"""Device memory that other processes of the host reach through CUDA IPC.

Every rank publishes handles of its own memory and opens those of its peers. CUDA's errors are RuntimeErrors;
the reasons given here are their first lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from meshrun.runner.comm.api import Control
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import first_line

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

PAGE = 2 << 20  # bytes that cudaMalloc takes from the driver at a time
MemoryKey = TypeVar("MemoryKey", bound=Hashable)


class Unreachable(RuntimeError):
    """Memory cannot be exported, or cannot be opened here; the text is the reason."""


@dataclass(frozen=True)
class MemoryHandle:
    """Memory of `nbytes` bytes for `PeerMemory.open`. problem: why it cannot be opened; empty if it can."""

    nbytes: int
    token: bytes = b""
    problem: str = ""


class PeerMemory:
    """The handles that this rank has published, and the peers' memory that it has opened.

    control: the ranks that share memory; all of one host, or of several if nobody opens across hosts.
    """

    def __init__(self, control: Control, box: Box) -> None:
        self.control, self.box = control, box
        self._exported: dict[int, bytes] = {}  # by address, one for as long as the memory is allocated
        self._opened: dict[bytes, Memory] = {}

    def publish(self, own: Mapping[MemoryKey, Memory]) -> dict[MemoryKey, MemoryHandle]:
        """Export this rank's memory; returns the handles of all ranks. Collective.

        own: device memory, by keys that no other rank uses.
        """
        published: dict[MemoryKey, MemoryHandle] = {}
        for some in self.control.allgather({key: self._export(memory) for key, memory in own.items()}):
            published |= some
        return published

    def open(self, handle: MemoryHandle, gpu: int, owner: int | None = None) -> Memory:
        """Map the memory of another rank of this host for GPU `gpu`. Raises Unreachable.

        gpu, owner: CUDA indices in this process; owner: the GPU that has the memory, None if it is invisible
        here. The rank that published it keeps the memory allocated until `close`.
        """
        if handle.problem:
            raise Unreachable(handle.problem)
        if handle.token not in self._opened:
            # Map it into the address space of the GPU that reaches it, not of the GPU whose memory it is.
            try:
                with self.box.on(gpu):
                    opened = self.box.attach(handle.token, handle.nbytes, gpu if owner is None else owner)
            except RuntimeError as reason:
                raise Unreachable(first_line(reason)) from reason
            self._opened[handle.token] = opened
        return self._opened[handle.token]

    def close(self) -> None:
        """Unmap peers' memory, so that its owners may free it. Collective."""
        for memory in self._opened.values():
            self.box.release(memory)
        self._opened.clear()
        self._exported.clear()
        self.control.barrier()

    def _export(self, memory: Memory) -> MemoryHandle:
        try:
            if memory.address not in self._exported:
                self._exported[memory.address] = self.box.export(memory)
        except RuntimeError as reason:
            return MemoryHandle(memory.nbytes, problem=first_line(reason))
        return MemoryHandle(memory.nbytes, self._exported[memory.address])


def allocate_exportable(box: Box, nbytes: int, gpu: int) -> Memory:
    """Allocate device memory in whole pages, of which `nbytes` bytes are used.

    CUDA exports whole pages: memory that shares one with other memory cannot be opened by itself.
    """
    return replace(box.allocate("device", -(-nbytes // PAGE) * PAGE, gpu), nbytes=nbytes)
