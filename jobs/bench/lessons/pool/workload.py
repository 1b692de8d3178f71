"""A random sequence of allocations and releases, and the memory that a pool holds during it."""

from __future__ import annotations

import bisect
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.device.raw.allocators import Pool

LEAST = 1 << 10  # bytes of the smallest allocation
LARGEST_SHARE = 8  # the largest allocation is an eighth of the limit


@dataclass(frozen=True)
class AllocationStep:
    """An allocation of `nbytes`, or its release. name: number of the allocation."""

    name: int
    nbytes: int
    release: bool = False


@dataclass(frozen=True)
class Moment:
    """Bytes after a step. live: allocated. reserved: held by the pool. used: reported by the device."""

    live: int
    reserved: int
    used: int

    @property
    def fragmentation(self) -> float:
        """The unused part of what the pool holds."""
        return 1 - self.live / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class Account:
    """moments: after each step. left: bytes that the pool holds when all is released; trimmed: after a call
    of `trim`. overlaps: a sentence for each allocation of memory that was in use."""

    moments: tuple[Moment, ...]
    left: int
    trimmed: int
    overlaps: tuple[str, ...]

    @property
    def live(self) -> int:
        """Most bytes allocated at a time."""
        return max(moment.live for moment in self.moments)

    @property
    def peak(self) -> Moment:
        """The moment when the pool first held the most."""
        return max(self.moments, key=lambda moment: moment.reserved)


def workload(most: int, count: int, seed: int = 0) -> list[AllocationStep]:
    """Generate `count` allocations and their releases, with at most `most` bytes allocated at a time.

    Sizes are log-uniform from LEAST to `most` / LARGEST_SHARE. Releases are of random allocations: as many as
    needed when there is no room, otherwise with probability 0.3. At the end everything is released.
    """
    generator, steps = random.Random(seed), list[AllocationStep]()
    live: list[AllocationStep] = []
    held = 0
    largest = max(most // LARGEST_SHARE, 1)
    least = min(LEAST, largest)

    def release() -> None:
        nonlocal held
        step = live.pop(generator.randrange(len(live)))
        held -= step.nbytes
        steps.append(AllocationStep(step.name, step.nbytes, release=True))

    for name in range(count):
        nbytes = min(round(math.exp(generator.uniform(math.log(least), math.log(largest)))), largest)
        if live and generator.random() < 0.3:
            release()
        while held + nbytes > most:
            release()
        live.append(AllocationStep(name, nbytes))
        steps.append(live[-1])
        held += nbytes
    while live:
        release()
    return steps


def play(pool: Pool, steps: Sequence[AllocationStep], *, settle: bool) -> float:
    """Run all steps; returns seconds. settle: wait after each until it is done."""
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


def account(pool: Pool, steps: Sequence[AllocationStep], used: Callable[[], int], *, settle: bool) -> Account:
    """Run all steps and record memory after each. used: returns bytes in use on the device or system."""
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
    """Report overlaps of a new allocation with live ones; only its neighbours by address can overlap."""
    at = bisect.bisect(places, new)
    return [
        f"{label}: {new[1] - new[0]:,} bytes at 0x{new[0]:x} overlap {end - begin:,} in use at 0x{begin:x}"
        for begin, end in places[max(at - 1, 0) : at + 1]
        if begin < new[1] and new[0] < end
    ]
