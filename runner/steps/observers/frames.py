"""Frames of a run that takes steps: one field, every so many steps, as pictures or as an array over time.

After a step the cells to show are copied on the device, or what is shown of them is computed there; then they
are copied to the host on a stream of its own while further steps run. A thread converts and writes them.
Pictures are made on rank 0 of every so many cells along both axes, so that a picture has at most PIXELS rows
and columns, or ANIMATED; rank 0 gathers these cells when the next frame is due. An array over time holds
every cell; each rank writes its own part of a .npy, rank 0 all of a .zarr.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.arrays.store import gather
from meshrun.runner.device.api import Mark
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.plan.halo import Slices
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.report.colors import indices, palette, value_range
from meshrun.runner.spelling import option
from meshrun.runner.steps.loop import next_multiple
from meshrun.runner.steps.observers.additions import FrameContent
from meshrun.runner.steps.observers.frame_view import (
    PIXELS,
    FrameView,
    Seam,
    own_slices,
    picture_axes,
    picture_slices,
)
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.checkpoint_folder import Colors
from meshrun.runner.storage.file_errors import check_room
from meshrun.runner.storage.formats.frame_files import (
    ARRAYS,
    ArrayOfFrames,
    PictureWriter,
    check_frames,
    picture_writer,
)
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.paths import partial_path
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.device.copy_streams import CopyStreams

ANIMATED = 512  # most rows and columns of an animation's frames, which take longer to encode
WAITING = 3  # frames that a rank's thread may still have to write
LINE = 32  # rows of the picture of an array with one axis


@dataclass
class FramePart:
    """Cells of one frame on their way to the host. memory: of `host`, as bytes. kept: device memory that is
    still being copied."""

    host: HostArray
    memory: HostArray
    ready: Mark = None
    kept: Array = None


@dataclass
class Snapshot:
    """One frame. parts: of the picture, and of each seam."""

    step: int
    number: int
    parts: list[FramePart]


@dataclass
class Frames:
    """Writes frames: an observer of the steps. place: the input that they show. first: the step at which the
    run starts; once made, that of the first frame. colors: those of the checkpoint that the run is resumed
    from. content: what they show instead of the input."""

    world: World
    task: Task
    options: StepOptions
    place: int
    first: int = 0
    colors: Colors | None = None
    content: FrameContent | None = None
    written: int = field(default=0, init=False)
    merged: int = field(default=0, init=False)  # of them, with equal ones before, in the file
    _waiting: Snapshot | None = field(default=None, init=False)
    _writing: deque[Future[None]] = field(default_factory=deque, init=False)
    _copies: CopyStreams | None = field(default=None, init=False)
    _free: dict[int, list[HostArray]] = field(default_factory=dict, init=False)  # by bytes
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        assert self.options.frames is not None
        assert self.options.every is not None
        self.path, self.every = Path(self.options.frames), self.options.every
        self.first = -(-self.first // self.every) * self.every
        self._field = self.task.fields[self.place]
        self._as_array = self.path.suffix.lower() in ARRAYS
        most = ANIMATED if self.path.suffix else PIXELS
        if self._as_array:
            slices: Slices = own_slices(self._field)
        elif self.content is not None:
            slices = self.content.view(self._field.shape, most)
        else:
            slices = picture_slices(self.task, self.place, most)
        self._view = FrameView(self._field, slices, self.content.margin if self.content else 0)
        self._seams, self.shape = self._view.seams(), self._view.shape
        lengths = [self.shape[axis] for axis in picture_axes(self.task, self.place)]
        self._flat = (1, *lengths) if len(lengths) == 1 else tuple(lengths)  # of a picture
        self._name = self.content.name if self.content else self._field.name
        self._range = self.options.frame_range or (self.content.limits if self.content else None)
        if self._range is None and self.colors is not None and self.colors.field == self._name:
            self._range = self.colors.low, self.colors.high
        self._array: ArrayOfFrames | None = None
        self._pictures: PictureWriter | None = None

    @property
    def count(self) -> int:
        """Number of frames if all steps are taken, the state before the first step included."""
        assert self.options.steps is not None
        return self.options.steps // self.every - -(-self.first // self.every) + 1

    @property
    def bytes(self) -> int:
        """Bytes of all frames, of pictures before they are compressed."""
        itemsize = self._field.dtype.itemsize if self._as_array else 1
        return self.count * math.prod(self.shape) * itemsize

    @property
    def partial(self) -> Path | None:
        """The unfinished file; None for a folder of pictures, which are finished one by one."""
        return partial_path(self.path, self.world.run_id) if self.path.suffix else None

    def begin(self, stepper: Stepper) -> None:
        world = self.world
        pool = self._pool = ThreadPoolExecutor(1, "frames")
        if world.backend.asynchronous:
            self._copies = world.backend.copy_streams()
            pool.submit(self._copies.join).result()
        if self._as_array:
            array = ArrayOfFrames(self.path, self.count, self.shape, self._field.dtype, world.run_id)
            self._array = array
            world.on_root(array.sink.create)
        elif world.rank == 0:
            self.open()
        if stepper.done % self.every == 0:
            with stepper.phases("prepare"):  # compiles kernels, which is no part of the loop's time
                self.observe(stepper)

    def open(self) -> None:
        """Begin a file or folder of pictures."""
        chosen = self.options.frame_colors
        colors = palette(chosen) if self.content is None else self.content.palette(chosen)
        self._pictures = picture_writer(self.path, colors, self.world.run_id)

    def show(self, step: int, source: Source) -> None:
        """Make the picture of a field that is in a file; on rank 0. Only the rows that it shows are read."""
        ranges = [range(*one.indices(n)) for one, n in zip(self._view.slices, self._field.shape, strict=True)]
        low, high = tuple(one[0] for one in ranges[1:]), tuple(one[-1] + 1 for one in ranges[1:])
        shown: tuple[Any, ...] = (0, *(slice(None, None, one.step) for one in ranges[1:]))
        cells = np.empty(self.shape, self._field.dtype)
        for number, row in enumerate(ranges[0]):
            region = Region((row, *low), (row + 1, *high))
            whole = np.empty(region.shape, self._field.dtype)
            source.read(region, whole)
            cells[number] = whole[shown]
        self._write_picture(step, cells.reshape(self._flat))

    def close(self) -> int:
        """Complete the pictures, on rank 0; return how many were merged with equal ones before them."""
        return 0 if self._pictures is None else self._pictures.close()

    def next_step(self, done: int) -> int:
        return next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        self._deliver()
        self._waiting = self._snapshot(stepper)
        self.written += 1
        return False

    def end(self, stepper: Stepper) -> None:
        with stepper.phases("frames"):  # the last ones, which no step is beside
            self._finish_writing()
            self.world.control.barrier()

        def complete() -> int:
            if self._array is not None:
                self._array.complete(self.written)
            return self.close()

        self.merged = self.world.on_root(complete)
        assert self._pool is not None
        self._pool.shutdown()

    def flush(self) -> Colors | None:
        """Wait until the pictures of all steps so far are written: a run that is resumed now does not make
        them again. Return their range of colours, on rank 0. Collective; nothing for an array."""
        if self._as_array:
            return None
        self._finish_writing()
        return None if self._range is None else Colors(self._name, *self._range)

    def _finish_writing(self) -> None:
        """Wait until all frames so far are written. Collective."""
        self._deliver()
        while self._writing:
            self._writing.popleft().result()

    def abandon(self) -> None:
        """End all threads; the run has failed. On any rank, at any time."""
        if self._pool is None:
            return
        for future in self._writing:
            future.cancel()
        self._pool.shutdown()

    def _snapshot(self, stepper: Stepper) -> Snapshot:
        """Start copying what this rank has of a frame to the host."""
        if self.content is None:
            cells = stepper.own(self.place)[self._view.own_slices(self._own(stepper))]
            parts = [self._fetch(cells, fresh=False)]
        else:
            parts = [self._fetch(self._pixels(stepper, self.content), fresh=True)]
            parts += [
                self._fetch(self._seam(stepper, self.content, seam), fresh=True) for seam in self._seams
            ]
        return Snapshot(stepper.done, self.written, parts)

    def _pixels(self, stepper: Stepper, content: FrameContent) -> Array:
        """Compute the pixels for which this rank has all cells."""
        own, xp = self._view.own_slices(self._own(stepper)), self.world.xp

        def at(name: str, shift: tuple[int, int]) -> Array:
            return content.value(name, self._cells(stepper, self._view.shifted(own, shift)), xp)

        return content.pixels(at, xp)

    def _seam(self, stepper: Stepper, content: FrameContent, seam: Seam) -> Array:
        """Compute the values of this rank's cells of a seam: (values, *cells)."""
        cells = self._cells(stepper, self._view.of_seam(seam).own_slices(self._own(stepper)))
        if cells[0].size == 0:
            shape = (len(content.parts), *cells[0].shape)
            return self.world.backend.empty(shape, np.dtype(np.float32))
        return self.world.xp.stack([content.value(name, cells, self.world.xp) for name in content.parts])

    def _own(self, stepper: Stepper) -> Region:
        """Return this rank's cells."""
        return stepper.plans[self.place].region

    def _cells(self, stepper: Stepper, own: Slices) -> list[Array]:
        return [stepper.own(place)[own] for place in range(len(self.task.fields))]

    def _fetch(self, cells: Array, *, fresh: bool) -> FramePart:
        """Start copying to the host. fresh: nothing else will change these cells."""
        # Pinned memory is used again: to allocate or free it would wait for the device.
        free = self._free.setdefault(cells.nbytes, [])
        memory = free.pop() if free else self.world.backend.host_empty((cells.nbytes,), np.dtype(np.uint8))
        host: HostArray = memory.view(cells.dtype).reshape(cells.shape)
        if self._copies is None or cells.size == 0:
            host[...] = cells.get() if hasattr(cells, "get") else cells
            return FramePart(host, memory)
        kept = cells if fresh and cells.flags.c_contiguous else cells.copy(order="C")
        _, ready = self._copies.fetch(kept, memory, self._copies.mark())
        return FramePart(host, memory, ready, kept)

    def _mend(self, pixels: HostArray, seam: Seam, values: HostArray) -> None:
        """Compute the pixels at a seam, in place. pixels: of the whole picture; values: of the whole seam."""
        content = self.content
        assert content is not None

        def at(name: str, shift: tuple[int, int]) -> Array:
            return values[content.parts.index(name)][self._view.at_seam(seam, shift)]

        place: list[Any] = [slice(None)] * pixels.ndim
        place[1 + seam.axis] = seam.pixels
        pixels[tuple(place)] = content.pixels(at, np)

    def _deliver(self) -> None:
        """Pass the frame that was copied last to the thread that writes it. Collective."""
        snapshot, self._waiting = self._waiting, None
        if snapshot is None:
            return
        assert self._pool is not None
        while len(self._writing) >= WAITING:
            self._writing.popleft().result()
        if self._array is not None and self._array.parallel:
            self._writing.append(self._pool.submit(self._write, snapshot, None))
            return
        views = [self._view, *map(self._view.of_seam, self._seams)]
        wholes = [self._gathered(part, view) for part, view in zip(snapshot.parts, views, strict=True)]
        if self.world.rank == 0:
            self._writing.append(self._pool.submit(self._write, snapshot, wholes))
        else:
            self._release(snapshot)

    def _release(self, snapshot: Snapshot) -> None:
        """Keep the memory of a frame for later ones."""
        for part in snapshot.parts:
            self._free[part.memory.nbytes].append(part.memory)

    def _write(self, snapshot: Snapshot, wholes: list[HostArray | None] | None) -> None:
        """Write a frame, in the thread: the whole of it, or this rank's part."""
        if wholes is None:
            self._write_part(snapshot)
        else:
            self._write_whole(snapshot, [whole for whole in wholes if whole is not None])
        self._release(snapshot)

    def _write_part(self, snapshot: Snapshot) -> None:
        assert self._array is not None
        (part,) = snapshot.parts
        self._wait(part)
        if part.host.size:
            shown = self._view.shown(self.world.rank)
            self._array.write(snapshot.number, shown, part.host)

    def _wait(self, part: FramePart) -> None:
        if part.ready is not None:
            assert self._copies is not None
            self._copies.passed(part.ready)
            part.kept = None

    def _gathered(self, part: FramePart, view: FrameView) -> HostArray | None:
        """Return a part of the whole frame on rank 0, None elsewhere. Collective."""
        self._wait(part)
        more = part.host.shape[: part.host.ndim - len(self.shape)]
        first = (0,) * len(more)
        regions = []
        for rank in range(self.world.size):
            shown = view.shown(rank)
            regions.append(Region((*first, *shown.start), (*more, *shown.stop)))
        return gather(self.world.control, part.host, regions, (*more, *view.shape))

    def _write_whole(self, snapshot: Snapshot, wholes: list[HostArray]) -> None:
        if self._array is not None:
            (whole,) = wholes
            self._array.write(snapshot.number, Region((0,) * whole.ndim, whole.shape), whole)
        elif self.content is not None:
            whole, *values = wholes
            for seam, one in zip(self._seams, values, strict=True):
                self._mend(whole, seam, one)
            assert self._pictures is not None
            assert self._range is not None
            self._pictures.write(snapshot.step, self.content.picture(whole, *self._range))
        else:
            self._write_picture(snapshot.step, wholes[0].reshape(self._flat))

    def _write_picture(self, step: int, whole: HostArray) -> None:
        """Write a picture of (rows, columns)."""
        assert self._pictures is not None
        if whole.dtype.kind == "c":
            whole = np.abs(whole)
        if self._range is None:
            self._range = (0.0, 1.0) if whole.dtype.kind == "b" else value_range(whole)
        picture = indices(whole, *self._range)
        if len(picture) == 1 and len(self._field.shape) == 1:
            picture = np.repeat(picture, LINE, axis=0)
        self._pictures.write(step, picture)


