"""Write TIFF: uncompressed pages that lie in the file as in memory, each part by the rank that has it."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tifffile

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import Form
from meshrun.runner.region import Shape
from meshrun.runner.storage.formats.flat import FlatSink

HOLDS = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8")
CLASSIC = (1 << 32) - (1 << 25)  # bytes of values for which 32-bit offsets suffice, with room for metadata
PAGE_BYTES = 1 << 9  # more than the metadata of a page


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
