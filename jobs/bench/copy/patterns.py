"""The simultaneous transfers of each cell of a case's matrix; pure arithmetic.

A pattern is a function of the number of GPUs, the row and the column; an empty result is a cell without a
value. The sizes, and the GPU that moves the bytes, are those of nvbandwidth (0.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MemoryPlace:
    """Memory of GPU `gpu`, by its number in the matrix, or host memory near that GPU."""

    kind: Literal["host", "gpu"]
    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.kind == "gpu" else "host"


@dataclass(frozen=True)
class CopyTransfer:
    """A copy from source to target, done by `gpu`. factor: times the buffer size."""

    source: MemoryPlace
    target: MemoryPlace
    gpu: int
    factor: int = 1

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f" by GPU {self.gpu}" if self.between_gpus else "")

    @property
    def between_gpus(self) -> bool:
        return {self.source.kind, self.target.kind} == {"gpu"} and self.source != self.target


CopyTransfers = tuple[CopyTransfer, ...]
Pattern = Callable[[int, int, int], CopyTransfers]


def _host(gpu: int) -> MemoryPlace:
    return MemoryPlace("host", gpu)


def _gpu(gpu: int) -> MemoryPlace:
    return MemoryPlace("gpu", gpu)


def _up(gpu: int, factor: int = 1) -> CopyTransfer:
    return CopyTransfer(_host(gpu), _gpu(gpu), gpu, factor)


def _down(gpu: int, factor: int = 1) -> CopyTransfer:
    return CopyTransfer(_gpu(gpu), _host(gpu), gpu, factor)


def _across(source: int, target: int, gpu: int) -> CopyTransfer:
    return CopyTransfer(_gpu(source), _gpu(target), gpu)


def _others(gpus: int, but: int) -> list[int]:
    return [gpu for gpu in range(gpus) if gpu != but]


# Interfering transfers have twice the size of the measured one, so that they last at least as long.


def host_to_device(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_up(column),)


def device_to_host(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_down(column),)


def host_to_device_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_up(column), _down(column, 2))


def device_to_host_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_down(column), _up(column, 2))


def read(gpus: int, row: int, column: int) -> CopyTransfers:
    return () if row == column else (_across(column, row, row),)


def write(gpus: int, row: int, column: int) -> CopyTransfers:
    return () if row == column else (_across(row, column, row),)


def read_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return () if row == column else (_across(column, row, row), _across(row, column, column))


def write_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return () if row == column else (_across(column, row, column), _across(row, column, row))


def all_to_host(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_down(column), *(_down(other, 2) for other in _others(gpus, column)))


def host_to_all(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_up(column), *(_up(other, 2) for other in _others(gpus, column)))


def _interference(gpus: int, column: int) -> Iterator[CopyTransfer]:
    for other in _others(gpus, column):
        yield from (_down(other, 2), _up(other, 2))


def all_to_host_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_down(column), _up(column, 2), *_interference(gpus, column))


def host_to_all_both(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_up(column), _down(column, 2), *_interference(gpus, column))


def all_to_host_split(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_down(column), *(_down(other) for other in _others(gpus, column)))


def host_to_all_split(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_up(column), *(_down(other) for other in _others(gpus, column)))


def all_to_one_write(gpus: int, row: int, column: int) -> CopyTransfers:
    return tuple(_across(other, column, other) for other in _others(gpus, column))


# "all_to_one_read" moves from the one GPU to all others: the receivers read ...
def all_to_one_read(gpus: int, row: int, column: int) -> CopyTransfers:
    return tuple(_across(column, other, other) for other in _others(gpus, column))


def one_to_all_write(gpus: int, row: int, column: int) -> CopyTransfers:
    return tuple(_across(column, other, column) for other in _others(gpus, column))


# ... and "one_to_all_read" from all others to the one.
def one_to_all_read(gpus: int, row: int, column: int) -> CopyTransfers:
    return tuple(_across(other, column, column) for other in _others(gpus, column))


# In the two reading cases nvbandwidth's kernels run on the source GPU, its copy engines on the target GPU.
all_to_one_read_sm, one_to_all_read_sm = one_to_all_write, all_to_one_write

# A load of a chain: the row's GPU loads from the column's memory.
chase_peer, chase_host = read, host_to_device


def local(gpus: int, row: int, column: int) -> CopyTransfers:
    return (_across(column, column, column),)


def own_host(gpus: int, row: int, column: int) -> CopyTransfers:
    return (CopyTransfer(_host(column), _host(column), column),)
