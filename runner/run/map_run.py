"""A map job from files to files: in memory with a block for each rank, or streamed in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from meshrun.runner.arrays.load import load_blocks
from meshrun.runner.arrays.store import store_of
from meshrun.runner.compiler.decide import fused, with_inferred_halo
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.forecast.record import type_record
from meshrun.runner.maps.in_memory import BlockDoesNotFit, Pipeline
from meshrun.runner.maps.split_probe.probe import check_split
from meshrun.runner.maps.streamed.chunk_agreement import file_chunks, in_chunks
from meshrun.runner.options.spelling import option
from meshrun.runner.plan.chunking import Files, has_own_grid, streamed_grid
from meshrun.runner.plan.grid import check_blocks
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.record import Record
from meshrun.runner.report.spans import STAGES
from meshrun.runner.run.context import RunContext
from meshrun.runner.storage.formats.registry import Sink, create, first_serial, open_sink
from meshrun.runner.storage.journal import Journal
from meshrun.runner.storage.paths import KEPT, partial_path, split
from meshrun.runner.system.host_memory import host_memory

if TYPE_CHECKING:
    from meshrun.runner.maps.streamed.redo import Redo


def run_map(run: RunContext) -> Record:
    world, options = run.world, run.options
    world.collective_call(options.steps.check)
    types = [(source.shape, source.dtype) for source in run.sources]
    run.job = world.collective_call(lambda: with_inferred_halo(run.job, types, run.parameters))
    if options.steps.steps is not None:
        from meshrun.runner.run.step_run import run_steps

        return run_steps(run)
    other = has_own_grid(options.grid, world.size)
    task = world.collective_call(lambda: planned(run, world.size, None if other else options.grid))
    task = fuse(run, task)
    whole = options.overlap is not None  # applies only to runs in memory
    known = in_chunks(world, task, run.sources, run.targets, options.stream, whole)
    if known is not None:
        return _in_chunks(run, known)
    if other:
        world.collective_call(lambda: planned(run, world.size, options.grid))  # raises
    try:
        return _in_one_piece(run, task)
    except BlockDoesNotFit as failure:  # on every rank
        found = None
        if options.overlap is None:
            found = in_chunks(world, task, run.sources, run.targets, options.stream, too_large=True)
        if found is None:
            raise
        shortage = failure.got
    # Here, the blocks are free.
    world.on_root(run.transaction.remove_partials)
    run.transaction.forget_partial()
    world.warn(f"streamed in chunks, because a rank's block does not fit the device memory ({shortage})")
    return _in_chunks(run, found)


def fuse(run: RunContext, task: Task, steps: int = 1) -> Task:
    """Return the task with a kernel in place of its function, where it can be had. Collective.

    steps: how often the function is called on the whole arrays.
    """
    if (run.options.fuse or run.job.fuse) != "off":
        with run.phases("prepare"):
            task, run.fusion = fused(run.world, task, run.options.fuse, run.options.fuse_math, steps)
    return task


def planned(run: RunContext, blocks: int, grid: str | None) -> Task:
    """Return the task cut into so many blocks; raises UserError if inputs and options do not fit."""
    options = run.options
    return plan_task(
        run.job,
        run.parameters,
        [(source.shape, source.dtype) for source in run.sources],
        blocks,
        grid=grid,
        boundary=options.boundary,
        cval=options.cval,
    )


def _in_chunks(run: RunContext, task: Task) -> Record:
    """Run streamed. task: cut into a block for each rank, its results known."""
    world, options = run.world, run.options
    if options.overlap is not None:
        raise UserError(f"{option('overlap')} does not apply: streamed runs always overlap", everywhere=True)
    grid, count = streamed_grid(options.grid, world.size)
    own_grid = has_own_grid(options.grid, world.size)
    if own_grid:
        world.collective_call(lambda: check_blocks(grid))
    blocks = world.collective_call(lambda: planned(run, count, grid))
    if blocks.leading == task.leading:  # else other axes are cut, and the result types must be found again
        blocks = replace(blocks, results=task.results, kernel=task.kernel)
    elif task.kernel is not None:
        blocks = fuse(run, blocks)
    check_split(world, blocks)
    from meshrun.runner.maps.streamed.streaming import StreamedRun

    streamed = StreamedRun(
        world,
        blocks,
        run.sources,
        run.targets,
        options.stream,
        run.transaction,
        run.phases,
        run.inputs,
        run.show,
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
    foreseen = not details["resumed"] and not own_grid
    wall = details["limits"]["wall_seconds"]
    sink_chunks = file_chunks(streamed.sinks)
    files = Files(True, sink_chunks is not None, file_chunks(run.sources), sink_chunks)
    plan = world.on_root(lambda: _beside_plan(run, task, wall, True, files) if foreseen else None)
    return {
        **describe_task(streamed.task, run),
        "overlap": False,
        "verify": proof,
        "plan": plan,
        "stream": details,
    }


def commit(run: RunContext, sinks: Sequence[Sink]) -> None:
    """Rename every finished output file to its final name. Collective.

    RunError if an old file has changed since the run began: the new one lacks the change, and both are kept.
    """

    def rename() -> None:
        for partial, path in dict.fromkeys((sink.partial, sink.path) for sink in sinks):
            run.transaction.commit(partial, path)

    changed = run.world.on_root(run.inputs.changed_container)
    if changed is not None:
        run.transaction.forget_partial()
        run.transaction.set_recovery_hint(None)
        partial = next(sink.partial for sink in sinks if sink.path == changed)
        new = partial.with_suffix(".kept")  # the next run removes what is called partial
        run.world.on_root(lambda: partial.rename(new))
        raise RunError(
            f"{changed} changed while this run wrote a new version of it without that change, {new}",
            expected="only one program writes it at a time",
            hint="rm -r one of the two, and rename the other",
            everywhere=True,
        )
    run.world.on_root(rename)


def _beside_plan(run: RunContext, task: Task, wall: float, streamed: bool, files: Files) -> Any:
    """Compare the run's forecast with what rank 0 measured; None if there is no forecast."""
    if 0 in task.shape:
        return None
    from meshrun.runner.forecast.machine import nominal_cpu
    from meshrun.runner.forecast.record import beside_run

    world, options = run.world, run.options
    measured = {name: (phase.moved, phase.seconds) for name, phase in run.phases.phases.items()}
    here = nominal_cpu(os.cpu_count() or 1, host_memory())
    return beside_run(
        task,
        world.here.device,
        here,
        len(world.hosts),
        options.stream,
        options.rates,
        measured,
        wall,
        streamed,
        files,
        grid=options.grid,
        keep_whole=options.overlap is not None,
    )


