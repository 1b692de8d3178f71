"""A buffer on each GPU that the other GPUs of its host write into, shared through CUDA IPC."""

from __future__ import annotations

from typing import Any

from meshrun import World
from runner.comm.peer_memory import PAGE, PeerMemory, Unreachable, allocate_exportable
from runner.device.raw.memory import Box, Memory


class IpcBuffers:
    """A buffer on each rank's GPU, open in the other ranks of its host. All methods are collective.

    peers: buffers of the other ranks of this host, by rank. unreachable: why some rank cannot open another's
    buffer; "" if all can.
    """

    def __init__(self, world: World, box: Box) -> None:
        self.world, self.box = world, box
        self.peers: dict[int, Memory] = {}
        self.unreachable = ""
        self._own: Memory | None = None
        self._opened = PeerMemory(world.control, box)

    @property
    def array(self) -> Any:
        """This rank's own buffer, flat uint8."""
        assert self._own is not None, "reserve before use"
        return self.box.array(self._own)

    def reserve(self, nbytes: int = PAGE) -> None:
        """Grow each buffer to at least `nbytes`. Raises UserError on every rank if one lacks memory."""
        if self._own is None or self._own.nbytes < nbytes:
            self.close()
            self._own = self.world.collective_call(lambda: self._allocated(nbytes))
            self._open()

    def close(self) -> None:
        self.peers.clear()
        if self._own is not None:
            self._opened.close()
            self.box.release(self._own)
            self._own = None

    def _allocated(self, nbytes: int) -> Memory:
        return allocate_exportable(self.box, nbytes, self.world.here.device.index)

    def _open(self) -> None:
        assert self._own is not None
        here, failed = self.world.here, ""
        handles = self._opened.publish({here.number: self._own})
        if handles[here.number].problem:
            failed = f"{here} cannot share its memory: {handles[here.number].problem}"
        for other in self.world.ranks:
            handle = handles[other.number]
            if handle.problem or other.number == here.number or other.host_id != here.host_id:
                continue
            try:
                self.peers[other.number] = self._opened.open(handle, here.device.index)
            except Unreachable as reason:
                failed = failed or f"{here} cannot open the memory of {other}: {reason}"
        self.unreachable = next(filter(None, self.world.control.allgather(failed)), "")
