"""Whole processes on CPUs: `meshrun run laplacian` against hand_written.py, taking turns; medians.

    python benchmarks/host_laplacian.py [--side 4096] [--ranks 2] [--rounds 9] [--json FILE]

The script by hand is started twice a round: as one types it, `mpiexec -n 2 python hand_written.py`,
and with the setting that keeps Open MPI's wheel from sleeping for a second, which `meshrun -n` makes
and a person has to know of. With another MPI the two are the same.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np

from meshrun.launch.mpi.launcher import find
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

AS_ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
TUNED = {"OMPI_MCA_btl": "^ofi"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ranks = str(options.ranks)
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.npy"), Path(folder, "out.npy")
        np.save(source, np.random.default_rng(0).random((options.side, options.side), np.float32))
        ours = [Path(sys.executable).with_name("meshrun"), "-n", ranks, "run", "laplacian", source, target]
        theirs = [find().path, "-n", ranks, sys.executable, here.with_name("hand_written.py"), source, target]
        commands: dict[str, tuple[list[object], dict[str, str]]] = {
            "meshrun": ([*ours, "--device", "cpu"], {}),
            "by hand, as typed": (theirs, AS_ROOT),
            "by hand, tuned MPI": (theirs, {**AS_ROOT, **TUNED}),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        results = set()
        for _ in range(options.rounds + 1):
            for name, (command, settings) in commands.items():
                # Each writes a new file, and no earlier one is still on its way to the disk.
                target.unlink(missing_ok=True)
                os.sync()
                environment = {**os.environ, **settings}
                begin = time.perf_counter()
                subprocess.run(
                    [str(word) for word in command], check=True, capture_output=True, env=environment
                )
                times[name].append(time.perf_counter() - begin)
                results.add(zlib.crc32(np.load(target).tobytes()))
        assert len(results) == 1, "the results differ"
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    ratios = {name: medians["meshrun"] / median for name, median in medians.items()}
    for name, median in medians.items():
        print(f"{name:20} {1e3 * median:7.1f} ms   meshrun takes {ratios[name]:.2f} of it")
    if options.json:
        record = {
            "benchmark": "host_laplacian",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "mpi": str(find().vendor),
            "side": options.side,
            "ranks": options.ranks,
            "rounds": options.rounds,
            "seconds": {name: taken[1:] for name, taken in times.items()},
            "seconds_median": medians,
            "ratio": ratios,
            "versions": {name: version(name) for name in ("meshrun", "mpi4py", "numpy")},
        }
        write_json(options.json, "benchmark", 1, record)


if __name__ == "__main__":
    main()
