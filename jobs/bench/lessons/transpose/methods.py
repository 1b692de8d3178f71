"""Methods to transpose a matrix: kernels and cuBLAS on a GPU, NumPy's copies on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.devices import GpuDevice, HostDevice, Launch
from meshrun.jobs.bench.lessons.protocol import rate
from meshrun.jobs.measure.timers import Work
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import UserError

THREADS = 256
BLOCK = 128  # rows and columns that the CPU transposes at a time
MatrixShape = tuple[int, int]


@dataclass(frozen=True)
class TransposeVariant:
    """Of transpose_vectorised.cu: cells down and across a tile, tiles in a band, whether accesses stream."""

    down: int
    across: int
    group: int
    stream: bool

    def instance(self, itemsize: int, vector: int) -> str:
        words = kernels.CTYPE[f"uint{8 * itemsize}"], vector, self.down, self.across, self.group
        return f"transpose_vectorised<{', '.join(map(str, words))}, {str(self.stream).lower()}>"

    def tile(self, vector: int) -> MatrixShape:
        return self.down * vector, self.across * vector


# By bytes of an element: of the tiles that fit shared memory, the fastest for float32 over 8192 x 8192 and
# 32768 x 32768 on an H200, by the geometric mean (benchmarks/lessons_math.py).
BEST = {
    2: TransposeVariant(16, 16, 1, False),
    4: TransposeVariant(32, 16, 32, False),
    8: TransposeVariant(32, 16, 32, False),
}
SINGLE = TransposeVariant(64, 64, 32, True)  # moves single elements, where rows are not aligned to 16 bytes


def variants(itemsize: int) -> list[TransposeVariant]:
    """List the variants to compare: tiles that fit shared memory, each order, with and without streaming."""
    # A cell has 16 bytes of rows and columns each.
    tiles = [(d, a) for d, a in ((16, 16), (32, 16), (16, 32)) if d * a * 256 // itemsize <= 48 << 10]
    return [
        TransposeVariant(d, a, group, stream)
        for d, a in tiles
        for group in (1, 8, 32, 0)
        for stream in (True, False)
    ]


def launch(
    method: str, shape: MatrixShape, itemsize: int, *addresses: int, variant: TransposeVariant | None = None
) -> Launch:
    """Plan the launch that transposes a matrix of this shape at these addresses.

    method: naive, tiled or vectorised; the last moves 16 bytes at a time (by `variant`, else BEST) where
    rows, columns and addresses are multiples of 16 bytes, and single elements otherwise.
    Raises UserError if the matrix has too many tiles for a grid.
    """
    rows, columns = shape
    if method == "vectorised":
        vector, variant = 16 // itemsize, variant or BEST[itemsize]
        if rows % vector or columns % vector or any(address % 16 for address in addresses):
            vector, variant = 1, SINGLE
        instance, tile = variant.instance(itemsize, vector), variant.tile(vector)
    else:
        instance = kernels.instance(f"transpose_{method}", f"uint{8 * itemsize}")
        tile = (8, 32) if method == "naive" else (32, 32)
    blocks = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    if blocks > kernels.MOST_BLOCKS:
        raise UserError("the matrix has too many tiles", got=f"{rows} x {columns}")
    return Launch(f"transpose_{method}.cu", instance, blocks, THREADS)


@dataclass(frozen=True)
class MatrixPair:
    """A matrix and memory for its transpose, as flat unsigned integers. operations: by method.

    An operation is None if the method does not support the type.
    """

    source: Any
    target: Any
    operations: dict[str, Work | None]


@dataclass(frozen=True)
class TimedTranspose:
    """shape: (rows, columns) of the matrix. seconds: by method, None if there is none for this type."""

    shape: MatrixShape
    dtype: np.dtype[Any]
    seconds: dict[str, float | None]

    @property
    def nbytes(self) -> int:
        """Bytes read plus written."""
        return 2 * self.shape[0] * self.shape[1] * self.dtype.itemsize

    def rate(self, method: str) -> float | None:
        """Return GB/s."""
        seconds = self.seconds[method]
        return None if seconds is None else rate(self.nbytes, seconds)

    def of_copy(self, method: str) -> float | None:
        """Return the fraction of a plain copy's rate."""
        own, copy = self.rate(method), self.rate("copy")
        return own / copy if own is not None and copy else None

    @property
    def aligned(self) -> bool:
        """Whether every row of the matrix and of its transpose begins at a multiple of 16 bytes."""
        return all(length * self.dtype.itemsize % 16 == 0 for length in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}, {self.shape[0]} x {self.shape[1]}"


class GpuTransposes(GpuDevice):
    METHODS = ("copy", "naive", "tiled", "vectorised", "cuBLAS geam")

    @contextmanager
    def matrix(self, shape: MatrixShape, dtype: np.dtype[Any]) -> Iterator[MatrixPair]:
        from meshrun.runner.device.raw.blas import geam

        rows, columns = shape
        nbytes = rows * columns * dtype.itemsize
        source, target = (self.box.allocate("device", nbytes, self.gpu) for _ in range(2))
        operations: dict[str, Work | None] = {
            "copy": lambda: self.box.copy(target, source, nbytes, self.stream)
        }
        for method in ("naive", "tiled", "vectorised"):
            planned = launch(method, shape, dtype.itemsize, source.address, target.address)
            operations[method] = self.kernel(planned, source, target, shape)
        operations["cuBLAS geam"] = (
            None
            if dtype.itemsize == 2
            else lambda: geam(rows, columns, dtype, source.address, target.address, self.stream)
        )
        flat, out = (self.box.array(memory).view(f"u{dtype.itemsize}") for memory in (source, target))
        try:
            with self.box.on(self.gpu):
                yield MatrixPair(flat, out, operations)
        finally:
            self.settle()
            self.box.release(source)
            self.box.release(target)

    def kernel(self, launch: Launch, source: Memory, target: Memory, shape: MatrixShape) -> Work:
        arrays = self.box.array(source), self.box.array(target)
        return self.operation(launch, (*arrays, *np.array(shape, np.int64)))


class CpuTransposes(HostDevice):
    METHODS = ("copy", "strided", "blocked")

    @contextmanager
    def matrix(self, shape: MatrixShape, dtype: np.dtype[Any]) -> Iterator[MatrixPair]:
        rows, columns = shape
        source, target = (np.empty(rows * columns, f"u{dtype.itemsize}") for _ in range(2))
        matrix, out = source.reshape(shape), target.reshape(columns, rows)

        def blocked() -> None:
            for y in range(0, rows, BLOCK):
                for x in range(0, columns, BLOCK):
                    out[x : x + BLOCK, y : y + BLOCK] = matrix[y : y + BLOCK, x : x + BLOCK].T

        operations: dict[str, Work | None] = {
            "copy": lambda: np.copyto(target, source),
            "strided": lambda: np.copyto(out, matrix.T),
            "blocked": blocked,
        }
        yield MatrixPair(source, target, operations)
