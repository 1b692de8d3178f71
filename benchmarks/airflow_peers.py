"""One GPU: lattice-Boltzmann steps as a user writes them in JAX and in CuPy, beside a copy.

    python benchmarks/airflow_peers.py [--steps 20] [--rounds 5] [--json FILE]

A periodic box, BGK, float32, no body: less work than the job airflow does, whose rates in the same sitting
are those of benchmarks/airflow_device.py. JAX runs the steps in one `lax.fori_loop` under `jit`, with arrays
donated; CuPy takes them operation by operation. Both move the populations by `roll`. A rate counts each cell
once a step; the copy is the rate at which CuPy's copy would read and write the populations.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.jobs.airflow.lattice import LATTICES, Lattice
from meshrun.runner.report.record import write_json

CASES = {"D2Q9": (8192, 8192), "D3Q19": (384, 384, 512)}


def step(xp: Any, lattice: Lattice, f: Any, omega: float) -> Any:
    """Take one step: f[i] of all cells in one array, minus its weight."""
    axes = tuple(range(lattice.axes))
    g = [xp.roll(f[i], e, axes) for i, e in enumerate(lattice.velocities)]
    r = sum(g[1:], g[0])
    j = [sum(e[axis] * g[i] for i, e in enumerate(lattice.velocities) if e[axis]) for axis in axes]
    squares = 1.5 * sum(one * one for one in j)
    after = []
    for i, (e, weight) in enumerate(zip(lattice.velocities, lattice.weights, strict=True)):
        along = sum((c * one for c, one in zip(e, j, strict=True) if c), start=0.0)
        equilibrium = np.float32(weight) * (r + 3 * along + 4.5 * along * along - squares)
        after.append(g[i] + np.float32(omega) * (equilibrium - g[i]))
    return xp.stack(after)


def in_jax(lattice: Lattice, start: Any, steps: int) -> Callable[[], float]:
    import jax

    def many(f: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, now: step(jax.numpy, lattice, now, 1.7), f)

    jitted, state = jax.jit(many, donate_argnums=0), [jax.numpy.asarray(start)]

    def once() -> float:
        begin = time.perf_counter()
        state[0] = jitted(state[0]).block_until_ready()
        return time.perf_counter() - begin

    return once


def in_cupy(lattice: Lattice, start: Any, steps: int) -> Callable[[], float]:
    import cupy

    state = [cupy.asarray(start)]

    def once() -> float:
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            state[0] = step(cupy, lattice, state[0], 1.7)
        cupy.cuda.Device().synchronize()
        return time.perf_counter() - begin

    return once


def copy_seconds(nbytes: int) -> float:
    """Return the seconds of a copy that reads and writes so many bytes in all."""
    import cupy

    source, target = (cupy.zeros(nbytes // 2, np.uint8) for _ in range(2))
    times = []
    for _ in range(7):
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        target.data.copy_from_device_async(source.data, target.nbytes)
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")  # gives memory back to CuPy
    rows = []
    for name, shape in CASES.items():
        lattice, cells = LATTICES[name], math.prod(shape)
        start = np.random.default_rng(0).standard_normal((lattice.size, *(64,) * lattice.axes)) * 1e-3
        start = np.tile(start, (1, *(n // 64 for n in shape))).astype(np.float32)
        import cupy

        rates = {"copy": cells / copy_seconds(2 * start.nbytes)}
        cupy.get_default_memory_pool().free_all_blocks()
        for peer, make, steps in (("JAX", in_jax, options.steps), ("CuPy", in_cupy, 3)):
            once = make(lattice, start, steps)
            once()  # compiles
            rates[peer] = cells * steps / statistics.median(once() for _ in range(options.rounds))
            del once
            cupy.get_default_memory_pool().free_all_blocks()
        rows.append({"lattice": name, "shape": shape, "cells_per_second": rates})
        print(
            f"{name} {shape}: " + ", ".join(f"{one} {rate / 1e9:.2f}" for one, rate in rates.items()),
            "Gcell/s",
        )
    if options.json:
        write_json(options.json, "benchmark", 1, {"benchmark": "airflow_peers", "rows": rows})


if __name__ == "__main__":
    main()
