"""Streamed run of a map job from files to files: arrays of any size, work stealing, resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.arrays.fingerprint import fingerprint, warn_of_unknown
from meshrun.runner.arrays.inputs import Inputs
from meshrun.runner.arrays.store import open_sinks
from meshrun.runner.errors import UserError
from meshrun.runner.files import check_own
from meshrun.runner.maps.streamed.chunk_agreement import chunks_of, known_results
from meshrun.runner.maps.streamed.cpu_engine import HostEngine
from meshrun.runner.maps.streamed.direct_io import Direct
from meshrun.runner.maps.streamed.dispatch import draw, process_chunks, report, threads_of
from meshrun.runner.maps.streamed.endpoints import Endpoints, Engine
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.maps.streamed.redo import Redo
from meshrun.runner.maps.streamed.resume import check_inputs, find_unfinished, start_or_resume
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import Task
from meshrun.runner.report.spans import Spans
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import FOLDERS, Sink, Source, create, read_back
from meshrun.runner.storage.journal import Journal, Syncer
from meshrun.runner.storage.paths import KEPT, suffix
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World


@dataclass
class StreamedRun:
    """One streamed run, for `write` and then `commit`; collective. memory: what each rank may use."""

    world: World
    task: Task
    sources: Sequence[Source]
    targets: Sequence[Path]
    options: StreamOptions
    memory: Sequence[MemoryUse]
    transaction: OutputTransaction
    inputs: Inputs
    show: OnStreamProgress = no_stream_progress
    _spans: Spans = field(default_factory=Spans, init=False)
    _computed: list[int] = field(default_factory=list, init=False)  # chunks, on this rank
    sinks: list[Sink] = field(init=False)
    redo: Redo = field(init=False)
    journal: Journal = field(init=False)

    def write(self) -> dict[str, Any]:
        """Write the result under a temporary name; return this part of the run's record.

        Raises UserError if there is an unfinished run that is not resumed or differs from this one; RunError
        if the input changed during the run.
        """
        world, options = self.world, self.options
        self._spans.recorder = world.recorder
        self.task = known_results(world, self.task, self.sources)
        self.sinks = open_sinks(self.task, self.targets, KEPT)
        for sink in self.sinks:
            sink.threads = threads_of(world)
        self.journal = Journal(self.sinks[0].path)
        rows, finished = world.on_root(self._start_or_resume)
        chunks = self._chunks(rows)
        if finished:
            warn_of_unknown(world, self.task.job.name, self.inputs)
        self.transaction.set_recovery_hint(
            f"finished chunks are kept; continue with the same command and {option('resume', True)}"
        )
        todo = [number for number in range(len(chunks)) if number not in finished]
        endpoints = Endpoints(world, self.task, chunks, self.sources, self.sinks, self._spans)
        direct = self._direct(endpoints)
        engine = DeviceEngine(endpoints, direct) if world.backend.asynchronous else HostEngine(endpoints)
        with closing(direct) if direct else nullcontext():
            counts = self._process_chunks(engine, endpoints, todo)
        self.redo = Redo(endpoints, self._computed, options.under_way)
        check_inputs(world, self.inputs, self.transaction, self.discard)
        return {
            "chunks": len(chunks),
            "rows": chunks.rows,
            "depth": options.under_way,
            "resumed": len(finished),
            "direct": direct is not None,
            "own": [one[0] for one in counts],
            "taken_over": [one[1] for one in counts],
            **report(world, self.world.phases, endpoints.spans),
        }

    @property
    def partials(self) -> list[Path]:
        return list(dict.fromkeys(sink.partial for sink in self.sinks))

    @property
    def discard(self) -> str:
        """How to discard the unfinished run, for a hint."""
        return self.journal.discard(*self.partials)

    def commit(self) -> None:
        """Remove the journal and draw the timeline, after the outputs have their final names."""
        self.transaction.set_recovery_hint(None)
        self.world.on_root(self.journal.remove)
        draw(self.world, self._spans, self.options.timeline, self._about)

    @property
    def _about(self) -> dict[str, Any]:
        files = {"input": str(self.sources[0].path), "output": str(self.targets[0])}
        return {"job": self.task.job.name, **files}

    def _chunks(self, rows: int | None) -> Chunks:
        """Return the chunks. rows: of an unfinished run's chunks, which are kept."""
        return chunks_of(self.world, self.task, self.sources, self.sinks, self.options, self.memory, rows)

    def _start_or_resume(self) -> tuple[int | None, set[int]]:
        """Start the outputs or resume them; return the rows of an unfinished run's chunks, None without one,
        and the numbers of finished chunks. On rank 0."""
        kept = find_unfinished(self.journal, self.options, *self.partials)
        rows = kept.get("rows") if kept else None
        chunks = self._chunks(rows)
        whole = fingerprint(self.world, self.task, self.sources, chunks, self.inputs)
        whole |= self._containers()
        finished = start_or_resume(
            self.world,
            self.transaction,
            self.journal,
            self.partials,
            kept,
            whole,
            self._create,
            self._check_partials,
        )
        return rows, finished

    def _containers(self) -> dict[str, Any]:
        """Return the fingerprint's part for outputs in containers: their names and the old file's state.

        An unfinished container has the other arrays that the old one had when its run began.
        """
        names = zip(self.task.job.output_names, self.sinks, strict=True)
        inside = {name: (sink.name, self.inputs.containers.get(sink.path)) for name, sink in names}
        found = {
            name: {"array": array, "bytes": old.size, "changed_ns": old.changed, "files": old.files}
            for name, (array, old) in inside.items()
            if old is not None
        }
        return {"containers": found} if found else {}

    def _check_partials(self) -> None:
        """Raise UserError if an unfinished output is another user's, a link, or a different array."""
        for sink, (shape, dtype) in zip(self.sinks, self.task.known, strict=True):
            folder = suffix(sink.path) in FOLDERS
            check_own(sink.partial, folder, self.discard, inside=(sink.name or "") if folder else "")
            wrong = f"{sink.partial} was not left by an unfinished run of this job"
            try:
                found = read_back(sink)
            except UserError as reason:
                raise UserError(wrong, why=reason.what, hint=self.discard) from reason
            native = dtype.newbyteorder("=")
            if (math.prod(found.shape), found.dtype, found.chunks) != (
                math.prod(shape),
                native,
                sink.chunks,
            ):
                got, expected = f"{found.dtype} of shape {found.shape}", f"{native} of shape {shape}"
                raise UserError(wrong, got=got, expected=expected, hint=self.discard)

    def _direct(self, endpoints: Endpoints) -> Direct | None:
        """Open the files for GPUDirect Storage, if this rank's GPU has it."""
        if self.world.here.device.kind != "cuda":
            return None
        from meshrun.runner.device import gds

        return None if gds.why_not() else Direct(endpoints)

    def _create(self) -> None:
        create(self.sinks)
        self._sync()

    def _sync(self) -> None:
        for sink in self.sinks:
            sink.sync()

    def _process_chunks(self, engine: Engine, endpoints: Endpoints, todo: list[int]) -> list[tuple[int, int]]:
        """Process the chunks `todo`; return each rank's (own, taken over) counts."""
        world, task = self.world, self.task
        log = self.journal.log(f"{world.run_id}-{world.rank}", world.here.host_id)

        def done(number: int) -> None:
            self._computed.append(number)
            syncer.done(number)

        with closing(Syncer(log, self._sync)) as syncer:
            syncer.sync()  # before this rank writes: output of an earlier run may not be on the disk yet
            found = process_chunks(
                world,
                self.options,
                engine,
                endpoints.spans,
                todo,
                depth=self.options.under_way,
                done=done,
                left=sum(task.input_bytes(endpoints.chunks[number]) for number in todo),
                total=sum(task.input_bytes(region) for region in task.partition),
                show=self.show,
            )
            if len(world.hosts) > 1:  # another host may read the output, or this host may fail
                syncer.sync()
            return found
