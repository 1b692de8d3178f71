"""TIFF through tifffile: pictures, and stacks of equal pages as one array with the pages' axes first.

Uncompressed contiguous pages, which is also how files are written, are flat: every rank reads and writes its
own part. Tiles and compressed strips are decoded by every rank whose part overlaps them. Everything else that
TIFF can contain (palettes, a camera's orientation, inks, JPEG's colours, single bits) is read by Pillow, as
are all files without tifffile.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import tifffile

from runner.errors import RunError, UserError, first_line
from runner.region import HostArray, Region, Shape
from runner.storage.file_errors import check_part, not_shared
from runner.storage.formats import image
from runner.storage.formats.declared_form import NUMBERS
from runner.storage.formats.flat import FlatSink, FlatSource
from runner.storage.formats.registry import Form, Source
from runner.storage.formats.sliced_array import Unmapped

BLACK_IS_ZERO, RGB = 1, 2  # photometric interpretations of samples that need no conversion
ASSOCIATED_ALPHA, UNSPECIFIED = 1, 0  # kinds of a fourth channel that Pillow converts
ORIENTATION = 274  # tag
HOLDS = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8")
CLASSIC = (1 << 32) - (1 << 25)  # bytes of values for which 32-bit offsets suffice, with room for metadata
# Of `image.EXPANSION`, by the number in the file.
COMPRESSIONS = {
    1: "raw",
    5: "tiff_lzw",
    8: "tiff_adobe_deflate",
    32773: "packbits",
    32946: "tiff_deflate",
    50000: "zstd",
}
PAGE_BYTES = 1 << 9  # more than the metadata of a page
# Exceptions of tifffile and the codecs for files that they cannot read.
UNREAD = (
    tifffile.TiffFileError,  # a ValueError only since 2026, which needs Python 3.11
    ValueError,
    ArithmeticError,  # tiles without cells, infinitely many strips
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class _Pages:
    """Where each page's strips or tiles are, and how one is decoded."""

    decode: Callable[..., Any]
    places: list[tuple[tuple[int, ...], tuple[int, ...], bytes | None]]  # offsets, sizes, JPEG's tables


