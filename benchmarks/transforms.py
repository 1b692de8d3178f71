"""CPU ranks: `meshrun.fft` of a cube, beside mpi4py-fft where it is installed, and scipy.fft in one process.

    mpirun -n 2 python benchmarks/transforms.py [--cells 256] [--dtype complex64] [--rounds 9] [--json FILE]

All start from and end with blocks in memory, in transposed order, and take turns; scipy.fft transforms the
whole cube on rank 0 with as many threads as there are ranks, while the others wait. Medians of the slowest
rank.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import scipy.fft

import meshrun
from meshrun.runner.report.record import write_json

Work = Callable[[], Any]


def main() -> None:
    options = arguments()
    world = meshrun.open_world("cpu")
    shape, dtype = (options.cells,) * 3, np.dtype(options.dtype)
    whole = (
        np.random.default_rng(0)
        .standard_normal((*shape, 2))
        .astype(f"f{dtype.itemsize // 2}")
        .view(dtype)[..., 0]
    )
    block = np.ascontiguousarray(whole[world.part(options.cells)])
    works: dict[str, Work] = {
        "meshrun": lambda: meshrun.fft(block, world, keep_order=False),
        "scipy.fft, one process": lambda: (
            scipy.fft.fftn(whole, workers=world.size) if world.rank == 0 else None
        ),
    }
    if importlib.util.find_spec("mpi4py_fft") is not None:
        works["mpi4py-fft"] = peer(shape, dtype, whole)
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.rounds + 1):
        for name, work in works.items():
            world.control.barrier()
            begin = time.perf_counter()
            work()
            seconds = max(world.control.allgather(time.perf_counter() - begin))
            if number:  # the first round plans and touches memory
                times[name].append(seconds)
    if world.rank == 0:
        medians = {name: statistics.median(found) for name, found in times.items()}
        for name, seconds in medians.items():
            print(f"{name:24s} {options.cells}^3 {dtype.name}, {world.size} ranks: {1e3 * seconds:9.2f} ms")
        if options.json is not None:
            found = {
                "cells": options.cells,
                "dtype": dtype.name,
                "ranks": world.size,
                "machine": f"{world.here.device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
                "load_average": os.getloadavg(),
                "scipy": scipy.__version__,
                "seconds": times,
                "median_seconds": medians,
            }
            write_json(options.json, "benchmark", 1, found)
    world.close()


def peer(shape: tuple[int, ...], dtype: np.dtype[Any], whole: np.ndarray[Any, Any]) -> Work:
    """Return the transform of mpi4py-fft, by slabs, over FFTW."""
    from mpi4py import MPI
    from mpi4py_fft import PFFT, newDistArray

    plan = PFFT(MPI.COMM_WORLD, shape, axes=(0, 1, 2), dtype=dtype, slab=True)
    values, result = newDistArray(plan, False), newDistArray(plan, True)
    values[...] = whole[values.local_slice()]
    return lambda: plan.forward(values, result, normalize=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=256)
    parser.add_argument("--dtype", choices=("complex64", "complex128"), default="complex64")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
