"""Schedule of a map in chunks: cuts, the arithmetic that makes its stages equally long, the lower bound of
its time, and its timeline. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

STAGES = ("host to GPU", "kernel", "GPU to host")
LETTERS = "HKD"  # of the stages: from host, kernel, from device
IDLE = "."
WORD = 2**32


@dataclass(frozen=True)
class Chunk:
    """Elements begin .. begin + count - 1 of the whole."""

    number: int
    begin: int
    count: int


@dataclass(frozen=True)
class StageSpan:
    """One stage of a chunk, in seconds from the common start. stage: an index of STAGES."""

    stream: int
    chunk: int
    stage: int
    begin: float
    end: float


@dataclass(frozen=True)
class StreamVariant:
    """A measured variant of the map. bound: lower bound of its seconds by the single stages; None if they
    were not measured for this kind of memory."""

    label: str
    streams: int
    seconds: float
    bound: float | None
    spans: tuple[StageSpan, ...]


def cut(elements: int, chunks: int) -> list[Chunk]:
    """Cut into at most `chunks` chunks of equal size, except for a smaller last one."""
    each = math.ceil(elements / chunks)
    return [
        Chunk(number, begin, min(each, elements - begin))
        for number, begin in enumerate(range(0, elements, each))
    ]


def rounds_for(seconds: float, few: tuple[int, float], many: tuple[int, float]) -> int:
    """Return the rounds that take `seconds`, from two measurements (rounds, seconds); at least 1."""
    slope = (many[1] - few[1]) / (many[0] - few[0])
    if slope <= 0:
        return 1
    return max(1, round(few[0] + (seconds - few[1]) / slope))


def composed(multiplier: int, increment: int, rounds: int) -> tuple[int, int]:
    """Compose x -> multiplier * x + increment modulo 2^32, `rounds` times, into one such function."""
    total, added = 1, 0
    for bit in bin(rounds)[2:]:
        total, added = total * total % WORD, (total * added + added) % WORD
        if bit == "1":
            total, added = total * multiplier % WORD, (added * multiplier + increment) % WORD
    return total, added


def lower_bound(stages: Sequence[float], chunks: int, streams: int) -> float:
    """Return the least seconds that a map takes. stages: seconds of each for one chunk.

    A stage serves one chunk at a time, the first chunk passes all stages, and a stream runs one operation
    after another.
    """
    whole, longest = sum(stages), max(stages)
    return max(whole + (chunks - 1) * longest, math.ceil(chunks / streams) * whole)


def without_waiting(spans: Sequence[StageSpan]) -> list[StageSpan]:
    """Subtract the time that spans waited for their stage's engine, which serves one chunk at a time."""
    found: list[StageSpan] = []
    for stage in range(len(STAGES)):
        free = 0.0
        for span in sorted((one for one in spans if one.stage == stage), key=lambda one: one.end):
            found.append(replace(span, begin=min(max(span.begin, free), span.end)))
            free = span.end
    return sorted(found, key=lambda one: (one.begin, one.stage))


def stream_lines(spans: Sequence[StageSpan], width: int) -> list[str]:
    """Draw a line of `width` letters for each stream: the stage that took most of each interval."""
    last = max(span.end for span in spans)
    step = last / width
    lines = []
    for stream in sorted({span.stream for span in spans}):
        line = ""
        for place in range(width):
            spent = [0.0] * len(STAGES)
            for span in spans:
                if span.stream == stream:
                    inside = min(span.end, (place + 1) * step) - max(span.begin, place * step)
                    spent[span.stage] += max(inside, 0.0)
            best = max(range(len(STAGES)), key=lambda stage: spent[stage])
            line += LETTERS[best] if spent[best] > step - sum(spent) else IDLE
        lines.append(line)
    return lines
