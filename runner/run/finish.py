"""The end of a run: what was computed, for its record; outputs get their names; the plan beside the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.decide import Fusion
from meshrun.runner.errors import RunError
from meshrun.runner.plan.chunking import Files
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.report.record import Record
from meshrun.runner.run.prepare import RunContext
from meshrun.runner.storage.formats.registry import Sink

if TYPE_CHECKING:
    from meshrun.runner.steps.observers.series import SeriesRows


@dataclass(frozen=True)
class Computation:
    """How an array was cut and computed; the defaults are those of a job that is not made by map_blocks.

    grid: blocks along each axis. halo: cells before and after a block, along each axis. stages: lines of the
    function, see `stage_lines`.
    """

    grid: list[int] | None = None
    halo: list[list[int]] | None = None
    boundary: str | None = None
    overlap: bool | None = False
    fusion: Fusion | None = None
    split_dependent: bool = False
    stages: list[int] | None = None


@dataclass(frozen=True)
class Finished:
    """What a run did, for its record.

    result: the type of the first output, or what a job returned. results: types of the outputs; None if they
    are not known. series: types of those that are no fields, on rank 0. domain: type of the array that was
    computed, if it is not the first input's. verify, plan, stream, steps: these parts of the record, as plain
    values; plan: on rank 0. copy_rate: bytes per second at which this rank copied memory while all did; None:
    not measured yet.
    """

    computed: Computation
    result: Any
    results: Sequence[ArrayType] | None = None
    series: Sequence[ArrayType] = ()
    domain: Record | None = None
    verify: Record | None = None
    plan: list[Record] | None = None
    stream: Record | None = None
    steps: Record | None = None
    copy_rate: float | None = None


def computation_of(
    task: Task, fusion: Fusion | None, *, overlap: bool = False, stages: list[int] | None = None
) -> Computation:
    """Return how a task was computed."""
    halo = [list(width) for width in task.widths]
    grid, dependent = list(task.partition.grid), task.job.split_dependent
    return Computation(
        grid, halo, task.declared_boundary or task.boundary, overlap, fusion, dependent, stages
    )


def commit(run: RunContext, sinks: Sequence[Sink]) -> None:
    """Rename every finished output file to its final name. Collective.

    RunError if an old file has changed since the run began: the new one lacks the change, and both are kept.
    """

    def rename() -> tuple[Path, Path] | None:
        changed = run.inputs.changed_container()
        if changed is not None:
            run.transaction.forget_partial()
            partial = next(sink.partial for sink in sinks if sink.path == changed)
            kept = partial.with_suffix(".kept")  # the next run removes what is called partial
            partial.rename(kept)
            return changed, kept
        for partial, path in dict.fromkeys((sink.partial, sink.path) for sink in sinks):
            run.transaction.commit(partial, path)
        return None

    conflict = run.world.on_root(rename)
    if conflict is not None:
        changed, kept = conflict
        run.transaction.forget_partial()
        run.transaction.set_recovery_hint(None)
        raise RunError(
            f"{changed} changed while this run wrote a new version of it without that change, {kept}",
            expected="only one program writes it at a time",
            hint="rm -r one of the two, and rename the other",
            everywhere=True,
        )


def commit_series(run: RunContext, series: Sequence[SeriesRows]) -> None:
    """Rename the finished files of results that are no fields. Collective."""

    def rename() -> None:
        for file in [file for one in series for file in one.files]:
            run.transaction.commit(file.partial, file.path)

    run.world.on_root(rename)


def compared_with_plan(
    run: RunContext, task: Task, wall: float, files: Files, *, streamed: bool
) -> list[Record] | None:
    """Return the run's forecast beside what rank 0 measured; None on other ranks, or without a forecast.

    wall: seconds from the first byte read to the last one written.
    """
    world, options = run.world, run.options
    if world.rank > 0 or 0 in task.shape:
        return None
    from meshrun.runner.forecast.maps import MeasuredRun, beside_run

    stages = {name: (phase.moved, phase.seconds) for name, phase in world.phases.phases.items()}
    measured = MeasuredRun(world.here.device, len(world.hosts), stages, wall, streamed)
    keep_whole, rates = options.overlap is not None, options.rates
    return beside_run(
        task, measured, options.stream, files, rates=rates, grid=options.grid, keep_whole=keep_whole
    )
