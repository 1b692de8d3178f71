"""NumPy's .npy files: memory-mapped for reading, each rank's part written in place."""

from __future__ import annotations

import errno
import io
import math
import os
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from runner.errors import UserError
from runner.partition import Region, Shape
from runner.storage import HostArray, not_shared, write_error


@dataclass
class NpySource:
    path: Path
    shape: Shape
    dtype: np.dtype[Any]
    parallel: bool = True

    @cached_property
    def array(self) -> HostArray:
        try:
            mapped: HostArray = np.load(self.path, mmap_mode="r")
        except OSError as reason:  # rank 0 could; this host may have no such file
            raise not_shared(self.path, reason) from reason
        return mapped

    def read(self, region: Region, target: HostArray) -> None:
        target[...] = self.array[region.slices]

    def __getstate__(self) -> dict[str, Any]:
        # Sent to other ranks as a description; each maps the file for itself.
        return {key: value for key, value in self.__dict__.items() if key != "array"}


def open_source(path: Path) -> NpySource:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
                # 3.0 differs in the encoding of field names only, and arrays with fields are refused.
                (3, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, stored = read_header(file)
            if any(length < 0 for length in shape):
                raise ValueError(f"shape {shape}")
        except (ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError) as reason:
            raise UserError(f"{path} is not a .npy file that can be read", got=reason) from reason
        begin = file.tell()
        size = file.seek(0, os.SEEK_END)
    if stored.kind not in "biufc":
        raise UserError(f"{path} holds no plain numbers", got=f"dtype {stored}", expected="a numeric dtype")
    needed = begin + math.prod(shape) * stored.itemsize
    if size < needed:
        raise UserError(
            f"{path} is truncated",
            got=f"{size:,} bytes",
            expected=f"{needed:,} for shape {shape} of {stored}",
        )
    return NpySource(path, shape, stored.newbyteorder("="))


@dataclass
class NpySink:
    path: Path
    partial: Path
    shape: Shape
    dtype: np.dtype[Any]
    parallel: bool = True
    lossless: bool = True

    @cached_property
    def _header(self) -> bytes:
        buffer = io.BytesIO()
        description = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_2_0(
            buffer, {"descr": description, "fortran_order": False, "shape": self.shape}
        )
        return buffer.getvalue()

    def create(self) -> None:
        needed = len(self._header) + math.prod(self.shape) * self.dtype.itemsize
        try:
            with open(self.partial, "xb") as file:
                self._claim(file, needed)
        except OSError as reason:
            raise write_error(self.path, reason, needed) from reason

    def _claim(self, file: BinaryIO, needed: int) -> None:
        try:
            # Room is claimed now, so that a full disk shows before the work, not after it.
            _allocate(file.fileno(), needed)
            file.write(self._header)
            file.flush()
        except OSError:
            self.partial.unlink()
            raise

    def write(self, region: Region, array: HostArray) -> None:
        if (array.dtype, array.shape) != (self.dtype, region.shape):
            raise ValueError(
                f"{array.dtype} {array.shape} is not {self.dtype} {region.shape}, region {region}"
            )
        try:
            with open(self.partial, "r+b", buffering=0) as file:
                self._write(file.fileno(), region, np.ascontiguousarray(array))
        except FileNotFoundError as reason:  # rank 0 made it; this host may have no such folder
            raise not_shared(self.path, reason) from reason
        except OSError as reason:
            raise write_error(self.path, reason) from reason

    def _write(self, descriptor: int, region: Region, array: HostArray) -> None:
        # Axes from `whole` on are written whole, so that each index of the axes before is one run of bytes.
        whole = len(self.shape)
        while whole > 0 and region.shape[whole - 1] == self.shape[whole - 1]:
            whole -= 1
        leading = max(whole - 1, 0)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        for index in np.ndindex(*region.shape[:leading]):
            first = [*(a + i for a, i in zip(region.start, index, strict=False)), *region.start[leading:]]
            offset = sum(i * stride for i, stride in zip(first, strides, strict=True))
            _write_all(descriptor, memoryview(array[index].reshape(-1).view(np.uint8)), self._at(offset))

    def _at(self, element: int) -> int:
        return len(self._header) + element * self.dtype.itemsize


def open_sink(path: Path, partial: Path, shape: Shape, dtype: np.dtype[Any]) -> NpySink:
    return NpySink(path, partial, shape, dtype)


def _allocate(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as reason:
        if reason.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
