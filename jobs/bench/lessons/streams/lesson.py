"""A map in chunks on one to four streams against one step after another, and when what ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import runner
from jobs.bench.lessons.protocol import Bars, Cell, Lesson, Ranks, Stage, Table
from jobs.bench.lessons.streams.explain import paragraphs
from jobs.bench.lessons.streams.pipeline import MOST_STREAMS, Map
from jobs.bench.lessons.streams.schedule import (
    IDLE,
    LETTERS,
    STAGES,
    Span,
    cut,
    floor,
    lanes,
    rounds_for,
    working,
)
from jobs.bench.lessons.timers import device, name
from jobs.measure.sizes import size_name

SUMMARY = "A map in chunks on one to four streams."
RANKS: Ranks = "one"
CPU = False
FEW, MANY = 64, 1024  # rounds of arithmetic that calibrate the kernel
ODD = 5  # elements that the last chunk lacks: not even the same number of warps
WIDTH = 84
SEQUENTIAL = "one step after another"
DRAWN = 3  # streams


@dataclass(frozen=True)
class Variant:
    """bound: the least seconds that the stages, measured alone, allow; None where they were others."""

    label: str
    streams: int
    seconds: float
    bound: float | None
    spans: tuple[Span, ...]


def measure(stage: Stage) -> Lesson:
    wanted = int(stage.options["chunks"])
    elements = stage.maxbytes // 4 - ODD
    if elements < wanted:
        raise runner.UserError(
            "there is less than an element for each chunk",
            got=f"-e {stage.maxbytes} --chunks {wanted}",
            expected=f"at least {4 * (wanted + ODD)} bytes",
        )
    chunks = cut(elements, wanted)
    wrong: list[str] = []

    def variant(mapped: Map, label: str, streams: int, *, waiting: bool = False) -> Variant:
        stage.progress(label)
        seconds = stage.median(lambda: mapped.run(streams, rounds, waiting=waiting)[0])
        mapped.spoil()
        _, spans = mapped.run(streams, rounds, waiting=waiting)
        if stage.check:
            wrong.extend(f"{label}: {fault}" for fault in mapped.wrong(rounds))
        bound = floor(alone, len(chunks), streams) if mapped is pinned else None
        return Variant(label, streams, seconds, bound, tuple(working(spans)))

    stage.progress("calibrating the kernel")
    pinned = Map(stage, chunks, "pinned")
    copies = pinned.alone(0, 1), pinned.alone(2, 1)
    few, many = ((rounds, pinned.alone(1, rounds)) for rounds in (FEW, MANY))
    rounds = rounds_for(sum(copies) / 2, few, many)
    alone = (copies[0], pinned.alone(1, rounds), copies[1])
    variants = [variant(pinned, SEQUENTIAL, 1, waiting=True)]
    for streams in range(1, MOST_STREAMS + 1):
        variants.append(variant(pinned, f"{streams} stream{'s' if streams > 1 else ''}", streams))
    pinned.release()
    pageable = Map(stage, chunks, "pageable")
    variants.append(variant(pageable, f"{DRAWN} streams, pageable", DRAWN))
    pageable.release()
    return Lesson(
        "streams",
        f"A map of {size_name(4 * elements)} in {len(chunks)} chunks, {name(stage)}",
        _tables(variants, alone, chunks[0].count),
        paragraphs(
            alone, {one.label: (one.seconds, one.bound) for one in variants}, len(chunks), 4 * chunks[0].count
        ),
        tuple(_bars(one) for one in _drawn(variants)),
        tuple(wrong),
        {
            "device": device(stage),
            "bytes": 4 * elements,
            "chunk_bytes": [4 * chunk.count for chunk in chunks],
            "rounds": rounds,
            "stage_seconds": dict(zip(STAGES, alone, strict=True)),
            "variants": [asdict(one) for one in variants],
        },
    )


def _drawn(variants: Sequence[Variant]) -> list[Variant]:
    return [one for one in variants if one.label == SEQUENTIAL or one.streams == DRAWN]


def _tables(variants: Sequence[Variant], alone: Sequence[float], count: int) -> tuple[Table, ...]:
    sequential, chunks = variants[0].seconds, len(variants[0].spans) // len(STAGES)

    def row(one: Variant) -> tuple[Cell, ...]:
        measured = (one.label, one.seconds * 1e3, sequential / one.seconds)
        if one.bound is None:
            return *measured, None, None, None
        most = chunks * sum(alone) / one.bound
        return *measured, one.bound * 1e3, most, 100 * one.bound / one.seconds

    titles = ("time (ms)", "speed-up", "bound (ms)", "bound (speed-up)", "of the bound (%)")
    compared = Table(("how", *titles), tuple(map(row, variants)))
    stages = Table(
        ("stage of a chunk, alone", "time (ms)", "rate (GB/s)"),
        tuple(
            (stage, seconds * 1e3, 4 * count / seconds / 1e9)
            for stage, seconds in zip(STAGES, alone, strict=True)
        ),
    )
    legend = ", ".join(f"{letter} {stage}" for letter, stage in zip(LETTERS, STAGES, strict=True))
    return (stages, compared, *(_timeline(one, legend) for one in _drawn(variants)))


def _timeline(variant: Variant, legend: str) -> Table:
    last = max(span.end for span in variant.spans)
    return Table(
        ("stream", f"0 to {last * 1e3:.4g} ms: {legend}, {IDLE} idle".ljust(WIDTH)),
        tuple((number, line) for number, line in enumerate(lanes(variant.spans, WIDTH))),
        title=f"{variant.label}:",
    )


def _bars(variant: Variant) -> Bars:
    spans = tuple((f"stream {one.stream}", STAGES[one.stage], one.begin, one.end) for one in variant.spans)
    return Bars(spans, title=variant.label)
