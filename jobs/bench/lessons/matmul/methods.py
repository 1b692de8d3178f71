"""Methods to multiply matrices: kernels and cuBLAS on a GPU, NumPy in blocks and whole on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.devices import GpuDevice, HostDevice, Launch
from meshrun.jobs.measure.timers import Work, event_seconds

BLOCK = 64  # rows, columns and depth that the CPU multiplies at a time
SAMPLE_SECONDS = 20e-3  # shortest sample: products may take long
ProductShape = tuple[int, int, int]  # m, n, k


@dataclass(frozen=True)
class LessonPrecision:
    """dtype: of the elements. inputs, results: largest relative error of rounding an input before it is
    multiplied, and a sum before it is stored. sums: largest relative error of an addition."""

    name: str
    dtype: np.dtype[Any]
    inputs: float
    sums: float
    results: float


SINGLE, DOUBLE = 2.0**-23, 2.0**-52
PRECISIONS = {
    precision.name: precision
    for precision in (
        LessonPrecision("float32", np.dtype(np.float32), 0.0, SINGLE, 0.0),
        LessonPrecision("tf32", np.dtype(np.float32), 2.0**-10, SINGLE, 0.0),
        LessonPrecision("float16", np.dtype(np.float16), 0.0, SINGLE, 2.0**-11),
        LessonPrecision("bfloat16", np.dtype(ml_dtypes.bfloat16), 0.0, SINGLE, 2.0**-8),
        LessonPrecision("float64", np.dtype(np.float64), 0.0, DOUBLE, 0.0),
    )
}
# kernel -> rows and columns of a block's tile, threads of a block
TILES = {"naive": (8, 32, 256), "tiled": (32, 32, 1024), "register": (128, 128, 256)}
KERNELS = {
    "float32": ("naive", "tiled", "register"),
    "tf32": (),
    "float16": ("naive", "tiled"),
    "bfloat16": ("naive", "tiled"),
}


def launch(method: str, precision: LessonPrecision, shape: ProductShape, *addresses: int) -> Launch:
    """Plan a kernel that multiplies (m, k) by (k, n). method: naive, tiled or, for float32, register."""
    m, n, k = shape
    down, across, threads = TILES[method]
    if method == "register":
        wide = n % 4 == 0 and k % 4 == 0 and not any(address % 16 for address in addresses)
        instance = f"matmul_register<{str(wide).lower()}>"
    else:
        instance = kernels.instance(f"matmul_{method}", precision.dtype, "float32")
    blocks = math.ceil(m / down) * math.ceil(n / across)
    return Launch(f"matmul_{method}.cu", instance, blocks, threads)


@dataclass(frozen=True)
class Matrices:
    """a, b, c: factors and memory for the product, flat unsigned integers. operations: by method."""

    a: Any
    b: Any
    c: Any
    operations: dict[str, Work]


@dataclass(frozen=True)
class TimedProduct:
    """seconds: of one product. error, bound: those of `freivalds`; error is None where not checked."""

    precision: str
    method: str
    shape: ProductShape
    seconds: float
    error: float | None
    bound: float

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def rate(self) -> float | None:
        """TFLOP/s."""
        return self.flops / self.seconds / 1e12 if self.seconds > 0 else None


class GpuProducts(GpuDevice):
    PRECISIONS = ("float32", "tf32", "float16", "bfloat16")

    @contextmanager
    def matrices(self, shape: ProductShape, precision: LessonPrecision) -> Iterator[Matrices]:
        m, n, k = shape
        itemsize = precision.dtype.itemsize
        memories = [
            self.box.allocate("device", count * itemsize, self.gpu) for count in (m * k, k * n, m * n)
        ]
        a, b, c = addresses = tuple(memory.address for memory in memories)
        arrays = [self.box.array(memory) for memory in memories]
        arguments = (*arrays, *np.array(shape, np.int64))
        from meshrun.runner.device.raw.blas import gemm

        try:
            with self.box.on(self.gpu):
                operations = {
                    method: self.operation(launch(method, precision, shape, *addresses), arguments)
                    for method in KERNELS[precision.name]
                }
                operations["cuBLAS"] = lambda: gemm(precision.name, shape, (a, b, c), self.stream)
                left, right, out = (array.view(f"u{itemsize}") for array in arrays)
                yield Matrices(left, right, out, operations)
        finally:
            self.settle()
            for memory in memories:
                self.box.release(memory)

    def seconds(self, operation: Work) -> float:
        def sample(calls: int) -> float:
            return event_seconds(self.box, self.stream, operation, calls)

        sample(1)  # loads the kernel
        once = sample(1)
        calls = math.ceil(SAMPLE_SECONDS / once) if once > 0 else 1
        return self.context.median(lambda: sample(calls))


class CpuProducts(HostDevice):
    PRECISIONS = ("float32", "float64")

    @contextmanager
    def matrices(self, shape: ProductShape, precision: LessonPrecision) -> Iterator[Matrices]:
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
        yield Matrices(left, right, out, {"blocks of 64": blocked, "BLAS": lambda: np.matmul(a, b, out=c)})
