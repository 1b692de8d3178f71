"""Frames of a run that takes steps: one field, every so many steps, as pictures or as an array over time.

After a step the cells to show are copied on the device, then to the host on a stream of its own while further
steps run. A thread converts and writes them. Pictures are made on rank 0 of every `stride`-th cell along both
axes, so that a picture has at most PIXELS rows and columns, or ANIMATED; rank 0 gathers these cells when the
next frame is due. An array over time holds every cell; each rank writes its own part of a .npy, rank 0 all
of a .zarr.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from runner.device.api import CopyStreams, Mark
from runner.errors import UserError
from runner.pipeline.steps.loop import next_multiple
from runner.pipeline.steps.stepper import Stepper
from runner.pipeline.store import gather
from runner.plan.halo import Slices
from runner.plan.step_options import COLORS, StepOptions
from runner.plan.task import Task
from runner.region import Array, HostArray, Region, Shape
from runner.report.colors import draw_lines, indices, palette, value_range
from runner.storage.checkpoint_folder import Colors
from runner.storage.formats.frame_files import (
    ARRAYS,
    ArrayOfFrames,
    PictureWriter,
    check_frames,
    check_room,
    picture_writer,
)
from runner.storage.formats.registry import Source
from runner.storage.paths import partial_path
from runner.world.world import World

PIXELS = 1024  # most rows and columns of a picture
ANIMATED = 512  # and of an animation's frames, which take longer to encode
WAITING = 3  # frames that a rank's thread may still have to write
LINE = 32  # rows of the picture of an array with one axis


class FrameContent(Protocol):
    """What pictures show that is not simply the cells of an input.

    name: of what is shown. colors: name of the colour map. other: colour, in red, green and blue, of what is
    not finite. limits: values of the first and the last colour; None: those of the first frame. shifts:
    offsets (rows, columns) at which `values` is wanted for each cell of a picture; each at most 1. plane:
    axis and index of the plane of three axes that is shown; None: the middle one. isolines: their number.
    """

    @property
    def name(self) -> str: ...

    @property
    def colors(self) -> str: ...

    @property
    def other(self) -> tuple[int, int, int]: ...

    @property
    def limits(self) -> tuple[float, float] | None: ...

    @property
    def shifts(self) -> Sequence[tuple[int, int]]: ...

    @property
    def plane(self) -> tuple[int, int] | None: ...

    @property
    def isolines(self) -> int: ...

    def values(self, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return values of some cells, of shape (n, *the cells'), on the device. cells: of each input."""

    def picture(self, values: Sequence[HostArray], stride: int) -> HostArray:
        """Return the value of each pixel, (rows, columns), from what `values` returned for each shift.

        stride: cells from one pixel to the next.
        """

    def lines(self, values: Sequence[HostArray]) -> HostArray:
        """Return whether each pixel is on one of the isolines, from what `values` returned for each shift."""


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
    """One frame. parts: one for each shift of the content; one for the cells of an input."""

    step: int
    number: int
    parts: list[FramePart]


