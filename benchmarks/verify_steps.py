"""`--verify full` of runs that take steps, beside the runs themselves, and beside another revision's.

    python benchmarks/verify_steps.py [--side 4096] [--steps 1,10,100] [--rounds 3] [--against DIR]
        [--json FILE]

A five-point stencil over float32, from a .npy file to a .npy file in /dev/shm, on one rank. On a GPU the
results of a run differ from NumPy's in the last place, so that each cell is compared with a tolerance.
run: wall seconds of the command without those of the verification. verify: seconds of the verification.
Figures are medians; revisions take turns. against: a clone with another revision.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from meshrun.runner.report.record import write_json

HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--steps", default="1,10,100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = [int(word) for word in options.steps.split(",")]
    revisions = {"this": HERE} | ({} if options.against is None else {"other": options.against.resolve()})
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        shutil.copy(HERE / "benchmarks" / "peers" / "programs" / "heat_meshrun.py", folder / "heat.py")
        random = np.random.default_rng(0)
        np.save(folder / "in.npy", random.random((options.side, options.side), dtype=np.float32))
        for _ in range(options.rounds):
            for steps in counts:
                for revision, place in revisions.items():
                    seconds.setdefault((revision, steps), []).append(measure(folder, place, steps))
    rows = []
    for (revision, steps), pairs in seconds.items():
        run, verify = (statistics.median(values) for values in zip(*pairs, strict=True))
        rows.append({"revision": revision, "steps": steps, "run_seconds": run, "verify_seconds": verify})
        print(f"{revision:6} {steps:5} steps: run {run:6.2f} s, verify {verify:6.2f} s, {verify / run:.1f}")
    if options.json:
        about = {"benchmark": "verify_steps", "side": options.side, "rounds": options.rounds}
        write_json(options.json, "benchmark", 1, {**about, "cores": os.cpu_count(), "rows": rows})


def measure(folder: Path, revision: Path, steps: int) -> tuple[float, float]:
    """Return the seconds of one run, and of its verification."""
    command = [
        sys.executable,
        str(revision / "meshrun" / "__main__.py"),
        "run",
        "heat.py",
        "in.npy",
        "out.npy",
    ]
    command += ["--steps", str(steps), "--verify", "full", "--json", "record.json"]
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(revision)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    wall = time.perf_counter() - begin
    verify: float = json.loads((folder / "record.json").read_text())["verify"]["seconds"]
    return wall - verify, verify


if __name__ == "__main__":
    main()
