"""The model of `meshrun plan` beside measurements: transpose, fft and matmul of arrays in CPU ranks' memory.

    mpirun -n 2 python benchmarks/exchange_model.py [--rounds 7] [--json FILE]

First the rates that the model takes are measured, by all ranks at once: a core's copy, an all-to-all of
large and of the smallest arrays, and a product of small matrices. Then each case's time, the median of the
slowest rank's, is compared with the model's, without files. Ranks that are more than the cores share them:
their rates show it, but the model knows nothing of the times at which they wait for a core.

Bytes and messages are compared exactly, for up to 16 ranks, by tests/unit/transforms/test_forecast.py and
tests/unit/linalg/test_plan.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.linalg.matmul.products import share_of_cores
from meshrun.jobs.transforms.fft_job import fft
from meshrun.jobs.transforms.transpose_job import transpose_job
from meshrun.runner.forecast.jobs import JobForecast
from meshrun.runner.forecast.machine import Machine, Rate
from meshrun.runner.forecast.place import ExchangeRates, Place, Stage
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import World

LARGE, SIDE = 32 << 20, 1024  # bytes that a rank sends to each other rank; side of a small product
AMPLE = 1 << 50  # bytes of memory
FILES = ("read", "write")


def main() -> None:
    options = arguments()
    world = meshrun.open_world("cpu")
    with share_of_cores(world):  # else BLAS's threads, which spin after a product, take the cores of messages
        rates = measured_rates(world)
    rows = []
    for name, size, work, forecast in cases(world):
        times = [slowest(world, work) for _ in range(options.rounds + 1)][1:]
        expected = predicted(world, rates, forecast)
        found = statistics.median(times)
        rows.append({"job": name, "size": size, "predicted": expected, "seconds": times, "median": found})
        if world.rank == 0:
            print(
                f"{name:20s} {size:14s} {world.size} ranks: model {1e3 * expected:9.2f} ms   "
                f"measured {1e3 * found:9.2f} ms   {found / expected:.2f} of it"
            )
    if world.rank == 0:
        print("rates: " + ", ".join(f"{name} {value:.4g}" for name, value in rates.items()))
        if options.json is not None:
            record = {
                "machine": f"{world.here.device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
                "load_average": os.getloadavg(),
                "ranks": world.size,
                "rates": rates,
                "rows": rows,
            }
            write_json(options.json, "exchange_model", 1, record)
    world.close()


def slowest(world: World, work: Callable[[], Any]) -> float:
    """Return the seconds of the rank that takes longest."""
    world.control.barrier()
    begin = time.perf_counter()
    work()
    return float(max(world.control.allgather(time.perf_counter() - begin)))


def measured_rates(world: World) -> dict[str, float]:
    """Return bytes and operations per second of one rank while all are at work, and seconds of a message."""
    source = np.ones(LARGE // 8)
    target = source.copy()
    messages = {size: np.ones((world.size, size // 8)) for size in (8, LARGE)}
    arrived = {size: np.ones_like(array) for size, array in messages.items()}
    factors = {name: np.ones((SIDE, SIDE), name) for name in ("float32", "float64")}

    def median(work: Callable[[], Any]) -> float:
        return statistics.median(slowest(world, work) for _ in range(9))

    rates = {"copy": 2 * LARGE / median(lambda: np.copyto(target, source))}
    for name, array in factors.items():
        rates[name] = 2 * SIDE**3 / median(lambda array=array: array @ array)
    others = max(world.size - 1, 1)
    small = median(lambda: world.all_to_all(messages[8], arrived[8])) / others
    large = median(lambda: world.all_to_all(messages[LARGE], arrived[LARGE]))
    return {**rates, "exchange": others * LARGE / large, "latency": small}


def predicted(world: World, rates: dict[str, float], forecast: Callable[[Place], JobForecast]) -> float:
    """Return the model's seconds without files."""
    copy = Rate(rates["copy"])
    machine = Machine(
        "cpu", 0, world.size, world.size, AMPLE, 0, (0.0, 0.0),
        {"read": copy, "write": copy, "kernel": copy, "host memory": Rate(copy.value * world.size)},
    )  # fmt: skip
    links = ExchangeRates(Rate(rates["exchange"]), Rate(rates["exchange"]), rates["latency"])
    found = forecast(Place(machine, links, world.size, 1, AMPLE))

    def seconds(stage: Stage) -> float:
        if stage.name == "multiply":  # nominal in the model
            return stage.amount / rates[found.dtype]
        return stage.seconds

    return sum(seconds(stage) for stage in found.stages if stage.name not in FILES)


Case = tuple[str, str, Callable[[], Any], Callable[[Place], JobForecast]]


def cases(world: World) -> Iterator[Case]:
    """Yield each job's name, the size of its array, what does it in memory, and its forecast."""

    def planned(job: Any, *arrays: Any, **parameters: Any) -> Callable[[Place], JobForecast]:
        return lambda place: job.forecast(place, arrays, **job.complete(parameters))

    for dtype in ("float32", "float64"):
        for side in (512, 2048, 4096):
            block = np.ones((side, side), dtype)[world.part(side)].copy()
            yield (
                f"transpose {dtype}", f"{side}^2", lambda block=block: meshrun.transpose(block, world),
                planned(transpose_job, ((side, side), dtype)),
            )  # fmt: skip
    for dtype in ("complex64", "complex128"):
        for side in (32, 128, 192):
            block = np.ones((side,) * 3, dtype)[world.part(side)].copy()
            yield (
                f"fft {dtype}", f"{side}^3",
                lambda block=block: meshrun.fft(block, world, keep_order=False),
                planned(fft, ((side,) * 3, dtype), decomposition="slab"),
            )  # fmt: skip
    for dtype in ("float32", "float64"):
        for side in (256, 1024, 2048):
            block = np.ones((side, side), dtype)[world.part(side)].copy()
            yield (
                f"matmul {dtype}", f"{side}^2",
                lambda block=block: meshrun.matmul(block, block, world=world),
                planned(matmul, *[((side, side), dtype)] * 2, algorithm="ring"),
            )  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
