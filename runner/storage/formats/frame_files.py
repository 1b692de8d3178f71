"""Files of frames: a folder of PNG pictures, one animated picture, or an array with a time axis.

A writer is called by one thread. `write` takes frames in order; `close` completes the file, and returns how
many frames were merged with equal ones before them.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from meshrun.runner import files
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.storage.file_errors import listing, write_error
from meshrun.runner.storage.formats.npy import NpySink
from meshrun.runner.storage.formats.registry import Sink, check_output, check_place, open_sink, rename
from meshrun.runner.storage.paths import partial_path

ANIMATIONS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}
FRAME = re.compile(r"\.?frame-([0-9]{6,})\.png(\..*\.partial)?")  # the name of a picture in a folder
FILM = ".mp4"  # encoded by the program ffmpeg
ARRAYS = (".npy", ".zarr")
MILLISECONDS = 50  # of a frame in an animation
COMPRESSION = 1  # of PNGs: with more, writing a frame takes longer than many steps


def check_frames(path: Path, *, resume: bool, again: range = range(0), arrays: bool = True) -> None:
    """Raise UserError for a path that frames cannot be written to.

    resume: a run continues, and what is in a folder is its own. again: steps whose frames may be there, as
    they are made again. arrays: frames may be arrays.
    """
    suffix = path.suffix.lower()
    if suffix == FILM and shutil.which("ffmpeg") is None:
        raise UserError(
            f"{path} needs the program ffmpeg", got="none on PATH", hint="a name that ends in .webp or .gif"
        )
    if suffix in (*ANIMATIONS, *ARRAYS, FILM):
        check_place(path, "frames file", folder=suffix == ".zarr", beside=32)
        if suffix == ".zarr":
            check_output(path, alone=True)
    elif suffix:
        raise UserError(
            f"unknown format of frames: {path}",
            got=suffix,
            expected=f"a folder, {', '.join((*ANIMATIONS, FILM, *(ARRAYS if arrays else ())))}",
        )
    elif path.is_dir():
        names = sorted(one.name for one in path.iterdir())
        found = [name for name in names if not ((of := FRAME.fullmatch(name)) and int(of[1]) in again)]
        if found and not resume:
            removal = (
                f"{shlex.join(['rm', '-r', str(path)])}, or " if all(map(FRAME.fullmatch, found)) else ""
            )
            raise UserError(
                f"the folder of frames {path} is not empty", got=listing(found), hint=f"{removal}another name"
            )
    else:
        check_place(path, "frames folder", folder=True)


class PictureWriter(Protocol):
    """Writes pictures: uint8 arrays of (rows, columns) with indices of colours."""

    def write(self, step: int, picture: HostArray) -> None: ...

    def close(self) -> int: ...


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

    def close(self) -> int:
        """Do nothing: each picture is complete."""
        return 0


class Gif:
    """An animated GIF, written frame by frame: each holds the rectangle that differs from the one before.

    Pillow's own writer of animations encodes all frames at the end. Here it encodes single pictures. The file
    gets its name when it is complete.
    """

    def __init__(self, path: Path, palette: bytes, partial: Path) -> None:
        self._path, self._palette, self._partial = path, palette, partial
        self._before: HostArray | None = None

    def write(self, step: int, picture: HostArray) -> None:
        try:
            if self._before is None:
                with self._partial.open("wb") as file:
                    file.write(self._header(picture.shape))
            with self._partial.open("ab") as file:
                file.write(self._frame(_changed(picture, self._before), picture))
        except OSError as reason:
            raise write_error(self._path, reason) from reason
        self._before = picture

    def close(self) -> int:
        if self._before is None:
            return 0
        try:
            with self._partial.open("ab") as file:
                file.write(b";")
        except OSError as reason:
            raise write_error(self._path, reason) from reason
        rename(self._partial, self._path)
        return 0

    def _header(self, shape: Shape) -> bytes:
        """Return what precedes the frames: the size, 256 colours, and that they repeat for ever."""
        rows, columns = shape
        size = struct.pack("<6sHHBBB", b"GIF89a", columns, rows, 0xF7, 0, 0)
        return size + self._palette + b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"

    def _frame(self, part: Region, picture: HostArray) -> bytes:
        (top, left), (rows, columns) = part.start, part.shape
        control = struct.pack("<4sHBB", b"!\xf9\x04\x04", MILLISECONDS // 10, 0, 0)
        place = struct.pack("<sHHHHB", b",", left, top, columns, rows, 0)
        return control + place + self._encoded(picture[part.slices])

    def _encoded(self, picture: HostArray) -> bytes:
        """Return the data of a picture: what follows its place in a GIF of its own."""
        data = io.BytesIO()
        image = _image(np.ascontiguousarray(picture), self._palette)
        image.save(data, "GIF", optimize=False, interlace=False)
        whole = data.getvalue()
        start = 13 + len(self._palette)  # a header and the colours
        if whole[start : start + 1] != b"," or whole[-1:] != b";":
            raise RunError(
                "Pillow has written another GIF than expected", got=whole[start : start + 12].hex()
            )
        return whole[start + 10 : -1]


class Animation:
    """An animated picture whose encoder needs all frames at once: they are kept until the end.

    The encoder stores equal frames in a row once, and shows them longer.
    """

    def __init__(self, path: Path, palette: bytes, partial: Path) -> None:
        self._path, self._palette, self._partial = path, palette, partial
        self._frames: list[Any] = []

    def write(self, step: int, picture: HostArray) -> None:
        self._frames.append(_image(picture, self._palette))

    def close(self) -> int:
        from PIL import Image

        if not self._frames:
            return 0
        first, *more = self._frames
        options = {"loop": 0, "duration": MILLISECONDS, "save_all": True, "append_images": more}
        if self._path.suffix.lower() == ".webp":
            options["lossless"] = True
        try:
            first.save(self._partial, ANIMATIONS[self._path.suffix.lower()], **options)
            with Image.open(self._partial) as written:
                stored = getattr(written, "n_frames", 1)
        except OSError as reason:
            raise write_error(self._path, reason) from reason
        rename(self._partial, self._path)
        return len(self._frames) - int(stored)


class Film:
    """A film by ffmpeg (H.264), which gets the frames through a pipe and encodes them meanwhile."""

    def __init__(self, path: Path, palette: bytes, partial: Path) -> None:
        self._path, self._partial = path, partial
        self._colors = np.frombuffer(palette, np.uint8).reshape(-1, 3)
        self._program: subprocess.Popen[bytes] | None = None

    def write(self, step: int, picture: HostArray) -> None:
        rows, columns = (n - n % 2 for n in picture.shape)  # the colours of H.264 are those of 2 x 2 pixels
        if self._program is None:
            self._program = self._start(rows, columns)
        assert self._program.stdin is not None
        try:
            self._program.stdin.write(self._colors[picture[:rows, :columns]].tobytes())
        except OSError as reason:
            raise self._failed() from reason

    def close(self) -> int:
        if self._program is None:
            return 0
        assert self._program.stdin is not None
        try:
            self._program.stdin.close()
        except OSError as reason:
            raise self._failed() from reason
        if self._program.wait():
            raise self._failed()
        rename(self._partial, self._path)
        return 0

    def _start(self, rows: int, columns: int) -> subprocess.Popen[bytes]:
        frames = [
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            f"{columns}x{rows}",
            "-r",
            str(1000 // MILLISECONDS),
        ]
        film = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18", "-f", "mp4", str(self._partial)]
        command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", *frames, "-i", "-", *film]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def _failed(self) -> RunError:
        assert self._program is not None
        assert self._program.stderr is not None
        text = self._program.stderr.read().decode(errors="replace").strip()
        self._program.wait()
        return RunError(
            f"ffmpeg cannot write {self._path}",
            got=text.splitlines()[-1] if text else f"exit status {self._program.returncode}",
        )


def _changed(picture: HostArray, before: HostArray | None) -> Region:
    """Return the smallest rectangle with all cells that differ; the first cell if none does."""
    if before is None:
        return Region((0, 0), picture.shape)
    differs = picture != before
    rows, columns = (np.flatnonzero(differs.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return Region((0, 0), (1, 1))
    return Region((int(rows[0]), int(columns[0])), (int(rows[-1]) + 1, int(columns[-1]) + 1))


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
            from meshrun.runner.storage.formats.zarr import ZarrSink, zarr_chunks

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
    if path.suffix.lower() == ".gif":
        return Gif(path, palette, partial_path(path, run_id))
    if path.suffix.lower() == FILM:
        return Film(path, palette, partial_path(path, run_id))
    if path.suffix.lower() in ANIMATIONS:
        return Animation(path, palette, partial_path(path, run_id))
    return PictureFolder(path, palette)