@dataclass
class TiffSource:
    """Tiled or compressed pages. page: shape of one, (rows, columns) or (rows, columns, channels)."""

    path: Path
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape
    page: Shape
    name: str | None = None
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    form: ClassVar[Form] = Form()

    @property
    def array(self) -> Unmapped:
        return Unmapped(self)

    @cached_property
    def _pages(self) -> _Pages:
        try:
            with tifffile.TiffFile(self.path) as file:
                return _locate(_series(file)[0])
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason

    def read(self, region: Region, target: HostArray) -> None:
        check_part(target, self.dtype, region)
        if region.size == 0:
            return
        stack = len(self.shape) - len(self.page)
        with open(self.path, "rb", buffering=0) as file:
            for index in np.ndindex(*region.shape[:stack]):
                place = tuple(a + i for a, i in zip(region.start, index, strict=False))
                number = int(np.ravel_multi_index(place, self.shape[:stack])) if place else 0
                box = Region(region.start[stack:], region.stop[stack:])
                page = (*index, ...)
                self._read_page(file.fileno(), number, box, target[page])

    def _read_page(self, descriptor: int, number: int, box: Region, target: HostArray) -> None:
        (row, column), (rows, columns) = box.start[:2], self.page[:2]
        height, width = self.chunks[len(self.shape) - len(self.page) :][:2]
        across = -(-columns // width)
        down, along = (
            range(row // height, -(-box.stop[0] // height)),
            range(column // width, -(-box.stop[1] // width)),
        )
        for i, j in itertools.product(down, along):
            cells = self._decoded(descriptor, number, i * across + j)
            top, left = i * height, j * width
            first = (max(top, row), max(left, column))
            last = (min(top + height, rows, box.stop[0]), min(left + width, columns, box.stop[1]))
            into = target[first[0] - row : last[0] - row, first[1] - column : last[1] - column]
            if cells is None:  # not present in a sparse file
                into[...] = 0
                continue
            part = cells[0, first[0] - top : last[0] - top, first[1] - left : last[1] - left]
            into[...] = part[..., box.slices[2]] if len(self.page) == 3 else part[..., 0]

    def _decoded(self, descriptor: int, number: int, segment: int) -> HostArray | None:
        """Return a strip or tile, (1, rows, columns, channels)."""
        try:
            offsets, sizes, tables = self._pages.places[number]
            offset, size = offsets[segment], sizes[segment]
            there = max(min(os.fstat(descriptor).st_size - offset, size), 0)
            if there < size:  # before so much memory is reserved
                raise ValueError(f"the file ends within it: {there:,} of {size:,} bytes")
            data = os.pread(descriptor, size, offset) if size else None
            cells: HostArray | None = self._pages.decode(data, segment, jpegtables=tables)[0]
        except UNREAD as reason:
            raise RunError(
                f"{self.path} is broken: part {segment} of page {number} cannot be decoded",
                why=first_line(reason),
            ) from reason
        return cells

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_pages"}


def _series(file: Any) -> Any:
    """Return the file's series of pages."""
    # Follow the chain of pages first, which ends where it becomes a circle: a loop over the pages would not.
    len(file.pages)
    return file.series


def _locate(series: Any) -> _Pages:
    pages = [(page.dataoffsets, page.databytecounts, page.jpegtables) for page in series.pages]
    return _Pages(series.keyframe.decode, pages)


def open_source(path: Path, name: str | None, form: Form) -> Source:
    return _by_tifffile(path) or image.open_source(path, name, form)


def decoded_bytes(path: Path) -> int:
    """Bytes of a picture that Pillow decodes as a whole, by its header; 0 if tifffile reads it in parts."""
    return 0 if _by_tifffile(path) else image.decoded_bytes(path)


def _by_tifffile(path: Path) -> Source | None:
    """Return the file's array; None if Pillow must read it, or raise the error."""
    try:
        with tifffile.TiffFile(path) as file:
            return _described(path, file)
    except UNREAD:
        return None


def _described(path: Path, file: Any) -> Source | None:
    """Return the file's array; None if Pillow must read it."""
    series, size = _series(file), path.stat().st_size
    if len(series) != 1:
        shapes = ", ".join(str(one.shape) for one in series[:8])
        raise UserError(f"{path} holds {len(series)} pictures of different kinds", got=shapes, expected="one")
    (only,) = series
    page = only.keyframe
    _check_size(path, file, only, size)
    if not _is_samples(page, only):
        return None
    dtype, shape = np.dtype(only.dtype), tuple(only.shape)
    if only.dataoffset is not None:
        needed = only.dataoffset + math.prod(shape) * dtype.itemsize
        if size < needed:
            raise _truncated(path, size, needed)
        return FlatSource(path, shape, dtype.newbyteorder(file.byteorder), only.dataoffset)
    _, _, length, width, channels = page.shaped
    whole = (length, width, channels) if channels > 1 or shape[-2:] != (length, width) else (length, width)
    stack = shape[: -len(whole)]
    if shape[-len(whole) :] != whole or math.prod(stack) != len(only.pages):
        return None
    try:
        page.decode(None, 0)
    except (ValueError, NotImplementedError) as reason:
        if not stack:
            return None
        raise UserError(
            f"{path} has a compression that needs a package", why=reason, hint="pip install imagecodecs"
        ) from reason
    chunks = (*(1 for _ in stack), *page.chunks[:2], *whole[2:])
    _check_promise(path, only, whole, math.prod(chunks) * dtype.itemsize)
    return TiffSource(path, shape, dtype.newbyteorder("="), chunks, whole)


def _is_samples(page: Any, series: Any) -> bool:
    """Return whether the samples, without conversion, equal what Pillow would return for the picture."""
    separate, depth, *_ = page.shaped
    return (
        None not in series.pages
        and page.photometric in (BLACK_IS_ZERO, RGB)
        and page.bitspersample in (8, 16, 32, 64)
        and (separate, depth) == (1, 1)
        and np.dtype(series.dtype).kind in NUMBERS
        and page.tags.valueof(ORIENTATION, default=1) == 1
        and not (series.dtype == np.uint8 and {*page.extrasamples} & {ASSOCIATED_ALPHA, UNSPECIFIED})
    )


def _check_size(path: Path, file: Any, series: Any, size: int) -> None:
    """Refuse a file that ends before its pages do; tifffile would read only the pages that are there."""
    for page in series.pages:
        if page is not None:
            ends = (a + n for a, n in zip(page.dataoffsets, page.databytecounts, strict=False))
            needed = max(ends, default=0)
            if size < needed:
                raise _truncated(path, size, needed)
    sizes, handle = file.tiff, file.filehandle
    last = file.pages[len(file.pages) - 1].offset
    handle.seek(last)
    (tags,) = struct.unpack(sizes.tagnoformat, handle.read(sizes.tagnosize))
    handle.seek(last + sizes.tagnosize + tags * sizes.tagsize)
    (following,) = struct.unpack(sizes.offsetformat, handle.read(sizes.offsetsize))
    if following != 0:
        raise _truncated(path, size, following)


def _check_promise(path: Path, series: Any, shape: Shape, part: int) -> None:
    """Refuse pages of `shape` whose strips or tiles cannot hold so much.

    part: decoded bytes of a strip or tile; those that were left out of a sparse file are zeros.
    """
    factor = image.EXPANSION.get(COMPRESSIONS.get(series.keyframe.compression, ""))
    if factor is None:
        return
    whole = math.prod(shape) * series.dtype.itemsize
    for page in series.pages:
        held, left_out = sum(page.databytecounts), page.databytecounts.count(0)
        if whole - left_out * part > held * factor:
            raise image.promises_more(path, held, held * factor, whole, shape)


def _truncated(path: Path, size: int, needed: int) -> UserError:
    return UserError(f"{path} is broken or truncated", got=f"{size:,} bytes", expected=f"at least {needed:,}")


class TiffSink(FlatSink):
    """An array that becomes a TIFF: a picture, or contiguous pages."""

    form = Form()

    @cached_property
    def offset(self) -> int:
        with tifffile.TiffFile(self.partial) as file:
            offset: int = file.series[0].dataoffset
            return offset

    def lay_out(self, file: BinaryIO) -> None:
        colour = len(self.shape) == 3 and self.shape[2] in (3, 4) and self.dtype.name in ("uint8", "uint16")
        pages = math.prod(self.shape[:-2])
        needed = math.prod(self.shape) * self.dtype.itemsize + pages * PAGE_BYTES
        tifffile.imwrite(
            file,
            shape=self.shape,
            dtype=self.dtype,
            bigtiff=needed > CLASSIC,
            byteorder=">" if self.dtype.str[0] == ">" else "<",
            photometric="rgb" if colour else "minisblack",
            planarconfig="contig" if colour else None,
            extrasamples=["unassalpha"] if colour and self.shape[2] == 4 else None,
        )


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> TiffSink:
    if dtype.str[1:] not in HOLDS or len(shape) < 2 or 0 in shape:
        raise UserError(
            "TIFF cannot hold this result",
            got=f"{dtype.name} of shape {shape}",
            expected="([pages, ]rows, columns[, channels]) of integers, floats or complex numbers",
            hint="an output that ends in .npy, which stores any array",
        )
    return TiffSink(path, partial, shape, dtype)
