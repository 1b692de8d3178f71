"""Time steps of solvers and examples on the ranks that it is started with, by size and way of exchange.

    mpirun -n 2 python benchmarks/solver_rates.py [--solvers NAME ...] [--sizes 8192x8192 512x512x512 ...]
        [--halo direct nccl] [--steps 2000] [--overlap auto on off] [--between 0 1 2 4 8] [--json FILE]

Jobs of benchmarks/solvers.py on every given size of as many axes as they have. between: steps between two
exchanges; 0: as the runner chooses. All ways of exchange take turns, `--rounds` times. A row has microseconds
per step (median of the rounds, the slowest rank), Gcell/s of all ranks together, and GB/s per rank, which
counts each field as read once and written once; then the microseconds of one exchange, measured after the
loop, and the steps between two. "bits" is a checksum of the final fields that does not depend on how they are
split: ways with other bits fail the run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import solvers

from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.options.form import parse_shape
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.record import write_json
from meshrun.runner.run.prepare import fused
from meshrun.runner.steps.loop import take_steps
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import World, open_world

OVERLAPS = {"auto": None, "on": True, "off": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--solvers", nargs="+", default=list(solvers.SOLVERS), choices=list(solvers.SOLVERS))
    parser.add_argument("--sizes", nargs="+", default=["8192x8192", "512x512x512"])
    parser.add_argument("--halo", nargs="+", default=["auto"], choices=["auto", "direct", "nccl"])
    parser.add_argument("--overlap", nargs="+", default=["auto"], choices=list(OVERLAPS))
    parser.add_argument("--between", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = open_world("auto")
    rows = []
    for name in options.solvers:
        for size in map(parse_shape, options.sizes):
            if name not in (solvers.PLANE_ONLY if len(size) == 3 else solvers.VOLUME_ONLY):
                rows += measure(world, name, size, options)
    if world.rank == 0 and options.json:
        about = {key: value for key, value in vars(options).items() if key != "json"}
        record = {"benchmark": "solver_rates", **about, "ranks": world.size, "devices": world.places()}
        write_json(options.json, "benchmark", 1, {**record, "versions": world.versions(), "rows": rows})
    world.close()


def measure(
    world: World, name: str, shape: tuple[int, ...], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure one solver of one size in all ways. Collective."""
    job = solvers.SOLVERS[name]
    dtype = np.dtype(solvers.DTYPES.get(name, np.float32))
    known = [(shape, dtype)] * len(job.arrays)
    task = plan_task(job, job.complete({}), known, world.size)
    task, _ = fused(world, task, "require", "strict", options.steps)
    ways = list(itertools.product(options.halo, options.overlap, options.between))
    seconds: dict[Any, list[float]] = {way: [] for way in ways}
    bits, facts = {}, {}
    for _ in range(options.rounds):
        for way in ways:
            taken, bits[way], facts[way] = one_run(world, name, task, shape, way, options.steps)
            seconds[way].append(taken)
    if len(set(bits.values())) > 1:
        raise SystemExit(f"{name} {shape}: other bits: {bits}")
    rows = []
    for way in ways:
        per_step = statistics.median(seconds[way])
        moved = (len(task.fields) + len(task.known)) * dtype.itemsize * math.prod(shape) / world.size
        row = {
            "solver": name, "shape": shape, "ranks": world.size, "halo": way[0], "overlap": way[1],
            "between": way[2],
            "microseconds_per_step": 1e6 * per_step, "cells_per_second": math.prod(shape) / per_step,
            "bytes_per_second": moved / per_step, "bits": bits[way], **facts[way],
        }  # fmt: skip
        rows.append(row)
        if world.rank == 0:
            print(
                f"{name:14} {'x'.join(map(str, shape)):>14} {world.size} {way[0]:6} {way[1]:4} {way[2]:2} "
                f"{1e6 * per_step:9.1f} us {math.prod(shape) / per_step / 1e9:8.1f} Gcell/s "
                f"{moved / per_step / 1e9:7.0f} GB/s  K={facts[way]['steps_per_kernel']} "
                f"exchange {facts[way]['exchange_microseconds']:.1f} us / {facts[way]['steps_per_exchange']} "
                f"prepared in {facts[way]['prepare_seconds']:.2f} s "
                f"{'graph' if facts[way]['graph'] else ''} {facts[way]['taken']} {bits[way]:08x}",
                flush=True,
            )
    return rows


def one_run(
    world: World, name: str, task: Task, shape: tuple[int, ...], way: tuple[str, str, int], steps: int
) -> tuple[float, int, dict[str, Any]]:
    """Take the steps; return seconds per step of the slowest rank, the checksum, and how the loop worked."""
    stepper = opened(world, name, task, shape, way)
    world.backend.synchronize()
    world.control.barrier()
    prepared, connecting = (stepper.phases.seconds(phase) for phase in ("prepare", "exchange"))
    begin = time.perf_counter()
    take_steps(stepper, steps, [])
    world.backend.synchronize()
    taken = time.perf_counter() - begin - (stepper.phases.seconds("prepare") - prepared)
    slowest = max(world.control.allgather(taken)) / steps
    checksums = [bits_of(world.xp, stepper.own(place)) for place in stepper.fed]
    whole = sum(map(sum, world.control.allgather(checksums))) & 0xFFFFFFFF
    facts = {
        "steps_per_kernel": min(stepper.fused_steps, stepper.steps_per_exchange),
        "graph": stepper.graph, "graph_reason": stepper.graph_reason,
        "taken": stepper.halo_taken, "overlapped": bool(stepper.overlap),
    }  # fmt: skip
    stepper.finish()
    exchanging = stepper.phases.seconds("exchange") - connecting
    facts |= {
        "steps_per_exchange": stepper.steps_per_exchange,
        "prepare_seconds": stepper.phases.seconds("prepare"),
        "exchange_microseconds": 1e6 * exchanging / stepper.exchanges if stepper.exchanges else 0.0,
    }  # fmt: skip
    return slowest, whole, facts


def opened(world: World, name: str, task: Task, shape: tuple[int, ...], way: tuple[str, str, int]) -> Stepper:
    """Return a stepper whose fields are those of `solvers.fields`. Collective."""
    stepper = Stepper(
        world, task, Phases(world.backend.synchronize), way[2], OVERLAPS[way[1]], way[0],  # type: ignore[arg-type]
    )  # fmt: skip
    xp, arrays = world.backend.xp, []
    for place, start in enumerate(solvers.fields(name, shape)):
        arrays.append(empty_array(world, stepper.plans[place], start.dtype, stepper))
        own, values = arrays[-1].interior, xp.asarray(start)
        first = stepper.region.start[0]
        for row in range(0, len(own), len(values)):  # noise repeats, a slow wave along the rows does not
            index = xp.arange(row, min(row + len(values), len(own))) + first
            slow = (0.01 * xp.sin(0.1 * index)).astype(start.dtype).reshape(-1, *(1,) * (len(shape) - 1))
            own[row : row + len(index)] = values[index % len(values)] + slow
    stepper.start(arrays)
    return stepper


def bits_of(xp: ModuleType, cells: Any) -> int:
    """Return the sum of all cells' bits, mixed, modulo 2^32: the same for any split into ranks."""
    words = xp.ascontiguousarray(cells).view(np.uint32).reshape(-1)
    return int(xp.sum((words ^ (words >> 15)) * np.uint32(2654435761), dtype=np.uint64)) & 0xFFFFFFFF


if __name__ == "__main__":
    main()
