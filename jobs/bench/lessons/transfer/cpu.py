"""The lesson `transfer` without a GPU: copies inside the host's memory, and what fresh pages cost."""

from __future__ import annotations

import mmap
from functools import partial

import numpy as np

from jobs.bench.lessons.protocol import Chart, Lesson, Line, Stage, Table, rate
from jobs.bench.lessons.timers import by_clock, device, name, refuse_beyond
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment
from jobs.measure.sizes import size_name
from runner import DATATYPES

COLUMNS = ("copy", "first touch", "second touch")
BYTE = DATATYPES["uint8"]


class Pages:
    """Memory that the system has promised and not yet given."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.renew()

    def renew(self) -> None:
        promised = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(promised, np.uint8)

    def touch(self) -> None:
        self.array.fill(1)


def measure(stage: Stage) -> Lesson:
    sizes = stage.sizes()
    refuse_beyond(stage, 3 * sizes[-1])
    source, target = (np.empty(sizes[-1], np.uint8) for _ in range(2))
    data = [Segment(0, sizes[-1], Copied(1, 0), 0)]
    check.fill(source, BYTE, data)
    check.poison(target)
    seconds: dict[str, list[float]] = {column: [] for column in COLUMNS}
    wrong: list[str] = []
    for nbytes in sizes:
        stage.progress(f"host memory, {size_name(nbytes)}")
        a, b = target[:nbytes], source[:nbytes]
        seconds["copy"].append(stage.median(partial(by_clock, partial(np.copyto, a, b))))
        if stage.check:
            check.poison(a)
            np.copyto(a, b)
            found = check.verify(a, BYTE, [Segment(0, nbytes, Copied(1, 0), 0)])
            if found:
                wrong.append(
                    f"{found.count:,} of {nbytes:,} copied bytes are wrong, the first at {found.offset}"
                )
        pages = Pages(nbytes)
        seconds["first touch"].append(stage.median(partial(by_clock, pages.touch, pages.renew)))
        seconds["second touch"].append(stage.median(partial(by_clock, pages.touch)))
    lines = [
        Line(column, tuple((n, rate(n, t)) for n, t in zip(sizes, times, strict=True)))
        for column, times in seconds.items()
    ]
    rows = tuple((size_name(n), *(line.points[at][1] for line in lines)) for at, n in enumerate(sizes))
    return Lesson(
        "transfer",
        f"Copies inside the host's memory, {name(stage)}",
        (Table(("size", *(f"{column} (GB/s)" for column in COLUMNS)), rows),),
        said(sizes, seconds),
        (Chart("size", "bandwidth (GB/s)", tuple(lines), bytes=True),),
        tuple(wrong),
        {"device": device(stage), "bytes": sizes, "seconds": seconds},
    )


def said(sizes: list[int], seconds: dict[str, list[float]]) -> tuple[str, ...]:
    rates = [n / t / 1e9 for n, t in zip(sizes, seconds["copy"], strict=True)]
    best = max(rates)
    at = rates.index(best)
    copies = (
        f"One thread copies {size_name(sizes[at])} at {best:.3g} GB/s, its best, and {size_name(sizes[-1])} "
        f"at {rates[-1]:.3g} GB/s."
    )
    slow = next((n for n, r in zip(sizes[at:], rates[at:], strict=True) if r < 0.7 * best), None)
    if slow:
        copies += f" From {size_name(slow)} on it is below 0.7 of that: what fits no cache comes from memory."
    if rates[0] < 0.5 * best:
        copies += f" Of {size_name(sizes[0])} most time goes to the call: {seconds['copy'][0] * 1e6:.2g} us."
    first, second = seconds["first touch"][-1], seconds["second touch"][-1]
    if first > 1.05 * second:
        touch = (
            f"To write {size_name(sizes[-1])} takes {first / second:.3g} times as long when nobody has "
            "touched the pages before: the system finds each, zeroes it and maps it at the first touch. "
            "Memory that is kept and used again does not pay that twice."
        )
    else:
        touch = f"Fresh pages cost nothing that shows at {size_name(sizes[-1])}."
    return copies, touch
