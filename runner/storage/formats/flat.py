"""Arrays with the same layout in a file as in memory: every rank reads and writes its part in place.

Reads and writes use preadv and pwrite instead of a map, so that a file of any size leaves no pages in a
process's memory, and a full disk or a shortened file is an error instead of a signal. Only if several threads
write an allocated file, they write to its pages (`mmap_write`). The file is opened for each read and write:
threads share no state, and closing makes NFS send the data.
"""

from __future__ import annotations

import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from meshrun.runner.errors import MeshrunError, RunError
from meshrun.runner.files import allocate, keep_mode, open_file, open_new
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.storage import mmap_write
from meshrun.runner.storage.file_errors import not_shared, unclaimed, write_error

BUFFER = 1 << 18  # bytes of a buffer for strided data, small enough to stay in the cache
GAP = 1 << 15  # bytes: rows up to this length are read whole, which takes less time than more calls
SEVERAL = 4  # threads: fewer write faster with pwrite, which locks the file
WORTH_MAPPING = 1 << 20  # bytes of a write from which mapping pages is faster


@dataclass
class FlatSource:
    """An uncompressed array that is contiguous in its file.

    stored: its dtype in the file. order: "C", or "F" if the first index varies fastest.
    """

    path: Path
    shape: Shape
    stored: np.dtype[Any]
    offset: int
    order: str = "C"
    name: str | None = None
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    chunks: ClassVar[Shape | None] = None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        native: np.dtype[Any] = self.stored.newbyteorder("=")
        return native

    @property
    def form(self) -> Form:
        return Form(self.shape, self.stored.str, self.order)

    @cached_property
    def array(self) -> HostArray:
        if 0 in self.shape:
            return np.empty(self.shape, self.stored)  # nothing can be mapped
        try:
            order: Any = self.order
            return np.memmap(self.path, self.stored, "r", self.offset, self.shape, order)
        except OSError as reason:  # rank 0 has opened it; this host may not have the file
            raise not_shared(self.path, reason) from reason

    def read(self, region: Region, target: HostArray) -> None:
        region.check(target, self.dtype)
        if region.size == 0:
            return
        try:
            with open(self.path, "rb", buffering=0) as file:
                if self.order == "C":
                    _read(file.fileno(), self.offset, self.shape, region, target)
                else:  # its transpose is in C order
                    across = Region(region.start[::-1], region.stop[::-1])
                    _read(file.fileno(), self.offset, self.shape[::-1], across, target.T)
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason
        except EOFError as reason:
            raise RunError(f"{self.path} became shorter while it was read", why=reason) from reason
        except OSError as reason:
            raise RunError(f"cannot read {self.path}", why=reason.strerror or reason) from reason
        if not self.stored.isnative:
            target.byteswap(inplace=True)

    def __getstate__(self) -> dict[str, Any]:
        # Sent to other ranks as a description; each rank maps the file itself.
        return {key: value for key, value in self.__dict__.items() if key != "array"}


