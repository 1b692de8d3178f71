"""Pictures through Pillow: PNG, JPEG and BMP.

One rank reads and writes the whole picture. A picture is (rows, columns) or (rows, columns,
channels): uint8, or uint16 (16-bit gray). Palettes are converted to RGB, and the orientation recorded by a
camera is applied.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from meshrun.runner.errors import UserError
from meshrun.runner.files import open_file, open_new
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.registry import Source

UNREAD = (  # what Pillow raises for a broken file
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
)
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
}
# The numbers of channels that each format can store, by dtype; 0: no channel axis.
HOLDS: dict[str, dict[str, tuple[int, ...]]] = {
    "PNG": {"uint8": (0, 1, 2, 3, 4), "uint16": (0, 1)},
    "JPEG": {"uint8": (0, 1, 3)},
    "BMP": {"uint8": (0, 1, 3)},
}
LONGEST = {"JPEG": 65500}  # rows or columns, by libjpeg
# Decoded bytes per byte of a file, at most, by codec; others have no useful bound.
EXPANSION = {"raw": 1, "zip": 1032}  # deflate stores 258 bytes in 2 bits
SMALL_READ = 1 << 16  # bytes, for which memory may be reserved beyond the file's end
PACKED = 8  # decoded bytes per stored byte of a picture whose pixels are bits


# Modes that are converted to RGB, or RGBA if the file has a transparent colour.
CONVERTED = ("P", "CMYK", "YCbCr", "LAB", "HSV", "PA", "RGBX", "RGBa")
ORIENTATION = 274  # a tag of EXIF
TURNED = (5, 6, 7, 8)  # orientations in which rows are stored as columns


@dataclass(frozen=True)
class Appearance:
    """What the channels of a picture mean. colors: 1 of brightness, or 3 of red, green and blue, which come
    first; 0: of another kind. white: the value of white. opacity: the channel after them is their opacity.
    premultiplied: colours have been multiplied by it."""

    colors: int
    white: float
    opacity: bool = False
    premultiplied: bool = False


@dataclass
class ImageSource:
    path: Path
    shape: Shape
    dtype: np.dtype[Any]
    decoded_bytes: int
    parallel: bool = False
    name: ClassVar[None] = None
    form: ClassVar[Form] = Form()
    chunks: ClassVar[Shape | None] = None

    @cached_property
    def array(self) -> HostArray:
        array = _decode(self.path)
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise UserError(
                f"{self.path} is broken or has changed",
                got=f"{array.dtype} {array.shape}",
                expected=f"{self.dtype} {self.shape}, by its header",
            )
        return array

    def read(self, region: Region, target: HostArray) -> None:
        target[...] = self.array[region.slices]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "array"}


def open_source(path: Path, name: str | None, form: Form) -> Source:
    """Open a picture by its header; it is decoded when it is read."""
    with _readable(path) as opened:
        return ImageSource(path, *_type_of(opened), _decoded_bytes(opened))


def decoded_bytes(path: Path) -> int:
    """Bytes of the decoded picture, by what comes before its pixels; 0 for a file that `open_source` will
    refuse."""
    try:
        with _any_size, _opened(path) as opened:
            return _decoded_bytes(opened)
    except UNREAD:
        return 0


def _decoded_bytes(opened: ImageFile.ImageFile) -> int:
    return _bytes_of(opened, "RGBA" if opened.mode in ("P", "PA", "CMYK") else opened.mode)


def _bytes_of(opened: ImageFile.ImageFile, mode: str) -> int:
    """Return the bytes of a picture's pixels in `mode`."""
    bands = len(Image.new(mode, (0, 0)).getbands())
    each = 4 if mode in ("I", "F") else 2 if mode.startswith("I;16") else 1
    return int(opened.width * opened.height * bands * each)


def _type_of(opened: ImageFile.ImageFile) -> tuple[Shape, np.dtype[Any]]:
    """Return the shape and dtype of the decoded picture, by its header."""
    if isinstance(opened, PngImageFile):
        assert opened.fp is not None
        opened = Image.open(_without_pixels(opened.fp), formats=["PNG"])
    mode = "L" if opened.mode == "1" else opened.mode
    if mode in CONVERTED:
        mode = "RGBA" if "transparency" in opened.info else "RGB"
    pixel = np.asarray(Image.new(mode, (1, 1)))
    columns, rows = opened.size
    orientation = Image.Image.getexif(opened).get(ORIENTATION)  # a PNG's own method would decode it
    lengths = (columns, rows) if orientation in TURNED else (rows, columns)
    return (*lengths, *pixel.shape[2:]), pixel.dtype.newbyteorder("=")


def _without_pixels(file: IO[bytes]) -> io.BytesIO:
    """Return a PNG in which what follows the pixels, such as an orientation, comes first, and no pixels."""
    file.seek(0)
    kept = [file.read(8)]
    while len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IDAT":
            file.seek(length + 4, os.SEEK_CUR)
        elif kind != b"IEND":
            kept.append(_chunk(kind, file.read(length)))
            file.seek(4, os.SEEK_CUR)
    return io.BytesIO(b"".join((*kept, _chunk(b"IDAT", b""))))


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def promises_more(path: Path, held: int, most: int, promised: int, shape: Shape) -> UserError:
    """Build the error for a file whose header promises more decoded bytes than its `held` bytes expand to."""
    return UserError(
        f"{path} promises more than it can hold",
        got=f"{held:,} bytes, which hold at most {most:,} bytes decoded",
        expected=f"{promised:,} bytes for {shape}",
    )


