"""Time steps on CPUs: `meshrun run --steps` beside a program written for the purpose, and beside Dask.

    python benchmarks/steps_host.py [--side 4096] [--steps 200] [--ranks 2] [--rounds 3] [--json FILE]

A five-point stencil over float32, from a .npy file to a .npy file, each method a command of its own with its
start. The programs of meshrun and mpi4py are those of peers/programs. The methods take turns; figures are
medians of the wall seconds of the commands.

meshrun: `meshrun -n RANKS run heat_meshrun.py IN OUT --steps STEPS`: compiled, the library kept by the first
round.
called: the same with `--fuse off`: the function is called with NumPy.
mpi4py: `mpirun -n RANKS python heat_mpi4py.py IN OUT STEPS`: NumPy with a block of rows for each rank, two
Sendrecv a step and the same expression over the whole block.
dask: map_overlap for each step in one graph, a chunk of rows for each worker thread. Needs the package dask.
small: `meshrun -n RANKS run` on 886 x 886 (3 MB), 100 steps.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from meshrun.runner.report.record import write_json

PROGRAMS = Path(__file__).parent / "peers" / "programs"
DASK = """import sys
import dask
import dask.array as da
import numpy as np
dask.config.set(scheduler="threads", num_workers=int(sys.argv[4]))
whole = np.load(sys.argv[1])
field = da.from_array(whole, chunks=(-(-whole.shape[0] // int(sys.argv[4])), whole.shape[1]))
def heat(block):
    centre = block[1:-1, 1:-1]
    sides = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    return centre + np.float32(0.2) * (sides - 4 * centre)
for _ in range(int(sys.argv[3])):
    field = da.map_overlap(heat, field, depth=1, boundary="nearest", trim=False, dtype=whole.dtype,
                           chunks=field.chunks)
np.save(sys.argv[2], field.compute())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for file in ("heat_meshrun.py", "heat_mpi4py.py"):
            shutil.copy(PROGRAMS / file, folder)
        (folder / "with_dask.py").write_text(DASK)
        random = np.random.default_rng(0)
        np.save(folder / "in.npy", random.random((options.side, options.side), dtype=np.float32))
        np.save(folder / "small.npy", random.random((886, 886), dtype=np.float32))
        rows = measure(folder, options.side, options.steps, options.ranks, options.rounds)
    if options.json:
        about = {name: getattr(options, name) for name in ("side", "steps", "ranks", "rounds")}
        write_json(options.json, "benchmark", 1, {"benchmark": "steps_host", **about, "rows": rows})


def measure(folder: Path, side: int, steps: int, ranks: int, rounds: int) -> list[dict[str, object]]:
    here = Path(sys.executable).parent
    meshrun = [str(here / "meshrun"), "-n", str(ranks), "run", "heat_meshrun.py"]
    mpirun = [str(here / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
    launch = [*mpirun, "-n", str(ranks), sys.executable]
    methods = {
        "meshrun": [*meshrun, "in.npy", "meshrun.npy", "--steps", str(steps)],
        "called": [*meshrun, "in.npy", "called.npy", "--steps", str(steps), "--fuse", "off"],
        "mpi4py": [*launch, "heat_mpi4py.py", "in.npy", "mpi4py.npy", str(steps)],
        "small": [*meshrun, "small.npy", "small-out.npy", "--steps", "100"],
    }
    if find_spec("dask"):
        methods["dask"] = [sys.executable, "with_dask.py", "in.npy", "dask.npy", str(steps), str(ranks)]
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, command in methods.items():
            begin = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - begin)
    expected = np.load(folder / "meshrun.npy")
    np.testing.assert_array_equal(np.load(folder / "called.npy"), expected)
    for name in ("mpi4py", "dask"):
        if name in methods:
            np.testing.assert_allclose(np.load(folder / f"{name}.npy"), expected, rtol=1e-4)
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        rows.append({"method": name, "seconds": statistics.median(times), "all": times})
        print(f"{name:10} {statistics.median(times):8.2f} s", flush=True)
    return rows


if __name__ == "__main__":
    main()
