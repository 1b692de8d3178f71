"""Measure allocation from the driver and from pools: time by size, time of a workload, and memory held."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshrun.jobs.bench.lessons.pool.host_pools import FreeLists, Malloc
from meshrun.jobs.bench.lessons.pool.workload import LEAST, Account, AllocationStep, account, play, workload
from meshrun.jobs.bench.lessons.protocol import Chart, ChartLine, Context, Lesson, LessonTable
from meshrun.runner.device.raw.allocators import Pool, open_pools
from meshrun.runner.report.units import size_name

ALLOCATIONS = 300  # in the workload
PASSES = 3  # most samples of it: on a host, where pages are touched, each takes seconds
REPEATED, REPEATED_BYTES = 20, 1 << 30  # repeated allocations of a size: at most, and their bytes
MIB = 1 << 20
INTERVALS = 50  # of the workload in a row of digits
POINTS = 200  # of the workload in a chart
USUAL = 1 << 20  # bytes of the allocation to compare, if it was measured


@dataclass(frozen=True)
class AllocationTimes:
    """Seconds of one call; settled: until the device has completed it.

    first: an allocation from an empty pool. again: one of a size that was released just before.
    """

    first: float
    first_settled: float
    again: float
    again_settled: float
    release: float
    release_settled: float


@dataclass(frozen=True)
class PassTimes:
    """Seconds of the workload. first: from an empty pool. again, alone: repeated; alone is not settled."""

    first: float
    again: float
    alone: float


@dataclass(frozen=True)
class PoolResults:
    """requested, most: bytes allocated at a time, as requested and as used. pools: labels; the driver's or
    the system's own calls come first. allocations: in the workload. times: by pool and bytes. passes,
    accounts: by pool. mismatches: a sentence for each overlap of two allocations.
    """

    on_gpu: bool
    requested: int
    most: int
    pools: tuple[str, ...]
    sizes: tuple[int, ...]
    allocations: int
    times: dict[tuple[str, int], AllocationTimes] = field(default_factory=dict)
    passes: dict[str, PassTimes] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)


def measure(context: Context) -> Lesson:
    """Measure all pools. At most a quarter of free memory is allocated at a time; a pool holds at most half.

    Raises UserError if a pool gives no memory.
    """
    free = context.world.backend.free_memory()
    most = max(1, min(context.maxbytes, free // 4))
    with opened(context, free // 2) as pools:
        used = _used(context)
        steps = workload(most, ALLOCATIONS)
        found = PoolResults(
            on_gpu=context.box is not None,
            requested=context.maxbytes,
            most=most,
            pools=tuple(pool.label for pool in pools),
            sizes=tuple(sizes(most)),
            allocations=ALLOCATIONS,
        )
        for pool in pools:
            cycle(pool, LEAST, settled=True)  # the library initialises itself
            for nbytes in found.sizes:
                context.progress(f"{pool.label}, {size_name(nbytes)}")
                found.times[pool.label, nbytes] = call_times(pool, nbytes, context.samples)
            context.progress(f"{pool.label}, {ALLOCATIONS} allocations")
            found.passes[pool.label] = pass_times(pool, steps, min(context.samples, PASSES))
            # A host maps memory only when it is touched.
            found.accounts[pool.label] = account(pool, steps, used, settle=not found.on_gpu)
    if context.check:
        found.mismatches.extend(line for account in found.accounts.values() for line in account.overlaps)
    return _lesson(found, context.device_name, watch=bool(context.options.get("watch")))


@contextmanager
def opened(context: Context, most: int) -> Iterator[Sequence[Pool]]:
    """Open the pools of this rank's device, the driver's or system's own calls first; close at the end."""
    with ExitStack() as stack:
        if context.box is None:
            pools: Sequence[Pool] = (Malloc(), FreeLists(most))
        else:
            stack.enter_context(context.box.on(context.gpu))
            pools = open_pools(most)
        for pool in pools:
            stack.enter_context(closing(pool))
        yield pools


def sizes(most: int) -> list[int]:
    """Return LEAST, times 4, ... up to `most`."""
    found = [min(LEAST, most)]
    while found[-1] * 4 <= most:
        found.append(found[-1] * 4)
    return found


