"""How long the command takes before it works: `--help`, and a run on one rank against `import numpy`.

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

from runner.backend.cpu import CpuBackend
from runner.report.record import write


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
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.rounds + 1):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                times[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    for name, median in medians.items():
        print(f"{name:22} {1e3 * median:6.1f} ms")
    print(
        f"a run beyond numpy     {1e3 * (medians['meshrun run, one rank'] - medians['import numpy']):6.1f} ms"
    )
    if options.json:
        record = {
            "benchmark": "startup",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "python": platform.python_version(),
            "rounds": options.rounds,
            "seconds_median": medians,
        }
        write(record, options.json)


if __name__ == "__main__":
    main()
