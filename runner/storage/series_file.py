"""A file to which rows are added as a run goes on: .npy, of (rows, *shape), or .csv.

Its rows are in an unfinished file beside it. After a crash the file is cut to the rows that a checkpoint
counts, and goes on from there: no row is lost or there twice.
"""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray, Shape
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.paths import KEPT, partial_path

SUFFIXES = (".npy", ".csv")


@dataclass
class SeriesFile:
    """A file of rows. One process calls the methods; they raise RunError if the disk fails.

    name: of the series. shape, dtype: of a row. rows: written so far. checksum: of their bytes in the file.
    """

    path: Path
    name: str
    shape: Shape
    dtype: np.dtype[Any]
    rows: int = field(default=0, init=False)
    checksum: int = field(default=0, init=False)
    _file: BinaryIO | None = field(default=None, init=False)

    @property
    def partial(self) -> Path:
        """The unfinished file, with which a resumed run goes on."""
        return partial_path(self.path, KEPT)

    def create(self) -> None:
        """Begin an empty file."""
        try:
            self._file = self.partial.open("w+b")
            self._file.write(self._head())
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason

    def resume(self, rows: int, checksum: int) -> str | None:
        """Go on after so many rows of an earlier run; return why it cannot be, None if it can.

        checksum: of these rows. The file may have its final name, if the run was killed at its end.
        """
        place = self.partial if self.partial.exists() else self.path
        try:
            content = place.read_bytes()
            end = self._end_of(content, rows)
            if end is None or zlib.crc32(content[len(self._head()) : end]) != checksum:
                return f"{place} does not hold its first {rows:,} rows"
            self.create()
            self._write(content[len(self._head()) : end])
        except OSError as reason:
            return f"{place} cannot be read: {reason.strerror or reason}"
        self.rows = rows
        return None

    def append(self, steps: list[int], values: HostArray) -> None:
        """Add rows. steps: of each. values: (rows, *shape)."""
        rows = np.ascontiguousarray(values, self.dtype)
        if self.path.suffix.lower() == ".npy":
            self._write(rows.tobytes())
        else:
            flat = rows.reshape(len(rows), -1)
            lines = (",".join(map(str, (step, *row))) for step, row in zip(steps, flat, strict=True))
            self._write("".join(f"{line}\n" for line in lines).encode())
        self.rows += len(rows)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        assert self._file is not None
        try:
            if self.path.suffix.lower() == ".npy":  # the header says how many there are
                self._file.seek(0)
                self._file.write(self._head())
                self._file.seek(0, os.SEEK_END)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason

    def close(self) -> None:
        """Close the file; it may be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(content)
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason
        self.checksum = zlib.crc32(content, self.checksum)

    def _head(self) -> bytes:
        """Return what comes before the rows; its length does not depend on their number."""
        if self.path.suffix.lower() == ".npy":
            buffer = io.BytesIO()
            described = np.lib.format.dtype_to_descr(self.dtype)
            shape = (self.rows, *self.shape)
            np.lib.format.write_array_header_2_0(
                buffer, {"descr": described, "fortran_order": False, "shape": shape}
            )
            return buffer.getvalue()
        names = [f"{self.name}[{','.join(map(str, index))}]" for index in np.ndindex(self.shape)]
        cells = names if self.shape else [self.name]
        quoted = [f'"{cell}"' if "," in cell else cell for cell in cells]
        return ",".join(["step", *quoted]).encode() + b"\n"

    def _end_of(self, content: bytes, rows: int) -> int | None:
        """Return where so many rows end in a file's content; None if it has fewer."""
        begin = len(self._head())
        if self.path.suffix.lower() == ".npy":
            end = begin + rows * int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
            return end if end <= len(content) else None
        end = begin
        for _ in range(rows):
            end = content.find(b"\n", end) + 1
            if end == 0:
                return None
        return end


def check_series(name: str, path: Path) -> None:
    """Raise UserError for a file that cannot have rows added."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{name} is a series, and {path} cannot hold one",
            got=path.suffix or "no suffix",
            expected=" or ".join(SUFFIXES),
        )
