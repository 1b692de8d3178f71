"""`meshrun bench OP` against nccl-tests' OP_perf on the GPUs of one machine, taking turns; medians per size.

    python benchmarks/nccl_tests.py --nccl-tests DIR --libnccl DIR [--ranks 2] [--graph] [--json FILE]

Both programs get the same launcher, options and libnccl, and their own tables give the times, so starting
up does not count. Within a round they run back to back, and the one that goes first changes every round.
An option that is not listed below goes to both programs as it is: `-n 50 -c 0`.

A row of size 0 (fewer bytes than the ranks can share) moves nothing; it is kept in the record and left
out of the summary.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from side_by_side import (
    OURS,
    PLACEMENTS,
    Failed,
    Row,
    header_of,
    in_turn,
    output_of,
    rows_of,
    scrubbed,
    shown,
    spread,
)

from meshrun.runner.report.record import write_json

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
THEIRS = "nccl-tests"
# Cores of its own for each rank: two that share one take turns.
LAUNCHER = "mpirun -np {ranks} --map-by slot:PE=4 --bind-to core --allow-run-as-root"
MIB = 1 << 20
DAY = 86400.0

LIBRARY = re.compile(r"nccl-library=(\d+)")


@dataclass
class Turns:
    """One operation: what both programs printed, round after round."""

    commands: dict[str, list[str]]
    rounds: dict[str, list[list[Row]]] = field(default_factory=lambda: {OURS: [], THEIRS: []})
    headers: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0  # of the longest round
    failure: str | None = None


def main() -> None:
    options, rest = arguments()
    environment = library_first(os.environ, options.libnccl)
    sizes = ["-b", options.minbytes, "-e", options.maxbytes, "-f", options.factor]
    cycles = ["-N", str(options.cycles)] if options.cycles > 1 else []
    common = [*sizes, *cycles, *(["-G", "1"] if options.graph else []), *rest]
    launcher = shlex.split(options.launcher.format(ranks=options.ranks))
    turns = {
        operation: Turns(
            {
                OURS: [*launcher, str(options.meshrun), "bench", operation, *common],
                THEIRS: [*launcher, str(options.nccl_tests / f"{operation}_perf"), *common],
            }
        )
        for operation in options.ops
    }
    about = facts(options.ranks, environment)
    for _ in take_turns(turns, options.rounds, options.cycles, options.budget_seconds, environment):
        if options.json:
            write_json(options.json, "benchmark", 1, {**about, **record(turns)})
    for operation, turn in turns.items():
        print_sizes(operation, compare(turn.rounds))
    print_summary(turns)
    failures = [f"{operation}: {turn.failure}" for operation, turn in turns.items() if turn.failure]
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Our options, and those for both programs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--nccl-tests", type=Path, required=True, metavar="DIR", help="folder of OP_perf")
    parser.add_argument("--libnccl", type=Path, metavar="DIR", help="folder of libnccl.so.2, for both")
    parser.add_argument("--meshrun", type=Path, default=Path(sys.executable).with_name("meshrun"))
    parser.add_argument("--launcher", default=LAUNCHER, help=f"default: {LAUNCHER}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ops", nargs="+", default=OPERATIONS, metavar="OP")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=1, help="times through all sizes in a round (-N)")
    parser.add_argument("-b", dest="minbytes", default="8", metavar="BYTES")
    parser.add_argument("-e", dest="maxbytes", default="8G", metavar="BYTES")
    parser.add_argument("-f", dest="factor", default="2", metavar="FACTOR")
    parser.add_argument("--graph", action="store_true", help="-G 1 for both")
    parser.add_argument(
        "--budget-seconds", type=float, default=DAY, help="nothing begins that would end later (a day)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_known_args()


def library_first(environment: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """The environment in which both programs find the libnccl in `folder`."""
    if folder is None:
        return dict(environment)
    before = [environment["LD_LIBRARY_PATH"]] if environment.get("LD_LIBRARY_PATH") else []
    return {**environment, "LD_LIBRARY_PATH": os.pathsep.join([str(folder.absolute()), *before])}


def take_turns(
    turns: Mapping[str, Turns], rounds: int, cycles: int, budget: float, environment: Mapping[str, str]
) -> Iterator[None]:
    """Round after round over all operations, one yield after each; an operation that failed is left out.

    Stops before an operation that, by its longest round, or the longest of any, would exceed the budget.
    """
    end = time.monotonic() + budget
    for number in range(rounds):
        for operation, turn in turns.items():
            if turn.failure:
                continue
            expected = turn.seconds or max(other.seconds for other in turns.values())
            started = time.monotonic()
            if started + expected > end:
                print(f"out of time before round {number + 1} of {operation}", file=sys.stderr)
                return
            try:
                take_turn(turn, number, cycles, environment, end)
            except Failed as reason:
                turn.failure = str(reason)
            turn.seconds = max(turn.seconds, time.monotonic() - started)
            state = turn.failure or f"{turn.seconds:.1f} s"
            print(f"round {number + 1} of {rounds}, {operation}: {state}", file=sys.stderr, flush=True)
            yield


def take_turn(turn: Turns, number: int, cycles: int, environment: Mapping[str, str], end: float) -> None:
    """Both programs once; all or nothing is kept. end: on the monotonic clock, when time is up.

    Each of the cycles through all sizes that a program makes counts as a round.
    """
    found: dict[str, list[Row]] = {}
    for name in in_turn((OURS, THEIRS), number):
        text = output_of(name, turn.commands[name], environment, end - time.monotonic())
        found[name] = rows_of(name, text)
        turn.headers.setdefault(name, header_of(text))
    require_same(found, turn)
    for name, rows in found.items():
        length = len(rows) // cycles
        turn.rounds[name] += [rows[i : i + length] for i in range(0, len(rows), length)]


def require_same(found: Mapping[str, list[Row]], turn: Turns) -> None:
    """Failed unless both programs measured the same rows, the same as before, with the same libnccl."""
    expected = found[THEIRS]
    if turn.rounds[THEIRS] and expected[0].what != turn.rounds[THEIRS][0][0].what:
        raise Failed(f"nccl-tests measured something else than before: {expected[0].what}")
    for name, rows in found.items():
        for got, other in zip_longest((row.what for row in rows), (row.what for row in expected)):
            if got != other:
                raise Failed(f"{name} measured something else: got {got}, expected {other}")
    libraries = {name: LIBRARY.findall(" ".join(lines)) for name, lines in turn.headers.items()}
    if libraries[OURS] != libraries[THEIRS] or not libraries[OURS]:
        raise Failed(f"the programs use different versions of NCCL: {libraries}")


def compare(rounds: Mapping[str, Sequence[Sequence[Row]]]) -> list[dict[str, Any]]:
    """Per size and placement: both programs' microseconds over the rounds, and ours over theirs of medians.

    The ratio is None where nothing was moved, or theirs is below what the table can show.
    """
    compared = []
    for index, rows in enumerate(zip(*rounds[THEIRS], strict=True)):
        for side, placement in enumerate(PLACEMENTS):
            ours, theirs = (
                spread(printed[index].microseconds[side] for printed in rounds[name])
                for name in (OURS, THEIRS)
            )
            measurable = rows[0].size > 0 and theirs["median"] > 0
            compared.append(
                {
                    "size": rows[0].size,
                    "count": rows[0].count,
                    "datatype": rows[0].datatype,
                    "placement": placement,
                    "ratio": ours["median"] / theirs["median"] if measurable else None,
                    OURS: ours,
                    THEIRS: theirs,
                }
            )
    return compared


def summary_of(compared: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Ratios of both placements, from 1 MiB up and below: the median, least and greatest of each."""
    groups: dict[str, list[float]] = {">= 1 MiB": [], "< 1 MiB": []}
    for row in compared:
        if row["ratio"] is not None:
            groups[">= 1 MiB" if row["size"] >= MIB else "< 1 MiB"].append(row["ratio"])
    return {name: spread(ratios) for name, ratios in groups.items() if ratios}


