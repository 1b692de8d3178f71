"""A simulated host with GPUs: a `Box` over NumPy, its streams, its copy kernels, and faults to put in.

    host = MadeHost(gpus=3)                     what its processes share
    box = MadeBox(host)                         one process that sees all of them
    box = MadeBox(host, [2])                    one that sees GPU 2 alone, as its GPU 0
    monkeypatch.setattr(meshrun.jobs.kernels, "load", load)   kernels run here

Addresses mean something in their own process only, as on a real host. Work is done when it is waited for, in
the order of its stream, and takes as long as the host's rates say, on a clock of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshrun.runner.device.raw.memory import GpuProperties, Memory
from meshrun.runner.errors import UserError

Bytes = np.ndarray[Any, Any]
GPU_MEMORY = 1 << 30


@dataclass
class Block:
    """place: "host" or "GPU n", by the host's numbers. alive: its owner has not released it."""

    array: Bytes
    place: str
    alive: bool = True
    users: int = 0  # other processes that have it attached


@dataclass
class MadeHost:
    """rate: bytes per second from a place to a place. latency: seconds of a load by GPU n from a place.

    spoil: called with source, target and the bytes that arrived, after each copy. peers: whether GPU n
    reaches the memory of GPU m. memory: bytes of a GPU.
    """

    gpus: int
    rate: Callable[[str, str], float] = lambda source, target: 50e9
    latency: Callable[[int, str], float] = lambda gpu, place: 1e-6
    spoil: Callable[[str, str, Bytes], None] = lambda source, target, array: None
    peers: Callable[[int, int], bool] = lambda gpu, other: True
    memory: int = GPU_MEMORY
    capability: int = 90
    exported: dict[bytes, Block] = field(default_factory=dict)
    processes: Iterator[int] = field(default_factory=lambda: itertools.count(1))


@dataclass
class Mark:
    stream: Stream
    time: float | None = None


class Stream:
    """What is queued on a GPU; `number` is the host's."""

    def __init__(self, box: MadeBox, gpu: int) -> None:
        self.box, self.gpu = box, gpu
        self.queue: list[Callable[[], float]] = []
        self.time = 0.0

    @property
    def number(self) -> int:
        return self.box.numbers[self.gpu]

    def work(self, until: Mark | None = None) -> None:
        while self.queue and (until is None or until.time is None):
            self.time += self.queue.pop(0)()


_here = threading.local()  # .stack: of (box, GPU), what `on` made current