def _check_size(path: Path, opened: ImageFile.ImageFile) -> None:
    """Refuse a header that promises more than the file can hold, before Pillow reserves the memory."""
    promised = _bytes_of(opened, opened.mode)
    factor = EXPANSION.get(opened.tile[0][0] if opened.tile else "raw")
    held = path.stat().st_size
    if factor is not None and promised > held * factor * PACKED:
        raise promises_more(path, held, held * factor * PACKED, promised, (opened.height, opened.width))


def _decode(path: Path) -> HostArray:
    with _readable(path) as opened:
        picture = ImageOps.exif_transpose(opened)
        if picture.mode in CONVERTED:
            picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
        if picture.mode == "1":
            picture = picture.convert("L")
        array = np.asarray(picture)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[ImageFile.ImageFile]:
    """Open a picture that a source can be; UserError for other files, also if Pillow finds that one is broken
    in the body of the `with` statement."""
    try:
        with _any_size, _opened(path) as opened:
            _refuse_losses(path, opened)
            _check_size(path, opened)
            yield opened
    except UnidentifiedImageError as reason:
        raise UserError(
            f"{path} is not a readable picture", expected=", ".join(sorted({*FORMATS.values(), "TIFF"}))
        ) from reason
    except UNREAD as reason:
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # the operating system's error, such as no permission, not Pillow's
        raise UserError(f"{path} is broken or truncated", why=reason) from reason


class _ToItsEnd(io.BufferedReader):
    """A file of which Pillow may read any number of bytes: none are reserved beyond its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and 0 <= size <= SMALL_READ:
            return super().read(size)
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[ImageFile.ImageFile]:
    """Open a picture, whose header is read.

    Only as one of these formats, whatever the content is: for PostScript, Pillow would start Ghostscript.
    """
    with _ToItsEnd(io.FileIO(path)) as file, Image.open(file, formats=sorted(set(FORMATS.values()))) as found:
        yield found


@dataclass
class _AnySize:
    """Disable Pillow's limit on the size of pictures, which is meant for servers.

    The limit is global: the first thread that enters removes it, the last one that leaves restores it.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    inside: int = 0
    limit: int | None = None

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                Image.MAX_IMAGE_PIXELS = self.limit


_any_size = _AnySize()


def _refuse_losses(path: Path, opened: ImageFile.ImageFile) -> None:
    """Refuse files of which Pillow would silently read only a part."""
    codecs = [str(tile[3]) for tile in opened.tile]  # such as "RGB;16B"
    if opened.mode in ("LA", "RGB", "RGBA") and any(";16" in codec for codec in codecs):
        raise UserError(
            f"{path} has 16 bits per channel, and Pillow reads only 8 of them",
            hint=f"gdal_translate {path} {path.with_suffix('.tif')}",
        )
    pictures = getattr(opened, "n_frames", 1)
    if opened.format != "MPO" and pictures > 1:  # MPO: a camera's JPEG with a preview
        raise UserError(f"{path} holds {pictures} pictures", expected="one")


@dataclass
class ImageSink:
    path: Path
    partial: Path
    shape: Shape
    dtype: np.dtype[Any]
    parallel: bool = False
    threads: int = 1
    name: ClassVar[None] = None
    form: ClassVar[Form] = Form()
    chunks: ClassVar[Shape | None] = None

    @property
    def lossless(self) -> bool:
        return FORMATS[self.path.suffix.lower()] != "JPEG"

    def create(self) -> None:
        try:
            open_new(self.partial).close()
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason

    def write(self, region: Region, array: HostArray) -> None:
        if (array.dtype, array.shape) != (self.dtype, self.shape):
            raise ValueError(f"{array.dtype} {array.shape} is not the picture's {self.dtype} {self.shape}")
        pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
        try:
            picture = Image.fromarray(np.ascontiguousarray(pixels))
            quality = {} if self.lossless else {"quality": 95}
            with open_file(self.partial, write=True) as raw, io.BufferedRandom(raw) as file:
                file.truncate()
                picture.save(file, FORMATS[self.path.suffix.lower()], **quality)
        except OSError as reason:
            raise write_error(
                self.path, reason, array.nbytes, "for this picture, uncompressed", self.partial
            ) from reason

    def sync(self) -> None:
        try:
            with open_file(self.partial) as file:
                os.fdatasync(file.fileno())
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> ImageSink:
    kind = FORMATS[path.suffix.lower()]
    holds = HOLDS[kind]
    channels = 0 if len(shape) == 2 else shape[2] if len(shape) == 3 else -1
    longest = LONGEST.get(kind, 2**31 - 1)
    if (
        dtype.name not in holds
        or channels not in holds[dtype.name]
        or not all(0 < length <= longest for length in shape)
    ):
        expected = "; ".join(f"{name} with {_channels(counts)}" for name, counts in holds.items())
        raise UserError(
            f"{kind} cannot hold this result",
            got=f"{dtype.name} of shape {shape}",
            expected=f"(rows, columns[, channels]) up to {longest}, of {expected}",
            hint="an output that ends in .npy, which stores any array",
        )
    return ImageSink(path, partial, shape, dtype)


def _channels(counts: tuple[int, ...]) -> str:
    named = [str(n) for n in counts if n]
    return f"{' or '.join(named)} channels" if len(named) > 1 else "one channel"
