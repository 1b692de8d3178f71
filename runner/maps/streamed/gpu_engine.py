"""GPU engine: each stage has its own stream or threads, so that all stages overlap.

Threads copy between the files and pinned buffers of exact size. Copying directly from and to the files'
mapped pages is slower: pinning pages takes longer than copying them, with any number of threads, and delays
the work that is issued to the device meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.device.api import HostBytes, Mark, poisoned
from meshrun.runner.maps.in_memory import call_rows, windows
from meshrun.runner.maps.streamed.direct_io import Direct
from meshrun.runner.maps.streamed.endpoints import Endpoints, Step, shaped
from meshrun.runner.maps.streamed.halving import Halving, chunk_does_not_fit, pieces
from meshrun.runner.plan.steps import least_rows
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array
from meshrun.runner.report.spans import Stage
from meshrun.runner.world.world import World

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

    direct: direct I/O between the files and the device, where available. halving: of the passes before, which
    this one goes on from.
    """

    def __init__(
        self, endpoints: Endpoints, direct: Direct | None = None, halving: Halving | None = None
    ) -> None:
        self._endpoints, self._backend, self._direct = endpoints, endpoints.world.backend, direct
        self._copies = self._backend.copy_streams()
        self._padded: list[Array] = []
        self._halving = halving or halving_of(endpoints.world, endpoints.task)

    @property
    def shortages(self) -> list[str]:
        return self._halving.shortages

    def slots(self, count: int) -> list[DeviceSlot]:
        def on_device(sizes: list[int]) -> list[Array]:
            return [self._backend.empty((size,), BYTES) for size in sizes]

        def pinned(sizes: list[int]) -> list[HostBytes]:
            return [self._backend.host_empty((size,), BYTES) for size in sizes]

        blocks, results = self._endpoints.largest
        slots: list[DeviceSlot] = []
        short = None
        while len(slots) < count and short is None:
            try:
                if self._endpoints.task.has_halo and not self._padded:
                    self._padded = on_device(blocks)  # kernels run one after another: one set is enough
                device = on_device(blocks)
            except (MemoryError, RuntimeError) as failure:  # CuPy and CUDA
                short = self._backend.shortage(failure)
                if short is None:
                    raise
            else:
                slots.append(DeviceSlot(device, pinned(blocks), pinned(results)))
        if short is not None:
            if not slots:
                raise chunk_does_not_fit(short)
            self.shortages.append(
                f"{len(slots)} of {count} chunks are in flight: the buffers of more do not fit the device "
                f"memory ({short})"
            )
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
            self._send(slot, inputs)
            begin = copies.mark()
            rows = slot.windows[0].region.shape[0]
            slot.results = self._halving.compute(
                rows, partial(self._restore, slot, inputs), partial(self._results, slot, inputs)
            )
            end = copies.mark()
            moved = sum(array.nbytes for array in slot.results)
            moved += sum(
                math.prod(window.shape) * one.dtype.itemsize
                for window, one in zip(slot.windows, task.fields, strict=True)
            )
            slot.marks.append(("kernel", moved, begin, end))
            for place, result in enumerate(slot.results):
                to = endpoints.output_regions(slot.number)[place]
                stored = self._direct.writes(place, to, result) if self._direct else None
                slot.stored.append(stored)
                if stored is None:
                    fetched = copies.fetch(result, slot.target[place][: result.nbytes], end)
                    slot.marks.append(("from device", result.nbytes, *fetched))

    def _send(self, slot: DeviceSlot, inputs: list[Array]) -> None:
        """Copy what was read to the host, and make the compute stream wait for it."""
        copies = self._copies
        for place, staged in enumerate(inputs):
            if not slot.loaded[place]:
                sent = copies.send(slot.source[place][: staged.nbytes], slot.device[place])
                slot.marks.append(("to device", staged.nbytes, *sent))
                copies.wait(sent[1])

    def _restore(self, slot: DeviceSlot, inputs: list[Array]) -> None:
        """Fill the device buffers of a chunk again, after all device work has ended."""
        self._send(slot, inputs)
        for place, window in enumerate(slot.windows):
            if slot.loaded[place]:
                assert self._direct is not None
                for step in self._direct.reads(place, window, slot.device[place]) or []:
                    step.do()

    def _results(self, slot: DeviceSlot, inputs: list[Array], most: int) -> list[Array]:
        """Return the results of a chunk, by calls on at most `most` rows."""
        endpoints, task, region = self._endpoints, self._endpoints.task, slot.windows[0].region
        blocks = [self._block(slot, place, staged) for place, staged in enumerate(inputs)]
        rows = region.shape[0]
        if rows <= most:
            if endpoints.take is not None:
                return [result.copy() for result in endpoints.take(region, blocks)]
            outs = poisoned(self._backend, task.filled(region.shape))
            found = call_rows(endpoints.world, task, region, blocks, (0, rows), outs)
            return [self._kept(result) for result in found]
        whole = [
            self._backend.empty(endpoints.output_regions(slot.number)[place].shape, dtype)
            for place, (_, dtype) in enumerate(task.known)
        ]
        cuts = pieces(rows, most, self._halving.least, task.units[0])
        for (first, last), window in windows(blocks, cuts, sum(task.widths[0])):
            if endpoints.take is not None:
                part: Sequence[Array] = endpoints.take(region.rows(first, last), window)
            else:
                outs = poisoned(self._backend, task.filled(region.rows(first, last).shape))
                part = call_rows(endpoints.world, task, region, window, (first, last), outs)
            for place, result in enumerate(part):
                whole[place][task.output_rows((first, last), place)] = result
        return whole

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


def halving_of(world: World, task: Task) -> Halving:
    """Return the state of calls that have not been halved yet."""
    least = least_rows(task, 1) if task.steps > 1 else 1  # `task` has the halo of all its steps
    return Halving(world.backend, task.job.name, max(task.units[0], least))
