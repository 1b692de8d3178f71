"""How long the command takes before it works: `--help`, a run on one rank against `import numpy`, and bench's
first line and first row on four ranks.

python benchmarks/startup.py [--rounds 15] [--json FILE]
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
from pathlib import Path

import numpy as np

from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

BENCH = ("meshrun bench, 4 ranks: first line", "meshrun bench, 4 ranks: first row")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    meshrun = str(Path(sys.executable).with_name("meshrun"))
    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder, "in.npy")), str(Path(folder, "out.npy"))
        np.save(source, np.ones((8, 8), np.float32))
        commands = {
            "meshrun --help": [meshrun, "--help"],
            "import numpy": [sys.executable, "-c", "import numpy"],
            "meshrun run, one rank": [meshrun, "run", "laplacian", source, target, "--device", "cpu"],
        }
        bench = [meshrun, "-n", "4", "bench", "all_reduce", "--device", "cpu"]
        times: dict[str, list[float]] = {name: [] for name in [*commands, *BENCH]}
        for _ in range(options.rounds + 1):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                times[name].append(time.perf_counter() - begin)
            for name, taken in first_lines(bench).items():
                times[name].append(taken)
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    beyond = medians["meshrun run, one rank"] - medians["import numpy"]
    for name, median in {**medians, "a run beyond numpy": beyond}.items():
        print(f"{name:36} {1e3 * median:6.1f} ms")
    if options.json:
        record = {
            "benchmark": "startup",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "python": platform.python_version(),
            "rounds": options.rounds,
            "seconds_median": medians,
        }
        write_json(options.json, "benchmark", 1, record)


def first_lines(command: list[str]) -> dict[str, float]:
    """Seconds until the command, here with the sizes that it has by default, prints; it is then ended."""
    begin, found = time.perf_counter(), dict[str, float]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found.setdefault(BENCH[0], time.perf_counter() - begin)
            if not line.startswith("#"):
                found.setdefault(BENCH[1], time.perf_counter() - begin)
                break
        process.terminate()
        process.stdout.read()
    return found


if __name__ == "__main__":
    main()
