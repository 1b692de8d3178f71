"""meshrun.matmul on CPU ranks beside NumPy with as many threads in all, taking turns; medians.

    python benchmarks/matmul_ranks.py [--side 4096] [--ranks 2] [--rounds 5] [--dtypes float32,float64]
    [--json FILE]

The ranks hold rows of both factors in memory and one BLAS thread each; NumPy is one process with as many
threads. Who has no turn sleeps: a waiting rank of MPI would take a core. A turn begins when the threads of
the last one, which spin for a while after a product, sleep too. Each product is checked against float64 rows.
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

from meshrun.launch.mpi.launcher import find
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

AS_ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
TUNED = {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_osc": "^ucx"}
POLL = 2e-3  # seconds between two looks for a turn
PAUSE = 0.1  # seconds between two turns: OpenBLAS's threads spin after a product
Words = list[str]


def factors(side: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    return generator.random((side, side), "float32").astype(dtype), generator.random(
        (side, side), "float32"
    ).astype(dtype)


def turns(folder: Path, name: str, multiply, check, before=lambda: None, tell: bool = True) -> None:
    """Multiply when a file says so, and leave the seconds in another."""
    number = 0
    while True:
        while not (folder / f"{name}-{number}").exists():
            if (folder / "end").exists():
                return
            time.sleep(POLL)
        before()
        begin = time.perf_counter()
        found = multiply()
        seconds = time.perf_counter() - begin
        check(found)
        if tell:
            done = folder / f"{name}-{number}.part"
            done.write_text(str(seconds))
            done.rename(folder / f"{name}-{number}.done")
        number += 1


def take_turn(folder: Path, name: str, number: int, process: subprocess.Popen) -> float:
    time.sleep(PAUSE)
    (folder / f"{name}-{number}").touch()
    done = folder / f"{name}-{number}.done"
    while not done.exists():
        if process.poll() is not None:
            raise SystemExit(f"{name} ended with status {process.returncode}")
        time.sleep(POLL)
    return float(done.read_text())


def as_ranks(folder: Path, side: int, dtype: str) -> None:
    import meshrun
    from meshrun.runner.plan.grid import bounds

    world = meshrun.open_world("cpu")
    a, b = factors(side, dtype)
    mine = slice(*bounds(side, world.size, world.rank))
    rows_a, rows_b, checked = a[mine].copy(), b[mine].copy(), a[mine][:3].astype("float64") @ b
    del a, b

    def multiply() -> np.ndarray:
        found = meshrun.matmul(rows_a, rows_b, world=world)
        world.control.barrier()
        return found

    def check(found: np.ndarray) -> None:
        np.testing.assert_allclose(found[:3], checked, rtol=1e-4)

    turns(folder, "ranks", multiply, check, world.control.barrier, world.rank == 0)


def as_numpy(folder: Path, side: int, dtype: str) -> None:
    a, b = factors(side, dtype)
    checked = a[:3].astype("float64") @ b
    turns(
        folder,
        "numpy",
        lambda: np.matmul(a, b),
        lambda found: np.testing.assert_allclose(found[:3], checked, rtol=1e-4),
    )


def measure(side: int, ranks: int, dtype: str, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [sys.executable, __file__, "--side", str(side), "--dtypes", dtype, "--folder", name, "--as"]
        together = [str(find().path), "--oversubscribe", "-n", str(ranks), *script, "ranks"]
        environment = {**os.environ, **AS_ROOT, **TUNED}
        programs = {
            "ranks": subprocess.Popen(together, env=environment),
            "numpy": subprocess.Popen(
                [*script, "numpy"],
                env={**os.environ, "OPENBLAS_NUM_THREADS": str(ranks), "OMP_NUM_THREADS": str(ranks)},
            ),
        }
        times: dict[str, list[float]] = {one: [] for one in programs}
        for number in range(rounds + 1):
            for one, process in programs.items():
                times[one].append(take_turn(folder, one, number, process))
        (folder / "end").touch()
        for process in programs.values():
            process.wait()
    return {one: taken[1:] for one, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="part", choices=("ranks", "numpy"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        {"ranks": as_ranks, "numpy": as_numpy}[options.part](options.folder, options.side, options.dtypes)
        return
    found = {}
    for dtype in options.dtypes.split(","):
        times = measure(options.side, options.ranks, dtype, options.rounds)
        medians = {one: statistics.median(taken) for one, taken in times.items()}
        rate = 2 * options.side**3 / 1e9
        print(
            f"{dtype:8} {options.ranks} ranks {medians['ranks']:.3f} s "
            f"({rate / medians['ranks']:.0f} GFLOP/s)   NumPy {medians['numpy']:.3f} s "
            f"({rate / medians['numpy']:.0f} GFLOP/s)   {medians['ranks'] / medians['numpy']:.2f} of it"
        )
        found[dtype] = times
    if options.json:
        record = {
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "load_average": os.getloadavg(),
            "mpi": str(find().vendor),
            "numpy": np.__version__,
            "side": options.side,
            "ranks": options.ranks,
            "seconds": found,
        }
        write_json(options.json, "matmul_ranks", 1, record)


if __name__ == "__main__":
    main()
