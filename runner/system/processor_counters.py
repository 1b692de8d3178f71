"""Stolen time: seconds in which a processor had work to do and the hypervisor ran something else.

The kernel calls it steal (proc_stat(5)); it counts in ticks of 10 ms, as a rule, and 0 where it is not told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from pathlib import Path

from runner.system.sysfs import text

PROC = Path("/proc")
TICKS = 8  # user, nice, system, idle, iowait, irq, softirq, steal: what comes after is in these already


def processor_counters(proc: Path) -> dict[tuple[str, str], float]:
    """Seconds of all processors together since boot: all there were, and those stolen."""
    seconds = dict(_lines(proc)).get("cpu")
    part = "processors"
    return {} if seconds is None else {(part, "seconds"): sum(seconds), (part, "stolen"): seconds[-1]}


def stolen_seconds(cores: Set[int], proc: Path = PROC) -> float:
    """Seconds since boot that each of these processors was stolen for, their mean."""
    names = {f"cpu{core}" for core in cores}
    stolen = [seconds[-1] for name, seconds in _lines(proc) if name in names]
    return sum(stolen) / len(stolen) if stolen else 0.0


def _lines(proc: Path) -> Iterator[tuple[str, list[float]]]:
    """All together as cpu, then cpu0, cpu1, ...: the seconds spent in each state, steal last."""
    tick = 1 / os.sysconf("SC_CLK_TCK")
    for line in text(proc / "stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            return
        if len(ticks) >= TICKS:
            yield name, [int(number) * tick for number in ticks[:TICKS]]
