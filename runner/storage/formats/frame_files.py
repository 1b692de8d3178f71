"""Files of frames: a folder of PNG pictures, one animated picture, or an array with a time axis.

One thread calls a writer. `write` takes frames in order; `close` completes the file; `abandon` ends without
completing it.
"""

from __future__ import annotations

import contextlib
import io
import queue
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner import files
from runner.errors import RunError, UserError
from runner.region import HostArray, Region, Shape
from runner.storage.file_errors import write_error
from runner.storage.formats.npy import NpySink
from runner.storage.formats.registry import Sink, check_output, check_place, open_sink, rename
from runner.storage.paths import partial_path

ANIMATIONS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}
ARRAYS = (".npy", ".zarr")
MILLISECONDS = 50  # of a frame in an animation
COMPRESSION = 1  # of PNGs: with more, writing a frame takes longer than many steps
WAITING = 32  # frames of an animation that wait to be encoded


def check_frames(path: Path, *, resume: bool) -> None:
    """Raise UserError for a path that frames cannot be written to."""
    suffix = path.suffix.lower()
    if suffix in (*ANIMATIONS, *ARRAYS):
        check_place(path, "file of frames", folder=suffix == ".zarr", beside=32)
        if suffix == ".zarr":
            check_output(path, alone=True)
    elif suffix:
        raise UserError(
            f"unknown format of frames: {path}",
            got=suffix,
            expected=f"a folder, {', '.join((*ANIMATIONS, *ARRAYS))}",
        )
    elif path.is_dir():
        if any(path.iterdir()) and not resume:
            raise UserError(
                f"the folder of frames {path} is not empty", hint=f"rm -r {path}, or another name"
            )
    else:
        check_place(path, "folder of frames", folder=True)


def check_room(path: Path, needed: int, frames: int) -> None:
    """Raise UserError if frames of `needed` bytes do not fit the disk."""
    parent = path.parent if path.parent.is_dir() else Path()
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise UserError(
            f"{frames:,} frames do not fit the disk of {path}",
            got=f"{free:,} bytes free there",
            expected=f"at least {needed:,} bytes",
            hint="a larger --every, or another disk",
        )


class PictureWriter(Protocol):
    """Writes pictures: uint8 arrays of (rows, columns) with indices of colours."""

    def write(self, step: int, picture: HostArray) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class PictureFolder:
    """A PNG for each frame: DIR/frame-000100.png after step 100."""

    def __init__(self, path: Path, palette: bytes) -> None:
        self._path, self._palette = path, palette
        for stray in path.glob(".frame-*.partial"):  # of a run that was killed
            stray.unlink(missing_ok=True)

    def write(self, step: int, picture: HostArray) -> None:
        file = self._path / f"frame-{step:06d}.png"
        data = io.BytesIO()
        _image(picture, self._palette).save(data, "PNG", compress_level=COMPRESSION)
        try:
            self._path.mkdir(exist_ok=True)
            files.write_file(file, data.getvalue())
        except OSError as reason:
            raise write_error(file, reason) from reason

    def close(self) -> None:
        """Do nothing: each picture is complete."""

    def abandon(self) -> None:
        """Do nothing: each picture is complete."""


