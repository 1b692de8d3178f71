"""The option `verify`: recompute the result by another method and compare it with what is on disk.

Nothing of the run is trusted: the input comes from its file, the result is read back from the file being
written, and cells beyond an edge are found by this module's own formulas (not `halo`'s). The expected values
come from the job's float64 reference or, if it has none, from its function in NumPy on boxes that are cut
elsewhere than the run's blocks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.device.api import poisoned
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.signature import INPUT_DTYPE
from meshrun.runner.maps.in_memory import OnProgress, no_progress
from meshrun.runner.maps.reduce import Tiles, reduce_array, to_host
from meshrun.runner.maps.streamed.dispatch import threads_of
from meshrun.runner.maps.streamed.redo import Redo
from meshrun.runner.plan.halo import along
from meshrun.runner.plan.sampling import everything, sample
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region, Shape, overlap
from meshrun.runner.report.units import counted
from meshrun.runner.run.verify.compare import differs, unlike
from meshrun.runner.run.verify.tiles import sources
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Sink, Source, first_serial, read_back, reopen
from meshrun.runner.world.world import World, single_rank_world

REFERENCE = "the job's float64 reference"
RERUN = "the job's own function in NumPy, cut elsewhere"
MOST_NAMES = 4  # ranks that a warning names
OTHER_TILE = 300_007  # elements: cut differently from the run; a prime number


@dataclass(frozen=True)
class Mismatch:
    """The first wrong cell that a rank found. output: the name of the output, if the job has several."""

    index: tuple[int, ...]
    got: Any
    expected: Any
    tolerance: float
    wrong: int
    cells: int
    box: Region
    output: str = ""


def verify(
    world: World,
    task: Task,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    mode: str,
    *,
    redo: Redo | None = None,
    progress: OnProgress = no_progress,
) -> dict[str, Any]:
    """Check the files that `sinks` wrote, and return the record of the check. Collective.

    mode: "sample" checks corners and edges of every block and random boxes, "full" every cell. redo: of a
    streamed run, whose chunks that are wrong are computed again on another device; if they are right then, a
    warning names the device that computed them first. If that device was found by a sample, so are all others
    of its chunks. progress: called with the number of this rank's verified cells and their total. Raises
    RunError on every rank for a cell that is wrong, the second time if there was one.
    """
    begin = time.perf_counter()
    task = replace(task, kernel=None)  # the function itself is what is compared with
    alone = first_serial([*sources, *sinks]) is not None
    boxes = left = list(_boxes(world, task, mode, alone=alone))
    wrong: dict[int, Mismatch] = {}  # by chunk
    while True:
        drop_cached(world, sinks)
        mine, passed = _compare_boxes(world, task, sources, sinks, left, progress)
        found = [one for one in world.control.allgather(mine) if one is not None]
        chunks = _chunks_of(task, redo, found)
        wrong = {**chunks, **wrong}
        again = {*chunks}
        if not found and mode == "sample" and redo is not None and wrong:
            again = redo.beside(wrong)
        if not found and not again:
            break
        regions = [] if redo is None else redo.again(again)
        if found and not regions:
            raise mismatch_error(world, task, found[0], redo)
        left = [box for box in boxes if box not in passed or _touches(box, regions)]
    against = REFERENCE if task.job.reference else RERUN
    proof = gather_proof(world, mode, against, begin, (None, len(boxes), sum(box.size for box in boxes)))
    return proof if redo is None else {**proof, "redone": _redone(world, redo, wrong)}


def _chunks_of(task: Task, redo: Redo | None, wrong: Sequence[Mismatch]) -> dict[int, Mismatch]:
    """Return the chunks of wrong cells, each with the first one; empty if the run was not streamed."""
    if redo is None:
        return {}
    names = task.job.output_names
    places = ((names.index(one.output) if one.output else 0, one) for one in reversed(wrong))
    return {redo.chunk_of(output, one.index): one for output, one in places}


def _touches(box: Region, regions: Sequence[Region]) -> bool:
    return any(all(length > 0 for length in overlap(box, region).shape) for region in regions)


def _redone(world: World, redo: Redo, wrong: dict[int, Mismatch]) -> list[dict[str, Any]]:
    """Warn of the ranks whose chunks were wrong; return the record of what was computed again. Collective."""
    by: dict[str, list[int]] = {}
    for chunk in sorted(wrong):
        by.setdefault(_first(redo, chunk), []).append(chunk)
    for first, chunks in by.items():
        example, others = wrong[chunks[0]], sorted({f"[{redo.second[chunk]}]" for chunk in chunks})
        world.warn(
            f"{first} computed {counted(len(chunks), 'chunk')} wrong, "
            f"and {', '.join(others[:MOST_NAMES])} right: "
            f"cell {list(example.index)} of chunk {chunks[0]:,} was {example.got}, not {example.expected}. "
            "Try: meshrun validate, to test the first of these devices"
        )
    return [
        {"chunk": chunk, "first": _first(redo, chunk), "second": f"[{second}]"}
        for chunk, second in sorted(redo.second.items())
    ]


def _first(redo: Redo, chunk: int) -> str:
    first = redo.first().get(chunk)
    return "an earlier run" if first is None else f"[{first}]"


def gather_proof(
    world: World, mode: str, against: str, begin: float, mine: tuple[RunError | None, int, int]
) -> dict[str, Any]:
    """Return the record of a verification, or raise its first error on every rank. Collective.

    begin: its start on the `perf_counter` clock. mine: this rank's error, and the numbers of its boxes and
    cells.
    """
    found = world.control.allgather(mine)
    for error, _, _ in found:
        if error is not None:
            raise error
    return {
        "mode": mode,
        "against": against,
        "boxes": sum(entry[1] for entry in found),
        "cells": sum(entry[2] for entry in found),
        "seed": world.run_id,
        "seconds": time.perf_counter() - begin,
    }


def _compare_boxes(
    world: World,
    task: Task,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    boxes: Sequence[Region],
    progress: OnProgress,
) -> tuple[Mismatch | None, set[Region]]:
    """Compare boxes on all of this rank's cores; return the first mismatch, and the boxes that are right."""
    total, cells = sum(box.size for box in boxes), 0
    passed: set[Region] = set()
    progress(0, total)
    if not boxes:
        return None, passed
    files, written = [reopen(source) for source in sources], [read_back(sink) for sink in sinks]
    for file in files:
        _ = file.array  # opened once instead of by each thread
    stop = threading.Event()

    def check(box: Region) -> Mismatch | None:
        if stop.is_set():
            return None
        found = compare(task, files, written, box)
        if found is None:
            passed.add(box)
        else:
            stop.set()
        return found

    wrong: Mismatch | None = None
    with ThreadPoolExecutor(threads_of(world), "verify") as pool:
        for box, found in zip(boxes, pool.map(check, boxes), strict=True):
            cells += box.size
            wrong = wrong or found
            progress(cells, total)
    return wrong, passed


