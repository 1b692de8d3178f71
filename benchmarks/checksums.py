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
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

import meshrun
from launch.mpi import launcher as mpi_launcher
from launch.mpi.rank_command import PROGRAM
from runner.comm.checksum.checked import Checksum
from runner.device.cpu import CpuBackend
from runner.plan.step_options import StepOptions
from runner.report.record import write_json
from runner.run.execute import Options, run
from runner.world.world import open_world, with_checksums

CHOICES: tuple[Checksum, ...] = get_args(Checksum)
OPTIONS = ("side", "steps", "bytes", "ranks", "rounds")


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat(block, *, rate: float = 0.2):
    """Take a step. rate: of diffusion."""
    centre = block[1:-1, 1:-1]
    sides = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    return centre + block.dtype.type(rate) * (sides - 4 * centre)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=1 << 24)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank(options)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        np.save(Path(name, "in.npy"), np.random.default_rng(0).random((options.side,) * 2, np.float32))
        launcher = mpi_launcher.find()
        path = {"PYTHONPATH": str(Path(__file__).parents[1])}
        words = [f"--{key}={getattr(options, key)}" for key in OPTIONS]
        subprocess.run(
            [*launcher.command(options.ranks), PROGRAM[0], __file__, *words, f"--as-rank={name}"],
            env={**launcher.environment(options.ranks, os.environ), **path},
            check=True,
        )
        rows: dict[str, dict[str, list[float]]] = json.loads(Path(name, "rows.json").read_text())
    show(rows)
    if options.json:
        about = {name: getattr(options, name) for name in OPTIONS}
        machine = f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}"
        load = os.getloadavg()[0]
        values = {"benchmark": "checksums", "machine": machine, "load": load, **about, "seconds": rows}
        write_json(options.json, "benchmark", 1, values)


def rank(options: argparse.Namespace) -> None:
    """Do each work in turn with each choice; rank 0 writes what it measured."""
    folder: Path = options.as_rank
    world = open_world("cpu", oversubscribe=True)
    array = np.random.default_rng(world.rank).random(options.bytes // 4, np.float32)
    parts = np.array_split(array, world.size)
    received = [np.empty_like(parts[world.rank]) for _ in parts]

    def steps(choice: Checksum) -> None:
        chosen = Options(device="cpu", fuse="off", checksum=choice, steps=StepOptions(steps=options.steps))
        run(heat, folder / "in.npy", folder / "out.npy", {}, chosen, world=world)

    worlds = {choice: with_checksums(world, choice) for choice in CHOICES}
    works: dict[str, Callable[[Checksum], Any]] = {
        "steps": steps,
        "all_to_all": lambda choice: worlds[choice].all_to_all(parts, out=received),
        "all_reduce": lambda choice: worlds[choice].all_reduce(array, "max"),
    }
    rows: dict[str, dict[str, list[float]]] = {name: {one: [] for one in CHOICES} for name in works}
    for turn in range(options.rounds + 1):
        for name, work in works.items():
            # Each choice is first as often as the others.
            for choice in (*CHOICES[turn % len(CHOICES) :], *CHOICES[: turn % len(CHOICES)]):
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
        (folder / "rows.json").write_text(json.dumps(rows))
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
