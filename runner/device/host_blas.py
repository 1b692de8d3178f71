"""The BLAS that NumPy has loaded: the number of its threads, so that the ranks of a host share its cores, and
products added to an array, which NumPy cannot do without a temporary array."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from meshrun.runner.processes import mapped_files

# Functions that set and tell the number of threads: of NumPy's own OpenBLAS, of others, of MKL and of BLIS.
FUNCTIONS = (
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
    ("bli_thread_set_num_threads", "bli_thread_get_num_threads"),
)
NAMES = ("blas", "mkl_rt", "blis")
# Names of cblas_?gemm, of which those that end in 64_ have integers of 64 bits.
PRODUCTS = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_", "scipy_cblas_{}gemm", "cblas_{}gemm")
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # BLAS's for NumPy's
SCALARS: dict[str, Callable[[float], Any]] = {
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "F": lambda value: (ctypes.c_float * 2)(value, 0),  # passed by address
    "D": lambda value: (ctypes.c_double * 2)(value, 0),
}
ROW_MAJOR, AS_IT_IS = 101, 111  # of cblas.h
INT_MOST = (1 << 31) - 1
Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Blas:
    library: ctypes.CDLL
    set_threads: Callable[[int], Any]
    threads: Callable[[], int]


@cache
def _loaded() -> _Blas | None:
    """Return the loaded BLAS; None if none of these is loaded."""
    try:
        paths = mapped_files()
    except OSError:
        return None
    for path in (path for path in paths if any(name in path.rpartition("/")[2] for name in NAMES)):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for change, tell in FUNCTIONS:
            if hasattr(library, change) and hasattr(library, tell):
                return _Blas(library, getattr(library, change), getattr(library, tell))
    return None


def blas_threads() -> int | None:
    """Return the number of threads of a product of matrices; None if it is not known."""
    found = _loaded()
    return None if found is None else found.threads()


@contextmanager
def at_most_blas_threads(most: int) -> Iterator[None]:
    """Let products of matrices use at most so many threads inside the block. Does nothing for an unknown
    BLAS."""
    found, before = _loaded(), blas_threads()
    if found is None or before is None or before <= most:
        yield
        return
    found.set_threads(most)
    try:
        yield
    finally:
        found.set_threads(before)


def adds_products(dtype: np.dtype[Any]) -> bool:
    """Whether `add_product` can add products of this dtype: the BLAS is known and has the dtype."""
    return _gemm(dtype.char) is not None


def add_product(a: Matrix, b: Matrix, out: Matrix) -> None:
    """Add a b to `out`, without a temporary array.

    a: (m, k), b: (k, n), out: (m, n), of one dtype for which `adds_products` is true, rows without gaps.
    """
    product = _gemm(out.dtype.char)
    if product is None or a.dtype != out.dtype or b.dtype != out.dtype:
        raise ValueError(f"no BLAS adds a product of {a.dtype} and {b.dtype} to {out.dtype}")
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k or out.shape != (m, n):
        raise ValueError(f"a product of {a.shape} and {b.shape} is not added to {out.shape}")
    if out.size and k:
        product(a, b, out)


@cache
def _gemm(char: str) -> Callable[[Matrix, Matrix, Matrix], None] | None:
    """Return what adds products of a dtype; None without a BLAS that does so correctly."""
    found = _loaded()
    if found is None or char not in LETTERS:
        return None
    names = (name.format(LETTERS[char]) for name in PRODUCTS)
    name = next((name for name in names if hasattr(found.library, name)), None)
    if name is None:
        return None
    function, one = getattr(found.library, name), SCALARS[char](1)
    wide = name.endswith("64_")

    def product(a: Matrix, b: Matrix, out: Matrix) -> None:
        (m, k), n = a.shape, b.shape[1]
        steps = [_row_step(one) for one in (a, b, out)]
        if max(m, n, k, *steps) > INT_MOST and not wide:
            raise ValueError(f"{name} has no integers for {a.shape} times {b.shape}")
        # Integers of 64 bits are right for both kinds of BLAS: a function reads the bits that it needs.
        m, n, k, lda, ldb, ldc = map(ctypes.c_int64, (m, n, k, *steps))
        at_a, at_b, at_out = (ctypes.c_void_p(one.ctypes.data) for one in (a, b, out))
        function(ROW_MAJOR, AS_IT_IS, AS_IT_IS, m, n, k, one, at_a, lda, at_b, ldb, one, at_out, ldc)

    a, b = np.arange(6, dtype=char).reshape(2, 3), np.arange(12, dtype=char).reshape(3, 4)
    out = np.ones((2, 4), char)
    product(a, b, out)
    return product if np.array_equal(out, 1 + a @ b) else None


def _row_step(array: Matrix) -> int:
    """Return the elements from one row to the next. Raises ValueError for rows with gaps."""
    rows, columns = array.shape
    if columns > 1 and array.strides[1] != array.itemsize:
        raise ValueError(f"rows with gaps: strides {array.strides} of {array.dtype}")
    step = array.strides[0] // array.itemsize
    if rows > 1 and (step < columns or array.strides[0] % array.itemsize):
        raise ValueError(f"rows that overlap: strides {array.strides} of {array.dtype}")
    return step if rows > 1 else max(columns, 1)
