"""Measure all sizes of one operation in nccl-tests' order: warm-up over all, then each in both placements.

nccl-tests 2.19.6, src/common.cu, TimeTest, and the loops over types, reductions and roots in src/<op>.cu.
Each size and placement is timed, and one of the timed calls is checked; then another call is checked on fresh
data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from meshrun.jobs.bench.collectives.checks import check, chosen_call, compare, prepare
from meshrun.jobs.bench.collectives.observe import observed_choices, observed_traffic
from meshrun.jobs.bench.collectives.results import (
    Iterations,
    PlacementResult,
    RankMismatch,
    ResultRow,
    SplitGroup,
)
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.specs import bandwidths
from meshrun.jobs.bench.collectives.timing import CallTimes, bound_call, clock, start_of
from meshrun.runner.comm.collectives.api import DATATYPES

UNCHECKED_DATA = 99  # check number of the timed data, as in nccl-tests, of calls that are not checked
AVERAGES = (lambda times: times[0], statistics.fmean, min, max)  # by -a


def measure(bench: Bench, point: Point) -> PlacementResult:
    """Time and check one size and placement; collective."""
    settings, everyone = bench.settings, bench.everyone
    checked = settings.check > 0 and (bench.operation.in_place or not point.in_place)
    bench.checks += 1
    sample = None
    if settings.check:
        iteration = chosen_call(bench, point) if checked else None
        if iteration is None or start_of(bench, point, iteration) != start_of(bench, point, 0):
            prepare(bench, point, UNCHECKED_DATA, 0)
        if iteration is not None:
            sample = prepare(bench, point, bench.checks, iteration)
    timed = clock(bench, point)
    found = compare(bench, point, sample) if sample else None
    in_timed = tuple(wrong for wrong in everyone.allgather(found) if wrong)
    choices = observed_choices(bench, point)
    traffic = observed_traffic(bench, point)
    everyone.barrier()
    findings: tuple[RankMismatch, ...] = ()
    bench.checks += 1
    for _ in range(settings.check):
        again = check(bench, point, bench.checks)
        bench.failures += checked and again is not None
        findings = tuple(wrong for wrong in everyone.allgather(again if checked else None) if wrong)
        if findings:
            break
    if not findings:
        findings = in_timed
        bench.failures += found is not None
    measured = result(bench, point, timed, findings, checked)
    return replace(measured, choices=choices, traffic=traffic)


def result(
    bench: Bench, point: Point, timed: CallTimes, findings: tuple[RankMismatch, ...], checked: bool
) -> PlacementResult:
    """Combine every rank's times as -a says; collective."""
    everyone = bench.everyone.allgather(timed)
    by_rank = tuple(one.seconds for one in everyone)
    average = AVERAGES[bench.settings.average]
    seconds = average(by_rank)
    ranks = bench.colors.count(bench.colors[0])  # nccl-tests uses the size of rank 0's group
    algbw, busbw = bandwidths(bench.operation, point.counts, point.datatype, ranks, seconds)
    iterations = None
    if timed.iterations:
        rows = tuple(one.iterations for one in everyone)
        slowest = tuple(max(column) for column in zip(*rows, strict=True))
        iterations = Iterations(slowest, rows, bench.settings.per_iter_skip)
    wire, share = bench.wire(algbw, busbw)
    return PlacementResult(
        seconds=seconds,
        cpu_seconds=everyone[0].cpu_seconds,
        algbw=algbw,
        busbw=busbw,
        wrong=sum(wrong.count for wrong in findings) if checked else None,
        by_rank=by_rank,
        findings=findings,
        iterations=iterations,
        arrival_skew=arrival_skew([one.begun for one in everyone]),
        groups=grouped_figures(bench, point, by_rank, findings if checked else None, average),
        wire=wire,
        wire_percent=share,
    )


