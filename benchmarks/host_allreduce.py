"""CPU ranks: `meshrun bench all_reduce` against allreduce_loop.c over the same MPI, taking turns; medians.

    python benchmarks/host_allreduce.py [--ranks 2] [--rounds 9] [--json FILE]

Both sum floats out of place from buffers as large as the largest size; both get the same mpiexec, the
same settings and the same number of calls, after one untimed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import OURS, Failed, header_of, in_turn, output_of, rows_of, shown, spread

from meshrun.launch.mpi.launcher import find
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

THEIRS = "C loop"
# Those of host_laplacian.py: Open MPI's wheel would sleep for a second.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",
}
BENCH = ("bench", "all_reduce", "--device", "cpu", "-f", "2", "-c", "0")
LONGEST = 1800.0  # seconds a program may take
Times = dict[int, float]  # microseconds by size


def main() -> None:
    options = arguments()
    launcher = find()
    sizes = ["-b", options.minbytes, "-e", options.maxbytes, "-n", str(options.calls)]
    times: dict[str, list[Times]] = {OURS: [], THEIRS: []}
    header: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        loop = compiled(launcher.path.with_name("mpicc"), Path(folder))
        start = launcher.command(options.ranks)
        commands = {
            OURS: [*start, str(options.meshrun), *BENCH, *sizes],
            THEIRS: [*start, str(loop), *sizes],
        }
        for number in range(options.rounds):
            for name in in_turn((OURS, THEIRS), number):
                text = output_of(name, commands[name], {**SETTINGS, **os.environ}, LONGEST)
                times[name].append(table(text) if name == OURS else loop_table(text))
                header = header_of(text) if name == OURS else header
    compared = compare(times)
    print(f"{'size (B)':>12}  {OURS + ', us':>34}  {THEIRS + ', us':>34}  {'ratio':>6}")
    for row in compared:
        print(f"{row['size']:12}  {shown(row[OURS]):>34}  {shown(row[THEIRS]):>34}  {row['ratio']:6.3f}")
    if options.json:
        record = {
            "benchmark": "host_allreduce",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "mpi": str(launcher.vendor),
            "ranks": options.ranks,
            "calls": options.calls,
            "rounds": options.rounds,
            "header": header,
            "sizes": compared,
            "microseconds": {
                name: [list(found.values()) for found in rounds] for name, rounds in times.items()
            },
            "versions": {name: version(name) for name in ("meshrun", "mpi4py", "numpy")},
        }
        write_json(options.json, "benchmark", 1, record)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meshrun", type=Path, default=Path(sys.executable).with_name("meshrun"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-b", dest="minbytes", default="1M", metavar="BYTES")
    parser.add_argument("-e", dest="maxbytes", default="256M", metavar="BYTES")
    parser.add_argument("-n", dest="calls", type=int, default=20, metavar="CALLS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def compiled(compiler: Path, folder: Path) -> Path:
    """The loop as a program in `folder`, by the MPI compiler that belongs to the launcher."""
    program = folder / "allreduce_loop"
    source = Path(__file__).with_name("allreduce_loop.c")
    subprocess.run([compiler, "-O2", source, "-o", program], check=True)
    return program


def table(text: str) -> Times:
    """The out-of-place times of meshrun's table."""
    return {row.size: row.microseconds[0] for row in rows_of(OURS, text)}


def loop_table(text: str) -> Times:
    """What the C loop prints: "size time_us" a line."""
    return {int(size): float(time) for size, time in (line.split() for line in text.splitlines())}


def compare(times: Mapping[str, Sequence[Times]]) -> list[dict[str, Any]]:
    """Per size: both programs' microseconds over the rounds, and ours over theirs of medians."""
    sizes = {tuple(found) for rounds in times.values() for found in rounds}
    if len(sizes) != 1:
        raise Failed(f"the programs measured different sizes: {sizes}")
    compared = []
    for size in times[THEIRS][0]:
        ours, theirs = (spread(found[size] for found in times[name]) for name in (OURS, THEIRS))
        compared.append(
            {"size": size, "ratio": ours["median"] / theirs["median"], OURS: ours, THEIRS: theirs}
        )
    return compared


if __name__ == "__main__":
    try:
        main()
    except Failed as reason:
        sys.exit(str(reason))
