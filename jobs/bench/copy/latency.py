"""The time of one load, from a chain of addresses that a GPU follows through a peer's or host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jobs import kernels
from jobs.bench.copy.buffers import Lane
from jobs.bench.copy.transfers import Mover
from jobs.measure.patterns import Words
from runner import Memory

CHAIN = 2 << 20  # bytes
NODE = 8  # bytes of an address
STRIDE = 16  # nodes from one to the next: a cache line


@dataclass(frozen=True)
class Chased:
    """seconds: of one load. wrong: what is wrong with where the chain ended, empty where nothing is."""

    seconds: float
    wrong: str = ""


def chase(mover: Mover, lane: Lane, accesses: int) -> Chased:
    """Follow the chain `accesses` times in all, from every multiprocessor in turn; collective over the host.

    lane: with the memory of its source lent, of CHAIN bytes.
    """
    mine = _followed(mover, lane, accesses) if lane.ends else None
    (chased,) = (one for one in mover.group.allgather(mine) if one is not None)
    found: Chased = chased
    return found


def chain(address: int) -> Words:
    """The nodes of a chain that lies at `address`: each holds the address of the one STRIDE further on."""
    following = np.roll(np.arange(CHAIN // NODE, dtype=np.uint64), -STRIDE)
    nodes: Words = np.uint64(address) + np.uint64(NODE) * following
    return nodes


def end(address: int, steps: int) -> int:
    """Where `steps` loads from the beginning of the chain end."""
    return address + NODE * (STRIDE * steps % (CHAIN // NODE))


def _followed(mover: Mover, lane: Lane, accesses: int) -> Chased:
    box, gpu, memory = mover.box, mover.seats[lane.flow.gpu].gpu, lane.ends["source"]
    stream = mover.stream(gpu.index, 0)
    steps = max(accesses // gpu.processors, 1)
    staging = box.allocate("pinned", CHAIN, gpu.index)
    last = box.allocate("pinned", NODE * gpu.processors, gpu.index)
    try:
        box.host_array(staging).view(np.uint64)[:] = chain(memory.address)
        box.copy(memory, staging, CHAIN, stream)
        ends = box.host_array(last).view(np.uint64)
        _launch(mover, lane, last, 0, 1)
        box.synchronize(stream)
        ends[:] = 0
        marks = []
        for block in range(gpu.processors):
            begin = box.mark(stream)
            _launch(mover, lane, last, block, steps)
            marks.append((begin, box.mark(stream)))
        box.synchronize(stream)
        seconds = sum(box.elapsed(begin, end) for begin, end in marks)
        return Chased(seconds / (steps * gpu.processors), _wrong(ends, end(memory.address, steps), lane))
    finally:
        box.release(staging)
        box.release(last)


def _launch(mover: Mover, lane: Lane, last: Memory, block: int, steps: int) -> None:
    gpu = mover.seats[lane.flow.gpu].gpu
    arguments = (
        np.uint64(lane.ends["source"].address),
        np.uint32(steps),
        np.uint32(block),
        np.uint64(last.address),
    )
    with mover.box.on(gpu.index):
        kernel = kernels.load("chase.cu", "chase")
        kernel((gpu.processors,), (1,), arguments, stream=mover.stream(gpu.index, 0))


def _wrong(ends: Words, expected: int, lane: Lane) -> str:
    astray = np.flatnonzero(ends != np.uint64(expected))
    if not astray.size:
        return ""
    first = int(astray[0])
    return (
        f"{lane.flow.source} read by GPU {lane.flow.gpu}: {astray.size} of {ends.size} multiprocessors ended "
        f"elsewhere, the first {first}: got 0x{int(ends[first]):x}, expected 0x{expected:x}"
    )
