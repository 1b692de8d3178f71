"""The ways to transpose a matrix: on a GPU kernels and cuBLAS, on a CPU NumPy's copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import runner
from jobs import kernels
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.timers import by_clock, by_marks

THREADS = 256
BLOCK = 128  # rows and columns that the CPU transposes at a time
Shape = tuple[int, int]
Action = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """Of transpose_vectorised.cu: cells down and across a tile, tiles in a band, whether accesses stream."""

    down: int
    across: int
    group: int
    stream: bool

    def instance(self, itemsize: int, vector: int) -> str:
        words = kernels.CTYPE[f"uint{8 * itemsize}"], vector, self.down, self.across, self.group
        return f"transpose_vectorised<{', '.join(map(str, words))}, {str(self.stream).lower()}>"

    def tile(self, vector: int) -> Shape:
        return self.down * vector, self.across * vector


# By bytes of an element: of the tiles that fit shared memory, the fastest for float32 over 8192 x 8192 and
# 32768 x 32768 on an H200, by the geometric mean (benchmarks/lessons_math.py).
BEST = {2: Variant(16, 16, 1, False), 4: Variant(32, 16, 32, False), 8: Variant(32, 16, 32, False)}
SINGLE = Variant(64, 64, 32, True)  # for elements one by one, where they are not aligned to 16 bytes


def variants(itemsize: int) -> list[Variant]:
    """Those worth a comparison: tiles that fit shared memory, each order, with and without streaming."""
    # A cell has 16 bytes of rows and columns each.
    tiles = [(d, a) for d, a in ((16, 16), (32, 16), (16, 32)) if d * a * 256 // itemsize <= 48 << 10]
    return [
        Variant(d, a, group, stream) for d, a in tiles for group in (1, 8, 32, 0) for stream in (True, False)
    ]


@dataclass(frozen=True)
class Launch:
    """A kernel and its grid, of THREADS a block."""

    file: str
    instance: str
    blocks: int


def launch(way: str, shape: Shape, itemsize: int, *addresses: int, variant: Variant | None = None) -> Launch:
    """How to transpose a matrix of this shape at these addresses.

    way: naive, tiled or vectorised; the last moves 16 bytes at a time (`variant`, else of BEST) where
    rows, columns and addresses allow it, and elements otherwise.
    """
    rows, columns = shape
    if way == "vectorised":
        vector, variant = 16 // itemsize, variant or BEST[itemsize]
        if rows % vector or columns % vector or any(address % 16 for address in addresses):
            vector, variant = 1, SINGLE
        instance, tile = variant.instance(itemsize, vector), variant.tile(vector)
    else:
        instance = kernels.instance(f"transpose_{way}", f"uint{8 * itemsize}")
        tile = (8, 32) if way == "naive" else (32, 32)
    blocks = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    if blocks > kernels.MOST_BLOCKS:
        raise runner.UserError("the matrix has too many tiles", got=f"{rows} x {columns}")
    return Launch(f"transpose_{way}.cu", instance, blocks)


@dataclass(frozen=True)
class Open:
    """A matrix and the place of its transpose, flat unsigned integers; what moves it, by way.

    An action is None where there is none for this type.
    """

    source: Any
    target: Any
    actions: dict[str, Action | None]


class OnGpu:
    WAYS = ("copy", "naive", "tiled", "vectorised", "cuBLAS geam")

    def __init__(self, stage: Stage) -> None:
        self.stage, self.box, self.gpu = stage, stage.gpus, stage.gpu
        self.stream = self.box.stream(self.gpu)

    def free(self) -> int:
        return self.box.free_memory(self.gpu)

    @contextmanager
    def matrix(self, shape: Shape, dtype: np.dtype[Any]) -> Iterator[Open]:
        rows, columns = shape
        nbytes = rows * columns * dtype.itemsize
        source, target = (self.box.allocate("device", nbytes, self.gpu) for _ in range(2))

        def copy() -> None:
            self.box.copy(target, source, nbytes, self.stream)

        def kernel(way: str) -> Action:
            return self.kernel(
                launch(way, shape, dtype.itemsize, source.address, target.address), source, target, shape
            )

        def geam() -> None:
            runner.geam(rows, columns, dtype, source.address, target.address, self.stream)

        own = {way: kernel(way) for way in ("naive", "tiled", "vectorised")}
        last = None if dtype.itemsize == 2 else geam
        flat, out = (self.box.array(memory).view(f"u{dtype.itemsize}") for memory in (source, target))
        try:
            with self.box.on(self.gpu):
                yield Open(flat, out, {"copy": copy, **own, "cuBLAS geam": last})
        finally:
            self.settle()
            self.box.release(source)
            self.box.release(target)

    def kernel(self, launch: Launch, source: runner.Memory, target: runner.Memory, shape: Shape) -> Action:
        with self.box.on(self.gpu):
            run = kernels.load(launch.file, launch.instance)
        arrays = self.box.array(source), self.box.array(target)
        arguments = (*arrays, *np.array(shape, np.int64))
        return lambda: run((launch.blocks,), (THREADS,), arguments, stream=self.stream)

    def settle(self) -> None:
        """Everything so far is done, by whichever stream."""
        self.stage.world.backend.synchronize()
        self.box.synchronize(self.stream)

    def seconds(self, action: Action) -> float:
        return by_marks(self.stage, self.stream, lambda turn: action())


class OnCpu:
    WAYS = ("copy", "strided", "blocked")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def free(self) -> int:
        return self.stage.world.backend.free_memory()

    @contextmanager
    def matrix(self, shape: Shape, dtype: np.dtype[Any]) -> Iterator[Open]:
        rows, columns = shape
        source, target = (np.empty(rows * columns, f"u{dtype.itemsize}") for _ in range(2))
        matrix, out = source.reshape(shape), target.reshape(columns, rows)

        def blocked() -> None:
            for y in range(0, rows, BLOCK):
                for x in range(0, columns, BLOCK):
                    out[x : x + BLOCK, y : y + BLOCK] = matrix[y : y + BLOCK, x : x + BLOCK].T

        actions: dict[str, Action | None] = {
            "copy": lambda: np.copyto(target, source),
            "strided": lambda: np.copyto(out, matrix.T),
            "blocked": blocked,
        }
        yield Open(source, target, actions)

    def settle(self) -> None:
        """Nothing is under way."""

    def seconds(self, action: Action) -> float:
        return self.stage.median(lambda: by_clock(action))
