"""Streaming loop of one rank: the main thread computes, I/O threads read and write several chunks at once.

Only the main thread calls MPI and issues device work. Chunks are computed in the order in which their
reads complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Literal

from meshrun.runner.maps.streamed.endpoints import Engine, Step
from meshrun.runner.report.spans import Spans

LOOK = 0.01  # seconds between two calls of `idle` while the main thread waits

Event = tuple[Any, Literal["read", "written"]] | BaseException


def stream(
    engine: Engine,
    spans: Spans,
    numbers: Iterable[int],
    *,
    depth: int,
    threads: int,
    finished: Callable[[int], None],
    idle: Callable[[], None],
) -> None:
    """Process the chunks of `numbers`.

    spans: records the time of each stage. depth: chunks in flight. threads: I/O threads. finished: called
    in this thread with the number of each chunk that has been handed to the file system. idle: called in
    this thread every `LOOK` seconds while it waits.

    Raises the first failure of any thread after all threads have stopped.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    rest = iter(numbers)
    free = engine.slots(depth)

    def report_failure(act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except BaseException as failure:  # the pool would drop it silently
            events.put(failure)

    # In addition, a thread for each chunk that may wait for the device.
    pool = ThreadPoolExecutor(threads + depth, "stream", initializer=report_failure, initargs=(engine.join,))

    def after(steps: list[Step], event: Event, number: int) -> None:
        """Submit `steps`; the last one to finish records the spans of its stages and puts `event`."""
        lock, left = threading.Lock(), len(steps)
        times: dict[Any, tuple[float, float, int]] = {}

        def do(step: Step) -> None:
            nonlocal left
            begin = time.perf_counter()
            with spans.recorded(step.stage, number, step.moved):
                step.do()
            end = time.perf_counter()
            with lock:
                left -= 1
                first, last, moved = times.get(step.stage, (begin, end, 0))
                times[step.stage] = min(first, begin), max(last, end), moved + step.moved
                if left:
                    return
            for stage, (first, last, moved) in times.items():
                spans.add(stage, number, first, last, moved)
            events.put(event)

        for step in steps:
            pool.submit(report_failure, do, step)

    def wait_and_write(slot: Any) -> None:
        after(engine.finish(slot), (slot, "written"), slot.number)

    busy = 0
    try:
        while True:
            while free and (number := next(rest, None)) is not None:
                slot = free.pop()
                busy += 1
                after(engine.begin(slot, number), (slot, "read"), number)
            if not busy:
                return
            slot, what = _next(events, idle)
            if what == "read":
                engine.compute(slot, idle)
                pool.submit(report_failure, wait_and_write, slot)
            else:
                engine.release(slot)
                finished(slot.number)
                free.append(slot)
                busy -= 1
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _next(events: SimpleQueue[Event], idle: Callable[[], None]) -> tuple[Any, str]:
    while True:
        try:
            event = events.get(timeout=LOOK)
        except Empty:
            idle()
            continue
        if isinstance(event, BaseException):
            raise event
        return event
