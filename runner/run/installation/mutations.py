"""Deliberate bugs in the runner, each of which verification must detect.

A check that has never failed proves nothing. Each mutation replaces one function of the runner
with one that has a realistic bug; a verified run must then fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrun.runner.arrays.halo import exchange
from meshrun.runner.arrays.halo.exchange import Exchange, HaloPlan
from meshrun.runner.arrays.store import Store
from meshrun.runner.device.api import poisoned
from meshrun.runner.maps import in_memory as pipeline
from meshrun.runner.maps.in_memory import Pipeline
from meshrun.runner.maps.reduce import Tiles
from meshrun.runner.plan import halo
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Region
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.npy import NpySink, NpySource


@dataclass(frozen=True)
class Mutation:
    """A deliberate bug. kind: of the runs that it breaks: "map", "in place", "steps" or "reduce"."""

    name: str
    what: str
    broken: Callable[[], AbstractContextManager[Any]]
    kind: str = "map"


@contextmanager
def _replaced(owner: Any, name: str, substitute: Any) -> Iterator[None]:
    inherited, original = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, substitute)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _halo_skipped() -> AbstractContextManager[None]:
    return _replaced(HaloPlan, "stale", lambda plan, valid: ([], []))


def _missing_wait() -> AbstractContextManager[None]:
    def finish(exchange: Exchange) -> None:
        """Compute the border before the messages have arrived."""

    return _replaced(Exchange, "finish", finish)


def _swapped_neighbours() -> AbstractContextManager[None]:
    original = HaloPlan.__init__

    def swapped(plan: HaloPlan, *arguments: Any) -> None:
        original(plan, *arguments)
        for i, one in enumerate(plan.receives):
            for j, other in enumerate(plan.receives[:i]):
                if one.sender != other.sender and _shape(one) == _shape(other):
                    plan.receives[i] = replace(one, target=other.target)
                    plan.receives[j] = replace(other, target=one.target)
                    return

    return _replaced(HaloPlan, "__init__", swapped)


def _shape(transfer: halo.Transfer) -> list[int]:
    return [part.stop - part.start for part in transfer.source]


def _missing_corners() -> AbstractContextManager[None]:
    original = HaloPlan.__init__

    def straight_only(plan: HaloPlan, partition: Any, rank: int, *rest: Any) -> None:
        original(plan, partition, rank, *rest)

        def diagonal(transfer: halo.Transfer) -> bool:
            places = zip(
                partition.coordinates(transfer.sender), partition.coordinates(transfer.receiver), strict=True
            )
            return [a != b for a, b in places].count(True) > 1

        plan.receives = [transfer for transfer in plan.receives if not diagonal(transfer)]
        plan.sends = [transfer for transfer in plan.sends if not diagonal(transfer)]

    return _replaced(HaloPlan, "__init__", straight_only)


def _wrong_boundary() -> AbstractContextManager[None]:
    original = halo.source_index

    def other(position: int, length: int, boundary: str) -> int | None:
        return original(position, length, {"reflect": "mirror", "mirror": "reflect"}.get(boundary, "nearest"))

    return _replaced(halo, "source_index", other)


def _unflipped() -> AbstractContextManager[None]:
    return _replaced(exchange, "reverse", lambda array, axes: array)


def _wrong_read_offset() -> AbstractContextManager[None]:
    original = NpySource.read

    def read(source: NpySource, region: Region, target: Any) -> None:
        rows = source.shape[0]
        shift = 1 if region.start[0] > 0 and region.stop[0] < rows else 0
        moved = Region(
            (region.start[0] + shift, *region.start[1:]), (region.stop[0] + shift, *region.stop[1:])
        )
        original(source, moved, target)

    return _replaced(NpySource, "read", read)


def _wrong_write_offset() -> AbstractContextManager[None]:
    original = NpySink._at
    return _replaced(NpySink, "_at", lambda sink, element: original(sink, max(element - 1, 0)))


def _misplaced_result() -> AbstractContextManager[None]:
    original = Task.output_region

    def one_row_off(task: Task, region: Region, number: int = 0) -> Region:
        found = original(task, region, number)
        return found if found.start[0] == 0 else found.rows(-1, found.shape[0] - 1)

    return _replaced(Task, "output_region", one_row_off)


def _stale_result() -> AbstractContextManager[None]:
    original = Task.call
    kept: dict[Any, Any] = {}

    def call(task: Task, blocks: Any, here: Any, outs: Any) -> Any:
        """Return the results of an earlier call."""
        results = original(task, blocks, here, outs)
        return kept.setdefault((here.rank, results[0].shape), results)

    return _replaced(Task, "call", call)


def _dropped_remainder() -> AbstractContextManager[None]:
    original = Pipeline._slabs

    def whole_slabs_only(pipeline: Pipeline, first: int, last: int) -> Iterator[tuple[int, int]]:
        slabs = list(original(pipeline, first, last))
        return iter([(a, b) for a, b in slabs if b - a == slabs[0][1] - slabs[0][0]])

    return _replaced(Pipeline, "_slabs", whole_slabs_only)


def _unwritten_block() -> AbstractContextManager[None]:
    original = Store.put

    def put(store: Store, region: Region, result: Any) -> None:
        if store.world.rank != store.world.size - 1:
            original(store, region, result)

    return _replaced(Store, "put", put)


def _unfinished_kernel() -> AbstractContextManager[None]:
    original = Task.call

    def call(task: Task, blocks: Any, here: Any, outs: Any) -> Any:
        """Leave the last row as the result's memory was before."""
        results = original(task, blocks, here, outs)
        for result in results:
            if result.shape[0] > 1:
                result[-1] = np.nan if result.dtype.kind == "f" else 0xA5
        return results

    return _replaced(Task, "call", call)


