"""Tell a job's plan how the arrays of a function in stages lie in memory, and how much they need."""

from __future__ import annotations

from dataclasses import replace

from meshrun.runner.compiler.whole.block_form import types_of
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram
from meshrun.runner.job.declaration import Job
from meshrun.runner.programs.memory import StageMemory
from meshrun.runner.programs.spectral.spectral_memory import SpectralMemory
from meshrun.runner.programs.stages import with_packed_arrays


def with_stage_memory(job: Job, kind: str = "cpu") -> Job:
    """Return a job with what tells the memory of its function's stages, if it has any.

    Coarse inputs and results are packed where its stages can compute them so. kind: of device, "cpu" or
    "cuda".
    """
    if job.program is None:
        return job
    feeds = [None if one is None else job.arrays.index(one) for one in job.feeds]
    feeds += [None] * (len(job.program.outputs) - len(feeds))
    if isinstance(job.program, SpectralProgram):
        return replace(job, memory=SpectralMemory(job.program, feeds, kind))
    program = with_packed_arrays(job.program, feeds)
    if program is not job.program:
        job = replace(job, program=program, sizes=program.sizes, out=types_of(program))
    return replace(job, memory=StageMemory(job.program, feeds, kind))
