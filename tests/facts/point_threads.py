"""The CUDA kernel of cells near points, run on the host by one thread after the other."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fused import FLAGS, GXX

from meshrun.runner.compiler.whole.point_code import THREADS, DevicePoints, PointSet, device_source

CUDA = """
#define __global__
#define __launch_bounds__(...)
#define __syncthreads()
static thread_local struct { unsigned x; } threadIdx, blockIdx;
extern "C" void be(unsigned block, unsigned thread) { blockIdx.x = block, threadIdx.x = thread; }
"""


@functools.cache
def _library(source: str) -> ctypes.CDLL:
    assert GXX is not None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "points.so"
        text, words = Path(folder) / "points.cpp", [GXX, *FLAGS]
        text.write_text(CUDA + source)
        subprocess.run([*words, str(text), "-o", str(made)], check=True)
        return ctypes.CDLL(str(made))


def by_threads(sets: Sequence[PointSet], _arithmetic: str = "") -> DevicePoints:
    """In place of `compile_points`. Arrays are NumPy's."""
    library = _library(device_source(sets))

    def launch(grid: tuple[int], block: tuple[int], arguments: Sequence[Any]) -> None:
        assert block == (THREADS,)
        words = [ctypes.c_ulonglong(int(one) % 2**64) for one in arguments]
        for at in range(grid[0]):
            for thread in range(THREADS):
                library.be(at, thread)
                library.points(*words)

    return DevicePoints(sets, launch)