def call_times(pool: Pool, nbytes: int, samples: int) -> AllocationTimes:
    """Return median times of allocations from an empty pool, and of repeated ones."""
    firsts, repeats, releases = ({False: list[float](), True: list[float]()} for _ in range(3))
    for settled in (False, True):
        for _ in range(samples):
            pool.settle()
            pool.trim()
            firsts[settled].append(cycle(pool, nbytes, settled)[0])
            for _ in range(max(1, min(REPEATED, REPEATED_BYTES // nbytes))):
                taken, given = cycle(pool, nbytes, settled)
                repeats[settled].append(taken)
                releases[settled].append(given)
    kinds = (firsts, repeats, releases)
    return AllocationTimes(*(statistics.median(kind[s]) for kind in kinds for s in (False, True)))


def cycle(pool: Pool, nbytes: int, settled: bool) -> tuple[float, float]:
    """Return seconds of an allocation and of its release; settled: each until it is done."""
    begin = time.perf_counter()
    handle = pool.allocate(nbytes)
    if settled:
        pool.settle(handle)
    allocated = time.perf_counter()
    pool.release(handle)
    del handle  # on a host, this frees it
    if settled:
        pool.settle()
    return allocated - begin, time.perf_counter() - allocated


def pass_times(pool: Pool, steps: Sequence[AllocationStep], samples: int) -> PassTimes:
    """Return median times of the workload: from an empty pool, then from the memory that it kept."""
    found = list[tuple[float, float, float]]()
    for _ in range(samples):
        pool.settle()
        pool.trim()
        settled = play(pool, steps, settle=True), play(pool, steps, settle=True)
        found.append((*settled, play(pool, steps, settle=False)))
    return PassTimes(*map(statistics.median, zip(*found, strict=True)))


def _used(context: Context) -> Callable[[], int]:
    """Return a function for bytes in use: on the GPU by any process, or this process's pages on a host."""
    if context.box is None:
        statm, page = Path("/proc/self/statm"), os.sysconf("SC_PAGE_SIZE")
        return lambda: int(statm.read_text().split()[1]) * page
    box, gpu = context.box, context.box.gpus[context.gpu]
    return lambda: gpu.memory - box.free_memory(gpu.index)


def _lesson(found: PoolResults, device: str, *, watch: bool) -> Lesson:
    tables = [*(_calls(found, pool) for pool in found.pools), _workload(found)]
    charts = [_by_size(found)]
    if watch:
        for what, unit, rows in _memory_over_run(found):
            tables.append(_digits_table(what, rows))
            charts.append(_over_run(unit, rows))
    return Lesson(
        name="pool",
        title=f"Allocation on {device}",
        tables=tuple(tables),
        explanation=tuple(sentences(found)),
        charts=tuple(charts),
        mismatches=tuple(found.mismatches),
        facts=_facts(found, device, watch),
    )


def _calls(found: PoolResults, pool: str) -> LessonTable:
    """Make the table of times of single calls by size."""
    more = "sync" if found.on_gpu else "touch"
    kinds = {"first": "first", f"first+{more}": "first_settled"}
    kinds |= {"again": "again", f"again+{more}": "again_settled", "release": "release"}
    if found.on_gpu:  # on a host the release is synchronous
        kinds[f"release+{more}"] = "release_settled"
    rows = tuple(
        (size_name(size), *(getattr(found.times[pool, size], name) * 1e6 for name in kinds.values()))
        for size in found.sizes
    )
    return LessonTable(("size", *(f"{title} (us)" for title in kinds)), rows, pool)


def _workload(found: PoolResults) -> LessonTable:
    more = "sync" if found.on_gpu else "touch"
    titles = (
        "pool", f"first+{more} (ms)", f"again+{more} (ms)", "again (ms)",
        "most in use (MiB)", "most held (MiB)", "fragmentation (%)", "held at end (MiB)", "trimmed (MiB)",
    )  # fmt: skip
    rows = tuple(
        (
            pool, spent.first * 1e3, spent.again * 1e3, spent.alone * 1e3, kept.live / MIB,
            kept.peak.reserved / MIB, 100 * kept.peak.fragmentation, kept.left / MIB, kept.trimmed / MIB,
        )
        for pool, spent, kept in ((pool, found.passes[pool], found.accounts[pool]) for pool in found.pools)
    )  # fmt: skip
    return LessonTable(
        titles,
        rows,
        f"{found.allocations} allocations and releases, at most {size_name(found.most)} at a time",
    )


def _by_size(found: PoolResults) -> Chart:
    kinds = ("first", "again") if found.on_gpu else ("first_settled", "again_settled")
    lines = tuple(
        ChartLine(
            f"{pool}, {kind.partition('_')[0]}",
            tuple((float(size), getattr(found.times[pool, size], kind) * 1e6) for size in found.sizes),
        )
        for pool in found.pools
        for kind in kinds
    )
    return Chart("size", "allocation (us)", lines, bytes=True, log_y=True)


MemorySeries = list[tuple[str, list[int]]]  # label, bytes after each step


def _memory_over_run(found: PoolResults) -> list[tuple[str, str, MemorySeries]]:
    """Return (title, unit, series): bytes that each pool held, and bytes in use while it ran."""
    accounts = list(found.accounts.items())
    held = [("requested", [moment.live for moment in accounts[0][1].moments])]
    held += [(pool, [moment.reserved for moment in kept.moments]) for pool, kept in accounts]
    used = [(pool, [moment.used for moment in kept.moments]) for pool, kept in accounts]
    whose = "The GPU's memory in use" if found.on_gpu else "This process's memory"
    return [("Held", "held (MiB)", held), (whose, "in use (MiB)", used)]


def _digits_table(what: str, rows: MemorySeries) -> LessonTable:
    top = max(max(values) for _, values in rows)
    drawn = tuple((name, digits(values, top), max(values) / MIB) for name, values in rows)
    return LessonTable(
        ("", "from start to end", "most (MiB)"), drawn, f"{what} over the run, 9 is {size_name(top)}"
    )


def _over_run(unit: str, rows: MemorySeries) -> Chart:
    lines = tuple(
        ChartLine(label, tuple((float(at), value / MIB) for at, value in thinned(values)))
        for label, values in rows
    )
    return Chart("step", unit, lines, log_x=False)


def digits(values: Sequence[int], top: int) -> str:
    """Format the highest value of each of INTERVALS parts of the run as a digit, 9 for `top`."""
    return "".join(str(9 * value // top if top else 0) for _, value in thinned(values, INTERVALS))


def thinned(values: Sequence[int], points: int = POINTS) -> list[tuple[int, int]]:
    """Reduce to at most `points` (step, value): the highest of each interval, steps from 1."""
    length = -(-len(values) // points)
    starts = range(0, len(values), length)
    return [(start + 1, max(values[start : start + length])) for start in starts]


def _facts(found: PoolResults, device: str, watch: bool) -> dict[str, Any]:
    """Return the JSON record, in seconds and bytes."""
    return {
        "device": device,
        "requested": found.requested,
        "most": found.most,
        "times": [{"pool": pool, "bytes": n, **asdict(times)} for (pool, n), times in found.times.items()],
        "workload": [
            {
                "pool": pool,
                "allocations": found.allocations,
                "seconds": asdict(found.passes[pool]),
                "peak_live": kept.live,
                "peak_reserved": kept.peak.reserved,
                "fragmentation": kept.peak.fragmentation,
                "left": kept.left,
                "trimmed": kept.trimmed,
                **(
                    {"moments": [[one.live, one.reserved, one.used] for one in kept.moments]} if watch else {}
                ),
            }
            for pool, kept in found.accounts.items()
        ],
    }


def sentences(found: PoolResults) -> list[str]:
    lines = [_speed(found), _overhead(found)]
    if found.most < found.requested:
        lines.append(
            f"At most {size_name(found.most)} were allocated at a time, a quarter of free memory, instead of "
            f"{size_name(found.requested)}."
        )
    return lines


def _speed(found: PoolResults) -> str:
    """Compare the times of a repeated allocation and its release."""
    size = USUAL if USUAL in found.sizes else found.sizes[-1]

    def pair(pool: str) -> float:
        times = found.times[pool, size]
        # On a host the cost of memory is in the first touch.
        return times.release + (times.again if found.on_gpu else times.again_settled)

    own, *pools = found.pools
    compared = "; ".join(f"{pool} {pair(pool) * 1e6:.3g} us{_times(pair(own), pair(pool))}" for pool in pools)
    return f"Allocate and release {size_name(size)} again: {own} {pair(own) * 1e6:.3g} us; {compared}."


def _times(slow: float, fast: float) -> str:
    if slow <= 0 or fast <= 0:
        return ""
    return f" ({slow / fast:.3g} times as fast)" if slow >= fast else f" ({fast / slow:.3g} times as slow)"


def _overhead(found: PoolResults) -> str:
    """Name the pool that holds the most memory beyond that in use."""
    pool = max(found.accounts, key=lambda pool: found.accounts[pool].peak.fragmentation)
    peak = found.accounts[pool].peak
    return (
        f"Most fragmented: {pool}, which held {size_name(peak.reserved)} for {size_name(peak.live)} in use "
        f"({peak.fragmentation:.1%})."
    )
