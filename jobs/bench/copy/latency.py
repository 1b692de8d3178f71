"""Measure the latency of a load: a GPU follows a chain of addresses through peer or host memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.copy.buffers import BoundTransfer
from meshrun.jobs.bench.copy.transfers import TransferRunner
from meshrun.jobs.measure.patterns import Words
from meshrun.jobs.measure.timers import event_pair
from meshrun.runner.device.raw.memory import Memory

CHAIN = 2 << 20  # bytes
NODE = 8  # bytes of an address
STRIDE = 16  # nodes from one load to the next: a cache line


@dataclass(frozen=True)
class ChaseResult:
    """seconds: of one load. mismatch: a sentence if the chain ended at a wrong address, else empty."""

    seconds: float
    mismatch: str = ""


def chase(
    transfer_runner: TransferRunner, one: BoundTransfer, accesses: int, kernel: str = "chase"
) -> ChaseResult:
    """Time `accesses` loads in all, from every multiprocessor in turn; collective over the host.

    one: bound to CHAIN bytes of its source. kernel: also "chase_tma".
    """
    mine = _followed(transfer_runner, one, accesses, kernel) if one.ends else None
    (chased,) = (found for found in transfer_runner.group.allgather(mine) if found is not None)
    result: ChaseResult = chased
    return result


def chain(address: int) -> Words:
    """Return the nodes of a chain at `address`: each holds the address of the node STRIDE further on."""
    following = np.roll(np.arange(CHAIN // NODE, dtype=np.uint64), -STRIDE)
    nodes: Words = np.uint64(address) + np.uint64(NODE) * following
    return nodes


def end(address: int, steps: int) -> int:
    """Return the address that `steps` loads from the start of the chain lead to."""
    return address + NODE * (STRIDE * steps % (CHAIN // NODE))


def _followed(transfer_runner: TransferRunner, one: BoundTransfer, accesses: int, kernel: str) -> ChaseResult:
    box, gpu, memory = transfer_runner.box, transfer_runner.gpu_of(one), one.ends["source"]
    stream = transfer_runner.stream(gpu.index, 0)
    steps = max(accesses // gpu.processors, 1)
    staging = box.allocate("pinned", CHAIN, gpu.index)
    last = box.allocate("pinned", NODE * gpu.processors, gpu.index)
    try:
        box.host_array(staging).view(np.uint64)[:] = chain(memory.address)
        box.copy(memory, staging, CHAIN, stream)
        ends = box.host_array(last).view(np.uint64)
        launch = partial(_launch, transfer_runner, one, last, kernel)
        launch(0, 1)
        box.synchronize(stream)
        ends[:] = 0
        pairs = [event_pair(box, stream, partial(launch, block, steps)) for block in range(gpu.processors)]
        box.synchronize(stream)
        seconds = sum(box.elapsed(begin, end) for begin, end in pairs)
        return ChaseResult(
            seconds / (steps * gpu.processors), _mismatch(ends, end(memory.address, steps), one)
        )
    finally:
        box.release(staging)
        box.release(last)


def _launch(
    transfer_runner: TransferRunner, one: BoundTransfer, last: Memory, name: str, block: int, steps: int
) -> None:
    gpu = transfer_runner.gpu_of(one)
    arguments = (
        np.uint64(one.ends["source"].address),
        np.uint32(steps),
        np.uint32(block),
        np.uint64(last.address),
    )
    with transfer_runner.box.on(gpu.index):
        kernel = kernels.load(f"{name}.cu", name)
        kernel((gpu.processors,), (1,), arguments, stream=transfer_runner.stream(gpu.index, 0))


def _mismatch(ends: Words, expected: int, one: BoundTransfer) -> str:
    wrong = np.flatnonzero(ends != np.uint64(expected))
    if not wrong.size:
        return ""
    first = int(wrong[0])
    return (
        f"{one.transfer.source} read by GPU {one.transfer.gpu}: {wrong.size} of {ends.size} multiprocessors "
        f"ended at a wrong address, the first {first}: got 0x{int(ends[first]):x}, expected 0x{expected:x}"
    )
