"""The clocks of measurements: the host's, pairs of events on one stream, and gated events on several.

nccl-tests' loop, which counts host time around a whole sequence of collectives, is in
`jobs.bench.collectives.timing`: its order of calls is what it reproduces.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.measure.gate import MOST, Gate
from meshrun import World
from runner.comm.collectives.api import Collectives
from runner.device.raw.memory import Box

SHORTEST_SAMPLE = 200e-6  # seconds, many times the resolution of every clock
FEWEST_CALLS = 16  # on a GPU in a sample
Work = Callable[[], object]


def nothing() -> None:
    pass


# The host's clock.


def host_seconds(work: Work, calls: int = 1, wait: Work = nothing) -> float:
    """Seconds from the first of `calls` calls of `work` until `wait` returns, over `calls`."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - begin) / calls


def sampled_host_seconds(work: Work, prepare: Work = nothing) -> float:
    """Seconds of one call of `work`, the mean of as many as take SHORTEST_SAMPLE.

    prepare: before each of them, not timed.
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
    """The events before and after what `work` queues on the stream; to be read when the stream is done."""
    begin = box.mark(stream)
    work()
    return begin, box.mark(stream)


def event_seconds(box: Box, stream: Any, work: Work, calls: int) -> float:
    """Seconds that what `work` queues takes on the stream, the mean of `calls` calls; waits for it."""

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
    work: Callable[[int], object],
    median: Callable[[Callable[[], float]], float],
) -> float:
    """Seconds that what `work` queues takes on a stream of GPU `gpu`, one after another; median of samples.

    The work of a sample waits behind a gate until all of it is queued, so that the time of the calls does not
    count. work: called with 0, 1, 2, ... within a sample; queues one operation and waits for nothing. median:
    calls a sample as often as the caller wants and returns the median of its seconds.
    """
    gate = Gate(box, gpu)

    def sample(calls: int) -> float:
        with gate.closed():
            gate.hold(gpu, stream)
            begin = box.mark(stream)
            for call in range(calls):
                work(call)
            end = box.mark(stream)
        box.synchronize(stream)
        gate.check()
        return box.elapsed(begin, end) / calls

    try:
        gate.hold(gpu, stream)  # it is open: what is launched below is loaded now
        work(0)
        box.synchronize(stream)
        once = sample(1)
        calls = min(max(FEWEST_CALLS, math.ceil(SHORTEST_SAMPLE / once)), MOST) if once > 0 else MOST
        return median(lambda: sample(calls))
    finally:
        box.synchronize(stream)
        gate.release()


@dataclass(frozen=True)
class ConcurrentEvents:
    """Events of streams that begin together: each stream's begin and end, and the end of all.

    To be read when the streams are done.
    """

    box: Box
    begins: Sequence[Any]
    ends: Sequence[Any]
    last: Any

    def seconds(self) -> tuple[float, ...]:
        """Of each stream."""
        return tuple(self.box.elapsed(begin, end) for begin, end in zip(self.begins, self.ends, strict=True))

    def total(self) -> float:
        """Seconds from the first begin until the last stream ended."""
        return self.box.elapsed(self.begins[0], self.last)


def queue_concurrently(box: Box, streams: Sequence[Any], work: Sequence[Work]) -> ConcurrentEvents:
    """Queue one piece of work on each stream; all begin when the first stream does.

    Hold the streams behind a gate before, so that all work is queued when they begin.
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
    """Seconds of what `work` issues to the stream of this rank's backend, the mean of `calls` calls.

    On a CPU the backend's marks are the host's clock.
    """
    backend = world.backend
    if backend.asynchronous:
        work()  # the others are queued when this is done: the time to launch them does not count
    begin = backend.mark()
    for _ in range(calls):
        work()
    end = backend.mark()
    backend.synchronize()
    return backend.elapsed(begin, end) / calls


def collective_timer(
    group: Collectives, signal: Work, work: Work, after: Work | None = None
) -> Callable[[int], float]:
    """A function of a number of calls: seconds of one call of `work` on this rank's device.

    It issues signal, then `work` that many times between two events, then `after`. After the signal the
    partners are in step, and on a GPU the work is in the queue already: neither a rank that left the barrier
    late nor the time to launch a kernel counts.
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