@dataclass
class Frames:
    """Writes frames: an observer of the steps. place: the input that they show. first: the step of the first
    frame. colors: those of the checkpoint that the run is resumed from. content: what they show instead of
    the input; all inputs have the same shape then."""

    world: World
    task: Task
    options: StepOptions
    place: int
    every: int
    path: Path
    first: int = 0
    colors: Colors | None = None
    content: FrameContent | None = None
    written: int = field(default=0, init=False)
    _waiting: Snapshot | None = field(default=None, init=False)
    _writing: deque[Future[None]] = field(default_factory=deque, init=False)
    _copies: CopyStreams | None = field(default=None, init=False)
    _free: dict[int, list[HostArray]] = field(default_factory=dict, init=False)  # by bytes
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._field = self.task.fields[self.place]
        self._as_array = self.path.suffix.lower() in ARRAYS
        most = ANIMATED if self.path.suffix else PIXELS
        margin = 1 if self.content and any(any(shift) for shift in self.content.shifts) else 0
        self._slices = (
            whole_slices(self._field.shape)
            if self._as_array
            else picture_slices(
                self.task, self.place, most, margin, self.content.plane if self.content else None
            )
        )
        shifts = self.content.shifts if self.content else [(0, 0)]
        self._views = [_shifted(self._slices, shift) for shift in shifts]
        self.shape = tuple(
            len(range(*one.indices(n))) for one, n in zip(self._slices, self._field.shape, strict=True)
        )
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
            self.observe(stepper)

    def open(self) -> None:
        """Begin a file or folder of pictures."""
        colors = palette(self.options.frame_colors)
        if self.content is not None:
            chosen = self.options.frame_colors
            name = self.content.colors if chosen == COLORS[0] else chosen
            colors = palette(name, self.content.other, lines=self.content.isolines > 0)
        self._pictures = picture_writer(self.path, colors, self.world.run_id)

    def show(self, step: int, source: Source) -> None:
        """Make the picture of a field that is in a file; on rank 0. Only the rows that it shows are read."""
        ranges = [range(*one.indices(n)) for one, n in zip(self._slices, self._field.shape, strict=True)]
        low, high = tuple(one[0] for one in ranges[1:]), tuple(one[-1] + 1 for one in ranges[1:])
        shown: tuple[Any, ...] = (0, *(slice(None, None, one.step) for one in ranges[1:]))
        cells = np.empty(self.shape, self._field.dtype)
        for number, row in enumerate(ranges[0]):
            region = Region((row, *low), (row + 1, *high))
            whole = np.empty(region.shape, self._field.dtype)
            source.read(region, whole)
            cells[number] = whole[shown]
        self._write_picture(step, cells.reshape(_flat(self.shape)))

    def close(self) -> None:
        """Complete the pictures, on rank 0."""
        if self._pictures is not None:
            self._pictures.close()

    def next_step(self, done: int) -> int:
        return next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        self._deliver()
        self._waiting = self._snapshot(stepper)
        self.written += 1
        return False

    def end(self, stepper: Stepper) -> None:
        self._deliver()
        while self._writing:
            self._writing.popleft().result()
        self.world.control.barrier()

        def complete() -> None:
            if self._array is not None:
                self._array.complete(self.written)
            self.close()

        self.world.on_root(complete)
        assert self._pool is not None
        self._pool.shutdown()

    def flush(self) -> Colors | None:
        """Wait until the pictures of all steps so far are written: a run that is resumed now does not make
        them again. Return their range of colours, on rank 0. Collective; nothing for an array."""
        if self._as_array:
            return None
        self._deliver()
        while self._writing:
            self._writing.popleft().result()
        return None if self._range is None else Colors(self._name, *self._range)

    def abandon(self) -> None:
        """End all threads; the run has failed. On any rank, at any time."""
        if self._pool is None:
            return
        for future in self._writing:
            future.cancel()
        self._pool.shutdown()

    def _snapshot(self, stepper: Stepper) -> Snapshot:
        """Start copying this rank's cells to the host."""
        return Snapshot(stepper.done, self.written, [self._part(stepper, view) for view in self._views])

    def _part(self, stepper: Stepper, view: Slices) -> FramePart:
        backend = self.world.backend
        own = self._own_slices(stepper, view)
        if self.content is None:
            cells = stepper.own(self.place)[own]
        else:
            shown = [stepper.own(place)[own] for place in range(len(self.task.fields))]
            cells = self.content.values(shown, self.world.xp)
        # Pinned memory is used again: to allocate or free it would wait for the device.
        free = self._free.setdefault(cells.nbytes, [])
        memory = free.pop() if free else backend.host_empty((cells.nbytes,), np.dtype(np.uint8))
        host: HostArray = memory.view(cells.dtype).reshape(cells.shape)
        if self._copies is None or cells.size == 0:
            host[...] = cells.get() if hasattr(cells, "get") else cells
            return FramePart(host, memory)
        kept = cells.copy(order="C")  # the next step but one overwrites the field
        _, ready = self._copies.fetch(kept, memory, self._copies.mark())
        return FramePart(host, memory, ready, kept)

    def _own_slices(self, stepper: Stepper, view: Slices) -> Slices:
        """Return the slices of this rank's own cells that a view shows."""
        region = stepper.plans[self.place].region
        found = []
        for one, start, stop, length in zip(view, region.start, region.stop, self._field.shape, strict=True):
            first, last, stride = one.indices(length)
            begin = max(first, first + -(-(start - first) // stride) * stride)
            found.append(slice(begin - start, max(min(stop, last) - start, 0), stride))
        return tuple(found)

    def _shown(self, rank: int, view: Slices) -> Region:
        """Return the region of a frame that a rank's cells fill."""
        region = self._field.partition[rank]
        starts, stops = [], []
        for one, start, stop, length in zip(view, region.start, region.stop, self._field.shape, strict=True):
            chosen = range(*one.indices(length))
            starts.append(len(range(chosen.start, min(start, chosen.stop), chosen.step)))
            stops.append(len(range(chosen.start, min(max(stop, chosen.start), chosen.stop), chosen.step)))
        return Region(tuple(starts), tuple(max(a, b) for a, b in zip(starts, stops, strict=True)))

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
        wholes = [self._gathered(*one) for one in zip(snapshot.parts, self._views, strict=True)]
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
            shown = self._shown(self.world.rank, self._slices)
            self._array.write(snapshot.number, shown, part.host)

    def _wait(self, part: FramePart) -> None:
        if part.ready is not None:
            assert self._copies is not None
            self._copies.passed(part.ready)
            part.kept = None

    def _gathered(self, part: FramePart, view: Slices) -> HostArray | None:
        """Return a part of the whole frame on rank 0, None elsewhere. Collective."""
        self._wait(part)
        more = part.host.shape[: part.host.ndim - len(self.shape)]
        first = (0,) * len(more)
        regions = []
        for rank in range(self.world.size):
            shown = self._shown(rank, view)
            regions.append(Region((*first, *shown.start), (*more, *shown.stop)))
        return gather(self.world.control, part.host, regions, (*more, *self.shape))

    def _write_whole(self, snapshot: Snapshot, wholes: list[HostArray]) -> None:
        if self._array is not None:
            (whole,) = wholes
            self._array.write(snapshot.number, Region((0,) * whole.ndim, whole.shape), whole)
        elif self.content is not None:
            flat = _flat(self.shape)
            stride = max(one.step for one in self._slices)
            planes = [whole.reshape(-1, *flat) for whole in wholes]
            lines = self.content.lines(planes) if self.content.isolines else None
            self._write_picture(snapshot.step, self.content.picture(planes, stride), lines)
        else:
            self._write_picture(snapshot.step, wholes[0].reshape(_flat(self.shape)))

    def _write_picture(self, step: int, whole: HostArray, lines: HostArray | None = None) -> None:
        """Write a picture of (rows, columns). lines: pixels that are on lines."""
        assert self._pictures is not None
        if whole.dtype.kind == "c":
            whole = np.abs(whole)
        if self._range is None:
            self._range = (0.0, 1.0) if whole.dtype.kind == "b" else value_range(whole)
        picture = indices(whole, *self._range)
        if lines is not None:
            draw_lines(picture, lines)
        if len(picture) == 1 and len(self._field.shape) == 1:
            picture = np.repeat(picture, LINE, axis=0)
        self._pictures.write(step, picture)


def open_frames(
    world: World,
    task: Task,
    options: StepOptions,
    first: int,
    colors: Colors | None = None,
    content: FrameContent | None = None,
) -> Frames | None:
    """Check the options of frames and return their writer; None if there are none. Collective.

    first: the step at which the run starts. colors: of the checkpoint that it is resumed from. content: what
    frames show; None: one input. Raises
    UserError before the first step for an unknown format, an unknown field, or frames that do not fit the
    disk.
    """
    if options.frames is None or options.every is None:
        return None
    path, every = Path(options.frames), options.every
    names = [field.name for field in task.fields]
    fed = [name for name in names if name in task.job.feeds]

    def check() -> Frames:
        check_frames(path, resume=first > 0)
        if content is not None and (options.frame_field or path.suffix.lower() in ARRAYS):
            name = f"--frame-field {options.frame_field}" if options.frame_field else path
            raise UserError(f"frames show the {content.name}, as pictures", got=name)
        chosen = options.frame_field or fed[0]
        if chosen not in names:
            raise UserError("--frame-field names no input", got=chosen, expected=", ".join(names))
        frames = Frames(
            world, task, options, names.index(chosen), every, path, -(-first // every) * every, None, content
        )
        check_room(path, frames.bytes, frames.count)
        return frames

    place = world.on_root(lambda: check().place)
    return Frames(world, task, options, place, every, path, -(-first // every) * every, colors, content)


def whole_slices(shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(0, n, 1) for n in shape)


def _shifted(slices: Slices, shift: tuple[int, int]) -> Slices:
    """Return the cells beside those of a picture. shift: along its rows and columns."""
    shown = [axis for axis, one in enumerate(slices) if one.stop - one.start > 1]
    by = dict(zip(shown[-2:], shift, strict=False))
    return tuple(
        slice(one.start + by.get(axis, 0), one.stop + by.get(axis, 0), one.step)
        for axis, one in enumerate(slices)
    )


def picture_slices(
    task: Task, place: int, most: int = PIXELS, margin: int = 0, plane: tuple[int, int] | None = None
) -> Slices:
    """Return which cells a picture shows: a plane of the array, every so many cells along its axes.

    Of an array with more than two axes: the first element along axes after the shared ones, such as a
    vector's, and the middle along others. most: rows and columns. margin: cells at the edges of the array
    that are not shown. plane: axis and index of the plane, of an array of three shared axes.
    """
    shape, shared = task.fields[place].shape, task.leading
    axes = max(len(shape) - 2, 0)
    fixed = [axis for axis in reversed(range(len(shape))) if axis >= shared][:axes]
    fixed += [axis for axis in range(len(shape)) if axis not in fixed][: axes - len(fixed)]
    if plane is not None:
        fixed = [plane[0]]
    shown = [n for axis, n in enumerate(shape) if axis not in fixed]
    stride = max(-(-max(shown, default=1) // most), 1)
    slices = []
    for axis, length in enumerate(shape):
        if axis in fixed:
            at = 0 if axis >= shared else length // 2 if plane is None else plane[1]
            slices.append(slice(at, min(at + 1, length), 1))
        else:
            slices.append(slice(margin, length - margin, stride))
    return tuple(slices)


def _flat(shape: Shape) -> Shape:
    """Return the rows and columns of a picture of cells of `shape`."""
    longer: list[Any] = [n for n in shape if n != 1]
    if len(longer) > 2:
        raise AssertionError(f"no plane: {shape}")
    rows, columns = ([1, 1, *longer])[-2:]
    return (rows, columns)
