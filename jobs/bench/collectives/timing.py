"""Time calls with nccl-tests' loop: issue and wait for all calls of one size and placement as it does.

nccl-tests 2.19.6, src/common.cu, BenchTime: one untimed call, a barrier, then all calls between two readings
of the host's clock. Buffers rotate: call i starts i times the message size further into the buffers, so that
small messages do not stay in a cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshrun.jobs.bench.collectives.session import STEADY_BYTES, STEADY_SECONDS, Bench, Point
from meshrun.jobs.measure.timers import uncollected
from meshrun.runner.comm.collectives.api import Call, Pointer

STEADY_CALLS = 20  # untimed calls at once


@dataclass(frozen=True)
class CallTimes:
    """Times on one rank, in seconds.

    seconds, cpu_seconds: of one operation, until done and until queued. iterations: of single
    iterations (-I). begun: when each iteration began, on the common clock.
    """

    seconds: float
    cpu_seconds: float
    iterations: tuple[float, ...] = ()
    begun: tuple[float, ...] = ()


def places(bench: Bench, point: Point) -> int:
    """Return how many calls in succession have a place of their own in the rotating buffers."""
    return bench.settings.maxbytes // point.bytes if point.bytes else 1


def start_of(bench: Bench, point: Point, iteration: int) -> int:
    """Return where the place of call number `iteration` begins in both buffers, in bytes."""
    place = iteration % places(bench, point)
    return bench.settings.unalign * point.datatype.itemsize + point.bytes * place


def bound_call(bench: Bench, point: Point, iteration: int) -> Call:
    """Make call number `iteration`, with its place in the rotating buffers."""
    size, rank = point.datatype.itemsize, bench.group.rank
    start = start_of(bench, point, iteration)
    send = Pointer(bench.send, start)
    recv = Pointer(bench.recv, start)
    if point.in_place:
        send = Pointer(bench.recv, start + point.counts.send_step * rank * size)
        recv = Pointer(bench.recv, start + point.counts.recv_step * rank * size)
    return Call(
        bench.operation.name, send, recv, point.counts.count, point.datatype, point.reduction, point.root,
        point.in_place, point.counts.traffic,
    )  # fmt: skip


def steps_of(bench: Bench, point: Point, count: int) -> list[list[Any]]:
    """Bind the calls of `count` iterations: -m of them, as one group."""
    inner, group = bench.settings.agg_iters, bench.group
    calls = [group.bind(bound_call(bench, point, i)) for i in range(count * inner)]
    steps = [calls[i : i + inner] for i in range(0, len(calls), inner)]
    return [[group.grouped(step)] for step in steps] if inner > 1 else steps


def clock(bench: Bench, point: Point) -> CallTimes:
    """Time all calls of one size and placement on this rank."""
    settings = bench.settings
    first = [bench.group.bind(bound_call(bench, point, 0))]
    synchronise = partial(_synchronise, bench, first, bench.steady and point.bytes <= STEADY_BYTES)
    steps = steps_of(bench, point, settings.iters)
    try:
        with uncollected():
            if settings.cudagraph:
                return _clock_graph(bench, synchronise, steps)
            if settings.blocking:
                return _clock_blocking(bench, synchronise, steps)
            return _clock_queued(bench, synchronise, steps)
    finally:
        bench.progress.done()


def keep_busy(bench: Bench, first: Sequence[Any]) -> None:
    """Repeat an untimed call for some time, equally often on every rank. Collective."""
    calls, seconds = [*first] * STEADY_CALLS, 0.0
    while seconds < STEADY_SECONDS:
        begin = time.perf_counter()
        bench.group.issue(calls)
        bench.group.wait()
        seconds += max(bench.everyone.allgather(time.perf_counter() - begin))


def _synchronise(bench: Bench, first: Sequence[Any], steady: bool) -> None:
    """Make the untimed call, then wait at a barrier; call it when only the timed calls are left to do.

    If a rank still had work to prepare, the others would wait for it in their first call; and work between
    the untimed and the first timed call would let caches and the device go cold.
    """
    bench.progress.before("in the call before the timed ones")
    if steady:
        keep_busy(bench, first)
    bench.group.issue(first)
    bench.group.wait()
    bench.progress.before("at the barrier before the timed calls")
    bench.everyone.barrier()
    bench.progress.enter(1)


def _clock_queued(bench: Bench, synchronise: Callable[[], None], steps: Sequence[Sequence[Any]]) -> CallTimes:
    """Issue all calls, then wait for them (-z 0)."""
    settings, group = bench.settings, bench.group
    count = len(steps) * settings.agg_iters
    marks = group.marks(len(steps) + 1) if settings.per_iter_timing or bench.watched else []
    begun: list[float] = []

    def stamp() -> None:
        begun.append(time.perf_counter())

    plan: list[Any] = []
    for number, step in enumerate(steps):
        if bench.watched and not group.asynchronous:
            plan.append(partial(bench.progress.enter, number + 1))
        if bench.detail:
            plan.append(stamp)
        if marks:
            plan.append(marks[number].record)
        plan += step
    if marks:
        plan.append(marks[-1].record)
    issued, follower = group.packed(plan), _follower(bench, marks) if bench.watched else None
    synchronise()
    start = time.perf_counter()
    group.issue(issued)
    queued = time.perf_counter() - start
    group.wait(follower)
    seconds = time.perf_counter() - start
    singles: tuple[float, ...] = ()
    if settings.per_iter_timing:
        pairs = itertools.pairwise(marks)
        singles = tuple(group.elapsed(before, after) / settings.agg_iters for before, after in pairs)
    return CallTimes(seconds / count, queued / count, singles, tuple(at - bench.offset for at in begun))


def _follower(bench: Bench, marks: Sequence[Any]) -> Any:
    """Return a function that reports the device's current iteration to the watchdog while the host waits."""
    reached = 0

    def follow() -> None:
        nonlocal reached
        done = sum(1 for _ in itertools.takewhile(bench.group.passed, marks))
        if done > reached:
            reached = done
            bench.progress.enter(done)

    return follow


def _clock_blocking(
    bench: Bench, synchronise: Callable[[], None], steps: Sequence[Sequence[Any]]
) -> CallTimes:
    """Wait for every call: with a barrier after it (-z 1), without (-z 2), with an untimed one (-z 3)."""
    settings, group, everyone = bench.settings, bench.group, bench.everyone
    count = len(steps) * settings.agg_iters
    # An iteration ends where the next one begins; with -z 3 it has an end of its own.
    apart = 2 if settings.blocking == 3 else 1
    marks = group.marks(apart * len(steps) + 1) if settings.per_iter_timing else []
    begun: list[float] = []
    spent = 0.0
    synchronise()
    start = time.perf_counter()
    for number, step in enumerate(steps):
        bench.progress.enter(number + 1)
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
    return CallTimes(seconds / count, seconds / count, singles, stamps)


def _clock_graph(bench: Bench, synchronise: Callable[[], None], steps: Sequence[Sequence[Any]]) -> CallTimes:
    """Capture all calls into one graph and launch it -G times."""
    settings, group = bench.settings, bench.group
    launches = settings.cudagraph
    count = len(steps) * settings.agg_iters * launches
    synchronise()
    plan = [group.captured([call for step in steps for call in step])] * launches
    bench.progress.before("at the barrier before the graph")
    group.warm_up()  # caches are cold after capturing
    bench.everyone.barrier()
    bench.progress.enter(1)
    start = time.perf_counter()
    group.issue(plan)
    queued = time.perf_counter() - start
    group.wait()
    seconds = time.perf_counter() - start
    return CallTimes(seconds / count, queued / count)
