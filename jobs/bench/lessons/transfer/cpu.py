"""Measure without a GPU: copies inside the host's memory, and the cost of fresh pages."""

from __future__ import annotations

import mmap
from functools import partial

import numpy as np

from meshrun.jobs.bench.lessons.protocol import Chart, ChartLine, Context, Lesson, rate, size_table
from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.timers import sampled_host_seconds
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.report.units import size_name

COLUMNS = ("copy", "first touch", "second touch")
BYTE = DATATYPES["uint8"]


class Pages:
    """Memory that is allocated but not yet mapped to pages."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.renew()

    def renew(self) -> None:
        unmapped = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(unmapped, np.uint8)

    def touch(self) -> None:
        self.array.fill(1)


def measure(context: Context) -> Lesson:
    sizes = context.sizes()
    context.require_host_memory(3 * sizes[-1])
    source, target = (np.empty(sizes[-1], np.uint8) for _ in range(2))
    check.fill(source, BYTE, [Segment(0, sizes[-1], Copied(1, 0), 0)])
    check.poison(target)
    seconds: dict[str, list[float]] = {column: [] for column in COLUMNS}
    mismatches: list[str] = []
    for nbytes in sizes:
        context.progress(f"host memory, {size_name(nbytes)}")
        a, b = target[:nbytes], source[:nbytes]
        seconds["copy"].append(context.median(partial(sampled_host_seconds, partial(np.copyto, a, b))))
        if context.check:
            check.poison(a)
            np.copyto(a, b)
            found = check.verify(a, BYTE, [Segment(0, nbytes, Copied(1, 0), 0)])
            if found:
                mismatches.append(
                    f"{found.count:,} of {nbytes:,} copied bytes are wrong, the first at {found.offset}"
                )
        pages = Pages(nbytes)
        seconds["first touch"].append(context.median(partial(sampled_host_seconds, pages.touch, pages.renew)))
        seconds["second touch"].append(context.median(partial(sampled_host_seconds, pages.touch)))
    lines = [
        ChartLine(column, tuple((n, rate(n, t)) for n, t in zip(sizes, times, strict=True)))
        for column, times in seconds.items()
    ]
    return Lesson(
        "transfer",
        f"Copies inside the host's memory, {context.device_name}",
        (size_table(sizes, lines),),
        explanation(sizes, seconds),
        (Chart("size", "bandwidth (GB/s)", tuple(lines), bytes=True),),
        tuple(mismatches),
        {"device": context.device, "bytes": sizes, "seconds": seconds},
    )


def explanation(sizes: list[int], seconds: dict[str, list[float]]) -> tuple[str, ...]:
    rates = [n / t / 1e9 for n, t in zip(sizes, seconds["copy"], strict=True)]
    at = rates.index(max(rates))
    copies = (
        f"One thread copies at most {rates[at]:.3g} GB/s ({size_name(sizes[at])}), "
        f"{rates[-1]:.3g} GB/s at {size_name(sizes[-1])}."
    )
    factor = seconds["first touch"][-1] / seconds["second touch"][-1]
    if factor <= 1.05:
        return copies, f"Fresh pages cost nothing that shows at {size_name(sizes[-1])}."
    return copies, f"Writing {size_name(sizes[-1])} of fresh pages takes {factor:.3g} times as long as again."