@dataclass
class FlatSink(ABC):
    """An array written in place by every rank."""

    path: Path
    partial: Path
    shape: Shape
    dtype: np.dtype[Any]
    name: str | None = None
    parallel: bool = True
    lossless: bool = True
    threads: int = 1
    chunks: ClassVar[Shape | None] = None

    @property
    def form(self) -> Form:
        return Form(self.shape, self.dtype.str)

    @property
    @abstractmethod
    def offset(self) -> int:
        """Offset of the array in `partial`, in bytes, after that was created."""

    @abstractmethod
    def lay_out(self, file: BinaryIO) -> None:
        """Write everything but the values into `file`, the new file at `partial`."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def create(self) -> None:
        create_file([self], self.lay_out)

    def write(self, region: Region, array: HostArray) -> None:
        region.check(array, self.dtype)
        if array.size == 0:
            return
        try:
            if self._through_pages and (start := stretch(self.shape, region)) is not None and _large(array):
                mmap_write.write(self.partial, self._at(start), array)
                return
            with open_file(self.partial, write=True) as file:
                self._write(file.fileno(), region, array)
        except FileNotFoundError as reason:  # rank 0 created it; this host may not have the folder
            raise not_shared(self.path, reason) from reason
        except OSError as reason:
            raise self._unwritten(reason) from reason

    def _write(self, descriptor: int, region: Region, array: HostArray) -> None:
        leading = _leading(self.shape, region)
        strides = _strides(self.shape)
        for index in np.ndindex(*region.shape[:leading]):
            position, run = (
                self._at(_first(region, index, strides)),
                (*index, ...),
            )  # a view, also of a scalar
            for piece in _pieces(array[run]):
                _write_all(descriptor, _bytes(np.ascontiguousarray(piece)), position)
                position += piece.nbytes

    def _unwritten(self, reason: OSError) -> RunError:
        return write_error(self.path, reason, unclaimed(self.partial), "for the rest", self.partial)

    @cached_property
    def _through_pages(self) -> bool:
        return self.threads >= SEVERAL and mmap_write.claims(self.partial)

    def _at(self, element: int) -> int:
        return self.offset + element * self.dtype.itemsize

    def sync(self) -> None:
        try:
            os.fdatasync(self._file.fileno())
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason
        except OSError as reason:
            raise self._unwritten(reason) from reason

    @cached_property
    def _file(self) -> io.FileIO:
        # Kept open: the kernel reports a failed write only to descriptors that were open at that time.
        return open_file(self.partial)


def create_file(sinks: Sequence[FlatSink], lay_out: Callable[[BinaryIO], None]) -> None:
    """Create the file that `sinks` share. lay_out: writes everything but the values."""
    path, partial, needed = sinks[0].path, sinks[0].partial, sum(sink.nbytes for sink in sinks)
    try:
        made = open_new(partial)  # an existing file would be another run's
    except OSError as reason:
        raise write_error(path, reason, needed, partial=partial.parent) from reason
    try:
        with made as file:
            keep_mode(path, partial)  # now, so that nobody reads meanwhile what he could not before
            lay_out(file)
            file.flush()
            needed = max(sink.offset + sink.nbytes for sink in sinks)
            # Space is allocated now, so that a full disk is detected before the work.
            allocate(file.fileno(), needed)
    except OSError as reason:
        partial.unlink()
        raise write_error(path, reason, needed, partial=partial.parent) from reason
    except MeshrunError:
        partial.unlink()
        raise


def _leading(shape: Shape, region: Region) -> int:
    """Return how many leading axes to iterate over, so that each index is one run of bytes in the file."""
    # Axes from `whole` on are read and written whole.
    whole = len(shape)
    while whole > 0 and region.shape[whole - 1] == shape[whole - 1]:
        whole -= 1
    return max(whole - 1, 0)


def stretch(shape: Shape, region: Region) -> int | None:
    """Return the index of the region's first element in C order if the region is contiguous, else None."""
    if math.prod(region.shape[: _leading(shape, region)]) != 1:
        return None
    return sum(a * stride for a, stride in zip(region.start, _strides(shape), strict=True))


def _large(array: HostArray) -> bool:
    return array.flags.c_contiguous and array.nbytes >= WORTH_MAPPING


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _first(region: Region, index: tuple[int, ...], strides: list[int]) -> int:
    """Return the index, in C order, of the first element of the region's part at `index`."""
    place = [*(a + i for a, i in zip(region.start, index, strict=False)), *region.start[len(index) :]]
    return sum(i * stride for i, stride in zip(place, strides, strict=True))


def _pieces(array: HostArray) -> Iterator[HostArray]:
    """Yield `array` in C order, in views that are contiguous or at most BUFFER bytes."""
    if array.flags.c_contiguous or array.nbytes <= BUFFER:
        yield array
    elif array[0].nbytes > BUFFER:
        for part in array:
            yield from _pieces(part)
    else:
        step = BUFFER // array[0].nbytes
        for first in range(0, len(array), step):
            yield array[first : first + step]


def _bytes(array: HostArray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read(descriptor: int, offset: int, shape: Shape, region: Region, target: HostArray) -> None:
    size, strides = target.dtype.itemsize, _strides(shape)
    axis = leading = _leading(shape, region)
    while axis > 0 and strides[axis - 1] * size <= GAP:
        axis -= 1
    if axis < leading:
        _sieve(descriptor, offset, shape, region, target, axis)
        return
    for index in np.ndindex(*region.shape[:leading]):
        position, run = offset + _first(region, index, strides) * size, (*index, ...)
        for piece in _pieces(target[run]):
            if piece.flags.c_contiguous:
                _read_all(descriptor, _bytes(piece), position)
            else:
                piece[...] = _packed(descriptor, piece.shape, piece.dtype, position)
            position += piece.nbytes


def _sieve(descriptor: int, offset: int, shape: Shape, region: Region, target: HostArray, axis: int) -> None:
    """Read many short runs together with the gaps between them: axes after `axis` whole (data sieving)."""
    size, strides = target.dtype.itemsize, _strides(shape)
    wide = Region((*region.start[: axis + 1], *(0,) * (len(shape) - axis - 1)), region.stop)
    inner = (slice(None), *region.slices[axis + 1 :])
    step = max(BUFFER // (strides[axis] * size), 1)
    for index in np.ndindex(*region.shape[:axis]):
        for first in range(0, region.shape[axis], step):
            rows = target[index][first : first + step]
            position = offset + _first(wide, (*index, first), strides) * size
            rows[...] = _packed(descriptor, (len(rows), *shape[axis + 1 :]), rows.dtype, position)[inner]


def _packed(descriptor: int, shape: Shape, dtype: np.dtype[Any], position: int) -> HostArray:
    buffer = np.empty(shape, dtype)
    _read_all(descriptor, _bytes(buffer), position)
    return buffer


def _read_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        count = os.preadv(descriptor, [data], position)
        if count == 0:
            raise EOFError(f"{position:,} bytes")
        data, position = data[count:], position + count


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
