"""What `--checksum` costs on CPU ranks: the same work with off, sample and full in turn.

    python benchmarks/checksums.py [--side 2048] [--steps 200] [--bytes 16777216] [--ranks 2]
                                   [--rounds 11] [--json FILE]

steps: five-point time steps called with NumPy on SIDE x SIDE float32, an exchange of halos each step.
all_to_all: BYTES of float32 from each rank, of which each other rank gets an equal part.
all_reduce: the largest of the same array, elementwise.

The three take turns in the same processes; medians of rank 0's seconds, and the quotient of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from heat_ranks import parse, start_ranks, take_steps, write
from side_by_side import in_turn

from meshrun.runner.options.choices import Checksum
from meshrun.runner.world.world import open_world, with_checksums

CHOICES: tuple[Checksum, ...] = get_args(Checksum)


def main() -> None:
    options = parse(__doc__, {"bytes": 1 << 24})
    if options.as_rank:
        return rank(options)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        start_ranks(options, name)
        rows: dict[str, dict[str, list[float]]] = json.loads(Path(name, "rows.json").read_text())
    show(rows)
    write(options, "checksums", {"load": os.getloadavg()[0], "seconds": rows})


def rank(options: argparse.Namespace) -> None:
    """Do each work in turn with each choice; rank 0 writes what it measured."""
    world = open_world("cpu", oversubscribe=True)
    array = np.random.default_rng(world.rank).random(options.bytes // 4, np.float32)
    parts = np.array_split(array, world.size)
    received = [np.empty_like(parts[world.rank]) for _ in parts]

    worlds = {choice: with_checksums(world, choice) for choice in CHOICES}
    works: dict[str, Callable[[Checksum], Any]] = {
        "steps": lambda choice: take_steps(options, world, checksum=choice),
        "all_to_all": lambda choice: worlds[choice].all_to_all(parts, out=received),
        "all_reduce": lambda choice: worlds[choice].all_reduce(array, "max"),
    }
    rows: dict[str, dict[str, list[float]]] = {name: {one: [] for one in CHOICES} for name in works}
    for turn in range(options.rounds + 1):
        for name, work in works.items():
            # Each choice is first as often as the others.
            for choice in in_turn(CHOICES, turn):
                # One message in 64 is checked: with several calls, some are.
                calls = 1 if name == "steps" else 64
                world.control.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    work(choice)
                world.control.barrier()
                if turn:
                    rows[name][choice].append((time.perf_counter() - begin) / calls)
    if world.rank == 0:
        (options.as_rank / "rows.json").write_text(json.dumps(rows))
    world.close()


def show(rows: dict[str, dict[str, list[float]]]) -> None:
    for name, by_choice in rows.items():
        off = statistics.median(by_choice["off"])
        for choice, seconds in by_choice.items():
            median = statistics.median(seconds)
            low, high = 1e3 * min(seconds), 1e3 * max(seconds)
            print(
                f"{name:10} {choice:8} {1e3 * median:9.3f} ms ({low:.3f} .. {high:.3f}) of {len(seconds)}, "
                f"{median / off:.3f} of off"
            )
    print(f"load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
