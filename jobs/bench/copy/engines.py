"""Queue copies on a stream: by a copy engine, or by a kernel of the GPU that moves the bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshrun.jobs import kernels
from meshrun.runner.device.raw.memory import GpuProperties, Memory

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

UNIT = 16  # bytes that a thread moves at a time
THREADS = 512  # of a block of copy_streaming, one block a multiprocessor
SMALL, SMALL_THREADS = 64 << 20, 1024  # below, a thread for each unit and no truncation
TMA_BLOCKS, TMA_THREADS = 4, 32  # blocks of copy_tma on each multiprocessor, threads of a block
PIECE = 512  # bytes: consecutive pieces go in opposite directions in copy_split


@dataclass(frozen=True)
class Copies:
    """Copies from source to target, one after another. gpu: moves the bytes."""

    box: Box
    gpu: GpuProperties
    target: Memory
    source: Memory
    nbytes: int
    copies: int
    stream: Any

    def launch(self, name: str, blocks: int, threads: int, rounds: int) -> None:
        """Queue all copies as one kernel of the file of that name."""
        addresses = np.uint64(self.target.address), np.uint64(self.source.address)
        with self.box.on(self.gpu.index):
            kernel = kernels.load(f"{name}.cu", name)
            arguments = (*addresses, np.uint64(rounds), np.uint32(self.copies))
            kernel((blocks,), (threads,), arguments, stream=self.stream)


Queue = Callable[[Copies], None]


@dataclass(frozen=True)
class TransferEngine:
    """moved: (bytes, GPU) -> bytes that one copy moves. queue: queue copies on their stream.

    leaves: what is in the target afterwards: the source's bytes; these and, in the source, the target's
    ("both ways"), half of the bytes each; a sum for each thread ("sums"); the bytes of each thread's first
    unit ("repeats").
    """

    moved: Callable[[int, GpuProperties], int]
    queue: Queue
    leaves: Literal["copy", "both ways", "sums", "repeats"] = "copy"

    @property
    def both_ways(self) -> bool:
        return self.leaves == "both ways"


def _by_copy_engine(asked: Copies) -> None:
    for _ in range(asked.copies):
        asked.box.copy(asked.target, asked.source, asked.nbytes, asked.stream)


def _whole_rounds(nbytes: int, gpu: GpuProperties) -> int:
    """Leave out the last partial round of the grid, as nvbandwidth does."""
    each = UNIT if nbytes < SMALL else gpu.processors * THREADS * UNIT
    return nbytes // each * each


def _by_kernel(asked: Copies) -> None:
    if asked.nbytes < SMALL:
        _by_units("copy_small", asked)
        return
    processors = asked.gpu.processors
    asked.launch("copy_streaming", processors, THREADS, asked.nbytes // (processors * THREADS * UNIT))


def _by_units(name: str, asked: Copies) -> None:
    """Queue a kernel with a thread for each unit."""
    units = asked.nbytes // UNIT
    threads = min(units, SMALL_THREADS)
    asked.launch(name, -(-units // threads), threads, units)


def grid_of(nbytes: int, gpu: GpuProperties) -> tuple[int, int, int]:
    """Return blocks, threads and rounds of a kernel that reads or writes only: at most a block for each
    multiprocessor, so many rounds of the grid."""
    units = nbytes // UNIT
    threads = min(units, THREADS)
    blocks = min(gpu.processors, units // threads)
    return blocks, threads, units // (blocks * threads)


def _by_grid(name: str, asked: Copies) -> None:
    asked.launch(name, *grid_of(asked.nbytes, asked.gpu))


def _in_grids(nbytes: int, gpu: GpuProperties) -> int:
    return math.prod(grid_of(nbytes, gpu)) * UNIT


def _by_tma(asked: Copies) -> None:
    nbytes = asked.nbytes // UNIT * UNIT
    asked.launch("copy_tma", TMA_BLOCKS * asked.gpu.processors, TMA_THREADS, nbytes)


ENGINES: dict[str, TransferEngine] = {
    "ce": TransferEngine(lambda nbytes, gpu: nbytes, _by_copy_engine),
    "sm": TransferEngine(_whole_rounds, _by_kernel),
    "tma": TransferEngine(lambda nbytes, gpu: nbytes // UNIT * UNIT, _by_tma),
    "read": TransferEngine(_in_grids, partial(_by_grid, "read_streaming"), leaves="sums"),
    "write": TransferEngine(_in_grids, partial(_by_grid, "write_streaming"), leaves="repeats"),
    "split": TransferEngine(
        lambda nbytes, gpu: nbytes // UNIT * UNIT, partial(_by_units, "copy_split"), leaves="both ways"
    ),
}
