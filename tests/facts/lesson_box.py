"""GPUs made of NumPy arrays and a clock of their own: what a lesson does, without a GPU.

Work that is queued is done when somebody waits for it, in the order in which a GPU would come to it: each
stream in its order, one thing at a time on each engine (copies in, copies out, kernels). So what is used
before it is waited for shows, and so does what overlaps. Memory begins poisoned.

The kernel `gate` holds its stream back until its word in host memory is set. Whatever would wait for the GPU
while a gate is closed, and so for ever, is an AssertionError: waiting for a stream, allocating, releasing,
making a stream, copying pageable memory, launching a kernel for the first time, queueing more than fits.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshrun.runner.device.raw.memory import GpuProperties, Memory
from meshrun.runner.errors import UserError

POISON = 0xA5
TICK = 1e-6  # seconds that a look at the clock takes
# Bytes per second by the host memory's kind; "device": inside a GPU.
RATES = {"pageable": 1e9, "pinned": 4e9, "combined": 5e9, "mapped": 2e9, "managed": 3e9, "device": 50e9}
START = 5e-6  # seconds that any copy takes to start
PAGE = 256  # bytes that a prefetch moves at least
DEPTH = 1000  # operations that fit a stream


@dataclass(eq=False)
class Mark:
    time: float | None = None


@dataclass(frozen=True)
class Work:
    """engine: what does it, None for nothing to do. seconds: how long. issued: the host's time then.

    latch: of a gate, the words that it looks at.
    """

    act: Callable[[], object]
    engine: str | None
    seconds: float
    issued: float
    number: int
    after: Mark | None = None
    latch: np.ndarray[Any, Any] | None = None

    @property
    def held(self) -> bool:
        return self.latch is not None and not self.latch[0]


@dataclass(eq=False)
class Stream:
    gpu: int
    queue: deque[Work] = field(default_factory=deque)
    time: float = 0.0


@dataclass(frozen=True)
class Kernel:
    """call(*arguments): what it does to NumPy arrays. seconds(*arguments): how long."""

    call: Callable[..., object]
    seconds: Callable[..., float] = lambda *arguments: START


class LessonBox:
    """rates: bytes per second by kind. journal: copies and moves in the order in which they were issued."""

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        *,
        free: int = 1 << 30,
        cache: int = 1 << 16,
        rates: Mapping[str, float] = RATES,
    ) -> None:
        gpu = GpuProperties(0, "made up", "GPU-0", "0000:00:00.0", 4, free, cache, 2e11)
        self.gpus = [gpu]
        self.kernels, self.rates = kernels, rates
        self.now = 0.0
        self.journal: list[tuple[Any, ...]] = []
        self.launched: list[tuple[str, Any, Any]] = []
        self.loaded: set[str] = set()
        self.places: dict[int, str] = {}  # by page, where managed memory was last prefetched to
        self.kept: dict[int, np.ndarray[Any, Any]] = {}
        self.engines: dict[str, float] = {}
        self.streams: list[Stream] = []
        self.used, self._free, self._number = 0, free, 0

    def clock(self) -> float:
        """Instead of time.perf_counter."""
        self.now += TICK
        return self.now

    @contextmanager
    def on(self, gpu: int) -> Iterator[None]:
        assert gpu == 0
        yield

    def allocate(self, kind: Any, nbytes: int, gpu: int) -> Memory:
        assert nbytes > 0
        self._no_gate("allocates")
        if kind in ("device", "managed"):
            if nbytes > self.free_memory(gpu):
                raise UserError(f"not enough {kind} memory")
            self.used += nbytes
        array = np.full(nbytes + 256, POISON, np.uint8)
        array = array[-array.ctypes.data % 256 :][:nbytes]
        self.kept[array.ctypes.data] = array
        self.journal.append(("allocate", kind, nbytes))
        return Memory(array.ctypes.data, nbytes, kind, gpu)

    def release(self, memory: Memory) -> None:
        self._no_gate("releases")
        assert not any(stream.queue for stream in self.streams), "released while it may be in use"
        assert self.kept.pop(memory.address).size == memory.nbytes
        for page in _pages(memory):
            self.places.pop(page, None)
        if memory.kind in ("device", "managed"):
            self.used -= memory.nbytes

    def bytes(self, memory: Memory) -> np.ndarray[Any, Any]:
        """Of a whole allocation or a part of it."""
        for address, array in self.kept.items():
            begin = memory.address - address
            if begin >= 0 and begin + memory.nbytes <= array.size:
                return array[begin : begin + memory.nbytes]
        raise AssertionError(f"{memory} is not allocated")

    def array(self, memory: Memory) -> np.ndarray[Any, Any]:
        assert memory.kind != "pageable"
        return self.bytes(memory)

    def host_array(self, memory: Memory) -> np.ndarray[Any, Any]:
        assert memory.kind != "device"
        whole = memory if memory.kind != "pageable" else self._whole(memory)  # as Box does
        return self.bytes(whole)

    def _whole(self, memory: Memory) -> Memory:
        return replace(memory, nbytes=self.kept[memory.address].size)

    def stream(self, gpu: int) -> Stream:
        self._no_gate("makes a stream")
        self.streams.append(Stream(gpu))
        return self.streams[-1]

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        assert nbytes <= min(target.nbytes, source.nbytes)
        self.bytes(replace(target, nbytes=nbytes))
        self.bytes(replace(source, nbytes=nbytes))
        kinds = (source.kind, target.kind)
        self.journal.append(("copy", *kinds, nbytes))
        host = next((kind for kind in kinds if kind != "device"), "device")
        engine = "kernel" if host == "device" else "in" if target.kind == "device" else "out"
        seconds = START + nbytes / self.rates[host]
        self._issue(stream, lambda: ctypes.memmove(target.address, source.address, nbytes), engine, seconds)
        if "pageable" in kinds:
            self.synchronize(stream)

    def prefetch(self, memory: Memory, stream: Stream, *, host: bool = False) -> None:
        assert memory.kind == "managed"
        self.bytes(memory)
        self.journal.append(("prefetch", "host" if host else "device", memory.nbytes))
        seconds = START + memory.nbytes / self.rates["managed"]
        self.places.update(dict.fromkeys(_pages(memory), "host" if host else "device"))
        self._issue(stream, lambda: None, "out" if host else "in", seconds)

    def prefetched(self, memory: Memory, *, host: bool = False) -> bool:
        assert memory.kind == "managed"
        return {self.places.get(page) for page in _pages(memory)} == {"host" if host else "device"}

    def load(self, file: str, instance: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
        """Instead of meshrun.jobs.kernels.load."""
        if instance == "gate":
            return self._gate
        kernel = self.kernels[instance]

        def launch(grid: Any, block: Any, arguments: tuple[Any, ...], *, stream: Stream) -> None:
            assert np.prod(grid) > 0
            assert 0 < np.prod(block) <= 1024
            self._load(instance)
            self.launched.append((instance, grid, block))
            self.journal.append(("launch", instance))
            self._issue(stream, lambda: kernel.call(*arguments), "kernel", kernel.seconds(*arguments))

        return launch

    def _gate(self, grid: Any, block: Any, arguments: tuple[Any, ...], *, stream: Stream) -> None:
        address, patience = map(int, arguments)
        assert patience > 0
        self._load("gate")
        latch = self.bytes(Memory(address, 8, "pinned", 0)).view(np.uint32)
        self._issue(stream, lambda: None, None, 0.0, latch=latch)

    def _load(self, instance: str) -> None:
        if instance not in self.loaded:
            self._no_gate(f"launches {instance} for the first time")
            self.loaded.add(instance)

    def _no_gate(self, what: str) -> None:
        closed = any(work.held for stream in self.streams for work in stream.queue)
        assert not closed, f"the host {what} behind a closed gate"

    def mark(self, stream: Stream) -> Mark:
        mark = Mark()

        def reached() -> None:
            mark.time = stream.time

        self._issue(stream, reached, None, 0.0)
        return mark

    def wait(self, stream: Stream, mark: Mark) -> None:
        def reached() -> None:
            assert mark.time is not None
            stream.time = max(stream.time, mark.time)

        self._issue(stream, reached, None, 0.0, mark)

    def elapsed(self, begin: Mark, end: Mark) -> float:
        assert begin.time is not None, "not waited for"
        assert end.time is not None, "not waited for"
        return end.time - begin.time

    def synchronize(self, stream: Stream) -> None:
        while stream.queue:
            self._next()
        self.now = max(self.now, stream.time) + TICK

    def free_memory(self, gpu: int) -> int:
        return self._free - self.used

    def close(self) -> None:
        self.kept.clear()

    def _issue(
        self,
        stream: Stream,
        act: Callable[[], object],
        engine: str | None,
        seconds: float,
        after: Mark | None = None,
        latch: np.ndarray[Any, Any] | None = None,
    ) -> None:
        held = any(work.held for work in stream.queue)
        assert not held or len(stream.queue) < DEPTH, "the host waits for room behind a closed gate"
        self.now += TICK
        self._number += 1
        stream.queue.append(Work(act, engine, seconds, self.now, self._number, after, latch))

    def _next(self) -> None:
        """Do what a GPU would begin first."""
        ready = [
            (self._begin(stream, work), work.number, stream)
            for stream in self.streams
            for work in [stream.queue[0] if stream.queue else None]
            if work is not None and not work.held and (work.after is None or work.after.time is not None)
        ]
        assert ready, "streams wait for each other, or for a gate that nobody opens"
        begin, _, stream = min(ready, key=lambda one: one[:2])
        work = stream.queue.popleft()
        stream.time = begin + work.seconds
        if work.engine is not None:
            self.engines[work.engine] = stream.time
        work.act()

    def _begin(self, stream: Stream, work: Work) -> float:
        """A gate ends when the host has opened it, at the latest now."""
        opened = 0.0 if work.latch is None else self.now
        return max(stream.time, work.issued, opened, self.engines.get(work.engine or "", 0.0))


def _pages(memory: Memory) -> range:
    return range(memory.address // PAGE, (memory.address + memory.nbytes - 1) // PAGE + 1)
