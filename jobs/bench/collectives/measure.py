"""Measure all sizes of one operation in nccl-tests' order: warm-up over all, then each in both placements.

nccl-tests 2.19.6, src/common.cu, TimeTest, and the loops over types, reductions and roots in src/<op>.cu.
Each size and placement is timed; then another call is checked on fresh data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from jobs.bench.collectives.results import Group, Iterations, PlacementResult, RankMismatch, ResultRow
from jobs.bench.collectives.session import Bench, Point
from jobs.bench.collectives.specs import DataLayout, bandwidths, data_layout
from jobs.bench.collectives.timing import CallTimes, bound_call, clock
from jobs.measure.check import fill, poison, verify
from runner.comm.collectives.api import DATATYPES, Pointer

UNCHECKED_DATA = 99  # check number of the timed data, as in nccl-tests; its result is not checked
AVERAGES = (lambda times: times[0], statistics.fmean, min, max)  # by -a


def measure(bench: Bench, point: Point) -> PlacementResult:
    """Time and check one size and placement; collective."""
    settings, everyone = bench.settings, bench.everyone
    if settings.check:
        prepare(bench, point, UNCHECKED_DATA)
    timed = clock(bench, point)
    everyone.barrier()
    checked = settings.check > 0 and (bench.operation.in_place or not point.in_place)
    findings: tuple[RankMismatch, ...] = ()
    bench.checks += 1
    for _ in range(settings.check):
        found = check(bench, point, bench.checks)
        bench.failures += checked and found is not None
        findings = tuple(wrong for wrong in everyone.allgather(found if checked else None) if wrong)
        if findings:
            break
    return result(bench, point, timed, findings, checked)


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
) -> tuple[Group, ...]:
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
        groups.append(Group(color, ranks, seconds, algbw, busbw, wrong))
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


def prepare(bench: Bench, point: Point, number: int) -> DataLayout:
    """Poison the receive buffer and write the input of check `number`; returns the data of both."""
    call = bound_call(bench, point, 0)
    plan = data_layout(
        bench.operation, point.counts, bench.group.size, bench.group.rank, point.root, point.reduction,
        number, point.in_place,
    )  # fmt: skip
    size, start = point.datatype.itemsize, bench.settings.unalign * point.datatype.itemsize
    bench.progress.pause()  # large data takes long to write
    poison(Pointer(bench.recv, start).bytes(point.bytes))
    fill(call.send.bytes(point.counts.send * size), point.datatype, plan.sent)
    bench.world.backend.synchronize()
    bench.progress.before("its input is ready")
    return plan


def check(bench: Bench, point: Point, number: int) -> RankMismatch | None:
    """Check one call on fresh data; returns the mismatch in this rank's result, or None."""
    plan = prepare(bench, point, number)
    call = bound_call(bench, point, 0)
    bench.progress.done("in the call that is checked")
    one = [bench.group.bind(call)]
    bench.group.issue([bench.group.captured(one)] if bench.settings.cudagraph else one)
    bench.group.wait()
    bench.progress.pause()
    found = verify(
        call.recv.bytes(point.counts.recv * point.datatype.itemsize), point.datatype, plan.expected
    )
    bench.progress.done("its result is checked")
    if found is None:
        return None
    here, mine = bench.world.here, bench.colors[bench.everyone.rank]
    members = [rank for rank, color in zip(bench.world_ranks, bench.colors, strict=True) if color == mine]
    return RankMismatch(
        rank=here.number,
        host=here.host,
        device=str(here.device),
        count=found.count,
        offset=found.offset,
        got=found.got,
        expected=found.expected,
        source=None if found.source is None else members[found.source],
        flipped_bits=found.flipped_bits,
    )


def sweep(bench: Bench) -> Iterator[ResultRow]:
    """Yield every row of one operation as soon as it is measured; collective."""
    settings, operation = bench.settings, bench.operation
    reductions = settings.reductions if operation.reduces else ("sum",)
    roots = range(bench.group.size) if settings.root == -1 else (settings.root,)
    for name in settings.datatypes:
        for reduction in reductions:
            for root in roots if operation.rooted else (0,):
                counts = bench.counts(0, DATATYPES[name])
                yield from _sizes(bench, Point(counts, DATATYPES[name], reduction, root, False, 0))


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
                size=point.bytes,
                count=point.counts.count,
                datatype=point.datatype.name,
                reduction=point.reduction if bench.operation.reduces else bench.operation.shows,
                root=point.root if bench.operation.rooted else -1,
                out_of_place=placements[0],
                in_place=placements[1],
                finished=time.time(),
            )
        if cycle == settings.run_cycles:  # 0: endless
            return


def at_size(bench: Bench, blank: Point, size: int, in_place: bool) -> Point:
    elements = size // blank.datatype.itemsize
    return replace(blank, counts=bench.counts(size, blank.datatype), in_place=in_place, elements=elements)


def describe(bench: Bench, point: Point) -> str:
    """Describe one measurement: operation, type, reduction, size, placement."""
    reduction = f" {point.reduction}" if bench.operation.reduces else ""
    place = "in-place" if point.in_place else "out-of-place"
    return f"{bench.operation.name} {point.datatype.name}{reduction}, {point.bytes} B, {place}"