class MadeBox:
    def __init__(self, host: MadeHost, visible: Sequence[int] | None = None) -> None:
        self.host = host
        self.numbers = list(range(host.gpus) if visible is None else visible)
        self.gpus = [
            GpuProperties(
                index,
                "Made",
                f"GPU-{number}",
                f"0000:{16 + number:02X}:00.0",
                4,
                host.memory,
                1 << 20,
                4e12,
                host.capability,
            )
            for index, number in enumerate(self.numbers)
        ]
        self.process = next(host.processes)
        self._next = self.process << 40
        self.blocks: dict[int, tuple[Block, bool]] = {}
        self.connected: set[tuple[int, int]] = set()
        self.near: set[bool] = set()  # what was asked for memory
        self.pulled_away = 0  # memory that was released while others had it attached

    @contextmanager
    def on(self, gpu: int) -> Iterator[None]:
        stack = _here.__dict__.setdefault("stack", [])
        stack.append((self, gpu))
        try:
            yield
        finally:
            stack.pop()

    def allocate(self, kind: Any, nbytes: int, gpu: int, *, near: bool = True) -> Memory:
        self.near.add(near)
        place = f"GPU {self.numbers[gpu]}" if kind == "device" else "host"
        if kind == "device" and nbytes > self.free_memory(gpu):
            raise UserError(f"there is not enough {kind} memory", got=nbytes)
        return self._mapped(Block(np.full(nbytes, 0xEE, np.uint8), place), kind, gpu, attached=False)

    def _mapped(self, block: Block, kind: Any, gpu: int, attached: bool) -> Memory:
        address, self._next = self._next, self._next + -(-block.array.size // 4096) * 4096
        self.blocks[address] = (block, attached)
        return Memory(address, block.array.size, kind, gpu)

    def release(self, memory: Memory) -> None:
        block, attached = self.blocks.pop(memory.address)
        if attached:
            block.users -= 1
        else:
            self.pulled_away += block.users
            block.alive = False

    def find(self, address: int) -> tuple[Block, int]:
        """What is at an address of this process, and how far from its beginning; alive still."""
        for begin, (block, _) in self.blocks.items():
            if begin <= address < begin + block.array.size:
                assert block.alive, "memory that its owner has released"
                return block, address - begin
        raise AssertionError(f"address {address:#x} is nothing in process {self.process}")

    def array(self, memory: Memory) -> Bytes:
        return self.find(memory.address)[0].array[: memory.nbytes]

    def host_array(self, memory: Memory) -> Bytes:
        assert memory.kind != "device"
        return self.array(memory)

    def export(self, memory: Memory) -> bytes:
        handle = f"{self.process}:{memory.address}".encode()
        self.host.exported[handle] = self.find(memory.address)[0]
        return handle

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        assert _here.stack[-1] == (self, gpu), "memory is attached to the current GPU"
        block = self.host.exported[handle]
        assert nbytes <= block.array.size
        assert not handle.startswith(f"{self.process}:".encode()), "a process does not attach its own memory"
        if not self.host.peers(self.numbers[gpu], int(block.place.removeprefix("GPU "))):
            raise RuntimeError("peer access is not supported between these two devices")
        block.users += 1
        return replace(self._mapped(block, "device", gpu, attached=True), nbytes=nbytes)

    def connect(self, gpu: int, peer: int) -> bool:
        if self.host.peers(self.numbers[gpu], self.numbers[peer]):
            self.connected.add((gpu, peer))
            return True
        return False

    def stream(self, gpu: int) -> Stream:
        return Stream(self, gpu)

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        stream.queue.append(lambda: self.carry(target.address, source.address, nbytes, stream))

    def carry(self, target: int, source: int, nbytes: int, stream: Stream) -> float:
        """Copy, as the stream's GPU does; the seconds that it takes."""
        (to, at), (come, begin) = self.find(target), self.find(source)
        for block, address in ((to, target), (come, source)):
            self._reaches(stream, block, address)
        to.array[at : at + nbytes] = come.array[begin : begin + nbytes]
        self.host.spoil(come.place, to.place, to.array[at : at + nbytes])
        return nbytes / self.host.rate(come.place, to.place)

    def _reaches(self, stream: Stream, block: Block, address: int) -> None:
        """A GPU reaches the host, itself, what is attached, and the peers it is connected to."""
        own = {"host", f"GPU {stream.number}"}
        attached = any(one is block and attached for one, attached in self.blocks.values())
        if block.place not in own and not attached:
            peer = self.numbers.index(int(block.place.removeprefix("GPU ")))
            assert (stream.gpu, peer) in self.connected, f"GPU {stream.gpu} is not connected to {peer}"

    def prefetch(self, memory: Memory, stream: Stream, *, host: bool = False) -> None:
        raise NotImplementedError

    def prefetched(self, memory: Memory, *, host: bool = False) -> bool:
        raise NotImplementedError

    def mark(self, stream: Stream) -> Mark:
        mark = Mark(stream)

        def pass_it() -> float:
            mark.time = stream.time
            return 0.0

        stream.queue.append(pass_it)
        return mark

    def wait(self, stream: Stream, mark: Mark) -> None:
        def until() -> float:
            mark.stream.work(mark)
            assert mark.time is not None
            return max(mark.time - stream.time, 0.0)

        stream.queue.append(until)

    def elapsed(self, begin: Mark, end: Mark) -> float:
        assert begin.time is not None
        assert end.time is not None
        assert begin.stream.gpu == end.stream.gpu, "marks of two GPUs"
        return end.time - begin.time

    def synchronize(self, stream: Stream) -> None:
        stream.work()

    def free_memory(self, gpu: int) -> int:
        place = f"GPU {self.numbers[gpu]}"
        blocks = (block for block, attached in self.blocks.values() if not attached)
        return self.host.memory - sum(block.array.size for block in blocks if block.place == place)

    def close(self) -> None:
        for address, (block, _) in list(self.blocks.items()):
            self.release(Memory(address, block.array.size, "device", 0))


def load(file: str, instance: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
    """In place of `jobs.kernels.load`: the kernels of copies, queued on a made stream."""
    body = KERNELS[instance]
    assert file == f"{instance}.cu"

    def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], stream: Stream) -> None:
        assert _here.stack[-1] == (stream.box, stream.gpu), "a stream of another GPU than the current one"
        values = [int(argument) for argument in arguments]
        stream.queue.append(lambda: body(stream, grid[0] * block[0], *values))

    return launch


