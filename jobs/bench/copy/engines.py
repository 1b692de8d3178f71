"""Queue copies on a stream: by a copy engine, or by a kernel of the GPU that moves the bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs import kernels
from runner.device.raw.memory import Box, GpuProperties, Memory

UNIT = 16  # bytes that a thread moves at a time
THREADS = 512  # of a block of copy_streaming, one block a multiprocessor
SMALL, SMALL_THREADS = 64 << 20, 1024  # below, a thread for each unit and no truncation
PIECE = 512  # bytes: consecutive pieces go in opposite directions in copy_split

# (box, GPU that moves the bytes, target, source, bytes, copies, stream)
Queue = Callable[[Box, GpuProperties, Memory, Memory, int, int, Any], None]


@dataclass(frozen=True)
class TransferEngine:
    """moved: (bytes, GPU) -> bytes that one copy moves. queue: queue copies on a stream.

    both_ways: half of the bytes go from target to source.
    """

    moved: Callable[[int, GpuProperties], int]
    queue: Queue
    both_ways: bool = False


def _all(nbytes: int, gpu: GpuProperties) -> int:
    return nbytes


def _by_copy_engine(
    box: Box, gpu: GpuProperties, target: Memory, source: Memory, nbytes: int, copies: int, stream: Any
) -> None:
    for _ in range(copies):
        box.copy(target, source, nbytes, stream)


def _whole_rounds(nbytes: int, gpu: GpuProperties) -> int:
    """Leave out the last partial round of the grid, as nvbandwidth does."""
    if nbytes < SMALL:
        return nbytes // UNIT * UNIT
    each = gpu.processors * THREADS * UNIT
    return nbytes // each * each


def _by_kernel(
    box: Box, gpu: GpuProperties, target: Memory, source: Memory, nbytes: int, copies: int, stream: Any
) -> None:
    if nbytes < SMALL:
        _launch_units("copy_small", box, gpu, target, source, nbytes, copies, stream)
        return
    rounds = nbytes // (gpu.processors * THREADS * UNIT)
    arguments = (*_addresses(target, source), np.uint64(rounds), np.uint32(copies))
    with box.on(gpu.index):
        kernel = kernels.load("copy_streaming.cu", "copy_streaming")
        kernel((gpu.processors,), (THREADS,), arguments, stream=stream)


def _both_ways(
    box: Box, gpu: GpuProperties, target: Memory, source: Memory, nbytes: int, copies: int, stream: Any
) -> None:
    _launch_units("copy_split", box, gpu, target, source, nbytes, copies, stream)


def _launch_units(
    name: str,
    box: Box,
    gpu: GpuProperties,
    target: Memory,
    source: Memory,
    nbytes: int,
    copies: int,
    stream: Any,
) -> None:
    units = nbytes // UNIT
    threads = min(units, SMALL_THREADS)
    arguments = (*_addresses(target, source), np.uint64(units), np.uint32(copies))
    with box.on(gpu.index):
        kernel = kernels.load(f"{name}.cu", name)
        kernel((-(-units // threads),), (threads,), arguments, stream=stream)


def _addresses(target: Memory, source: Memory) -> tuple[np.uint64, np.uint64]:
    return np.uint64(target.address), np.uint64(source.address)


ENGINES: dict[str, TransferEngine] = {
    "ce": TransferEngine(_all, _by_copy_engine),
    "sm": TransferEngine(_whole_rounds, _by_kernel),
    "split": TransferEngine(lambda nbytes, gpu: nbytes // UNIT * UNIT, _both_ways, both_ways=True),
}
