"""Where the time of a direct Fourier plan goes: each stage alone, copies alone, and all together.

    mpirun --bind-to none -n 2 python benchmarks/fourier_stages.py [--shape 1024 1024 1024]
        [--rooms whole compact] [--parts 8 16] [--early 0.5 0.75] [--later 2 4]
        [--device cuda] [--json FILE]

A row for each direction, kind of room, and value of the options: planes, lines and copies of `FourierPlan`'s
transform, each by itself, in the parts and the order of the transform; then the transform. Milliseconds of
the slowest rank, medians; `allocated` is the time of a result's memory, which the transform includes. The
first rows are of messages. What the links need at least is the all-to-all of transforms_device.py.

--parts, --early and --later take the place of PARTS, EARLY and LATER in jobs/transforms/direct_fourier.py, of
both directions. --device cpu tries the script, by messages only.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from transforms_device import random_block, seconds_of

import meshrun
from meshrun.jobs.transforms import direct_fourier
from meshrun.jobs.transforms.direct_fourier import DirectFourier
from meshrun.jobs.transforms.fourier_plan import open_direct_fourier
from meshrun.runner.plan.grid import bounds
from meshrun.runner.report.record import write_json

ROUNDS = 7  # of which the first one connects and allocates
KIND = np.dtype(np.complex64)
Times = dict[str, float]


def main() -> None:
    options = arguments()
    world = meshrun.open_world(options.device)
    shape, rows = tuple(options.shape), list[dict[str, Any]]()

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        if world.rank == 0:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            if options.json:
                about = {"benchmark": "fourier_stages", "ranks": world.size, "shape": list(shape)}
                write_json(options.json, "benchmark", 1, {**about, "rows": rows})

    expected = by_messages(world, shape, add)
    choices = product(
        options.rooms,
        options.parts or [direct_fourier.PARTS],
        [(one, one) for one in options.early] or [direct_fourier.EARLY],
        [(one, one) for one in options.later] or [direct_fourier.LATER],
    )
    for room, parts, early, later in choices:
        direct_fourier.PARTS, direct_fourier.EARLY, direct_fourier.LATER = parts, early, later
        for inverse, row in by_copies(world, shape, room == "compact", expected):
            chosen = {"room": room, "parts": parts, "early": early[inverse], "later": later[inverse]}
            add({"inverse": inverse, **chosen, **row})
    world.close()


def by_messages(world: Any, shape: tuple[int, ...], add: Callable[[dict[str, Any]], None]) -> list[Any]:
    """Return some of the results of both directions."""
    found = []
    with meshrun.FourierPlan(world, shape, KIND, exchange="messages") as plan:
        for inverse, work in enumerate((plan.forward, plan.inverse)):
            block = random_block(world, shape, inverse)
            add({"inverse": inverse, **medians(world, {"messages": partial(work, block)})})
            found.append(some_of(work(block)))
            del block
    world.backend.release_memory()
    return found


def by_copies(
    world: Any, shape: tuple[int, ...], compact: bool, expected: list[Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield 0 and 1, for the inverse, and figures. Results are checked before and after the measurement."""
    scales = 1.0, 1 / math.prod(shape)
    direct = open_direct_fourier(world, shape, KIND, scales, compact=compact)
    if isinstance(direct, str):
        yield 0, {"reason": direct}
        return
    for inverse in (0, 1):
        check(world, direct, shape, inverse, expected[inverse])
        times = medians(world, stages(world, direct, shape, bool(inverse)))
        check(world, direct, shape, inverse, expected[inverse])
        yield inverse, times
    direct.close()
    del direct
    world.backend.release_memory()


def check(world: Any, direct: DirectFourier, shape: tuple[int, ...], inverse: int, expected: Any) -> None:
    """End the script if a transform's result is not that of messages."""
    block = random_block(world, shape, inverse)
    some = some_of(direct.inverse(block) if inverse else direct.forward(block))
    if not float(abs(some - expected).max()) < 1e-5 * float(abs(expected).max()):
        raise SystemExit(f"rank {world.rank}: wrong results")


def some_of(block: Any) -> Any:
    return block[tuple(slice(None, None, 7) for _ in block.shape)].copy()


def stages(
    world: Any, direct: DirectFourier, shape: tuple[int, ...], inverse: bool
) -> dict[str, Callable[[], object]]:
    """Return each stage of a transform, and the transform."""
    block, result = (random_block(world, shape, split) for split in ((1, 0) if inverse else (0, 1)))
    everyone = range(world.size)
    planes = [direct._planes(rank) for rank in everyone]
    lines = [direct._lines(rank, inverse) for rank in everyone]
    whole = [bounds(shape[0], world.size, rank) for rank in everyone]
    (of_planes, of_lines), room = ((result, block) if inverse else (block, result)), direct._room

    def transform_planes() -> None:
        for some in planes[world.rank]:
            direct._transform_planes(some, *((room, of_planes) if inverse else (of_planes, room)))

    def transform_lines() -> None:
        for some in lines[world.rank]:
            direct._transform_lines(some, *((of_lines, room) if inverse else (room, of_lines)))

    def send(rank: int, part: int, late: int) -> None:
        """Send a rank a part of planes, or with `late` of all planes, of the lines that go early or late."""
        mine, other = (rank, world.rank) if inverse else (world.rank, rank)
        direct._send(rank, whole[mine] if late else planes[mine][part], lines[other][late], inverse)

    early = [(part, 0) for part in range(direct._parts)]
    late = [(0, part) for part in range(1, len(lines[world.rank]))]

    def copy() -> None:
        direct._copies.follow()
        for part in late + early if inverse else early + late:
            for rank in direct._targets:
                send(rank, *part)
        direct._copies.wait(direct._copies.arrived())

    return {
        "planes": transform_planes,
        "lines": transform_lines,
        "copies": copy,
        "allocated": lambda: world.backend.empty(result.shape, result.dtype),
        "transform": lambda: (direct.inverse if inverse else direct.forward)(block),
    }


def medians(world: Any, works: dict[str, Callable[[], object]]) -> Times:
    """Return the milliseconds of each work; they are called in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(1e3 * seconds_of(world, work))
    return {name: round(statistics.median(some[1:]), 3) for name, some in times.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs="+", default=[1024, 1024, 1024])
    parser.add_argument("--rooms", nargs="+", choices=("whole", "compact"), default=["whole", "compact"])
    parser.add_argument("--parts", type=int, nargs="+", default=[])
    parser.add_argument("--early", type=float, nargs="+", default=[])
    parser.add_argument("--later", type=int, nargs="+", default=[])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
