"""A program's allocations and releases in an order of chance, and what a pool makes of them."""

from __future__ import annotations

import bisect
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner import Pool

LEAST = 1 << 10  # bytes of the smallest allocation
LARGEST_SHARE = 8  # the largest is this part of what is live at most


@dataclass(frozen=True)
class Step:
    """An allocation of `nbytes`, or its release; name: which."""

    name: int
    nbytes: int
    release: bool = False


@dataclass(frozen=True)
class Moment:
    """Bytes after a step: asked for and not released; held by the pool; in use as the device says it."""

    live: int
    reserved: int
    used: int

    @property
    def fragmentation(self) -> float:
        """The part of what the pool holds that nobody uses."""
        return 1 - self.live / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class Account:
    """moments: after each step. left: bytes that the pool holds when all is released; trimmed: and when it
    has been told to give back. overlaps: sentences, where it gave memory out twice."""

    moments: tuple[Moment, ...]
    left: int
    trimmed: int
    overlaps: tuple[str, ...]

    @property
    def live(self) -> int:
        """The most that was asked for at a time."""
        return max(moment.live for moment in self.moments)

    @property
    def peak(self) -> Moment:
        """When the pool first held the most."""
        return max(self.moments, key=lambda moment: moment.reserved)


def workload(most: int, count: int, seed: int = 0) -> list[Step]:
    """`count` allocations and their releases, never more than `most` bytes at a time.

    Sizes are log-uniform from LEAST to `most` / LARGEST_SHARE (small ones are as frequent in each doubling as
    large ones); who is released is left to chance, and that is somebody each time when there is no room, and
    now and then when there is. At the end all is released.
    """
    chance, steps = random.Random(seed), list[Step]()
    live: list[Step] = []
    held = 0
    largest = max(most // LARGEST_SHARE, 1)
    least = min(LEAST, largest)

    def release() -> None:
        nonlocal held
        step = live.pop(chance.randrange(len(live)))
        held -= step.nbytes
        steps.append(Step(step.name, step.nbytes, release=True))

    for name in range(count):
        nbytes = min(round(math.exp(chance.uniform(math.log(least), math.log(largest)))), largest)
        if live and chance.random() < 0.3:
            release()
        while held + nbytes > most:
            release()
        live.append(Step(name, nbytes))
        steps.append(live[-1])
        held += nbytes
    while live:
        release()
    return steps


def play(pool: Pool, steps: Sequence[Step], *, settle: bool) -> float:
    """Seconds that the steps take; settle: waiting after each until it is done."""
    handles: dict[int, Any] = {}
    begin = time.perf_counter()
    try:
        for step in steps:
            if step.release:
                pool.release(handles.pop(step.name))
                if settle:
                    pool.settle()
            else:
                handles[step.name] = pool.allocate(step.nbytes)
                if settle:
                    pool.settle(handles[step.name])
        pool.settle()
        return time.perf_counter() - begin
    finally:
        for handle in handles.values():
            pool.release(handle)


def account(pool: Pool, steps: Sequence[Step], used: Callable[[], int], *, settle: bool) -> Account:
    """The same steps, looked at after each. used: bytes in use as the device, or the system, says it."""
    pool.trim()
    handles: dict[int, Any] = {}
    moments, overlaps = list[Moment](), list[str]()
    places = list[tuple[int, int]]()  # (begin, end) of what is live, in order
    live = 0
    for step in steps:
        if step.release:
            handle = handles.pop(step.name)
            places.remove((pool.address(handle), pool.address(handle) + step.nbytes))
            pool.release(handle)
            del handle
            live -= step.nbytes
        else:
            handles[step.name] = pool.allocate(step.nbytes)
            begin = pool.address(handles[step.name])
            if settle:
                pool.settle(handles[step.name])
            overlaps += _overlap(places, (begin, begin + step.nbytes), pool.label)
            bisect.insort(places, (begin, begin + step.nbytes))
            live += step.nbytes
        moments.append(Moment(live, pool.reserved(), used()))
    pool.settle()
    left = pool.reserved()
    pool.trim()
    return Account(tuple(moments), left, pool.reserved(), tuple(overlaps))


def _overlap(places: Sequence[tuple[int, int]], new: tuple[int, int], label: str) -> list[str]:
    """What a new allocation shares with one that is live: they are apart, so that only neighbours can."""
    at = bisect.bisect(places, new)
    return [
        f"{label}: {new[1] - new[0]:,} bytes at 0x{new[0]:x} overlap {end - begin:,} in use at 0x{begin:x}"
        for begin, end in places[max(at - 1, 0) : at + 1]
        if begin < new[1] and new[0] < end
    ]
