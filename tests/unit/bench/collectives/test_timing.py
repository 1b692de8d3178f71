"""What the clock includes and excludes. Times are only compared with each other.

If a rank sleeps, its sleep is a lower bound of the time measured around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from meshrun.jobs.bench.collectives.measure import at_size, measure
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.timing import CallTimes, clock
from meshrun.runner.comm.collectives.api import DATATYPES, Call
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

NAP = 0.01  # seconds


def point_of(bench: Bench, size: int = 64, in_place: bool = False) -> Point:
    blank = Point(bench.counts(0, DATATYPES["float"]), DATATYPES["float"], "sum", 0, False, 0)
    return at_size(bench, blank, size, in_place)


class LateBarrier:
    """A control from which `ranks` leave barriers late."""

    def __init__(self, inner: Any, seconds: float = NAP) -> None:
        self.inner, self.seconds = inner, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def barrier(self) -> None:
        self.inner.barrier()
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Watched:
    """One rank's clock, and the seconds that passed around it."""

    clock: CallTimes
    wall: float


def watched(bench: Bench) -> Watched:
    """Time one size and placement."""
    begin = time.perf_counter()
    found = clock(bench, point_of(bench))
    return Watched(found, time.perf_counter() - begin)


@pytest.fixture
def timed(bench_on: Any) -> Callable[..., list[Watched]]:
    """Time one size of all_reduce on every rank; `arrange(bench)` is called before."""

    def run(
        ranks: int, arrange: Callable[[Bench], None] = lambda bench: None, **settings: Any
    ) -> list[Watched]:
        def body(bench: Bench) -> Watched:
            arrange(bench)
            return watched(bench)

        found: list[Watched] = bench_on(ranks, "all_reduce", body, **settings)
        return found

    return run


def slow_barrier(bench: Bench) -> None:
    everyone: Any = LateBarrier(bench.everyone)
    bench.everyone = everyone


@pytest.mark.parametrize(
    # The barrier before the timed calls is never timed.
    ("blocking", "naps_timed", "naps"),
    [(0, 0, 1), (1, 3, 1 + 3), (2, 0, 1), (3, 0, 1 + 3)],
)
def test_barriers_count_with_z_1_only(timed: Any, blocking: int, naps_timed: int, naps: int) -> None:
    for one in timed(2, slow_barrier, iters=3, blocking=blocking):
        spent = 3 * one.clock.seconds
        assert naps_timed * NAP <= spent <= one.wall - (naps - naps_timed) * NAP


@pytest.mark.parametrize("blocking", [0, 1, 2, 3])
def test_single_iterations_are_timed_as_the_whole_is(timed: Any, blocking: int) -> None:
    """-I: with -z 1 each with its barrier, with -z 3 without."""
    for one in timed(2, slow_barrier, iters=4, blocking=blocking, per_iter_timing=True):
        singles = one.clock.iterations
        assert len(singles) == 4
        assert sum(singles) <= 4 * one.clock.seconds
        if blocking == 1:
            assert min(singles) > NAP
        if blocking == 3:
            assert sum(singles) <= one.wall - 5 * NAP


@pytest.mark.parametrize(
    "settings", [{"iters": 4}, {"iters": 2, "agg_iters": 2}, {"iters": 4, "blocking": 3}, {"iters": 1}]
)
def test_seconds_are_of_one_operation(timed: Any, disturbed: Any, settings: dict[str, int]) -> None:
    """For any group size. The call before them is in the elapsed time, too."""
    operations = settings["iters"] * settings.get("agg_iters", 1)

    def nap(bench: Bench) -> None:
        bench.group = disturbed(bench.group, after=lambda call: time.sleep(NAP))

    for one in timed(2, nap, per_iter_timing=True, **settings):
        assert NAP < one.clock.seconds < (one.wall - NAP) / operations
        assert min(one.clock.iterations) > NAP
        assert sum(one.clock.iterations) * settings.get("agg_iters", 1) < one.wall - NAP


@pytest.fixture
def queued(bench_on: Any, recorded: Any, disturbed: Any) -> Callable[..., list[Watched]]:
    """The same if calls wait in a queue and each sleeps in turn."""

    def run(**settings: Any) -> list[Watched]:
        def body(bench: Bench) -> Watched:
            bench.group = disturbed(bench.group, after=lambda call: time.sleep(NAP))
            return watched(recorded(bench, queues=True).bench)

        found: list[Watched] = bench_on(2, "all_reduce", body, **settings)
        return found

    return run


def test_a_graph_counts_every_launch(queued: Any) -> None:
    for one in queued(iters=2, cudagraph=3):
        assert NAP < one.clock.seconds < (one.wall - NAP) / (2 * 3)


