"""The ways of bytes between a host and a GPU: how they get across, and whether they all did."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

import runner
from jobs import kernels
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.timers import nothing
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment
from runner import Memory

Direction = Literal["to GPU", "to host"]
DIRECTIONS: tuple[Direction, ...] = ("to GPU", "to host")
# way -> the kind of host memory
WAYS: dict[str, Any] = {
    "pageable": "pageable",
    "pinned": "pinned",
    "write-combined": "combined",
    "mapped": "mapped",
    "managed": "managed",
    "prefetched": "managed",
}
BYTE = runner.DATATYPES["uint8"]
THREADS, BLOCKS_EACH = 256, 8  # of a processor: as many threads as it holds at a time


@dataclass(frozen=True)
class Crossing:
    """One way, one direction, so many bytes.

    move: returns when the bytes can be used on the other side. ready: undoes that, where it must be undone.
    spoil: makes sure that they are on this side only. seen: (nbytes,) uint8, as the other side has them.
    moved: whether they went there. A page that a prefetch left behind moves when it is looked at, so that
    bytes do not tell: for prefetches, what the driver knows.
    """

    move: Callable[[], object]
    spoil: Callable[[], object]
    seen: Any
    ready: Callable[[], object] = nothing
    moved: Callable[[], bool] = lambda: True


class Ways:
    """Over the link of one GPU, with device memory for as many bytes as there will be at most."""

    def __init__(self, stage: Stage, nbytes: int) -> None:
        self.box, self.gpu, self.stage = stage.gpus, stage.gpu, stage
        self.stream = self.box.stream(self.gpu)
        self.device = self.box.allocate("device", nbytes, self.gpu)
        self.touch = kernels.load("touch.cu", "touch")
        self.most_blocks = BLOCKS_EACH * self.box.gpus[self.gpu].processors

    def crossing(self, way: str, direction: Direction, host: Memory, nbytes: int, seed: int) -> Crossing:
        """The first `nbytes` of `host`, which is of the way's kind, to or from device memory.

        `fill` has put the data of `seed` where they come from.
        """
        make = self._to_gpu if direction == "to GPU" else self._to_host
        return make(way, host, nbytes, seed)

    def fill(self, way: str, direction: Direction, host: Memory, seed: int) -> None:
        """Data for crossings of this way and direction, of any number of bytes that `host` holds."""
        if direction == "to GPU":
            self._fill(self.box.host_array(host)[: host.nbytes], seed)
        else:
            self._fill(self.box.array(host if host.kind == "managed" else self.device)[: host.nbytes], seed)

    def _to_gpu(self, way: str, host: Memory, nbytes: int, seed: int) -> Crossing:
        part, landing = replace(host, nbytes=nbytes), self.box.array(self.device)[:nbytes]

        def spoil() -> None:
            self._poison(landing)

        def spoil_pages() -> None:
            self._poison(self.box.array(part))
            self._fill(self.box.host_array(part), seed)

        def bring_back() -> None:
            self._prefetch(part, host=True)

        if way in ("mapped", "managed"):
            source = self.box.array(part)
            ready = bring_back if way == "managed" else nothing
            return Crossing(lambda: self._touch(landing, source), spoil, landing, ready)
        if way == "prefetched":
            there = partial(self.box.prefetched, part)
            return Crossing(
                lambda: self._prefetch(part), spoil_pages, self.box.array(part), bring_back, there
            )
        return Crossing(lambda: self._copy(self.device, host, nbytes), spoil, landing)

    def _to_host(self, way: str, host: Memory, nbytes: int, seed: int) -> Crossing:
        part, landing = replace(host, nbytes=nbytes), self.box.host_array(host)[:nbytes]

        def spoil() -> None:
            self._poison(landing)

        def spoil_pages() -> None:
            self._poison(landing)
            self._fill(self.box.array(part), seed)

        def take_away() -> None:
            self._prefetch(part)

        if way == "mapped":
            source, target = self.box.array(self.device)[:nbytes], self.box.array(part)
            return Crossing(lambda: self._touch(target, source), spoil, landing)
        if way == "managed":
            # One byte of a page brings all of it.
            return Crossing(landing[:: mmap.PAGESIZE].sum, spoil_pages, landing, take_away)
        if way == "prefetched":
            here = partial(self.box.prefetched, part, host=True)
            return Crossing(lambda: self._prefetch(part, host=True), spoil_pages, landing, take_away, here)
        # A processor reads write-combined memory a few bytes at a time: let the GPU look at it where it is.
        seen = self.box.array(part) if way == "write-combined" else landing
        return Crossing(lambda: self._copy(host, self.device, nbytes), spoil, seen)

    def proven(self, crossing: Crossing, nbytes: int, seed: int) -> str | None:
        """Move spoilt bytes once; what is wrong with them then."""
        crossing.spoil()
        crossing.ready()
        crossing.move()
        with self.box.on(self.gpu):
            found = check.verify(crossing.seen, BYTE, _segments(nbytes, seed))
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
            self.stage.world.backend.synchronize()

    def _poison(self, memory: Any) -> None:
        with self.box.on(self.gpu):
            check.poison(memory)
            self.stage.world.backend.synchronize()


def _segments(nbytes: int, seed: int) -> list[Segment]:
    return [Segment(0, nbytes, Copied(seed, 0), 0)]
