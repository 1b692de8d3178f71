"""Forecast of a map job on a machine from shapes and rates alone: bytes, chunks, memory, time.

A run has five stages. In memory they run one after another, and their times add up. In a streamed run,
chunks are in all stages at once: the time is that of the slowest resource, plus the other stages of one
chunk, which fill and drain the pipeline. A resource is a stage, or something that several stages share: both
directions of a link, a host's files, its memory, its cores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import Machine, choose, load, nominal_cpu
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import (
    PLAIN,
    Facts,
    FileTraits,
    MemoryUse,
    is_streamed,
    is_too_large,
    memory_limits,
    memory_use,
    plan_chunks,
    streamed_grid,
)
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.grid import parse_grid
from meshrun.runner.plan.halo import AxisModes, along
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import cells_read
from meshrun.runner.region import Region, Shape
from meshrun.runner.report.spans import STAGES
from meshrun.runner.system.host_memory import host_memory

NO_OPTIONS = StreamOptions()
GAIN = 0.95  # more ranks help if they reduce the time to less than this fraction
Bytes = Mapping[str, int]  # by stage


@dataclass(frozen=True)
class Part:
    """Share of the rank with the most work.

    chunks: number of its chunks. chunk_rows: rows of the largest; 0 if there are no cells. memory: the most
    bytes that it takes. moved: bytes of that rank; host_moved: of all ranks of its host. cut: the chunks
    of all ranks; None if the run is not streamed.
    """

    streamed: bool
    chunks: int
    chunk_rows: int
    memory: MemoryUse
    moved: Bytes
    host_moved: Bytes
    cut: Chunks | None = None


@dataclass(frozen=True)
class Row:
    """One stage or shared resource. bytes: of one GPU, one core or all ranks of a host (`of`)."""

    name: str
    of: str
    bytes: int
    rate: float | None
    source: str
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """A run on `ranks` ranks, for the rank with the most work on the host with the most ranks.

    seconds: from the first byte read to the last one written. fill: the part of them that fills and drains
    the pipeline. start: seconds before that, to start the ranks. limit: the row that determines the time.
    """

    ranks: int
    hosts: int
    grid: Shape
    part: Part
    rows: tuple[Row, ...]
    fill: float
    start: float

    @cached_property
    def limit(self) -> Row:
        return max(self.rows, key=lambda row: row.seconds)

    @property
    def seconds(self) -> float:
        if self.part.streamed:
            return self.limit.seconds + self.fill
        return sum(row.seconds for row in self.rows)

    @property
    def total(self) -> float:
        return self.start + self.seconds


def ranks_of_host(ranks: int, hosts: int) -> int:
    """Return the most ranks of a host."""
    return min(-(-ranks // hosts), ranks)


def limits_on(machine: Machine, options: StreamOptions, local: int) -> MemoryUse:
    """Return the memory that a rank may use. local: ranks of its host."""
    return memory_limits(
        options,
        host=machine.memory,
        beside=local,
        device=machine.device_memory if machine.gpus > 0 else None,
        sharing=-(-local // max(machine.gpus, 1)),
    )


def forecast(
    task: Task,
    machine: Machine,
    hosts: int = 1,
    options: StreamOptions = NO_OPTIONS,
    files: FileTraits = PLAIN,
    *,
    grid: str | None = None,
    keep_whole: bool = False,
) -> Forecast:
    """Return the forecast of `task` on identical machines.

    task: cut into a block for each rank, its results known. hosts: all with the same number of ranks, but the
    last may have fewer. grid: the option as given; it also cuts chunks. keep_whole: do not stream the run to
    overlap copies with kernels.

    Raises UserError if the run is streamed and not even a chunk of one row fits.
    """
    ranks, gpu = task.partition.size, machine.gpus > 0
    local = ranks_of_host(ranks, hosts)
    limits = limits_on(machine, options, local)
    facts = Facts(ranks, gpu, limits, files)
    too_large = is_too_large(task, task.partition[0], limits, asynchronous=gpu)  # the largest block
    if is_streamed(task, options, files, asynchronous=gpu, too_large=too_large, keep_whole=keep_whole):
        part = _streamed(task, machine, local, facts, options, grid)
    else:
        part = _in_one_piece(task, machine, local)
    rows = _rows(part, machine)
    of_a_chunk = [row.seconds / max(part.chunks, 1) for row in rows if row.name in STAGES]
    fill = sum(of_a_chunk) - max(of_a_chunk) if part.streamed else 0.0
    base, each = machine.start
    return Forecast(ranks, hosts, task.partition.grid, part, tuple(rows), fill, base + each * local)


def by_ranks(
    last: Forecast,
    task: Task,
    machine: Machine,
    options: StreamOptions = NO_OPTIONS,
    files: FileTraits = PLAIN,
    *,
    grid: str | None = None,
) -> list[Forecast]:
    """Return forecasts for 1, 2, 4, ... ranks, which fill host after host, then `last`, that of `task`.

    Only axes that `task` cuts into more than one part are cut.
    """
    axes = max((axis + 1 for axis, parts in enumerate(last.grid) if parts > 1), default=1)
    local = -(-last.ranks // last.hosts)
    found = []
    for ranks in (1 << power for power in range((last.ranks - 1).bit_length())):
        text = "x".join("0" * axes) if axes > 1 else str(ranks)
        cut = task.with_grid(parse_grid(text, task.shape, ranks))
        text_given = None if grid is None else text
        found.append(forecast(cut, machine, -(-ranks // local), options, files, grid=text_given))
    return [*found, last]


def enough(forecasts: Sequence[Forecast]) -> int:
    """Return the fewest ranks whose time, start included, is close to the best (see GAIN)."""
    best = min(one.total for one in forecasts)
    return min(one.ranks for one in forecasts if one.total * GAIN <= best)


def _in_one_piece(task: Task, machine: Machine, local: int) -> Part:
    """Return the part of a run in which each rank has its block. The first blocks are the largest."""
    every = [_moved(task, task.partition[rank], machine) for rank in range(local)]
    region = task.partition[0]
    memory = memory_use(task, region, asynchronous=machine.gpus > 0)
    rows = 0 if 0 in region.shape else region.shape[0]
    return Part(False, min(rows, 1), rows, memory, every[0], _sum(every))


def _streamed(
    task: Task, machine: Machine, local: int, facts: Facts, options: StreamOptions, grid: str | None
) -> Part:
    """Return the part of a streamed run: chunks of a grid's blocks, or of the whole array, over the ranks."""
    text, blocks = streamed_grid(grid, facts.ranks)
    task = task.with_grid(parse_grid(text, task.shape, blocks))
    chunks = plan_chunks(task, facts, options)
    if not len(chunks):
        nothing: Bytes = dict.fromkeys(STAGES, 0)
        return Part(True, 0, 0, MemoryUse(0, 0), nothing, nothing, chunks)
    largest, most = chunks[0], -(-len(chunks) // facts.ranks)
    most_read, all_read = _bytes_read(task, chunks)
    one = _with_read(_moved(task, largest, machine), most_read, machine)
    blocks_moved = _sum(
        _moved(task, block, machine, chunks=-(-block.shape[0] // chunks.rows)) for block in task.partition
    )
    every = _with_read(blocks_moved, all_read, machine)
    mine, of_host = (
        {stage: min(count * moved, every[stage]) for stage, moved in one.items()}
        for count in (most, most * local)
    )
    each = memory_use(task, largest, asynchronous=facts.asynchronous, files=facts.files)
    memory = MemoryUse(options.under_way * each.host, options.under_way * each.device)
    return Part(True, most, largest.shape[0], memory, mine, of_host, chunks)


def loop_bytes(task: Task, region: Region) -> int:
    """Return the bytes that loops of the function read and write in a region; see `WholeProgram`."""
    program = task.job.program
    if program is None:
        return 0
    from meshrun.runner.compiler.whole.program import WholeProgram

    return region.size * program.loop_bytes if isinstance(program, WholeProgram) else 0


def _moved(task: Task, region: Region, machine: Machine, *, chunks: int = 1) -> Bytes:
    """Return the bytes of the cells of `region` in each stage. Halos are not read: neighbouring ranks send
    them. chunks: of rows; the kernel reads the halo of each."""
    if 0 in region.shape:
        return dict.fromkeys(STAGES, 0)
    kernel = 0
    for number, field in enumerate(task.fields):
        if not field.shape:
            continue
        own = task.field_region(number, region).shape
        padded = (own[0] + chunks * sum(field.widths[0]), *field.padded(own)[1:])
        kernel += math.prod(padded) * field.dtype.itemsize
    result = task.result_bytes(region)
    kernel += loop_bytes(task, region)
    parts = (0, 0, kernel + result, result if machine.gpus else 0, result)
    moved: Bytes = dict(zip(STAGES, parts, strict=True))
    return _with_read(moved, task.input_bytes(region), machine)


def _with_read(moved: Bytes, read: int, machine: Machine) -> Bytes:
    return {**moved, "read": read, "to device": read if machine.gpus else 0}


def _bytes_read(task: Task, chunks: Chunks) -> tuple[int, int]:
    """Return the bytes that are read for the chunk with the most, and for all, with their halos."""
    most = every = 0
    for number, field in enumerate(task.fields):
        boundary, _ = task.beyond(number)
        lengths = [
            _cells_read(task, chunks, axis, width, length, along(boundary, axis))
            for axis, (width, length) in enumerate(zip(field.widths, field.shape, strict=True))
        ]
        most += math.prod(one for one, _ in lengths) * field.dtype.itemsize
        every += math.prod(total for _, total in lengths) * field.dtype.itemsize
    return most, every


def _cells_read(
    task: Task, chunks: Chunks, axis: int, width: tuple[int, int], length: int, boundary: AxisModes
) -> tuple[int, int]:
    """Return how many cells of an axis of an input are read for the chunk with the most, and for all that
    follow one another along it. Only chunks at the edges of the array differ from the others."""
    low, high = width
    if axis >= task.leading:
        blocks = [(0, length)]
    else:
        parts = chunks.partition.grid[axis]
        blocks = [chunks.partition.bounds(axis, coordinate) for coordinate in range(parts)]
    total, found = 0, []
    for start, stop in blocks:
        rows = chunks.rows if axis == 0 else max(stop - start, 1)
        firsts = range(start, stop, rows)
        inner = range(-(-max(low - start, 0) // rows), min((length - high - start) // rows, len(firsts) - 1))
        total += len(inner) * (rows + low + high)
        found += [rows + low + high] if inner else []
        for first in (*firsts[: inner.start], *firsts[inner.stop :]) if inner else firsts:
            cells = cells_read(first, min(first + rows, stop), width, length, boundary)
            found.append(cells)
            total += cells
    return max(found, default=0), total


def _sum(parts: Iterable[Bytes]) -> Bytes:
    everything = list(parts)
    return {stage: sum(part[stage] for part in everything) for stage in STAGES}


def _rows(part: Part, machine: Machine) -> list[Row]:
    """Return every stage and, for a streamed run, every shared resource."""
    most, total = part.moved, part.host_moved

    def slowest(name: str, *ways: tuple[str, int, str]) -> list[Row]:
        """Return the slowest of several bounds (whose, bytes, rate) of one resource."""
        rated = [(of, moved, machine.rates[rate]) for of, moved, rate in ways if rate in machine.rates]
        found = [
            Row(name, of, moved, rate.value, rate.source, moved / rate.value) for of, moved, rate in rated
        ]
        return [max(found, key=lambda row: row.seconds)] if found else []

    def link(name: str, *stages: str) -> list[Row]:
        one, all_of_host = (sum(moved[stage] for stage in stages) for moved in (most, total))
        return slowest(name, ("GPU", one, name), ("host", all_of_host, f"host {name}"))

    files = total["read"] + total["write"]
    rows = slowest("read", ("host", total["read"], "read"))
    if machine.gpus:
        rows += link("to device", "to device")
        rows += slowest("kernel", ("GPU", most["kernel"], "kernel"))
        rows += link("from device", "from device")
    else:
        ways = ("core", most["kernel"], "kernel"), ("host", total["kernel"], "host memory")
        rows += slowest("kernel", *ways)
    rows += slowest("write", ("host", total["write"], "write"))
    if not part.streamed:
        return rows
    rows += slowest("read and write", ("host", files, "read and write"))
    if machine.gpus:
        rows += link("both directions", "to device", "from device")
        through = 2 * files + total["to device"] + total["from device"]
    else:
        rows += [_cores(rows, total["kernel"], machine)]
        through = 2 * files + total["kernel"]  # a copy reads and writes
    return rows + slowest("host memory", ("host", through, "host memory"))


def _cores(rows: Sequence[Row], kernel: int, machine: Machine) -> Row:
    """Return the row of cores that both copy and compute: their total seconds over the number of cores."""
    copying = sum(row.seconds for row in rows if row.name in ("read", "write")) * machine.threads
    seconds = (copying + kernel / machine.rates["kernel"].value) / machine.cores
    return Row("cores", "host", 0, None, f"{machine.cores} of them", seconds)


# A run beside its forecast


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
    files: FileTraits,
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