def check_frames_fit(
    world: World,
    task: Task,
    options: StepOptions,
    first: int,
    content: FrameContent | None = None,
    *,
    resume: bool = False,
) -> int:
    """Check the options of frames; return the number of the input that they show. On rank 0.

    first: the step at which the run starts. content: what frames show; None: one input. resume: frames of an
    earlier attempt may be in their folder. Raises UserError for an unknown format, an unknown field, or
    frames that do not fit the disk.
    """
    assert options.frames is not None
    assert options.every is not None
    path, every = Path(options.frames), options.every
    names = [field.name for field in task.fields]
    again = range(0, (options.steps or 0) + 1, every) if resume else range(0)
    check_frames(path, resume=first > 0, again=again, arrays=content is None)
    if content is not None and (options.frame_field or path.suffix.lower() in ARRAYS):
        name = option("frame_field", options.frame_field) if options.frame_field else path
        raise UserError(f"frames show the {content.name}, as pictures", got=name)
    chosen = options.frame_field or next(name for name in names if name in task.job.feeds)
    if chosen not in names:
        raise UserError(f"{option('frame_field')} names no input", got=chosen, expected=", ".join(names))
    frames = Frames(world, task, options, names.index(chosen), first, None, content)
    if 0 in frames.shape and path.suffix.lower() not in ARRAYS:
        raise UserError(f"frames show {chosen}, which has no cells", hint=f"leave {option('frames')} out")
    parent = path.parent if path.parent.is_dir() else Path()
    hint = f"a larger {option('every')}, or another disk"
    check_room(parent, frames.bytes, f"{frames.count:,} frames", path, hint)
    return frames.place
