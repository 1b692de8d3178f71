"""Agreement on chunks: gather limits and file properties from all ranks, and let `chunking` decide."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from runner.errors import UserError
from runner.pipeline.result_type import ResultType, result_type
from runner.plan.chunking import (
    Facts,
    Files,
    MemoryUse,
    check_limit,
    is_streamed,
    is_too_large,
    least,
    memory_limits,
    not_streamed,
    plan_chunks,
)
from runner.plan.chunks import Chunks
from runner.plan.stream_options import StreamOptions
from runner.plan.task import Task
from runner.plan.window import Window
from runner.region import Array, Region
from runner.storage.formats import FOLDERS, Sink, Source, open_sink
from runner.storage.paths import KEPT, split
from runner.system.host_memory import host_memory
from runner.world.world import World


def in_chunks(
    world: World, task: Task, source: Source, target: Path, options: StreamOptions, whole: bool = False
) -> Task | None:
    """The task with its result known, where the run is streamed (`is_streamed`); else None. Collective.

    whole: do not stream to overlap copies. Raises UserError if an option requires chunks and a file has none.
    """
    files = Files(source.parallel, split(target)[0].suffix.lower() in FOLDERS)
    asynchronous = world.backend.asynchronous
    streamed = partial(is_streamed, task, options, files, asynchronous=asynchronous, keep_whole=whole)
    # Memory decides only if nothing else does: its options are checked with the chunks.
    if streamed(too_large=False) or (
        source.parallel and streamed(too_large=_is_too_large(world, task, options))
    ):
        known = known_result(world, task, source)
        if world.on_root(lambda: open_sink(target, *known.known, KEPT)).parallel:
            return known
    if options.named is not None:
        raise not_streamed(options.named, target if source.parallel else source.path)
    return None


def _is_too_large(world: World, task: Task, options: StreamOptions) -> bool:
    """Whether any rank's block does not fit its memory; the same answer on every rank."""
    mine = is_too_large(
        task, task.partition[world.rank], limits(world, options), asynchronous=world.backend.asynchronous
    )
    return any(world.control.allgather(mine))


def limits(world: World, options: StreamOptions) -> MemoryUse:
    """Return the bytes that this rank's chunks may take together.

    Raises UserError if an option allows more than there is.
    """
    here, gpu = world.here, world.backend.asynchronous
    beside = [rank for rank in world.ranks if rank.host_id == here.host_id]
    host = host_memory()
    check_limit("--host-memory", options.host_memory, host, "this host")
    if gpu:
        check_limit("--device-memory", options.device_memory, here.device.memory, "this GPU")
    return memory_limits(
        options,
        host=host,
        beside=len(beside),
        device=world.backend.free_memory() if gpu else None,
        sharing=sum(rank.device.uuid == here.device.uuid for rank in beside),
    )


def chunks_of(
    world: World, task: Task, source: Source, sink: Sink, options: StreamOptions, rows: int | None
) -> Chunks:
    """Return the chunks of `task.partition`, the same on every rank. Collective.

    rows: rows of an unfinished run's chunks, which are kept. Raises UserError if not even the smallest chunk
    fits.
    """
    if sink.chunks and math.prod(task.partition.grid) > 1:
        raise UserError(
            f"{sink.path} is a chunked format, written in whole rows",
            got=f"--grid {'x'.join(map(str, task.partition.grid))}",
            hint="no --grid",
            everywhere=True,
        )
    everyone = world.control.allgather(world.collective_call(lambda: limits(world, options)))
    files = Files(source_chunks=source.chunks, sink_chunks=sink.chunks)
    facts = Facts(world.size, world.backend.asynchronous, least(everyone), files)
    return plan_chunks(task, facts, options, rows)


def known_result(world: World, task: Task, source: Source) -> Task:
    """Return the task with its result type, from one trial call on rank 0 if it is not declared.

    Collective. The trial is on zeros, or on the first row where the function fails on those (`result_type`).
    """
    if task.result is not None:
        return task

    def trial() -> ResultType:
        return result_type(
            task,
            world.backend,
            ranks=world.size,
            host=world.here.host,
            first_row=lambda: _first_row(world, task, source),
        )

    return task.with_result(*world.on_root(trial))


def _first_row(world: World, task: Task, source: Source) -> tuple[Region, Array]:
    """Return the first row of the first block, and its padded block on this rank's device."""
    row = Region((0,) * len(task.shape), (1, *task.partition[0].stop[1:]))
    window = Window(row, task.shape, task.widths, task.boundary, task.cval)
    staged = np.empty(window.staged, task.dtype)
    for region, place in window.reads():
        source.read(region, staged[place])
    block = world.backend.xp.asarray(staged)
    if window.direct:
        return row, block
    padded = world.backend.empty(window.shape, task.dtype)
    window.assemble(block, padded)
    return row, padded
