"""A map job over an array of any size, from file to file: cut, dealt, streamed, resumed where one stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from runner.clock import clock_offsets
from runner.comm import Counters
from runner.deal import Deal
from runner.ending import Ending
from runner.errors import RunError, UserError
from runner.journal import Journal, Syncer
from runner.report.flow_progress import BETWEEN, recent_rates
from runner.report.limits import busy, measure
from runner.report.timeline import Lane, check_timeline, write_timeline
from runner.spans import STAGES, Spans
from runner.storage import Sink, Source, open_sink, remove_partial
from runner.stream.cut import KEPT, chunks_of, known_result
from runner.stream.device import DeviceEngine
from runner.stream.ends import Ends, Engine
from runner.stream.flow import stream
from runner.stream.host import HostEngine
from runner.stream.identity import State, identity, state_of
from runner.stream.options import StreamOptions
from runner.timing import Phases
from runner.work import Work
from runner.world import World

MOST_THREADS = 16
Show = Callable[[int, int, dict[str, float]], None]  # bytes done, in all, rank 0's rates


def unseen(done: int, total: int, rates: dict[str, float]) -> None:
    """Progress that nobody watches."""


@dataclass
class Streaming:
    """One streamed run, for `write` and then `commit`; collective."""

    world: World
    work: Work
    source: Source
    target: Path
    options: StreamOptions
    ending: Ending
    phases: Phases
    show: Show = unseen
    sink: Sink = field(init=False)
    journal: Journal = field(init=False)

    def write(self) -> dict[str, Any]:
        """Write the result beside its final name; this part of the run's record.

        Raises UserError where an unfinished run is in the way, or another one than this; RunError where
        the input has changed meanwhile.
        """
        world, options = self.world, self.options
        self.work = known_result(world, self.work, self.source)
        self.sink = open_sink(self.target, *self.work.known, KEPT)
        self.sink.threads = threads_of(world)
        self.journal = Journal(self.sink.path)
        before, kept = world.once(self._look)
        rows = kept["rows"] if kept else None
        chunks = chunks_of(world, self.work, self.source, self.sink, options, rows)
        whole = identity(world, self.work, self.source, chunks, before)
        finished = world.once(lambda: self._settle(kept, whole))
        self.ending.kept = "finished chunks are kept; the same command with --resume goes on"
        self.sink.sync()  # on every rank, before it writes: see Syncer
        todo = [number for number in range(len(chunks)) if number not in finished]
        ends = Ends(world, self.work, chunks, self.source, self.sink, Spans())
        engine: Engine = DeviceEngine(ends) if world.backend.asynchronous else HostEngine(ends)
        deal = self._work_off(engine, ends, todo)
        world.once(lambda: self._check_unchanged(before))
        return {
            "chunks": len(chunks),
            "rows": chunks.rows,
            "depth": options.depth,
            "resumed": len(finished),
            "own": [one[0] for one in deal],
            "taken_over": [one[1] for one in deal],
            **self._report(ends),
        }

    def commit(self) -> None:
        """After the output has its name: nothing is unfinished any more."""
        self.ending.kept = None
        self.world.once(self.journal.remove)

    def _look(self) -> tuple[State, dict[str, Any] | None]:
        """The input's state, and the identity of an unfinished run; on rank 0."""
        if self.options.timeline is not None:
            check_timeline(Path(self.options.timeline))
        kept = self.journal.kept()
        if kept is not None and not self.options.resume:
            raise self.journal.unfinished(self.sink.partial)
        return state_of(self.source.path), kept

    def _settle(self, kept: dict[str, Any] | None, whole: dict[str, Any]) -> set[int]:
        """Begin the output, or go on with one: the chunks that are finished. On rank 0."""
        if kept is None:
            remove_partial(self.sink.partial)  # of a run that ended before its journal was there
            self.ending.unfinished(self.sink.partial)
            self.sink.create()
            self.sink.sync()  # its header, before anything says that it is there
            self.journal.begin(whole)
            self.ending.unfinished(None)
            return set()
        self.journal.check(kept, whole, self.sink.partial)
        if not self.sink.partial.exists():
            raise UserError(
                f"the unfinished output {self.sink.partial} is gone",
                hint=f"rm -r {self.journal.folder}, to begin anew, or where {self.sink.path} is finished",
            )
        return self.journal.finished({rank.host_id for rank in self.world.ranks})

    def _work_off(self, engine: Engine, ends: Ends, todo: list[int]) -> list[tuple[int, int]]:
        """Do what is to be done; how many chunks each rank had of its own, and of others."""
        world, options = self.world, self.options
        counters = None if options.static or world.size == 1 else self._counters()
        deal = Deal(todo, world.rank, world.size, counters)
        log = self.journal.log(f"{world.nonce}-{world.rank}", world.here.host_id)
        progress = _Progress(ends, todo, deal, self.show) if world.rank == 0 else None
        with closing(Syncer(log, self.sink.sync)) as syncer:

            def finished(number: int) -> None:
                syncer.done(number)
                if progress is not None:
                    progress.note()

            if todo:
                stream(
                    engine,
                    ends.spans,
                    deal,
                    depth=min(options.depth, len(todo)),
                    threads=threads_of(world),
                    finished=finished,
                    idle=counters.poke if counters else _nothing,
                )
        everyone: list[tuple[int, int]] = world.control.allgather((deal.own, deal.taken_over))
        if counters is not None:
            counters.close()
        return everyone

    def _counters(self) -> Counters | None:
        try:
            return self.world.control.counters()
        except RunError as reason:  # on every rank alike
            self.world.warnings.append(f"no rank takes over chunks of a slower one: {reason}")
            return None

    def _check_unchanged(self, before: State) -> None:
        after = state_of(self.source.path)
        if after != before:
            raise RunError(
                f"{self.source.path} changed while it was read",
                got=f"{after}",
                expected=f"{before}",
                hint=f"rm -r {self.journal.folder} {self.sink.partial}, then the run again",
                everywhere=True,
            )

    def _report(self, ends: Ends) -> dict[str, Any]:
        world, mine = self.world, ends.spans.found
        for stage in STAGES:
            spans = [span for span in mine if span.stage == stage]
            if spans:
                self.phases.add(stage, busy(spans), sum(span.moved for span in spans))
        offsets = clock_offsets(world.control)
        lanes = [
            Lane(rank.number, rank.host, str(rank.device), -offsets[rank.number].offset, spans)
            for rank, spans in zip(world.ranks, world.control.allgather(mine), strict=True)
        ]
        shifted = [[span.shifted(lane.offset) for span in lane.spans] for lane in lanes]
        limits = measure(shifted, gpu=world.backend.asynchronous)
        if self.options.timeline is not None and world.rank == 0:
            about = {
                "job": self.work.job.name,
                "input": str(self.source.path),
                "output": str(self.target),
                "ranks": world.size,
            }
            write_timeline(Path(self.options.timeline), lanes, about)
        return {"limits": limits.record(), "limited_by": limits.sentence()}


