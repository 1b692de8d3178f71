"""`meshrun bench copy` against nvbandwidth on the GPUs of one machine, taking turns; ratios cell by cell.

    python benchmarks/nvbandwidth.py --nvbandwidth FILE [--ranks 4] [--rounds 3] [--json FILE]

Both programs get the same cases, buffer size, copies in a sample and samples. Within a round they run back to
back, and the one that goes first changes every round. With --ranks there is one process per GPU on our side.
Ratios are ours over theirs: above 1 ours has the higher rate or, in a latency case, the longer latency.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import OURS, Failed, in_turn, output_of, spread

from meshrun.jobs.bench.copy.cases import BY_NAME, CASES, Case
from meshrun.runner.report.record import write_json

THEIRS = "nvbandwidth"
MIB = 1 << 20
DAY = 86400.0
BAND = (0.98, 1.02)

# Case -> one matrix after another, each row by row; None where nothing was measured.
Matrices = dict[str, list[list[list[float | None]]]]


def main() -> None:
    options = arguments()
    cases = [BY_NAME[name] for name in options.cases]
    taken: dict[str, list[Matrices]] = {OURS: [], THEIRS: []}
    end = time.monotonic() + options.budget_seconds
    longest = 0.0
    about: dict[str, Any] = {}
    for number in range(options.rounds):
        begin = time.monotonic()
        if begin + longest > end:
            print(f"out of time before round {number + 1}", file=sys.stderr)
            break
        try:
            for name in in_turn((OURS, THEIRS), number):
                measured, said = run(name, options, cases, end - time.monotonic())
                taken[name].append(measured)
                about.setdefault(name, said)
        except Failed as reason:
            sys.exit(f"round {number + 1}: {reason}")
        longest = max(longest, time.monotonic() - begin)
        print(f"round {number + 1} of {options.rounds}: {longest:.0f} s", file=sys.stderr, flush=True)
        compared = compare(cases, taken)
        if options.json:
            write_json(
                options.json,
                "benchmark",
                1,
                {**facts(options), **about, "rounds": len(taken[OURS]), "cases": compared},
            )
    if taken[OURS] and taken[THEIRS]:
        print(table(compare(cases, taken)), end="")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvbandwidth", type=Path, required=True, metavar="FILE", help="the program")
    parser.add_argument("--meshrun", type=Path, default=Path(sys.executable).with_name("meshrun"))
    parser.add_argument("--ranks", type=int, default=1, help="processes of ours; 1 drives all GPUs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mebibytes", type=int, default=512, help="of a buffer")
    parser.add_argument("--copies", type=int, default=16, help="in a sample")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument(
        "--cases", nargs="+", choices=list(BY_NAME), default=[case.name for case in CASES], metavar="CASE"
    )
    parser.add_argument(
        "--budget-seconds", type=float, default=DAY, help="no round begins that would end later"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def run(
    name: str, options: argparse.Namespace, cases: Sequence[Case], seconds: float
) -> tuple[Matrices, dict[str, Any]]:
    """One program once: its matrices, and what it says of itself and of the machine."""
    if name == THEIRS:
        text = output_of(name, their_command(options, cases), os.environ, seconds)
        try:
            whole = json.loads(text[text.index("{") :])["nvbandwidth"]
        except (ValueError, KeyError) as reason:
            raise Failed(f"nvbandwidth printed no JSON of its own: {text[:200]}") from reason
        keys = ("version", "CUDA Runtime Version", "Driver Version")
        return theirs(whole), {key: whole[key] for key in keys if key in whole}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.json"
        output_of(name, [*our_command(options, cases), "-J", str(path)], os.environ, seconds)
        whole = json.loads(path.read_text())
    if whole["buffer_bytes"] != options.mebibytes << 20:
        raise Failed(f"memory holds buffers of {whole['buffer_bytes']:,} bytes only: ask for smaller ones")
    return ours(whole), {
        "version": whole["meshrun"],
        "gpus": [gpu["name"] for gpu in whole["hosts"][0]["gpus"]],
    }


def their_command(options: argparse.Namespace, cases: Sequence[Case]) -> list[str]:
    sizes = ["-b", str(options.mebibytes), "-i", str(options.samples), "--loopCount", str(options.copies)]
    return [str(options.nvbandwidth), "-j", *sizes, "-t", *(case.name for case in cases)]


def our_command(options: argparse.Namespace, cases: Sequence[Case]) -> list[str]:
    ranks = ["-n", str(options.ranks)] if options.ranks > 1 else []
    sizes = ["-s", f"{options.mebibytes}M", "-n", str(options.samples), "--copies", str(options.copies)]
    words = [word for case in cases for word in ("-t", case.name)]
    return [str(options.meshrun), *ranks, "bench", "copy", *sizes, "--device", "cuda", *words]


def theirs(whole: Mapping[str, Any]) -> Matrices:
    """Of nvbandwidth's JSON: numbers are text there, and a case's matrices stand below each other in one."""
    found: Matrices = {}
    for one in whole["testcases"]:
        if one["status"] == "Waived":
            continue
        if one["status"] != "Passed" or "bandwidth_matrix" not in one:
            raise Failed(f"nvbandwidth: {one['name']}: {one['status']} {one.get('error', '')}".rstrip())
        rows = [[None if word == "N/A" else float(word) for word in row] for row in one["bandwidth_matrix"]]
        height = len(rows) // len(BY_NAME[one["name"]].matrices)
        found[one["name"]] = [rows[begin : begin + height] for begin in range(0, len(rows), height)]
    return found


def ours(whole: Mapping[str, Any]) -> Matrices:
    """Of the JSON of `meshrun bench copy`, on one host."""
    (host,) = whole["hosts"]
    found: Matrices = {}
    for one in host["testcases"]:
        if one["status"] == "Waived":
            continue
        if one["status"] != "Passed":
            raise Failed(f"meshrun: {one['name']}: {one['wrong'][0]}")
        found[one["name"]] = [matrix["values"] for matrix in one["matrices"]]
    return found


def compare(cases: Sequence[Case], taken: Mapping[str, Sequence[Matrices]]) -> list[dict[str, Any]]:
    """For each matrix the cells' ratios, of medians over the rounds; both programs' medians beside them."""
    compared = []
    for case in cases:
        if not any(case.name in one for rounds in taken.values() for one in rounds):
            continue  # waived by both
        for number, (key, _) in enumerate(case.matrices):
            cells = {name: medians(rounds, case.name, number) for name, rounds in taken.items()}
            if cells[OURS].keys() != cells[THEIRS].keys():
                differ = sorted(cells[OURS].keys() ^ cells[THEIRS].keys())
                raise SystemExit(f"{key}: one program measured cells that the other did not: {differ}")
            ratios = [cells[OURS][cell] / cells[THEIRS][cell] for cell in cells[THEIRS]]
            compared.append(
                {
                    "matrix": key,
                    "unit": case.unit,
                    "ratio": spread(ratios),
                    **{name: statistics.median(cells[name].values()) for name in (OURS, THEIRS)},
                    "cells": [
                        {"row": row, "column": column, **{name: cells[name][row, column] for name in taken}}
                        for row, column in cells[THEIRS]
                    ],
                }
            )
    return compared


def medians(rounds: Sequence[Matrices], case: str, number: int) -> dict[tuple[int, int], float]:
    """Each cell's median over the rounds; those that hold a value in every round."""
    found: dict[tuple[int, int], list[float]] = {}
    for one in rounds:
        for row, cells in enumerate(one[case][number] if case in one else ()):
            for column, value in enumerate(cells):
                if value is not None:
                    found.setdefault((row, column), []).append(value)
    return {cell: statistics.median(values) for cell, values in found.items() if len(values) == len(rounds)}


