"""A map job from file to file: in memory with a block for each rank, or streamed in chunks."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from runner.errors import RunError, UserError
from runner.pipeline.chunk_agreement import in_chunks
from runner.pipeline.in_memory import Pipeline
from runner.pipeline.load import load_block
from runner.pipeline.store import Store
from runner.pipeline.streaming import StreamedRun
from runner.plan.chunking import Files, has_own_grid, streamed_grid
from runner.plan.grid import check_blocks
from runner.plan.task import Task, plan_task
from runner.report.record import Record
from runner.report.spans import STAGES
from runner.run.options import RunContext
from runner.storage.formats import Sink, open_sink
from runner.storage.journal import Journal
from runner.storage.paths import KEPT, partial_path, split
from runner.system.host_memory import host_memory


def run_map(run: RunContext) -> Record:
    world, options = run.world, run.options
    other = has_own_grid(options.grid, world.size)
    task = world.collective_call(lambda: _cut(run, world.size, None if other else options.grid))
    assert run.target is not None
    whole = options.overlap is not None  # applies only to runs in memory
    known = in_chunks(world, task, run.source, run.target, options.stream, whole)
    if known is not None:
        return _in_chunks(run, known)
    if other:
        world.collective_call(lambda: _cut(run, world.size, options.grid))  # raises
    return _in_one_piece(run, task)


def _cut(run: RunContext, blocks: int, grid: str | None) -> Task:
    options, source = run.options, run.source
    return plan_task(
        run.job,
        run.parameters,
        source.shape,
        source.dtype,
        blocks,
        grid=grid,
        boundary=options.boundary,
        cval=options.cval,
    )


def _in_chunks(run: RunContext, task: Task) -> Record:
    """task: cut into a block for each rank, its result known."""
    world, options = run.world, run.options
    assert run.target is not None
    if options.overlap is not None:
        raise UserError("--overlap does not apply: streamed runs always overlap", everywhere=True)
    grid, count = streamed_grid(options.grid, world.size)
    own_grid = has_own_grid(options.grid, world.size)
    if own_grid:
        world.collective_call(lambda: check_blocks(grid))
    blocks = world.collective_call(lambda: _cut(run, count, grid))
    if blocks.leading == task.leading:  # else another axis is cut, and the result type must be found again
        blocks = replace(blocks, result=task.result)
    streamed = StreamedRun(
        world,
        blocks,
        run.source,
        run.target,
        options.stream,
        run.transaction,
        run.phases,
        run.inputs,
        run.show,
    )
    details = streamed.write()
    try:
        proof = _proof(run, task, streamed.sink, dealt=True)
    except RunError:
        run.transaction.set_recovery_hint(streamed.journal.anew(streamed.sink.partial))
        raise
    world.on_root(lambda: run.transaction.commit(streamed.sink.partial, streamed.sink.path))
    streamed.commit()
    # No forecast for resumed runs, nor for chunks with a grid of their own.
    foreseen = not details["resumed"] and not own_grid
    wall = details["limits"]["wall_seconds"]
    files = Files(True, streamed.sink.chunks is not None, run.source.chunks, streamed.sink.chunks)
    plan = world.on_root(lambda: _beside_plan(run, task, wall, True, files) if foreseen else None)
    return {**_described(streamed.task), "overlap": False, "verify": proof, "plan": plan, "stream": details}


def _beside_plan(run: RunContext, task: Task, wall: float, streamed: bool, files: Files) -> Any:
    """Compare the run's forecast with what rank 0 measured; None if there is no forecast."""
    if 0 in task.shape:
        return None
    from runner.plan.machine import nominal_cpu
    from runner.run.forecast_record import beside_run

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
    world, source, options = run.world, run.source, run.options
    world.on_root(lambda: _nothing_unfinished(run))
    # If the result type is known, disk space is allocated before the computation.
    known = _create(run, task) if task.result else None
    overlap = world.backend.asynchronous if options.overlap is None else options.overlap
    pipeline = Pipeline(world, task, run.phases, overlap, run.progress)
    block = load_block(world, source, task.partition, pipeline.plan, run.phases)
    task = pipeline.prepare(block)
    sink = known or _create(run, task)
    store = Store(world, task, sink, run.phases)
    for region, result in pipeline.results(block):
        store.put(region, result)
    store.finish()
    run.inputs.check(world)
    # Sequential stages; other phases (disk space, kernel compilation) do not depend on the data.
    wall = sum(phase.seconds for name, phase in run.phases.phases.items() if name in (*STAGES, "exchange"))
    proof = _proof(run, task, sink)
    world.on_root(lambda: run.transaction.commit(sink.partial, sink.path))
    run.transaction.forget_partial()
    foreseen = run.source.parallel and sink.parallel  # images are read and written by one rank: no forecast
    files = Files(source_chunks=run.source.chunks, sink_chunks=sink.chunks)
    plan = world.on_root(lambda: _beside_plan(run, task, wall, False, files) if foreseen else None)
    return {**_described(task), "overlap": pipeline.overlap, "verify": proof, "plan": plan, "stream": None}


def _nothing_unfinished(run: RunContext) -> None:
    assert run.target is not None
    journal = Journal(split(run.target)[0])
    if journal.kept() is not None:
        raise journal.unfinished(partial_path(run.target, KEPT))


def _proof(run: RunContext, task: Task, sink: Sink, dealt: bool = False) -> Record | None:
    if run.options.verify == "off":
        return None
    from runner.run.verify import verify

    with run.phases("verify"):
        return verify(run.world, task, run.source, sink, run.options.verify, dealt=dealt, progress=run.proof)


def _described(task: Task) -> Record:
    return {
        "grid": list(task.partition.grid),
        "halo": [list(width) for width in task.widths],
        "boundary": task.boundary,
        "result": {"shape": list(task.known[0]), "dtype": str(task.known[1])},
    }


def _create(run: RunContext, task: Task) -> Sink:
    """Create the output file under a temporary name. Collective."""

    def create() -> Sink:
        assert task.result is not None
        assert run.target is not None
        sink = open_sink(run.target, *task.result, run.world.run_id)
        if run.options.verify != "off" and not sink.lossless:
            raise UserError(
                f"--verify reads the output back, and {run.target.suffix} does not store it exactly",
                hint="an output that ends in .png or .npy",
            )
        run.transaction.track_partial(sink.partial)
        sink.create()
        return sink

    sink = run.world.on_root(create)
    run.transaction.track_partial(sink.partial)
    return sink
