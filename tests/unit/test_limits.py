"""Which stage set the pace: made spans with results worked out by hand, and the union of intervals."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.report.limits import WORDS, busy, measure, union
from runner.spans import STAGES, Span, Stage

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=20).map(
    lambda pairs: [(begin, begin + length) for begin, length in pairs]
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


@given(intervals)
def test_the_union_holds_the_same_points_in_disjoint_intervals(pairs: list[tuple[int, int]]) -> None:
    merged = union(pairs)
    assert {point for a, b in merged for point in range(int(a), int(b))} == {
        point for a, b in pairs for point in range(a, b)
    }
    assert all(before[1] < after[0] for before, after in pairwise(merged))


@given(intervals.flatmap(lambda pairs: st.tuples(st.just(pairs), st.permutations(pairs))))
def test_the_union_does_not_depend_on_the_order(orders: tuple[list[tuple[int, int]], ...]) -> None:
    assert union(orders[0]) == union(orders[1])


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
