"""Files and arrays of a task whose arrays have several sizes: those of one size, as memory has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, Region, Shape, Subgrid
from meshrun.runner.storage.formats.registry import (
    Sink,
    Source,
    SpreadSink,
    SpreadSource,
    open_sink,
    own_source,
)


def spread_sources(task: Task, sources: Sequence[Source]) -> list[Source]:
    """Return the sources as arrays with a cell at each position of space; those that are so stay."""
    return [
        source
        if field.subgrid is None or isinstance(source, SpreadSource)
        else SpreadSource(source, field.subgrid, field.shape)
        for field, source in zip(task.fields, sources, strict=True)
    ]


def stored_type(source: Source) -> ArrayType:
    """Return shape and dtype of an input as its file has it."""
    return own_source(source).shape, source.dtype


def open_sinks(task: Task, targets: Sequence[Path], run_id: str) -> list[Sink]:
    """Return a sink for each result of a task, which are known."""
    pairs = zip(targets, task.known, strict=False)  # the last targets may be of series
    if task.job.sizes is None:
        return [open_sink(target, *known, run_id) for target, known in pairs]
    return [
        open_spread(target, task.subgrid(number), known, run_id)
        for number, (target, known) in enumerate(pairs)
    ]


def open_spread(path: Path, subgrid: Subgrid | None, known: ArrayType, run_id: str) -> Sink:
    """Return a sink for an array of `known` shape and dtype, which stores the cells of a subgrid.

    subgrid: None: all.
    """
    shape, dtype = known
    if subgrid is None:
        return open_sink(path, shape, dtype, run_id)
    return cast(Sink, SpreadSink(open_sink(path, subgrid.shape, dtype, run_id), subgrid, shape))


def own_cells(array: Array, subgrid: Subgrid | None) -> Array:
    """Return the cells of a subgrid in an array with a cell at each position; a view."""
    return array if subgrid is None else array[subgrid.places(everything(array.shape))]


def everything(shape: Shape) -> Region:
    """Return all cells of an array."""
    return Region((0,) * len(shape), tuple(shape))
