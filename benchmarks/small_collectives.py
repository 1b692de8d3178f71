"""Time the runner's own small collectives, as programs call them: issued one by one, and in CUDA graphs.

    mpirun -n 4 python benchmarks/small_collectives.py [--device auto|cpu|cuda] [--json FILE]

all_reduce: a sum of float32, bytes of the array. all_to_all: bytes for each rank. Microseconds per call,
medians of 5 rounds of the slowest rank; in a graph of `--calls` calls, and issued one by one. Every result is
checked once. Compare with NCCL's: `meshrun -n 4 bench all_reduce -b 8 -e 64K -f 2 -G 20`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.device.api import NotCapturable
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import World, open_world

REDUCED = (8, 64, 512, 4096, 16384, 65536)  # bytes
SENT = (16, 256, 4096, 65536)  # bytes for each rank
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="of a round, or of a graph")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with open_world(options.device) as world:
        rows = []
        if world.rank == 0:
            print("operation      bytes  us in a graph  us one by one", flush=True)
        for operation, nbytes, work in works(world):
            own, graphed = seconds(world, work, options.calls), graph_seconds(world, work, options.calls)
            rows.append(
                {
                    "operation": operation, "bytes": nbytes, "microseconds": 1e6 * own,
                    "graph_microseconds": 1e6 * graphed if graphed else None,
                }
            )  # fmt: skip
            if world.rank == 0:
                text = f"{1e6 * graphed:14.2f}" if graphed else f"{'-':>14}"
                print(f"{operation:10} {nbytes:9} {text} {1e6 * own:14.2f}", flush=True)
        if options.json and world.rank == 0:
            about = {"benchmark": "small_collectives", "ranks": world.size, "devices": world.places()}
            write_json(options.json, "benchmark", 1, {**about, "versions": world.versions(), "rows": rows})


def works(world: World) -> list[tuple[str, int, Callable[[], Any]]]:
    """Return operations, bytes, and calls whose results were checked. Collective."""
    xp, size, works = world.xp, world.size, list[tuple[str, int, Callable[[], Any]]]()
    for nbytes in REDUCED:
        array = xp.full(nbytes // 4, world.rank + 1, np.float32)
        world.all_reduce(array)
        check(bool((array == size * (size + 1) / 2).all()), "all_reduce", nbytes)
        array.fill(0)
        works.append(("all_reduce", nbytes, partial(world.all_reduce, array)))
    for nbytes in SENT:
        sent = xp.broadcast_to(xp.arange(size, dtype=np.uint8)[:, None], (size, nbytes)).copy()
        got = xp.empty_like(sent)
        world.all_to_all(sent, out=got)
        check(bool((got == world.rank).all()), "all_to_all", nbytes)
        works.append(("all_to_all", nbytes, partial(world.all_to_all, sent, out=got)))
    return works


def check(right: bool, operation: str, nbytes: int) -> None:
    if not right:
        raise SystemExit(f"{operation} of {nbytes} bytes: wrong result")


def seconds(world: World, work: Callable[[], Any], calls: int) -> float:
    """Return seconds per call, with the wait for the device after the last one. Collective."""
    rounds = []
    for number in range(ROUNDS + 1):  # the first one connects
        world.backend.synchronize()
        world.control.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        world.backend.synchronize()
        taken = max(world.control.allgather((time.perf_counter() - begin) / calls))
        if number:
            rounds.append(taken)
    return statistics.median(rounds)


def graph_seconds(world: World, work: Callable[[], Any], calls: int) -> float | None:
    """Return seconds per call of a CUDA graph; None if the device has none. Collective."""

    def all_calls() -> None:
        for _ in range(calls):
            work()

    try:
        graph = world.backend.capture(all_calls)
    except NotCapturable:
        return None
    return seconds(world, graph, 10) / calls


if __name__ == "__main__":
    main()
