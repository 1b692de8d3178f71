"""Time steps of the examples on 1, 2, 4, ... ranks: the same cells on each rank, or the same cells in all.

    python benchmarks/step_scaling.py [--ranks 1 2 4] [--cases heat airflow3d-float16 ...] [--side 16384]
        [--rank-rows N] [--cube 768] [--strong 8192] [--strong-cube 256] [--steps 2000] [--rounds 3]
        [--json FILE]

Each run is `meshrun -n N run ...` as a user types it, and the rate is what its record says of the loop.
Numbers of ranks take turns; rates are medians of several rounds. The JSON is written after each case.

float16       cases of airflow whose populations are stored in half the bytes
weak          efficiency: cells a second of N ranks over N times those of the first number of ranks
strong        speed-up: cells a second of N ranks over those of the first
fraction      of the rate of a copy in the rank's memory, which the run measures after its loop; several
              steps in a kernel go beyond 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.report.record import write_json
from meshrun.runner.system.host_memory import memory_folder

EXAMPLES = Path(__file__).parents[1] / "examples"
COMMAND = [sys.executable, "-m", "meshrun"]


@dataclass(frozen=True)
class Case:
    """One job.

    inputs, outputs: numbers of files. size: option that gives cells along each axis. weak: of each rank;
    otherwise of all ranks together. storage: type in memory, of airflow.
    """

    name: str
    job: str
    inputs: int
    outputs: int
    axes: int
    size: str
    weak: bool = True
    storage: str = "float32"


CASES = [
    Case("heat", f"{EXAMPLES / 'heat.py'}", 1, 1, 2, "side"),
    Case("wave", f"{EXAMPLES / 'wave.py'}", 2, 2, 2, "side"),
    Case("diffusion3d", f"{EXAMPLES / 'diffusion3d.py'}", 2, 1, 3, "cube"),
    Case("heat-strong", f"{EXAMPLES / 'heat.py'}", 1, 1, 2, "strong", weak=False),
    Case("diffusion3d-strong", f"{EXAMPLES / 'diffusion3d.py'}", 2, 1, 3, "strong_cube", weak=False),
    Case("airflow2d", "airflow", 0, 0, 2, "side"),
    Case("airflow3d", "airflow", 0, 0, 3, "cube"),
    Case("airflow2d-float16", "airflow", 0, 0, 2, "side", storage="float16"),
    Case("airflow3d-float16", "airflow", 0, 0, 3, "cube", storage="float16"),
    Case("airflow2d-strong", "airflow", 0, 0, 2, "side", weak=False),
    Case("airflow3d-strong", "airflow", 0, 0, 3, "cube", weak=False),
    Case("airflow2d-float16-strong", "airflow", 0, 0, 2, "side", weak=False, storage="float16"),
    Case("airflow3d-float16-strong", "airflow", 0, 0, 3, "cube", weak=False, storage="float16"),
]


def main() -> None:
    options = arguments()
    rows = []
    for case in CASES:
        if case.name in options.cases:
            rows += measure(case, options)
            # A limit of time may end the cases that follow.
            if options.json:
                about = {"benchmark": "step_scaling", **shown(options), "rows": rows}
                write_json(options.json, "benchmark", 1, about)
    print("case                      ranks  Gcell/s  s/step      fraction  scaling")
    for row in rows:
        rate, fraction = row["cells_per_second"] / 1e9, row["fraction_of_copy"] or float("nan")
        figures = f"{rate:8.2f} {row['seconds_per_step']:11.3e} {fraction:9.3f} {row['scaling']:8.3f}"
        print(f"{row['case']:24} {row['ranks']:6} {figures}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--cases", nargs="+", default=[case.name for case in CASES], choices=[case.name for case in CASES]
    )
    parser.add_argument("--side", type=int, default=16384, help="rows of a rank and columns, two axes")
    parser.add_argument("--rank-rows", type=int, help="rows of a rank, two axes; default: --side")
    parser.add_argument("--cube", type=int, default=768, help="planes of a rank, rows, columns: three axes")
    parser.add_argument("--strong", type=int, default=8192, help="rows and columns of heat-strong")
    parser.add_argument("--strong-cube", type=int, default=256, help="cells per axis of diffusion3d-strong")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def shown(options: argparse.Namespace) -> dict[str, Any]:
    return {key: value for key, value in vars(options).items() if key != "json"}


def measure(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each number of ranks."""
    records: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in options.ranks}
    for _ in range(options.rounds):
        for ranks in options.ranks:
            records[ranks].append(one_run(case, ranks, options))
    rows: list[dict[str, Any]] = []
    for ranks, several in records.items():
        steps = [record["steps"] for record in several]
        seconds = statistics.median(one["seconds"] / (one["steps"] - one["first"]) for one in steps)
        cells = int(np.prod(several[0]["shape"]))
        fractions = [one["fraction_of_copy"] for one in steps if one["fraction_of_copy"]]
        exchanging = [one["exchange_fraction"] for one in steps if one["exchange_fraction"] is not None]
        row = {
            "case": case.name,
            "ranks": ranks,
            "shape": several[0]["shape"],
            "seconds_per_step": seconds,
            "cells_per_second": cells / seconds,
            "fraction_of_copy": statistics.median(fractions) if fractions else None,
            "steps_per_exchange": steps[0]["steps_per_exchange"],
            "exchange_fraction": statistics.median(exchanging) if exchanging else None,
        }
        first = rows[0] if rows else row
        share = ranks / first["ranks"] if case.weak else 1
        rows.append(row | {"scaling": row["cells_per_second"] / first["cells_per_second"] / share})
    return rows


def one_run(case: Case, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run once and return the record."""
    side = getattr(options, case.size)
    rows = options.rank_rows if options.rank_rows and case.weak and case.axes == 2 else side
    shape = (rows * (ranks if case.weak else 1), *(side,) * (case.axes - 1))
    with tempfile.TemporaryDirectory(dir=memory_folder(16 * int(np.prod(shape)))) as folder:
        files = [f"{folder}/in{number}.npy" for number in range(case.inputs)]
        for file in files:
            write_noise(Path(file), shape)
        words: Sequence[str] = [*files, *(f"{folder}/out{number}.npy" for number in range(case.outputs))]
        if case.job == "airflow":
            size = "x".join(map(str, reversed(shape)))
            words = ["none", f"{folder}/film", "--size", size, "--every", str(options.steps)]
            words += ["--lattice", "D2Q9" if case.axes == 2 else "D3Q19", "--length", str(side // 8)]
            words += ["--storage", case.storage]
        command = [*COMMAND, "-n", str(ranks), "run", case.job, *words]
        command += [
            "--steps",
            str(options.steps),
            "--device",
            options.device,
            "--json",
            f"{folder}/record.json",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record: dict[str, Any] = json.loads(Path(folder, "record.json").read_text())
    return record


def write_noise(path: Path, shape: tuple[int, ...]) -> None:
    """Write random numbers in [0, 1), float32; rows repeat, which no step makes use of."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    some = np.random.default_rng(0).random((min(shape[0], 64), *shape[1:]), np.float32)
    for first in range(0, shape[0], len(some)):
        array[first : first + len(some)] = some[: shape[0] - first]


if __name__ == "__main__":
    main()
