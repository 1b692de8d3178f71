"""A map job from files to files: in memory with a block for each rank, or streamed in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshrun.runner.arrays.load import load_arrays
from meshrun.runner.arrays.store import store_of
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.in_memory import BlockDoesNotFit, Pipeline
from meshrun.runner.maps.split_probe import check_split, refuse_split
from meshrun.runner.maps.streamed.chunk_agreement import file_chunks, streamed_results
from meshrun.runner.plan.chunking import Files, has_own_grid, streamed_grid
from meshrun.runner.plan.grid import check_blocks
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.report.spans import STAGES
from meshrun.runner.run.finish import Finished, commit, compared_with_plan, computation_of
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
from meshrun.runner.storage.formats.registry import Sink, first_serial

if TYPE_CHECKING:
    from meshrun.runner.maps.streamed.redo import Redo


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
    start = run.world.on_root(lambda: _start(run, prepared))
    if start.streamed is not None:
        return _in_chunks(run, prepared, start.streamed)
    try:
        return _in_one_piece(run, prepared, start.sinks)
    except BlockDoesNotFit as failure:  # on every rank
        if run.options.overlap is not None:
            raise
        results = run.world.on_root(lambda: _streamed_results(run, prepared.task, too_large=True))
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
    streamed = _streamed_results(run, task, too_large=prepared.too_large)
    if streamed is not None:
        return MapStart(streamed)
    if has_own_grid(options.grid, world.size):
        planned(run, world.size, options.grid)  # raises
    check_nothing_unfinished(run)
    refuse_split(world, task)
    # If the result types are known, disk space is allocated before the computation.
    return MapStart(sinks=make_task_outputs(run, task) if task.results else None)


def _streamed_results(run: RunContext, task: Task, *, too_large: bool) -> tuple[ArrayType, ...] | None:
    keep_whole = run.options.overlap is not None  # applies only to runs in memory
    return streamed_results(
        run.world,
        task,
        run.sources,
        run.targets,
        run.options.stream,
        too_large=too_large,
        keep_whole=keep_whole,
    )


def _in_chunks(run: RunContext, prepared: Prepared, results: tuple[ArrayType, ...]) -> Finished:
    """Run streamed. results: shapes and dtypes of the task's."""
    world, options = run.world, run.options
    if options.overlap is not None:
        raise UserError(f"{option('overlap')} does not apply: streamed runs always overlap", everywhere=True)
    task = replace(prepared.task, results=results)
    grid, count = streamed_grid(options.grid, world.size)
    own_grid = has_own_grid(options.grid, world.size)

    def cut() -> Task:
        if own_grid:
            check_blocks(grid)
        return planned(run, count, grid)

    blocks = world.collective_call(cut)
    if blocks.leading == task.leading:  # else other axes are cut, and the result types must be found again
        blocks = replace(blocks, job=task.job, results=task.results, kernel=task.kernel)
    elif task.kernel is not None:
        with world.phases("prepare"):
            blocks, fusion = fused(world, blocks, options.fuse, options.fuse_math)
        prepared = replace(prepared, fusion=fusion)
    check_split(world, blocks)
    from meshrun.runner.maps.streamed.streaming import StreamedRun

    streamed = StreamedRun(
        world,
        blocks,
        run.sources,
        run.targets,
        options.stream,
        run.transaction,
        world.phases,
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
    if not details["resumed"] and not own_grid:
        sink_chunks = file_chunks(streamed.sinks)
        files = Files(True, sink_chunks is not None, file_chunks(run.sources), sink_chunks)
        wall = details["limits"]["wall_seconds"]
        plan = compared_with_plan(run, task, wall, files, streamed=True)
    computed = computation_of(streamed.task, prepared.fusion)
    known = streamed.task.known
    return Finished(computed, type_record(known[0]), known, verify=proof, plan=plan, stream=details)


def _in_one_piece(run: RunContext, prepared: Prepared, sinks: list[Sink] | None) -> Finished:
    """Run in memory, with a block for each rank. sinks: the outputs, if they have been created."""
    world, options, task = run.world, run.options, prepared.task
    if sinks is not None:
        run.transaction.track_partial(*(sink.partial for sink in sinks))
    # Read.
    overlap = world.backend.asynchronous if options.overlap is None else options.overlap
    pipeline = Pipeline(world, task, world.phases, overlap, run.progress.rows)
    task = pipeline.prepare(load_arrays(world, run.sources, pipeline.plans, world.phases))
    if sinks is None:
        sinks = create_outputs(run, task)
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
    run.transaction.forget_partial()
    plan = None
    if (
        first_serial([*run.sources, *sinks]) is None
    ):  # no forecast for images, which one rank reads and writes
        files = Files(source_chunks=file_chunks(run.sources), sink_chunks=file_chunks(sinks))
        plan = compared_with_plan(run, task, wall, files, streamed=False)
    computed = computation_of(task, prepared.fusion, overlap=pipeline.overlap)
    return Finished(computed, type_record(task.known[0]), task.known, verify=proof, plan=plan)


def create_outputs(run: RunContext, task: Task) -> list[Sink]:
    """Create the output files under temporary names. Collective."""
    sinks = run.world.on_root(lambda: make_task_outputs(run, task))
    run.transaction.track_partial(*(sink.partial for sink in sinks))
    return sinks


def _proof(run: RunContext, task: Task, sinks: Sequence[Sink], redo: Redo | None = None) -> Record | None:
    if run.options.verify == "off":
        return None
    from meshrun.runner.run.verify.results import verify

    world, mode, progress = run.world, run.options.verify, run.progress.proof
    with world.phases("verify"):
        return verify(world, task, run.sources, sinks, mode, redo=redo, progress=progress)