@pytest.mark.parametrize("settings", [{}, {"agg_iters": 2}, {"cudagraph": 2}])
def test_the_time_to_queue_is_not_the_time_until_done(queued: Any, settings: dict[str, int]) -> None:
    for one in queued(iters=3, **settings):
        assert one.clock.cpu_seconds <= one.clock.seconds - NAP


def test_what_is_waited_for_is_not_queued(queued: Any) -> None:
    for one in queued(iters=3, blocking=2):
        assert one.clock.cpu_seconds == one.clock.seconds


def test_the_call_before_is_not_timed(timed: Any, disturbed: Any) -> None:
    """Nor is work of the first call only, such as connecting."""

    def slow_start(bench: Bench) -> None:
        calls: list[Call] = []

        def connect(call: Call) -> None:
            if not calls:
                time.sleep(NAP)
            calls.append(call)

        bench.group = disturbed(bench.group, before=connect)

    assert all(2 * one.clock.seconds < one.wall - NAP for one in timed(2, slow_start, iters=2))


@pytest.mark.timed
def test_a_single_slow_iteration_is_found(bench_on: Any, disturbed: Any) -> None:
    """Rank 1 stops before the third of five; -I shows which one, and on which rank."""

    def body(bench: Bench) -> Any:
        calls: list[Call] = []

        def stop(call: Call) -> None:
            calls.append(call)
            if bench.group.rank == 1 and len(calls) == 1 + 3:
                time.sleep(40 * NAP)

        bench.group = disturbed(bench.group, before=stop)
        return measure(bench, point_of(bench))

    measured = bench_on(3, "all_reduce", body, iters=5, per_iter_timing=True, per_iter_skip=1)[0]
    times = measured.iterations
    assert times.slowest.index(max(times.slowest)) == 2
    assert times.slowest == tuple(max(row[i] for row in times.by_rank) for i in range(5))
    assert len(times.by_rank) == 3
    assert times.skipped == 1
    assert max(times.slowest) > 3 * NAP


def test_beginnings_are_on_rank_0s_clock(timed: Any) -> None:
    """A rank whose clock is 100 seconds ahead does not look 100 seconds late."""

    def detailed(bench: Bench) -> None:
        bench.detail, bench.offset = True, 100.0 if bench.group.rank == 1 else 0.0

    for blocking in (0, 1, 2, 3):
        here, ahead = (one.clock.begun for one in timed(2, detailed, iters=3, blocking=blocking))
        assert len(here) == len(ahead) == 3
        assert list(here) == sorted(here)
        assert all(90 < mine - its < 110 for mine, its in zip(here, ahead, strict=True))


@pytest.mark.parametrize("blocking", [0, 1, 2, 3])
def test_no_begin_times_without_detail(timed: Any, blocking: int) -> None:
    assert [one.clock.begun for one in timed(2, iters=3, blocking=blocking)] == [(), ()]


class Trail(MeasurementProgress):
    """Record the reports to a watchdog."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []

    def before(self, doing: str) -> None:
        self.text.append(doing)

    def enter(self, iteration: int) -> None:
        self.text.append(f"iteration {iteration}")

    def done(self, doing: str = "") -> None:
        self.text.append("done")


@pytest.mark.parametrize("blocking", [0, 2])
def test_where_a_rank_is_that_computes_on_the_host(bench_on: Any, blocking: int) -> None:
    def body(bench: Bench) -> list[str]:
        bench = replace(bench, progress=Trail(), watched=True)
        clock(bench, point_of(bench))
        text: list[str] = bench.progress.text
        return text

    [text] = bench_on(1, "all_reduce", body, iters=3, blocking=blocking)
    assert [words for words, before in zip(text, ["", *text], strict=False) if words != before] == [
        "in the call before the timed ones", "at the barrier before the timed calls",
        "iteration 1", "iteration 2", "iteration 3", "done",
    ]  # fmt: skip


def test_where_a_device_is_that_works_off_a_queue(bench_on: Any, recorded: Any) -> None:
    """The host has queued everything; the device's marks show its iteration."""

    def body(bench: Bench) -> list[str]:
        bench = replace(recorded(bench, queues=True).bench, progress=Trail(), watched=True)
        seen: set[int] = set()

        def passed(mark: Any) -> bool:
            # One mark more at every query: the device has advanced by one iteration.
            known = id(mark) in seen
            seen.add(id(mark))
            return known

        bench.group.passed = passed
        clock(bench, point_of(bench))
        text: list[str] = bench.progress.text
        return text

    [text] = bench_on(1, "all_reduce", body, iters=3)
    assert text[2:] == ["iteration 1", "iteration 1", "iteration 2", "done"]