def _boxes(world: World, task: Task, mode: str, alone: bool) -> Iterator[Region]:
    """Return this rank's boxes. alone: only rank 0 can read the files and gets all boxes."""
    ranks = range(world.size) if alone else [world.rank]
    if alone and world.rank > 0:
        return iter(())
    if mode == "full":
        return chain.from_iterable(everything(task.partition, rank, task.cut_axes) for rank in ranks)
    return chain.from_iterable(sample(task.partition, rank, task.cut_axes, world.run_id) for rank in ranks)


def place_of(sink: Sink) -> Path:
    """Return the file that an array is written to, or its own folder in a store."""
    return sink.partial / (sink.name or "") if sink.partial.is_dir() else sink.partial


def drop_cached(world: World, sinks: Sequence[Sink]) -> None:
    """Have the outputs read from the disk instead of the page cache. Collective."""
    if world.rank == 0:
        for sink in sinks:
            leave_cache(place_of(sink))
    world.control.barrier()


def leave_cache(written: Path) -> None:
    """Write a file, or a folder's files, to the disk and drop them from the page cache."""
    for file in (path for path in (written, *written.rglob("*")) if path.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def compare(task: Task, files: Sequence[Source], written: Sequence[Source], box: Region) -> Mismatch | None:
    """Compare a box of the written results with results computed again; None if nothing is wrong."""
    blocks = [padded(task, number, file.array, box) for number, file in enumerate(files)]
    for number, (expected, tolerance) in enumerate(expect(task, blocks, box)):
        found = compare_output(task, number, written[number], box, expected, tolerance)
        if found is not None:
            return found
    return None


def compare_output(
    task: Task, number: int, written: Source, box: Region, expected: HostArray, tolerance: HostArray | float
) -> Mismatch | None:
    """Compare a box of the written output `number` with `expected`; None if nothing is wrong."""
    region = _place(task, box, written.shape)
    got = np.empty(region.shape, written.dtype)
    written.read(region, got)
    bad = differs(got, expected, tolerance)
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    index = tuple(i + a for i, a in zip(first, region.start, strict=True))
    allowed = float(np.broadcast_to(tolerance, got.shape)[first])
    names = task.job.output_names
    name = names[number] if len(names) > 1 else ""
    return Mismatch(index, got[first], expected[first], allowed, int(bad.sum()), got.size, box, name)


def _place(task: Task, box: Region, shape: Shape) -> Region:
    """Return the region of the results for a box of the first input, in a written array of `shape`."""
    axes = zip(box.start, box.stop, task.shape, shape, strict=False)
    parts = [(a * found // n, b * found // n) for a, b, n, found in axes][: task.leading]
    parts += [(0, n) for n in shape[task.leading :]]
    return Region(tuple(a for a, _ in parts), tuple(b for _, b in parts))


def padded(task: Task, number: int, array: Any, box: Region) -> HostArray:
    """Return input `number` in `box` with its halo; cells beyond the array follow the boundary's definition.

    array: only sliced, because it may not be in memory.
    """
    field, region = task.fields[number], task.field_region(number, box)
    boundary, constants = task.beyond(number)
    places, beyond = [], []
    for axis, ((low, high), length) in enumerate(zip(field.widths, field.shape, strict=True)):
        wanted = np.arange(region.start[axis] - low, region.stop[axis] + high)
        index = sources(wanted, length, along(boundary, axis))
        beyond.append((index < 0, wanted))
        places.append(np.where(index < 0, np.clip(wanted, 0, length - 1), index))
    if all(place.size and place[-1] - place[0] == place.size - 1 for place in places):
        inside = tuple(slice(int(place[0]), int(place[-1]) + 1) for place in places)
        if all((np.diff(place) == 1).all() for place in places) and not any(
            outside.any() for outside, _ in beyond
        ):
            return np.array(array[inside], order="C")
    needed = [np.unique(place) for place in places]
    cells = np.empty([place.size for place in needed], field.dtype)
    for parts in product(*(_stretches(place) for place in needed)):
        cells[tuple(into for into, _ in parts)] = array[tuple(stretch for _, stretch in parts)]
    index_of = (np.searchsorted(one, place) for one, place in zip(needed, places, strict=True))
    block = np.array(cells[np.ix_(*index_of)], order="C")
    for axis, (outside, wanted) in enumerate(beyond):
        for side, beside in enumerate((wanted < 0, wanted >= 0)):
            value = constants[axis][side] if isinstance(constants, tuple) else constants
            block[(slice(None),) * axis + (outside & beside,)] = value
    return block


def _stretches(positions: HostArray) -> list[tuple[slice, slice]]:
    """Split ascending positions into runs of neighbours; return each run's indices and its positions."""
    cuts = [0, *(np.flatnonzero(np.diff(positions) > 1) + 1), positions.size]
    return [(slice(a, b), slice(int(positions[a]), int(positions[b - 1]) + 1)) for a, b in pairwise(cuts)]


def expect(
    task: Task, blocks: Sequence[HostArray], box: Region
) -> Iterator[tuple[HostArray, HostArray | float]]:
    """Yield each output's expected result for padded blocks, and its tolerance.

    The function may change the blocks. Raises RunError if the reference returns something unusable.
    """
    count = len(task.known)
    inexact = any(dtype.kind in "fc" for _, dtype in task.known)
    largest = max(map(_largest, blocks)) if inexact else 0.0  # before the function changes them
    if task.job.reference is None:
        here = BlockContext(0, 1, "", box.start, box.shape, task.shape, None, np)
        outs = poisoned(CpuBackend(), task.filled(box.shape), other=True)
        answers: Sequence[Any] = task.call(blocks, here, outs)
    else:
        wide = [block.astype(np.complex128 if block.dtype.kind == "c" else np.float64) for block in blocks]
        answer = task.job.reference(*wide, **{INPUT_DTYPE: blocks[0].dtype, **task.parameters})
        answers = [answer] if count == 1 else answer
        if not isinstance(answers, (tuple, list)) or len(answers) != count:
            raise RunError(
                f"job {task.job.name}: its reference did not return {count} results",
                got=type(answer).__name__,
                expected=f"a tuple: {', '.join(task.job.output_names)}",
            )
    for number, answer in enumerate(answers):
        expected, tolerance = answer if isinstance(answer, tuple) else (answer, None)
        yield _with_tolerance(task, number, expected, tolerance, largest, box)


def _with_tolerance(
    task: Task, number: int, expected: Any, tolerance: Any, largest: float, box: Region
) -> tuple[HostArray, HostArray | float]:
    """Return the expected cells of output `number` and their tolerance. largest: magnitude of the inputs."""
    shape, dtype = task.output_region(box, number).shape, task.known[number][1]
    wanted = _of_shape(expected, shape, task.job.name)
    if dtype.kind in "iub":
        return wanted, 0.0 if tolerance is None else tolerance
    if tolerance is None:
        # Relative to the largest magnitude of input and result: a sum's rounding error depends on its terms.
        tolerance = task.job.ulps * float(np.finfo(dtype).eps) * max(largest, _largest(wanted))
    return wanted, tolerance


def tolerance_of(task: Task, number: int, expected: HostArray, steps: int) -> float:
    """Return the tolerance of output `number` after so many steps: `ulps` for each step."""
    dtype = task.known[number][1]
    if dtype.kind in "iub":
        return 0.0
    return task.job.ulps * float(np.finfo(dtype).eps) * _largest(expected) * max(steps, 1)


def _largest(array: HostArray) -> float:
    """Return the largest magnitude of the finite cells."""
    finite = array[np.isfinite(array)]
    if not finite.size:
        return 0.0
    if finite.dtype.kind == "c":
        return float(np.abs(finite).max())
    return max(float(finite.max()), -float(finite.min()))  # abs() of the smallest integer overflows


def _of_shape(expected: Any, shape: Shape, name: str) -> HostArray:
    array = np.asarray(expected)
    if array.dtype.kind not in "biufc":
        raise RunError(f"job {name}: its reference did not return numbers", got=type(expected).__name__)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise RunError(
            f"job {name}: its reference returned the wrong shape", got=array.shape, expected=shape
        ) from None


def verify_result(
    world: World, job: Job, parameters: dict[str, Any], source: Source, result: Any
) -> dict[str, Any]:
    """Check the result of a job that writes no array, on rank 0. Raises RunError on every rank if wrong."""
    begin = time.perf_counter()

    def recompute() -> str:
        if job.reference is not None:
            array = np.asarray(reopen(source).array)
            expected, against = job.reference(array, **{INPUT_DTYPE: array.dtype, **parameters}), REFERENCE
        elif job.kind == "reduce":
            alone = single_rank_world(CpuBackend())
            expected, against = (
                reduce_array(
                    alone,
                    job,
                    parameters,
                    Tiles(alone, reopen(source), tile=OTHER_TILE, whole_rows=job.whole_rows),
                ),
                RERUN,
            )
        else:
            raise UserError(f"{option('verify')}: job {job.name} has no reference to compare with")
        absolute: dict[str, float] = {}
        if job.reference and isinstance(expected, tuple):
            expected, absolute = expected
        place = unlike(to_host(result), to_host(expected), absolute)
        if place is not None:
            raise RunError(
                f"verification failed: the result{place[0]} is wrong", got=place[1], expected=place[2]
            )
        return against

    against = world.on_root(recompute)
    return {"mode": "full", "against": against, "seconds": time.perf_counter() - begin}


def mismatch_error(world: World, task: Task, mismatch: Mismatch, redo: Redo | None = None) -> RunError:
    """Build the error for a wrong cell, with the rank that computed it. redo: chunks', collective."""
    by = f" of {mismatch.output}" if mismatch.output else ""
    if redo is not None:
        (chunk,) = _chunks_of(task, redo, [mismatch])
        second = redo.second.get(chunk)
        by += f", computed by {_first(redo, chunk)}"
        by += f" and again by [{second}]," if second else ","
    else:
        names = task.job.output_names
        shape, _ = task.known[names.index(mismatch.output) if mismatch.output else 0]
        axes = enumerate(zip(mismatch.index[: task.leading], shape, task.shape, strict=False))
        place = [task.partition.owner(axis, i * length // n) for axis, (i, n, length) in axes]
        place += [0] * (len(task.shape) - len(place))
        by += f", computed by [{world.ranks[task.partition.rank(place)]}],"
    error = failure(mismatch, by)
    if task.job.split_dependent:
        error.hint = f"no {option('verify')}: it computes other blocks, and the job says split_dependent=True"
    return error


def failure(mismatch: Mismatch, place: str) -> RunError:
    """Build the error for a wrong cell. place: text that follows the cell's index."""
    allowed = f" within {mismatch.tolerance:.3g}" if mismatch.tolerance else ""
    return RunError(
        f"verification failed: cell {list(mismatch.index)}{place} is wrong on disk "
        f"({mismatch.wrong:,} of {mismatch.cells:,} cells of box {mismatch.box} are)",
        got=mismatch.got,
        expected=f"{mismatch.expected}{allowed}",
        hint="meshrun selftest, to distinguish a broken installation from a broken job",
        everywhere=True,
    )
