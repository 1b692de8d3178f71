"""Steal time: seconds in which a processor had work to do and the hypervisor ran something else.

From /proc/stat (proc_stat(5)), usually in ticks of 10 ms; 0 if the hypervisor does not report it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from pathlib import Path

from meshrun.runner.system.sysfs import text

PROC = Path("/proc")
TICKS = 8  # user, nice, system, idle, iowait, irq, softirq, steal: later columns are included in these


def processor_counters(proc: Path) -> dict[tuple[str, str], float]:
    """Seconds since boot, summed over all processors: total and stolen."""
    seconds = dict(_lines(proc)).get("cpu")
    part = "processors"
    return {} if seconds is None else {(part, "seconds"): sum(seconds), (part, "stolen"): seconds[-1]}


def stolen_seconds(cores: Set[int], proc: Path = PROC) -> float:
    """Steal time of these processors since boot, in seconds; their mean."""
    names = {f"cpu{core}" for core in cores}
    stolen = [seconds[-1] for name, seconds in _lines(proc) if name in names]
    return sum(stolen) / len(stolen) if stolen else 0.0


def _lines(proc: Path) -> Iterator[tuple[str, list[float]]]:
    """Seconds spent in each state, steal last: for all processors ("cpu"), then for cpu0, cpu1, ..."""
    tick = 1 / os.sysconf("SC_CLK_TCK")
    for line in text(proc / "stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            return
        if len(ticks) >= TICKS:
            yield name, [int(number) * tick for number in ticks[:TICKS]]
