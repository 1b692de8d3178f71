"""Whether a run is streamed, and into what chunks its array is cut."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.chunks import Chunks, Need, Room, need
from runner.errors import UserError
from runner.partition import Region, Shape
from runner.pipeline import call_rows, unheard
from runner.storage import FOLDERS, Sink, Source, open_sink, split
from runner.storage.paths import KEPT
from runner.stream.memory import limits
from runner.stream.options import StreamOptions
from runner.window import Window
from runner.work import Work
from runner.world import World

ON_DEVICE = 64 << 20  # bytes of a chunk that a copy engine is busy with for a millisecond
ON_HOST = 8 << 20  # and that fit a processor's last cache with their result
FILLS = 4  # chunks of a device's block that fill the pipeline: from so many on it pays


def in_chunks(
    world: World, work: Work, source: Source, target: Path, options: StreamOptions, whole: bool = False
) -> bool:
    """Whether the array goes through the ranks in chunks, instead of lying there whole; collective.

    It does when an option says so, when a rank's block does not fit its memory, when the output is written
    in chunks of its own, and on GPUs when the block is `FILLS` chunks or more, unless it is to stay `whole`.
    UserError where an option says so and a file cannot.
    """
    named = options.named
    if source.parallel:
        folder = split(target)[0].suffix.lower() in FOLDERS
        fills = not whole and world.backend.asynchronous and fills_pipeline(work)
        if named is None and not folder and not fills and not too_large(world, work, options):
            return False
        shape, dtype = known_result(world, work, source).known
        if world.on_root(lambda: open_sink(target, shape, dtype, KEPT)).parallel:
            return True
    if named is not None:
        raise UserError(
            f"{named} is for arrays that go through the ranks in chunks",
            got=f"{target if source.parallel else source.path}, which one rank handles whole",
            expected="files such as .npy, .zarr or .h5",
            everywhere=True,
        )
    return False


def fills_pipeline(work: Work) -> bool:
    """Whether a GPU copies and computes long enough that copies, kernels and files are worth overlapping."""
    largest = max((block.size for block in work.partition), default=0)
    return largest * work.dtype.itemsize >= FILLS * ON_DEVICE


def too_large(world: World, work: Work, options: StreamOptions) -> bool:
    """Whether some rank's block does not fit its memory whole; the same on every rank."""
    region = work.partition[world.rank]
    takes = need_of(world, work, region)
    mine = limits(world, options)
    if world.backend.asynchronous:  # half: the function's own arrays are as large as its block
        return any(world.control.allgather(2 * takes.device > mine.device))
    return any(world.control.allgather(takes.host > mine.host))


def need_of(world: World, work: Work, region: Region) -> Need:
    """What a chunk of this region takes; a result that is not known yet is taken to be like the input."""
    shape, dtype = work.result or (work.shape, work.dtype)
    tail = shape[work.leading :]
    result = math.prod(region.shape[: work.leading]) * math.prod(tail) * dtype.itemsize
    return need(region.shape, work.widths, work.dtype, result, asynchronous=world.backend.asynchronous)


def chunks_of(
    world: World, work: Work, source: Source, sink: Sink, options: StreamOptions, rows: int | None
) -> Chunks:
    """The chunks of `work.partition`, the same on every rank. rows: of an unfinished run, kept as they are.

    Raises UserError where not even the smallest chunk fits.
    """
    align = sink.chunks[0] if sink.chunks else 1
    if sink.chunks and math.prod(work.partition.grid) > 1:
        raise UserError(
            f"{sink.path} is written in chunks of its own, whole rows at a time",
            got=f"--grid {'x'.join(map(str, work.partition.grid))}",
            hint="no --grid",
            everywhere=True,
        )
    everyone = world.control.allgather(world.collective_call(lambda: limits(world, options)))
    least = Need(min(one.host for one in everyone), min(one.device for one in everyone))
    room = Room(least, options.under_way)
    if options.chunk_bytes is not None:
        room.check_chunk(options.chunk_bytes)
    chosen = 0
    for block in work.partition:
        if block.size:
            wanted = rows or _wanted(world, work, source, block, align, options)
            one, two = (_beside(need_of(world, work, _rows(block, n * align)), source, work) for n in (1, 2))
            fits = room.rows(one, two, wanted=max(wanted, align), align=align)
            chosen = min(chosen or fits, fits)
    if rows is not None and 0 < chosen < rows:
        raise UserError(
            "the chunks of the unfinished run do not fit this run's memory",
            got=f"{chosen} rows that fit",
            expected=f"{rows} rows, {options.under_way} chunks under way",
            hint="--depth 1, or memory as in the first run",
            everywhere=True,
        )
    if rows is None:  # no chunk is longer than its block
        longest = max(block.shape[0] for block in work.partition)
        chosen = min(chosen, -(-longest // align) * align)
    return Chunks(work.partition, max(chosen, 1))


def _wanted(
    world: World, work: Work, source: Source, block: Region, align: int, options: StreamOptions
) -> int:
    """Rows of a chunk where memory is no matter."""
    low, high = work.widths[0]
    across = zip(block.shape[1:], work.widths[1:], strict=True)
    row = math.prod(n + sum(width) for n, width in across) * work.dtype.itemsize
    if options.chunk_bytes is not None:
        if (rows := options.chunk_bytes // row - low - high) < align:
            least = "a row" if align == 1 else f"the {align} rows of a chunk of the output"
            raise UserError(
                f"--chunk-bytes is less than {least} with the halo",
                got=f"{options.chunk_bytes:,} bytes",
                expected=f"at least {(align + low + high) * row:,}",
                everywhere=True,
            )
        return rows
    rows = max((ON_DEVICE if world.backend.asynchronous else ON_HOST) // row, 4 * (low + high), 1)
    # Enough chunks to keep every rank busy to the end.
    rows = min(rows, -(-work.shape[0] // (world.size * options.under_way)))
    natural = source.chunks[0] if source.chunks else 1  # a part of one takes as long as the whole
    return -(-rows // natural) * natural


def _beside(takes: Need, source: Source, work: Work) -> Need:
    """And a chunk of the file's own, decoded, of which a part is wanted."""
    decoded = math.prod(source.chunks) * work.dtype.itemsize if source.chunks else 0
    return Need(takes.host + decoded, takes.device)


def _rows(block: Region, rows: int) -> Region:
    return replace(block, stop=(block.start[0] + rows, *block.stop[1:]))


def known_result(world: World, work: Work, source: Source) -> Work:
    """The work with its result's shape and dtype: what is not declared is seen by calling the function
    on one row, on rank 0."""
    if work.result is not None:
        return work
    if 0 in work.shape:
        return work.with_result(work.shape[work.leading :], work.dtype)

    def probe() -> tuple[Shape, np.dtype[Any]]:
        row = Region((0,) * len(work.shape), (1, *work.partition[0].stop[1:]))
        window = Window(row, work.shape, work.widths, work.boundary, work.cval)
        staged = np.empty(window.staged, work.dtype)
        for region, place in window.reads():
            source.read(region, staged[place])
        block = world.backend.xp.asarray(staged)
        if not window.direct:
            padded = world.backend.empty(window.shape, work.dtype)
            window.assemble(block, padded)
            block = padded
        with unheard():
            result = call_rows(world, work, row, block, (0, 1), work.buffer(row.shape, world.backend))
        return tuple(result.shape[work.leading :]), np.dtype(result.dtype)

    return work.with_result(*world.on_root(probe))
