"""Planner of streamed runs: decide whether to stream, and in which chunks, for runs and forecasts alike.

Pure arithmetic on shapes, dtypes and numbers. The caller supplies the facts: a run gathers them from its
ranks and files (`runner.run.prepare.limits`), a forecast takes them from a machine's
rates (`runner.forecast.model`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.grid import grid_size
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Region, Shape
from meshrun.runner.spelling import option

HOST_SHARE = 4  # the ranks of a host together may use 1 / HOST_SHARE of its memory
DEVICE_SHARE = 0.8  # of a device's free memory; the rest is for the function's own arrays
ON_DEVICE = 64 << 20  # bytes of a chunk: a copy engine takes about a millisecond for it
ON_HOST = 8 << 20  # bytes of a chunk: with its result it fits a CPU's last-level cache
FILLS = 4  # chunks of ON_DEVICE bytes: a block of at least so many fills a device's pipeline


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of host and of device memory, needed or allowed."""

    host: int
    device: int


@dataclass(frozen=True)
class FileTraits:
    """Properties of a run's files that a plan depends on.

    parallel: every rank can read parts of the input. chunked_output: the output is written in chunks of its
    own format. source_chunks, sink_chunks: shapes of the files' own chunks; None: any rows can be read or
    written.
    """

    parallel: bool = True
    chunked_output: bool = False
    source_chunks: Shape | None = None
    sink_chunks: Shape | None = None


PLAIN = FileTraits()  # such as .npy to .npy


@dataclass(frozen=True)
class Facts:
    """Facts, besides the array, that chunks depend on.

    asynchronous: ranks compute on devices that need copies. limits: bytes that all chunks of one rank may
    take together, the smallest of all ranks.
    """

    ranks: int
    asynchronous: bool
    limits: MemoryUse
    files: FileTraits = PLAIN


def is_streamed(
    task: Task,
    options: StreamOptions,
    files: FileTraits,
    *,
    asynchronous: bool,
    too_large: bool,
    keep_whole: bool = False,
) -> bool:
    """Return whether the array passes through the ranks in chunks, instead of each rank holding its block.

    True if an option of streamed runs is given, if a rank's block is `too_large` for its memory, if the
    output is a chunked format, and on devices if a block has `FILLS` chunks or more, except with
    `keep_whole`. An input that one rank reads for all is never streamed.
    """
    if task.job.program is not None:  # has stages that need all cells
        return False
    fills = asynchronous and not keep_whole and fills_pipeline(task)
    return files.parallel and (options.named is not None or files.chunked_output or fills or too_large)


def fills_pipeline(task: Task) -> bool:
    """Return whether a device is busy long enough for copies, kernels and files to overlap."""
    largest = max((task.input_bytes(block) for block in task.partition), default=0)
    return largest >= FILLS * ON_DEVICE


def is_too_large(task: Task, block: Region, limits: MemoryUse, *, asynchronous: bool) -> bool:
    """Return whether a rank's block, whole in memory, needs more than the rank may use."""
    limit = limits.device if asynchronous else limits.host
    return block_memory(task, block, asynchronous=asynchronous) > limit


def block_memory(task: Task, block: Region, *, asynchronous: bool) -> int:
    """Return the bytes that a rank's block, whole in memory, needs with a function that is called on it.

    A result that is not declared is assumed to be as large as the input, even if its type is already known.
    """
    use = memory_use(replace(task, results=task.declared(task.shape)), block, asynchronous=asynchronous)
    if asynchronous and task.job.program is not None:
        return use.device
    if asynchronous:  # the function's own arrays are as large as its block
        return 2 * use.device
    return use.host


def memory_limits(
    options: StreamOptions, *, host: int, beside: int, device: int | None, sharing: int
) -> MemoryUse:
    """Return the bytes that the chunks of one rank may take together: as the options say, else a share.

    host: bytes of the host's memory, for `beside` ranks. device: free bytes of the device, for `sharing`
    ranks; None if ranks compute on the host.
    """
    on_host = options.host_memory or host // HOST_SHARE // beside
    if device is None:
        return MemoryUse(on_host, 0)
    return MemoryUse(on_host, options.device_memory or int(DEVICE_SHARE * device / sharing))


