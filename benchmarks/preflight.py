"""How long the check of all ranks takes that comes first in every run, from a barrier to the last rank.

python benchmarks/preflight.py [--ranks 8] [--device cpu] [--rounds 15] [--json FILE]

Each round starts the ranks anew, because a first look is what a run pays for. Beside it stands what comes
before: the launcher, Python, MPI and the choice of devices.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.runner.comm.api import Control
from meshrun.runner.device.api import Backend
from meshrun.runner.report.record import write_json
from meshrun.runner.system.launcher import BY_HAND
from meshrun.runner.world import preload
from meshrun.runner.world.preflight.inspection import preflight
from meshrun.runner.world.world import Rank, open_world


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.begun is not None:
        as_rank(options.device, options.begun)
        return
    launcher = mpi_launcher.find()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as sockets:
            words = [sys.executable, __file__, "--device", options.device, "--begun", str(time.time())]
            done = subprocess.run(
                [*launcher.command(options.ranks), *words],
                env=launcher.environment(options.ranks, os.environ, Path(sockets)),
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        rounds.append(json.loads(done.stdout.splitlines()[-1]))
    names = ("start", "check")
    medians = {name: statistics.median(one[name] for one in rounds) for name in names}
    for name in names:
        worst = max(one[name] for one in rounds)
        print(f"{name:6} median {1e3 * medians[name]:7.1f} ms, worst {1e3 * worst:7.1f} ms")
    if options.json:
        record = {
            "benchmark": "preflight",
            "launcher": str(launcher.vendor),
            "machine": f"{rounds[0]['device']}, {os.cpu_count()} CPUs, {platform.platform()}",
            "python": platform.python_version(),
            "ranks": options.ranks,
            "rounds": rounds,
            "seconds_median": medians,
        }
        write_json(options.json, "benchmark", 1, record)


def as_rank(device: str, begun: float) -> None:
    taken = {"start": 0.0, "check": 0.0}
    preload.start(device)  # as a rank of the command does

    def timed(control: Control, ranks: Sequence[Rank], backend: Backend) -> Sequence[str]:
        control.barrier()
        taken["start"] = time.time() - begun
        begin = time.perf_counter()
        warnings = preflight(BY_HAND)(control, ranks, backend)
        taken["check"] = time.perf_counter() - begin
        return warnings

    world = open_world("cpu" if device == "cpu" else "cuda", check=timed)
    slowest = {name: max(one[name] for one in world.control.allgather(taken)) for name in taken}
    if world.rank == 0:
        print(json.dumps({**slowest, "device": world.backend.device.name}))
    world.close()


if __name__ == "__main__":
    main()
