"""A kernel's bandwidth by the stride and the misalignment of what it reads; on a CPU, NumPy's."""

from __future__ import annotations

from dataclasses import dataclass

import runner
from jobs.bench.lessons.coalescing.access import Access, asked, moved
from jobs.bench.lessons.coalescing.explain import paragraphs
from jobs.bench.lessons.coalescing.methods import CpuReads, GpuReads, Reads
from jobs.bench.lessons.protocol import Cell, Chart, Lesson, Line, Ranks, Stage, Table, rate
from jobs.bench.lessons.timers import device, name
from jobs.measure.sizes import size_name

SUMMARY = "A kernel's bandwidth by stride and by misalignment."
RANKS: Ranks = "one"
CPU = True
STRIDES = (1, 2, 3, 4, 5, 8, 16, 32, 33, 64)
OFFSETS = (0, 1, 2, 4, 8, 16, 32)
ROOM = max(*STRIDES, *OFFSETS)  # elements at the end of the buffer for any beginning
LEAST = 1 << 12  # bytes


@dataclass(frozen=True)
class Measured:
    access: Access
    seconds: float

    @property
    def useful(self) -> float:
        """Bytes per second."""
        return self.access.useful / self.seconds


def measure(stage: Stage) -> Lesson:
    elements = stage.maxbytes // 4
    if 4 * elements < LEAST:
        raise runner.UserError(
            "the buffer is too small for strides",
            got=f"-e {stage.maxbytes}",
            expected=f"at least {LEAST} bytes",
        )
    reads: Reads = CpuReads(stage, elements) if stage.box is None else GpuReads(stage, elements)
    stage.progress("a plain copy")
    copy = Measured(Access(1, 0, elements), reads.copy())
    strided = [Access(stride, 0, (elements - ROOM) // stride) for stride in STRIDES]
    shifted = [Access(1, offset, elements - ROOM) for offset in OFFSETS]
    found: dict[Access, Measured] = {}
    wrong: list[str] = []
    for access in dict.fromkeys([*strided, *shifted]):
        stage.progress(f"stride {access.stride}, offset {access.first}")
        found[access] = Measured(access, reads.gather(access))
        fault = reads.wrong(access) if stage.check else 0
        if fault:
            wrong.append(f"stride {access.stride}, offset {access.first}: {fault:,} elements are wrong")
    return _lesson(stage, reads, copy, [found[a] for a in strided], [found[a] for a in shifted], tuple(wrong))


def _lesson(
    stage: Stage,
    reads: Reads,
    copy: Measured,
    strided: list[Measured],
    shifted: list[Measured],
    wrong: tuple[str, ...],
) -> Lesson:
    grain, lanes = reads.grain, reads.lanes

    def row(first: int, one: Measured) -> tuple[Cell, ...]:
        rates = (rate(one.access.useful, one.seconds), rate(moved(one.access, grain), one.seconds))
        wide = (asked(one.access, grain, lanes),) if lanes else ()
        return first, *rates, *wide, 100 * one.useful / copy.useful

    warp = (f"{reads.pieces} (of a warp's load)",) if lanes else ()
    titles = ("useful (GB/s)", "moved (GB/s)", *warp, "of a copy (%)")
    plain = rate(copy.access.useful, copy.seconds)
    last: tuple[Cell, ...] = ("copy", plain, plain, *((None,) if lanes else ()), 100.0)
    by_stride = Table(
        ("stride (elements)", *titles),
        (*(row(one.access.stride, one) for one in strided), last),
        title="Read so many elements of 4 bytes apart, written next to each other:",
    )
    by_offset = Table(
        ("offset (elements)", *titles),
        tuple(row(one.access.first, one) for one in shifted),
        title="Read next to each other, from so many elements past an aligned address:",
    )

    def line(label: str, nbytes: bool) -> Line:
        return Line(
            label,
            tuple(
                (m.access.stride, rate(m.access.useful if nbytes else moved(m.access, grain), m.seconds))
                for m in strided
            ),
        )

    level = rate(shifted[0].access.useful, shifted[0].seconds)
    charts = (
        Chart("stride (elements)", "read (GB/s)", (line("useful", True), line("moved", False))),
        Chart(
            "offset (elements)",
            "useful (GB/s)",
            (
                Line("aligned", ((OFFSETS[1], level), (OFFSETS[-1], level))),
                Line("misaligned", tuple((m.access.first, m.useful / 1e9) for m in shifted[1:])),
            ),
        ),
    )
    facts = {
        "device": device(stage),
        "bytes": 4 * copy.access.count,
        "grain_bytes": 4 * grain,
        "copy_seconds": copy.seconds,
        "accesses": [
            {**vars(m.access), "seconds": m.seconds, "useful_bytes": m.access.useful,
             "moved_bytes": moved(m.access, grain)}
            for m in dict.fromkeys([*strided, *shifted])
        ],
    }  # fmt: skip
    return Lesson(
        "coalescing",
        f"Strided and misaligned reads of {size_name(4 * copy.access.count)}, {name(stage)}",
        (by_stride, by_offset),
        paragraphs(
            reads.pieces,
            grain,
            {m.access: m.useful / copy.useful for m in strided},
            {m.access: m.useful / copy.useful for m in shifted},
            4 * copy.access.count,
            reads.cache,
        ),
        charts,
        wrong,
        facts,
    )
