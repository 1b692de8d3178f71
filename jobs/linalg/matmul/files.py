"""Factors from files and the product to a file: each rank reads and writes its own parts, between steps."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.jobs.linalg.matmul.products import Products
from meshrun.runner.arrays.load import stages
from meshrun.runner.device.api import Backend
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.report.phases import Phases
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.world.world import World

Span = tuple[int, int]  # start and stop


@dataclass
class Factor:
    """A factor in a file. dropped: its axis of length 1 that the file does not have; None: none."""

    source: Source
    dropped: int | None
    products: Products
    backend: Backend
    phases: Phases
    _host: HostArray | None = field(default=None, init=False)  # pinned memory takes long to allocate

    def read(self, rows: Span, columns: Span, out: Array) -> None:
        """Fill `out`, C-contiguous and as factors are stored, with a part.

        Straight from the file if a CPU need not convert it; otherwise in pieces of rows, on a GPU through
        pinned memory.
        """
        count = rows[1] - rows[0]
        if out.size == 0:
            return
        straight = not self.products.precision.converts(self.source.dtype)
        if straight and not self.backend.asynchronous:
            self._read_host(rows, columns, out)
            return
        for first, last in stages(count, count * (columns[1] - columns[0]) * self.source.dtype.itemsize):
            shape = (last - first, columns[1] - columns[0])
            if self._host is None or self._host.size < math.prod(shape):
                self._host = self.backend.host_empty((math.prod(shape),), self.source.dtype)
            part = self._host[: math.prod(shape)].reshape(shape)
            self._read_host((rows[0] + first, rows[0] + last), columns, part)
            if not self.backend.asynchronous:
                self.products.store(part, out[first:last])
                continue
            device = out[first:last] if straight else self.backend.empty(shape, self.source.dtype)
            self.backend.upload(part, device)
            if not straight:
                self.products.store(device, out[first:last])
            self.backend.passed(self.backend.mark())  # the pinned memory is filled again

    def _read_host(self, rows: Span, columns: Span, part: HostArray) -> None:
        spans = [span for axis, span in enumerate((rows, columns)) if axis != self.dropped]
        region = Region(tuple(start for start, _ in spans), tuple(stop for _, stop in spans))
        begin = time.perf_counter()
        self.source.read(region, part.reshape(region.shape))
        self.phases.add("read", time.perf_counter() - begin, part.nbytes)


@dataclass
class Product:
    """The product's file. dropped: axes of length 1 that it does not have.

    A part is copied from a GPU while the next one is computed, and written when it has arrived. A CPU writes
    it at once: it cannot compute meanwhile.
    """

    sink: Sink
    dropped: tuple[int, ...]
    products: Products
    world: World
    _ready: list[tuple[Span, Span, Array]] = field(default_factory=list, init=False)
    _host: HostArray | None = field(default=None, init=False)

    def put(self, rows: Span, columns: Span, sums: Array) -> None:
        """Write a part that has been computed: on a GPU in the next `flush`. sums: not changed until
        then."""
        if not sums.size:
            return
        part = self.products.rounded(sums)
        if self.world.backend.asynchronous:
            self._ready.append((rows, columns, part))
        else:
            self._write(rows, columns, part)

    def flush(self, mark: Any) -> None:
        """Write all parts that wait. mark: after which they have been computed, on the device."""
        ready, self._ready = self._ready, []
        for rows, columns, part in ready:
            for first, last in stages(part.shape[0], part.nbytes):
                self._write(
                    (rows[0] + first, rows[0] + last), columns, self._download(part[first:last], mark)
                )

    def _download(self, piece: Array, mark: Any) -> HostArray:
        backend = self.world.backend
        if self._host is None or self._host.size < piece.size:
            self._host = backend.host_empty((piece.size,), np.dtype(piece.dtype))
        host: HostArray = self._host[: piece.size].reshape(piece.shape)
        with backend.beside(mark):
            backend.download(piece, host)
            done = backend.mark()
        backend.passed(done)
        return host

    def _write(self, rows: Span, columns: Span, host: HostArray) -> None:
        spans = [span for axis, span in enumerate((rows, columns)) if axis not in self.dropped]
        region = Region(tuple(start for start, _ in spans), tuple(stop for _, stop in spans))
        begin = time.perf_counter()
        self.sink.write(region, host.reshape(region.shape))
        self.world.phases.add("write", time.perf_counter() - begin, host.nbytes)
