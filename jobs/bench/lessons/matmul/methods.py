"""The ways to multiply matrices: on a GPU kernels and cuBLAS, on a CPU NumPy in blocks and whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import runner
from jobs import kernels
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.timers import by_clock

BLOCK = 64  # rows, columns and depth that the CPU multiplies at a time
ENOUGH = 20e-3  # seconds that a sample takes at least
Shape = tuple[int, int, int]  # m, n, k
Action = Callable[[], object]


@dataclass(frozen=True)
class Precision:
    """dtype: of the elements. inputs, results: the largest relative error of rounding an input before it is
    multiplied, and a sum before it is stored. sums: the error that each addition adds at most."""

    name: str
    dtype: np.dtype[Any]
    inputs: float
    sums: float
    results: float


SINGLE, DOUBLE = 2.0**-23, 2.0**-52
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float32", np.dtype(np.float32), 0.0, SINGLE, 0.0),
        Precision("tf32", np.dtype(np.float32), 2.0**-10, SINGLE, 0.0),
        Precision("float16", np.dtype(np.float16), 0.0, SINGLE, 2.0**-11),
        Precision("bfloat16", np.dtype(ml_dtypes.bfloat16), 0.0, SINGLE, 2.0**-8),
        Precision("float64", np.dtype(np.float64), 0.0, DOUBLE, 0.0),
    )
}
# kernel -> rows and columns of a block's tile, threads of a block
TILES = {"naive": (8, 32, 256), "tiled": (32, 32, 1024), "register": (128, 128, 256)}


@dataclass(frozen=True)
class Launch:
    """A kernel and its grid."""

    file: str
    instance: str
    blocks: int
    threads: int


def launch(way: str, precision: Precision, shape: Shape, *addresses: int) -> Launch:
    """How to multiply (m, k) by (k, n) by a kernel; way: naive, tiled or, for float32, register."""
    m, n, k = shape
    down, across, threads = TILES[way]
    if way == "register":
        wide = n % 4 == 0 and k % 4 == 0 and not any(address % 16 for address in addresses)
        instance = f"matmul_register<{str(wide).lower()}>"
    else:
        instance = kernels.instance(f"matmul_{way}", precision.dtype, "float32")
    blocks = math.ceil(m / down) * math.ceil(n / across)
    return Launch(f"matmul_{way}.cu", instance, blocks, threads)


@dataclass(frozen=True)
class Open:
    """a, b, c: the factors and the place of the product, flat unsigned integers; what multiplies, by way."""

    a: Any
    b: Any
    c: Any
    actions: dict[str, Action]


class OnGpu:
    PRECISIONS = ("float32", "tf32", "float16", "bfloat16")

    def __init__(self, stage: Stage) -> None:
        self.stage, self.box, self.gpu = stage, stage.gpus, stage.gpu
        self.stream = self.box.stream(self.gpu)

    def free(self) -> int:
        return self.box.free_memory(self.gpu)

    @contextmanager
    def matrices(self, shape: Shape, precision: Precision) -> Iterator[Open]:
        m, n, k = shape
        itemsize = precision.dtype.itemsize
        memories = [
            self.box.allocate("device", count * itemsize, self.gpu) for count in (m * k, k * n, m * n)
        ]
        a, b, c = (memory.address for memory in memories)

        def kernel(way: str) -> Action:
            planned = launch(way, precision, shape, a, b, c)
            run = kernels.load(planned.file, planned.instance)
            arguments = (*map(self.box.array, memories), *np.array(shape, np.int64))
            return lambda: run((planned.blocks,), (planned.threads,), arguments, stream=self.stream)

        own = {
            "float32": ("naive", "tiled", "register"), "tf32": (),
            "float16": ("naive", "tiled"), "bfloat16": ("naive", "tiled"),
        }[precision.name]  # fmt: skip
        left, right, out = (self.box.array(memory).view(f"u{itemsize}") for memory in memories)
        try:
            with self.box.on(self.gpu):
                actions = {way: kernel(way) for way in own}
                actions["cuBLAS"] = lambda: runner.gemm(precision.name, m, n, k, a, b, c, self.stream)
                yield Open(left, right, out, actions)
        finally:
            self.settle()
            for memory in memories:
                self.box.release(memory)

    def settle(self) -> None:
        """Everything so far is done, by whichever stream."""
        self.stage.world.backend.synchronize()
        self.box.synchronize(self.stream)

    def seconds(self, action: Action) -> float:
        # Products may take long: no more of them than a sample needs.
        def sample(turns: int) -> float:
            begin = self.box.mark(self.stream)
            for _ in range(turns):
                action()
            end = self.box.mark(self.stream)
            self.box.synchronize(self.stream)
            return self.box.elapsed(begin, end) / turns

        sample(1)  # which loads what it launches
        once = sample(1)
        turns = math.ceil(ENOUGH / once) if once > 0 else 1
        return self.stage.median(lambda: sample(turns))


class OnCpu:
    PRECISIONS = ("float32", "float64")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def free(self) -> int:
        return self.stage.world.backend.free_memory()

    @contextmanager
    def matrices(self, shape: Shape, precision: Precision) -> Iterator[Open]:
        m, n, k = shape
        a, b, c = (np.empty(size, precision.dtype) for size in ((m, k), (k, n), (m, n)))

        def blocked() -> None:
            c[...] = 0
            for y in range(0, m, BLOCK):
                for x in range(0, n, BLOCK):
                    for z in range(0, k, BLOCK):
                        c[y : y + BLOCK, x : x + BLOCK] += (
                            a[y : y + BLOCK, z : z + BLOCK] @ b[z : z + BLOCK, x : x + BLOCK]
                        )

        words = f"u{precision.dtype.itemsize}"
        left, right, out = (matrix.reshape(-1).view(words) for matrix in (a, b, c))
        yield Open(left, right, out, {"blocks of 64": blocked, "BLAS": lambda: np.matmul(a, b, out=c)})

    def settle(self) -> None:
        """Nothing is under way."""

    def seconds(self, action: Action) -> float:
        return self.stage.median(lambda: by_clock(action))
