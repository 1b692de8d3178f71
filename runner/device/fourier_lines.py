"""Fourier transforms of long lines that lie across memory, by kernels/fourier_lines.cu, on the current GPU.

Where cuFFT reads and writes such lines twice, the kernel does once. Shorter lines cuFFT reads once, too, and
of complex128 its transforms are as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np

from meshrun.runner.device.api import HEADERS
from meshrun.runner.device.cuda import kernel
from meshrun.runner.region import Array

LENGTHS = (2048, 4096)
TILE, EACH = 1 << 14, 16  # elements of a block, of a thread
SHARED = TILE // 256 * 257 * np.dtype(np.complex64).itemsize  # bytes of a block


def line_plan(
    length: int, lines: int, pitches: tuple[int, int], dtype: np.dtype[Any], inverse: bool
) -> Callable[[Array, Array], None] | None:
    """Return what transforms lines of one array to another, on the current stream, without dividing.

    None where cuFFT is to be taken: for other lengths than LENGTHS, other dtypes than complex64, and GPUs
    with too little shared memory. Lines are side by side. pitches: elements from a cell of a line to the
    next, in the source and in the result; if they are equal, both may be one array.
    """
    device = cupy.cuda.Device().id
    if length not in LENGTHS or dtype != np.complex64 or lines >= 1 << 31 or _shared_memory(device) < SHARED:
        return None
    across = TILE // length
    name = f"fourier_lines<{length}, {across}, {1 if inverse else -1}>"
    launch = kernel(HEADERS / "fourier_lines.cu", name, ("--fmad=true",), SHARED)
    roots = _roots(length, inverse, device)
    words = (*(np.int64(pitch) for pitch in reversed(pitches)), np.uint32(lines), roots)
    grid, block = (-(-lines // across),), (TILE // EACH,)
    return lambda source, out: launch(grid, block, (out, source, *words), shared_mem=SHARED)


@cache
def _shared_memory(device: int) -> int:
    """Return the bytes that a block can have."""
    size: int = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    return size


@cache
def _roots(length: int, inverse: bool, device: int) -> Array:
    """Return exp(+-2 pi i k / length) for all k, on the current GPU, which is `device`."""
    turns = 2j * np.pi * np.arange(length) / length
    return cupy.asarray(np.exp(turns if inverse else -turns).astype(np.complex64))
