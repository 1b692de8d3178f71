"""The NVLink figures of `meshrun validate --quick` beside nccl-tests' and nvbandwidth's, taking turns.

    python benchmarks/validate_links.py --nccl-tests DIR --nvbandwidth FILE [--ranks 4] [--json FILE]

What is beside what, each of 256 MiB:

pairs copies   both ways between two GPUs by copy engine, every pair; nvbandwidth's bidirectional write, where
               one pair is measured at a time (here all that have no GPU in common): half of the sum.
pairs flows    both ways between two GPUs by NCCL; nccl-tests' sendrecv of all ranks, one to the next.
node ring      all_reduce of all GPUs, bus bandwidth; nccl-tests' all_reduce.

Medians over the rounds; ratios are ours over theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nccl_tests import LAUNCHER, library_first
from nvbandwidth import theirs
from side_by_side import OURS, in_turn, output_of, rows_of, scrubbed

from meshrun.runner.report.record import write_json

CASE = "device_to_device_bidirectional_memcpy_write_ce"
SIZE = 256 << 20
LONGEST = 120.0  # seconds of one program
Figures = dict[str, float]  # GB/s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nccl-tests", type=Path, required=True, metavar="DIR", help="folder of OP_perf")
    parser.add_argument("--nvbandwidth", type=Path, required=True, metavar="FILE", help="the program")
    parser.add_argument("--libnccl", type=Path, metavar="DIR", help="folder of libnccl.so.2, for all")
    parser.add_argument("--launcher", default=LAUNCHER, help=f"of nccl-tests; default: {LAUNCHER}")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    environment = library_first(os.environ, options.libnccl)
    taken: dict[str, list[Any]] = {OURS: [], "theirs": []}
    for number in range(options.rounds):
        for name in in_turn(list(taken), number):
            measure = validated if name == OURS else by_others
            taken[name].append(measure(options, environment))
    (ours, seconds, about), others = zip(*taken[OURS], strict=True), taken["theirs"]
    rows = {
        name: {
            OURS: statistics.median(one[name] for one in ours),
            "theirs": statistics.median(one[name] for one in others),
        }
        for name in others[0]
    }
    print(f"validate --quick: {statistics.median(seconds):.1f} s (most {max(seconds):.1f}), start included")
    for name, row in rows.items():
        ratio = row[OURS] / row["theirs"]
        print(f"{name:14} {row[OURS]:7.1f} {row['theirs']:7.1f} GB/s  {ratio:.3f}")
    if options.json:
        record = {"benchmark": "validate_links", "ranks": options.ranks, "rounds": options.rounds, **facts()}
        record |= {
            "about": about[0],
            "seconds": seconds,
            "rows": rows,
            "taken": {OURS: ours, "theirs": others},
        }
        write_json(options.json, "benchmark", 1, record)


def validated(options: argparse.Namespace, environment: dict[str, str]) -> tuple[Figures, float, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        ranks = ["-n", str(options.ranks)]
        words = [sys.executable, "-m", "meshrun", *ranks, "validate", "--quick", "-J", str(path)]
        begin = time.monotonic()
        output_of("meshrun validate", words, environment, LONGEST)
        seconds = time.monotonic() - begin
        report = json.loads(path.read_text())
    rates = {
        f"{rung['name']} {what}": rate / 1e9
        for rung in report["rungs"]
        for what, rate in rung["rates"].items()
    }
    about = {"environment": report["environment"], "devices": [one["device"] for one in report["members"]]}
    return {name: rates[name] for name in ("pairs copies", "pairs flows", "node ring")}, seconds, about


def by_others(options: argparse.Namespace, environment: dict[str, str]) -> Figures:
    words = [str(options.nvbandwidth), "-j", "-b", str(SIZE >> 20), "-t", CASE]
    text = output_of("nvbandwidth", words, environment, LONGEST)
    *_, total = theirs(json.loads(text[text.index("{") :])["nvbandwidth"])[CASE]
    sums = [rate for row in total for rate in row if rate is not None]
    flows, ring = (seconds_of(options, environment, name) for name in ("sendrecv", "all_reduce"))
    share = 2 * (options.ranks - 1) / options.ranks
    return {
        "pairs copies": statistics.median(sums) / 2,
        "pairs flows": SIZE / flows / 1e9,
        "node ring": SIZE * share / ring / 1e9,
    }


def seconds_of(options: argparse.Namespace, environment: dict[str, str], operation: str) -> float:
    """Of one operation of nccl-tests, out of place."""
    launcher = shlex.split(options.launcher.format(ranks=options.ranks))
    words = [*launcher, str(options.nccl_tests / f"{operation}_perf"), "-b", str(SIZE), "-e", str(SIZE)]
    (row,) = rows_of("nccl-tests", output_of(f"{operation}_perf", words, environment, LONGEST))
    return row.microseconds[0] / 1e6


def facts() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "meshrun": version("meshrun"),
        "command": ["python", *map(scrubbed, sys.argv)],
    }


if __name__ == "__main__":
    main()
