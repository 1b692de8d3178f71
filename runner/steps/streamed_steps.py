"""Time steps over arrays that do not fit the ranks' memory: several steps in each pass over the arrays.

A pass reads every chunk with the halo of `steps` steps, takes these steps on it, and writes the results.
Between passes the fields are in files: in the host's memory (/dev/shm) if there is room and all ranks are on
one host, else beside the output. Two sets of them take turns. The last pass writes the outputs. A pass ends
at each step after which the fields are looked at: for a checkpoint, a frame or a check of convergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.maps.streamed.chunk_agreement import chunks_of
from meshrun.runner.maps.streamed.cpu_engine import HostEngine
from meshrun.runner.maps.streamed.dispatch import process_chunks, report, threads_of
from meshrun.runner.maps.streamed.endpoints import Endpoints
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine, halving_of
from meshrun.runner.maps.streamed.halving import Halving
from meshrun.runner.options.form import Form
from meshrun.runner.options.step_options import EVERY
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.steps import for_chunks, least_rows
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.report.spans import Spans
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.spelling import option
from meshrun.runner.steps.chunk_steps import ChunkSteps
from meshrun.runner.steps.fused_steps import passes
from meshrun.runner.steps.loop import Until, after, check_finite, next_multiple
from meshrun.runner.steps.observers.checkpoints import Checkpoints
from meshrun.runner.steps.observers.frames import Frames
from meshrun.runner.storage.file_errors import check_room
from meshrun.runner.storage.formats.registry import Sink, Source, open_sink, read_back
from meshrun.runner.storage.paths import partial_path
from meshrun.runner.system.host_memory import memory_folder
from meshrun.runner.world.world import World

STEPS = 32  # of a pass, unless steps_per_exchange is given
STRETCHES = 1000  # of which the longest is sought: later ones are like them


@dataclass
class Discarded:
    """A sink for the results that no further step needs."""

    path: Path
    partial: Path
    shape: Shape = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.uint8))
    parallel: bool = True
    lossless: bool = True
    threads: int = 1
    name: str | None = None
    form: Form = field(default_factory=Form)
    chunks: None = None

    def create(self) -> None:
        """Make nothing."""

    def write(self, region: Region, array: HostArray) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class TakenInPasses:
    """What `StreamedSteps.take` did. single_reason: why steps were taken one by one, if several were asked
    for. stream: this part of the run's record."""

    steps: int
    steps_per_pass: int
    passes: int
    single_reason: str
    stream: dict[str, Any]


