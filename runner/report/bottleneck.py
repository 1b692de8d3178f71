"""Find the stage that limited a streamed run, from the spans of all ranks.

A stage is busy on a rank while at least one of its spans runs there. Spans of several chunks in the same
stage overlap, so that the sum of their lengths would count that time more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from meshrun.runner.report.spans import ON_GPU, STAGES, Interval, Span, Stage, Tracks, coarser, union
from meshrun.runner.report.units import percent_text, rate_text

Table = np.ndarray[Any, np.dtype[np.float64]]

WORDS = {
    "read": "reading",  # from the disk or from the page cache, which a run cannot distinguish
    "to device": "host to device copies",
    "kernel": "the kernel",
    "from device": "device to host copies",
    "write": "writing",
}
ON_CPU: tuple[Stage, ...] = ("kernel",)
FULL = 0.75  # share of the time; the sentence mentions a limiting stage that was less busy


def busy(spans: Iterable[Span]) -> float:
    """Seconds during which at least one of the spans ran."""
    return sum(each.busy for each in union(Interval(span.begin, span.end, span.seconds) for span in spans))


@dataclass(frozen=True)
class Summary:
    """One rank's contribution to `combine`; at most about 160 KB for a run of any length.

    moved: bytes by stage, of the stages that occurred. device: seconds during which the rank's device was
    busy. when: float64 (n, 4), rows of stage (index in STAGES), begin, end, seconds busy in between.
    """

    moved: Mapping[Stage, int]
    device: float
    when: Table

    def of(self, stage: Stage) -> Table:
        """Begin, end and busy seconds of one stage, (n, 3)."""
        return self.when[self.when[:, 0] == STAGES.index(stage), 1:]

    def busy(self, stage: Stage) -> float:
        return float(self.of(stage)[:, 2].sum())


def summary(tracks: Tracks, gpu: bool, offset: float = 0.0) -> Summary:
    """One rank's summary, on a clock that is `offset` seconds ahead. gpu: the rank computes on a GPU."""
    when = [
        (STAGES.index(stage), each.begin + offset, each.end + offset, each.busy)
        for stage, track in tracks.stages.items()
        for each in coarser(track.intervals)
    ]
    device = tracks.gpu.busy if gpu else sum(tracks.stages[s].busy for s in ON_CPU if s in tracks.stages)
    moved = {stage: track.moved for stage, track in tracks.stages.items()}
    return Summary(moved, device, np.array(when, np.float64).reshape(-1, 4))


@dataclass(frozen=True)
class StageLoad:
    """One stage of the run.

    seconds: busy, the median over the ranks. share: of the run's wall time. moved: bytes, of all ranks.
    rate: bytes per second of one rank while busy, the median over the ranks with that stage.
    together: all ranks' bytes over the seconds during which any of them was busy.
    Both rates are None without bytes or time.
    """

    stage: str
    seconds: float
    share: float
    moved: int
    rate: float | None
    together: float | None


@dataclass(frozen=True)
class Bottleneck:
    """A run's stages, in the order of STAGES, those that occurred.

    wall: seconds from the first span's begin to the last one's end. ranks: those that had a chunk.
    idle: the share of the wall time during which a rank's GPU had neither kernel nor copy to do (on a
    CPU: no kernel ran), the median over the ranks.
    """

    wall: float
    ranks: int
    gpu: bool
    loads: tuple[StageLoad, ...]
    idle: float

    @property
    def limit(self) -> StageLoad | None:
        """The stage that was busy longest; of equals the earliest, for which the others wait."""
        return max(self.loads, key=lambda load: load.seconds, default=None)

    def sentence(self) -> str:
        """For example "limited by: reading, 3.1 GB/s a rank (12.4 GB/s in all); the GPU was idle 71 %"."""
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
        """Plain values for the run's record. Units as in StageLoad; shares from 0 to 1."""
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


def measure(ranks: Sequence[Sequence[Span]], gpu: bool) -> Bottleneck:
    """Find the bottleneck from the spans of all ranks, whose clocks must agree (`Span.shifted`).

    gpu: the ranks compute on GPUs. Ranks without spans had nothing to do and are left out.
    """
    return combine([summary(_tracks(spans), gpu) for spans in ranks], gpu)


def combine(ranks: Sequence[Summary], gpu: bool) -> Bottleneck:
    """The same from the ranks' summaries."""
    worked = [rank for rank in ranks if rank.moved]
    if not worked:
        return Bottleneck(0.0, 0, gpu, (), 0.0)
    wall = float(
        max(np.max(rank.when[:, 2]) for rank in worked) - min(np.min(rank.when[:, 1]) for rank in worked)
    )
    stages = (stage for stage in STAGES if any(stage in rank.moved for rank in worked))
    idle = median(max(0.0, 1 - rank.device / wall) if wall else 0.0 for rank in worked)
    return Bottleneck(wall, len(worked), gpu, tuple(_load(stage, worked, wall) for stage in stages), idle)


def _tracks(spans: Sequence[Span]) -> Tracks:
    tracks = Tracks()
    tracks.add(spans)
    return tracks


def wall_time(ranks: Sequence[Sequence[Span]]) -> float:
    """Seconds from the first span's begin to the last one's end."""
    spans = [span for spans in ranks for span in spans]
    return max(span.end for span in spans) - min(span.begin for span in spans) if spans else 0.0


def idle_share(spans: Iterable[Span], wall: float, gpu: bool) -> float:
    """The share of `wall` seconds during which this rank's device did nothing."""
    stages = ON_GPU if gpu else ON_CPU
    return max(0.0, 1 - busy(span for span in spans if span.stage in stages) / wall) if wall else 0.0


def _load(stage: Stage, ranks: Sequence[Summary], wall: float) -> StageLoad:
    seconds = [rank.busy(stage) for rank in ranks]
    moved = [rank.moved.get(stage, 0) for rank in ranks]
    rates = [count / time for count, time in zip(moved, seconds, strict=True) if count and time]
    middle = median(seconds)
    return StageLoad(
        stage,
        middle,
        middle / wall if wall else 0.0,
        sum(moved),
        median(rates) if rates else None,
        sum(moved) / any_busy([rank.of(stage) for rank in ranks]) if rates else None,
    )


def any_busy(ranks: Sequence[Table]) -> float:
    """Seconds during which any rank was busy. ranks: of each, disjoint rows of begin, end, busy seconds.

    Exact for rows that are busy all the time. Overlapping rows that are partly busy, as in summaries of long
    runs, are treated as independent: their busy share is 1 - the product of their idle shares.
    """
    rows = np.concatenate(ranks)
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return 0.0
    share = rows[:, 2] / (rows[:, 1] - rows[:, 0])
    full = share > 1 - 1e-9
    idle = np.log1p(-np.where(full, 0.0, share))  # logarithms, so that a rank can be subtracted again
    times = np.concatenate([rows[:, 0], rows[:, 1]])
    order = np.argsort(times)
    fully = np.cumsum(np.concatenate([full, -full.astype(int)])[order])[:-1]
    partly = np.cumsum(np.concatenate([idle, -idle])[order])[:-1]
    shares = np.where(fully > 0, 1.0, -np.expm1(np.minimum(partly, 0.0)))
    return float((np.diff(times[order]) * shares).sum())
