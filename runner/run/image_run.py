"""A map job over a folder of images: its options, the verification of its results, and its record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.compiler.decide import Fusion, ImageKernels
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.forecast.stage_memory import with_stage_memory
from meshrun.runner.maps.folders.images import StreamedFolder
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.plan.chunking import MemoryUse
from meshrun.runner.plan.grid import bounds
from meshrun.runner.plan.sampling import everything, sample
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.region import Region, Shape
from meshrun.runner.report.record import Record
from meshrun.runner.run.finish import Computation, Finished
from meshrun.runner.run.prepare import RunContext, fused, join, limits, must_fuse
from meshrun.runner.run.verify.results import REFERENCE, RERUN, compare, failure, gather_proof, leave_cache
from meshrun.runner.spelling import option
from meshrun.runner.storage.file_errors import listing
from meshrun.runner.storage.formats.image_folder import LOSSY, Folder
from meshrun.runner.storage.formats.registry import Source, open_source


@dataclass
class FolderRun:
    """One run of a job over a folder of images. Collective."""

    run: RunContext
    folder: Folder
    fusion: Fusion | None = field(default=None, init=False)

    def write(self) -> Finished:
        """Make the output folder."""
        run, options = self.run, self.run.options
        world = run.world
        memory = world.collective_call(self._check)
        if self.folder.others:
            others = listing(self.folder.others)
            world.warn(f"{self.folder.path}: skipped, because not read as images: {others}")
        streamed = StreamedFolder(
            world,
            self.folder,
            run.targets[0],
            self.plan_task,
            options.stream,
            memory,
            run.transaction,
            world.phases,
            run.inputs,
            self._fuse,
            ImageKernels(world.backend.device, options.fuse_math, must_fuse=must_fuse(run.job, options)),
            KeptValues.of(run.job.function, run.parameters),
            run.progress.stream,
        )
        details = streamed.write()
        proof = None
        if options.verify != "off":
            try:
                with run.world.phases("verify"):
                    proof = self._verify(streamed.partial)
            except RunError:
                run.transaction.set_recovery_hint(streamed.discard)
                raise
        streamed.commit()
        boundary, dependent = options.boundary or run.job.boundary, run.job.split_dependent
        computed = Computation(boundary=boundary, fusion=self.fusion, split_dependent=dependent)
        images = {"shape": [len(self.folder.images)], "dtype": None}
        return Finished(computed, images, domain=images, verify=proof, stream=details)

    def plan_task(self, shape: Shape, dtype: np.dtype[Any]) -> Task:
        run, options, types = self.run, self.run.options, [(shape, dtype)]
        job = with_stage_memory(with_inferred_halo(run.job, types, run.parameters))
        return plan_task(job, run.parameters, types, 1, boundary=options.boundary, cval=options.cval)

    def _fuse(self, task: Task) -> Task:
        """Return the largest image's task with a kernel in place of its function, where possible."""
        run, mode = self.run, self.run.options.fuse
        if (mode or run.job.fuse) != "off":
            with run.world.phases("prepare"):
                images = len(self.folder.images)
                task, self.fusion = fused(run.world, task, mode, run.options.fuse_math, images)
        return task

    def _check(self) -> MemoryUse:
        """Return the memory that this rank may use. Raises UserError for options that do not apply."""
        join(self.run)
        job, options = self.run.job, self.run.options
        if job.kind != "map" or len(job.output_names) > 1:
            takes = "takes one array" if job.kind != "map" else "has several outputs"
            raise UserError(
                f"{self.folder.path} is a folder of images, and job {job.name} {takes}",
                expected="a job made by map_blocks with one input and one output, or a file",
            )
        given = {
            option("grid"): options.grid,
            option("overlap"): options.overlap,
            f"{option('input_shape')}, {option('input_dtype')} and {option('input_order')}": options.form,
            option("chunk_bytes"): options.stream.chunk_bytes,
            option("device_memory"): options.stream.device_memory,
        }
        named = next((name for name, value in given.items() if value is not None), options.steps.named)
        if named is not None:
            several = "," in named
            raise UserError(
                f"{named} {'do' if several else 'does'} not apply to a folder of images: each image is "
                "processed whole by one rank",
                hint=f"leave {'them' if several else 'it'} out",
            )
        lossy = next((one.name for one in self.folder.images if Path(one.name).suffix.lower() in LOSSY), None)
        if options.verify != "off" and lossy is not None:
            raise UserError(
                f"{option('verify')} reads the output back, and {Path(lossy).suffix} does not store it "
                "exactly",
                got=self.folder.path / lossy,
                hint="images that end in .png or .npy: each output is named after its image",
            )
        return limits(self.run.world, options.stream)

    def _verify(self, into: Path) -> Record:
        """Verify each image's result on one of the ranks; return the record of the check."""
        begin = time.perf_counter()
        world, images = self.run.world, self.folder.images
        wrong: RunError | None = None
        boxes = cells = 0
        mine = range(*bounds(len(images), world.size, world.rank))
        for done, number in enumerate(mine):
            self.run.progress.proof(done, len(mine))
            name = images[number].name
            leave_cache(into / name)
            file, written = open_source(self.folder.path / name), open_source(into / name)
            task = self.plan_task(file.shape, file.dtype)
            tail = written.shape[task.leading :]
            task = task if task.results else task.with_results([(tail, written.dtype)])
            wrong = wrong or _unlike(name, task, written)
            for box in () if wrong else self._boxes(task, name):
                boxes, cells = boxes + 1, cells + box.size
                if wrong is None and (found := compare(task, [file], [written], box)):
                    wrong = failure(found, f" of {name}")
        against = REFERENCE if self.run.job.reference else RERUN
        return gather_proof(world, self.run.options.verify, against, begin, (wrong, boxes, cells))

    def _boxes(self, task: Task, name: str) -> Iterator[Region]:
        if self.run.options.verify == "full":
            return everything(task.partition, 0, task.cut_axes)
        return sample(task.partition, 0, task.cut_axes, f"{self.run.world.run_id}/{name}")


def _unlike(name: str, task: Task, written: Source) -> RunError | None:
    if task.known[0] == (written.shape, written.dtype):
        return None
    return RunError(
        f"verification failed: {name} does not match on disk",
        got=f"{written.dtype} of shape {written.shape}",
        expected=f"{task.known[0][1]} of shape {task.known[0][0]}",
        everywhere=True,
    )
