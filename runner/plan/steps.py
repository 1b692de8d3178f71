"""Time steps between two halo exchanges: which cells each step computes, and where. Pure arithmetic.

With a halo `steps` times as wide as one step needs, a rank takes so many steps between two exchanges. Each
step computes, beyond the rank's own cells, those that the following steps need of its neighbours:

    own cells 8..11, halo 1, 3 steps       exchanged  5 6 7|8 9 10 11|12 13 14
                                           step 1       6 7|8 9 10 11|12 13
                                           step 2         7|8 9 10 11|12
                                           step 3           8 9 10 11

Cells beyond the array are never computed: before each step they are filled according to the boundary. Beyond
a boundary that wraps around are the array's own cells, which are computed like all others.

In one copy (T. Pohl, M. Kowarschik, J. Wilke, K. Iglberger, U. Ruede, Parallel Processing Letters 13 (2003),
549-560: grid compression), a step computes band after band of rows, and writes each into the memory that it
reads, `rows_apart` rows before: over rows that no later band reads. The next step goes from the last band
to the first, and moves all rows back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from meshrun.runner.plan.chunking import block_memory
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import AxisCopy, Modes, Widths, along, copies_beyond, wraps
from meshrun.runner.plan.task import Field, Task
from meshrun.runner.region import Region

Rows = tuple[int, int]
BANDS = 16  # of a block in one copy, about
LINE = 128  # bytes, of a GPU's cache: a multiple lies between rows of blocks that a kernel takes


@dataclass(frozen=True)
class Piece:
    """Cells of one call. place: in indices that continue beyond the array if it wraps around; region: in the
    array's own indices."""

    place: Region
    region: Region


def wide_widths(field: Field, steps: int) -> Widths:
    """Return the halo of a block for so many steps: wider along the axes that are split between ranks."""
    return tuple(
        (steps * low, steps * high) if parts > 1 else (low, high)
        for (low, high), parts in zip(field.widths, field.partition.grid, strict=True)
    )


def read_widths(task: Task, steps: int) -> list[Widths]:
    """Return the part of each input's `wide_widths` that so many steps read.

    A step's results in some cells need those that `task.reads` names of the step before: one step after
    another, the cells needed of each fed input grow from the own ones. Along axes that are not split, cells
    beyond the own ones are copies of them in each step, and one step's are enough; along the last one none
    if the task's kernel finds them. An input that no output feeds has its whole halo, which is filled once.
    """
    found = () if task.kernel is None else task.kernel.finds_ends
    return [
        (*widths[:-1], (0, 0)) if place in found and place in task.feed_numbers else widths
        for place, widths in enumerate(_read_widths(task, steps))
    ]


def _read_widths(task: Task, steps: int) -> list[Widths]:
    """Return the same for a kernel that finds no cells beyond the ends of rows."""
    wide = [wide_widths(field, steps) for field in task.fields]
    if task.reads is None:
        return wide
    feeds = task.feed_numbers
    zero = [tuple((0, 0) for _ in field.widths) for field in task.fields]
    one = [_widest(of_input) for of_input in zip(zero, *task.reads, strict=True)]
    needed = one
    for _ in range(steps - 1):
        needed = [
            _widest(
                (
                    before,
                    *(
                        _sum(needed[feed], reads[place])
                        for feed, reads in zip(feeds, task.reads, strict=True)
                        if feed is not None
                    ),
                )
            )
            for place, before in enumerate(needed)
        ]
    return [
        tuple(
            many if parts > 1 else single
            for many, single, parts in zip(needed[place], one[place], field.partition.grid, strict=True)
        )
        if place in feeds
        else wide[place]
        for place, field in enumerate(task.fields)
    ]


def _widest(several: Iterable[Widths]) -> Widths:
    """Return the largest width of each side."""
    return tuple(
        (max(low for low, _ in axis), max(high for _, high in axis)) for axis in zip(*several, strict=True)
    )


def _sum(one: Widths, other: Widths) -> Widths:
    """Return the widths of both, added; axes that `other` lacks add nothing, those that `one` lacks go."""
    longer = one + ((0, 0),) * (len(other) - len(one))
    return tuple((a + c, b + d) for (a, b), (c, d) in zip(longer, other, strict=False))


def for_chunks(task: Task, steps: int) -> Task:
    """Return the task for reading chunks on which so many steps are taken: its halo is wider along axis 0."""
    fields = tuple(
        replace(field, widths=(_times(field.widths[0], steps), *field.widths[1:])) for field in task.fields
    )
    return replace(task, fields=fields, steps=steps)


def least_rows(task: Task, steps: int) -> int:
    """Return the fewest rows of a chunk for so many steps: all cells that it copies are in its neighbours."""
    return steps * max(task.widths[0]) + task.mirrors


def _times(width: tuple[int, int], steps: int) -> tuple[int, int]:
    return steps * width[0], steps * width[1]


