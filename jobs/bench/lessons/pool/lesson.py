"""Allocation from the driver and from pools: time by size, then of a whole program, and what it holds."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import runner
from jobs.bench.lessons.pool.explain import Measured, Passes, Times, lesson
from jobs.bench.lessons.pool.host_pools import FreeLists, Malloc
from jobs.bench.lessons.pool.workload import LEAST, Step, account, play, workload
from jobs.bench.lessons.protocol import Lesson, Stage
from jobs.measure.sizes import size_name
from runner import Pool

SUMMARY = "Allocation from the driver and from pools: time, peak, fragmentation."
RANKS = "one"
CPU = True
ALLOCATIONS = 300  # of the workload
PASSES = 3  # samples of it at most: on a host, where pages are touched, each takes seconds
REPEATED, REPEATED_BYTES = 20, 1 << 30  # allocations of a size after the first: as many, and at least one


def measure(stage: Stage) -> Lesson:
    """All pools. No more than a quarter of what is free is asked for at a time, a pool holds at most half.

    Raises UserError where a pool gives no memory.
    """
    free = stage.world.backend.free_memory()
    most = max(1, min(stage.maxbytes, free // 4))
    with opened(stage, free // 2) as pools:
        used = _used(stage)
        steps = workload(most, ALLOCATIONS)
        found = Measured(
            device=device(stage),
            on_gpu=stage.box is not None,
            asked=stage.maxbytes,
            most=most,
            pools=tuple(pool.label for pool in pools),
            sizes=tuple(sizes(most)),
            allocations=ALLOCATIONS,
            watch=bool(stage.options.get("watch")),
        )
        for pool in pools:
            cycle(pool, LEAST, settled=True)  # what the library does once
            for nbytes in found.sizes:
                stage.progress(f"{pool.label}, {size_name(nbytes)}")
                found.times[pool.label, nbytes] = times(pool, nbytes, stage.samples)
            stage.progress(f"{pool.label}, {ALLOCATIONS} allocations")
            found.passes[pool.label] = passes(pool, steps, min(stage.samples, PASSES))
            # On a host only memory that is touched is really taken.
            found.accounts[pool.label] = account(pool, steps, used, settle=not found.on_gpu)
    if stage.check:
        found.wrong.extend(line for account in found.accounts.values() for line in account.overlaps)
    return lesson(found)


@contextmanager
def opened(stage: Stage, most: int) -> Iterator[Sequence[Pool]]:
    """The pools of this rank's device, the driver's or the system's own calls first; closed at the end."""
    with ExitStack() as stack:
        if stage.box is None:
            pools: Sequence[Pool] = (Malloc(), FreeLists(most))
        else:
            stack.enter_context(stage.box.on(stage.gpu))
            pools = runner.open_pools(most)
        for pool in pools:
            stack.enter_context(closing(pool))
        yield pools


def sizes(most: int) -> list[int]:
    """LEAST, times 4, ... up to `most`."""
    found = [min(LEAST, most)]
    while found[-1] * 4 <= most:
        found.append(found[-1] * 4)
    return found


def times(pool: Pool, nbytes: int, samples: int) -> Times:
    """Medians: of allocations when the pool holds nothing, and of those that follow."""
    firsts, agains, releases = ({False: list[float](), True: list[float]()} for _ in range(3))
    for settled in (False, True):
        for _ in range(samples):
            pool.settle()
            pool.trim()
            firsts[settled].append(cycle(pool, nbytes, settled)[0])
            for _ in range(max(1, min(REPEATED, REPEATED_BYTES // nbytes))):
                taken, given = cycle(pool, nbytes, settled)
                agains[settled].append(taken)
                releases[settled].append(given)
    return Times(*(statistics.median(kind[s]) for kind in (firsts, agains, releases) for s in (False, True)))


def cycle(pool: Pool, nbytes: int, settled: bool) -> tuple[float, float]:
    """Seconds of an allocation and of its release; settled: each until it is done."""
    begin = time.perf_counter()
    handle = pool.allocate(nbytes)
    if settled:
        pool.settle(handle)
    allocated = time.perf_counter()
    pool.release(handle)
    del handle  # on a host, this gives it back
    if settled:
        pool.settle()
    return allocated - begin, time.perf_counter() - allocated


def passes(pool: Pool, steps: Sequence[Step], samples: int) -> Passes:
    """Medians of the workload's times: when the pool holds nothing, and with what it has kept since."""
    found = list[tuple[float, float, float]]()
    for _ in range(samples):
        pool.settle()
        pool.trim()
        settled = play(pool, steps, settle=True), play(pool, steps, settle=True)
        found.append((*settled, play(pool, steps, settle=False)))
    return Passes(*map(statistics.median, zip(*found, strict=True)))


def device(stage: Stage) -> str:
    """What was measured."""
    if stage.box is None:
        return stage.world.here.device.name
    return f"GPU {stage.gpu}, {stage.box.gpus[stage.gpu].name}"


def _used(stage: Stage) -> Callable[[], int]:
    """Bytes in use: of the GPU, by whomever; on a host, this process's pages."""
    if stage.box is None:
        statm, page = Path("/proc/self/statm"), os.sysconf("SC_PAGE_SIZE")
        return lambda: int(statm.read_text().split()[1]) * page
    box, gpu = stage.box, stage.box.gpus[stage.gpu]
    return lambda: gpu.memory - box.free_memory(gpu.index)
