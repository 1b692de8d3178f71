"""The number of threads of the BLAS that NumPy has loaded, so that the ranks of a host share its cores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

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


@cache
def _functions() -> tuple[Callable[[int], Any], Callable[[], int]] | None:
    """Return the functions of the loaded BLAS; None if none of these is loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    for path in sorted(path for path in paths if any(name in path.rpartition("/")[2] for name in NAMES)):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for change, tell in FUNCTIONS:
            if hasattr(library, change) and hasattr(library, tell):
                return getattr(library, change), getattr(library, tell)
    return None


def blas_threads() -> int | None:
    """Return the number of threads of a product of matrices; None if it is not known."""
    found = _functions()
    return None if found is None else found[1]()


@contextmanager
def at_most_blas_threads(most: int) -> Iterator[None]:
    """Let products of matrices use at most so many threads inside the block. Does nothing for an unknown
    BLAS."""
    found, before = _functions(), blas_threads()
    if found is None or before is None or before <= most:
        yield
        return
    found[0](most)
    try:
        yield
    finally:
        found[0](before)
