"""GPU engine: each stage has a stream or threads of its own, so that all stages overlap.

Threads copy between the files and pinned buffers of exact size. Copying straight from and to the files'
mapped pages was tried and dropped: pinning pages takes longer than copying them, with any number of
threads, and delays the work that is issued to the device meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.device.api import HostBytes, Mark
from runner.pipeline.direct_io import Direct
from runner.pipeline.endpoints import Endpoints, Step, shaped
from runner.pipeline.in_memory import call_rows, result_buffer
from runner.pipeline.result_type import hide_output
from runner.plan.window import Window
from runner.region import Array
from runner.report.spans import Stage

BYTES = np.dtype(np.uint8)


@dataclass
class DeviceSlot:
    """Device and pinned buffers, as bytes, and the state of the chunk in them.

    marks: stage, bytes moved, begin and end of each device operation. result: device array. loaded: the
    input was read straight into device memory. stored: steps that write the result straight to its file.
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
    """Reads and writes many chunks while the device computes.

    direct: direct I/O between the files and the device, where available.
    """

    def __init__(self, endpoints: Endpoints, direct: Direct | None = None) -> None:
        self._endpoints, self._backend, self._direct = endpoints, endpoints.world.backend, direct
        self._copies = self._backend.copy_streams()
        self._blocks, self._results = endpoints.largest
        self._padded: Array = None

    def slots(self, count: int) -> list[DeviceSlot]:
        device, pinned, window = self._backend.empty, self._backend.host_empty, self._endpoints.window(0)
        if any(width != (0, 0) for width in self._endpoints.task.widths):
            self._padded = device(
                (self._blocks,), BYTES
            )  # kernels run one after another: one buffer is enough
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
        """Call the function once on zeros, shaped like the first chunk, and drop the result.

        The first call compiles kernels, which can take longer than many chunks and would delay those in
        flight. Zeros are not rows of the array, so no row is computed twice. A function that raises on zeros
        compiles its kernels on its first chunk instead.
        """
        slot.number, slot.window, slot.loaded = 0, self._endpoints.window(0), False
        slot.source[: math.prod(slot.window.staged) * self._endpoints.task.dtype.itemsize] = 0
        try:
            with hide_output(failures=False), np.errstate(all="ignore"):
                self.compute(slot, lambda: None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # only an error on a real chunk ends the run
            self._backend.synchronize()
        self._copies.passed(slot.marks[-1][-1])
        self.release(slot)

    def join(self) -> None:
        self._copies.join()

    def begin(self, slot: DeviceSlot, number: int) -> list[Step]:
        slot.number, slot.window = number, self._endpoints.window(number)
        loads = self._direct.reads(slot.window, slot.device) if self._direct else None
        slot.loaded = loads is not None
        if loads is not None:
            return loads
        staged = shaped(slot.source, slot.window.staged, self._endpoints.task.dtype)
        return self._endpoints.reads(slot.window, staged)

    def compute(self, slot: DeviceSlot, idle: Callable[[], None]) -> None:
        endpoints, task, window, copies = self._endpoints, self._endpoints.task, slot.window, self._copies
        with copies.named(f"chunk {slot.number}"):
            staged = shaped(slot.device, window.staged, task.dtype)
            if not slot.loaded:
                sent = copies.send(slot.source[: staged.nbytes], slot.device)
                slot.marks.append(("to device", staged.nbytes, *sent))
                copies.wait(sent[1])
            begin = copies.mark()
            block = staged
            if not window.direct:
                block = shaped(self._padded, window.shape, task.dtype)
                window.assemble(staged, block)
            rows = window.region.shape[0]
            out = result_buffer(task, window.region.shape, self._backend)
            slot.result = self._kept(call_rows(endpoints.world, task, window.region, block, (0, rows), out))
            end = copies.mark()
            nbytes = slot.result.nbytes
            slot.marks.append(("kernel", block.nbytes + nbytes, begin, end))
            region = task.output_region(window.region)
            slot.stored = self._direct.writes(region, slot.result) if self._direct else None
            if slot.stored is None:
                fetched = copies.fetch(slot.result, slot.target[:nbytes], end)
                slot.marks.append(("from device", nbytes, *fetched))

    def finish(self, slot: DeviceSlot) -> list[Step]:
        for stage, moved, begin, end in slot.marks:
            last = self._copies.passed(end)
            self._endpoints.spans.add(stage, slot.number, self._copies.passed(begin), last, moved)
        if slot.stored is not None:
            return slot.stored
        region = self._endpoints.task.output_region(slot.window.region)
        result = shaped(slot.target, region.shape, self._endpoints.result_dtype)
        return self._endpoints.writes(region, result)

    def release(self, slot: DeviceSlot) -> None:
        slot.marks, slot.result, slot.stored = [], None, None

    def _kept(self, result: Array) -> Array:
        """Return the result in memory that later chunks, which share the padded block, do not overwrite."""
        xp = self._backend.xp
        if self._padded is not None and xp.may_share_memory(result, self._padded):
            return result.copy()
        return xp.ascontiguousarray(result)
