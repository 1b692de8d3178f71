"""A map job from files to files: in memory with a block for each rank, or streamed in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.runner.arrays.finite import not_finite
from meshrun.runner.arrays.load import file_chunks, load_arrays
from meshrun.runner.arrays.store import store_of
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.in_memory import BlockDoesNotFit, Pipeline
from meshrun.runner.maps.streamed.chunk_agreement import serial_file, with_trial_results
from meshrun.runner.options.loop_rules import LoopRules
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import (
    FileTraits,
    MemoryUse,
    block_memory,
    has_own_grid,
    is_streamed,
    not_streamed,
    streamed_grid,
)
from meshrun.runner.plan.grid import check_blocks
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, Region
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.report.spans import STAGES
from meshrun.runner.run.finish import Finished, commit, commit_series, compared_with_plan, computation_of
from meshrun.runner.run.prepare import (
    Prepared,
    RunContext,
    check_nothing_unfinished,
    fused,
    make_task_outputs,
    planned,
    prepare,
)
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import FOLDERS, Sink, Source, first_serial
from meshrun.runner.storage.paths import split
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.maps.streamed.redo import Redo
    from meshrun.runner.steps.observers.series import SeriesRows
    from meshrun.runner.steps.program_steps import ProgramStepper


NEEDS_ALL = "has reductions or arrays between stages, for which all cells must be in memory"


@dataclass(frozen=True)
class MapStart:
    """What rank 0 found out before any rank reads.

    streamed: types of the results of a streamed run; None: it is in memory. sinks: the outputs of a run in
    memory; None if their types are not known yet.
    """

    streamed: tuple[ArrayType, ...] | None = None
    sinks: list[Sink] | None = None


def run_map(run: RunContext) -> Finished:
    """Run one pass of a map job. Collective."""
    prepared = prepare(run)
    if prepared.task.job.program is not None:
        return run_program(run, prepared)
    if run.options.steps.check_finite is not None:
        raise UserError(
            f"{option('check_finite')} applies only to runs that take steps, and to functions with "
            "reductions or loops",
            hint=option("steps", metavar="N"),
            everywhere=True,
        )
    start = run.world.on_root(lambda: _start(run, prepared))
    if start.streamed is not None:
        return _in_chunks(run, prepared, start.streamed)
    try:
        return _in_one_piece(run, prepared, start.sinks)
    except BlockDoesNotFit as failure:  # on every rank
        if run.options.overlap is not None:
            raise
        results = run.world.on_root(lambda: _streamed_results(run, prepared, too_large=True))
        if results is None:
            raise
        shortage = failure.got
    # Here, the blocks are free.
    run.world.on_root(run.transaction.remove_partials)
    run.transaction.forget_partial()
    run.world.warn(f"streamed in chunks, because a rank's block does not fit the device memory ({shortage})")
    return _in_chunks(run, prepared, results)


def _start(run: RunContext, prepared: Prepared) -> MapStart:
    """Decide whether to stream; if not, create the outputs. On rank 0."""
    world, options, task = run.world, run.options, prepared.task
    streamed = _streamed_results(run, prepared, too_large=prepared.too_large)
    if streamed is not None and run.series:
        raise no_series_in_chunks(run, options.stream.named)
    if streamed is not None:
        return MapStart(streamed)
    if has_own_grid(options.grid, world.size):
        planned(run, world.size, options.grid)  # raises
    check_nothing_unfinished(run)
    prepared.planned.try_splits(world, task)
    # If the result types are known, disk space is allocated before the computation.
    return MapStart(sinks=make_task_outputs(run, task) if task.results else None)


def _streamed_results(
    run: RunContext, prepared: Prepared, *, too_large: bool
) -> tuple[ArrayType, ...] | None:
    """Return the types of the results of a streamed run, once its blocks are checked; None: it is in memory.
    On rank 0."""
    world, options, task = run.world, run.options, prepared.task
    results = streamed_results(
        world,
        task,
        run.sources,
        run.targets,
        options.stream,
        too_large=too_large,
        keep_whole=options.overlap is not None,  # applies only to runs in memory
    )
    if results is None:
        return None
    if options.overlap is not None:
        raise UserError(f"{option('overlap')} does not apply: streamed runs always overlap")
    if has_own_grid(options.grid, world.size):
        check_blocks(streamed_grid(options.grid, world.size)[0])
    # A function that has a kernel is called on the host, whatever is cut.
    blocks = _blocks(run, replace(task, results=results))
    prepared.planned.try_splits(world, replace(blocks, kernel=task.kernel))
    return results


def streamed_results(
    world: World,
    task: Task,
    sources: Sequence[Source],
    targets: Sequence[Path],
    options: StreamOptions,
    *,
    too_large: bool,
    keep_whole: bool = False,
) -> tuple[ArrayType, ...] | None:
    """Return shapes and dtypes of the results if the run is streamed (`is_streamed`), else None. On one rank.

    too_large: whether a rank's block does not fit its memory. keep_whole: do not stream to overlap copies.
    Raises UserError if an option of streamed runs is given and one rank reads or writes a file whole.
    """
    serial = first_serial(sources)
    chunked = any(split(target)[0].suffix.lower() in FOLDERS for target in targets)
    files, asynchronous = FileTraits(serial is None, chunked), world.backend.asynchronous
    if is_streamed(
        task, options, files, asynchronous=asynchronous, too_large=too_large, keep_whole=keep_whole
    ):
        known = with_trial_results(world, task, sources)
        serial = serial_file(known, sources, targets)
        if serial is None:
            return known.known
    if options.named is not None:
        raise not_streamed(options.named, serial or targets[0])
    return None


def _blocks(run: RunContext, task: Task) -> Task:
    """Return the task of a streamed run, cut into the blocks that are cut into chunks. task: its results
    known. The result is without them, and without a kernel, if other axes are cut."""
    grid, count = streamed_grid(run.options.grid, run.world.size)
    blocks = planned(run, count, grid)
    return (
        replace(blocks, job=task.job, results=task.results, kernel=task.kernel)
        if blocks.leading == task.leading
        else blocks
    )


def _in_chunks(run: RunContext, prepared: Prepared, results: tuple[ArrayType, ...]) -> Finished:
    """Run streamed. results: shapes and dtypes of the task's."""
    world, options = run.world, run.options
    task = replace(prepared.task, results=results)
    blocks = _blocks(run, task)
    if blocks.kernel is None and task.kernel is not None:
        with world.phases("prepare"):
            blocks, fusion = fused(world, blocks, options.fuse, options.fuse_math)
        prepared = replace(prepared, fusion=fusion)
    from meshrun.runner.maps.streamed.streaming import StreamedRun

    streamed = StreamedRun(
        world,
        blocks,
        run.sources,
        run.targets,
        options.stream,
        prepared.memory,
        run.transaction,
        run.inputs,
        run.progress.stream,
    )
    details = streamed.write()
    try:
        proof = _proof(run, task, streamed.sinks, streamed.redo)
    except RunError:
        run.transaction.set_recovery_hint(streamed.discard)
        raise
    commit(run, streamed.sinks)
    streamed.commit()
    # No forecast for resumed runs, nor for a grid of chunks that differs from the ranks'.
    plan = None
    if not details["resumed"] and not has_own_grid(options.grid, world.size):
        sink_chunks = file_chunks(streamed.sinks)
        files = FileTraits(True, sink_chunks is not None, file_chunks(run.sources), sink_chunks)
        wall = details["limits"]["wall_seconds"]
        plan = compared_with_plan(run, task, wall, files, streamed=True)
    stages = prepared.planned.stages or None
    computed = computation_of(streamed.task, prepared.fusion, stages=stages)
    known = streamed.task.stored
    return Finished(computed, type_record(known[0]), known, verify=proof, plan=plan, stream=details)


