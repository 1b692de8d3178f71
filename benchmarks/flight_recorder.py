"""What the flight recorder costs: an entry, and a run with it beside the same run without it.

    python benchmarks/flight_recorder.py [--side 2048] [--steps 200] [--ranks 2] [--rounds 11] [--json FILE]

an entry: one operation entered and left in a loop, from C and from Python, best of 7; the loop is subtracted.
a run: five-point time steps called with NumPy, an exchange each step, in worlds with and without a recorder
that take turns in the same processes; medians of rank 0's seconds. Their difference is smaller than their
spread, so that the share of the run is also counted: entries of the run times the cost of one.
the monitor: the processor time of its look at the ranks' recorders, for each second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from heat_ranks import parse, start_ranks, take_steps, write

from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.stuck.monitor_process import POLL_INTERVAL
from meshrun.runner.world.world import open_world

ENTRIES = 200_000


def main() -> None:
    options = parse(__doc__)
    if options.as_rank:
        return rank(options)
    built = ring.BUILT
    row: dict[str, Any] = {"entry_ns": {"C": entry(True)} if built else {}}
    row["entry_ns"]["Python"] = entry(False)
    with tempfile.TemporaryDirectory() as name:
        start_ranks(options, name)
        row |= json.loads(Path(name, "row.json").read_text())
    cost = next(iter(row["entry_ns"].values()))
    row["share"] = row["entries"] * cost * 1e-9 / statistics.median(row["seconds"]["recorded"])
    show(row)
    write(options, "flight_recorder", row)


def entry(from_c: bool) -> float:
    """Nanoseconds of an operation that is entered and left."""
    ring.BUILT = from_c
    path = ring.file_of("benchmark", os.getpid())
    recorder = Recorder(path, {"run": "benchmark", "rank": 0})
    name, group = recorder.name("all_reduce"), recorder.group("world", range(8))
    best = float("inf")
    for _ in range(7):
        begin = time.perf_counter_ns()
        for number in range(ENTRIES):
            recorder.leave(recorder.enter(name, 8, group, number))
        middle = time.perf_counter_ns()
        for _ in range(ENTRIES):
            pass
        best = min(best, (2 * middle - begin - time.perf_counter_ns()) / ENTRIES)
    recorder.close()
    return best


def rank(options: argparse.Namespace) -> None:
    """Run the steps in turn with and without a recorder; rank 0 writes what it measured."""
    seconds: dict[str, list[float]] = {"recorded": [], "not recorded": []}
    entries, looks = 0, 0.0
    for turn in range(2 * options.rounds + 2):
        kind = ("recorded", "not recorded")[(turn + turn // 2) % 2]  # each is first as often as second
        world = open_world("cpu", oversubscribe=True, record="benchmark" if kind == "recorded" else None)
        world.control.barrier()
        begin = time.perf_counter()
        take_steps(options, world)
        world.control.barrier()
        took = time.perf_counter() - begin
        if turn >= 2:
            seconds[kind].append(took)
        if isinstance(world.recorder, Recorder):
            entries = ring.count_of(world.recorder.path) or 0
            looks = look_seconds(world.run_id)
        world.control.barrier()
        world.close()
        world.recorder.close()
        if world.rank == 0:
            row = {"seconds": seconds, "entries": entries, "monitor_share": looks / POLL_INTERVAL}
            (options.as_rank / "row.json").write_text(json.dumps(row))


def look_seconds(run_id: str) -> float:
    """Processor seconds of one look of the monitor at all recorders of this host."""
    monitor = HostMonitor(run_id)
    begin = time.process_time()
    for _ in range(100):
        monitor.progress()
    return (time.process_time() - begin) / 100


def show(row: dict[str, Any]) -> None:
    for kind, cost in row["entry_ns"].items():
        print(f"an entry, written from {kind}: {cost:.0f} ns")
    for kind, seconds in row["seconds"].items():
        low, high = min(seconds), max(seconds)
        print(
            f"a run, {kind}: {statistics.median(seconds):.3f} s ({low:.3f} .. {high:.3f}) of {len(seconds)}"
        )
    print(f"entries of rank 0: {row['entries']:,}, {100 * row['share']:.4f} % of the run")
    print(f"the monitor: {100 * row['monitor_share']:.3f} % of a core")


if __name__ == "__main__":
    main()
