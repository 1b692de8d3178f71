"""Copies between host and GPU, by the kind of host memory and by size; on a CPU, copies inside its memory.

Every figure is of one transfer at a time, on the host's clock, from the call until the bytes can be used on
the other side: the same for what a copy engine, a kernel or a page fault moves.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import runner
from jobs.bench.lessons.protocol import Cell, Chart, Lesson, Line, Ranks, Stage, Table, crossings, rate
from jobs.bench.lessons.timers import by_clock, device, name
from jobs.bench.lessons.transfer import cpu as transfer_host
from jobs.bench.lessons.transfer.explain import paragraphs
from jobs.bench.lessons.transfer.methods import DIRECTIONS, WAYS, Direction, Ways
from jobs.measure.sizes import size_name
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


@dataclass
class Measured:
    """seconds: by direction, way and size, None where there are none. kept: by the way that used it first.

    unmoved: (direction, way, bytes) of prefetches that the driver knows nothing of. missing: a sentence for
    what failed. wrong: what a check found.
    """

    seconds: dict[str, dict[str, list[float | None]]]
    kept: dict[str, Kept] = field(default_factory=dict)
    unmoved: set[tuple[str, str, int]] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def measure(stage: Stage) -> Lesson:
    if stage.box is None:
        return transfer_host.measure(stage)
    sizes = stage.sizes()
    ways = Ways(stage, sizes[-1])
    stage.gpus.release(_allocated(stage, "pageable", sizes[-1])[0])  # a virtual machine gets its memory now
    found = Measured({direction: {way: [None] * len(sizes) for way in WAYS} for direction in DIRECTIONS})
    for number, (way, kind) in enumerate(WAYS.items()):
        fitting = [n for n in sizes if kind != "managed" or n <= stage.gpus.free_memory(stage.gpu)]
        if not fitting:
            continue
        stage.progress(f"allocating {size_name(fitting[-1])} of {kind} memory")
        try:
            host, allocate = _allocated(stage, kind, fitting[-1])
        except (runner.RunError, runner.UserError) as reason:
            found.missing.append(f"Not measured, {way}: {reason}.")
            continue
        if kind not in map(WAYS.get, found.kept):
            found.kept[way] = Kept(host.nbytes, allocate, *_processor(stage, host))
        for turn, direction in enumerate(DIRECTIONS):
            try:
                _cross(stage, ways, way, direction, host, fitting, 2 * number + turn + 1, found)
            except (runner.RunError, runner.UserError) as reason:
                found.missing.append(f"Not measured, {way}, {direction}: {reason}.")
        stage.gpus.release(host)
    return _lesson(stage, sizes, found)


def _cross(
    stage: Stage,
    ways: Ways,
    way: str,
    direction: Direction,
    host: Memory,
    sizes: Sequence[int],
    seed: int,
    found: Measured,
) -> None:
    """All sizes of one way in one direction."""
    ways.fill(way, direction, host, seed)
    for at, nbytes in enumerate(sizes):
        stage.progress(f"{way}, {direction}, {size_name(nbytes)}")
        crossing = ways.crossing(way, direction, host, nbytes, seed)
        seconds = stage.median(partial(by_clock, crossing.move, crossing.ready))
        if crossing.moved():
            found.seconds[direction][way][at] = seconds
        else:
            found.unmoved.add((direction, way, nbytes))
            found.wrong.append(f"{way}, {direction}: {size_name(nbytes)} did not move, as the driver has it")
        fault = ways.proven(crossing, nbytes, seed) if stage.check else None
        if fault:
            found.wrong.append(f"{way}, {direction}: {fault}")


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


def _lesson(stage: Stage, sizes: list[int], found: Measured) -> Lesson:
    lines = {
        direction: [
            Line(way, tuple((n, t and rate(n, t)) for n, t in zip(sizes, times, strict=True)))
            for way, times in ways.items()
        ]
        for direction, ways in found.seconds.items()
    }
    fastest = {
        direction: crossings([line for line in group if any(y for _, y in line.points)])
        for direction, group in lines.items()
    }
    heights = {(d, line.label, x): y for d, group in lines.items() for line in group for x, y in line.points}

    def cell(direction: str, line: Line, at: int) -> Cell:
        unmoved = (direction, line.label, sizes[at]) in found.unmoved
        return "not moved" if unmoved else line.points[at][1]

    tables = [
        Table(
            ("size", *(f"{line.label} (GB/s)" for line in group)),
            tuple(
                (size_name(n), *(cell(direction, line, at) for line in group)) for at, n in enumerate(sizes)
            ),
            title=f"{direction.capitalize().replace('gpu', 'GPU')}:",
        )
        for direction, group in lines.items()
    ]  # fmt: skip
    tables.append(
        Table(
            ("direction", "from", "fastest", "rate (GB/s)"),
            tuple(
                (direction, size_name(round(x)), way, heights[direction, way, x])
                for direction, winners in fastest.items()
                for x, way in winners
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
                for kind, one in found.kept.items()
            ),
            title=f"Allocated, every page touched; and how fast the processor reads and writes the first "
            f"{size_name(min(PROCESSOR, sizes[-1]))}:",
        )
    )  # fmt: skip
    allocated = {kind: (one.nbytes, one.allocate) for kind, one in found.kept.items()}
    facts: dict[str, Any] = {"device": device(stage), "bytes": sizes, "seconds": found.seconds}
    facts["memory"] = {kind: vars(one) for kind, one in found.kept.items()}
    facts["not_measured"] = found.missing
    return Lesson(
        "transfer",
        f"Transfers between the host and {name(stage)}",
        tuple(tables),
        (*paragraphs(sizes, found.seconds, fastest, allocated), *found.missing),
        tuple(
            Chart("size", f"{direction} (GB/s)", tuple(group), bytes=True)
            for direction, group in lines.items()
        ),
        tuple(found.wrong),
        facts,
    )
