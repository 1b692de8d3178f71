"""Whole processes on CPUs: `meshrun run laplacian` against hand_written.py, taking turns; medians.

python benchmarks/host_laplacian.py [--side 4096] [--ranks 2] [--rounds 9] [--json FILE]
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

from launch.mpiexec import find
from runner.backend.cpu import CpuBackend
from runner.report.record import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ranks = str(options.ranks)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.npy")
        np.save(source, np.random.default_rng(0).random((options.side, options.side), np.float32))
        ours, theirs = Path(folder, "ours.npy"), Path(folder, "theirs.npy")
        meshrun = [Path(sys.executable).with_name("meshrun"), "-n", ranks]
        by_hand = [*launcher(), "-n", ranks, sys.executable, Path(__file__).with_name("hand_written.py")]
        commands = {
            "meshrun": [*meshrun, "run", "laplacian", source, ours, "--device", "cpu"],
            "hand_written": [*by_hand, source, theirs],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        results: dict[str, int] = {}
        for _ in range(options.rounds + 1):
            for name, command in commands.items():
                # Each writes a new file, and no earlier one is still on its way to the disk.
                ours.unlink(missing_ok=True)
                theirs.unlink(missing_ok=True)
                os.sync()
                begin = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                times[name].append(time.perf_counter() - begin)
                results[name] = zlib.crc32(np.load(ours if name == "meshrun" else theirs).tobytes())
            assert len(set(results.values())) == 1, "the results differ"
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    ratio = medians["meshrun"] / medians["hand_written"]
    for name, median in medians.items():
        print(f"{name:13} {1e3 * median:7.1f} ms")
    print(f"ratio         {ratio:7.2f}")
    if options.json:
        record = {
            "benchmark": "host_laplacian",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "side": options.side,
            "ranks": options.ranks,
            "rounds": options.rounds,
            "seconds": {name: taken[1:] for name, taken in times.items()},
            "seconds_median": medians,
            "ratio": ratio,
            "versions": {name: version(name) for name in ("meshrun", "mpi4py", "numpy")},
        }
        write(record, options.json)


def launcher() -> list[str]:
    """The same mpiexec, with the same settings, that `meshrun -n` uses."""
    as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    os.environ.update({"OMPI_MCA_btl": "^ofi", **dict.fromkeys(as_root, "1")})
    return [str(find().path), "--bind-to", "none", "--oversubscribe"]


if __name__ == "__main__":
    main()
