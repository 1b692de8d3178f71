"""Methods to move bytes from the host to a GPU and back, and the check that all of them arrived."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.timers import nothing
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.device.raw.memory import Memory

Direction = Literal["to GPU", "to host"]
DIRECTIONS: tuple[Direction, ...] = ("to GPU", "to host")
# method -> kind of host memory
METHODS: dict[str, Any] = {
    "pageable": "pageable",
    "pinned": "pinned",
    "write-combined": "combined",
    "mapped": "mapped",
    "managed": "managed",
    "prefetched": "managed",
}
BYTE = DATATYPES["uint8"]
THREADS, BLOCKS_PER_PROCESSOR = 256, 8  # as many threads as a multiprocessor holds


@dataclass(frozen=True)
class HostTransfer:
    """A transfer of some bytes by one method in one direction.

    move: returns when the other side can use the bytes. prepare: undoes `move` where the next one needs that.
    spoil: makes sure that only the sending side has the bytes. arrived: (nbytes,) uint8 as the receiving side
    sees them. moved: whether the driver reports them there; `arrived` cannot show this, because reading a
    page that a prefetch left behind moves it.
    """

    move: Callable[[], object]
    spoil: Callable[[], object]
    arrived: Any
    prepare: Callable[[], object] = nothing
    moved: Callable[[], bool] = lambda: True


class Methods:
    """All methods over the link of one GPU, with device memory for the largest transfer."""

    def __init__(self, context: Context, nbytes: int) -> None:
        self.box, self.gpu = context.required_box, context.gpu
        self.synchronize = context.world.backend.synchronize
        self.stream = self.box.stream(self.gpu)
        self.device = self.box.allocate("device", nbytes, self.gpu)
        self.touch = kernels.load("touch.cu", "touch")
        self.most_blocks = BLOCKS_PER_PROCESSOR * self.box.gpus[self.gpu].processors

    def transfer(
        self, method: str, direction: Direction, host: Memory, nbytes: int, seed: int
    ) -> HostTransfer:
        """Make the transfer of the first `nbytes` of `host`, of the method's kind, to or from device memory.

        Call `fill` first, which writes the data of `seed` on the sending side.
        """
        make = self._to_gpu if direction == "to GPU" else self._to_host
        return make(method, host, nbytes, seed)

    def fill(self, method: str, direction: Direction, host: Memory, seed: int) -> None:
        """Write data for transfers by this method in this direction, of any size up to that of `host`."""
        if direction == "to GPU":
            self._fill(self.box.host_array(host)[: host.nbytes], seed)
        else:
            self._fill(self.box.array(host if host.kind == "managed" else self.device)[: host.nbytes], seed)

    def _to_gpu(self, method: str, host: Memory, nbytes: int, seed: int) -> HostTransfer:
        part, target = replace(host, nbytes=nbytes), self.box.array(self.device)[:nbytes]

        def spoil() -> None:
            self._poison(target)

        def spoil_pages() -> None:
            self._poison(self.box.array(part))
            self._fill(self.box.host_array(part), seed)

        def bring_back() -> None:
            self._prefetch(part, host=True)

        if method in ("mapped", "managed"):
            source = self.box.array(part)
            prepare = bring_back if method == "managed" else nothing
            return HostTransfer(lambda: self._touch(target, source), spoil, target, prepare)
        if method == "prefetched":
            there = partial(self.box.prefetched, part)
            return HostTransfer(
                lambda: self._prefetch(part), spoil_pages, self.box.array(part), bring_back, there
            )
        return HostTransfer(lambda: self._copy(self.device, host, nbytes), spoil, target)

    def _to_host(self, method: str, host: Memory, nbytes: int, seed: int) -> HostTransfer:
        part, target = replace(host, nbytes=nbytes), self.box.host_array(host)[:nbytes]

        def spoil() -> None:
            self._poison(target)

        def spoil_pages() -> None:
            self._poison(target)
            self._fill(self.box.array(part), seed)

        def take_away() -> None:
            self._prefetch(part)

        if method == "mapped":
            source, mapped = self.box.array(self.device)[:nbytes], self.box.array(part)
            return HostTransfer(lambda: self._touch(mapped, source), spoil, target)
        if method == "managed":
            # Reading one byte of a page moves all of it.
            return HostTransfer(target[:: mmap.PAGESIZE].sum, spoil_pages, target, take_away)
        if method == "prefetched":
            here = partial(self.box.prefetched, part, host=True)
            return HostTransfer(lambda: self._prefetch(part, host=True), spoil_pages, target, take_away, here)
        # The CPU reads write-combined memory a few bytes at a time: let the GPU read it in place.
        arrived = self.box.array(part) if method == "write-combined" else target
        return HostTransfer(lambda: self._copy(host, self.device, nbytes), spoil, arrived)

    def verified(self, transfer: HostTransfer, nbytes: int, seed: int) -> str | None:
        """Spoil and move once; returns what is wrong with the bytes then, or None."""
        transfer.spoil()
        transfer.prepare()
        transfer.move()
        with self.box.on(self.gpu):
            found = check.verify(transfer.arrived, BYTE, _segments(nbytes, seed))
        if found is None:
            return None
        return f"{found.count:,} of {nbytes:,} bytes are wrong, the first at {found.offset:,}"

    def _copy(self, target: Memory, source: Memory, nbytes: int) -> None:
        self.box.copy(target, source, nbytes, self.stream)
        self.box.synchronize(self.stream)

    def _touch(self, target: Any, source: Any) -> None:
        blocks = min(math.ceil(source.size / (16 * THREADS)), self.most_blocks)
        with self.box.on(self.gpu):
            self.touch((blocks,), (THREADS,), (source, target, np.uint64(source.size)), stream=self.stream)
        self.box.synchronize(self.stream)

    def _prefetch(self, part: Memory, *, host: bool = False) -> None:
        self.box.prefetch(part, self.stream, host=host)
        self.box.synchronize(self.stream)

    def _fill(self, memory: Any, seed: int) -> None:
        with self.box.on(self.gpu):
            check.fill(memory, BYTE, _segments(memory.size, seed))
            self.synchronize()

    def _poison(self, memory: Any) -> None:
        with self.box.on(self.gpu):
            check.poison(memory)
            self.synchronize()


def _segments(nbytes: int, seed: int) -> list[Segment]:
    return [Segment(0, nbytes, Copied(seed, 0), 0)]
