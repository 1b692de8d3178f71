"""`verify` of a run that took steps: take them again, in a plain loop, and compare with what is on disk.

Nothing of the run is trusted: inputs come from their files, results are read back, what lies beyond an edge
is looked up by the formulas of `runner.run.verify.tiles`, and every step calls the job's own function in
NumPy, on cells that are cut elsewhere than the run's blocks. The cells that decide a box after n steps are
those within n halos of it; each step computes those that the following steps need.

Where floating-point results depend on the device or on the cut, differences grow with the number of steps;
the tolerance is that of one pass times the number of steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from meshrun.runner.maps.in_memory import OnProgress, no_progress
from meshrun.runner.maps.streamed.dispatch import threads_of
from meshrun.runner.plan.sampling import box_shape, cover, cut_elsewhere, sample
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.run.verify.results import (
    Mismatch,
    compare_output,
    drop_cached,
    gather_proof,
    mismatch_error,
    tolerance_of,
)
from meshrun.runner.run.verify.team import Team, open_team, processes_of
from meshrun.runner.run.verify.tiles import Placed, Tile, needed, of_field, of_result, wrapped
from meshrun.runner.storage.formats.registry import Sink, Source, first_serial, read_back, reopen
from meshrun.runner.world.world import World

AGAINST = "the job's own function in NumPy, in a plain loop over the steps"
PASS_STEPS = (16, 8, 4, 2)  # taken on a tile before the next one, if few cells are computed twice
REPEATED = 1.15  # cells computed in a pass, over those that it gives
READ_BYTES = 16 << 20  # of an input, at least, that a thread reads
ALIGNMENT = 64  # bytes
CONES = 4  # a box is at least so many times as long as the cells that its steps need beyond it
BOX_CELLS = 1 << 22


class PlainLoop:
    """Steps over the cells that decide one box.

    Each pass takes several steps on one tile after the other, with its data in a processor's cache, and gives
    a range of cells from a larger one. A team shares the tiles. nbytes: of memory, for inputs and results.
    tiles: that the box was cut into in the last step.
    """

    def __init__(self, task: Task, box: Region, steps: int) -> None:
        self._task, self.box, self._steps = task, box, steps
        self._cells = Region(*needed(task, box.start, box.stop, steps))
        self.nbytes = self.tiles = 0
        start, stop = self._cells.start, self._cells.stop
        self._fields = [
            self._placed(*of_field(task, place, start, stop), field.dtype)
            for place, field in enumerate(task.fields)
        ]
        self._results = [
            self._placed(*of_result(task, number, start, stop), dtype)
            for number, (_, dtype) in enumerate(task.known)
        ]

    def _placed(self, start: Shape, stop: Shape, dtype: np.dtype[Any]) -> Placed:
        """Return a place for the cells of a range, behind the places before."""
        found = Placed(self.nbytes, start, stop, dtype)
        self.nbytes += -(-found.nbytes // ALIGNMENT) * ALIGNMENT
        return found

    def run(self, files: Sequence[Source], team: Team) -> list[HostArray]:
        """Take the steps; return the results of the box, as its outputs hold them, in the team's memory."""
        task, fields, results = self._task, list(self._fields), list(self._results)
        for number, file in enumerate(files):
            self._read(file, number, team)
        each, shape = _pass_of(task, self.box.shape, self._cells.shape, team.tile_bytes())
        self.tiles = len(list(cover(self.box.shape, shape)))
        start, left = self._cells.start, self._steps
        written: list[Placed] = []
        while left:
            count = min(each, left)
            left -= count
            start, stop = needed(task, self.box.start, self.box.stop, left)
            ranges = [of_result(task, number, start, stop) for number in range(len(results))]
            pairs = zip(results, ranges, strict=True)
            written = [replace(place, start=first, stop=last) for place, (first, last) in pairs]
            done = self._steps - left - count
            team.take(_tiles(fields, written, Region(start, stop), (count, done), shape))
            results = list(written)
            for number, feed in enumerate(task.feed_numbers):
                if feed is not None:  # the next pass writes where this one has read
                    fields[feed], results[number] = written[number], fields[feed]
        ends = zip(self.box.start, self.box.stop, start, strict=True)
        cut = tuple(slice(a - origin, b - origin) for a, b, origin in ends)[: task.leading]
        return [place.array(team.memory)[cut] for place in written]

    def _read(self, file: Source, number: int, team: Team) -> None:
        """Read the cells of input `number`, beyond the array's ends where it wraps around."""
        place, shape = self._fields[number], self._task.fields[number].shape
        array = place.array(team.memory)

        def read(piece: tuple[HostArray, Region]) -> None:
            into, region = piece
            cells = into if into.flags.c_contiguous else np.empty(region.shape, place.dtype)
            file.read(region, cells)
            if cells is not into:
                into[...] = cells

        _ = file.array  # opened once, not by each thread
        pieces = []
        for into, region in wrapped(place.start, place.stop, shape):
            for first, last in _slabs(array[into], max(READ_BYTES, array.nbytes // team.threads)):
                pieces.append((array[into][first:last], region.rows(first, last)))
        list(team.pool.map(read, pieces))


def _slabs(array: HostArray, nbytes: int) -> list[tuple[int, int]]:
    """Return the first row and the one after the last of parts of about `nbytes` bytes."""
    rows = max(nbytes // max(array[:1].nbytes, 1), 1)
    return [(first, min(first + rows, len(array))) for first in range(0, len(array), rows)]


def _tiles(
    fields: Sequence[Placed], results: Sequence[Placed], cells: Region, steps: tuple[int, int], shape: Shape
) -> Iterator[Tile]:
    """Yield the tiles that cover a range of cells. steps: of each, and those before."""
    for part in cover(cells.shape, shape):
        start = tuple(a + b for a, b in zip(cells.start, part.start, strict=True))
        stop = tuple(a + b for a, b in zip(cells.start, part.stop, strict=True))
        yield Tile(tuple(fields), tuple(results), start, stop, *steps)


def _pass_of(task: Task, box: Shape, shape: Shape, tile_bytes: int) -> tuple[int, Shape]:
    """Return the number of steps of a pass over so many cells for a box, and the shape of its tiles.

    The box has two tiles or more along each axis that a run may cut.
    """
    largest = max(one.dtype.itemsize * math.prod(one.shape[task.leading :]) for one in task.fields)
    most = tuple(max(2 * n // 3, 1) for n in box)
    tile = [
        m if cut else n
        for n, m, cut in zip(
            shape, cut_elsewhere(task.partition, most, task.cut_axes), task.cut_axes, strict=True
        )
    ]
    while math.prod(tile[: task.leading]) * largest > tile_bytes:
        longest, _, axis = max((n, -axis, axis) for axis, n in enumerate(tile) if task.cut_axes[axis])
        if longest == 1:
            break
        tile[axis] = -(-longest // 2)
    for count in PASS_STEPS:
        pairs = zip(tile, shape, task.widths, strict=True)
        wider = [min(n + (count - 1) * sum(width) / 2, m) / n for n, m, width in pairs]
        if math.prod(wider) <= REPEATED:
            return count, tuple(tile)
    return 1, tuple(tile)


def verify_steps(
    world: World,
    task: Task,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    steps: int,
    mode: str,
    *,
    progress: OnProgress = no_progress,
) -> dict[str, Any]:
    """Check the files that `sinks` wrote after `steps` steps; collective. Returns the record of the check.

    RunError on every rank for a wrong cell. mode: "full" checks every cell, "sample" some boxes, or every
    cell where that is less work. progress: called with this rank's verified cells, and with all of them.
    """
    begin = time.perf_counter()
    if task.job.program is not None:
        from meshrun.runner.run.verify.program import compare_with_plain

        against, compared = compare_with_plain(world, task, sources, sinks, steps)
        found = gather_proof(world, mode, against, begin, compared)
        return {**found, "processes": 1, "processes_reason": None}
    task = replace(task, kernel=None)  # the function itself is what is compared with
    drop_cached(world, sinks)
    alone = first_serial([*sources, *sinks]) is not None
    boxes = list(_boxes(world, task, steps, mode, alone))
    loops = [PlainLoop(task, box, steps) for box in boxes]
    total, work = sum(box.size for box in boxes), _work(task, steps, boxes)
    wrong: Mismatch | None = None
    done = 0
    progress(0, total)
    nbytes = max((loop.nbytes for loop in loops), default=0)
    with open_team(task, nbytes, threads_of(world), processes_of(world, steps * work)) as team:
        for loop in loops:
            box = loop.box
            files, written = [reopen(source) for source in sources], [read_back(sink) for sink in sinks]
            for file in written:
                _ = file.array  # opened once, not by each thread
            for number, expected in enumerate(loop.run(files, team)):
                wrong = wrong or _compared(task, number, written[number], box, expected, steps, team)
            done += box.size
            progress(done, total)
    error = None if wrong is None else mismatch_error(world, task, wrong)
    proof = gather_proof(world, mode, AGAINST, begin, (error, sum(loop.tiles for loop in loops), done))
    teams = world.control.allgather((team.processes, team.reason))
    reason = next((reason for _, reason in teams if reason is not None), None)
    return {**proof, "processes": sum(count for count, _ in teams), "processes_reason": reason}


def _compared(
    task: Task,
    number: int,
    written: Source,
    box: Region,
    expected: HostArray,
    steps: int,
    team: Team,
) -> Mismatch | None:
    """Return what is wrong in a box of the written output `number`, compared in slabs by threads."""
    slabs = _slabs(expected, team.thread_bytes)

    def tolerance_of_slab(ends: tuple[int, int]) -> float:
        return tolerance_of(task, number, expected[slice(*ends)], steps)

    tolerance = max(team.pool.map(tolerance_of_slab, slabs))

    def compare(ends: tuple[int, int]) -> Mismatch | None:
        return compare_output(task, number, written, box.rows(*ends), expected[slice(*ends)], tolerance)

    wrong = [found for found in team.pool.map(compare, slabs) if found is not None]
    if not wrong:
        return None
    return replace(wrong[0], wrong=sum(one.wrong for one in wrong), cells=expected.size, box=box)


def _boxes(world: World, task: Task, steps: int, mode: str, alone: bool) -> Iterator[Region]:
    """Yield this rank's boxes; all on rank 0 where only that one can read the files."""
    ranks = list(range(world.size)) if alone else [world.rank]
    if (alone and world.rank) or 0 in task.shape:
        return
    everything = list(cover(task.shape, _full_box(task, steps, world.size)))
    if mode == "sample":
        sampled = [_sampled(world, task, steps, rank) for rank in range(world.size)]
        if _work(task, steps, chain.from_iterable(sampled)) < _work(task, steps, everything):
            for rank in ranks:
                yield from sampled[rank]
            return
    for number, region in enumerate(everything):
        if number % world.size in ranks:
            yield region


def _sampled(world: World, task: Task, steps: int, rank: int) -> list[Region]:
    """Return the boxes of a sample; fewer where their steps need many cells."""
    room = math.prod(min(n, extra + 8) for n, extra in zip(task.shape, _cone(task, steps), strict=True))
    found = list(sample(task.partition, rank, task.cut_axes, world.run_id))
    return found[: max(len(found) * BOX_CELLS // max(room * len(found), BOX_CELLS), 2)]


def _work(task: Task, steps: int, boxes: Iterable[Region]) -> int:
    """Return how many cells decide the boxes, counted for each of them."""
    cone = _cone(task, steps)
    return sum(
        math.prod(min(n, m + extra) for n, m, extra in zip(task.shape, box.shape, cone, strict=True))
        for box in boxes
    )


def _cone(task: Task, steps: int) -> Shape:
    return tuple(steps * (low + high) for low, high in task.widths)


def _full_box(task: Task, steps: int, ranks: int) -> Shape:
    """Return the shape of the boxes that cover the array: much longer than the cells needed beyond them."""
    if not any(_cone(task, steps)):
        return box_shape(task.shape, task.cut_axes, BOX_CELLS)
    box = list(task.shape)
    longest = max((n, axis) for axis, n in enumerate(task.shape) if task.cut_axes[axis])[1]
    low, high = task.widths[longest]
    share = -(-task.shape[longest] // ranks)
    box[longest] = max(min(max(CONES * steps * (low + high), share), task.shape[longest]), 1)
    return tuple(box)