def table(compared: Sequence[Mapping[str, Any]]) -> str:
    """Whole lines; a star where the median ratio is outside the band."""
    width = max((len(one["matrix"]) for one in compared), default=0)
    lines = [f"{'matrix':{width}}  {OURS:>10}  {THEIRS:>11}        ratio (least .. greatest)"]
    for one in compared:
        ratio = one["ratio"]
        star = "" if BAND[0] <= ratio["median"] <= BAND[1] else " *"
        lines.append(
            f"{one['matrix']:{width}}  {one[OURS]:10.2f}  {one[THEIRS]:11.2f} {one['unit']:>4}  "
            f"{ratio['median']:.3f} ({ratio['min']:.3f} .. {ratio['max']:.3f}){star}"
        )
    inside = sum(BAND[0] <= one["ratio"]["median"] <= BAND[1] for one in compared)
    lines.append(f"{inside} of {len(compared)} matrices within {BAND[0]} .. {BAND[1]}")
    return "\n".join(lines) + "\n"


def facts(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "nvbandwidth",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "meshrun": version("meshrun"),
        "ranks": options.ranks,
        "buffer_bytes": options.mebibytes * MIB,
        "copies": options.copies,
        "samples": options.samples,
        "commands": {
            OURS: ["meshrun", *our_command(options, [])[1:]],
            THEIRS: ["nvbandwidth", *their_command(options, [])[1:]],
        },
    }


if __name__ == "__main__":
    main()
