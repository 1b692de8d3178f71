"""Chunks on a GPU: each stage on a stream or in threads of its own, so that all of them run at once.

Threads copy between the files and pinned buffers of exact size. Letting the device copy from and to the
files' own pages was tried and left: to pin pages takes longer than to copy them, however many threads do
it, and holds up what is issued to the device meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.backend import HostBytes, Mark
from runner.comm import Array
from runner.pipeline import call_rows, result_buffer
from runner.result_type import hide_output
from runner.spans import Stage
from runner.stream.direct import Direct
from runner.stream.ends import Ends, Step, shaped
from runner.window import Window

BYTES = np.dtype(np.uint8)


@dataclass
class DeviceSlot:
    """Buffers, as bytes: on the device, and pinned ones; of the chunk that has them: the rest.

    marks: begin and end of what the device does, and the bytes moved. result: on the device. loaded: the
    file's bytes go straight to the device. stored: steps that write the result straight to its file.
    """

    device: Array
    source: HostBytes
    target: HostBytes
    number: int
    window: Window
    marks: list[tuple[Stage, int, Mark, Mark]] = field(default_factory=list)
    result: Any = None
    loaded: bool = False
    stored: list[Step] | None = None


class DeviceEngine:
    """Reads and writes many chunks at once beside what the device does.

    direct: the files as the device reads and writes them itself, where it can.
    """

    def __init__(self, ends: Ends, direct: Direct | None = None) -> None:
        self._ends, self._backend, self._direct = ends, ends.world.backend, direct
        self._lanes = self._backend.lanes()
        self._blocks, self._results = ends.largest
        self._padded: Array = None

    def slots(self, count: int) -> list[DeviceSlot]:
        device, pinned, window = self._backend.empty, self._backend.host_empty, self._ends.window(0)
        if any(width != (0, 0) for width in self._ends.task.widths):
            self._padded = device((self._blocks,), BYTES)  # kernels run one after another: one will do
        slots = [
            DeviceSlot(
                device((self._blocks,), BYTES),
                pinned((self._blocks,), BYTES),
                pinned((self._results,), BYTES),
                -1,
                window,
            )
            for _ in range(count)
        ]
        self._rehearse(slots[0])
        return slots

    def _rehearse(self, slot: DeviceSlot) -> None:
        """Call the function once on zeros, in place of the first chunk, and drop the result.

        A first call compiles kernels, which can take longer than many chunks and would hold up those that
        are under way. Zeros are no rows of the array: none of these is computed twice. A function that
        raises on zeros compiles its kernels when it is called on its first chunk.
        """
        slot.number, slot.window, slot.loaded = 0, self._ends.window(0), False
        slot.source[: math.prod(slot.window.staged) * self._ends.task.dtype.itemsize] = 0
        try:
            with hide_output(failures=False), np.errstate(all="ignore"):
                self.compute(slot, lambda: None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # what it raises on a chunk ends the run
            self._backend.synchronize()
        self._lanes.passed(slot.marks[-1][-1])
        self.release(slot)

    def join(self) -> None:
        self._lanes.join()

    def begin(self, slot: DeviceSlot, number: int) -> list[Step]:
        slot.number, slot.window = number, self._ends.window(number)
        loads = self._direct.reads(slot.window, slot.device) if self._direct else None
        slot.loaded = loads is not None
        if loads is not None:
            return loads
        staged = shaped(slot.source, slot.window.staged, self._ends.task.dtype)
        return self._ends.reads(slot.window, staged)

    def compute(self, slot: DeviceSlot, idle: Callable[[], None]) -> None:
        ends, task, window, lanes = self._ends, self._ends.task, slot.window, self._lanes
        with lanes.named(f"chunk {slot.number}"):
            staged = shaped(slot.device, window.staged, task.dtype)
            if not slot.loaded:
                sent = lanes.send(slot.source[: staged.nbytes], slot.device)
                slot.marks.append(("to device", staged.nbytes, *sent))
                lanes.wait(sent[1])
            begin = lanes.mark()
            block = staged
            if not window.direct:
                block = shaped(self._padded, window.shape, task.dtype)
                window.assemble(staged, block)
            rows = window.region.shape[0]
            out = result_buffer(task, window.region.shape, self._backend)
            slot.result = self._kept(call_rows(ends.world, task, window.region, block, (0, rows), out))
            end = lanes.mark()
            nbytes = slot.result.nbytes
            slot.marks.append(("kernel", block.nbytes + nbytes, begin, end))
            region = task.output_region(window.region)
            slot.stored = self._direct.writes(region, slot.result) if self._direct else None
            if slot.stored is None:
                fetched = lanes.fetch(slot.result, slot.target[:nbytes], end)
                slot.marks.append(("from device", nbytes, *fetched))

    def finish(self, slot: DeviceSlot) -> list[Step]:
        for stage, moved, begin, end in slot.marks:
            last = self._lanes.passed(end)
            self._ends.spans.add(stage, slot.number, self._lanes.passed(begin), last, moved)
        if slot.stored is not None:
            return slot.stored
        region = self._ends.task.output_region(slot.window.region)
        result = shaped(slot.target, region.shape, self._ends.result_dtype)
        return self._ends.writes(region, result)

    def release(self, slot: DeviceSlot) -> None:
        slot.marks, slot.result, slot.stored = [], None, None

    def _kept(self, result: Array) -> Array:
        """The result as it may stay while later chunks are computed, which share the padded block."""
        xp = self._backend.xp
        if self._padded is not None and xp.may_share_memory(result, self._padded):
            return result.copy()
        return xp.ascontiguousarray(result)
