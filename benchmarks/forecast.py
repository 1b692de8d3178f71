"""What `meshrun plan` foresaw of a run beside what the run took, after `meshrun plan --calibrate`.

    python benchmarks/forecast.py --dir /dev/shm [--ranks 1] [--device cuda] [--gib 4] [--rounds 5]
        [--json FILE]

The calibration is made first and kept apart from the user's own. Each round runs every case once, as a user
would type it; the file is in the page cache. fraction: seconds foreseen over seconds taken, from the first
byte read to the last one written; 1 is a perfect forecast, and medians of the rounds are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.report.record import write_json

COLUMNS = 32768
CASES: dict[str, tuple[str, ...]] = {
    "laplacian": ("laplacian",),
    "2 * x + 1": ("elementwise", "--expression", "2 * x + 1"),
    "convolve, 3 x 3": ("convolve", "--kernel", "1 2 1; 2 4 2; 1 2 1"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        found = measured(Path(name), options)
    for case, rows in found["cases"].items():
        print(
            f"{case:28} foreseen {statistics.median(r['forecast_seconds'] for r in rows):7.3f} s, took "
            f"{statistics.median(r['seconds'] for r in rows):7.3f} s, fraction "
            f"{statistics.median(r['fraction'] for r in rows):.2f} "
            f"({min(r['fraction'] for r in rows):.2f} to {max(r['fraction'] for r in rows):.2f})"
        )
    if options.json:
        write_json(options.json, "benchmark", 1, found)


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every case's `plan` rows of "run", a list of rounds each; and what they ran on."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}

    def meshrun(*words: str) -> None:
        program = [sys.executable, "-m", "meshrun", *words]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)

    meshrun("plan", "--calibrate", "--at", str(folder))
    source, target, told = folder / "in.npy", folder / "out.npy", folder / "record.json"
    rows = max(1, int(options.gib * (1 << 30)) // (4 * COLUMNS))
    array = np.lib.format.open_memmap(source, "w+", np.float32, (rows, COLUMNS))
    for row in range(0, rows, 1024):
        array[row : row + 1024] = np.random.default_rng(row).random((len(array[row : row + 1024]), COLUMNS))
    del array
    cases: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    record: dict[str, Any] = {}
    for _ in range(options.rounds):
        for case, (job, *words) in CASES.items():
            target.unlink(missing_ok=True)
            files = str(source), str(target), "--json", str(told), "--device", options.device
            meshrun("-n", str(options.ranks), "run", job, *files, *words)
            record = json.loads(told.read_text())
            cases[case].append(next(row for row in record["plan"] if row["stage"] == "run"))
    return {
        "benchmark": "forecast",
        "ranks": options.ranks,
        "shape": [rows, COLUMNS],
        "dtype": "float32",
        "devices": record["devices"],
        "versions": record["versions"],
        "rates": json.loads((folder / "config" / "meshrun" / "rates.json").read_text()),
        "cases": cases,
    }


if __name__ == "__main__":
    main()
