"""Combine one measurement from all ranks: averages, checks, and late ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from meshrun.jobs.bench.collectives.measure import arrival_skew, at_size, measure, result
from meshrun.jobs.bench.collectives.output import names
from meshrun.jobs.bench.collectives.results import Header, Iterations, PlacementResult, RankDevice, ResultRow
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.timing import CallTimes
from meshrun.runner.comm.collectives.api import DATATYPES, Call

NAP = 0.01  # seconds
LATE = 2  # the rank that is


def point_of(bench: Bench, size: int = 1000, in_place: bool = False) -> Point:
    blank = Point(bench.counts(0, DATATYPES["float"]), DATATYPES["float"], "sum", 0, False, 0)
    return at_size(bench, blank, size, in_place)


@pytest.fixture
def put_together(bench_on: Any) -> Any:
    """Return the result of all_gather for these clocks of its ranks."""

    def run(clocks: list[CallTimes], **settings: Any) -> list[PlacementResult]:
        def body(bench: Bench) -> PlacementResult:
            return result(bench, point_of(bench), clocks[bench.world.rank], (), True)

        settings = {"minbytes": 1000, "maxbytes": 1000} | settings
        found: list[PlacementResult] = bench_on(len(clocks), "all_gather", body, **settings)
        return found

    return run


@pytest.mark.parametrize(
    # Parts of 320 bytes: 960 are moved, two thirds of them over the bus.
    ("average", "seconds", "algbw", "busbw"),
    [
        (0, 2e-6, 0.48, 0.32),  # rank 0's
        (1, 3e-6, 0.32, 0.64 / 3),  # the mean
        (2, 1e-6, 0.96, 0.64),  # the least
        (3, 6e-6, 0.16, 0.32 / 3),  # the most
    ],
)
def test_the_ranks_times_are_averaged_by_option(
    put_together: Any, average: int, seconds: float, algbw: float, busbw: float
) -> None:
    clocks = [CallTimes(2e-6, 5e-7), CallTimes(1e-6, 1e-7), CallTimes(6e-6, 9e-7)]
    for measured in put_together(clocks, average=average):
        assert (measured.seconds, measured.algbw, measured.busbw) == pytest.approx((seconds, algbw, busbw))
        assert measured.by_rank == (2e-6, 1e-6, 6e-6)
        assert measured.cpu_seconds == 5e-7  # rank 0's, whatever the average
        assert measured.iterations is None
        assert (measured.arrival_skew, measured.groups) == ((), ())


def test_single_iterations_are_those_of_the_slowest_rank(put_together: Any) -> None:
    clocks = [CallTimes(1.0, 1.0, (1.0, 5.0, 2.0)), CallTimes(1.0, 1.0, (3.0, 4.0, 2.5))]
    [measured, _] = put_together(clocks, per_iter_timing=True, per_iter_skip=1, iters=3)
    assert measured.iterations == Iterations((3.0, 5.0, 2.5), ((1.0, 5.0, 2.0), (3.0, 4.0, 2.5)), 1)


def test_a_size_of_nothing_has_no_bandwidth(put_together: Any, bench_on: Any) -> None:
    def body(bench: Bench) -> PlacementResult:
        return result(bench, point_of(bench, 8), CallTimes(1e-6, 1e-6), (), True)

    measured = bench_on(3, "all_gather", body, minbytes=8, maxbytes=8)[0]
    assert (measured.seconds, measured.algbw, measured.busbw) == (pytest.approx(1e-6), 0.0, 0.0)


def test_lateness_is_after_the_median_rank_in_the_median_iteration() -> None:
    begun = [
        # iterations 1 to 3; the last one is out of the ordinary
        (10.0, 20.0, 30.0),
        (10.1, 20.1, 39.0),
        (10.4, 20.5, 30.2),
    ]
    assert arrival_skew(begun) == pytest.approx((-0.1, 0.0, 0.3))
    # Of two ranks the middle is between them.
    assert arrival_skew([(1.0, 2.0), (1.5, 2.5)]) == pytest.approx((-0.25, 0.25))
    assert arrival_skew([(), ()]) == ()
    assert arrival_skew([]) == ()


class Dawdler:
    """A control whose barriers one rank leaves late, as on a busy host."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def barrier(self) -> None:
        self.inner.barrier()
        time.sleep(NAP)


def text(measured: PlacementResult) -> str:
    """Return the lines of --names."""
    ranks = tuple(RankDevice(rank, 0, 0, f"host{rank}", 0, "", "") for rank in range(4))
    row = ResultRow(0, 0, "float", "sum", -1, measured, measured)
    return names.names(row, Header("all_reduce_perf", 0, "", ranks))


