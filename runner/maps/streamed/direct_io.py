"""Direct I/O between files and device memory, for chunks that are contiguous in their files."""

from __future__ import annotations

from functools import partial

import numpy as np

from meshrun.runner.device.gds import DirectFile
from meshrun.runner.maps.streamed.endpoints import Endpoints, Step
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource, stretch
from meshrun.runner.storage.formats.registry import Sink, Source


class Direct:
    """Sources and sinks of one run, as the device reads and writes them."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._sources = [
            DirectFile(source.path) if isinstance(source, FlatSource) else None
            for source in endpoints.sources
        ]
        self._sinks = [
            DirectFile(sink.partial, write=True) if isinstance(sink, FlatSink) else None
            for sink in endpoints.sinks
        ]

    def reads(self, place: int, window: Window, target: Array) -> list[Step] | None:
        """Return steps that read a window of input `place` into `target`, flat uint8.

        None if the window is not contiguous in the file.
        """
        file, source = self._sources[place], self._endpoints.sources[place]
        region, *more = [region for region, _ in window.reads()]
        if file is None or more or (offset := _read_at(source, region)) is None:
            return None
        part = target[: region.size * source.dtype.itemsize]
        return [Step("read", part.nbytes, partial(file.read, part, offset))]

    def writes(self, place: int, region: Region, result: Array) -> list[Step] | None:
        """Return steps that write a contiguous result to `region` of output `place`.

        None if the region is not contiguous in the file.
        """
        file = self._sinks[place]
        if file is None or (offset := _write_at(self._endpoints.sinks[place], region)) is None:
            return None
        part = result.reshape(-1).view(np.uint8)
        return [Step("write", part.nbytes, partial(file.write, part, offset))]

    def close(self) -> None:
        for file in (*self._sources, *self._sinks):
            if file is not None:
                file.close()


def _read_at(source: Source, region: Region) -> int | None:
    """Return the byte offset of the region in its file; None if the file's layout differs from memory."""
    if not isinstance(source, FlatSource) or source.order != "C" or not source.stored.isnative:
        return None
    return _byte(source.offset, source.shape, source.dtype.itemsize, region)


def _write_at(sink: Sink, region: Region) -> int | None:
    return _byte(sink.offset, sink.shape, sink.dtype.itemsize, region) if isinstance(sink, FlatSink) else None


def _byte(offset: int, shape: Shape, itemsize: int, region: Region) -> int | None:
    first = stretch(shape, region) if region.size else None
    return None if first is None else offset + first * itemsize
