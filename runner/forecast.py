"""What a map job will take on a machine, from shapes and rates alone: bytes, chunks, memory, time.

A run goes through five stages. In one piece they follow one another, and their times add up. Streamed,
chunks are under way in all of them at once: the slowest resource sets the pace, and the other stages of one
chunk are added, which fill the pipeline and empty it. A resource is a stage, or what several stages share:
a link with both its directions, a host's files, its memory, its cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from runner.chunks import Chunks, Need, Room, need
from runner.errors import UserError
from runner.here import Here
from runner.partition import Partition, Region, Shape, parse_grid
from runner.pipeline import unheard
from runner.rates import Machine
from runner.spans import STAGES
from runner.stream.cut import ON_DEVICE, ON_HOST, fills_pipeline
from runner.stream.memory import DEVICE_SHARE, HOST_SHARE
from runner.stream.options import StreamOptions
from runner.work import Work

CHOSEN = StreamOptions()  # all that an option may say is chosen
GAIN = 0.95  # more ranks help where they take less than this part of the time
Bytes = Mapping[str, int]  # by stage


@dataclass(frozen=True)
class Part:
    """What the rank with most to do does. chunks: its own; chunk_rows: 0 where there are no cells.

    memory: bytes that it may take. moved: bytes of that rank; host_moved: of all ranks of its host.
    """

    streamed: bool
    chunks: int
    chunk_rows: int
    memory: Need
    moved: Bytes
    host_moved: Bytes


@dataclass(frozen=True)
class Row:
    """One stage, or what stages share. bytes: of one GPU, of one core or of all ranks of a host (`of`)."""

    name: str
    of: str
    bytes: int
    rate: float | None
    source: str
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """A run on `ranks` ranks, as the rank with most to do, on the host with most ranks, meets it.

    seconds: from the first byte read to the last one written. fill: seconds of them to fill and empty the
    pipeline. start: seconds before, to start the ranks. limit: the row that sets the time.
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