@pytest.mark.timed
@pytest.mark.parametrize("operation", ["all_reduce", "alltoall", "hypercube"])
def test_a_late_rank_is_named_where_durations_blame_those_who_wait(bench_on: Any, operation: str) -> None:
    """With -z 3 every call begins after a barrier. One rank is late from it, and has the shortest time."""

    def body(bench: Bench) -> PlacementResult:
        bench.detail = True
        if bench.world.rank == LATE:
            everyone: Any = Dawdler(bench.everyone)
            bench.everyone = everyone
        return measure(bench, point_of(bench))

    measured = bench_on(4, operation, body, minbytes=1000, maxbytes=1000, iters=7, blocking=3)[0]
    assert min(range(4), key=measured.by_rank.__getitem__) == LATE
    assert max(range(4), key=measured.arrival_skew.__getitem__) == LATE
    lines = text(measured).splitlines()
    assert f"last to arrive: rank {LATE} (host host{LATE}" in lines[1]
    assert f"rank {LATE}" not in next(line for line in lines if "slowest" in line)


@pytest.mark.timed
def test_a_late_rank_is_named_when_all_calls_are_queued_at_once(bench_on: Any, disturbed: Any) -> None:
    """Only the calls are between the clock's two readings: all ranks take equally long if one is slow."""

    def body(bench: Bench) -> tuple[PlacementResult, float]:
        bench.detail, inside = True, []
        timed = disturbed(
            bench.group,
            before=lambda call: inside.append(-time.perf_counter()),
            after=lambda call: inside.append(time.perf_counter()),
        )

        def dawdle(call: Call) -> None:
            if bench.world.rank == LATE:
                time.sleep(NAP)

        bench.group = disturbed(timed, after=dawdle)
        return measure(bench, point_of(bench)), sum(inside)

    found = bench_on(4, "all_reduce", body, minbytes=1000, maxbytes=1000, iters=7, check=0)
    measured, inside = found[0][0], [seconds for _, seconds in found]
    assert min(range(4), key=inside.__getitem__) == LATE
    assert max(range(4), key=measured.arrival_skew.__getitem__) == LATE
    assert max(measured.by_rank) < 2 * min(measured.by_rank)


@pytest.fixture
def checked(bench_on: Any, disturbed: Any) -> Any:
    """Return the number of a rank's calls and its findings if all results of rank 1 are wrong."""

    def run(operation: str, in_place: bool, **settings: Any) -> tuple[int, PlacementResult, int]:
        def body(bench: Bench) -> tuple[int, PlacementResult, int]:
            calls = []

            def spoil(call: Call) -> None:
                calls.append(call)
                if bench.world.rank == 1:
                    call.recv.bytes(16)[...] ^= 0xFF

            bench.group = disturbed(bench.group, after=spoil)
            measured = measure(bench, point_of(bench, in_place=in_place))
            return len(calls), measured, bench.failures

        settings = {"minbytes": 1000, "maxbytes": 1000} | settings
        found: tuple[int, PlacementResult, int] = bench_on(3, operation, body, **settings)[1]
        return found

    return run


def test_checks_end_with_the_first_that_fails(checked: Any) -> None:
    calls, measured, failures = checked("all_reduce", False, check=3)
    assert calls == 1 + 1 + 1  # untimed, timed, checked
    assert (measured.wrong, failures) == (4, 1)
    assert [(wrong.rank, wrong.count) for wrong in measured.findings] == [(1, 4)]


@pytest.mark.parametrize(
    ("operation", "in_place", "check"),
    [
        ("all_reduce", False, 0),
        ("alltoall", True, 2),  # nccl-tests makes the calls, but does not check
        ("alltoallv", True, 2),
        ("sendrecv", True, 2),
    ],
)
def test_what_is_not_checked_is_neither_right_nor_wrong(
    checked: Any, operation: str, in_place: bool, check: int
) -> None:
    calls, measured, failures = checked(operation, in_place, check=check)
    assert calls == 2 + check
    assert (measured.wrong, measured.findings, failures) == (None, (), 0)


def test_failures_are_counted_on_the_ranks_that_are_wrong(bench_on: Any, disturbed: Any) -> None:
    def body(bench: Bench) -> int:
        def spoil(call: Call) -> None:
            call.recv.bytes(16)[...] ^= 0xFF

        if bench.world.rank != 1:
            bench.group = disturbed(bench.group, after=spoil)
        for in_place in (False, True):
            measure(bench, point_of(bench, in_place=in_place))
        return bench.failures

    assert bench_on(3, "all_reduce", body, minbytes=1000, maxbytes=1000) == [2, 0, 2]
