"""Tell a job's plan how much memory lies between the stages of its function."""

from __future__ import annotations

from dataclasses import replace

from meshrun.runner.job.declaration import Job
from meshrun.runner.programs.memory import StageMemory


def with_stage_memory(job: Job) -> Job:
    """Return a job with what tells the memory of its arrays between stages, if it has any."""
    if job.program is None:
        return job
    feeds = [None if one is None else job.arrays.index(one) for one in job.feeds]
    feeds += [None] * (len(job.program.outputs) - len(feeds))
    return replace(job, memory=StageMemory(job.program, feeds))
