"""The job transpose: permute the axes of an array, from a file to a file.

Each rank reads rows, the ranks exchange blocks, and each transposes what it has got and writes rows of the
output. An array that does not fit memory passes in several parts, each some rows of the output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import meshrun
from meshrun.jobs.transforms.axes import parse_axes
from meshrun.jobs.transforms.direct import DirectTranspose, open_direct
from meshrun.jobs.transforms.forecast import forecast_transpose
from meshrun.jobs.transforms.transpose import checked_permutation, exchanged
from meshrun.runner.arrays.load import read_block
from meshrun.runner.arrays.store import write_block
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.forecast.jobs import JobForecast
from meshrun.runner.forecast.place import Place
from meshrun.runner.plan.grid import bounds, split_along
from meshrun.runner.plan.sampling import everything, sample
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.region import Region, Shape
from meshrun.runner.report.units import bytes_text
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.world.world import World

# Copies of a block at the same time: read, as messages on both sides, and transposed; without an exchange,
# read and transposed.
EXCHANGED, KEPT = 4, 2


def _verify(
    world: World, inputs: Sequence[Source], output: Source, mode: str, *, axes: str | None
) -> dict[str, Any]:
    begin = time.perf_counter()
    source = inputs[0]
    order = checked_permutation(source.shape, parse_axes(axes))
    serial = not (source.parallel and output.parallel)
    partition = split_along(output.shape, 0, 1 if serial else world.size)
    cut = (True,) * len(output.shape)
    boxes: list[Region] = []
    if not serial or world.rank == 0:
        found = everything(partition, world.rank, cut)
        boxes = list(found if mode == "full" else sample(partition, world.rank, cut, world.run_id))
    wrong = next((failed for box in boxes if (failed := _differing(source, output, order, box))), None)
    for failed in world.control.allgather(wrong):
        if failed is not None:
            raise failed
    return {
        "mode": mode,
        "against": "cells of the input",
        "boxes": sum(world.control.allgather(len(boxes))),
        "cells": sum(world.control.allgather(sum(box.size for box in boxes))),
        "seconds": time.perf_counter() - begin,
    }


def _differing(source: Source, output: Source, order: Shape, box: Region) -> RunError | None:
    """Return the error for the first cell of the box that is not the input's, bit by bit."""
    back = [order.index(axis) for axis in range(len(order))]
    place = Region(tuple(box.start[n] for n in back), tuple(box.stop[n] for n in back))
    cells, wanted = np.empty(box.shape, output.dtype), np.empty(place.shape, source.dtype)
    output.read(box, cells)
    source.read(place, wanted)
    expected = np.ascontiguousarray(wanted.transpose(order))
    width = cells.dtype.itemsize
    same = (cells.view(np.uint8) == expected.view(np.uint8)).reshape(-1, width).all(axis=1).reshape(box.shape)
    if same.all():
        return None
    first = tuple(np.argwhere(~same)[0].tolist())
    index = [a + n for a, n in zip(box.start, first, strict=True)]
    return RunError(
        f"verification failed: cell {index} of the transposed array is wrong",
        got=cells[first],
        expected=expected[first],
        everywhere=True,
    )


def _forecast(place: Place, inputs: Sequence[ArrayType], *, axes: str | None) -> JobForecast:
    shape, dtype = inputs[0]
    order = checked_permutation(shape, parse_axes(axes))
    passes = passes_of(shape, np.dtype(dtype), order, place.ranks, place.memory)
    split = first_split(shape, order, place.ranks)
    copies = _copies(order, split, place.ranks)
    return forecast_transpose(place, shape, np.dtype(dtype), order, split, passes, copies)


