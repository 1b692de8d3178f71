"""Halo exchange plus kernel with the same rows on every rank, as the runner's own pipeline does them.

    mpirun -n RANKS python benchmarks/weak_scaling.py [--rows 32768] [--columns 32768] [--json FILE]

Run it with 1, 2 and 4 ranks; efficiency is the time on 1 over the time on N. Each round is one
exchange and one kernel over the block; the slowest rank's time counts; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.job.discover import find
from meshrun.runner.maps.in_memory import Pipeline, halo_plans
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import World, open_world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--columns", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = open_world(options.device)
    shape = (options.rows * world.size, options.columns)
    rows = [measure(world, shape, overlap, options.rounds) for overlap in (True, False)]
    if world.rank == 0:
        for row in rows:
            way = "overlapped" if row["overlap"] else "in turn   "
            print(
                f"{world.size} ranks, {way}: {1e3 * row['seconds_median']:8.3f} ms a round, "
                f"exchange {1e6 * row['exchange_median']:7.0f} us, "
                f"kernel {1e3 * row['kernel_median']:8.3f} ms",
                flush=True,
            )
        if options.json:
            record = {
                "benchmark": "weak_scaling",
                "ranks": world.size,
                "shape": shape,
                "dtype": "float32",
                "devices": world.places(),
                "versions": world.versions(),
                "rows": rows,
            }
            write_json(options.json, "benchmark", 1, record)
    world.close()


def measure(world: World, shape: tuple[int, int], overlap: bool, rounds: int) -> dict[str, object]:
    """One rank's rounds; the slowest rank's seconds in each."""
    job = find("laplacian")
    task = plan_task(job, job.complete({}), [(shape, np.dtype(np.float32))], world.size)
    array = empty_array(world, halo_plans(task, world.rank)[0], task.dtype)
    array.block[...] = 1
    found = []
    for number in range(rounds + 3):
        phases = Phases(world.backend.synchronize)
        pipeline = Pipeline(world, task, phases, overlap)
        world.control.barrier()
        pipeline.prepare([array])
        begin = time.perf_counter()
        for _ in pipeline.results():
            pass
        wall = time.perf_counter() - begin
        kernel = phases.phases["kernel"].seconds
        exchange = phases.phases["exchange"].seconds if "exchange" in phases.phases else 0.0
        step = kernel if pipeline.overlap else kernel + exchange
        if number >= 3:
            found.append([step, kernel, exchange, wall])
    slowest = np.max(world.control.allgather(np.array(found)), axis=0)
    names = ("seconds", "kernel", "exchange", "wall")
    medians = {f"{name}_median": statistics.median(slowest[:, i]) for i, name in enumerate(names)}
    return {"overlap": pipeline.overlap, "rounds": rounds, **medians}


if __name__ == "__main__":
    main()
