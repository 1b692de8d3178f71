"""CPU engine: NumPy in the main thread, on slabs of rows that fit a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshrun.runner.device.api import poison
from meshrun.runner.maps.in_memory import call_rows, slabs, windows
from meshrun.runner.maps.streamed.endpoints import Endpoints, Step, shaped
from meshrun.runner.plan.window import Window
from meshrun.runner.region import HostArray


@dataclass
class HostSlot:
    """Buffers, as bytes, and the chunk in them.

    sources, windows, blocks, staged: per input; staged: the packed array, None if the block is read directly.
    targets, results: per output.
    """

    sources: list[HostArray]
    targets: list[HostArray]
    number: int = -1
    windows: list[Window] = field(default_factory=list)
    blocks: list[HostArray] = field(default_factory=list)
    staged: list[HostArray | None] = field(default_factory=list)
    results: list[HostArray] = field(default_factory=list)


class HostEngine:
    """Read files directly into the padded blocks, unless a halo comes from another part of the file."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self.shortages: list[str] = []

    def slots(self, count: int) -> list[HostSlot]:
        def buffers(sizes: list[int]) -> list[HostArray]:
            return [np.empty(size, np.uint8) for size in sizes]

        blocks, results = self._endpoints.largest
        return [HostSlot(buffers(blocks), buffers(results)) for _ in range(count)]

    def join(self) -> None:
        pass

    def begin(self, slot: HostSlot, number: int) -> list[Step]:
        endpoints, task = self._endpoints, self._endpoints.task
        slot.number, slot.windows = number, endpoints.windows(number)
        slot.blocks, slot.staged, steps = [], [], []
        for place, (window, one) in enumerate(zip(slot.windows, task.fields, strict=True)):
            block = shaped(slot.sources[place], window.shape, one.dtype)
            staged = np.empty(window.staged, one.dtype) if window.inside is None else None
            slot.blocks.append(block)
            slot.staged.append(staged)
            steps += endpoints.reads(place, window, block[window.inside] if staged is None else staged)
        slot.results = [
            shaped(memory, region.shape, dtype)
            for memory, region, (_, dtype) in zip(
                slot.targets, endpoints.output_regions(number), task.known, strict=True
            )
        ]
        return steps

    def compute(self, slot: HostSlot, idle: Callable[[], None]) -> None:
        endpoints, task = self._endpoints, self._endpoints.task
        moved = sum(array.nbytes for array in (*slot.blocks, *slot.results))
        with endpoints.spans("kernel", slot.number, moved):
            for window, staged, block in zip(slot.windows, slot.staged, slot.blocks, strict=True):
                if staged is not None:
                    window.assemble(staged, block)
                elif not window.direct:
                    window.fill(block)
            region = slot.windows[0].region
            if endpoints.take is not None:
                stepped = endpoints.take(region, slot.blocks)
                for result, out in zip(stepped, slot.results, strict=True):
                    out[...] = result
                return
            parts = slabs(task, region, (0, region.shape[0]))
            for part, cells in windows(slot.blocks, parts, sum(task.widths[0])):
                outs = [result[task.output_rows(part, place)] for place, result in enumerate(slot.results)]
                if task.fills:
                    for out in outs:
                        poison(out)
                given = outs if task.fills else None
                found = call_rows(endpoints.world, task, region, cells, part, given)
                for result, out in zip(found, outs, strict=True):
                    if result is not out:
                        out[...] = result
                idle()

    def finish(self, slot: HostSlot) -> list[Step]:
        regions = self._endpoints.output_regions(slot.number)
        return [
            step
            for place, (region, result) in enumerate(zip(regions, slot.results, strict=True))
            for step in self._endpoints.writes(place, region, result)
        ]

    def release(self, slot: HostSlot) -> None:
        slot.staged = []
