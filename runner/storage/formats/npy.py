"""NumPy's .npy files."""

from __future__ import annotations

import io
import math
import os
import threading
import tokenize
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import Form
from meshrun.runner.region import Shape
from meshrun.runner.storage.file_errors import not_numbers
from meshrun.runner.storage.formats.declared_form import NUMBERS
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource

# A header is a Python literal, and CPython's parser can fail if several threads use it: SystemError, "AST
# constructor recursion depth mismatch".
PARSING = threading.Lock()
LONGEST_HEADER = 1 << 14  # bytes; NumPy refuses more than 10,000


def _fits(shape: Shape, itemsize: int) -> bool:
    """Whether NumPy has arrays of a shape without cells: it counts an axis without cells as one cell.

    Of a shape with cells, the file shows it.
    """
    return 0 not in shape or math.prod(max(length, 1) for length in shape) * itemsize <= np.iinfo(np.intp).max


class NpySource(FlatSource):
    """An array in a .npy file."""


def open_source(path: Path, name: str | None, form: Form) -> NpySource:
    with path.open("rb") as file:
        try:
            head = io.BytesIO(file.read(LONGEST_HEADER))  # NumPy reserves as much as the header's length says
            version = np.lib.format.read_magic(head)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
                # 3.0 differs only in the encoding of field names, and arrays with fields are refused.
                (3, 0): np.lib.format.read_array_header_2_0,
            }[version]
            with PARSING:
                shape, columns_first, stored = read_header(head)
            if any(length < 0 for length in shape) or not _fits(shape, stored.itemsize):
                raise ValueError(f"shape {shape}")
        except (ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError) as reason:
            raise UserError(f"{path} is not a readable .npy file", why=reason) from reason
        begin = head.tell()
        size = file.seek(0, os.SEEK_END)
    if stored.kind not in NUMBERS:
        raise not_numbers(path, stored)
    needed = begin + math.prod(shape) * stored.itemsize
    if size < needed:
        raise UserError(
            f"{path} is truncated",
            got=f"{size:,} bytes",
            expected=f"{needed:,} for shape {shape} of {stored}",
        )
    return NpySource(path, shape, stored, begin, "F" if columns_first else "C")


class NpySink(FlatSink):
    """An array that becomes a .npy file."""

    @cached_property
    def _header(self) -> bytes:
        return self.header_of(self.shape)

    def header_of(self, shape: Shape) -> bytes:
        """Return the header of a file with an array of `shape`; its length is the same for fewer rows."""
        buffer = io.BytesIO()
        description = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_2_0(
            buffer, {"descr": description, "fortran_order": False, "shape": shape}
        )
        return buffer.getvalue()

    @property
    def offset(self) -> int:
        return len(self._header)

    def lay_out(self, file: BinaryIO) -> None:
        file.write(self._header)


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> NpySink:
    return NpySink(path, partial, shape, dtype)
