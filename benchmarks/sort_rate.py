"""Time the sort of an array that is split over the ranks, beside what bandwidth allows.

    mpirun -n 2 python benchmarks/sort_rate.py [--cells 30] [--rounds 5] [--device cuda] [--json FILE]

2^cells random float32. Milliseconds: the median of the rounds, the slowest rank. What bandwidth allows is the
model of runner/arrays/tools/sorting.py, with the rates that are measured here: of a copy in memory, and of
the exchange of half a rank's cells with a neighbour.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.arrays.tools.cells import made_of
from meshrun.runner.plan.grid import Partition
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import World, open_world

BYTES = 4  # of a key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", type=int, default=30, help="the array has 2^CELLS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with open_world(options.device) as world:
        row = measure(world, 1 << options.cells, options.rounds)
        if world.rank == 0:
            link = f", link {row['link_rate'] / 1e9:.0f} GB/s" if row["link_rate"] else ""
            print(
                f"2^{options.cells} float32 on {world.size}: {row['milliseconds']:.2f} ms, bandwidth allows "
                f"{row['allowed_milliseconds']:.2f} ms ({100 * row['share']:.0f} %); memory "
                f"{row['memory_rate'] / 1e9:.0f} GB/s{link}",
                flush=True,
            )
        if options.json and world.rank == 0:
            where = {"ranks": world.size, "devices": world.places(), "versions": world.versions()}
            about = {"cells": options.cells, "rounds": options.rounds}
            write_json(
                options.json, "benchmark", 1, {"benchmark": "sort_rate", **about, **where, "rows": [row]}
            )


def measure(world: World, cells: int, rounds: int) -> dict[str, Any]:
    """Return the time of a sort, and what the measured rates allow. Collective."""
    xp = world.xp
    partition = Partition((cells,), (world.size,))
    own = xp.random.RandomState(world.rank).random_sample(partition[world.rank].shape).astype(np.float32)
    array = made_of(world, partition, own)
    memory = 2 * own.nbytes / seconds(world, own.copy, rounds)
    link = math.inf
    if world.size > 1:
        half = own[: own.size // 2].copy()
        arrived = xp.empty_like(half)
        peer = world.rank ^ 1 if world.rank ^ 1 < world.size else world.rank
        link = half.nbytes / seconds(
            world, lambda: world.arrays.exchange([(peer, half)], [(peer, arrived)]).wait(), rounds
        )
    took = seconds(world, lambda: meshrun.sort(array), rounds)
    mine, ranks = own.nbytes, world.size
    allowed = mine * (2 * BYTES + 1) / memory
    allowed += mine * (ranks - 1) / ranks / link + math.log2(ranks) * 2 * mine / memory
    return {
        "milliseconds": 1e3 * took, "allowed_milliseconds": 1e3 * allowed, "share": allowed / took,
        "memory_rate": memory, "link_rate": None if link == math.inf else link,
    }  # fmt: skip


def seconds(world: World, call: Callable[[], Any], rounds: int) -> float:
    """Return the median time of a call, of the slowest rank each time. Collective."""
    times = []
    for _ in range(rounds + 1):
        world.backend.synchronize()
        world.control.barrier()
        begin = time.perf_counter()
        call()
        world.backend.synchronize()
        times.append(max(world.control.allgather(time.perf_counter() - begin)))
    return float(statistics.median(times[1:]))


if __name__ == "__main__":
    main()