def _in_one_piece(run: RunContext, prepared: Prepared, sinks: list[Sink] | None) -> Finished:
    """Run in memory, with a block for each rank. sinks: the outputs, if they have been created."""
    world, options, task = run.world, run.options, prepared.task
    if sinks is not None:  # rank 0 has created them; the others know them now
        run.transaction.track_partial(*(sink.partial for sink in sinks))
    # Read.
    overlap = world.backend.asynchronous if options.overlap is None else options.overlap
    pipeline = Pipeline(world, task, world.phases, overlap and not run.job.series, run.progress.rows)
    arrays = load_arrays(world, run.sources, pipeline.plans, world.phases)
    task = pipeline.prepare(arrays)
    if sinks is None:
        sinks = world.on_root(lambda: make_task_outputs(run, task))
        run.transaction.track_partial(*(sink.partial for sink in sinks))
    series = _series_of(run, task, [array.block for array in arrays], pipeline.region)
    # Compute and write.
    stores = [store_of(world, task, sink, world.phases, number) for number, sink in enumerate(sinks)]
    for region, results in pipeline.results():
        for number, result in enumerate(results):
            stores[number].put(task.output_region(region, number), result)
    for store in stores:
        store.finish()  # a barrier: all ranks have read
    run.inputs.check(world)
    # Sequential stages; other phases (disk space, kernel compilation) do not depend on the data.
    phases = world.phases.phases.items()
    wall = sum(phase.seconds for name, phase in phases if name in (*STAGES, "exchange"))
    # Verify and commit.
    proof = _proof(run, task, sinks)
    commit(run, sinks)
    if series:
        commit_series(run, series)
    run.transaction.forget_partial()
    plan = None
    if (
        first_serial([*run.sources, *sinks]) is None
    ):  # no forecast for images, which one rank reads and writes
        files = FileTraits(source_chunks=file_chunks(run.sources), sink_chunks=file_chunks(sinks))
        plan = compared_with_plan(run, task, wall, files, streamed=False)
    stages = prepared.planned.stages or None
    computed = computation_of(task, prepared.fusion, overlap=pipeline.overlap, stages=stages)
    rows = [known for one in series for known in one.types]
    stored = task.stored
    return Finished(computed, type_record(stored[0]), stored, rows, verify=proof, plan=plan)


