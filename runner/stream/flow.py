"""One rank's chunks on their way: the main thread computes, threads read and write, several chunks at once.

The main thread alone calls MPI and issues work of the device. Chunks that are read are computed in the
order in which they got there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Literal

from runner.spans import Spans
from runner.stream.ends import Engine, Step

LOOK = 0.01  # seconds between two calls of `idle` while nothing happens

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
    """Do these chunks.

    spans: notes what is done when. depth: chunks under way. threads: that read and write. finished: called
    in this thread with the number of each chunk whose bytes the file system has. idle: called in this
    thread now and then.

    Raises the first failure of any thread, once all have stopped.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    dealt = iter(numbers)
    free = engine.slots(depth)

    def told(act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except BaseException as failure:  # of which the pool would say nothing
            events.put(failure)

    # Besides those that read and write, one for each chunk that waits for the device.
    pool = ThreadPoolExecutor(threads + depth, "stream", initializer=told, initargs=(engine.join,))

    def after(steps: list[Step], event: Event, number: int) -> None:
        """Have threads do `steps`; the last one to end notes when each stage was, and puts `event`."""
        lock, left = threading.Lock(), len(steps)
        times: dict[Any, tuple[float, float, int]] = {}

        def do(step: Step) -> None:
            nonlocal left
            begin = time.perf_counter()
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
            pool.submit(told, do, step)

    def wait_and_write(slot: Any) -> None:
        after(engine.finish(slot), (slot, "written"), slot.number)

    busy = 0
    try:
        while True:
            while free and (number := next(dealt, None)) is not None:
                slot = free.pop()
                busy += 1
                after(engine.begin(slot, number), (slot, "read"), number)
            if not busy:
                return
            slot, what = _next(events, idle)
            if what == "read":
                engine.compute(slot, idle)
                pool.submit(told, wait_and_write, slot)
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
