"""Engine for folders of images: threads decode and encode several images at once.

An image is whole in memory and on the device: its halo is beyond its own edges and is filled after
decoding. Copies to and from a GPU are synchronous: decoding takes most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from meshrun.runner.compiler.decide import ImageKernels
from meshrun.runner.compiler.result_type import types_of, types_without_cells
from meshrun.runner.device.api import poison
from meshrun.runner.errors import MeshrunError, RunError, UserError, describe
from meshrun.runner.maps.in_memory import call_rows, slabs, windows
from meshrun.runner.maps.streamed.endpoints import Step
from meshrun.runner.maps.streamed.halving import Halving, does_not_fit, pieces
from meshrun.runner.plan.chunking import memory_use
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array, HostArray, Region, Shape
from meshrun.runner.report.spans import Spans
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.image_folder import Folder
from meshrun.runner.storage.formats.registry import Sink, commit, open_sink, open_source
from meshrun.runner.world.world import World

PlanTask = Callable[[Shape, np.dtype[Any]], Task]  # plans an image as one block; may raise UserError


@dataclass(frozen=True)
class ImageEndpoints:
    """Source and target folders of a run. written: files that are not synced to the disk yet. kernels: are
    called in place of the job's function; None: it is called itself. room: bytes of host memory for one
    image, decoded."""

    world: World
    folder: Folder
    into: Path
    plan_task: PlanTask
    spans: Spans = field(default_factory=Spans)
    written: deque[Path] = field(default_factory=deque)
    kernels: ImageKernels | None = None
    room: int | None = None


@dataclass
class ImageSlot:
    """An image in flight: its task, padded block and result."""

    number: int = -1
    task: Task | None = None
    block: HostArray | None = None
    result: HostArray | None = None


class ImageEngine:
    def __init__(self, endpoints: ImageEndpoints) -> None:
        self._endpoints = endpoints
        self.shortages: list[str] = []

    def slots(self, count: int) -> list[ImageSlot]:
        return [ImageSlot() for _ in range(count)]

    def join(self) -> None:
        """Do nothing: the threads issue no device work."""

    def begin(self, slot: ImageSlot, number: int) -> list[Step]:
        slot.number = number
        return [Step("read", self._endpoints.folder.images[number].size, partial(self._read, slot))]

    def compute(self, slot: ImageSlot, idle: Callable[[], None]) -> None:
        assert slot.task is not None
        assert slot.block is not None
        with naming(self._path(slot)):
            kernels = self._endpoints.kernels
            task = slot.task if kernels is None else kernels.fuse(slot.task)
            slot.result = self._result(slot.number, task, slot.block)
        slot.block = None

    def finish(self, slot: ImageSlot) -> list[Step]:
        assert slot.result is not None
        return [Step("write", slot.result.nbytes, partial(self._write, slot))]

    def release(self, slot: ImageSlot) -> None:
        slot.task = slot.result = None

    def _path(self, slot: ImageSlot) -> Path:
        return self._endpoints.folder.path / self._endpoints.folder.images[slot.number].name

    def _read(self, slot: ImageSlot) -> None:
        image, path = self._endpoints.folder.images[slot.number], self._path(slot)
        with naming(
            path,
            "repair it or remove it from the folder, then run the same command with "
            f"{option('resume', True)}",
        ):
            source = open_source(path)
            self._check_room(source.decoded_bytes)
            task = slot.task = self._endpoints.plan_task(source.shape, source.dtype)
            self._check_room(source.decoded_bytes + image_memory(task))
            window = Window(task.partition[0], task.shape, task.widths, *task.beyond(task.first))
            slot.block = np.empty(window.shape, task.dtype)
            if task.partition[0].size:
                assert window.inside is not None
                source.read(window.region, slot.block[window.inside])
                window.fill(slot.block)
            else:  # an empty array has no cell that a boundary could repeat
                slot.block.fill(task.cval)
            found = path.stat()
            if (found.st_size, found.st_mtime_ns) != (image.size, image.changed):
                raise RunError(
                    f"{path} has changed since the run began",
                    hint=f"the command with {option('resume', True)}",
                )

    def _check_room(self, needed: int) -> None:
        """Refuse an image that takes more memory than the largest one that was planned for."""
        room = self._endpoints.room
        if room is not None and needed > room:
            raise RunError(
                "the decoded image needs more memory than there is for each image under way",
                got=f"{needed:,} bytes",
                expected=f"at most {room:,}",
                hint=f"a larger {option('host_memory')}, or a smaller {option('depth')}",
            )

    def _result(self, number: int, task: Task, block: HostArray) -> HostArray:
        world, spans, on_gpu = (
            self._endpoints.world,
            self._endpoints.spans,
            self._endpoints.world.backend.asynchronous,
        )
        own: Array = block
        if on_gpu:
            own = self._on_device(number, block)
        begin = perf_counter()
        result = self._in_pieces(number, task, block, own) if on_gpu else result_of(world, task, own)
        world.backend.synchronize()
        spans.add("kernel", number, begin, perf_counter(), block.nbytes + result.nbytes)
        if not on_gpu:
            return np.asarray(result)
        host = np.empty(result.shape, result.dtype)
        with spans("from device", number, host.nbytes):
            world.backend.download(result, host)
            world.backend.synchronize()
        return host

    def _on_device(self, number: int, block: HostArray) -> Array:
        world = self._endpoints.world
        try:
            own = world.backend.empty(block.shape, block.dtype)
        except (MemoryError, RuntimeError) as failure:  # CuPy and CUDA
            shortage = world.backend.shortage(failure)
            if shortage is None:
                raise
            raise does_not_fit("the image", shortage) from failure
        with self._endpoints.spans("to device", number, block.nbytes):
            world.backend.upload(block, own)
            world.backend.synchronize()
        return own

    def _in_pieces(self, number: int, task: Task, block: HostArray, own: Array) -> Array:
        """Return the result of an image on the device, by calls on fewer rows if all do not fit."""
        world, image = self._endpoints.world, self._endpoints.folder.images[number]
        halving = Halving(world.backend, f"{task.job.name} on {image.name}", task.units[0])
        result = halving.compute(
            task.partition[0].shape[0],
            lambda: world.backend.upload(block, own),
            lambda most: result_of(world, task, own, most),
        )
        if not self.shortages:  # said once, not for each image
            self.shortages += halving.shortages
        return result

    def _write(self, slot: ImageSlot) -> None:
        result = slot.result
        assert result is not None
        path = self._path(slot)
        with naming(path):
            run_id = self._endpoints.world.run_id
            sink = sink_for(self._endpoints.into, path.name, result.shape, result.dtype, run_id)
            sink.create()
            sink.write(Region((0,) * result.ndim, result.shape), result)
            commit(sink)
        self._endpoints.written.append(sink.path)


def result_of(world: World, task: Task, block: Array, most: int | None = None) -> Array:
    """Return the job's result for a padded block on this rank's device, C-contiguous.

    most: the most rows of a call on a device; None: all.
    """
    region, unit = task.partition[0], task.units[0]
    rows = (0, region.shape[0])
    whole: Array = None
    on_device = world.backend.asynchronous and region.size
    parts = pieces(rows[1], most or rows[1], unit, unit) if on_device else slabs(task, region, rows)
    for (first, last), window in windows([block], parts, sum(task.widths[0])):
        if whole is None and task.results is not None:
            whole = _empty(world, task)
        out = whole[task.output_rows((first, last), 0)] if task.fills else None
        (found,) = call_rows(world, task, region, window, (first, last), [out] if task.fills else None)
        if whole is None:
            task = task.with_results(types_of(task, [found]))
            whole = _empty(world, task)
        if found is not out:
            whole[task.output_rows((first, last), 0)] = found
    if whole is None:  # without cells
        whole = _empty(world, task if task.results else task.with_results(types_without_cells(task)))
    return whole


def _empty(world: World, task: Task) -> Array:
    result = world.backend.empty(*task.known[0])
    if task.fills:
        poison(result)
    return result


def sink_for(into: Path, name: str, shape: Shape, dtype: np.dtype[Any], run_id: str) -> Sink:
    """Open a sink for an image's result; raises UserError if a file of that name cannot hold it."""
    try:
        return open_sink(into / name, shape, dtype, run_id)
    except UserError as failure:
        failure.hint = "the images as .npy files, which store any array: each output is named after its image"
        raise


def image_memory(task: Task) -> int:
    """Bytes of host memory for an image's block and result, on a CPU."""
    return memory_use(task, task.partition[0], asynchronous=False).host


@contextmanager
def naming(path: Path, hint: str | None = None, error: type[MeshrunError] = RunError) -> Iterator[None]:
    """Re-raise any failure inside as `error` with the image's name. hint: used if the failure has none."""
    try:
        yield
    except MeshrunError as failure:
        what = failure.what if str(path) in failure.what else f"{path}: {failure.what}"
        why, got, expected = failure.why, failure.got, failure.expected
        raise error(what, why=why, got=got, expected=expected, hint=failure.hint or hint) from failure
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failure:  # a user's function may raise anything
        raise RunError(f"{path}: {describe(failure)}") from failure
