"""What the scripts share that time steps of heat on CPU ranks which they start themselves. Not a script."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.report.record import write_json
from meshrun.runner.run.execute import Options, run


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat(block, *, rate: float = 0.2):
    """Take a step. rate: of diffusion."""
    centre = block[1:-1, 1:-1]
    sides = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    return centre + block.dtype.type(rate) * (sides - 4 * centre)


def parse(text: str, more: dict[str, int] | None = None) -> argparse.Namespace:
    """Parse the command line. text: the script's docstring. more: further options and their defaults.

    `measured` of the result has the names of the options that say what was measured; `as_rank` is the folder
    of a rank that `start_ranks` started, else None.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    defaults = {"side": 2048, "steps": 200, **(more or {}), "ranks": 2, "rounds": 11}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(namespace=argparse.Namespace(measured=tuple(defaults)))


def start_ranks(options: argparse.Namespace, folder: str) -> None:
    """Run this script once on each rank, with --as-rank=`folder`, which has the steps' input."""
    np.save(Path(folder, "in.npy"), np.random.default_rng(0).random((options.side,) * 2, np.float32))
    launcher = mpi_launcher.find()
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    words = [f"--{key}={getattr(options, key)}" for key in options.measured]
    subprocess.run(
        [*launcher.command(options.ranks), PROGRAM[0], sys.argv[0], *words, f"--as-rank={folder}"],
        env={**launcher.environment(options.ranks, os.environ), **path},
        check=True,
    )


def take_steps(options: argparse.Namespace, world: meshrun.World, **others: Any) -> None:
    """Take the steps in a rank, from file to file. others: further options of the run."""
    folder = options.as_rank
    chosen = Options(device="cpu", fuse="off", steps=StepOptions(steps=options.steps), **others)
    run(heat, folder / "in.npy", folder / "out.npy", {}, chosen, world=world)


def write(options: argparse.Namespace, benchmark: str, values: dict[str, Any]) -> None:
    """Write --json, if it was given."""
    if options.json:
        about = {name: getattr(options, name) for name in options.measured}
        machine = f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}"
        write_json(
            options.json, "benchmark", 1, {"benchmark": benchmark, "machine": machine, **about, **values}
        )
