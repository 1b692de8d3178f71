"""Copies between host and GPU, by the kind of host memory and by size; on a CPU, copies inside its memory.

Every figure is of one transfer at a time, on the host's clock, from the call until the bytes can be used on
the other side: the same for what a copy engine, a kernel or a page fault moves.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from jobs.bench.memory import transfer_host
from jobs.bench.memory.lesson import Chart, Lesson, Line, Ranks, Stage, Table, crossings, rate
from jobs.bench.memory.timed import by_clock, device, name
from jobs.bench.memory.transfer_said import paragraphs
from jobs.bench.memory.transfer_ways import DIRECTIONS, WAYS, Ways
from jobs.bench.plot import size_name
from runner import Memory

SUMMARY = "Copies between host and GPU, by the kind of host memory and by size."
RANKS: Ranks = "one"
CPU = True
PROCESSOR = 1 << 24  # bytes that the processor reads and writes


@dataclass(frozen=True)
class Kept:
    """One kind of memory in use. allocate: seconds. read, write: bytes per second, by the processor."""

    nbytes: int
    allocate: float
    read: float
    write: float


def measure(stage: Stage) -> Lesson:
    if stage.box is None:
        return transfer_host.measure(stage)
    sizes = stage.sizes()
    ways = Ways(stage, sizes[-1])
    stage.gpus.release(_allocated(stage, "pageable", sizes[-1])[0])  # a virtual machine gets its memory now
    seconds: dict[str, dict[str, list[float | None]]] = {direction: {} for direction in DIRECTIONS}
    kept: dict[str, Kept] = {}
    wrong: list[str] = []
    for number, (way, kind) in enumerate(WAYS.items()):
        fitting = [n for n in sizes if kind != "managed" or n <= stage.gpus.free_memory(stage.gpu)]
        for direction in DIRECTIONS:
            seconds[direction][way] = [None] * len(sizes)
        if not fitting:
            continue
        stage.progress(f"allocating {size_name(fitting[-1])} of {kind} memory")
        host, allocate = _allocated(stage, kind, fitting[-1])
        if kind not in map(WAYS.get, kept):
            kept[way] = Kept(host.nbytes, allocate, *_processor(stage, host))
        for turn, direction in enumerate(DIRECTIONS):
            seed = 2 * number + turn + 1
            ways.fill(way, direction, host, seed)
            for at, nbytes in enumerate(fitting):
                stage.progress(f"{way}, {direction}, {size_name(nbytes)}")
                crossing = ways.crossing(way, direction, host, nbytes, seed)
                seconds[direction][way][at] = stage.median(partial(by_clock, crossing.move, crossing.ready))
                fault = ways.proven(crossing, nbytes, seed) if stage.check else None
                if fault:
                    wrong.append(f"{way}, {direction}: {fault}")
        stage.gpus.release(host)
    return _lesson(stage, sizes, seconds, kept, tuple(wrong))


def _allocated(stage: Stage, kind: Any, nbytes: int) -> tuple[Memory, float]:
    """Host memory, and the seconds that it took to get and touch every page of it."""
    begin = perf_counter()
    host = stage.gpus.allocate(kind, nbytes, stage.gpu)
    stage.gpus.host_array(host)[:: mmap.PAGESIZE] = 0
    return host, perf_counter() - begin


def _processor(stage: Stage, host: Memory) -> tuple[float, float]:
    """Bytes per second at which the processor reads it and writes it."""
    part = stage.gpus.host_array(host)[:PROCESSOR]
    private = np.zeros_like(part)
    read = stage.median(lambda: by_clock(lambda: np.copyto(private, part)))
    write = stage.median(lambda: by_clock(lambda: np.copyto(part, private)))
    return part.size / read, part.size / write


def _lesson(
    stage: Stage,
    sizes: list[int],
    seconds: dict[str, dict[str, list[float | None]]],
    kept: dict[str, Kept],
    wrong: tuple[str, ...],
) -> Lesson:
    lines = {
        direction: [
            Line(way, tuple((n, t and rate(n, t)) for n, t in zip(sizes, times, strict=True)))
            for way, times in ways.items()
        ]
        for direction, ways in seconds.items()
    }
    fastest = {
        direction: crossings([line for line in found if any(y for _, y in line.points)])
        for direction, found in lines.items()
    }
    heights = {(d, line.label, x): y for d, found in lines.items() for line in found for x, y in line.points}
    tables = [
        Table(
            ("size", *(f"{line.label} (GB/s)" for line in found)),
            tuple(
                (size_name(n), *(line.points[at][1] for line in found)) for at, n in enumerate(sizes)
            ),
            title=f"{direction.capitalize().replace('gpu', 'GPU')}:",
        )
        for direction, found in lines.items()
    ]  # fmt: skip
    tables.append(
        Table(
            ("direction", "from", "fastest", "rate (GB/s)"),
            tuple(
                (direction, size_name(round(x)), way, heights[direction, way, x])
                for direction, found in fastest.items()
                for x, way in found
            ),
            title="Which way is the fastest from which size on:",
        )
    )
    tables.append(
        Table(
            ("memory", "size", "allocate (ms)", "a GiB (s)", "read (GB/s)", "write (GB/s)"),
            tuple(
                (kind, size_name(one.nbytes), one.allocate * 1e3, one.allocate * (1 << 30) / one.nbytes,
                 one.read / 1e9, one.write / 1e9)
                for kind, one in kept.items()
            ),
            title=f"Allocated, every page touched; and how fast the processor reads and writes the first "
            f"{size_name(min(PROCESSOR, sizes[-1]))}:",
        )
    )  # fmt: skip
    allocated = {kind: (one.nbytes, one.allocate) for kind, one in kept.items()}
    facts: dict[str, Any] = {"device": device(stage), "bytes": sizes, "seconds": seconds}
    facts["memory"] = {kind: vars(one) for kind, one in kept.items()}
    return Lesson(
        "transfer",
        f"Transfers between the host and {name(stage)}",
        tuple(tables),
        paragraphs(sizes, seconds, fastest, allocated),
        tuple(
            Chart("size", f"{direction} (GB/s)", tuple(found), bytes=True)
            for direction, found in lines.items()
        ),
        wrong,
        facts,
    )