def grouped_figures(
    bench: Bench,
    point: Point,
    by_rank: Sequence[float],
    findings: Sequence[RankMismatch] | None,
    average: Callable[[Sequence[float]], float],
) -> tuple[SplitGroup, ...]:
    """Compute the figures of each color, averaged over its own ranks; empty if there is only one color.

    nccl-tests averages over all ranks whatever the split: one slow group of eight makes the average an eighth
    slower, and nothing in the output names it.
    """
    colors = sorted({*bench.colors})
    if len(colors) == 1:
        return ()
    groups = []
    for color in colors:
        ranks = tuple(rank for rank, other in enumerate(bench.colors) if other == color)
        seconds = average([by_rank[rank] for rank in ranks])
        counts = bench.operation.counts(point.elements, point.datatype, len(ranks), bench.traffic)
        algbw, busbw = bandwidths(bench.operation, counts, point.datatype, len(ranks), seconds)
        wrong = None if findings is None else sum(found.count for found in findings if found.rank in ranks)
        groups.append(SplitGroup(color, ranks, seconds, algbw, busbw, wrong))
    return tuple(groups)


def arrival_skew(begun: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return how many seconds each rank began after the median rank; the median over iterations.

    A late rank makes the others' operations long and its own short: durations blame the ranks that waited;
    arrival times on a common clock do not. begun: [rank][iteration], seconds.
    """
    if not begun or not begun[0]:
        return ()
    medians = [statistics.median(column) for column in zip(*begun, strict=True)]
    return tuple(
        statistics.median(at - middle for at, middle in zip(row, medians, strict=True)) for row in begun
    )


def sweep(bench: Bench) -> Iterator[ResultRow]:
    """Yield every row of one operation as soon as it is measured; collective."""
    for blank in kinds(bench):
        yield from _sizes(bench, blank)


def kinds(bench: Bench) -> Iterator[Point]:
    """Yield every datatype, reduction and root, with the largest size."""
    settings, operation = bench.settings, bench.operation
    reductions = settings.reductions if operation.reduces else ("sum",)
    roots = range(bench.group.size) if settings.root == -1 else (settings.root,)
    for name in settings.datatypes:
        for reduction in reductions:
            for root in roots if operation.rooted else (0,):
                datatype = DATATYPES[name]
                blank = Point(bench.counts(0, datatype), datatype, reduction, root, False, 0)
                yield at_size(bench, blank, settings.maxbytes, in_place=False)


def _sizes(bench: Bench, blank: Point) -> Iterator[ResultRow]:
    settings = bench.settings
    bench.everyone.barrier()
    bench.progress.begin(f"warm-up of {bench.operation.name} {blank.datatype.name}")
    for size in settings.warmup_sizes():
        point = at_size(bench, blank, size, in_place=False)
        calls = [bench.group.bind(bound_call(bench, point, i)) for i in range(settings.warmup_iters)]
        bench.progress.enter(1)
        bench.group.issue(calls)
        bench.group.wait()
    bench.progress.done()
    for cycle in count(1):
        for size in settings.sizes():
            placements = []
            for in_place in (False, True):
                point = at_size(bench, blank, size, in_place)
                bench.progress.begin(describe(bench, point))
                placements.append(measure(bench, point))
            yield ResultRow(
                **shown(bench, point),
                out_of_place=placements[0],
                in_place=placements[1],
                finished=time.time(),
            )
        if cycle == settings.run_cycles:  # 0: endless
            return


def at_size(bench: Bench, blank: Point, size: int, in_place: bool) -> Point:
    elements = size // blank.datatype.itemsize
    return replace(blank, counts=bench.counts(size, blank.datatype), in_place=in_place, elements=elements)


def shown(bench: Bench, point: Point) -> dict[str, Any]:
    """Return what a row shows of a point: size, count, datatype, reduction and root."""
    operation = bench.operation
    return {
        "size": point.bytes,
        "count": point.counts.count,
        "datatype": point.datatype.name,
        "reduction": point.reduction if operation.reduces else operation.shows,
        "root": point.root if operation.rooted else -1,
    }


def describe(bench: Bench, point: Point) -> str:
    """Describe one measurement: operation, type, reduction, size, placement."""
    reduction = f" {point.reduction}" if bench.operation.reduces else ""
    place = "in-place" if point.in_place else "out-of-place"
    return f"{bench.operation.name} {point.datatype.name}{reduction}, {point.bytes} B, {place}"
