"""Chunks on a CPU: NumPy in the main thread, on slabs of rows that fit a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runner.backend import poison
from runner.pipeline import call_rows, slabs, windows
from runner.storage import HostArray
from runner.stream.ends import Ends, Step, shaped
from runner.window import Window


@dataclass
class HostSlot:
    """Buffers, as bytes, and of the chunk that has them: its padded block, what was read, its result."""

    source: HostArray
    target: HostArray
    number: int
    window: Window
    block: HostArray
    staged: HostArray | None
    result: HostArray


class HostEngine:
    """The file is read into the padded block itself, except where its halo is read from elsewhere too."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def slots(self, count: int) -> list[HostSlot]:
        window, nothing = self._ends.window(0), np.empty(0)
        blocks, results = self._ends.largest
        return [
            HostSlot(
                np.empty(blocks, np.uint8), np.empty(results, np.uint8), -1, window, nothing, None, nothing
            )
            for _ in range(count)
        ]

    def join(self) -> None:
        pass

    def begin(self, slot: HostSlot, number: int) -> list[Step]:
        ends, task = self._ends, self._ends.task
        slot.number, slot.window = number, ends.window(number)
        region = task.output_region(slot.window.region)
        slot.block = shaped(slot.source, slot.window.shape, task.dtype)
        slot.result = shaped(slot.target, region.shape, ends.result_dtype)
        inside = slot.window.inside
        slot.staged = np.empty(slot.window.staged, task.dtype) if inside is None else None
        return ends.reads(slot.window, slot.block[inside] if slot.staged is None else slot.staged)

    def compute(self, slot: HostSlot, idle: Callable[[], None]) -> None:
        ends, task, window = self._ends, self._ends.task, slot.window
        with ends.spans("kernel", slot.number, slot.block.nbytes + slot.result.nbytes):
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
                result = call_rows(ends.world, task, window.region, cells, part, given)
                if result is not out:
                    out[...] = result
                idle()

    def finish(self, slot: HostSlot) -> list[Step]:
        return self._ends.writes(self._ends.task.output_region(slot.window.region), slot.result)

    def release(self, slot: HostSlot) -> None:
        slot.staged = None