def print_sizes(operation: str, compared: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{operation}: us, median (min .. max)")
    print(f"{'size (B)':>12}  {'':12}  {OURS:>30}  {THEIRS:>30}  {'ratio':>6}")
    for row in compared:
        ours, theirs = shown(row[OURS]), shown(row[THEIRS])
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        print(f"{row['size']:12}  {row['placement']:12}  {ours:>30}  {theirs:>30}  {ratio:>6}")


def print_summary(turns: Mapping[str, Turns]) -> None:
    columns, figures = (">= 1 MiB", "< 1 MiB"), ("median", "min", "max")
    print(f"\n{OURS} / {THEIRS}, ratio of medians, both placements")
    print(f"{'':22}" + "".join(f"{name:>24}" for name in columns))
    print(f"{'':16}{'rounds':>6}" + "".join(f"{name:>8}" for name in figures) * len(columns))
    for operation, turn in turns.items():
        summary = summary_of(compare(turn.rounds))
        ratios = [
            summary[name][figure] if name in summary else None for name in columns for figure in figures
        ]
        cells = "".join(f"{'-':>8}" if ratio is None else f"{ratio:8.3f}" for ratio in ratios)
        print(f"{operation:16}{len(turn.rounds[OURS]):6}{cells}")


def facts(ranks: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the figures depend on: the machine without its name, NCCL's settings, versions, the day."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = output_of("nvidia-smi", asked, os.environ, 60.0)
    except Failed as reason:
        sys.exit(f"which GPUs were measured is not known: {reason}")
    gpus = [line.rsplit(", ", 1) for line in answer.splitlines() if line.strip()]
    return {
        "benchmark": "nccl_tests",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "gpus": [name for name, _ in gpus],
        "driver": sorted({driver for _, driver in gpus}),
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "meshrun": version("meshrun"),
        "ranks": ranks,
        "environment": {
            name: scrubbed(value) for name, value in sorted(environment.items()) if name.startswith("NCCL_")
        },
    }


def record(turns: Mapping[str, Turns]) -> dict[str, Any]:
    """All times of all rounds, and what was made of them."""
    return {
        "operations": {
            operation: {
                "commands": {name: shlex.join(map(scrubbed, words)) for name, words in turn.commands.items()},
                "headers": turn.headers,
                "failure": turn.failure,
                "rounds": len(turn.rounds[OURS]),
                "summary": summary_of(compared),
                "sizes": compared,
                "microseconds": {
                    name: {
                        placement: [[row.microseconds[side] for row in rows] for rows in rounds]
                        for side, placement in enumerate(PLACEMENTS)
                    }
                    for name, rounds in turn.rounds.items()
                },
            }
            for operation, turn in turns.items()
            for compared in [compare(turn.rounds)]
        }
    }


if __name__ == "__main__":
    main()
