"""Measure one size and placement: time it, then check another call on fresh data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from jobs.bench.collectives.groups import grouped_figures
from jobs.bench.collectives.results import Iterations, PlacementResult, RankMismatch
from jobs.bench.collectives.session import Bench, Point
from jobs.bench.collectives.specs import DataLayout, bandwidths, data_layout
from jobs.bench.collectives.timing import CallTimes, bound_call, clock
from jobs.measure.check import fill, poison, text, verify
from runner.comm.collectives.api import Pointer

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
        got=text(found.got_bits, point.datatype),
        expected=text(found.expected_bits, point.datatype),
        source=None if found.source is None else members[found.source],
        flipped_bits=found.flipped_bits,
    )