def _gate(stream: Stream, threads: int, latch: int, cycles: int) -> float:
    assert cycles > 0
    words = stream.box.find(latch)[0].array[:8].view(np.uint32)
    words[1] |= words[0] == 0  # who waits for a closed gate finds that it gave way
    return 0.0


def _streaming(stream: Stream, threads: int, target: int, source: int, rounds: int, copies: int) -> float:
    return copies * stream.box.carry(target, source, 16 * rounds * threads, stream)


def _small(stream: Stream, threads: int, target: int, source: int, units: int, copies: int) -> float:
    assert threads >= units
    return copies * stream.box.carry(target, source, 16 * units, stream)


def _split(stream: Stream, threads: int, target: int, source: int, units: int, copies: int) -> float:
    assert threads >= units
    seconds = 0.0
    for begin in range(0, 16 * units, 512):
        ends = (target, source) if begin // 512 % 2 else (source, target)
        to, come = (end + begin for end in ends)
        seconds += stream.box.carry(to, come, min(512, 16 * units - begin), stream)
    return copies * seconds


def _chase(stream: Stream, threads: int, first: int, steps: int, block: int, last: int) -> float:
    assert 0 <= block < threads
    memory, at = stream.box.find(first)
    chain, address = memory.array[at:].view(np.uint64), first
    for _ in range(steps):
        address = int(chain[(address - first) // 8])
    ends, begin = stream.box.find(last)
    ends.array[begin:].view(np.uint64)[block] = address
    return steps * stream.box.host.latency(stream.number, memory.place)


def _tma(stream: Stream, threads: int, target: int, source: int, nbytes: int, copies: int) -> float:
    assert nbytes % 16 == 0
    return copies * stream.box.carry(target, source, nbytes, stream)


def _words(stream: Stream, address: int, count: int) -> np.ndarray[Any, Any]:
    memory, at = stream.box.find(address)
    return memory.array[at : at + 8 * count].view(np.uint64)


def _read(stream: Stream, threads: int, target: int, source: int, rounds: int, copies: int) -> float:
    read = _words(stream, source, 2 * threads * rounds).reshape(rounds, 2 * threads)
    sums = _words(stream, target, 2 * threads)
    sums[:] = read.sum(axis=0, dtype=np.uint64) * np.uint64(copies)
    place = stream.box.find(target)[0].place
    stream.box.host.spoil(place, place, sums.view(np.uint8))
    return copies * read.nbytes / stream.box.host.rate(place, place)


def _write(stream: Stream, threads: int, target: int, source: int, rounds: int, copies: int) -> float:
    written = _words(stream, target, 2 * threads * rounds)
    written.reshape(rounds, 2 * threads)[:] = _words(stream, source, 2 * threads)
    place = stream.box.find(target)[0].place
    stream.box.host.spoil(place, place, written.view(np.uint8))
    return copies * written.nbytes / stream.box.host.rate(place, place)


KERNELS: dict[str, Callable[..., float]] = {
    "gate": _gate,
    "copy_streaming": _streaming,
    "copy_small": _small,
    "copy_split": _split,
    "chase": _chase,
    "chase_tma": _chase,
    "copy_tma": _tma,
    "read_streaming": _read,
    "write_streaming": _write,
}
