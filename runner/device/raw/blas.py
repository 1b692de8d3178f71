"""cuBLAS on raw device memory, row-major: the reference for measurements of our own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy
import numpy as np
from cupy.cuda import device, runtime
from cupy_backends.cuda.libs import cublas

from meshrun.runner.device.raw.memory import Stream

# cudaDataType of the elements, and cublasComputeType_t.
PRECISIONS: dict[str, tuple[int, int]] = {
    "float32": (runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F),
    "tf32": (runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F_FAST_TF32),
    "float16": (runtime.CUDA_R_16F, cublas.CUBLAS_COMPUTE_32F),
    "bfloat16": (runtime.CUDA_R_16BF, cublas.CUBLAS_COMPUTE_32F),
    "float64": (runtime.CUDA_R_64F, cublas.CUBLAS_COMPUTE_64F),
    "complex64": (runtime.CUDA_C_32F, cublas.CUBLAS_COMPUTE_32F),
    "complex128": (runtime.CUDA_C_64F, cublas.CUBLAS_COMPUTE_64F),
}


def geam(
    rows: int, columns: int, dtype: np.dtype[np.generic], source: int, target: int, stream: Stream
) -> None:
    """Queue a transpose on the current GPU: (rows, columns) at address `source`, (columns, rows) at `target`.

    dtype: float32 or float64. Both C-contiguous.
    """
    call = {"float32": cublas.sgeam, "float64": cublas.dgeam}[dtype.name]
    one, zero = np.ones(1, dtype), np.zeros(1, dtype)
    with _handle(stream) as handle:
        # In cuBLAS's column-major order, the source is (columns, rows) and the target (rows, columns), its
        # transpose. The second matrix, scaled by 0, still needs a valid address: the target's.
        call(
            handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, rows, columns,
            one.ctypes.data, source, columns, zero.ctypes.data, target, rows, target, rows,
        )  # fmt: skip


def gemm(
    precision: str,
    shape: tuple[int, int, int],
    addresses: tuple[int, int, int],
    stream: Stream,
    *,
    add: bool = False,
    sums: str | None = None,
    lda: int | None = None,
    ldc: int | None = None,
) -> None:
    """Queue c = a b on the current GPU: (m, k) times (k, n), rows without gaps.

    shape: m, n, k. addresses: of a, b, c. precision: a real or complex dtype, "tf32" for float32 with inputs
    rounded to 10 bits of mantissa, "float16" or "bfloat16" with sums in float32. add: add a b to c. sums:
    dtype of c; None: that of the factors. lda, ldc: elements from one row of a, and of c, to the next; None:
    k, and n.
    """
    (m, n, k), (a, b, c) = shape, addresses
    kind, compute = PRECISIONS[precision]
    result = kind if sums is None else PRECISIONS[sums][0]
    scalar = np.dtype("float32" if compute != cublas.CUBLAS_COMPUTE_64F else "float64")
    if precision.startswith("complex"):
        scalar = np.dtype(precision)
    one, scale = np.ones(1, scalar), np.full(1, 1 if add else 0, scalar)
    with _handle(stream) as handle:
        # In column-major order, the three are their transposes: (n, m) = (n, k) (k, m).
        cublas.gemmEx(
            handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, m, k,
            one.ctypes.data, b, kind, n, a, kind, lda or k, scale.ctypes.data, c, result, ldc or n,
            compute,
            cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip


@contextmanager
def _handle(stream: Stream) -> Iterator[int]:
    """CuPy's cuBLAS handle, set up for `stream` and scalars in host memory."""
    before = cupy.cuda.get_current_stream()
    stream.use()
    try:
        handle: int = device.get_cublas_handle()
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)  # TF32 only if requested
        cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
        yield handle
    finally:
        before.use()