def refuse_options(run: RunContext, task: Task, memory: Sequence[MemoryUse]) -> None:
    """Raise UserError for options that do not apply to a program in stages, and for too little memory.

    memory: of `Prepared`. On rank 0.
    """
    options, gpu = run.options, run.world.backend.asynchronous
    given = {
        options.stream.named or "": options.stream.named is not None and not _resumes(run),
        option("overlap", options.overlap): options.overlap,
        option("halo", options.steps.halo): options.steps.halo == "direct",
        option("copies", options.steps.copies): options.steps.copies == "one",
    }
    named = next((name for name, is_given in given.items() if is_given), None)
    if named is not None:
        raise UserError(
            f"{named} does not apply to job {run.job.name}: it {NEEDS_ALL}", hint=f"leave {named} out"
        )
    for region, limit in zip(task.partition, memory, strict=False):
        needed, most = block_memory(task, region, asynchronous=gpu), limit.device if gpu else limit.host
        if needed > most:
            raise UserError(
                f"job {run.job.name} {NEEDS_ALL}, and the memory of the ranks is too small",
                got=f"{needed:,} bytes of a rank",
                expected=f"at most {most:,}",
                hint="more ranks",
            )


def _resumes(run: RunContext) -> bool:
    """Return whether the only option of streamed runs is the one to resume, for steps."""
    stream = run.options.stream
    return run.options.steps.steps is not None and stream.named == option("resume", True)