@dataclass
class StreamedSteps:
    """Steps of one run, for `take`; collective.

    memory: what each rank may use. track: names what to remove if the run fails.
    first: steps that `sources` have taken already. every: steps between two frames, and between two checks of
    `until`. check_finite: steps between two checks for cells that are not finite; None: none. must_fuse: as
    of `ChunkSteps`.
    """

    world: World
    task: Task
    sources: Sequence[Source]
    sinks: Sequence[Sink]
    options: StreamOptions
    memory: Sequence[MemoryUse]
    track: Callable[..., None]
    show: OnStreamProgress = no_stream_progress
    warn: Callable[[str], None] = lambda sentence: None
    first: int = 0
    checkpoints: Checkpoints | None = None
    frames: Frames | None = None
    until: Until | None = None
    every: int = EVERY
    check_finite: int | None = None
    must_fuse: bool = False
    _spans: Spans = field(default_factory=Spans, init=False)

    def take(self, steps: int, each: int) -> TakenInPasses:
        """Take the steps, at most `each` of them a pass.

        each: 1: as many as suit the chunks. Lowered where chunks are too small for them.
        """
        world, task = self.world, self.task
        longest = max(b - a for a, b in islice(self._stretches(steps), STRETCHES))
        wide, chunks = self._plan(min(each if each > 1 else STEPS, longest), wanted=min(each, longest))
        feeds = task.feed_numbers
        between = self._between(feeds, len(list(islice(self._passes(steps, wide.steps), 3))))
        sources = list(self.sources)
        nbytes = sum(task.input_bytes(region) for region in task.partition)
        counts: list[tuple[int, int]] = []
        done, single = self.first, ""
        halving = halving_of(world, wide)
        if self.checkpoints is not None:
            self.checkpoints.start(done)
        if self.frames is not None:
            world.on_root(self.frames.open)
            self._show(done, sources)
        for number, count in enumerate(self._passes(steps, wide.steps)):
            in_all = number + -(-(steps - done) // count)
            done += count
            sinks = list(self.sinks) if done == steps else between[number % 2]
            checked = self.until is not None and done % self.every == 0
            wider, must = for_chunks(task, count), self.must_fuse
            finite = self._finite(done, count, last=checked or done == steps)
            observed = self.until.fields if self.until is not None and checked else ()
            taker = ChunkSteps(
                world, task, wider, observed=observed, finite=finite, must_fuse=must, done=done - count
            )
            moved = (number * nbytes, in_all * nbytes)
            counts = self._pass(taker, chunks, sources, sinks, halving, *moved)
            single = single or taker.single_reason
            for taken in finite:
                check_finite(world, taker.wrong.get(taken), after(done - count + taken))
            self._sync(sinks)
            for place, sink in zip(feeds, sinks, strict=True):
                if place is not None:
                    sources[place] = read_back(sink)
            self._show(done, sources)
            if checked and self.until is not None:
                self.until.check(world.control, taker.changes)
                if self.until.reached:
                    break
            if done < steps and self.checkpoints is not None and self.checkpoints.interval is not None:
                with self.world.phases("checkpoint"):
                    self.checkpoints.after_pass(done, partial(self._copy, chunks, sinks))
        if done < steps:  # the results are between two passes
            for output, sink in enumerate(self.sinks):
                sink.threads = threads_of(world)
                self._copy(chunks, sinks, output, sink)
            self._sync(self.sinks)
        if self.frames is not None:
            self.frames.merged = world.on_root(self.frames.close)
        stream = {
            "chunks": len(chunks),
            "rows": chunks.rows,
            "depth": self.options.under_way,
            "resumed": 0,
            "direct": False,
            "own": [one[0] for one in counts],
            "taken_over": [one[1] for one in counts],
            **report(world, self.world.phases, self._spans),
        }
        reason = next(filter(None, world.control.allgather(single)), "")
        return TakenInPasses(done, wide.steps, number + 1, reason, stream)

    def _stretches(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield the steps between which the fields are not looked at: first and last of each stretch."""
        interval = None if self.checkpoints is None else self.checkpoints.interval
        saved = None if interval is None else interval.steps
        looked_at = self.every if self.frames is not None or self.until is not None else None
        every = [each for each in (looked_at, saved, self.check_finite) if each is not None]
        begin = self.first
        while begin < steps:
            end = min([steps, *(next_multiple(begin, each) for each in every)])
            yield begin, end
            begin = end

    def _passes(self, steps: int, most: int) -> Iterator[int]:
        """Yield the steps of each pass. Of a run that `until` is to stop, few of all these are taken."""
        for begin, end in self._stretches(steps):
            for taken, count in passes(end - begin, most).items():
                yield from repeat(taken, count)

    def _finite(self, done: int, count: int, *, last: bool) -> list[int]:
        """Return after how many of the `count` steps of a pass to look for cells that are not finite.

        done: steps after the pass. last: it may be the last one.
        """
        if self.check_finite is None:
            return []
        begin = [0] if done - count == self.first else []
        return begin + ([count] if last or done % self.check_finite == 0 else [])

    def _show(self, done: int, sources: Sequence[Source]) -> None:
        """Make the frame of a step, if it is one, on rank 0."""
        frames = self.frames
        if frames is not None and done % self.every == 0:
            self.world.on_root(lambda: frames.show(done, sources[frames.place]))
            frames.written += 1

    def _copy(self, chunks: Chunks, sinks: Sequence[Sink], output: int, into: Sink) -> None:
        """Copy an output from one of `sinks` to another file, each rank a part. Collective."""
        world, source = self.world, read_back(sinks[output])

        def copy() -> None:
            for number in range(world.rank, len(chunks), world.size):
                region = self.task.output_region(chunks[number], output)
                cells = np.empty(region.shape, source.dtype)
                source.read(region, cells)
                into.write(region, cells)

        world.collective_call(copy)

    def _plan(self, steps: int, *, wanted: int) -> tuple[Task, Chunks]:
        """Return the task as chunks are read, and chunks that are large enough for its steps.

        These are as many of `steps` as can be.
        """
        possible = min(wanted, steps)
        reason = f"the halo of {wanted} steps is wider than a chunk"
        if self.task.by_side and self.task.wraps_in_part(0):
            steps, reason = 1, "the ends of axis 0 meet for some inputs, and the function is not one kernel"
        while True:
            wide = for_chunks(self.task, steps)
            chunks = self._chunks(wide, steps)
            if chunks is not None:
                break
            steps -= max(steps // 4, 1)
        if 1 < possible != steps:
            self.warn(f"{option('steps_per_exchange', wanted)} is lowered to {steps}: {reason}")
        return wide, chunks

    def _chunks(self, wide: Task, steps: int) -> Chunks | None:
        """Return chunks for so many steps; None if the memory or the options allow only smaller ones."""
        try:
            chunks = chunks_of(self.world, wide, self.sources, self.sinks, self.options, self.memory)
        except UserError:  # on all ranks alike
            if steps == 1:
                raise
            return None
        least, rows = least_rows(self.task, steps), chunks.rows
        if steps == 1 or len(chunks) <= 1:
            return chunks
        # The last chunk, which is shorter, must hold the cells that are copied beyond the array's end.
        align = math.lcm(*(sink.chunks[0] if sink.chunks else 1 for sink in self.sinks))
        while rows >= least and 0 < self.task.shape[0] % rows < least_rows(self.task, 1):
            rows -= align
        return Chunks(chunks.partition, rows) if rows >= least else None

    def _pass(
        self,
        taker: ChunkSteps,
        chunks: Chunks,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        halving: Halving,
        before: int,
        total: int,
    ) -> list[tuple[int, int]]:
        """Take the steps of one pass over all chunks; return each rank's (own, taken over) counts."""
        world = self.world
        for sink in sinks:
            sink.threads = threads_of(world)
        endpoints = Endpoints(world, taker.wide, chunks, sources, sinks, self._spans, taker.take)
        on_device = world.backend.asynchronous
        engine = DeviceEngine(endpoints, halving=halving) if on_device else HostEngine(endpoints)
        size = sum(self.task.input_bytes(chunks[number]) for number in range(len(chunks)))
        found = process_chunks(
            world,
            self.options,
            engine,
            self._spans,
            range(len(chunks)),
            depth=self.options.under_way,
            done=lambda number: None,
            left=size,
            total=size,
            show=lambda done, _, rates: self.show(before + done, total, rates),
        )
        world.control.barrier()
        return found

    def _between(self, feeds: Sequence[int | None], passes: int) -> list[list[Sink]]:
        """Create the files of the fields between passes: two sets, or fewer if there are fewer passes."""
        sets = min(passes - 1, 2)
        if sets == 0:
            return []
        world, task = self.world, self.task
        target = self.sinks[0].path
        # A run that ends early has its results here, also those that feed no input.
        fields = [
            None if place is None and self.until is None else (name, *known)
            for place, name, known in zip(feeds, task.job.output_names, task.known, strict=True)
        ]
        needed = sets * sum(math.prod(one[1]) * one[2].itemsize for one in fields if one is not None)

        def create() -> tuple[list[list[Sink]], Path]:
            memory = memory_folder(needed) if len(world.hosts) == 1 else None
            folder = (
                partial_path(target, f"{world.run_id}.steps")
                if memory is None
                else memory / f"meshrun-{world.run_id}"
            )
            folder.mkdir(mode=0o700)
            self.track(folder)
            if memory is None:
                check_room(folder, needed, "the fields between passes", target)
            found: list[list[Sink]] = []
            for number in range(sets):
                sinks: list[Sink] = []
                for one in fields:
                    path = folder / f"{number}-{one[0] if one else ''}.npy"
                    if one is None:
                        sinks.append(Discarded(path, path))
                        continue
                    sinks.append(open_sink(path, one[1], one[2], world.run_id))
                    sinks[-1].create()
                found.append(sinks)
            return found, folder

        found, folder = world.on_root(create)
        self.track(folder)
        return found

    def _sync(self, sinks: Sequence[Sink]) -> None:
        """Make the data that one host wrote visible to the others."""
        if len(self.world.hosts) > 1:
            for sink in sinks:
                self.world.collective_call(sink.sync)