def step_pieces(task: Task, own: Region, remaining: int, cut: Sequence[bool], *, apart: bool) -> list[Piece]:
    """Return the cells of a block to compute in a step after which `remaining` follow without an exchange.

    own: the block's cells, in the first input's indices. cut: whether the block is only part of each axis.
    apart: return cells beyond an array that wraps around as separate pieces, for a function that takes its
    place (`here`).
    """
    if own.size == 0:
        return []
    per_axis: list[list[tuple[Rows, int]]] = []
    axes = zip(own.start, own.stop, task.shape, cut, task.widths, strict=True)
    for axis, (start, stop, length, is_cut, (low, high)) in enumerate(axes):
        first, last = (start - remaining * low, stop + remaining * high) if is_cut else (start, stop)
        if (first < 0 or last > length) and not task.wraps_along(axis):
            first, last = max(first, 0), min(last, length)
        ends = range(-(-(first + 1) // length) * length, last, length) if apart and length else ()
        cuts = [first, *ends, last]
        ranges = pairwise(cuts)
        # Without `apart`, cells beyond the array keep their unwrapped indices.
        per_axis.append([((a, b), (a // length) * length if apart else 0) for a, b in ranges])
    found = []
    for box in product(*per_axis):
        place = Region(tuple(a for (a, _), _ in box), tuple(b for (_, b), _ in box))
        region = Region(tuple(a - shift for (a, _), shift in box), tuple(b - shift for (_, b), shift in box))
        found.append(Piece(place, region))
    return found


def edge_copies(
    field: Field, cut: Sequence[bool], own: Region, widths: Widths, boundary: str | Modes
) -> list[tuple[int, AxisCopy]]:
    """Return, axis by axis, the copies that fill the cells beyond the array along the cut axes.

    own: the block's cells. widths: of the block's whole halo. A copy's target is an index of the whole array,
    negative before it. Its source is in the block: the halo lies within the neighbouring one.
    """
    found = []
    for axis, length in enumerate(field.shape):
        if axis >= len(cut) or not cut[axis] or wraps(boundary, axis) or own.size == 0:
            continue
        low, high = field.widths[axis]
        first, last = own.start[axis] - widths[axis][0], own.stop[axis] + widths[axis][1]
        before, after = range(max(-low, first), 0), range(length, min(length + high, last))
        whole = Partition((length,), (1,))
        for positions in (before, after):
            found += [
                (axis, copy)
                for copy in copies_beyond(whole, 0, positions, positions.start, along(boundary, axis))
            ]
    return found


def band_rows(task: Task, region: Region) -> int:
    """Return the most rows of `region` that one call computes if the fields are in memory once."""
    unit = task.units[0]
    rows = max(-(-region.shape[0] // BANDS), 4 * sum(task.widths[0]), 1)
    return -(-rows // unit) * unit


def rows_apart(task: Task, region: Region, steps: int = 1) -> int:
    """Return how many rows before a cell its result is written if the fields are in memory once.

    The rows of a band, and those that it reads beside them. steps: of one kernel.
    """
    names = set(task.job.feeds)
    beside = [max(field.widths[0]) for field in task.fields if field.name in names and field.shape]
    return band_rows(task, region) + steps * max(beside, default=0)


def step_memory(task: Task, region: Region, *, one_copy: bool = False) -> int:
    """Return the bytes that a rank's blocks take while steps are taken.

    Two of each input that is fed; with `one_copy`, one, with `rows_apart` more rows. If a kernel takes them,
    rows are rounded up to whole lines. A function in stages has its fields twice, and all that it holds.
    """
    if task.job.program is not None:
        return int(task.job.memory.nbytes(region.shape))
    fed, total = set(task.job.feeds), 0
    for number, field in enumerate(task.fields):
        if not field.shape:
            continue
        rows, *others = field.padded(task.field_region(number, region).shape)
        if others and task.kernel is not None and task.kernel.aligned:
            unit = max(LINE // field.dtype.itemsize, 1)
            others[-1] = -(-others[-1] // unit) * unit
        if field.name in fed:
            rows = rows + rows_apart(task, region) if one_copy else 2 * rows
        total += rows * math.prod(others) * field.dtype.itemsize
    return total


def fields_memory(task: Task, region: Region, *, asynchronous: bool, observed: bool = False) -> int:
    """Return the bytes that a rank needs for steps of two copies of the fields.

    On a device, a function's own arrays need memory, too; a kernel has none. observed: as of `kept_memory`.
    """
    if task.kernel is None or not asynchronous:
        return block_memory(task, region, asynchronous=asynchronous)
    return step_memory(task, region) + kept_memory(task, region, observed=observed)


def kept_memory(task: Task, region: Region, *, observed: bool) -> int:
    """Return the bytes that a rank needs beside `step_memory`, for results that feed no input.

    observed: also for the largest change of a step: fields before it, differences, and their magnitudes.
    """
    fed, total = set(task.job.feeds), 0
    for number, (feed, known) in enumerate(zip(task.job.feeds, task.known, strict=True)):
        if feed is None and task.job.program is None:  # those of a program are among its arrays
            total += math.prod(task.output_region(region, number).shape) * known[1].itemsize
    for number, field in enumerate(task.fields):
        if observed and field.name in fed:
            total += 3 * math.prod(task.field_region(number, region).shape) * field.dtype.itemsize
    return total


def moved_bytes(task: Task, region: Region, handed_on: Collection[int] = ()) -> int:
    """Return the bytes of a region that a step reads and writes.

    handed_on: fields whose next values are not written, because another field has them now.
    """
    kept = sum(
        math.prod(task.field_region(before, region).shape) * task.fields[before].dtype.itemsize
        for before in handed_on
    )
    return task.input_bytes(region) + task.result_bytes(region) - kept


def halo_bytes(task: Task, region: Region, steps: int = 1, handed_on: Collection[int] = ()) -> int:
    """Return the bytes that a rank within the array receives from others for so many steps to read.

    handed_on: fields whose halos are not exchanged.
    """
    fed, found = set(task.job.feeds), 0
    for number, (field, widths) in enumerate(zip(task.fields, read_widths(task, steps), strict=True)):
        if field.name in fed and number not in handed_on:
            own = task.field_region(number, region).shape
            axes = zip(own, widths, field.partition.grid, strict=True)
            padded = math.prod(n + (sum(width) if parts > 1 else 0) for n, width, parts in axes)
            found += (padded - math.prod(own)) * field.dtype.itemsize
    return found
