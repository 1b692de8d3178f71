"""CPU engine: NumPy in the main thread, on slabs of rows that fit a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runner.device.api import poison
from runner.pipeline.endpoints import Endpoints, Step, shaped
from runner.pipeline.in_memory import call_rows, slabs, windows
from runner.plan.window import Window
from runner.region import HostArray


@dataclass
class HostSlot:
    """Buffers, as bytes, and the chunk in them: its padded block, its input if staged, its result."""

    source: HostArray
    target: HostArray
    number: int
    window: Window
    block: HostArray
    staged: HostArray | None
    result: HostArray


class HostEngine:
    """Reads the file straight into the padded block, unless its halo comes from another part of the file."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def slots(self, count: int) -> list[HostSlot]:
        window, nothing = self._endpoints.window(0), np.empty(0)
        blocks, results = self._endpoints.largest
        return [
            HostSlot(
                np.empty(blocks, np.uint8), np.empty(results, np.uint8), -1, window, nothing, None, nothing
            )
            for _ in range(count)
        ]

    def join(self) -> None:
        pass

    def begin(self, slot: HostSlot, number: int) -> list[Step]:
        endpoints, task = self._endpoints, self._endpoints.task
        slot.number, slot.window = number, endpoints.window(number)
        region = task.output_region(slot.window.region)
        slot.block = shaped(slot.source, slot.window.shape, task.dtype)
        slot.result = shaped(slot.target, region.shape, endpoints.result_dtype)
        inside = slot.window.inside
        slot.staged = np.empty(slot.window.staged, task.dtype) if inside is None else None
        return endpoints.reads(slot.window, slot.block[inside] if slot.staged is None else slot.staged)

    def compute(self, slot: HostSlot, idle: Callable[[], None]) -> None:
        endpoints, task, window = self._endpoints, self._endpoints.task, slot.window
        with endpoints.spans("kernel", slot.number, slot.block.nbytes + slot.result.nbytes):
            if slot.staged is not None:
                window.assemble(slot.staged, slot.block)
            elif not window.direct:
                window.fill(slot.block)
            rows = (0, window.region.shape[0])
            parts = slabs(window.region, task.widths[0], task.dtype.itemsize, rows)
            for part, cells in windows(slot.block, parts, sum(task.widths[0])):
                out = slot.result[slice(*part)]
                if task.fills:
                    poison(out)
                given = out if task.fills else None
                result = call_rows(endpoints.world, task, window.region, cells, part, given)
                if result is not out:
                    out[...] = result
                idle()

    def finish(self, slot: HostSlot) -> list[Step]:
        return self._endpoints.writes(self._endpoints.task.output_region(slot.window.region), slot.result)

    def release(self, slot: HostSlot) -> None:
        slot.staged = None
