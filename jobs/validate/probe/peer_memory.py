"""Memory of each GPU that the other GPUs of its host write into, shared through CUDA IPC."""

from __future__ import annotations

from typing import Any

import runner
from jobs.bench.copy.lending import PAGE, first_line, lendable
from runner import World


class PeerMemory:
    """A buffer on each rank's GPU, open in the other ranks of its host. All methods are collective.

    peers: the buffers of the other ranks of this host, by rank. unreachable: why some rank cannot open
    another's buffer; "": all can.
    """

    def __init__(self, world: World, box: runner.Box) -> None:
        self.world, self.box = world, box
        self.peers: dict[int, runner.Memory] = {}
        self.unreachable = ""
        self._own: runner.Memory | None = None

    @property
    def array(self) -> Any:
        """This rank's own buffer, flat uint8."""
        assert self._own is not None, "reserve before use"
        return self.box.array(self._own)

    def reserve(self, nbytes: int = PAGE) -> None:
        """Make each buffer at least this long. Raises UserError on every rank where one lacks memory."""
        if self._own is None or self._own.nbytes < nbytes:
            self.close()
            self._own = self.world.collective_call(lambda: self._allocated(nbytes))
            self._open()

    def close(self) -> None:
        for memory in self.peers.values():
            self.box.release(memory)
        self.peers.clear()
        if self._own is not None:
            self.world.control.barrier()  # no other rank has it open any more
            self.box.release(self._own)
            self._own = None

    def _allocated(self, nbytes: int) -> runner.Memory:
        return lendable(self.box, nbytes, self.world.here.device.index)

    def _open(self) -> None:
        assert self._own is not None
        here, failed, handle = self.world.here, "", b""
        try:
            handle = self.box.export(self._own)
        except RuntimeError as reason:
            failed = f"{here} cannot share its memory: {first_line(reason)}"
        handles = self.world.control.allgather(handle)
        for other, lent in zip(self.world.ranks, handles, strict=True):
            if not lent or other.number == here.number or other.host_id != here.host_id:
                continue
            try:
                with self.box.on(here.device.index):
                    self.peers[other.number] = self.box.attach(lent, self._own.nbytes, here.device.index)
            except RuntimeError as reason:
                failed = failed or f"{here} cannot open the memory of {other}: {first_line(reason)}"
        self.unreachable = next(filter(None, self.world.control.allgather(failed)), "")
