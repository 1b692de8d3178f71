"""Spans of a streamed run: begin and end of each stage of each chunk, and bounded summaries of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Literal, NamedTuple, get_args

from meshrun.runner.recorder.ring import Recorder

Stage = Literal["read", "to device", "kernel", "from device", "write"]
STAGES: tuple[Stage, ...] = get_args(Stage)
ON_GPU = ("to device", "kernel", "from device")  # stages that keep a GPU busy

NEWEST = 1000  # spans that are always kept, for the progress display
FOLDED = 4096  # spans that are added to the tracks at once
MOST = 1000  # approximate limit on a track's intervals, which bounds their resolution to 1/1000 of the run


class Span(NamedTuple):
    """One stage of one chunk on this rank. begin, end: `time.perf_counter` seconds. moved: bytes."""

    stage: Stage
    chunk: int
    begin: float
    end: float
    moved: int

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def shifted(self, offset: float) -> Span:
        """The same span on a clock that is `offset` seconds ahead."""
        return self._replace(begin=self.begin + offset, end=self.end + offset)


class Interval(NamedTuple):
    """A time from begin to end, of which `busy` seconds were busy: all, unless made coarser."""

    begin: float
    end: float
    busy: float

    @property
    def share(self) -> float:
        return self.busy / (self.end - self.begin) if self.end > self.begin else 1.0


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones in order; adjacent ones are joined.

    Overlapping intervals that are partly busy are treated as independent.
    """
    merged: list[Interval] = []
    for each in sorted(intervals):
        if merged and each.begin <= merged[-1].end:
            last = merged[-1]
            twice = (min(last.end, each.end) - each.begin) * last.share * each.share
            end = max(last.end, each.end)
            busy = min(last.busy + each.busy - twice, end - last.begin)
            merged[-1] = Interval(last.begin, end, busy)
        else:
            merged.append(each)
    return merged


def coarser(intervals: Sequence[Interval], most: int = MOST) -> list[Interval]:
    """Reduce disjoint intervals in order to at most `most` + 1 with the same sum of busy seconds.

    Joins intervals within 2 / `most` of the whole time, which becomes the resolution.
    """
    if len(intervals) <= most:
        return list(intervals)
    reach = 2 * (intervals[-1].end - intervals[0].begin) / most
    found = [intervals[0]]
    for each in intervals[1:]:
        last = found[-1]
        if each.end - last.begin <= reach:
            found[-1] = Interval(last.begin, each.end, last.busy + each.busy)
        else:
            found.append(each)
    return found


@dataclass
class Track:
    """The times during which at least one span ran, as a bounded number of intervals. moved: bytes."""

    moved: int = 0
    intervals: list[Interval] = field(default_factory=list)

    @property
    def busy(self) -> float:
        """Seconds."""
        return sum(each.busy for each in self.intervals)

    def add(self, spans: Sequence[Span]) -> None:
        """Add at least one span. Spans that began before the track's end cost more."""
        self.moved += sum(span.moved for span in spans)
        new = [Interval(span.begin, span.end, span.seconds) for span in spans]
        first = min(each.begin for each in new)
        while self.intervals and self.intervals[-1].end >= first:
            new.append(self.intervals.pop())
        self.intervals += union(new)
        if len(self.intervals) > 2 * MOST:
            self.intervals = coarser(self.intervals)


@dataclass
class Tracks:
    """The tracks of one rank: one for each stage that occurred, and one for all stages on the GPU."""

    stages: dict[Stage, Track] = field(default_factory=dict)
    gpu: Track = field(default_factory=Track)

    def add(self, spans: Sequence[Span]) -> None:
        for stage in STAGES:
            if those := [span for span in spans if span.stage == stage]:
                self.stages.setdefault(stage, Track()).add(those)
        if those := [span for span in spans if span.stage in ON_GPU]:
            self.gpu.add(those)


@dataclass
class Spans:
    """The spans of one rank, in the order in which they ended. Thread-safe.

    keep: keep all spans in `found`. Otherwise only the newest (at least NEWEST) are kept and the others are
    only in `tracks`, so that memory is bounded for runs of millions of chunks. recorder: notes which stages
    of which chunks the rank is in; None: nothing does.
    """

    keep: bool = True
    recorder: Recorder | None = None
    found: list[Span] = field(default_factory=list)
    _tracks: Tracks = field(default_factory=Tracks)
    _folded: int = 0  # number of spans of `found` that are in the tracks
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def __call__(self, stage: Stage, chunk: int, moved: int) -> Iterator[None]:
        """Time the block as one span; a stage that fails adds none."""
        begin = perf_counter()
        with self.recorded(stage, chunk, moved):
            yield
        self.add(stage, chunk, begin, perf_counter(), moved)

    @contextmanager
    def recorded(self, stage: Stage, chunk: int, moved: int) -> Iterator[None]:
        """Have the recorder show the block as a stage of a chunk, without a span."""
        if self.recorder is None:
            yield
            return
        entry = self.recorder.enter(self.recorder.name(f"{stage} of chunk"), moved, 0, chunk + 1)
        try:
            yield
        finally:
            self.recorder.leave(entry)

    def add(self, stage: Stage, chunk: int, begin: float, end: float, moved: int) -> None:
        with self._lock:
            self.found.append(Span(stage, chunk, begin, end, moved))
            if len(self.found) - self._folded >= FOLDED:
                self._fold()

    def tracks(self) -> Tracks:
        """The tracks of all spans so far."""
        with self._lock:
            self._fold()
            return self._tracks

    def _fold(self) -> None:
        self._tracks.add(self.found[self._folded :])
        if not self.keep:
            self.found = self.found[
                -NEWEST:
            ]  # a new list, because a thread may be iterating over the old one
        self._folded = len(self.found)
