"""Pages whose strips or tiles must be decoded: every rank decodes those that its part overlaps.

tifffile's own decoders are called, so that a part equals that part of what tifffile reads.
"""

from __future__ import annotations

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

from meshrun.runner.errors import RunError, first_line
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape, chunk_region, overlap, overlapping_chunks
from meshrun.runner.storage.file_errors import not_shared
from meshrun.runner.storage.formats.sliced_array import Unmapped

# Exceptions of tifffile and the codecs for files that they cannot read.
UNREAD = (
    tifffile.TiffFileError,  # a ValueError only since 2026, which needs Python 3.11
    ValueError,
    ArithmeticError,  # tiles without cells, infinitely many strips
    AssertionError,
    AttributeError,
    ImportError,  # a codec that an installation of imagecodecs lacks
    LookupError,
    MemoryError,  # a tile of more cells than there is memory
    TypeError,
    RuntimeError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class Segments:
    """Where the strips or tiles of a page are. jpeg_tables: what they share, if they are JPEGs."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    jpeg_tables: bytes | None = None


@dataclass(frozen=True)
class _Decoder:
    """decode: of tifffile, a segment's bytes to its cells and their place in a page. pages: in order."""

    decode: Callable[..., Any]
    pages: list[Segments]


@dataclass
class PagesSource:
    """Equal pages, as they are stored.

    Parameters
    ----------
    path
        The file.
    shape
        Of the array: the axes of the stack of pages, then those of `page` that are longer than 1. Axes of
        length 1 may stand anywhere.
    dtype
        Of decoded samples, in the machine's byte order.
    page
        tifffile's shape of a page: (planes, depth, rows, columns, samples).
    segment
        The shape of a strip or tile: (depth, rows, columns).
    stack
        The number of leading axes of `shape` that count pages.
    fill
        The value of cells whose strip or tile was left out.
    locate
        Returns tifffile's decoder and the pages of an opened file.
    """

    path: Path
    shape: Shape
    dtype: np.dtype[Any]
    page: Shape
    segment: Shape
    stack: int
    fill: Any
    locate: Callable[[Any], tuple[Callable[..., Any], list[Segments]]]
    name: str | None = None
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    form: ClassVar[Form] = Form()

    @property
    def array(self) -> Unmapped:
        return Unmapped(self)

    @property
    def chunks(self) -> Shape:
        """The shape of a segment, with all planes and samples, as axes of the array."""
        lengths = iter(
            n
            for n, whole in zip((self.page[0], *self.segment, self.page[4]), self.page, strict=True)
            if whole > 1
        )
        tail = self.shape[self.stack :]
        return (*(1 for _ in range(self.stack)), *(next(lengths) if n > 1 else 1 for n in tail))

    @cached_property
    def _decoder(self) -> _Decoder:
        try:
            with tifffile.TiffFile(self.path) as file:
                return _Decoder(*self.locate(file))
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason
        except UNREAD as reason:
            raise RunError(f"{self.path} is broken or has changed", why=first_line(reason)) from reason

    def read(self, region: Region, target: HostArray) -> None:
        region.check(target, self.dtype)
        if region.size == 0:
            return
        box, long = self._box_in_page(region), tuple(0 if n == 1 else slice(None) for n in self.tail)
        as_page = tuple(None if n == 1 else slice(None) for n in self.page)
        try:
            with open(self.path, "rb", buffering=0) as file:
                for index in np.ndindex(*region.shape[: self.stack]):
                    place = tuple(a + i for a, i in zip(region.start, index, strict=False))
                    number = int(np.ravel_multi_index(place, self.shape[: self.stack])) if place else 0
                    self._read_page(file, number, box, target[index][long][as_page])
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason

    @property
    def tail(self) -> Shape:
        """The lengths of the axes within a page."""
        return self.shape[self.stack :]

    def _box_in_page(self, region: Region) -> Region:
        """Return the cells of each page that are in `region`, as a box of `page`."""
        spans = zip(self.tail, region.start[self.stack :], region.stop[self.stack :], strict=True)
        long = iter([(start, stop) for length, start, stop in spans if length > 1])
        start, stop = zip(*(next(long) if n > 1 else (0, 1) for n in self.page), strict=True)
        return Region(start, stop)

    def _read_page(self, file: BinaryIO | Any, number: int, box: Region, target: HostArray) -> None:
        """Copy the cells `box` of a page to `target`."""
        sizes = (1, *self.segment, self.page[4])
        grid = [-(-length // n) for length, n in zip(self.page, sizes, strict=True)]
        for place in overlapping_chunks(box, sizes):
            within = chunk_region(place, sizes, self.page)
            part = overlap(within, box)
            segment = int(np.ravel_multi_index(place, grid))
            cells = self._decoded(file.fileno(), number, segment)
            if cells is None:  # left out of a sparse file
                target[part.slices_in(box)] = self.fill
                continue
            if any(n < length for n, length in zip(cells.shape, within.shape[1:], strict=True)):
                raise self._broken(number, segment, f"{cells.shape} cells", f"{within.shape[1:]}")
            target[part.slices_in(box)] = cells[part.slices_in(within)[1:]]

    def _decoded(self, descriptor: int, number: int, segment: int) -> HostArray | None:
        """Return a strip or tile, (depth, rows, columns, samples); None if the file leaves it out."""
        try:
            page = self._decoder.pages[number]
            offset, size = page.offsets[segment], page.sizes[segment]
            if offset == 0 or size == 0:
                return None
            there = max(min(os.fstat(descriptor).st_size - offset, size), 0)
            if there < size:  # before so much memory is reserved
                raise ValueError(f"the file ends within it: {there:,} of {size:,} bytes")
            data = stored_bytes(descriptor, offset, size)
            cells: HostArray = self._decoder.decode(data, segment, jpegtables=page.jpeg_tables)[0]
        except UNREAD as reason:
            got = "too little memory" if isinstance(reason, MemoryError) else first_line(reason)
            raise self._broken(number, segment, got) from reason
        except OSError as reason:
            raise RunError(f"cannot read {self.path}", why=reason.strerror or reason) from reason
        return cells

    def _broken(self, page: int, segment: int, got: str, expected: str | None = None) -> RunError:
        what = f"{self.path} is broken: part {segment} of page {page} cannot be decoded"
        return RunError(what, got=got, expected=expected)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_decoder"}


def stored_bytes(descriptor: int, offset: int, size: int) -> bytes:
    """Return the bytes of a segment; a single call reads less than 2 GiB."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            raise ValueError(f"the file became shorter: {len(data):,} of {size:,} bytes")
        data += more
    return data


def segment_shape(page: Any) -> Shape:
    """Return the shape (depth, rows, columns) of the strips or tiles of tifffile's `page`."""
    if page.is_tiled:
        return (page.tiledepth, page.tilelength, page.tilewidth)
    return (1, min(page.rowsperstrip, page.imagelength), page.imagewidth)


def segment_count(page: Any) -> int:
    """Return the number of strips or tiles that a page needs."""
    _, depth, rows, columns, _ = page.shaped
    spans = zip((depth, rows, columns), segment_shape(page), strict=True)
    count: int = page.shaped[0] * math.prod(-(-length // n) for length, n in spans)
    return count