def _block_used_twice() -> AbstractContextManager[None]:
    original = Pipeline.prepare

    def prepare(mine: Pipeline, arrays: Any) -> Task:
        """Call the function on a row first, in the blocks that are computed afterwards."""
        task, region = original(mine, arrays), mine.region
        if region.size:
            outs = poisoned(mine.world.backend, task.filled(region.rows(0, 1).shape))
            window = [array.block[: 1 + sum(mine.task.widths[0])] for array in arrays]
            pipeline.call_rows(mine.world, task, region, window, (0, 1), outs)
        return task

    return _replaced(Pipeline, "prepare", prepare)


def _shared_rows_changed() -> AbstractContextManager[None]:
    def windows(blocks: Any, ranges: Any, halo: int) -> Iterator[tuple[tuple[int, int], Any]]:
        """Do not restore rows that two calls need after the first one."""
        return ((rows, [block[rows[0] : rows[1] + halo] for block in blocks]) for rows in ranges)

    return _replaced(pipeline, "windows", windows)


def _dropped_tile() -> AbstractContextManager[None]:
    original = Tiles._blocks

    def blocks(tiles: Tiles) -> Iterator[tuple[int, Any]]:
        found = original(tiles)
        last = tiles._stop - 1
        return (pair for pair in found if pair[0] != last or tiles.world.rank != tiles.world.size - 1)

    return _replaced(Tiles, "_blocks", blocks)


def _repeated_tile() -> AbstractContextManager[None]:
    original = NpySource.read

    def read(source: NpySource, region: Region, target: Any) -> None:
        """Read the first tile in place of every other one."""
        start = tuple(0 for _ in region.start)
        original(source, Region(start, region.shape), target)

    return _replaced(NpySource, "read", read)


@contextmanager
def _halo_of_the_step_before() -> Iterator[None]:
    messages, take = HaloPlan.messages, Stepper._step
    old: dict[HaloPlan, Any] = {}

    def step(stepper: Stepper, remaining: int, final: bool) -> None:
        for array in (stepper.arrays[place] for place in stepper.fed):
            plan = array.layout.filled
            old[plan] = messages(plan, array.interior.copy(), plan.sends)
        take(stepper, remaining, final)

    def send(plan: HaloPlan, own: Any, sent: Any) -> Any:
        return old.get(plan) or messages(plan, own, sent)

    with ExitStack() as both:
        both.enter_context(_replaced(Stepper, "_open_halos", lambda stepper: None))  # messages on GPUs too
        both.enter_context(_replaced(Stepper, "_step", step))
        both.enter_context(_replaced(HaloPlan, "messages", send))
        yield


