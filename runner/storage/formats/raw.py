"""Raw binary files: only the values, so that shape and dtype must be given."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import Form
from meshrun.runner.region import Shape
from meshrun.runner.spelling import joined, option
from meshrun.runner.storage.formats.declared_form import NUMBERS, parse_dtype
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource


def open_source(path: Path, name: str | None, form: Form) -> FlatSource:
    if form.shape is None or form.dtype is None:
        given = ((option("input_shape"), form.shape), (option("input_dtype"), form.dtype))
        raise UserError(
            f"{path} has no header: the shape and dtype of its {path.stat().st_size:,} bytes are unknown",
            got=" and ".join(f"no {name}" for name, value in given if value is None),
            hint=joined(option("input_shape", "1000x1000"), option("input_dtype", "float32")),
        )
    order = form.order or "C"
    if order not in ("C", "F"):
        raise UserError(f"unknown {option('input_order')}", got=order, expected="C or F")
    dtype = parse_dtype(form.dtype)
    needed, size = math.prod(form.shape) * dtype.itemsize, path.stat().st_size
    if size != needed or min(form.shape, default=0) < 0:
        raise UserError(
            f"{path} does not have this shape and dtype",
            got=f"{size:,} bytes",
            expected=f"{needed:,} for shape {form.shape} of {dtype}",
        )
    return FlatSource(path, tuple(form.shape), dtype, 0, order)


class RawSink(FlatSink):
    """An array that becomes a raw file, in C order."""

    offset = 0

    def lay_out(self, file: BinaryIO) -> None:
        """Do nothing: there is no header."""


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> RawSink:
    if dtype.kind not in NUMBERS:
        raise UserError(
            f"{path.suffix} cannot hold this result", got=f"dtype {dtype}", expected="plain numbers"
        )
    return RawSink(path, partial, shape, dtype)
