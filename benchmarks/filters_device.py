"""One GPU: the built-in filters on arrays that are already there, against the device's own copy.

    python benchmarks/filters_device.py [--side 16384] [--json FILE]

The array has side x side elements, or side x side / 5 pixels. The filter's input counts as read once and its
result as written once; the copy is of as many bytes. Filter and copy take turns; medians of 10 rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.device.cuda import CudaBackend
from meshrun.runner.job.discover import find
from meshrun.runner.plan.halo import normalize
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import single_rank_world

ROUNDS = 10
FORMULAS = [
    ("uint8", "2 * x + 1", "float"), ("float16", "2 * x + 1", "float"), ("float32", "2 * x + 1", "float"),
    ("float64", "2 * x + 1", "float"), ("int64", "2 * x + 1", "float"), ("uint8", "255 - x", "uint8"),
    ("float32", "sqrt(abs(x)) + 1", "uint8"), ("float64", "x + 1", "uint8"), ("int32", "x * 3", "same"),
    ("float32", "exp(-x * x)", "float"), ("float32", "sin(x) + cos(x)", "float"),
    ("float32", "x % 0.7 + x // 3", "float"), ("float32", "x ** 1.7", "float64"),
]  # fmt: skip


def cases() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Yield a filter, the elements' dtype, their number in a pixel, and parameters."""
    for dtype, expression, result in FORMULAS:
        yield "elementwise", dtype, 1, {"expression": expression, "dtype": result}
    for dtype in ("uint8", "uint16", "float32", "int32", "float64", "int64"):
        for channels in (1, 3, 4):
            yield "laplacian", dtype, channels, {}
    for dtype in ("uint8", "uint16", "float32", "int32", "float64"):
        yield "grayscale", dtype, 3, {}
    for dtype in ("uint8", "uint16", "float32", "float64", "int64"):
        for side in (3, 5, 9):
            yield "convolve", dtype, 1, {"kernel": "; ".join([" ".join(["1"] * side)] * side)}


def measure(name: str, dtype: str, channels: int, parameters: dict[str, Any], side: int) -> dict[str, Any]:
    """Return the medians of the filter and of the copy, in seconds."""
    job = find(name)
    given = job.complete(parameters)
    shape = (side, side) if channels == 1 else (side, side // 5, channels)
    widths = normalize(job.halo_for(given), len(shape))
    padded = tuple(n + sum(width) for n, width in zip(shape, widths, strict=True))
    block = cupy.empty(padded, dtype)
    block[...] = (cupy.arange(padded[0]) % 251).reshape(-1, *[1] * (len(shape) - 1))
    assert job.out is not None
    out = cupy.empty(*job.out(shape, np.dtype(dtype), **given))
    moved = block.nbytes + out.nbytes
    source, target = (cupy.empty(moved // 2, np.uint8) for _ in range(2))
    services = {"xp": cupy} if "xp" in job.services else {}
    actions = {
        "seconds": lambda: job.function(block, out=out, **services, **given),
        "copy_seconds": lambda: target.data.copy_from_device_async(source.data, target.nbytes),
    }
    spans: dict[str, list[Any]] = {what: [] for what in actions}
    for number in range(ROUNDS + 2):
        for what, action in actions.items():
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            action()
            end.record()
            if number > 1:
                spans[what].append((begin, end))
    cupy.cuda.get_current_stream().synchronize()
    medians = {
        what: statistics.median(cupy.cuda.get_elapsed_time(*span) / 1e3 for span in each)
        for what, each in spans.items()
    }
    about = {"job": name, "dtype": dtype, "result": str(out.dtype), "channels": channels, **parameters}
    return {**about, "bytes": moved, **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=16384)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    backend, rows = CudaBackend(0), []
    for name, dtype, channels, parameters in cases():
        row = measure(name, dtype, channels, parameters, options.side)
        rows.append(row)
        print(
            f"{name:11} {dtype:7} to {row['result']:7} x {channels}  {1e6 * row['seconds']:6.0f} us "
            f"{row['bytes'] / row['seconds'] / 1e9:6.0f} GB/s  "
            f"{100 * row['copy_seconds'] / row['seconds']:5.1f} % of a copy  "
            f"{parameters.get('expression', parameters.get('kernel', ''))[:24]}",
            flush=True,
        )
        cupy.get_default_memory_pool().free_all_blocks()
    if options.json:
        about = {"device": backend.device.name, "versions": single_rank_world(backend).versions()}
        write_json(options.json, "benchmark", 1, {"benchmark": "filters_device", **about, "rows": rows})


if __name__ == "__main__":
    main()