class Animation:
    """One animated picture, which a thread encodes while frames arrive.

    It is renamed to its final name when it is complete. Only the encoder of GIFs takes frames one by one: for
    other formats all frames are kept until the end.
    """

    def __init__(self, path: Path, palette: bytes, partial: Path) -> None:
        self._path, self._palette, self._partial = path, palette, partial
        self._format = ANIMATIONS[path.suffix.lower()]
        self._frames: queue.Queue[Any] = queue.Queue(WAITING)
        self._pool = ThreadPoolExecutor(1, "frames")
        self._encoding: Future[None] | None = None
        self._abandoned = False

    def write(self, step: int, picture: HostArray) -> None:
        if self._encoding is None:
            self._encoding = self._pool.submit(self._encode, _image(picture, self._palette))
        else:
            self._put(_image(picture, self._palette))

    def close(self) -> None:
        if self._encoding is not None:
            self._put(None)
            self._result()
            rename(self._partial, self._path)
        self._pool.shutdown()

    def abandon(self) -> None:
        self._abandoned = True
        with contextlib.suppress(queue.Full):  # the encoder checks `_abandoned` at the next frame
            self._frames.put_nowait(None)
        self._pool.shutdown()

    def _put(self, frame: Any) -> None:
        assert self._encoding is not None
        while True:
            try:
                return self._frames.put(frame, timeout=0.1)
            except queue.Full:
                if self._encoding.done():  # it has failed and takes no more frames
                    return self._result()

    def _result(self) -> None:
        assert self._encoding is not None
        try:
            self._encoding.result()
        except OSError as reason:
            raise write_error(self._path, reason) from reason

    def _encode(self, first: Any) -> None:
        more = self._rest() if self._format == "GIF" else list(self._rest())
        options = {"loop": 0, "duration": MILLISECONDS, "save_all": True, "append_images": more}
        if self._format == "WEBP":
            options["lossless"] = True
        if self._format == "GIF":
            options["optimize"] = False
        first.save(self._partial, self._format, **options)

    def _rest(self) -> Iterator[Any]:
        while (frame := self._frames.get()) is not None and not self._abandoned:
            yield frame
        if self._abandoned:
            raise OSError("abandoned")


def _image(picture: HostArray, palette: bytes) -> Any:
    from PIL import Image

    image = Image.fromarray(picture)
    image = image if image.mode == "P" else _as_palette(image)
    image.putpalette(palette)
    return image


def _as_palette(image: Any) -> Any:
    """Return a picture whose values are indices; Pillow would map grey values to colours instead."""
    from PIL import Image

    return Image.frombytes("P", image.size, image.tobytes())


class ArrayOfFrames:
    """An array whose first axis is time: .npy, to which every rank writes its part, or .zarr."""

    def __init__(self, path: Path, frames: int, shape: Shape, dtype: np.dtype[Any], run_id: str) -> None:
        self.sink: Sink = open_sink(path, (frames, *shape), dtype, run_id)
        if path.suffix.lower() == ".zarr":
            from runner.storage.formats.zarr import ZarrSink, zarr_chunks

            assert isinstance(self.sink, ZarrSink)
            self.sink.chunks = (1, *zarr_chunks(shape, dtype))
        self._shape, self._frames = shape, frames

    @property
    def parallel(self) -> bool:
        """Whether every rank writes its own part."""
        return self.sink.chunks is None

    def write(self, number: int, region: Region, cells: HostArray) -> None:
        """Write `region` of frame `number`, counted from 0."""
        start, stop = (number, *region.start), (number + 1, *region.stop)
        self.sink.write(Region(start, stop), cells[None])

    def complete(self, frames: int) -> None:
        """Rename the file, with so many frames, to its final name. On one rank."""
        if frames < self._frames:
            self._shorten(frames)
        rename(self.sink.partial, self.sink.path)

    def _shorten(self, frames: int) -> None:
        sink = self.sink
        try:
            if isinstance(sink, NpySink):
                whole = (self._frames, *self._shape)
                header = sink.header_of((frames, *self._shape))
                if len(header) != sink.offset:
                    raise RunError(f"cannot shorten {sink.path}", got=f"{frames} of {whole[0]} frames")
                with sink.partial.open("r+b") as file:
                    file.write(header)
                    file.truncate(sink.offset + frames * int(np.prod(self._shape)) * sink.dtype.itemsize)
            else:
                import zarr

                array = zarr.open_array(sink.partial, path=sink.name or "", mode="r+")
                array.resize((frames, *self._shape))
        except OSError as reason:
            raise write_error(sink.path, reason) from reason


def picture_writer(path: Path, palette: bytes, run_id: str) -> PictureWriter:
    """Open a file or folder of pictures for writing."""
    if path.suffix.lower() in ANIMATIONS:
        return Animation(path, palette, partial_path(path, run_id))
    return PictureFolder(path, palette)
