"""Measure a map in chunks on one to four streams against one step after another, with timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from meshrun.jobs.bench.lessons.protocol import Context, Lesson, LessonTable, TableCell, Timeline
from meshrun.jobs.bench.lessons.streams.pipeline import MOST_STREAMS, ChunkedMap
from meshrun.jobs.bench.lessons.streams.schedule import (
    IDLE,
    LETTERS,
    STAGES,
    StreamVariant,
    cut,
    lower_bound,
    rounds_for,
    stream_lines,
    without_waiting,
)
from meshrun.runner.errors import UserError
from meshrun.runner.report.units import counted, size_name

FEW, MANY = 64, 1024  # rounds of arithmetic that calibrate the kernel
SHORTER = 5  # elements missing from the last chunk: not a whole number of warps
WIDTH = 84
SEQUENTIAL = "one step after another"
DRAWN = 3  # streams


def measure(context: Context) -> Lesson:
    wanted = int(context.options["chunks"])
    elements = context.maxbytes // 4 - SHORTER
    if elements < wanted:
        raise UserError(
            "less than one element in each chunk",
            got=f"-e {context.maxbytes} --chunks {wanted}",
            expected=f"at least {4 * (wanted + SHORTER)} bytes",
        )
    chunks = cut(elements, wanted)
    mismatches: list[str] = []

    def variant(chunked: ChunkedMap, label: str, streams: int, *, waiting: bool = False) -> StreamVariant:
        context.progress(label)
        seconds = context.median(lambda: chunked.run(streams, rounds, waiting=waiting)[0])
        chunked.poison()
        _, spans = chunked.run(streams, rounds, waiting=waiting)
        if context.check:
            mismatches.extend(f"{label}: {fault}" for fault in chunked.mismatches(rounds))
        bound = lower_bound(stage_seconds, len(chunks), streams) if chunked is pinned else None
        return StreamVariant(label, streams, seconds, bound, tuple(without_waiting(spans)))

    context.progress("calibrating the kernel")
    pinned = ChunkedMap(context, chunks, "pinned")
    copies = pinned.stage_seconds(0, 1), pinned.stage_seconds(2, 1)
    few, many = ((rounds, pinned.stage_seconds(1, rounds)) for rounds in (FEW, MANY))
    rounds = rounds_for(sum(copies) / 2, few, many)
    stage_seconds = (copies[0], pinned.stage_seconds(1, rounds), copies[1])
    variants = [variant(pinned, SEQUENTIAL, 1, waiting=True)]
    for streams in range(1, MOST_STREAMS + 1):
        variants.append(variant(pinned, counted(streams, "stream"), streams))
    pinned.release()
    pageable = ChunkedMap(context, chunks, "pageable")
    variants.append(variant(pageable, f"{DRAWN} streams, pageable", DRAWN))
    pageable.release()
    drawn = [one for one in variants if one.label == SEQUENTIAL or one.streams == DRAWN]
    return Lesson(
        "streams",
        f"A map of {size_name(4 * elements)} in {len(chunks)} chunks, {context.device_name}",
        (
            _stages(stage_seconds, 4 * chunks[0].count),
            _compared(variants, stage_seconds, len(chunks)),
            *map(_text_timeline, drawn),
        ),
        tuple(sentences(stage_seconds, variants)),
        tuple(map(_timeline, drawn)),
        tuple(mismatches),
        {
            "device": context.device,
            "bytes": 4 * elements,
            "chunk_bytes": [4 * chunk.count for chunk in chunks],
            "rounds": rounds,
            "stage_seconds": dict(zip(STAGES, stage_seconds, strict=True)),
            "variants": [asdict(one) for one in variants],
        },
    )


def _stages(stage_seconds: Sequence[float], nbytes: int) -> LessonTable:
    rows = zip(STAGES, stage_seconds, strict=True)
    return LessonTable(
        ("stage of a chunk, by itself", "time (ms)", "rate (GB/s)"),
        tuple((stage, seconds * 1e3, nbytes / seconds / 1e9) for stage, seconds in rows),
    )


def _compared(variants: Sequence[StreamVariant], stage_seconds: Sequence[float], chunks: int) -> LessonTable:
    def row(one: StreamVariant) -> tuple[TableCell, ...]:
        measured = (one.label, one.seconds * 1e3, variants[0].seconds / one.seconds)
        if one.bound is None:
            return *measured, None, None, None
        return (
            *measured,
            one.bound * 1e3,
            chunks * sum(stage_seconds) / one.bound,
            100 * one.bound / one.seconds,
        )

    titles = ("time (ms)", "speed-up", "bound (ms)", "bound (speed-up)", "of the bound (%)")
    return LessonTable(("variant", *titles), tuple(map(row, variants)))


def _text_timeline(variant: StreamVariant) -> LessonTable:
    last = max(span.end for span in variant.spans)
    legend = ", ".join(f"{letter} {stage}" for letter, stage in zip(LETTERS, STAGES, strict=True))
    return LessonTable(
        ("stream", f"0 to {last * 1e3:.4g} ms: {legend}, {IDLE} idle".ljust(WIDTH)),
        tuple(enumerate(stream_lines(variant.spans, WIDTH))),
        title=f"{variant.label}:",
    )


def _timeline(variant: StreamVariant) -> Timeline:
    spans = tuple((f"stream {one.stream}", STAGES[one.stage], one.begin, one.end) for one in variant.spans)
    return Timeline(spans, title=variant.label)


def sentences(stage_seconds: Sequence[float], variants: Sequence[StreamVariant]) -> list[str]:
    """Explain the times. stage_seconds: of each stage of a chunk by itself. variants: the first runs one step
    after another, the last uses pageable memory."""
    sequential, *pinned, pageable = variants
    best = min(pinned, key=lambda one: one.seconds)
    found = [
        f"Best: {best.label}, {sequential.seconds / best.seconds:.3g} times as fast as one step after another"
        + (f", {best.bound / best.seconds:.1%} of what its stages allow." if best.bound else ".")
    ]
    longest = max(stage_seconds)
    if longest > 1.2 * min(stage_seconds):
        found.append(f"Limited by: {STAGES[list(stage_seconds).index(longest)]}, the longest stage.")
    same = next(one for one in pinned if one.streams == pageable.streams)
    ratio = pageable.seconds / same.seconds
    compared = f"takes {ratio:.3g} times as long as" if ratio > 1.05 else "takes no longer than"
    return [*found, f"From pageable memory, {same.label} {compared} from pinned memory."]
