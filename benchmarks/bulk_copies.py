"""Copies of rows by a few processors of a GPU instead of its copy engines, for fourier_stages.py.

Not a script. A copy engine moves little while kernels take all of the memory's rate; bulk_copies.cu asks for
its share like the kernels do.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from runner.comm.peer_arrays import PeerCopies

ALIGNED = 16  # bytes: multiples of these can be copied


class BulkCopies(PeerCopies):
    """As `PeerCopies`. blocks: of a kernel. stages, chunk: that each has on the way; their bytes."""

    def __init__(self, arrays: Any, blocks: int, stages: int, chunk: int) -> None:
        super().__init__(arrays)
        self._blocks, self._size, self._kernel = blocks, stages * chunk, copy_rows(stages, chunk)

    def rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        if any(one % ALIGNED for one in (target, source, *pitches, width)):
            raise ValueError(f"copies of other than multiples of {ALIGNED} bytes")
        addresses = np.uint64(target), np.uint64(source)
        lengths = (np.int64(one) for one in (*pitches, width, rows))
        with self._stream:
            self._kernel((self._blocks,), (32,), (*addresses, *lengths), shared_mem=self._size)


@cache
def copy_rows(stages: int, chunk: int) -> Any:
    text = Path(__file__).with_suffix(".cu").read_text()
    kernel = cupy.RawKernel(text, "copy_rows", (f"-DSTAGES={stages}", f"-DCHUNK={chunk}", "-std=c++17"))
    kernel.max_dynamic_shared_size_bytes = stages * chunk
    return kernel
