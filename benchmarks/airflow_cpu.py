"""Two CPU ranks of `meshrun run airflow` beside textbook lattice-Boltzmann steps in NumPy, in turn.

    python benchmarks/airflow_cpu.py [--size WIDTHxHEIGHT] [--steps N] [--rounds N] [--json FILE]

The textbook's: D2Q9, one relaxation time, numpy.roll for streaming, bounce-back on the cells of the same
cylinder, float32, one process (NumPy's element by element work takes one core). meshrun's: the same domain,
two relaxation times, with inlet, outflow and walls without friction, once with the textbook's cells of the
cylinder (`--surface cells`) and once with its exact surface, the default. Both leave out the start: the first
steps of the textbook are not timed, and meshrun's rate is that of its loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.report.record import write_json

VELOCITIES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, -1), (-1, 1))
WEIGHTS = (4 / 9, *(1 / 9,) * 4, *(1 / 36,) * 4)
OPPOSITE = (0, 3, 4, 1, 2, 7, 8, 5, 6)
WARM = 3  # steps before those that are timed


def textbook(width: int, height: int, steps: int) -> float:
    """Return cells times steps a second."""
    rows, columns = np.mgrid[:height, :width]
    solid = (rows - height / 2) ** 2 + (columns - width / 4) ** 2 < (height / 16) ** 2
    speed, omega = np.float32(0.1), np.float32(1.7)
    f = np.stack([np.full((height, width), w * (1 + 3 * e[1] * speed), np.float32)
                  for e, w in zip(VELOCITIES, WEIGHTS, strict=True)])  # fmt: skip
    for step in range(steps + WARM):
        if step == WARM:
            begin = time.perf_counter()
        for n, e in enumerate(VELOCITIES):
            f[n] = np.roll(f[n], e, (0, 1))
        back = f[:, solid][list(OPPOSITE)]
        density = f.sum(axis=0)
        v = (f[2] + f[5] + f[6] - f[4] - f[7] - f[8]) / density
        u = (f[1] + f[5] + f[8] - f[3] - f[6] - f[7]) / density
        square = np.float32(1.5) * (u * u + v * v)
        for n, (e, w) in enumerate(zip(VELOCITIES, WEIGHTS, strict=True)):
            along = np.float32(3) * (e[0] * v + e[1] * u)
            balance = np.float32(w) * density * (1 + along + np.float32(0.5) * along * along - square)
            f[n] += omega * (balance - f[n])
        f[:, solid] = back
    seconds = time.perf_counter() - begin
    if not np.isfinite(f).all():
        raise SystemExit("the textbook's flow broke down")
    return width * height * steps / seconds


def meshrun(width: int, height: int, steps: int, ranks: int, surface: str) -> float:
    """Return cells times steps a second, of the loop of a run."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.json"
        command = [sys.executable, "-m", "meshrun", "-n", str(ranks), "run", "airflow", "cylinder"]
        command += [f"{folder}/film", "--size", f"{width}x{height}", "--reynolds", "150", "--device", "cpu"]
        command += ["--steps", str(steps), "--every", str(10**9), "--forces-every", "100"]
        command += ["--surface", surface]
        subprocess.run([*command, "--json", str(record)], check=True, capture_output=True)
        found: dict[str, Any] = json.loads(record.read_text())
        return float(found["steps"]["cells_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1024x512")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    runs = {
        f"meshrun, {surface}, {ranks} rank{'s' if ranks > 1 else ''}": (ranks, surface)
        for surface in ("cells", "interpolated")
        for ranks in (1, 2)
    }
    rates: dict[str, list[float]] = {name: [] for name in ("textbook", *runs)}
    for _ in range(options.rounds):
        rates["textbook"].append(textbook(width, height, max(options.steps // 20, 5)))
        for name, (ranks, surface) in runs.items():
            rates[name].append(meshrun(width, height, options.steps, ranks, surface))
        print({name: f"{found[-1] / 1e6:.1f} Mcell/s" for name, found in rates.items()}, flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"{name:30} {rate / 1e6:8.1f} Mcell/s  {rate / medians['textbook']:.1f} times the textbook's")
    if options.json:
        facts = {"size": options.size, "steps": options.steps, "rates": rates, "medians": medians}
        write_json(options.json, "benchmark", 1, {"benchmark": "airflow_cpu", **facts})


if __name__ == "__main__":
    main()