class _Progress:
    """How far the run is, as far as rank 0 knows: its own chunks, and what others have been dealt."""

    def __init__(self, ends: Ends, todo: list[int], deal: Deal, show: Show) -> None:
        self._ends, self._deal, self._show = ends, deal, show
        itemsize = ends.work.dtype.itemsize
        self._total = sum(region.size for region in ends.work.partition) * itemsize
        self._each = sum(ends.chunks[number].size for number in todo) * itemsize / max(len(todo), 1)
        self._before = self._total - round(self._each * len(todo))
        self._own, self._shown = 0, 0.0
        show(self._before, self._total, {})

    def note(self) -> None:
        self._own += 1
        now = perf_counter()
        if now - self._shown < BETWEEN:
            return
        self._shown = now
        under_way = self._deal.own + self._deal.taken_over - self._own
        others = max(self._deal.dealt() - self._own - under_way * self._ends.world.size, 0)
        done = self._before + round(self._each * (self._own + others))
        self._show(min(done, self._total), self._total, recent_rates(reversed(self._ends.spans.found), now))


def threads_of(world: World) -> int:
    """Threads that read and write: this rank's share of its cores, two at least."""
    beside = sum(rank.host_id == world.here.host_id for rank in world.ranks)
    return max(2, min(len(os.sched_getaffinity(0)) // beside, MOST_THREADS))


def _nothing() -> None:
    pass
