"""Chunks on a GPU: each stage on a stream or in threads of its own, so that all of them run at once.

Where an array lies in its file as it does in memory, and the file's pages can be pinned, the device copies
straight from them, or to them: no processor touches the data, and a chunk is "read" once its pages are
pinned. Elsewhere threads copy between the file and pinned buffers of exact size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from runner.backend import HostBytes, Mapped, Mark, NotMapped
from runner.comm import Array
from runner.partition import Region, Shape
from runner.pipeline import call_rows
from runner.spans import Stage
from runner.storage import Flat
from runner.stream.ends import Ends, Task, shaped
from runner.window import Window

BYTES = np.dtype(np.uint8)
Side = tuple[Stage, Flat, int, int, bool]  # "read" or "write": a file, from which byte, how many, writable


@dataclass
class DeviceSlot:
    """A device buffer, and pinned ones where files are not mapped; of the chunk that has them: the rest.

    host: where each side's bytes are, a buffer or pages. marks: begin and end of what the device does.
    """

    device: Array
    number: int
    window: Window
    buffers: dict[str, HostBytes] = field(default_factory=dict)
    host: dict[str, HostBytes] = field(default_factory=dict)
    pages: dict[str, Mapped] = field(default_factory=dict)
    marks: list[tuple[Stage, int, Mark, Mark]] = field(default_factory=list)
    result: Any = None


class DeviceEngine:
    """how: "mapped" or "copied" for each side, "read" and "write", as it turned out."""

    def __init__(self, ends: Ends) -> None:
        self._ends, self._backend = ends, ends.world.backend
        self._lanes = self._backend.lanes()
        blocks, results = ends.largest
        self._largest = {"read": blocks, "write": results}
        self._padded: Array = None
        self.how = {
            "read": "mapped" if ends.source.flat is not None else "copied",
            "write": "mapped" if ends.sink.flat is not None else "copied",
        }

    def slots(self, count: int) -> list[DeviceSlot]:
        size = (self._largest["read"],)
        if any(width != (0, 0) for width in self._ends.work.widths):
            self._padded = self._backend.empty(size, BYTES)  # kernels run one after another: one will do
        window = self._ends.window(0)
        return [DeviceSlot(self._backend.empty(size, BYTES), -1, window) for _ in range(count)]

    def join(self) -> None:
        self._lanes.join()

    def begin(self, slot: DeviceSlot, number: int) -> list[Task]:
        ends, work, window = self._ends, self._ends.work, self._ends.window(number)
        slot.number, slot.window = number, window
        tasks = []
        reads = [region for region, _ in window.reads()]
        lies = in_file(ends.source.flat, work.shape, work.dtype, reads)
        if self.how["read"] == "mapped" and lies is not None:
            tasks.append(Task("read", lies[2], partial(self._map, slot, "read", *lies)))
        else:
            tasks += ends.reads(window, shaped(self._buffer(slot, "read"), window.staged, work.dtype))
        lies = in_file(ends.sink.flat, *work.known, [work.output_region(window.region)])
        if self.how["write"] == "mapped" and lies is not None:
            tasks.append(Task("write", 0, partial(self._map, slot, "write", *lies)))
        return tasks

    def compute(self, slot: DeviceSlot) -> None:
        ends, work, window, lanes = self._ends, self._ends.work, slot.window, self._lanes
        with lanes.named(f"chunk {slot.number}"):
            staged = shaped(slot.device, window.staged, work.dtype)
            sent = lanes.send(slot.host["read"][: staged.nbytes], slot.device)
            lanes.wait(sent[1])
            begin = lanes.mark()
            block = staged
            if not window.direct:
                block = shaped(self._padded, window.shape, work.dtype)
                window.assemble(staged, block)
            region = window.region
            out = work.buffer(region.shape, self._backend)
            slot.result = call_rows(ends.world, work, region, block, (0, region.shape[0]), out)
            slot.result = self._kept(slot.result)
            end = lanes.mark()
            nbytes = slot.result.nbytes
            if "write" not in slot.host:
                self._buffer(slot, "write")
            fetched = lanes.fetch(slot.result, slot.host["write"][:nbytes], end)
        slot.marks = [
            ("to device", staged.nbytes, *sent),
            ("kernel", block.nbytes + nbytes, begin, end),
            ("from device", nbytes, *fetched),
        ]

    def finish(self, slot: DeviceSlot) -> list[Task]:
        for stage, moved, begin, end in slot.marks:
            last = self._lanes.passed(end)
            self._ends.spans.add(stage, slot.number, self._lanes.passed(begin), last, moved)
        if "read" in slot.pages:
            self._unmap(slot, "read")
        if "write" in slot.pages:
            return [Task("write", slot.result.nbytes, partial(self._unmap, slot, "write"))]
        region = self._ends.work.output_region(slot.window.region)
        result = shaped(slot.host["write"], region.shape, self._ends.result_dtype)
        return self._ends.writes(region, result)

    def release(self, slot: DeviceSlot) -> None:
        for side in list(slot.pages):
            self._unmap(slot, side)
        slot.host.clear()
        slot.marks, slot.result = [], None

    def _kept(self, result: Array) -> Array:
        """The result as it may stay while later chunks are computed, which share the padded block."""
        xp = self._backend.xp
        if self._padded is not None and xp.may_share_memory(result, self._padded):
            return result.copy()
        return xp.ascontiguousarray(result)

    def _buffer(self, slot: DeviceSlot, side: str) -> HostBytes:
        if side not in slot.buffers:
            slot.buffers[side] = self._backend.host_empty((self._largest[side],), BYTES)
        slot.host[side] = slot.buffers[side]
        return slot.buffers[side]

    def _map(self, slot: DeviceSlot, side: str, flat: Flat, offset: int, nbytes: int) -> None:
        try:
            slot.pages[side] = self._lanes.map(flat.path, offset, nbytes, writable=side == "write")
        except NotMapped:
            self.how[side] = "copied"  # as everything from now on
            buffer = self._buffer(slot, side)
            if side == "read":
                window, work = slot.window, self._ends.work
                for task in self._ends.reads(window, shaped(buffer, window.staged, work.dtype)):
                    task.do()
        else:
            slot.host[side] = slot.pages[side].bytes

    def _unmap(self, slot: DeviceSlot, side: str) -> None:
        del slot.host[side]
        slot.pages.pop(side).close()


def in_file(
    flat: Flat | None, shape: Shape, dtype: np.dtype[Any], regions: list[Region]
) -> tuple[Flat, int, int] | None:
    """The file and the run of its bytes that hold one region of an array; None where it is no such run."""
    if flat is None or len(regions) != 1:
        return None
    (region,) = regions
    lengths = region.shape
    first = next((axis for axis, length in enumerate(lengths) if length > 1), len(shape))
    if lengths[first + 1 :] != shape[first + 1 :]:
        return None
    start = int(np.ravel_multi_index(region.start, shape)) if region.size else 0
    return flat, flat.offset + start * dtype.itemsize, region.size * dtype.itemsize
