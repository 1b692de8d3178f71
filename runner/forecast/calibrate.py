"""Measure this machine's rates in under a minute: files, host memory, copies to and from its GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import START_CPU, START_GPU, Machine, Rate
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.streamed.dispatch import threads_of
from meshrun.runner.maps.streamed.endpoints import Endpoints
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.maps.streamed.loop import stream
from meshrun.runner.options.stream_options import DEPTH
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import plan_task
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.report.bottleneck import wall_time
from meshrun.runner.report.spans import Spans
from meshrun.runner.spelling import command_option
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.registry import Sink, Source, check_place, commit, open_sink, open_source
from meshrun.runner.system.host_memory import free_host_memory, host_memory
from meshrun.runner.world.world import single_rank_world

FILE = 1 << 30  # bytes, or fewer if the disk or the memory is small
PIECE = 64 << 20  # bytes of a chunk, as in a streamed run
COPIES = 4  # to and from a GPU, in one measurement
ROW = 1 << 20  # bytes of a row: threads share a chunk's rows
COPY = 256 << 20  # bytes of one copy to or from a GPU
THREADS = 8  # that copy one host's files
COPIERS = 32  # threads that copy inside a host's memory: more than its channels need
ROUNDS, LONG = 3, 4.0  # the best of so many rounds, or of those that begin in so many seconds
DIRECTIONS = ("to device", "from device", "both directions")
BYTE = np.dtype(np.uint8)

Act = Callable[[], object]


def calibrate(
    folder: Path, gpus: int, open_backend: Callable[[int], Backend], *, file: int = FILE, copy: int = COPY
) -> Machine:
    """Measure the machine that this process runs on; UserError if no file can be written to `folder`.

    folder: where files of `file` bytes are written and read. gpus: number of this host's GPUs, each of which
    is measured by its own thread; 0: only the cores. copy: bytes of one copy to a GPU.
    """
    check_place(folder / "file", "test file")
    cores = len(os.sched_getaffinity(0))
    threads = min(cores, THREADS)
    # CUDA's current GPU is a property of the thread: each GPU is used by one thread only.
    lanes = [ThreadPoolExecutor(1) for _ in range(max(gpus, 1))]
    try:
        begin = time.perf_counter()
        backends = [lane.submit(open_backend, index).result() for index, lane in enumerate(lanes)]
        opened = (time.perf_counter() - begin) / len(lanes)
        way: Callable[[Source, Sink], float] = Streaming(backends[0])
        if not backends[0].asynchronous:
            way = Copying([np.ones(PIECE, BYTE) for _ in range(threads)])
        rates = lanes[0].submit(_files, folder, _room(folder, file), way).result()
        rates["host memory"] = _host_memory(min(cores, COPIERS))
        rates["kernel"] = lanes[0].submit(backends[0].copy_rate).result()
        if gpus:
            pairs = [
                lane.submit(_Copies, backend, copy).result()
                for lane, backend in zip(lanes, backends, strict=True)
            ]
            rates |= {name: _pace(lanes[:1], pairs[:1], name) for name in DIRECTIONS}
        if gpus > 1:
            rates |= {f"host {name}": _pace(lanes, pairs, name) for name in DIRECTIONS}
    finally:
        for lane in lanes:
            lane.shutdown()
    today = date.today().isoformat()
    device = backends[0].device
    return Machine(
        name=device.name.removeprefix("NVIDIA "),
        gpus=gpus,
        cores=cores,
        threads=threads,
        memory=host_memory(),
        device_memory=device.memory,
        start=(START_GPU[0], opened) if gpus else START_CPU,
        rates={name: Rate(rate, f"measured {today}") for name, rate in rates.items()},
        host=socket.gethostname(),
        date=today,
    )


def _best(act: Act) -> float:
    """Return the shortest of several rounds, in seconds."""
    first = time.perf_counter()
    found = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        act()
        end = time.perf_counter()
        found.append(end - begin)
        if end - first > LONG:
            break
    return min(found)


def _room(folder: Path, size: int) -> int:
    """Return the bytes of a test file: whole pieces that fill neither the disk nor the page cache."""
    free, memory = shutil.disk_usage(folder).free, free_host_memory()
    pieces = min(size, free // 4, memory // 4) // PIECE
    if pieces < 1:
        raise UserError(
            f"no room for a test file in {folder}",
            got=f"{free:,} bytes free on disk, {memory:,} of memory",
            expected=f"{4 * PIECE:,} of each",
            hint=command_option("at", metavar="FOLDER"),
        )
    return pieces * PIECE


def _files(folder: Path, size: int, way: Callable[[Source, Sink], float]) -> dict[str, float]:
    """Measure reading a file in the page cache, writing an allocated file, and both at once.

    way: copies all of a source to a sink and returns the seconds.
    """
    shape, dtype = (size // ROW, ROW), BYTE
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".meshrun-") as place:
            first = open_sink(Path(place, "one.npy"), shape, dtype, "first")
            first.create()
            full = np.ones((PIECE // ROW, ROW), dtype)
            for row in range(0, shape[0], len(full)):
                first.write(Region((row, 0), (row + len(full), ROW)), full)
            commit(first)
            source = open_source(first.path)

            def writing(given: Source) -> float:
                found = []
                for _ in range(ROUNDS):
                    sink = open_sink(Path(place, "other.npy"), shape, dtype, "other")
                    sink.create()
                    found.append(way(given, sink))
                    sink.partial.unlink()
                return min(found)

            nothing: Any = Nothing(shape, dtype)
            return {
                "write": size / writing(nothing),
                "read": size / min(way(source, nothing) for _ in range(ROUNDS)),
                "read and write": 2 * size / writing(source),
            }
    except OSError as reason:
        raise write_error(folder / "file", reason, size) from reason


@dataclass
class Nothing:
    """A source that reads nothing, and a sink that writes nothing."""

    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape | None = None
    threads: int = 1

    def read(self, region: Region, target: HostArray) -> None:
        pass

    def write(self, region: Region, array: HostArray) -> None:
        pass


@dataclass
class Copying:
    """Copy files like a streamed run on a CPU, with one thread per buffer."""

    buffers: list[HostArray]

    def __call__(self, source: Source, sink: Sink) -> float:
        sink.threads = len(self.buffers)

        def copy(row: int) -> None:
            buffer = self.buffers.pop()
            try:
                part = buffer.reshape(-1, ROW)
                region = Region((row, 0), (row + len(part), ROW))
                source.read(region, part)
                sink.write(region, part)
            finally:
                self.buffers.append(buffer)

        with ThreadPoolExecutor(len(self.buffers)) as pool:
            begin = time.perf_counter()
            list(pool.map(copy, range(0, source.shape[0], PIECE // ROW)))
            return time.perf_counter() - begin


@dataclass
class Streaming:
    """Copy files like a streamed run on a GPU: through the GPU."""

    backend: Backend

    def __call__(self, source: Source, sink: Sink) -> float:
        world = single_rank_world(self.backend)
        sink.threads = threads_of(world)
        job = Job("copy", "map", _copy, (), frozenset({"out"}))
        task = plan_task(job, {}, [(source.shape, source.dtype)], 1)
        chunks = Chunks(task.partition, PIECE // ROW)
        endpoints = Endpoints(world, task, chunks, [source], [sink], Spans())
        stream(
            DeviceEngine(endpoints),
            endpoints.spans,
            range(len(chunks)),
            depth=DEPTH,
            threads=sink.threads,
            finished=lambda number: None,
            idle=lambda: None,
        )
        return wall_time([endpoints.spans.found])


def _copy(block: Any, *, out: Any) -> None:
    out[...] = block


def _host_memory(threads: int) -> float:
    """Return the bytes per second, read plus written, of copies by so many threads."""
    pairs = [(np.ones(PIECE // 8), np.ones(PIECE // 8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)))
    return 2 * PIECE * threads / seconds


class _Copies:
    """Host and device memory for copies in both directions; allocated and used in the GPU's own thread."""

    def __init__(self, backend: Backend, size: int) -> None:
        self.backend, self.size = backend, size
        self._host = [backend.host_empty((size,), BYTE) for _ in range(2)]
        self._device = [backend.empty((size,), BYTE) for _ in range(2)]
        for host in self._host:
            host.fill(1)

    def __call__(self, direction: str) -> None:
        """Make COPIES copies one after another; with "both directions", as many in each direction."""
        backend = self.backend
        begin = backend.mark()
        if direction != "from device":
            for _ in range(COPIES):
                backend.upload(self._host[0], self._device[0])
        if direction != "to device":
            with backend.beside(begin):
                for _ in range(COPIES):
                    backend.download(self._device[1], self._host[1])
        backend.synchronize()

    def moved(self, direction: str) -> int:
        return COPIES * self.size * (2 if direction == "both directions" else 1)


def _pace(lanes: Sequence[ThreadPoolExecutor], pairs: Sequence[_Copies], direction: str) -> float:
    """Return the bytes per second of all these GPUs at once, from the first start to the last end."""
    together = threading.Barrier(len(lanes))

    def copy(copies: _Copies) -> tuple[float, float]:
        together.wait()
        begin = time.perf_counter()
        copies(direction)
        return begin, time.perf_counter()

    def act() -> float:
        spans = [lane.submit(copy, copies) for lane, copies in zip(lanes, pairs, strict=True)]
        found = [span.result() for span in spans]
        return max(end for _, end in found) - min(begin for begin, _ in found)

    seconds = min(act() for _ in range(1 + ROUNDS))  # the first time is slower
    return sum(copies.moved(direction) for copies in pairs) / seconds