@meshrun.job(name="transpose", verify=_verify, forecast=_forecast)
def transpose_job(
    world: World,
    input: Source,
    create: Any,
    memory: int,
    *,
    axes: str | None = None,
    exchange: Literal["auto", "messages", "direct"] = "auto",
) -> dict[str, Any]:
    """Permute the axes of an array, as numpy.transpose.

    The ranks read rows, exchange blocks all to all, and write rows of the output. An array that is larger
    than their memory passes in several parts.

    axes: for each axis of the output, that of the input: 1,0 or 2,0,1. Default: in reverse.
    exchange: messages, with the next part packed and the last one transposed meanwhile; or direct, between
        GPUs of one host, a kernel that stores into the other GPUs' memory. auto: messages.
    """
    order = world.collective_call(lambda: checked_permutation(input.shape, parse_axes(axes)))
    if not order:
        raise UserError("an array without axes cannot be transposed", got="shape ()", everywhere=True)
    shape = tuple(input.shape[axis] for axis in order)
    sink = create(shape, input.dtype, serial=True)
    split = first_split(input.shape, order, world.size)
    room = min(world.control.allgather(memory))  # GPUs and hosts may differ, passes must not
    passes = world.collective_call(lambda: count_passes(world, input, sink, order, room))
    most = tuple(-(-n // passes) if axis == order[0] else n for axis, n in enumerate(input.shape))
    direct = _direct(world, most, input.dtype, order) if exchange == "direct" else None
    if direct is not None:
        split = 0
    for number in range(passes):
        rows = bounds(shape[0], passes, number)
        before = Slab(input.shape, order[0], rows, split, world.size)
        after = Slab(shape, 0, rows, 0, world.size)
        block = read_block(world, input, before)
        with world.phases("transpose", 2 * block.nbytes):
            part = before.whole.shape
            if direct is None:
                block = exchanged(world, block, order, split, 0, part)
            else:
                columns = math.prod(part[1:])
                mine = tuple(after[world.rank].shape)
                block = direct(world.xp.ascontiguousarray(block), part[0], columns).reshape(mine)
        write_block(world, block, sink, after)
        del block
    if direct is not None:
        direct.close()
    return {
        "axes": list(order),
        "passes": passes,
        "exchange": "none" if world.size == 1 else "messages" if direct is None else "direct",
    }


def _direct(world: World, shape: Shape, dtype: np.dtype[Any], order: Shape) -> DirectTranspose:
    found = open_direct(world, shape, dtype, order)
    if isinstance(found, str):
        raise UserError(
            f"{option('exchange', 'direct')} is not possible here",
            got=found,
            expected="GPUs of one host, and a permutation that turns the axes, such as 1,0",
            hint=option("exchange", "auto"),
            everywhere=True,
        )
    return found


@dataclass(frozen=True)
class Slab:
    """Some rows of an array, `rows` along the axis `along`, split over ranks along the axis `split`."""

    shape: Shape
    along: int
    rows: tuple[int, int]
    split: int
    ranks: int

    @property
    def whole(self) -> Region:
        """The rows of all ranks."""
        start, stop = [0] * len(self.shape), list(self.shape)
        start[self.along], stop[self.along] = self.rows
        return Region(tuple(start), tuple(stop))

    def __getitem__(self, rank: int) -> Region:
        whole = self.whole
        start, stop = list(whole.start), list(whole.stop)
        first, last = bounds(whole.shape[self.split], self.ranks, rank)
        start[self.split], stop[self.split] = whole.start[self.split] + first, whole.start[self.split] + last
        return Region(tuple(start), tuple(stop))


def first_split(shape: Shape, order: Shape, ranks: int) -> int:
    """Return the axis along which to read: the first, whose parts are contiguous, unless it has few rows."""
    if shape[0] >= ranks or len(shape) == 1:
        return 0
    return max(range(len(shape)), key=lambda axis: (min(shape[axis], ranks), -axis))


def _copies(order: Shape, split: int, ranks: int) -> int:
    return EXCHANGED if ranks > 1 and order[0] != split else KEPT


def passes_of(shape: Shape, dtype: np.dtype[Any], order: Shape, ranks: int, memory: int) -> int:
    """Return the number of passes whose blocks fit the memory; UserError if there are none."""
    if 0 in shape:
        return 1
    split = first_split(shape, order, ranks)
    length, row = shape[order[0]], math.prod(shape) // shape[order[0]]

    def needed(passes: int) -> int:
        part = -(-length // passes)
        cells = max(Slab(shape, order[0], (0, part), split, ranks)[0].size, -(-part // ranks) * row)
        return _copies(order, split, ranks) * cells * dtype.itemsize

    passes = 1
    while needed(passes) > memory and passes < length:
        passes = min(2 * passes, length)
    if needed(passes) > memory:
        raise UserError(
            "one row of the output does not fit the memory",
            got=f"{bytes_text(memory)} a rank",
            expected=bytes_text(needed(passes)),
            hint="more ranks, or another order of axes in two runs",
        )
    return passes


def count_passes(world: World, source: Source, sink: Sink, order: Shape, memory: int) -> int:
    """Return the number of passes; UserError if there are none, or several for files that need one."""
    passes = passes_of(source.shape, source.dtype, order, world.size, memory)
    serial = [file.path for file in (source, sink) if not file.parallel or (file is sink and file.chunks)]
    if passes > 1 and serial:
        raise UserError(
            f"{serial[0]} cannot be transposed in parts, which fit the memory",
            got=f"{bytes_text(memory)} a rank",
            expected="files such as .npy, .raw or .h5",
        )
    return passes