def check_limit(name: str, limit: int | None, total: int, place: str) -> None:
    """Raise UserError if an option allows more bytes than `place` has. total: its bytes; 0 if unknown."""
    if limit is not None and 0 < total < limit:
        raise UserError(
            f"{option(name)} is more than {place} has", got=f"{limit:,} bytes", expected=f"at most {total:,}"
        )


def not_streamed(spelled: str, path: Path | str) -> UserError:
    """Build the error for an option of streamed runs with a file that one rank reads or writes for all."""
    return UserError(
        f"{spelled} applies only to streamed runs",
        got=f"{path}, which one rank reads or writes whole",
        expected="files such as .npy, .zarr or .h5",
        everywhere=True,
    )


def has_own_grid(grid: str | None, ranks: int) -> bool:
    """Return whether the grid has a number of blocks other than `ranks`, which only streamed runs allow."""
    return grid is not None and grid_size(grid) not in (None, ranks)


def streamed_grid(grid: str | None, ranks: int) -> tuple[str, int]:
    """Return the grid that a streamed run partitions the array by before chunking, and its number of blocks.

    Without a grid the array is one block.
    """
    text = "1" if grid is None else grid
    return text, grid_size(text) or ranks


def chunk_memory(padded: int, result: int, *, halo: bool, asynchronous: bool, steps: int = 1) -> MemoryUse:
    """Return the most bytes that a chunk takes. padded, result: bytes of its inputs and of its results.

    With a halo, the inputs and the padded blocks made of them may exist at the same time; with several
    steps, so may the blocks of the next step.
    """
    twice = (2 if halo else 1) + (steps > 1)
    if asynchronous:
        return MemoryUse(padded + result, twice * padded + result)
    return MemoryUse(twice * padded + result, 0)


def memory_use(task: Task, region: Region, *, asynchronous: bool, files: FileTraits = PLAIN) -> MemoryUse:
    """Return the `chunk_memory` of a region plus one decoded chunk of the input file's own format.

    Results whose type is not known yet are assumed to be like the first input.
    """
    padded, result = task.padded_bytes(region), task.result_bytes(region)
    if task.job.program is not None:
        own = task.job.memory.nbytes(region.shape)
        use = MemoryUse(padded + result if asynchronous else own, own if asynchronous else 0)
    else:
        use = chunk_memory(padded, result, halo=task.has_halo, asynchronous=asynchronous, steps=task.steps)
    decoded = math.prod(files.source_chunks) * task.dtype.itemsize if files.source_chunks else 0
    return MemoryUse(use.host + decoded, use.device)


