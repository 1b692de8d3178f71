"""Which stage set the pace of a streamed run, from the spans of all ranks: pure arithmetic.

A stage is busy on a rank while at least one of its spans runs there: with several chunks in one stage
at a time their spans overlap, and adding up their lengths would count that time more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from runner.report.units import percent_text, rate_text
from runner.spans import STAGES, Span

Interval = tuple[float, float]

WORDS = {
    "read": "reading",  # from the disk or from the page cache: a run cannot tell
    "to device": "host to device copies",
    "kernel": "the kernel",
    "from device": "device to host copies",
    "write": "writing",
}
ON_GPU = ("to device", "kernel", "from device")  # what keeps a GPU busy
ON_CPU = ("kernel",)
FULL = 0.75  # of the time: a stage less busy than this waited much, and the sentence says so


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points, as disjoint intervals in order; those that touch become one."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def busy(spans: Iterable[Span]) -> float:
    """Seconds during which at least one of the spans ran."""
    return sum(end - begin for begin, end in union((span.begin, span.end) for span in spans))


@dataclass(frozen=True)
class Load:
    """One stage of the run.

    seconds: busy, the median over the ranks. share: of the run's wall time. moved: bytes, of all ranks.
    rate: bytes per second of one rank while busy, the median over the ranks that were.
    together: all ranks' bytes over the seconds during which any of them was busy.
    Both rates are None where no bytes or no time can be told.
    """

    stage: str
    seconds: float
    share: float
    moved: int
    rate: float | None
    together: float | None


@dataclass(frozen=True)
class Limits:
    """A run's stages, in the order of STAGES, those that occurred.

    wall: seconds from the first span's begin to the last one's end. ranks: those that had a chunk.
    idle: the share of the wall time during which a rank's GPU had neither kernel nor copy to do (on a
    CPU: no kernel ran), the median over the ranks.
    """

    wall: float
    ranks: int
    gpu: bool
    loads: tuple[Load, ...]
    idle: float

    @property
    def limit(self) -> Load | None:
        """The stage that was busy longest; of several alike the earliest, for which the others wait."""
        return max(self.loads, key=lambda load: load.seconds, default=None)

    def sentence(self) -> str:
        """Such as "limited by: reading, 3.1 GB/s a rank (12.4 GB/s in all); the GPU was idle 71 %"."""
        load = self.limit
        if load is None:
            return "limited by: nothing, no chunk was left to do"
        text = f"limited by: {WORDS[load.stage]}"
        if load.rate is not None and load.together is not None:
            text += f", {rate_text(load.rate)}"
            text += f" a rank ({rate_text(load.together)} in all)" if self.ranks > 1 else ""
        if load.share < FULL:
            text += f", though busy only {percent_text(load.share)} of the time"
        device = "the GPU" if self.gpu else "the CPU's kernel"
        return f"{text}; {device} was idle {percent_text(self.idle)}"

    def record(self) -> dict[str, Any]:
        """Plain values, for the run's record. Units as in Load; shares from 0 to 1."""
        return {
            "wall_seconds": self.wall,
            "limited_by": self.limit.stage if self.limit else None,
            "idle_share": self.idle,
            "stages": {
                load.stage: {
                    "seconds": load.seconds,
                    "share": load.share,
                    "bytes": load.moved,
                    "bytes_per_second": load.rate,
                    "bytes_per_second_together": load.together,
                }
                for load in self.loads
            },
        }


def measure(ranks: Sequence[Sequence[Span]], gpu: bool) -> Limits:
    """What the spans of all ranks show; their clocks must agree (`Span.shifted`).

    gpu: the ranks compute on GPUs. A rank without any span had nothing to do and is left out.
    """
    worked = [spans for spans in ranks if spans]
    wall = wall_time(worked)
    stages = (stage for stage in STAGES if any(span.stage == stage for spans in worked for span in spans))
    idle = median([idle_share(spans, wall, gpu) for spans in worked]) if worked else 0.0
    return Limits(wall, len(worked), gpu, tuple(_load(stage, worked, wall) for stage in stages), idle)


def wall_time(ranks: Sequence[Sequence[Span]]) -> float:
    """Seconds from the first span's begin to the last one's end."""
    spans = [span for spans in ranks for span in spans]
    return max(span.end for span in spans) - min(span.begin for span in spans) if spans else 0.0


def idle_share(spans: Iterable[Span], wall: float, gpu: bool) -> float:
    """The share of `wall` seconds during which this rank's device did nothing."""
    stages = ON_GPU if gpu else ON_CPU
    return max(0.0, 1 - busy(span for span in spans if span.stage in stages) / wall) if wall else 0.0


def _load(stage: str, ranks: Sequence[Sequence[Span]], wall: float) -> Load:
    parts = [[span for span in spans if span.stage == stage] for spans in ranks]
    seconds = [busy(part) for part in parts]
    moved = [sum(span.moved for span in part) for part in parts]
    rates = [count / time for count, time in zip(moved, seconds, strict=True) if count and time]
    together = busy(span for part in parts for span in part)
    middle = median(seconds)
    return Load(
        stage,
        middle,
        middle / wall if wall else 0.0,
        sum(moved),
        median(rates) if rates else None,
        sum(moved) / together if rates else None,
    )
