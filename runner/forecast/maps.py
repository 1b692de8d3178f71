"""The record of a map job's plan, and the comparison of a run with its forecast."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import Machine, choose, load, nominal_cpu
from meshrun.runner.forecast.model import Forecast, by_ranks, enough, forecast
from meshrun.runner.forecast.place import Place
from meshrun.runner.forecast.record import plan_envelope
from meshrun.runner.options.plan_options import PlanOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import Files
from meshrun.runner.plan.task import Task
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.report.spans import STAGES
from meshrun.runner.system.host_memory import host_memory


def plan_map(task: Task, options: PlanOptions, place: Place, files: Files) -> Record:
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


def compare(
    predicted: Forecast, measured: Mapping[str, tuple[int, float]], wall: float
) -> list[dict[str, Any]]:
    """Compare a run with its forecast, stage by stage and finally as a whole: rows of plain values.

    measured: per stage, bytes of one rank and the seconds during which that rank had such work in progress
    (with several threads fewer than the sum of their times). wall: seconds from the first byte read to the
    last one written. In the rows: fraction: forecast seconds over measured seconds. source: of the rates that
    the forecast is based on.
    """
    forecasts = {row.name: row.seconds for row in predicted.rows}
    source = predicted.rows[0].source
    rows = [_compared(name, *measured[name], forecasts.get(name)) for name in STAGES if name in measured]
    return [{**row, "source": source} for row in (*rows, _compared("run", None, wall, predicted.seconds))]


@dataclass(frozen=True)
class MeasuredRun:
    """What rank 0 of a run measured.

    device: of the rank. hosts: their number. stages: as `measured` of `compare`. wall: seconds from the first
    byte read to the last one written. streamed: whether the run was streamed.
    """

    device: Device
    hosts: int
    stages: Mapping[str, tuple[int, float]]
    wall: float
    streamed: bool


def beside_run(
    task: Task,
    run: MeasuredRun,
    options: StreamOptions,
    files: Files,
    *,
    rates: Path | None,
    grid: str | None,
    keep_whole: bool,
) -> list[dict[str, Any]] | None:
    """Return `compare` for a completed run; None if no forecast can be made, for example of an unknown GPU,
    or if the forecast is streamed and the run was not, or the other way round.

    task: cut into a block for each rank. rates: the file of measured rates, if there is one. files, grid,
    keep_whole: of the run, as for `forecast`.
    """
    here = nominal_cpu(os.cpu_count() or 1, host_memory())
    try:
        kept = load(rates) if rates is not None else None
        machine = choose(run.device.name if run.device.kind == "cuda" else "cpu", kept, here)
        predicted = forecast(task, machine, run.hosts, options, files, grid=grid, keep_whole=keep_whole)
        return compare(predicted, run.stages, run.wall) if predicted.part.streamed == run.streamed else None
    except (UserError, KeyError, ArithmeticError):  # the run itself has succeeded
        return None


def _compared(name: str, moved: int | None, seconds: float, predicted: float | None) -> dict[str, Any]:
    return {
        "stage": name,
        "bytes": moved,
        "bytes_per_second": moved / seconds if moved and seconds else None,
        "forecast_seconds": predicted,
        "seconds": seconds,
        "fraction": predicted / seconds if predicted is not None and seconds else None,
    }
