"""One GPU: the Laplacian kernel on an array that is already there, against the device's own copy.

    python benchmarks/device_laplacian.py [--side 32768] [--json FILE]

Each value counts as read once and written once. Kernel and copy take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np

from meshrun.runner.device.cuda import CudaBackend
from meshrun.runner.job.discover import find
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import single_rank_world

ROUNDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=32768)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    backend, laplacian = CudaBackend(0), find("laplacian").function
    rows = []
    for dtype in ("float32", "float64", "float16", "uint8", "uint16", "int32"):
        side = options.side
        padded = cupy.zeros((side + 2, side + 2), dtype)
        padded[...] = cupy.arange(side + 2) % 251
        out = cupy.empty((side, side), dtype)
        source = cupy.empty((side, side), dtype)

        def kernel(padded: cupy.ndarray = padded, out: cupy.ndarray = out) -> None:
            laplacian(padded, out=out)

        def copy(source: cupy.ndarray = source, out: cupy.ndarray = out) -> None:
            out.data.copy_from_device_async(source.data, out.nbytes)

        seconds = interleaved(backend, kernel, copy)
        moved = 2 * out.nbytes
        rates = [moved / median for median in seconds]
        rows.append(
            {
                "dtype": dtype,
                "side": side,
                "laplacian_bytes_per_second": rates[0],
                "copy_bytes_per_second": rates[1],
                "fraction_of_copy": rates[0] / rates[1],
                "rounds": ROUNDS,
            }
        )
        print(
            f"{dtype:8} laplacian {rates[0] / 1e9:7.0f} GB/s  copy {rates[1] / 1e9:7.0f} GB/s  "
            f"{100 * rates[0] / rates[1]:5.1f} %",
            flush=True,
        )
        del padded, out, source
        cupy.get_default_memory_pool().free_all_blocks()
    if options.json:
        device = backend.device
        record = {
            "benchmark": "device_laplacian",
            "device": device.name,
            "memory_limit_bytes_per_second": device.bandwidth,
            "versions": single_rank_world(backend).versions(),
            "rows": rows,
        }
        write_json(options.json, "benchmark", 1, record)


def interleaved(backend: CudaBackend, *actions: Callable[[], None]) -> list[float]:
    """Median seconds of each action, one of each a round."""
    times: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(ROUNDS):
        for action, taken in zip(actions, times, strict=True):
            begin = backend.mark()
            action()
            end = backend.mark()
            backend.synchronize()
            taken.append(backend.elapsed(begin, end))
    return [float(np.float64(statistics.median(taken))) for taken in times]


if __name__ == "__main__":
    main()
