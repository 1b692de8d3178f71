"""Measure copies between host and GPU by kind of host memory and by size; on a CPU, inside its memory.

One transfer at a time is timed on the host's clock, from the call until the other side can use the bytes, so
that copy engines, kernels and page faults are timed alike.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from meshrun.jobs.bench.lessons.protocol import (
    Chart,
    ChartLine,
    Context,
    Lesson,
    LessonTable,
    TableCell,
    crossings,
    rate,
)
from meshrun.jobs.bench.lessons.transfer import cpu
from meshrun.jobs.bench.lessons.transfer.methods import DIRECTIONS, METHODS, Direction, Methods
from meshrun.jobs.measure.timers import sampled_host_seconds
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.report.units import size_name

HOST_ACCESS_BYTES = 1 << 24  # read and written by the CPU


@dataclass(frozen=True)
class HostMemoryCosts:
    """Costs of one kind of memory. allocate: seconds. read, write: by the CPU, in bytes per second."""

    nbytes: int
    allocate: float
    read: float
    write: float


@dataclass
class TransferResults:
    """seconds: by direction, method and size, None if not measured. buffers: by the first method of a kind.

    unmoved: (direction, method, bytes) of prefetches after which the driver still reports the pages at the
    old place. missing: a sentence for each method that failed. mismatches: for each wrong result.
    """

    seconds: dict[str, dict[str, list[float | None]]]
    buffers: dict[str, HostMemoryCosts] = field(default_factory=dict)
    unmoved: set[tuple[str, str, int]] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)


def measure(context: Context) -> Lesson:
    if context.box is None:
        return cpu.measure(context)
    sizes = context.sizes()
    methods = Methods(context, sizes[-1])
    # A virtual machine maps its memory on first use: here.
    context.required_box.release(_allocated(context, "pageable", sizes[-1])[0])
    found = TransferResults(
        {direction: {method: [None] * len(sizes) for method in METHODS} for direction in DIRECTIONS}
    )
    for number, (method, kind) in enumerate(METHODS.items()):
        fitting = [
            n for n in sizes if kind != "managed" or n <= context.required_box.free_memory(context.gpu)
        ]
        if not fitting:
            continue
        context.progress(f"allocating {size_name(fitting[-1])} of {kind} memory")
        try:
            host, allocate = _allocated(context, kind, fitting[-1])
        except (RunError, UserError) as reason:
            found.missing.append(f"Not measured, {method}: {reason}.")
            continue
        if kind not in map(METHODS.get, found.buffers):
            found.buffers[method] = HostMemoryCosts(host.nbytes, allocate, *_host_access(context, host))
        for turn, direction in enumerate(DIRECTIONS):
            try:
                _transfer(context, methods, method, direction, host, fitting, 2 * number + turn + 1, found)
            except (RunError, UserError) as reason:
                found.missing.append(f"Not measured, {method}, {direction}: {reason}.")
        context.required_box.release(host)
    return _lesson(context, sizes, found)


def _transfer(
    context: Context,
    methods: Methods,
    method: str,
    direction: Direction,
    host: Memory,
    sizes: Sequence[int],
    seed: int,
    found: TransferResults,
) -> None:
    """Measure all sizes by one method in one direction."""
    methods.fill(method, direction, host, seed)
    for at, nbytes in enumerate(sizes):
        context.progress(f"{method}, {direction}, {size_name(nbytes)}")
        transfer = methods.transfer(method, direction, host, nbytes, seed)
        seconds = context.median(partial(sampled_host_seconds, transfer.move, transfer.prepare))
        if transfer.moved():
            found.seconds[direction][method][at] = seconds
        else:
            found.unmoved.add((direction, method, nbytes))
            found.mismatches.append(
                f"{method}, {direction}: {size_name(nbytes)} did not move, according to the driver"
            )
        fault = methods.verified(transfer, nbytes, seed) if context.check else None
        if fault:
            found.mismatches.append(f"{method}, {direction}: {fault}")


def _allocated(context: Context, kind: Any, nbytes: int) -> tuple[Memory, float]:
    """Allocate host memory; also returns the seconds to allocate and touch every page."""
    begin = perf_counter()
    host = context.required_box.allocate(kind, nbytes, context.gpu)
    context.required_box.host_array(host)[:: mmap.PAGESIZE] = 0
    return host, perf_counter() - begin


def _host_access(context: Context, host: Memory) -> tuple[float, float]:
    """Return the bytes per second at which the CPU reads and writes it."""
    part = context.required_box.host_array(host)[:HOST_ACCESS_BYTES]
    private = np.zeros_like(part)
    read = context.median(lambda: sampled_host_seconds(lambda: np.copyto(private, part)))
    write = context.median(lambda: sampled_host_seconds(lambda: np.copyto(part, private)))
    return part.size / read, part.size / write


def _lesson(context: Context, sizes: list[int], found: TransferResults) -> Lesson:
    lines = {
        direction: [
            ChartLine(method, tuple((n, t and rate(n, t)) for n, t in zip(sizes, times, strict=True)))
            for method, times in methods.items()
        ]
        for direction, methods in found.seconds.items()
    }
    tables = [_by_size(direction, sizes, group, found) for direction, group in lines.items()]
    tables += [_fastest(lines), _host_memory(found, min(HOST_ACCESS_BYTES, sizes[-1]))]
    allocated = {method: (one.nbytes, one.allocate) for method, one in found.buffers.items()}
    facts: dict[str, Any] = {"device": context.device, "bytes": sizes, "seconds": found.seconds}
    facts["memory"] = {method: vars(one) for method, one in found.buffers.items()}
    facts["not_measured"] = found.missing
    return Lesson(
        "transfer",
        f"Transfers between the host and {context.device_name}",
        tuple(tables),
        (*sentences(sizes, found.seconds, allocated), *found.missing),
        tuple(
            Chart("size", f"{direction} (GB/s)", tuple(group), bytes=True)
            for direction, group in lines.items()
        ),
        tuple(found.mismatches),
        facts,
    )


def _by_size(direction: str, sizes: list[int], lines: list[ChartLine], found: TransferResults) -> LessonTable:
    def cell(line: ChartLine, at: int) -> TableCell:
        return "not moved" if (direction, line.label, sizes[at]) in found.unmoved else line.points[at][1]

    return LessonTable(
        ("size", *(f"{line.label} (GB/s)" for line in lines)),
        tuple((size_name(n), *(cell(line, at) for line in lines)) for at, n in enumerate(sizes)),
        title=f"{direction[0].upper()}{direction[1:]}:",
    )


def _fastest(lines: dict[str, list[ChartLine]]) -> LessonTable:
    rows: list[tuple[TableCell, ...]] = []
    for direction, group in lines.items():
        heights = {(line.label, x): y for line in group for x, y in line.points}
        rows += (
            (direction, size_name(round(x)), method, heights[method, x])
            for x, method in crossings([line for line in group if any(y for _, y in line.points)])
        )
    return LessonTable(
        ("direction", "from", "fastest", "rate (GB/s)"),
        tuple(rows),
        title="Fastest method, by size:",
    )


def _host_memory(found: TransferResults, accessed: int) -> LessonTable:
    return LessonTable(
        ("memory", "size", "allocate (ms)", "a GiB (s)", "read (GB/s)", "write (GB/s)"),
        tuple(
            (method, size_name(one.nbytes), one.allocate * 1e3, one.allocate * (1 << 30) / one.nbytes,
             one.read / 1e9, one.write / 1e9)
            for method, one in found.buffers.items()
        ),
        title="Allocation, with every page touched; access by the processor to the first "
        f"{size_name(accessed)}:",
    )  # fmt: skip


SecondsByMethod = Mapping[str, Mapping[str, Sequence[float | None]]]  # direction -> method -> by size


def sentences(
    sizes: Sequence[int], seconds: SecondsByMethod, allocated: Mapping[str, tuple[int, float]]
) -> list[str]:
    """Explain the times. allocated: bytes and seconds of the allocation of each kind of memory."""
    found = []
    for direction, methods in seconds.items():
        found += slower(direction, sizes, "pinned", methods["pinned"], "pageable", methods["pageable"])
        found += slower(
            direction,
            sizes,
            "prefetched",
            methods["prefetched"],
            "managed without prefetch",
            methods["managed"],
        )
    return found + break_even(sizes, seconds, allocated)


def slower(
    direction: str,
    sizes: Sequence[int],
    good: str,
    good_seconds: Sequence[float | None],
    bad: str,
    bad_seconds: Sequence[float | None],
) -> list[str]:
    """Compare the second method with the first at the largest size that both have."""
    known = [(n, a, b) for n, a, b in zip(sizes, good_seconds, bad_seconds, strict=True) if a and b]
    if not known:
        return []
    nbytes, fast, slow = known[-1]
    compared = f"{slow / fast:.3g} times as long as" if slow > 1.05 * fast else "no longer than"
    return [f"{size_name(nbytes)} {direction}: {bad} takes {compared} {good}."]


def break_even(
    sizes: Sequence[int], seconds: SecondsByMethod, allocated: Mapping[str, tuple[int, float]]
) -> list[str]:
    """Return after how many copies the allocation of pinned memory has paid off."""
    slow, fast = seconds["to GPU"]["pageable"][-1], seconds["to GPU"]["pinned"][-1]
    if not {"pinned", "pageable"} <= allocated.keys() or not slow or not fast:
        return []
    extra = allocated["pinned"][1] - allocated["pageable"][1]
    if extra <= 0:
        return []
    if slow <= fast:
        return ["Pinned memory takes longer to allocate, and copies to the GPU do not pay that back here."]
    copies = max(extra / (slow - fast), 1)
    return [
        f"Allocating pinned memory pays off after {copies:.3g} copies of {size_name(sizes[-1])} to the GPU."
    ]
