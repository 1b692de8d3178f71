"""cuBLAS on raw device memory, row-major: what measurements compare kernels of their own with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy
import numpy as np
from cupy.cuda import device, runtime
from cupy_backends.cuda.libs import cublas

from runner.device.raw.memory import Stream

# The elements' cudaDataType, and what is computed in.
PRECISIONS: dict[str, tuple[int, int]] = {
    "float32": (runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F),
    "tf32": (runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F_FAST_TF32),
    "float16": (runtime.CUDA_R_16F, cublas.CUBLAS_COMPUTE_32F),
    "bfloat16": (runtime.CUDA_R_16BF, cublas.CUBLAS_COMPUTE_32F),
}


def geam(
    rows: int, columns: int, dtype: np.dtype[np.generic], source: int, target: int, stream: Stream
) -> None:
    """Queue a transpose on the current GPU: (rows, columns) at address `source`, (columns, rows) at `target`.

    dtype: float32 or float64, the real ones that cuBLAS has. Both C-contiguous.
    """
    call = {"float32": cublas.sgeam, "float64": cublas.dgeam}[dtype.name]
    one, zero = np.ones(1, dtype), np.zeros(1, dtype)
    with _handle(stream) as handle:
        # Column-major, as cuBLAS reads, the source is (columns, rows), and the target (rows, columns) its
        # transpose. Of the second matrix, which counts zero times, it wants a valid place: the target's.
        call(
            handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, rows, columns,
            one.ctypes.data, source, columns, zero.ctypes.data, target, rows, target, rows,
        )  # fmt: skip


def gemm(precision: str, m: int, n: int, k: int, a: int, b: int, c: int, stream: Stream) -> None:
    """Queue c = a b, on the current GPU: (m, k) at address `a` times (k, n) at `b`; all C-contiguous.

    precision: of the elements, and of what is computed: float32 as it is ("float32"), or with inputs rounded
    to 10 bits of mantissa ("tf32"); float16 and bfloat16 with sums in float32.
    """
    kind, compute = PRECISIONS[precision]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    with _handle(stream) as handle:
        # Column-major, the three are their transposes: (n, m) = (n, k) (k, m).
        cublas.gemmEx(
            handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, m, k,
            one.ctypes.data, b, kind, n, a, kind, k, zero.ctypes.data, c, kind, n, compute,
            cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip


@contextmanager
def _handle(stream: Stream) -> Iterator[int]:
    """The handle for calls on `stream` with scalars in host memory. CuPy calls on its current stream."""
    before = cupy.cuda.get_current_stream()
    stream.use()
    try:
        handle: int = device.get_cublas_handle()
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)  # no TF32 but where it is asked for
        cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
        yield handle
    finally:
        before.use()
