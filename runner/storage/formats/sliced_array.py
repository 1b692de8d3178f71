"""An array in a file that can be sliced but not mapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.region import HostArray, Region, Shape


@dataclass(frozen=True)
class Unmapped:
    """Basic slicing (no negative steps, no new axes) of an array that is read, not mapped.

    source: a `registry.Source`, which imports this module.
    """

    source: Any

    @property
    def shape(self) -> Shape:
        shape: Shape = self.source.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.source.dtype
        return dtype

    def __getitem__(self, index: Any) -> HostArray:
        parts = list(index) if isinstance(index, tuple) else [index]
        if Ellipsis in parts:
            place = parts.index(Ellipsis)
            parts[place : place + 1] = [slice(None)] * (len(self.shape) + 1 - len(parts))
        if len(parts) > len(self.shape):
            raise IndexError(f"{len(parts)} indices for an array of {len(self.shape)} axes")
        parts += [slice(None)] * (len(self.shape) - len(parts))
        start: list[int] = []
        stop: list[int] = []
        inner: list[slice | int] = []
        for part, length in zip(parts, self.shape, strict=True):
            if isinstance(part, slice):
                first, last, step = part.indices(length)
                if step < 0:
                    raise IndexError(f"steps must be positive, got {step}")
                inner.append(slice(None, None, step))
            else:
                first = range(length)[part]
                last = first + 1
                inner.append(0)
            start.append(first)
            stop.append(max(first, last))
        region = Region(tuple(start), tuple(stop))
        cells = np.empty(region.shape, self.dtype)
        self.source.read(region, cells)
        return cells[tuple(inner)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        return np.asarray(self[...], dtype or self.dtype)
