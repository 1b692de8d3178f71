"""A map job over a folder of images: each goes to one rank, its result to a file of the same name.

Results are written to a folder with a temporary name, which is renamed at the end. The journal identifies an
image by its `key`, not by its place in the folder: if an image is repaired, added or removed between two
runs, the results of the other images stay valid.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.arrays.fingerprint import task_fingerprint, warn_of_unknown
from meshrun.runner.arrays.inputs import Inputs
from meshrun.runner.arrays.load import open_decoded
from meshrun.runner.compiler.decide import ImageKernels
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.files import check_own, sync_folder
from meshrun.runner.maps.folders.engine import ImageEndpoints, ImageEngine, PlanTask, naming, sink_for
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.maps.same_values import refuse_other_values, summary_of
from meshrun.runner.maps.split_probe import refuse_split
from meshrun.runner.maps.streamed.chunk_agreement import known_results
from meshrun.runner.maps.streamed.dispatch import draw, process_chunks, report, threads_of
from meshrun.runner.maps.streamed.resume import Fingerprint, check_inputs, find_unfinished, start_or_resume
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse, memory_use
from meshrun.runner.plan.task import Task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.spans import Spans
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.spelling import option
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.image_folder import Folder, Image
from meshrun.runner.storage.formats.registry import Source, decoded_bytes
from meshrun.runner.storage.journal import Journal, Syncer
from meshrun.runner.storage.paths import KEPT, partial_path
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World

MOST_HEADERS = 10_000  # that are read before the work begins


@dataclass
class StreamedFolder:
    """One run over a folder, for `write` and then `commit`; collective.

    fuse: returns the task of the largest image with a kernel in place of its function, or as it is.
    kernels: those of the other images, if the largest has one. memory: what this rank may use. kept: what the
    job's function may keep from one call to the next, before it was called.
    """

    world: World
    folder: Folder
    target: Path
    plan_task: PlanTask
    options: StreamOptions
    memory: MemoryUse
    transaction: OutputTransaction
    phases: Phases
    inputs: Inputs
    fuse: Callable[[Task], Task]
    kernels: ImageKernels
    kept: KeptValues
    show: OnStreamProgress = no_stream_progress
    partial: Path = field(init=False)

    def __post_init__(self) -> None:
        self._spans = Spans(recorder=self.world.recorder)
        self.partial = partial_path(self.target, KEPT)
        self._journal = Journal(self.target)

    def write(self) -> dict[str, Any]:
        """Write every image's result into `partial`; return this part of the run's record.

        Raises UserError if there is an unfinished run that is not resumed or differs from this one, or if the
        largest image cannot be processed; RunError with an image's name if that image cannot be processed.
        """
        world, images = self.world, self.folder.images
        kept = world.on_root(lambda: find_unfinished(self._journal, self.options, self.partial))
        task = self._sample()
        depth = self._depth(task)
        finished = world.on_root(
            lambda: self._start_or_resume(kept, task_fingerprint(world, task, self.inputs))
        )
        if finished:
            warn_of_unknown(world, task.job.name, self.inputs)
        self.transaction.set_recovery_hint(
            f"finished images are kept; continue with the same command and {option('resume', True)}"
        )
        todo = [number for number in range(len(images)) if number not in finished]
        endpoints = ImageEndpoints(
            world,
            self.folder,
            self.partial,
            self.plan_task,
            self._spans,
            kernels=None if task.kernel is None else self.kernels,
            room=self._room,
        )
        log = self._journal.log(f"{world.run_id}-{world.rank}", world.here.host_id)
        with closing(Syncer(log, lambda: self._sync(endpoints))) as syncer:
            counts = process_chunks(
                world,
                self.options,
                ImageEngine(endpoints),
                endpoints.spans,
                todo,
                depth=depth,
                done=lambda number: syncer.done(images[number].key),
                left=sum(images[number].size for number in todo),
                total=sum(image.size for image in images),
                show=self.show,
            )
        self._about = {"job": task.job.name, "input": str(self.folder.path), "output": str(self.target)}
        # Only the files given as parameters: each image is checked when it is read.
        check_inputs(world, self.inputs, self.transaction, self.discard)
        return {
            "chunks": len(images),
            "rows": None,
            "depth": depth,
            "resumed": len(finished),
            "own": [one[0] for one in counts],
            "taken_over": [one[1] for one in counts],
            **report(world, self.phases, endpoints.spans),
        }

    @property
    def discard(self) -> str:
        """How to discard the unfinished run, for a hint."""
        return self._journal.discard(self.partial)

    def commit(self) -> None:
        """Rename the folder, remove the journal and draw the timeline."""

        def rename() -> None:
            try:
                os.rename(self.partial, self.target)  # over an empty folder, if there is one
            except OSError as reason:
                raise write_error(self.target, reason) from reason

        self.world.on_root(rename)
        self.transaction.set_recovery_hint(None)
        self.world.on_root(self._journal.remove)
        draw(self.world, self._spans, self.options.timeline, self._about)

    def _sample(self) -> Task:
        """Return the task for the largest image, with its result type, which the output file can store."""
        world = self.world
        largest, self._decoded = world.on_root(self._largest)
        path = self.folder.path / largest.name
        source: Source = world.on_root(lambda: open_decoded([path])[0])

        def plan_task() -> Task:
            with naming(path, error=UserError):
                return self.plan_task(source.shape, source.dtype)

        def check(task: Task) -> None:
            with naming(path, error=UserError):
                sink_for(self.partial, path.name, *task.known[0], world.run_id)

        task = self.fuse(world.collective_call(plan_task))
        world.on_root(lambda: refuse_split(world, task, self.kept))
        if world.size > 1:
            backend = world.backend if task.kernel is None else CpuBackend()
            refuse_other_values(world, task.job, world.gather_calls(lambda: summary_of(task, backend)))
        task = known_results(world, task, [source])
        world.on_root(lambda: check(task))
        return task

    def _largest(self) -> tuple[Image, int]:
        """Return the image with the most bytes, decoded or as a file, and its bytes that are decoded.

        Of a folder of many files, the headers of the largest are read, because each is an access to the disk.
        Images beyond them are checked when they are read.
        """
        by_size = sorted(self.folder.images, key=lambda image: image.size, reverse=True)[:MOST_HEADERS]
        found = [(image, decoded_bytes(self.folder.path / image.name)) for image in by_size]
        return max(found, key=lambda one: max(one[1], one[0].size if not one[1] else 0))

    def _depth(self, task: Task) -> int:
        """Return the number of images in flight on this rank: one per thread plus `depth` waiting ones, or
        fewer if so many of the largest image do not fit in memory."""
        takes = memory_use(task, task.partition[0], asynchronous=self.world.backend.asynchronous).host
        takes += self._decoded
        host = self.memory.host
        room = host // takes if takes else 1
        if room == 0 and self.options.host_memory is not None:
            raise UserError(
                f"{option('host_memory')} is less than the largest image needs",
                got=f"{self.options.host_memory:,} bytes",
                expected=f"at least {takes:,}",
                everywhere=True,
            )
        depth = max(1, min(threads_of(self.world) + self.options.under_way, room))
        self._room = max(host // depth, takes)
        return depth

    def _start_or_resume(self, kept: Fingerprint | None, task: Fingerprint) -> set[int]:
        """Start the output or resume it; return the numbers of finished images. On rank 0."""
        wanted = {**task, "input": str(self.folder.path.resolve())}
        keys = start_or_resume(
            self.world,
            self.transaction,
            self._journal,
            [self.partial],
            kept,
            wanted,
            self._create,
            self._check_partial,
        )
        if kept is None:
            return set()
        names = {image.name for image in self.folder.images}
        there = set(os.listdir(self.partial))
        for name in there - names:  # incomplete, or of an image that was removed
            (self.partial / name).unlink()
        pairs = enumerate(self.folder.images)
        return {number for number, image in pairs if image.key in keys and image.name in there}

    def _check_partial(self) -> None:
        check_own(self.partial, True, self.discard)

    def _create(self) -> None:
        try:
            self.partial.mkdir()
        except OSError as reason:
            raise write_error(self.target, reason) from reason

    def _sync(self, endpoints: ImageEndpoints) -> None:
        """Return when the files written so far are on the disk."""
        try:
            for _ in range(len(endpoints.written)):
                with open(endpoints.written.popleft(), "rb") as file:
                    os.fsync(file.fileno())
            sync_folder(self.partial)
        except OSError as reason:
            raise write_error(self.target, reason, partial=self.partial) from reason