def _buffers_not_swapped() -> AbstractContextManager[None]:
    original = Stepper._step

    def step(stepper: Stepper, remaining: int, final: bool) -> None:
        original(stepper, remaining, final)
        if not final:
            stepper.swap()

    return _replaced(Stepper, "_step", step)


def _one_step_too_many() -> AbstractContextManager[None]:
    original = Stepper._step

    def step(stepper: Stepper, remaining: int, final: bool) -> None:
        """Skip every other exchange: cells of other ranks stay as they were before the step."""
        due = remaining == 0 and not final and stepper._exchanging
        if not due or stepper.taken // stepper.steps_per_exchange % 2:
            original(stepper, remaining, final)
            return
        kept = stepper.overlap
        stepper._exchanging = stepper.overlap = False
        original(stepper, remaining, final)
        stepper._exchanging, stepper.overlap = True, kept
        for place in stepper.fed:
            plan, new, old = stepper.plans[place], stepper.arrays[place].block, stepper.spare[place].block
            for transfer in plan.receives:
                new[plan.inner][transfer.target] = old[plan.inner][transfer.target]

    return _replaced(Stepper, "_step", step)


def _wrong_feed() -> AbstractContextManager[None]:
    original = Stepper.__post_init__

    def crossed(stepper: Stepper) -> None:
        original(stepper)
        stepper.feeds.reverse()

    return _replaced(Stepper, "__post_init__", crossed)


MUTATIONS = (
    Mutation("halo skipped", "no message is sent; the halo keeps its old values", _halo_skipped),
    Mutation("missing synchronisation", "the block is used before its halo has arrived", _missing_wait),
    Mutation("swapped neighbours", "the cells of two neighbours are swapped", _swapped_neighbours),
    Mutation("missing corners", "diagonal neighbours send nothing", _missing_corners),
    Mutation("wrong boundary", "reflect instead of mirror, and the reverse", _wrong_boundary),
    Mutation("unflipped reflection", "mirrored cells arrive in forward order", _unflipped),
    Mutation("wrong offset, read", "blocks start one row late in the input", _wrong_read_offset),
    Mutation("wrong offset, write", "results are written one element early in the file", _wrong_write_offset),
    Mutation("wrong place", "the results of a block are written one row early", _misplaced_result),
    Mutation("stale buffer", "the result of an earlier call is returned again", _stale_result),
    Mutation("dropped remainder", "rows that do not fill a slab are skipped", _dropped_remainder),
    Mutation("unwritten block", "the last rank writes nothing", _unwritten_block),
    Mutation("unfinished kernel", "the last row of each result is not computed", _unfinished_kernel),
    Mutation(
        "block used twice", "a trial call changes a row before it is computed", _block_used_twice, "in place"
    ),
    Mutation(
        "shared rows changed", "a call changes rows that the next one needs", _shared_rows_changed, "in place"
    ),
    Mutation("halo of the step before", "a rank sends older cells", _halo_of_the_step_before, "steps"),
    Mutation(
        "buffers not swapped", "the second step reads the first one's input", _buffers_not_swapped, "steps"
    ),
    Mutation(
        "one step too many on a halo", "K + 1 steps are taken on the halo of K", _one_step_too_many, "steps"
    ),
    Mutation("wrong feed", "two outputs feed each other's inputs", _wrong_feed, "steps"),
    Mutation("dropped tile", "a reduction skips its last tile", _dropped_tile, "reduce"),
    Mutation("repeated tile", "a reduction reads the same tile repeatedly", _repeated_tile, "reduce"),
)
