"""The clock: all timed calls of one size and placement, issued and waited for as nccl-tests does.

nccl-tests 2.19.6, src/common.cu, BenchTime: one call that is not timed, a barrier, then all calls between two
readings of the host's clock. Buffers rotate: call i works i times the message's size further into
the buffers, so that small messages do not stay in a cache.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobs.bench.collectives.session import Bench, Point
from runner import Call, Place


@dataclass(frozen=True)
class Timed:
    """One rank's own clock: seconds an operation, until it was done and until it was queued; for single
    iterations (-I); and when each was begun, on the common clock."""

    seconds: float
    cpu_seconds: float
    iterations: tuple[float, ...] = ()
    begun: tuple[float, ...] = ()


def bound_call(bench: Bench, point: Point, iteration: int) -> Call:
    """Call number `iteration`, with its place in the rotation."""
    size, rank = point.datatype.itemsize, bench.group.rank
    turns = bench.settings.maxbytes // point.bytes if point.bytes else 1
    start = bench.settings.unalign * size + point.bytes * (iteration % turns)
    send = Place(bench.send, start)
    recv = Place(bench.recv, start)
    if point.in_place:
        send = Place(bench.recv, start + point.shape.send_step * rank * size)
        recv = Place(bench.recv, start + point.shape.recv_step * rank * size)
    return Call(
        bench.operation.name, send, recv, point.shape.count, point.datatype, point.reduction, point.root,
        point.in_place, point.shape.traffic,
    )  # fmt: skip


def clock(bench: Bench, point: Point) -> Timed:
    """All timed calls of one size and placement, on this rank's clock."""
    settings, group = bench.settings, bench.group
    inner = settings.agg_iters
    calls = [group.bind(bound_call(bench, point, i)) for i in range(settings.iters * inner)]
    steps = [calls[i : i + inner] for i in range(0, len(calls), inner)]
    if inner > 1:
        steps = [[group.grouped(step)] for step in steps]
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would be timed
    try:
        if settings.cudagraph:
            return _clock_graph(bench, calls[:1], steps)
        if settings.blocking:
            return _clock_blocking(bench, calls[:1], steps)
        return _clock_queued(bench, calls[:1], steps)
    finally:
        if collecting:
            gc.enable()
        bench.trail.done()


def _line_up(bench: Bench, first: Sequence[Any]) -> None:
    """The call that is not timed, and all ranks here at once, with nothing left to do but the timed calls.

    What a rank still had to prepare, the others would wait for in their first call; and what lies between
    the two calls lets caches and the device go cold.
    """
    bench.trail.before("in the call before the timed ones")
    bench.group.issue(first)
    bench.group.wait()
    bench.trail.before("at the barrier before the timed calls")
    bench.everyone.barrier()
    bench.trail.enter(1)


def _clock_queued(bench: Bench, first: Sequence[Any], steps: Sequence[Sequence[Any]]) -> Timed:
    """All calls issued, then waited for (-z 0)."""
    settings, group = bench.settings, bench.group
    count = len(steps) * settings.agg_iters
    marks = group.marks(len(steps) + 1) if settings.per_iter_timing or bench.watched else []
    begun: list[float] = []

    def stamp() -> None:
        begun.append(time.perf_counter())

    plan: list[Any] = []
    for number, step in enumerate(steps):
        if bench.watched and not group.asynchronous:
            plan.append(partial(bench.trail.enter, number + 1))
        if bench.detail:
            plan.append(stamp)
        if marks:
            plan.append(marks[number].record)
        plan += step
    if marks:
        plan.append(marks[-1].record)
    issued, follower = group.packed(plan), _follower(bench, marks) if bench.watched else None
    _line_up(bench, first)
    start = time.perf_counter()
    group.issue(issued)
    queued = time.perf_counter() - start
    group.wait(follower)
    seconds = time.perf_counter() - start
    singles: tuple[float, ...] = ()
    if settings.per_iter_timing:
        pairs = itertools.pairwise(marks)
        singles = tuple(group.elapsed(before, after) / settings.agg_iters for before, after in pairs)
    return Timed(seconds / count, queued / count, singles, tuple(at - bench.offset for at in begun))


def _follower(bench: Bench, marks: Sequence[Any]) -> Any:
    """Tells the watchdog which iteration the device is in, while the host waits."""

    reached = 0

    def follow() -> None:
        nonlocal reached
        done = sum(1 for _ in itertools.takewhile(bench.group.passed, marks))
        if done > reached:
            reached = done
            bench.trail.enter(done)

    return follow


def _clock_blocking(bench: Bench, first: Sequence[Any], steps: Sequence[Sequence[Any]]) -> Timed:
    """Every call waited for: -z 1 with a barrier after it, -z 2 without, -z 3 with one that is not timed."""
    settings, group, everyone = bench.settings, bench.group, bench.everyone
    count = len(steps) * settings.agg_iters
    # An iteration lasts until the next begins, but with -z 3 has an end of its own.
    apart = 2 if settings.blocking == 3 else 1
    marks = group.marks(apart * len(steps) + 1) if settings.per_iter_timing else []
    begun: list[float] = []
    spent = 0.0
    _line_up(bench, first)
    start = time.perf_counter()
    for number, step in enumerate(steps):
        bench.trail.enter(number + 1)
        entered = time.perf_counter()
        begun.append(entered)
        if marks:
            marks[apart * number].record()
        group.issue(step)
        group.wait()
        if settings.blocking == 3 and marks:
            marks[apart * number + 1].record()
        spent += time.perf_counter() - entered
        if settings.blocking in (1, 3):
            everyone.barrier()
    if marks and settings.blocking != 3:
        marks[-1].record()
    seconds = spent if settings.blocking == 3 else time.perf_counter() - start
    singles: tuple[float, ...] = ()
    if marks:
        group.wait()
        pairs = [(marks[apart * number], marks[apart * number + 1]) for number in range(len(steps))]
        singles = tuple(group.elapsed(before, after) / settings.agg_iters for before, after in pairs)
    stamps = tuple(at - bench.offset for at in begun) if bench.detail else ()
    return Timed(seconds / count, seconds / count, singles, stamps)


def _clock_graph(bench: Bench, first: Sequence[Any], steps: Sequence[Sequence[Any]]) -> Timed:
    """All calls captured into one graph, which is launched -G times."""
    settings, group = bench.settings, bench.group
    launches = settings.cudagraph
    count = len(steps) * settings.agg_iters * launches
    _line_up(bench, first)
    plan = [group.captured([call for step in steps for call in step])] * launches
    bench.trail.before("at the barrier before the graph")
    group.rehearse()  # recording has made caches cold
    bench.everyone.barrier()
    bench.trail.enter(1)
    start = time.perf_counter()
    group.issue(plan)
    queued = time.perf_counter() - start
    group.wait()
    seconds = time.perf_counter() - start
    return Timed(seconds / count, queued / count)