def _in_one_piece(run: RunContext, task: Task) -> Record:
    world, options = run.world, run.options
    check_nothing_unfinished(run)
    check_split(world, task)
    # If the result types are known, disk space is allocated before the computation.
    known = create_outputs(run, task) if task.results else None
    overlap = world.backend.asynchronous if options.overlap is None else options.overlap
    pipeline = Pipeline(world, task, run.phases, overlap, run.progress)
    blocks = load_blocks(world, run.sources, task, pipeline.halos.plans, run.phases)
    task = pipeline.prepare(blocks)
    sinks = known or create_outputs(run, task)
    stores = [store_of(world, task, sink, run.phases, number) for number, sink in enumerate(sinks)]
    for region, results in pipeline.results(blocks):
        for number, result in enumerate(results):
            stores[number].put(task.output_region(region, number), result)
    for store in stores:
        store.finish()
    run.inputs.check(world)
    # Sequential stages; other phases (disk space, kernel compilation) do not depend on the data.
    wall = sum(phase.seconds for name, phase in run.phases.phases.items() if name in (*STAGES, "exchange"))
    proof = _proof(run, task, sinks)
    commit(run, sinks)
    run.transaction.forget_partial()
    # No forecast for images, which one rank reads and writes.
    foreseen = first_serial([*run.sources, *sinks]) is None
    files = Files(source_chunks=file_chunks(run.sources), sink_chunks=file_chunks(sinks))
    plan = world.on_root(lambda: _beside_plan(run, task, wall, False, files) if foreseen else None)
    return {
        **describe_task(task, run),
        "overlap": pipeline.overlap,
        "verify": proof,
        "plan": plan,
        "stream": None,
    }


def check_nothing_unfinished(run: RunContext) -> None:
    """Raise UserError if there is an unfinished streamed run of this output. Collective."""

    def check() -> None:
        journal = Journal(split(run.targets[0])[0])
        if journal.kept() is not None:
            raise journal.unfinished(*(partial_path(target, KEPT) for target in run.targets))

    run.world.on_root(check)


def _proof(run: RunContext, task: Task, sinks: Sequence[Sink], redo: Redo | None = None) -> Record | None:
    if run.options.verify == "off":
        return None
    from meshrun.runner.run.verify.results import verify

    with run.phases("verify"):
        return verify(run.world, task, run.sources, sinks, run.options.verify, redo=redo, progress=run.proof)


def describe_task(task: Task, run: RunContext) -> Record:
    """Return a task's part of the record."""
    return {
        "grid": list(task.partition.grid),
        "halo": [list(width) for width in task.widths],
        "boundary": task.boundary,
        "fused": asdict(run.fusion) if run.fusion else None,
        "split_dependent": task.job.split_dependent,
        "stages": run.stages,
        "result": type_record(task.known[0]),
        "results": [type_record(known) for known in task.known],  # `execute` adds them to "outputs"
    }


def create_outputs(run: RunContext, task: Task) -> list[Sink]:
    """Create the output files under temporary names. Collective."""

    def opened() -> list[Sink]:
        pairs = zip(run.targets, task.known, strict=True)
        return [open_sink(target, *known, run.world.run_id) for target, known in pairs]

    return create_files(run, opened)


def create_files(run: RunContext, opened: Callable[[], list[Sink]]) -> list[Sink]:
    """Create the files of the sinks that `opened` returns, under temporary names. Collective."""

    def make() -> list[Sink]:
        sinks = opened()
        for target, sink in zip(run.targets, sinks, strict=True):
            if run.options.verify != "off" and not sink.lossless:
                raise UserError(
                    f"{option('verify')} reads the output back, and {target.suffix} does not store "
                    "it exactly",
                    hint="an output that ends in .png or .npy",
                )
        run.transaction.track_partial(*(sink.partial for sink in sinks))
        create(sinks)
        return sinks

    sinks = run.world.on_root(make)
    run.transaction.track_partial(*(sink.partial for sink in sinks))
    return sinks
