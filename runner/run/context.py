"""The context that the functions of one run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.arrays.inputs import Inputs
from meshrun.runner.compiler.decide import Fusion
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.in_memory import OnProgress, OnSteps, no_progress
from meshrun.runner.options.run_options import Options
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World


def must_fuse(job: Job, options: Options) -> bool:
    """Return whether a function that does not become one kernel is an error."""
    return (options.fuse or job.fuse) == "require"


@dataclass
class RunContext:
    """Context that the functions of one run share: world, job, files, options, transaction and progress.

    argument: INPUT as it was given, for a job that opens it itself. stages: of a run of steps, see
    `runner.compiler.decide.stage_lines`."""

    world: World
    job: Job
    parameters: dict[str, Any]
    sources: Sequence[Source]
    targets: Sequence[Path]
    options: Options
    transaction: OutputTransaction
    progress: OnProgress
    phases: Phases
    show: OnStreamProgress = no_stream_progress
    proof: OnProgress = no_progress
    inputs: Inputs = field(default_factory=Inputs)
    stepped: OnSteps = no_progress
    fusion: Fusion | None = None
    stages: list[int] | None = None
    argument: str = ""

    @property
    def source(self) -> Source:
        """The first input; for a job that is not made by map_blocks, the only one."""
        return self.sources[0]
