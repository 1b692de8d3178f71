"""Where the time of a direct Fourier plan goes: each stage alone, copies alone, and all together.

    mpirun --bind-to none -n 2 python benchmarks/fourier_stages.py [--shape 1024 1024 1024]
        [--rooms whole compact] [--json FILE]

A row for each kind of room: planes, lines and copies of `FourierPlan`'s forward transform, each by itself, in
the parts and the order of the transform; then the transform. Milliseconds of the slowest rank, medians;
`allocated` is the time of a result's memory, which the transform includes. What the links need at least is
the all-to-all of transforms_device.py.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transforms_device import seconds_of

import meshrun
from jobs.transforms.direct_fourier import DirectFourier
from jobs.transforms.fourier_plan import open_direct_fourier
from runner.report.record import write_json

ROUNDS = 7  # of which the first one connects and allocates


def main() -> None:
    options = arguments()
    world = meshrun.open_world("cuda")
    shape, rows = tuple(options.shape), []
    for room in options.rooms:
        world.backend.release_memory()
        direct = open_direct_fourier(
            world, shape, np.dtype(np.complex64), (1.0, 1 / math.prod(shape)), compact=room == "compact"
        )
        if isinstance(direct, str):
            if world.rank == 0:
                print(f"{room}: {direct}")
            continue
        row = {"room": room, "free": world.backend.free_memory(), **stages(world, direct, shape)}
        direct.close()
        del direct
        rows.append(row)
        if world.rank == 0:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            if options.json:
                about = {"benchmark": "fourier_stages", "ranks": world.size, "shape": list(shape)}
                write_json(options.json, "benchmark", 1, {**about, "rows": rows})
    world.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs="+", default=[1024, 1024, 1024])
    parser.add_argument("--rooms", nargs="+", choices=("whole", "compact"), default=["whole", "compact"])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def stages(world: Any, direct: DirectFourier, shape: tuple[int, ...]) -> dict[str, float]:
    """Return the milliseconds of each stage, and of the transform."""
    first, rank = world.part(shape[0]), world.rank
    block = world.backend.empty((first.stop - first.start, *shape[1:]), np.dtype(np.complex64))
    block.fill(1)
    result = direct.forward(block)
    planes, lines = direct._planes(rank), [direct._lines(one, False) for one in range(world.size)]

    def copy() -> None:
        direct._copies.follow()
        for part in planes:
            for other in direct._targets:
                direct._send(other, part, lines[other][0], False)
        for later in range(1, len(lines[rank])):
            for other in direct._targets:
                direct._send(other, direct._mine[0], lines[other][later], False)
        direct._copies.wait(direct._copies.arrived())

    def transform_planes() -> None:
        for part in planes:
            direct._transform_planes(part, block, direct._room)

    def transform_lines() -> None:
        for part in lines[rank]:
            direct._transform_lines(part, direct._room, result)

    works: dict[str, Callable[[], object]] = {
        "planes": transform_planes,
        "lines": transform_lines,
        "copies": copy,
        "allocated": lambda: world.backend.empty(result.shape, result.dtype),
        "transform": lambda: direct.forward(block),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(1e3 * seconds_of(world, work))
    return {name: round(statistics.median(some[1:]), 3) for name, some in times.items()}


if __name__ == "__main__":
    main()