def run_program(run: RunContext, prepared: Prepared) -> Finished:
    """Run all stages once. Collective."""
    from meshrun.runner.steps.program_steps import ProgramStepper

    world, task = run.world, prepared.task
    no_feeds = (None,) * len(task.job.output_names)
    task = replace(task, job=replace(task.job, feeds=no_feeds))

    def begin() -> list[Sink]:
        check_nothing_unfinished(run)
        refuse_options(run, task, prepared.memory)
        return make_task_outputs(run, task)

    sinks = world.on_root(begin)
    run.transaction.track_partial(*(sink.partial for sink in sinks))
    # Read, compute and write.
    checks = run.options.steps.check_finite is not None
    rules = LoopRules(run.options.max_iterations, checks, run.progress.iterations)
    stepper = ProgramStepper(world, task, world.phases, rules=rules)
    stepper.start(load_arrays(world, run.sources, stepper.plans, world.phases, stepper))
    series = _rows_of(run, task)
    stepper.advance(1, last=True)
    stepper.finish()
    for one in series:
        one.add_row_of_stages(stepper)
        one.finish()
    if checks:
        _check_results(stepper)
    for number, sink in enumerate(sinks):
        store = store_of(world, task, sink, world.phases, number)
        store.put(store.region, stepper.result(number))
        store.finish()
    run.inputs.check(world)
    # Verify and commit.
    proof = _proof(run, task, sinks)
    commit(run, sinks)
    if series:
        commit_series(run, series)
    run.transaction.forget_partial()
    computed = replace(computation_of(task, prepared.fusion), loops=stepper.loop_counts)
    rows = [known for one in series for known in one.types]
    return Finished(computed, type_record(task.known[0]), task.known, rows, verify=proof)


def _check_results(stepper: ProgramStepper) -> None:
    """Raise RunError on every rank for a result with a cell that is not finite. Collective."""
    from meshrun.runner.steps.loop import check_finite

    xp, task = stepper.world.xp, stepper.task
    region = task.partition[stepper.world.rank]
    for number, name in enumerate(task.job.output_names):
        start = task.output_region(region, number).start
        check_finite(stepper.world, not_finite(xp, name, stepper.result(number), start), "in the result")


def _series_of(run: RunContext, task: Task, blocks: Sequence[Array], region: Region) -> list[SeriesRows]:
    """Write the only row of each result that is no field. Collective.

    blocks: of the inputs, with their halo. region: this rank's own cells.
    """
    found = _rows_of(run, task)
    for series in found:
        cut = [parts > 1 for parts in task.partition.grid]
        series.add(1, series.take(blocks, region, cut) if region.size else [])
        series.finish()
    return found


def _rows_of(run: RunContext, task: Task) -> list[SeriesRows]:
    """Begin the files of the results that are no fields; return what writes them. Collective."""
    if not run.job.series:
        return []
    from meshrun.runner.steps.observers.series import SeriesRows

    series = SeriesRows(run.world, task, run.series)
    run.world.on_root(lambda: run.transaction.lock(*run.series))
    run.transaction.track_partial(*run.transaction.partials, *series.unfinished)
    series.open()
    return [series]


def no_series_in_chunks(run: RunContext, named: str | None) -> UserError:
    """Build the error for a job with series whose arrays do not stay in memory. named: the option."""
    return UserError(
        f"job {run.job.name} returns series, which are not computed in chunks",
        got=named or "arrays that pass through the ranks in chunks",
        hint=f"leave {named} out" if named else "more ranks, and outputs such as .npy",
    )


def _proof(run: RunContext, task: Task, sinks: Sequence[Sink], redo: Redo | None = None) -> Record | None:
    if run.options.verify == "off":
        return None
    if task.job.program is not None:
        from meshrun.runner.run.verify.steps import verify_steps

        with run.world.phases("verify"):
            return verify_steps(run.world, task, run.sources, sinks, 1, run.options.verify)
    from meshrun.runner.run.verify.results import verify

    world, mode, progress = run.world, run.options.verify, run.progress.proof
    with world.phases("verify"):
        return verify(world, task, run.sources, sinks, mode, redo=redo, progress=progress)
