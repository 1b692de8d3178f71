"""GPU engine: each stage has its own stream or threads, so that all stages overlap.

Threads copy between the files and pinned buffers of exact size. Copying directly from and to the files'
mapped pages is slower: pinning pages takes longer than copying them, with any number of threads, and delays
the work that is issued to the device meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.device.api import HostBytes, Mark
from runner.pipeline.in_memory import call_rows
from runner.pipeline.result_type import hide_output, result_buffers
from runner.pipeline.streamed.direct_io import Direct
from runner.pipeline.streamed.endpoints import Endpoints, Step, shaped
from runner.plan.window import Window
from runner.region import Array
from runner.report.spans import Stage

BYTES = np.dtype(np.uint8)


@dataclass
class DeviceSlot:
    """Device and pinned buffers, as bytes, and the state of the chunk in them.

    device, source, loaded: per input; loaded: it was read directly into device memory. target, results,
    stored: per output; stored: steps that write it directly to its file, None if it is fetched first. marks:
    stage, bytes moved, begin and end of each device operation.
    """

    device: list[Array]
    source: list[HostBytes]
    target: list[HostBytes]
    number: int = -1
    windows: list[Window] = field(default_factory=list)
    marks: list[tuple[Stage, int, Mark, Mark]] = field(default_factory=list)
    results: list[Array] = field(default_factory=list)
    loaded: list[bool] = field(default_factory=list)
    stored: list[list[Step] | None] = field(default_factory=list)


class DeviceEngine:
    """Read and write many chunks while the device computes.

    direct: direct I/O between the files and the device, where available.
    """

    def __init__(self, endpoints: Endpoints, direct: Direct | None = None) -> None:
        self._endpoints, self._backend, self._direct = endpoints, endpoints.world.backend, direct
        self._copies = self._backend.copy_streams()
        self._padded: list[Array] = []

    def slots(self, count: int) -> list[DeviceSlot]:
        def on_device(sizes: list[int]) -> list[Array]:
            return [self._backend.empty((size,), BYTES) for size in sizes]

        def pinned(sizes: list[int]) -> list[HostBytes]:
            return [self._backend.host_empty((size,), BYTES) for size in sizes]

        blocks, results = self._endpoints.largest
        if self._endpoints.task.has_halo:
            self._padded = on_device(blocks)  # kernels run one after another: one set is enough
        slots = [DeviceSlot(on_device(blocks), pinned(blocks), pinned(results)) for _ in range(count)]
        self._rehearse(slots[0])
        return slots

    def _rehearse(self, slot: DeviceSlot) -> None:
        """Call the function once on zeros, shaped like the first chunk, and drop the result.

        The first call compiles kernels, which can take longer than many chunks and would delay those in
        flight. Zeros are not rows of the array, so no row is computed twice. A function that raises on zeros
        compiles its kernels on its first chunk instead.
        """
        slot.number, slot.windows = 0, self._endpoints.windows(0)
        slot.loaded = [False] * len(slot.windows)
        for staged in self._staged(slot, slot.source):
            staged.fill(0)
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
        slot.number, slot.windows, slot.loaded = number, self._endpoints.windows(number), []
        steps = []
        for place, (window, staged) in enumerate(
            zip(slot.windows, self._staged(slot, slot.source), strict=True)
        ):
            direct = self._direct.reads(place, window, slot.device[place]) if self._direct else None
            slot.loaded.append(direct is not None)
            steps += self._endpoints.reads(place, window, staged) if direct is None else direct
        return steps

    def compute(self, slot: DeviceSlot, idle: Callable[[], None]) -> None:
        endpoints, task, copies = self._endpoints, self._endpoints.task, self._copies
        with copies.named(f"chunk {slot.number}"):
            inputs = list(self._staged(slot, slot.device))
            for place, staged in enumerate(inputs):
                if not slot.loaded[place]:
                    sent = copies.send(slot.source[place][: staged.nbytes], slot.device[place])
                    slot.marks.append(("to device", staged.nbytes, *sent))
                    copies.wait(sent[1])
            begin = copies.mark()
            blocks = [self._block(slot, place, staged) for place, staged in enumerate(inputs)]
            region = slot.windows[0].region
            if endpoints.steps is not None:
                slot.results = [result.copy() for result in endpoints.steps.take(region, blocks)]
            else:
                outs = result_buffers(task, region.shape, self._backend)
                found = call_rows(endpoints.world, task, region, blocks, (0, region.shape[0]), outs)
                slot.results = [self._kept(result) for result in found]
            end = copies.mark()
            moved = sum(array.nbytes for array in (*blocks, *slot.results))
            slot.marks.append(("kernel", moved, begin, end))
            for place, result in enumerate(slot.results):
                to = endpoints.output_regions(slot.number)[place]
                stored = self._direct.writes(place, to, result) if self._direct else None
                slot.stored.append(stored)
                if stored is None:
                    fetched = copies.fetch(result, slot.target[place][: result.nbytes], end)
                    slot.marks.append(("from device", result.nbytes, *fetched))

    def finish(self, slot: DeviceSlot) -> list[Step]:
        for stage, moved, begin, end in slot.marks:
            last = self._copies.passed(end)
            self._endpoints.spans.add(stage, slot.number, self._copies.passed(begin), last, moved)
        steps: list[Step] = []
        regions = self._endpoints.output_regions(slot.number)
        for place, (region, (_, dtype)) in enumerate(zip(regions, self._endpoints.task.known, strict=True)):
            stored = slot.stored[place]
            result = shaped(slot.target[place], region.shape, dtype)
            steps += self._endpoints.writes(place, region, result) if stored is None else stored
        return steps

    def release(self, slot: DeviceSlot) -> None:
        slot.marks, slot.results, slot.stored = [], [], []

    def _staged(self, slot: DeviceSlot, memory: list[Any]) -> Iterator[Any]:
        """Yield the packed array to read for each input of the slot's chunk, in `memory`."""
        fields = self._endpoints.task.fields
        for window, one, buffer in zip(slot.windows, fields, memory, strict=True):
            yield shaped(buffer, window.staged, one.dtype)

    def _block(self, slot: DeviceSlot, place: int, staged: Array) -> Array:
        """Return the padded block of input `place`."""
        window = slot.windows[place]
        if window.direct:
            return staged
        block = shaped(self._padded[place], window.shape, staged.dtype)
        window.assemble(staged, block)
        return block

    def _kept(self, result: Array) -> Array:
        """Return the result in memory that later chunks, which share the padded blocks, do not overwrite."""
        xp = self._backend.xp
        if any(xp.may_share_memory(result, padded) for padded in self._padded):
            return result.copy()
        return xp.ascontiguousarray(result)
