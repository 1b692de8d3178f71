"""Process numbered chunks on all ranks with work stealing; report progress, limits and the timeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Control, Counters
from meshrun.runner.comm.clock import clock_offsets
from meshrun.runner.errors import MeshrunError, RunError
from meshrun.runner.maps.streamed.endpoints import Engine
from meshrun.runner.maps.streamed.loop import stream
from meshrun.runner.maps.streamed.work_stealing import ChunkQueue
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report.bottleneck import Bottleneck, Summary, Table, combine, summary
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.spans import STAGES, Span, Spans
from meshrun.runner.report.stream_progress import BETWEEN, OnStreamProgress, recent_rates
from meshrun.runner.report.timeline import Lane, write_timeline
from meshrun.runner.spelling import option
from meshrun.runner.world.world import World

MOST_THREADS = 16


def process_chunks(
    world: World,
    options: StreamOptions,
    engine: Engine,
    spans: Spans,
    todo: Sequence[int],
    *,
    depth: int,
    done: Callable[[int], None],
    left: int,
    total: int,
    show: OnStreamProgress,
) -> list[tuple[int, int]]:
    """Process `todo` on all ranks; return each rank's (own, taken over) chunk counts. Collective.

    depth: chunks in flight on this rank. done: called with the number of each chunk finished here.
    left, total: bytes still to be processed, and bytes including what an earlier run has finished.
    """
    spans.keep = options.timeline is not None
    counters = None if options.static or world.size == 1 else _counters(world)
    queue = ChunkQueue(todo, world.rank, world.size, counters)
    progress = None
    if world.rank == 0:
        # Across hosts, a read of the counters would wait for ranks that are computing.
        taken = queue.taken if len(world.hosts) == 1 else None
        progress = ChunkProgress(show, queue, taken, world.size, spans, len(todo), left, total)

    def finished(number: int) -> None:
        done(number)
        if progress is not None:
            progress.note()

    if todo:
        stream(
            engine,
            spans,
            queue,
            depth=min(depth, len(todo)),
            threads=threads_of(world),
            finished=finished,
            idle=counters.progress if counters else _nothing,
        )
    everyone = world.control.allgather((queue.own, queue.taken_over, [*engine.shortages]))
    warn_of_shortages(world, engine, [shortages for _, _, shortages in everyone])
    if counters is not None:
        counters.close()
    return [(own, taken_over) for own, taken_over, _ in everyone]


def warn_of_shortages(world: World, engine: Engine, everyone: Sequence[Sequence[str]]) -> None:
    """Warn of what did not fit the devices' memory. On every rank. everyone: the engines' shortages."""
    engine.shortages.clear()
    for rank, shortages in zip(world.ranks, everyone, strict=True):
        for sentence in shortages:
            world.warn(f"rank {rank.number}, {rank.host}, {rank.device}: {sentence}")


def _counters(world: World) -> Counters | None:
    try:
        return world.control.counters()
    except RunError as reason:  # on all ranks or none
        world.warnings.append(f"no rank takes over chunks of a slower one: {reason}")
        return None


class ChunkProgress:
    """Progress of the run on rank 0: its own finished chunks, and the chunks that others have taken.

    taken: returns how many chunks all ranks have taken; if None, all ranks are assumed to be as fast as rank
    0.
    """

    def __init__(
        self,
        show: OnStreamProgress,
        queue: ChunkQueue,
        taken: Callable[[], int] | None,
        ranks: int,
        spans: Spans,
        count: int,
        left: int,
        total: int,
    ) -> None:
        self._show, self._queue, self._taken = show, queue, taken
        self._ranks, self._spans = ranks, spans
        self._each, self._total = left / max(count, 1), total
        self._before = total - left
        self._own, self._shown = 0, 0.0
        show(self._before, total, dict)

    def note(self) -> None:
        """Count one more chunk finished by rank 0, and show the progress at intervals."""
        self._own += 1
        now = perf_counter()
        if now - self._shown < BETWEEN:
            return
        self._shown = now
        under_way = self._queue.own + self._queue.taken_over - self._own
        others = self._own * (self._ranks - 1)
        if self._taken is not None:
            others = max(self._taken() - self._own - under_way * self._ranks, 0)
        done = self._before + round(self._each * (self._own + others))
        self._show(
            min(done, self._total), self._total, partial(recent_rates, reversed(self._spans.found), now)
        )


def report(world: World, phases: Phases, spans: Spans) -> dict[str, Any]:
    """Return what limited the run, for the record, and add its stages to `phases`. Collective."""
    tracks = spans.tracks()
    for stage in STAGES:
        if stage in tracks.stages:
            phases.add(stage, tracks.stages[stage].busy, tracks.stages[stage].moved)
    gpu = world.backend.asynchronous
    limits = _limits(world, summary(tracks, gpu, _offsets(world)[world.rank]), gpu)
    return {"limits": limits.record(), "limited_by": limits.sentence()}


def draw(world: World, spans: Spans, timeline: str | None, about: dict[str, Any]) -> None:
    """Write the timeline if one was requested, after the output is complete. Collective.

    Raises RunError on every rank if the timeline cannot be written.
    """
    if timeline is None:
        return
    offsets, whole = _offsets(world), _gather(world.control, _table(spans.found))

    def write() -> None:
        places = zip(world.ranks, offsets, whole, strict=True)
        lanes = [Lane(r.number, r.host, str(r.device), offset, _spans(t)) for r, offset, t in places]
        try:
            write_timeline(Path(timeline), lanes, {**about, "ranks": world.size})
        except MeshrunError as reason:
            what = f"{about['output']} is complete, but {reason.what}"
            raise RunError(
                what, why=reason.why, got=reason.got, hint=f"{option('timeline')} on another disk"
            ) from reason

    world.on_root(write)


def _offsets(world: World) -> list[float]:
    """Return the seconds to add to each rank's clock so that all agree. Collective."""
    return [-clock.offset for clock in clock_offsets(world.control)]


def _limits(world: World, mine: Summary, gpu: bool) -> Bottleneck:
    small = world.control.allgather((mine.moved, mine.device))
    whens = _gather(world.control, mine.when)
    return world.on_root(
        lambda: combine(
            [Summary(moved, device, when) for (moved, device), when in zip(small, whens, strict=True)], gpu
        )
    )


def _gather(control: Control, table: Table) -> list[Table]:
    """Gather every rank's float64 table on rank 0, in rank order; empty on other ranks. Collective."""
    counts = control.allgather(len(table))
    if control.rank != 0:
        control.exchange([(0, table)] if len(table) else [], []).wait()
        return []
    found = [table, *(np.empty((count, table.shape[1])) for count in counts[1:])]
    control.exchange([], [(peer, part) for peer, part in enumerate(found) if peer and len(part)]).wait()
    return found


def _table(spans: Sequence[Span]) -> Table:
    """Pack spans into float64 rows: chunk numbers and bytes are exact below 2 ** 53."""
    rows = ((STAGES.index(span.stage), *span[1:]) for span in spans)
    return np.fromiter(rows, np.dtype((np.float64, 5)), len(spans))


def _spans(table: Table) -> list[Span]:
    return [
        Span(STAGES[int(stage)], int(chunk), begin, end, int(moved))
        for stage, chunk, begin, end, moved in table.tolist()
    ]


def threads_of(world: World) -> int:
    """Return the number of I/O threads: this rank's share of the host's cores, at least 2."""
    return max(2, min(len(os.sched_getaffinity(0)), world.cores, MOST_THREADS))


def _nothing() -> None:
    pass