def forecast(work: Work, machine: Machine, hosts: int = 1, options: StreamOptions = CHOSEN) -> Forecast:
    """What `work`, whose result is known, will take; UserError where not even a chunk of one row fits.

    hosts: with as many ranks on each as can be, the last with fewer; all like `machine`.
    """
    ranks = work.partition.size
    local = min(-(-ranks // hosts), ranks)
    limits = _limits(machine, local, options)
    part = _in_one_piece(work, machine, local)
    # As in a run (`stream.cut`): on a device, the function's own arrays are as large as its block.
    fits = 2 * part.memory.device <= limits.device if machine.gpus else part.memory.host <= limits.host
    fills = machine.gpus > 0 and fills_pipeline(work)
    if part.chunks and (options.named or fills or not fits):
        part = _streamed(work, machine, local, Room(limits, options.under_way), options)
    rows = _rows(part, machine)
    of_a_chunk = [row.seconds / max(part.chunks, 1) for row in rows if row.name in STAGES]
    fill = sum(of_a_chunk) - max(of_a_chunk) if part.streamed else 0.0
    base, each = machine.start
    return Forecast(ranks, hosts, work.partition.grid, part, tuple(rows), fill, base + each * local)


def by_ranks(last: Forecast, work: Work, machine: Machine, options: StreamOptions = CHOSEN) -> list[Forecast]:
    """The same with 1, 2, 4, ... ranks, hosts filled one after another, then `last`, that of `work` itself.

    Axes that are cut in more than one part stay those that may be cut.
    """
    axes = max((axis + 1 for axis, parts in enumerate(last.grid) if parts > 1), default=1)
    local = -(-last.ranks // last.hosts)
    found = []
    for ranks in (1 << power for power in range((last.ranks - 1).bit_length())):
        grid = parse_grid("x".join("0" * axes) if axes > 1 else str(ranks), work.shape, ranks)
        cut = replace(work, partition=Partition(work.shape, grid))
        found.append(forecast(cut, machine, -(-ranks // local), options))
    return [*found, last]


def enough(forecasts: Sequence[Forecast]) -> int:
    """The fewest ranks that take, start included, hardly longer than any other number of them."""
    best = min(one.total for one in forecasts)
    return min(one.ranks for one in forecasts if one.total * GAIN <= best)


def settle(work: Work) -> Work:
    """`work` with its result known: where it is not declared, from a call on zeros, as small as can be."""
    if work.result is not None:
        return work
    if 0 in work.shape:
        return work.with_result(work.shape[work.leading :], work.dtype)
    cells = tuple(1 if cut else n for cut, n in zip(work.cut_axes, work.shape, strict=True))
    padded = tuple(n + sum(width) for n, width in zip(cells, work.widths, strict=True))
    here = Here(0, work.partition.size, "", (0,) * len(cells), cells, work.shape, None, np)
    with np.errstate(all="ignore"), unheard():
        result = work.call(np.zeros(padded, work.dtype), here, None)
    return work.with_result(tuple(result.shape[work.leading :]), np.dtype(result.dtype))


def _limits(machine: Machine, local: int, options: StreamOptions) -> Need:
    """Bytes that one of `local` ranks of a host may take."""
    host = options.host_memory or machine.memory // HOST_SHARE // local
    device = options.device_memory or int(DEVICE_SHARE * machine.device_memory)
    return Need(host, device if machine.gpus else 0)


def _in_one_piece(work: Work, machine: Machine, local: int) -> Part:
    """Each rank has its block. The first blocks are the largest."""
    every = [_moved(work, work.partition[rank], machine, halo_read=False) for rank in range(local)]
    region = work.partition[0]
    memory = _need(work, region, machine)
    return Part(
        False, min(region.size, 1), region.shape[0] if region.size else 0, memory, every[0], _sum(every)
    )


def _streamed(work: Work, machine: Machine, local: int, room: Room, options: StreamOptions) -> Part:
    """Chunks of the whole array, or of the blocks of a grid along later axes, dealt to the ranks."""
    ranks = work.partition.size
    if math.prod(work.partition.grid[1:]) == 1:
        work = replace(work, partition=Partition(work.shape, (1,) * len(work.shape)))
    if options.chunk_bytes is not None:
        room.check_chunk(options.chunk_bytes)
    rows = _chunk_rows(work, machine, ranks, room, options)
    chunks = Chunks(work.partition, rows)
    largest = chunks[0]
    most = -(-len(chunks) // ranks)
    one = _moved(work, largest, machine, halo_read=True)
    every = _sum(
        _moved(work, block, machine, halo_read=True, chunks=-(-block.shape[0] // rows))
        for block in work.partition
    )
    mine, of_host = (
        {stage: min(count * moved, every[stage]) for stage, moved in one.items()}
        for count in (most, most * local)
    )
    each = _need(work, largest, machine)
    memory = Need(room.depth * each.host, room.depth * each.device)
    return Part(True, most, largest.shape[0], memory, mine, of_host)


def _chunk_rows(work: Work, machine: Machine, ranks: int, room: Room, options: StreamOptions) -> int:
    """As `stream.cut` chooses them, for files that are written anywhere."""
    found = []
    low, high = work.widths[0]
    for block in work.partition:
        if not block.size:
            continue
        across = zip(block.shape[1:], work.widths[1:], strict=True)
        row = math.prod(n + sum(width) for n, width in across) * work.dtype.itemsize
        if options.chunk_bytes is None:
            wanted = max((ON_DEVICE if machine.gpus else ON_HOST) // row, 4 * (low + high), 1)
            wanted = min(wanted, -(-work.shape[0] // (ranks * options.under_way)))
        elif (wanted := options.chunk_bytes // row - low - high) < 1:
            raise UserError(
                "--chunk-bytes is less than a row with the halo",
                got=f"{options.chunk_bytes:,} bytes",
                expected=f"at least {(1 + low + high) * row:,}",
            )
        one, two = (_need(work, _rows_of(block, count), machine) for count in (1, 2))
        found.append(min(room.rows(one, two, wanted=wanted, align=1), block.shape[0]))
    return min(found)


def _rows_of(block: Region, count: int) -> Region:
    return replace(block, stop=(block.start[0] + count, *block.stop[1:]))


def _need(work: Work, region: Region, machine: Machine) -> Need:
    result = _result_bytes(work, region)
    return need(region.shape, work.widths, work.dtype, result, asynchronous=machine.gpus > 0)


def _result_bytes(work: Work, region: Region) -> int:
    assert work.result is not None
    return work.output_region(region).size * work.result[1].itemsize


def _moved(work: Work, region: Region, machine: Machine, *, halo_read: bool, chunks: int = 1) -> Bytes:
    """Bytes of the cells of `region` through each stage.

    halo_read: the halo comes from the file, for each of so many chunks of rows; else from the ranks beside.
    What lies beyond the array is made of what was read, and is counted as read along axis 0 alone.
    """
    if region.size == 0:
        return dict.fromkeys(STAGES, 0)
    padded = [n + sum(width) for n, width in zip(region.shape, work.widths, strict=True)]
    padded[0] = region.shape[0] + chunks * sum(work.widths[0])
    from_file = [halo_read and (axis == 0 or parts > 1) for axis, parts in enumerate(work.partition.grid)]
    read = math.prod(n if f else m for n, m, f in zip(padded, region.shape, from_file, strict=True))
    read *= work.dtype.itemsize
    result = _result_bytes(work, region)
    copied = (read, result) if machine.gpus else (0, 0)
    kernel = math.prod(padded) * work.dtype.itemsize + result
    return dict(zip(STAGES, (read, copied[0], kernel, copied[1], result), strict=True))


def _sum(parts: Iterable[Bytes]) -> Bytes:
    everything = list(parts)
    return {stage: sum(part[stage] for part in everything) for stage in STAGES}


def _rows(part: Part, machine: Machine) -> list[Row]:
    """Every stage and, of a streamed run, every shared resource."""
    most, total = part.moved, part.host_moved

    def slowest(name: str, *ways: tuple[str, int, str]) -> list[Row]:
        """Of the ways (whose, bytes, rate) that bound one thing, the one that takes longest."""
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
    """Where the same cores copy and compute: all their seconds over how many there are."""
    copying = sum(row.seconds for row in rows if row.name in ("read", "write")) * machine.threads
    seconds = (copying + kernel / machine.rates["kernel"].value) / machine.cores
    return Row("cores", "host", 0, None, f"{machine.cores} of them", seconds)
