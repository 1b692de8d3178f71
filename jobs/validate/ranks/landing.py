"""Memory of each rank's GPU that the other GPUs of its host write into."""

from __future__ import annotations

from typing import Any

import runner
from jobs.measure.peer_memory import PAGE, PeerMemory, Unreachable, allocate_exportable
from runner import World


class Landings:
    """A piece of each rank's GPU, as the ranks of its host reach it. All methods are collective.

    reached: of the other ranks of this host, by their numbers. barred: why a rank somewhere does not reach
    another's; "": all do.
    """

    def __init__(self, world: World, box: runner.Box) -> None:
        self.world, self.box = world, box
        self.reached: dict[int, runner.Memory] = {}
        self.barred = ""
        self._own: runner.Memory | None = None
        self._peers = PeerMemory(world.control, box)

    @property
    def array(self) -> Any:
        """This rank's own, flat uint8."""
        assert self._own is not None, "held before it is used"
        return self.box.array(self._own)

    def hold(self, nbytes: int = PAGE) -> None:
        """At least that many bytes of each rank. UserError, on every rank, where one has too little."""
        if self._own is None or self._own.nbytes < nbytes:
            self.close()
            self._own = self.world.collective_call(lambda: self._allocated(nbytes))
            self._open()

    def close(self) -> None:
        self.reached.clear()
        if self._own is not None:
            self._peers.close()
            self.box.release(self._own)
            self._own = None

    def _allocated(self, nbytes: int) -> runner.Memory:
        return allocate_exportable(self.box, nbytes, self.world.here.device.index)

    def _open(self) -> None:
        assert self._own is not None
        here, barred = self.world.here, ""
        handles = self._peers.publish({here.number: self._own})
        if handles[here.number].problem:
            barred = f"{here} cannot export its memory: {handles[here.number].problem}"
        for other in self.world.ranks:
            handle = handles[other.number]
            if handle.problem or other.number == here.number or other.host_id != here.host_id:
                continue
            try:
                self.reached[other.number] = self._peers.open(handle, here.device.index)
            except Unreachable as reason:
                barred = barred or f"{here} does not reach the memory of {other}: {reason}"
        self.barred = next(filter(None, self.world.control.allgather(barred)), "")
