"""Measure a kernel's bandwidth by stride and misalignment of its reads; on a CPU, NumPy's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshrun.jobs.bench.lessons.coalescing.methods import (
    Access,
    CpuReads,
    GpuReads,
    Reads,
    ceiling,
    moved,
    pieces_of_load,
)
from meshrun.jobs.bench.lessons.protocol import (
    Chart,
    ChartLine,
    Context,
    Lesson,
    LessonTable,
    TableCell,
    rate,
)
from meshrun.runner.errors import UserError
from meshrun.runner.report.units import size_name

STRIDES = (1, 2, 3, 4, 5, 8, 16, 32, 33, 64)
OFFSETS = (0, 1, 2, 4, 8, 16, 32)
ROOM = max(*STRIDES, *OFFSETS)  # elements at the end of the buffer, so that an access can be shifted
LEAST = 1 << 12  # bytes


@dataclass(frozen=True)
class TimedAccess:
    access: Access
    seconds: float

    @property
    def useful(self) -> float:
        """Bytes per second."""
        return self.access.useful / self.seconds


def measure(context: Context) -> Lesson:
    elements = context.maxbytes // 4
    if 4 * elements < LEAST:
        raise UserError(
            "the buffer is too small for strides",
            got=f"-e {context.maxbytes}",
            expected=f"at least {LEAST} bytes",
        )
    single = replace(context, samples=1)
    reads: Reads = CpuReads(single, elements) if context.box is None else GpuReads(single, elements)
    strided = [Access(stride, 0, (elements - ROOM) // stride) for stride in STRIDES]
    misaligned = [Access(1, offset, elements - ROOM) for offset in OFFSETS]
    accesses = tuple(dict.fromkeys([*strided, *misaligned]))

    # Samples are taken in turn: other work on the machine then slows one of each access, not all of one.
    copies: list[float] = []
    samples: dict[Access, list[float]] = {access: [] for access in accesses}
    for number in range(1, context.samples + 1):
        context.progress(f"a plain copy, sample {number}")
        copies.append(reads.copy())
        for access in accesses:
            context.progress(f"stride {access.stride}, offset {access.first}, sample {number}")
            samples[access].append(reads.gather(access))
    copy = TimedAccess(Access(1, 0, elements), statistics.median(copies))
    timed = {access: TimedAccess(access, statistics.median(samples[access])) for access in accesses}

    mismatches: list[str] = []
    for access in accesses:
        context.progress(f"the data of stride {access.stride}, offset {access.first}")
        wrong = reads.mismatches(access) if context.check else 0
        if wrong:
            elements_are = "element is" if wrong == 1 else "elements are"
            mismatches.append(
                f"stride {access.stride}, offset {access.first}: {wrong:,} {elements_are} wrong"
            )
    size = reads.piece
    share = {access: one.useful / copy.useful for access, one in timed.items()}
    return Lesson(
        "coalescing",
        f"Strided and misaligned reads of {size_name(4 * elements)} in {reads.pieces} of {4 * size} bytes, "
        f"{context.device_name}",
        _tables(reads, copy, [timed[a] for a in strided], [timed[a] for a in misaligned]),
        sentences(
            size, {a: share[a] for a in strided}, {a: share[a] for a in misaligned}, 4 * elements, reads.cache
        ),
        charts(size, [timed[a] for a in strided], [timed[a] for a in misaligned]),
        tuple(mismatches),
        {
            "device": context.device,
            "bytes": 4 * elements,
            "grain_bytes": 4 * size,
            "copy_seconds": copy.seconds,
            "accesses": [
                {**vars(access), "seconds": one.seconds, "useful_bytes": access.useful,
                 "moved_bytes": moved(access, size)}
                for access, one in timed.items()
            ],
        },
    )  # fmt: skip


def _tables(
    reads: Reads, copy: TimedAccess, strided: list[TimedAccess], misaligned: list[TimedAccess]
) -> tuple[LessonTable, LessonTable]:
    size, lanes = reads.piece, reads.lanes

    def row(first: int, one: TimedAccess) -> tuple[TableCell, ...]:
        rates = (rate(one.access.useful, one.seconds), rate(moved(one.access, size), one.seconds))
        load = (pieces_of_load(one.access, size, lanes),) if lanes else ()
        return first, *rates, *load, 100 * one.useful / copy.useful

    load = (f"{reads.pieces} (of a warp's load)",) if lanes else ()
    titles = ("useful (GB/s)", "moved (GB/s)", *load, "of a copy (%)")
    plain = rate(copy.access.useful, copy.seconds)
    last: tuple[TableCell, ...] = ("copy", plain, plain, *((None,) if lanes else ()), 100.0)
    return (
        LessonTable(
            ("stride (elements)", *titles),
            (*(row(one.access.stride, one) for one in strided), last),
            title="Elements of 4 bytes read at a stride, written contiguously:",
        ),
        LessonTable(
            ("offset (elements)", *titles),
            tuple(row(one.access.first, one) for one in misaligned),
            title="Elements read contiguously, from an offset to an aligned address:",
        ),
    )


def charts(size: int, strided: list[TimedAccess], misaligned: list[TimedAccess]) -> tuple[Chart, Chart]:
    """Chart the rates by stride and offset. size: elements of a piece. misaligned: the aligned one first."""
    useful = tuple((one.access.stride, one.useful / 1e9) for one in strided)
    whole = tuple((one.access.stride, rate(moved(one.access, size), one.seconds)) for one in strided)
    level = misaligned[0].useful / 1e9
    aligned = ChartLine("aligned", ((OFFSETS[1], level), (OFFSETS[-1], level)))
    offsets = ChartLine("misaligned", tuple((one.access.first, one.useful / 1e9) for one in misaligned[1:]))
    return (
        Chart("stride (elements)", "read (GB/s)", (ChartLine("useful", useful), ChartLine("moved", whole))),
        Chart("offset (elements)", "useful (GB/s)", (aligned, offsets)),
    )


def sentences(
    size: int, strided: Mapping[Access, float], misaligned: Mapping[Access, float], nbytes: int, cache: int
) -> tuple[str, ...]:
    """Explain the rates. size: elements of a piece. strided, misaligned: useful rates as fractions of a
    copy's.

    nbytes: of the buffer. cache: bytes of the last-level cache, 0 if unknown.
    """
    aligned, *rest = misaligned
    worst = min(rest, key=lambda access: misaligned[access])
    loss = max(1 - misaligned[worst] / misaligned[aligned], 0)
    rates = ", ".join(
        f"stride {access.stride} {strided[access]:.1%} (at most {ceiling(access, size):.1%})"
        for access in strided
        if access.stride in (1, size, list(strided)[-1].stride)
    )
    found = [
        f"Useful rate as a share of a copy's: {rates}. Limits assume that pieces move at a copy's rate.",
        f"Misaligned reads lose at most {loss:.1%} (offset {worst.first}).",
    ]
    if nbytes < 4 * cache:
        found.append(
            f"The buffer of {size_name(nbytes)} is less than four times the L2 cache of {size_name(cache)}: "
            "part of it was read from the cache. Use a larger -e to measure memory."
        )
    return tuple(found)
