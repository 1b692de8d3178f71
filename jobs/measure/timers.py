"""Time work with the host's clock, pairs of events on one stream, or gated events on several.

nccl-tests' loop, which counts host time around a whole sequence of collectives, is in
`jobs.bench.collectives.timing`: its order of calls is what it reproduces.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshrun import World
from meshrun.jobs.measure.gate import MAX_QUEUED, Gate
from meshrun.runner.comm.collectives.api import Collectives

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

SHORTEST_SAMPLE = 200e-6  # seconds, many times the resolution of every clock
FEWEST_CALLS = 16  # on a GPU in a sample
Work = Callable[[], object]


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside, which would be timed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def nothing() -> None:
    pass


# The host's clock.


def host_seconds(work: Work, calls: int = 1, wait: Work = nothing) -> float:
    """Return mean seconds per call of `work`, from the first of `calls` calls until `wait` returns."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - begin) / calls


def sampled_host_seconds(work: Work, prepare: Work = nothing) -> float:
    """Return mean seconds per call of `work`, over as many calls as take SHORTEST_SAMPLE.

    prepare: called before each of them, not timed.
    """
    spent, calls = 0.0, 0
    while spent < SHORTEST_SAMPLE:
        prepare()
        begin = time.perf_counter()
        work()
        spent += time.perf_counter() - begin
        calls += 1
    return spent / calls


# Pairs of events.


def event_pair(box: Box, stream: Any, work: Work) -> tuple[Any, Any]:
    """Record events before and after what `work` queues; read them when the stream is done."""
    begin = box.mark(stream)
    work()
    return begin, box.mark(stream)


def event_seconds(box: Box, stream: Any, work: Work, calls: int) -> float:
    """Return mean seconds that the operations of one call of `work` take on the stream; waits for them."""

    def queue() -> None:
        for _ in range(calls):
            work()

    begin, end = event_pair(box, stream, queue)
    box.synchronize(stream)
    return box.elapsed(begin, end) / calls


def gated_event_seconds(
    box: Box,
    gpu: int,
    stream: Any,
    work: Work,
    median: Callable[[Callable[[], float]], float],
) -> float:
    """Return median seconds of an operation that `work` queues on a stream of GPU `gpu`.

    The operations of a sample wait behind a gate until all are queued, so that the calls are not timed. work:
    queues one operation and does not wait. median: calls its argument, which measures a sample in seconds, as
    often as the caller wants and returns the median.
    """
    gate = Gate(box, gpu)

    def sample(calls: int) -> float:
        with gate.closed():
            gate.hold(gpu, stream)
            begin = box.mark(stream)
            for _ in range(calls):
                work()
            end = box.mark(stream)
        box.synchronize(stream)
        gate.check()
        return box.elapsed(begin, end) / calls

    try:
        gate.hold(gpu, stream)  # the gate is open: load all kernels now
        work()
        box.synchronize(stream)
        once = sample(1)
        wanted = max(FEWEST_CALLS, math.ceil(SHORTEST_SAMPLE / once)) if once > 0 else MAX_QUEUED
        calls = min(wanted, MAX_QUEUED)
        return median(lambda: sample(calls))
    finally:
        box.synchronize(stream)
        gate.release()


@dataclass(frozen=True)
class ConcurrentEvents:
    """Events of streams that begin together: each stream's begin and end, and the end of all.

    Read them when the streams are done.
    """

    box: Box
    begins: Sequence[Any]
    ends: Sequence[Any]
    last: Any

    def seconds(self) -> tuple[float, ...]:
        """Return the seconds of each stream."""
        return tuple(self.box.elapsed(begin, end) for begin, end in zip(self.begins, self.ends, strict=True))

    def total(self) -> float:
        """Return the seconds from the first begin until the last stream ended."""
        return self.box.elapsed(self.begins[0], self.last)


def queue_concurrently(box: Box, streams: Sequence[Any], work: Sequence[Work]) -> ConcurrentEvents:
    """Queue one piece of work on each stream; all begin when the first stream does.

    Hold the streams behind a gate first, so that all work is queued when they begin.
    """
    begins = [box.mark(streams[0])]
    for stream in streams[1:]:
        box.wait(stream, begins[0])
        begins.append(box.mark(stream))
    ends = []
    for stream, queue in zip(streams, work, strict=True):
        queue()
        ends.append(box.mark(stream))
    for end in ends[1:]:
        box.wait(streams[0], end)
    return ConcurrentEvents(box, begins, ends, box.mark(streams[0]))


def backend_seconds(world: World, work: Work, calls: int) -> float:
    """Return mean seconds per call of what `work` issues to the stream of this rank's backend.

    On a CPU the backend's marks are the host's clock.
    """
    backend = world.backend
    if backend.asynchronous:
        work()  # the other calls are queued before this one ends, so that launches are not timed
    begin = backend.mark()
    for _ in range(calls):
        work()
    end = backend.mark()
    backend.synchronize()
    return backend.elapsed(begin, end) / calls


def collective_timer(
    group: Collectives, signal: Work, work: Work, after: Work | None = None
) -> Callable[[int], float]:
    """Return a function of a number of calls that measures seconds per call of `work` on this rank's device.

    It issues `signal`, then `work` that many times between two events, then `after`. The signal synchronises
    the partners, and on a GPU the work is queued by then: neither a rank that left the barrier late nor the
    launch of a kernel is timed.
    """
    begin, end = group.marks(2)
    packed: dict[int, Sequence[Work]] = {}

    def seconds(calls: int) -> float:
        if calls not in packed:
            plan = [signal, begin.record, *[work] * calls, end.record]
            packed[calls] = group.packed(plan if after is None else [*plan, after])
        group.issue(packed[calls])
        group.wait()
        return group.elapsed(begin, end) / calls

    return seconds
