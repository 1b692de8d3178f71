"""Memory of GPUs that the other GPUs of their host write into, opened through CUDA IPC."""

from __future__ import annotations

from typing import Any

import runner
from jobs.bench.copy.buffers import PAGE, first_line, lendable
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

    @property
    def array(self) -> Any:
        """This rank's own, flat uint8."""
        assert self._own is not None, "held before it is used"
        return self.box.array(self._own)

    def hold(self, nbytes: int = PAGE) -> None:
        """At least that many bytes of each rank. UserError, on every rank, where one has too little."""
        if self._own is None or self._own.nbytes < nbytes:
            self.close()
            self._own = self.world.together(lambda: self._allocated(nbytes))
            self._open()

    def close(self) -> None:
        for memory in self.reached.values():
            self.box.release(memory)
        self.reached.clear()
        if self._own is not None:
            self.world.control.barrier()  # nobody else has it open any more
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
            failed = f"{here} cannot lend its memory: {first_line(reason)}"
        handles = self.world.control.allgather(handle)
        for other, lent in zip(self.world.ranks, handles, strict=True):
            if not lent or other.number == here.number or other.host_id != here.host_id:
                continue
            try:
                with self.box.on(here.device.index):
                    self.reached[other.number] = self.box.attach(lent, self._own.nbytes, here.device.index)
            except RuntimeError as reason:
                failed = failed or f"{here} does not reach the memory of {other}: {first_line(reason)}"
        self.barred = next(filter(None, self.world.control.allgather(failed)), "")
