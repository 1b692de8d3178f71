"""The record of a map job's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from meshrun.runner.forecast.machine import Machine
from meshrun.runner.forecast.model import Forecast, by_ranks, enough, forecast
from meshrun.runner.forecast.place import Place
from meshrun.runner.forecast.record import plan_envelope
from meshrun.runner.options.plan_options import PlanOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import FileTraits
from meshrun.runner.plan.task import Task
from meshrun.runner.report.record import Record, type_record


def plan_map(task: Task, options: PlanOptions, place: Place, files: FileTraits) -> Record:
    """Return the forecast of a map job as plain values, and of fewer ranks.

    task: cut into a block for each rank, its results known. files: what chunks depend on of the inputs.
    """
    stream, grid = options.stream, options.grid
    last = forecast(task, place.machine, place.hosts, stream, files, grid=grid)
    every = by_ranks(last, task, place.machine, stream, files, grid=grid)
    return record(every, task, place.machine, stream)


def record(forecasts: Sequence[Forecast], task: Task, machine: Machine, options: StreamOptions) -> Record:
    """Return the last forecast in full and the times of the others, as plain values."""
    last = forecasts[-1]
    part = last.part
    found = {
        "result": type_record(task.stored[0]),
        "inputs": {field.name: type_record((field.shape, field.dtype)) for field in task.fields},
        "results": {
            name: type_record(known) for name, known in zip(task.job.output_names, task.stored, strict=True)
        },
        "grid": list(last.grid),
        "boundary": task.declared_boundary or task.boundary,
        "streamed": part.streamed,
        "chunks": part.chunks,
        "chunk_rows": part.chunk_rows,
        "depth": min(options.under_way, part.chunks) if part.streamed else 1,
        "memory": asdict(part.memory),
        "stages": [asdict(row) for row in last.rows],
        "fill_seconds": last.fill,
        "seconds": last.seconds,
        "start_seconds": last.start,
        "limit": last.limit.name,
        "by_ranks": [
            {
                "ranks": one.ranks,
                "hosts": one.hosts,
                "streamed": one.part.streamed,
                "seconds": one.seconds,
                "start_seconds": one.start,
                "limit": one.limit.name,
            }
            for one in forecasts
        ],
        "enough_ranks": enough(forecasts),
    }
    array = task.shape, task.dtype
    return plan_envelope(task.job, task.parameters, array, machine, last.ranks, last.hosts, found)