def plan_chunks(task: Task, facts: Facts, options: StreamOptions, kept_rows: int | None = None) -> Chunks:
    """Return the chunks of `task.partition`. kept_rows: rows of an unfinished run's chunks, which are kept.

    Raises UserError if not even the smallest chunk fits in memory.
    """
    budget = Budget(facts.limits, options.under_way)
    if options.chunk_bytes is not None:
        budget.check_chunk(options.chunk_bytes)
    align = _rows_together(task, facts.files)
    blocks = [block for block in task.partition if block.size]
    fitting = (_rows_that_fit(task, block, facts, options, budget, kept_rows) for block in blocks)
    rows = min(fitting, default=0)
    if kept_rows is None:  # no chunk is longer than its block
        longest = max(block.shape[0] for block in task.partition)
        rows = min(rows, -(-longest // align) * align)
    elif 0 < rows < kept_rows:
        raise UserError(
            "the chunks of the unfinished run do not fit this run's memory",
            got=f"{rows} rows that fit",
            expected=f"{kept_rows} rows, {options.under_way} chunks under way",
            hint=f"{option('depth', 1)}, or memory as in the first run",
            everywhere=True,
        )
    return Chunks(task.partition, max(rows, 1))


def _rows_that_fit(
    task: Task, block: Region, facts: Facts, options: StreamOptions, budget: Budget, kept_rows: int | None
) -> int:
    align = _rows_together(task, facts.files)
    wanted = kept_rows or _wanted_rows(task, block, facts, options, align)
    one, two = (
        memory_use(task, _extended(block, rows), asynchronous=facts.asynchronous, files=facts.files)
        for rows in (align, 2 * align)
    )
    return budget.rows(one, two, wanted=max(wanted, align), align=align)


def _rows_together(task: Task, files: FileTraits) -> int:
    """Return what the rows of a chunk are multiples of: whole rows of results, and whole chunks of files."""
    unit = task.units[0]
    if not files.sink_chunks:
        return unit
    rows = files.sink_chunks[0]
    shapes = [shape for shape, _ in task.results or ((task.shape, task.dtype),)]
    of_a_unit = [task.scaled((unit,), shape)[0] for shape in shapes]
    return unit * math.lcm(*(rows // math.gcd(rows, each) for each in of_a_unit))


def _extended(block: Region, rows: int) -> Region:
    return replace(block, stop=(block.start[0] + rows, *block.stop[1:]))


def _wanted_rows(task: Task, block: Region, facts: Facts, options: StreamOptions, align: int) -> int:
    """Return the rows of a chunk if memory were unlimited."""
    low, high = task.widths[0]
    row = task.padded_bytes(_extended(block, 1)) // (1 + low + high)
    if options.chunk_bytes is not None:
        if (rows := options.chunk_bytes // row - low - high) < align:
            least = "a row"
            if align > 1:
                least = f"{align} rows, which the result needs together,"
                if facts.files.sink_chunks:
                    least = f"the {align} rows of a chunk of the output"
            raise UserError(
                f"{option('chunk_bytes')} is less than {least} with the halo",
                got=f"{options.chunk_bytes:,} bytes",
                expected=f"at least {(align + low + high) * row:,}",
                everywhere=True,
            )
        return rows
    rows = max((ON_DEVICE if facts.asynchronous else ON_HOST) // row, 4 * (low + high), 1)
    # Enough chunks to keep every rank busy to the end.
    rows = min(rows, -(-task.shape[0] // (facts.ranks * options.under_way)))
    # Decoding part of a file's chunk takes as long as decoding the whole chunk.
    natural = facts.files.source_chunks[0] if facts.files.source_chunks else 1
    return -(-rows // natural) * natural


def least(limits: Iterable[MemoryUse]) -> MemoryUse:
    """Return the smallest limits of all ranks."""
    everyone = list(limits)
    return MemoryUse(min(one.host for one in everyone), min(one.device for one in everyone))


@dataclass(frozen=True)
class Budget:
    """Memory that one rank may use, shared by `depth` chunks."""

    limits: MemoryUse
    depth: int

    def check_chunk(self, size: int) -> None:
        """Raise UserError if chunk_bytes exceeds what all chunks of a rank may take."""
        for name in ("host", "device"):
            limit = getattr(self.limits, name)
            if 0 < limit < size:
                raise UserError(
                    f"{option('chunk_bytes')} is more than a rank's chunks may take of the {name} memory",
                    got=f"{size:,} bytes",
                    expected=f"at most {limit:,}",
                    hint=f"{option(f'{name}_memory')}, if there is more",
                    everywhere=True,
                )

    def rows(self, one: MemoryUse, two: MemoryUse, *, wanted: int, align: int) -> int:
        """Return the most rows of a chunk that fit: a multiple of `align`, at most about `wanted`.

        one, two: memory use of chunks of `align` and of 2 * `align` rows; it grows linearly.

        Raises UserError if `align` rows do not fit.
        """
        most = wanted // align
        for name in ("host", "device"):
            first, second = getattr(one, name), getattr(two, name)
            limit = getattr(self.limits, name) // self.depth
            if first > limit:
                rows = "a row" if align == 1 else f"{align} rows"
                raise UserError(
                    f"a chunk of {rows} with its halo does not fit the {name} memory",
                    got=f"{self.depth} chunks of {first:,} bytes",
                    expected=f"at most {getattr(self.limits, name):,} bytes",
                    hint=f"{option(f'{name}_memory')}, {option('depth', 1)}"
                    + (f", or {option('grid')}, which cuts rows too" if align == 1 else ""),
                    everywhere=True,
                )
            if second > first:
                most = min(most, 1 + (limit - first) // (second - first))
        return max(most, 1) * align
