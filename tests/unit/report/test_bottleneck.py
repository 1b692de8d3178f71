"""Which stage set the pace: made spans with results worked out by hand, and the union of intervals."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.report.bottleneck import WORDS, any_busy, busy, combine, measure, summary
from meshrun.runner.report.spans import (
    FOLDED,
    MOST,
    NEWEST,
    STAGES,
    Interval,
    Span,
    Spans,
    Stage,
    coarser,
    union,
)

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=20).map(
    lambda pairs: [Interval(begin, begin + length, length) for begin, length in pairs]
)

# Two chunks on one GPU: read 0-4 and 4-8, then each copied, computed, copied back and written.
PIPELINE = [
    Span("read", 0, 0.0, 4.0, 8_000_000_000),
    Span("read", 1, 4.0, 8.0, 8_000_000_000),
    Span("to device", 0, 4.0, 4.5, 8_000_000_000),
    Span("kernel", 0, 4.5, 4.75, 16_000_000_000),
    Span("from device", 0, 4.75, 5.0, 8_000_000_000),
    Span("write", 0, 5.0, 7.0, 8_000_000_000),
    Span("to device", 1, 8.0, 8.5, 8_000_000_000),
    Span("kernel", 1, 8.25, 8.75, 16_000_000_000),  # begins while its last bytes are copied
    Span("from device", 1, 8.75, 9.0, 8_000_000_000),
    Span("write", 1, 9.0, 10.0, 8_000_000_000),
]


def points(pairs: list[Interval]) -> set[int]:
    return {point for each in pairs for point in range(int(each.begin), int(each.end))}


@given(intervals)
def test_the_union_holds_the_same_points_in_disjoint_intervals(pairs: list[Interval]) -> None:
    merged = union(pairs)
    assert points(merged) == points(pairs)
    assert sum(each.busy for each in merged) == len(points(pairs))
    assert all(before.end < after.begin for before, after in pairwise(merged))


@given(intervals.flatmap(lambda pairs: st.tuples(st.just(pairs), st.permutations(pairs))))
def test_the_union_does_not_depend_on_the_order(orders: tuple[list[Interval], ...]) -> None:
    assert union(orders[0]) == union(orders[1])


@given(intervals, st.integers(1, 6))
def test_coarser_intervals_are_few_and_as_busy(pairs: list[Interval], most: int) -> None:
    fine = union(pairs)
    coarse = coarser(fine, most)
    assert len(coarse) <= most + 1
    assert points(coarse) >= points(fine)
    assert sum(each.busy for each in coarse) == sum(each.busy for each in fine)
    assert all(0 <= each.share <= 1 for each in coarse)
    if fine:
        assert (coarse[0].begin, coarse[-1].end) == (fine[0].begin, fine[-1].end)


@given(st.lists(intervals, max_size=4))
def test_ranks_together_are_busy_while_any_of_them_is(ranks: list[list[Interval]]) -> None:
    tables = [np.array(union(pairs), np.float64).reshape(-1, 3) for pairs in ranks]
    expected = len(set().union(*map(points, ranks)))
    assert any_busy([np.empty((0, 3)), *tables]) == pytest.approx(expected)


def test_ranks_busy_in_part_are_so_independently() -> None:
    """Half busy beside half busy is three quarters; beside one that is always busy it is all."""
    half = np.array([[0.0, 8.0, 4.0]])
    assert any_busy([half]) == pytest.approx(4.0)
    assert any_busy([half, half]) == pytest.approx(6.0)
    assert any_busy([half, np.array([[4.0, 8.0, 4.0]])]) == pytest.approx(6.0)


def long_run(count: int) -> list[Span]:
    """Chunk after chunk, 10 ms each: read for 6, copied and computed for 4 of which 1 together, with two
    threads that read, so that the reads end out of order."""
    spans = []
    for n in range(count):
        at = n / 100
        spans += [
            Span("read", n, at + 0.001, at + 0.006, 500),
            Span("read", n, at, at + 0.004, 500),
            Span("to device", n, at + 0.006, at + 0.008, 1000),
            Span("kernel", n, at + 0.007, at + 0.010, 2000),
        ]
    return spans


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_long_run_leaves_is_bounded_and_says_the_same(keep: bool) -> None:
    every = long_run(5 * FOLDED)
    spans = Spans(keep)
    for span in every:
        spans.add(*span)
    if keep:
        assert spans.found == every
    else:
        assert NEWEST <= len(spans.found) < NEWEST + FOLDED
        assert spans.found == every[-len(spans.found) :]
    found = summary(spans.tracks(), gpu=True)
    assert len(found.when) <= 3 * (MOST + 1)
    limits, exact = combine([found], gpu=True), measure([every], gpu=True)
    assert limits.wall == pytest.approx(5 * FOLDED / 100)
    seconds = {load.stage: load.seconds / (5 * FOLDED) for load in limits.loads}
    assert seconds == pytest.approx({"read": 0.006, "to device": 0.002, "kernel": 0.003}, rel=1e-3)
    assert limits.idle == pytest.approx(0.6, rel=1e-3)
    for load, other in zip(limits.loads, exact.loads, strict=True):
        assert load.moved == other.moved
        assert load.together == pytest.approx(load.rate)  # one rank: no more together
        assert load.rate == pytest.approx(other.rate, rel=1e-3)


def test_a_summary_is_of_all_spans_once_whenever_it_is_asked_for() -> None:
    spans = Spans(keep=False)
    for span in PIPELINE[:6]:
        spans.add(*span)
    spans.tracks()
    for span in PIPELINE[6:]:
        spans.add(*span)
    spans.tracks()
    assert combine([summary(spans.tracks(), gpu=True)], gpu=True) == measure([PIPELINE], gpu=True)


def test_a_summary_is_moved_to_another_clock() -> None:
    spans = Spans()
    for span in PIPELINE:
        spans.add(*span)
    here, away = (summary(spans.tracks(), True, offset) for offset in (0.0, 32.0))
    assert combine([here], gpu=True).wall == combine([away], gpu=True).wall == 10.0
    assert combine([here, away], gpu=True).wall == 42.0


def test_spans_that_overlap_are_counted_once() -> None:
    spans = [Span("read", 0, 0.0, 2.0, 1), Span("read", 1, 1.0, 3.0, 1), Span("read", 2, 5.0, 6.0, 1)]
    assert busy(spans) == 4.0
    assert busy([]) == 0.0


def test_one_rank() -> None:
    found = measure([PIPELINE], gpu=True)
    loads = {load.stage: load for load in found.loads}
    assert found.wall == 10.0
    assert list(loads) == list(STAGES)
    assert {name: load.seconds for name, load in loads.items()} == {
        "read": 8.0,
        "to device": 1.0,
        "kernel": 0.75,
        "from device": 0.5,
        "write": 3.0,
    }
    assert (loads["read"].share, loads["read"].rate, loads["read"].moved) == (0.8, 2e9, 16_000_000_000)
    assert found.limit is loads["read"]
    assert found.idle == pytest.approx(0.8)  # busy 4 to 5 and 8 to 9
    assert found.sentence() == "limited by: reading, 2 GB/s; the GPU was idle 80 %"


def test_on_a_cpu_only_its_kernel_counts() -> None:
    found = measure([PIPELINE], gpu=False)
    assert found.idle == pytest.approx(1 - 0.075)
    assert found.sentence().endswith("; the CPU's kernel was idle 92 %")


def test_several_ranks_give_medians_and_what_they_reach_together() -> None:
    """Ranks 0 to 2 read 6 GB in 2, 3 and 6 s, beside each other; nobody reads from 6 to 8 s."""
    ranks = [
        [Span("read", 0, 0.0, 2.0, 6_000_000_000), Span("kernel", 0, 7.0, 8.0, 0)],
        [Span("read", 1, 0.0, 3.0, 6_000_000_000)],
        [Span("read", 2, 0.0, 6.0, 6_000_000_000)],
    ]
    found = measure(ranks, gpu=True)
    read, kernel = found.loads
    assert (found.wall, found.ranks, read.seconds, read.share) == (8.0, 3, 3.0, 0.375)
    assert (read.moved, read.rate, read.together) == (18_000_000_000, 2e9, 3e9)
    assert (kernel.seconds, kernel.rate, kernel.together) == (0.0, None, None)
    assert found.idle == 1.0
    assert found.sentence() == (
        "limited by: reading, 2 GB/s a rank (3 GB/s in all), though busy only 38 % of the time; "
        "the GPU was idle 100 %"
    )


def test_a_rank_without_chunks_does_not_dilute() -> None:
    with_idlers = measure([PIPELINE, [], []], gpu=True)
    assert with_idlers == measure([PIPELINE], gpu=True)


def test_of_stages_alike_the_earliest_is_named() -> None:
    spans = [Span("write", 0, 2.0, 4.0, 4_000), Span("kernel", 0, 0.0, 2.0, 4_000)]
    limit = measure([spans], gpu=True).limit
    assert limit is not None
    assert limit.stage == "kernel"


@pytest.mark.parametrize("stage", get_args(Stage))
def test_every_stage_can_be_the_limit(stage: Stage) -> None:
    others = [Span(other, 0, 0.0, 1.0, 1_000) for other in get_args(Stage)]
    found = measure([[*others, Span(stage, 1, 1.0, 4.0, 3_000)]], gpu=True)
    assert found.sentence().startswith(f"limited by: {WORDS[stage]}, 1 kB/s; the GPU was idle")


def test_a_stage_that_moves_nothing_has_no_rate() -> None:
    assert measure([[Span("kernel", 0, 0.0, 1.0, 0)]], gpu=True).sentence() == (
        "limited by: the kernel; the GPU was idle 0 %"
    )


def test_nothing_was_left_to_do() -> None:
    found = measure([[], []], gpu=True)
    assert found.sentence() == "limited by: nothing, no chunk was left to do"
    assert found.record() == {"wall_seconds": 0.0, "limited_by": None, "idle_share": 0.0, "stages": {}}


def test_a_clock_too_coarse_to_see_anything_divides_by_nothing() -> None:
    found = measure([[Span("read", 0, 5.0, 5.0, 100)]], gpu=True)
    assert (found.wall, found.loads[0].rate, found.loads[0].share) == (0.0, None, 0.0)


def test_the_record_is_plain() -> None:
    record = measure([PIPELINE], gpu=True).record()
    assert json.loads(json.dumps(record)) == record
    assert record["limited_by"] == "read"
    assert record["stages"]["write"] == {
        "seconds": 3.0,
        "share": 0.3,
        "bytes": 16_000_000_000,
        "bytes_per_second": 16e9 / 3,
        "bytes_per_second_together": 16e9 / 3,
    }


@given(st.floats(-1e6, 1e6))
def test_clocks_that_were_off_agree_once_shifted(offset: float) -> None:
    away = [span.shifted(offset) for span in PIPELINE]
    found = measure([PIPELINE, [span.shifted(-offset) for span in away]], gpu=True)
    assert found.wall == pytest.approx(10.0)
