"""Chunks that all ranks agree on, and the types of results that they need to know beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshrun.runner.arrays.load import file_chunks
from meshrun.runner.arrays.store import open_sinks
from meshrun.runner.compiler.result_type import result_types
from meshrun.runner.errors import UserError
from meshrun.runner.maps.streamed.halving import does_not_fit
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import (
    Facts,
    FileTraits,
    MemoryUse,
    least,
    plan_chunks,
)
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Sink, Source, first_serial
from meshrun.runner.storage.paths import KEPT
from meshrun.runner.world.world import World


def serial_file(task: Task, sources: Sequence[Source], targets: Sequence[Path]) -> Path | None:
    """Return the first file that one rank reads or writes whole; None if there is none. On one rank.

    task: its results known.
    """
    return first_serial(sources) or _serial_sink(task, targets)


def _serial_sink(task: Task, targets: Sequence[Path]) -> Path | None:
    """Return the first output that one rank writes whole; None if there is none."""
    return first_serial(open_sinks(task, targets, KEPT))


def chunks_of(
    world: World,
    task: Task,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    options: StreamOptions,
    memory: Sequence[MemoryUse],
    rows: int | None = None,
) -> Chunks:
    """Return the chunks of `task.partition`, the same on every rank.

    memory: what each rank may use. rows: rows of an unfinished run's chunks, which are kept. Raises UserError
    if not even the smallest chunk fits.
    """
    chunked = [sink for sink in sinks if sink.chunks]
    if chunked and math.prod(task.partition.grid) > 1:
        raise UserError(
            f"{chunked[0].path} has a chunked format, which is written in whole rows",
            got=option("grid", "x".join(map(str, task.partition.grid))),
            hint=f"no {option('grid')}",
            everywhere=True,
        )
    files = FileTraits(source_chunks=file_chunks(sources), sink_chunks=_common_rows(sinks))
    facts = Facts(world.size, world.backend.asynchronous, least(memory), files)
    return plan_chunks(task, facts, options, rows)


def _common_rows(sinks: Sequence[Sink]) -> Shape | None:
    """Return a shape whose number of rows is a multiple of the rows of every output's chunks."""
    shapes = [sink.chunks for sink in sinks if sink.chunks]
    if not shapes:
        return None
    return (math.lcm(*(shape[0] for shape in shapes)), *shapes[0][1:])


def known_results(world: World, task: Task, sources: Sequence[Source]) -> Task:
    """Return the task with its result types, from one trial call on rank 0 if they are not declared.
    Collective."""
    if task.results is not None:
        return task
    return replace(task, results=world.on_root(lambda: with_trial_results(world, task, sources).known))


def with_trial_results(world: World, task: Task, sources: Sequence[Source]) -> Task:
    """Return the task with its result types, from one trial call if they are not declared. On one rank.

    The trial is on zeros, or on the first row if the function fails on zeros (`result_types`).
    """
    if task.results is not None:
        return task
    try:
        types = result_types(
            task,
            world.backend,
            ranks=world.size,
            host=world.here.host,
            first_row=lambda: _first_row(world, task, sources),
        )
    except (MemoryError, RuntimeError) as failure:  # CuPy and CUDA
        shortage = world.backend.shortage(failure)
        if shortage is None:
            raise
        raise does_not_fit("a row", shortage) from failure
    return task.with_results(types)


def _first_row(world: World, task: Task, sources: Sequence[Source]) -> tuple[Region, list[Array]]:
    """Return the first row of the first block, and its padded blocks on this rank's device."""
    row = Region((0,) * len(task.shape), (1, *task.partition[0].stop[1:]))
    blocks = []
    for number, (field, source) in enumerate(zip(task.fields, sources, strict=True)):
        window = Window(task.field_region(number, row), field.shape, field.widths, *task.beyond(number))
        staged = np.empty(window.staged, field.dtype)
        for region, place in window.reads():
            source.read(region, staged[place])
        block = world.backend.xp.asarray(staged)
        if not window.direct:
            padded = world.backend.empty(window.shape, field.dtype)
            window.assemble(block, padded)
            block = padded
        blocks.append(block)
    return row, blocks
