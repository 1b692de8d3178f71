"""Numbered pieces of a run, dealt to all ranks and worked off: how far they are, and what it took."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from runner.clock import clock_offsets
from runner.comm import Counters
from runner.deal import Deal
from runner.errors import RunError
from runner.report.flow_progress import BETWEEN, recent_rates
from runner.report.limits import busy, measure
from runner.report.timeline import Lane, write_timeline
from runner.spans import STAGES, Spans
from runner.stream.ends import Engine
from runner.stream.flow import stream
from runner.stream.options import StreamOptions
from runner.timing import Phases
from runner.world import World

MOST_THREADS = 16
Show = Callable[[int, int, dict[str, float]], None]  # bytes done, in all, rank 0's rates


def unseen(done: int, total: int, rates: dict[str, float]) -> None:
    """Progress that nobody watches."""


def work_off(
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
    show: Show,
) -> list[tuple[int, int]]:
    """Do `todo` on all ranks; how many each had of its own, and of others. Collective.

    depth: pieces under way on this rank. done: called with the number of each that is finished here.
    left, total: bytes of what is to be done, and of that with what an earlier run has done.
    """
    counters = None if options.static or world.size == 1 else _counters(world)
    deal = Deal(todo, world.rank, world.size, counters)
    progress = Progress(show, deal, world.size, spans, len(todo), left, total) if world.rank == 0 else None

    def finished(number: int) -> None:
        done(number)
        if progress is not None:
            progress.note()

    if todo:
        stream(
            engine,
            spans,
            deal,
            depth=min(depth, len(todo)),
            threads=threads_of(world),
            finished=finished,
            idle=counters.poke if counters else _nothing,
        )
    everyone: list[tuple[int, int]] = world.control.allgather((deal.own, deal.taken_over))
    if counters is not None:
        counters.close()
    return everyone


def _counters(world: World) -> Counters | None:
    try:
        return world.control.counters()
    except RunError as reason:  # on every rank alike
        world.warnings.append(f"no rank takes over chunks of a slower one: {reason}")
        return None


class Progress:
    """How far the run is, as far as rank 0 knows: its own pieces, and what others have been dealt."""

    def __init__(
        self, show: Show, deal: Deal, ranks: int, spans: Spans, count: int, left: int, total: int
    ) -> None:
        self._show, self._deal, self._ranks, self._spans = show, deal, ranks, spans
        self._each, self._total = left / max(count, 1), total
        self._before = total - left
        self._own, self._shown = 0, 0.0
        show(self._before, total, {})

    def note(self) -> None:
        """One more of rank 0's own is finished."""
        self._own += 1
        now = perf_counter()
        if now - self._shown < BETWEEN:
            return
        self._shown = now
        under_way = self._deal.own + self._deal.taken_over - self._own
        others = max(self._deal.dealt() - self._own - under_way * self._ranks, 0)
        done = self._before + round(self._each * (self._own + others))
        self._show(min(done, self._total), self._total, recent_rates(reversed(self._spans.found), now))


def report(
    world: World, phases: Phases, spans: Spans, timeline: str | None, about: dict[str, Any]
) -> dict[str, Any]:
    """What set the pace, for the record; the stages among the phases, and drawn. Collective."""
    mine = spans.found
    for stage in STAGES:
        those = [span for span in mine if span.stage == stage]
        if those:
            phases.add(stage, busy(those), sum(span.moved for span in those))
    offsets = clock_offsets(world.control)
    lanes = [
        Lane(rank.number, rank.host, str(rank.device), -offsets[rank.number].offset, found)
        for rank, found in zip(world.ranks, world.control.allgather(mine), strict=True)
    ]
    shifted = [[span.shifted(lane.offset) for span in lane.spans] for lane in lanes]
    limits = measure(shifted, gpu=world.backend.asynchronous)
    if timeline is not None and world.rank == 0:
        write_timeline(Path(timeline), lanes, {**about, "ranks": world.size})
    return {"limits": limits.record(), "limited_by": limits.sentence()}


def threads_of(world: World) -> int:
    """Threads that read and write: as many as this rank has cores, its share of the host's; two at least."""
    beside = sum(rank.host_id == world.here.host_id for rank in world.ranks)
    share = (os.cpu_count() or 1) // beside  # a rank that is bound has no other's cores among its own
    return max(2, min(len(os.sched_getaffinity(0)), share, MOST_THREADS))


def _nothing() -> None:
    pass
