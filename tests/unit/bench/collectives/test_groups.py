"""Ranks in groups: the group of each rank, and figures per group."""

from __future__ import annotations

import contextlib
import time
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.measure import at_size, result, sweep
from meshrun.jobs.bench.collectives.output import names
from meshrun.jobs.bench.collectives.results import Header, RankDevice, ResultRow
from meshrun.jobs.bench.collectives.session import Bench, Point, check_ranks, color_of
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.jobs.bench.collectives.timing import CallTimes
from meshrun.runner.comm.collectives.api import DATATYPES, Call
from meshrun.runner.errors import UserError

NAP = 0.01  # seconds


@pytest.mark.parametrize(
    ("split", "colors"),
    [
        (None, [0, 0, 0, 0, 0, 0, 0, 0]),
        ("", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("MOD3", [0, 1, 2, 0, 1, 2, 0, 1]),
        ("mod 3", [0, 1, 2, 0, 1, 2, 0, 1]),
        ("%3", [0, 1, 2, 0, 1, 2, 0, 1]),
        ("DIV4", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("/ 4", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("AND1", [0, 1, 0, 1, 0, 1, 0, 1]),
        ("&0x6", [0, 0, 2, 2, 4, 4, 6, 6]),
        ("AND 0b110", [0, 0, 2, 2, 4, 4, 6, 6]),
        ("AND 0XC", [0, 0, 0, 0, 4, 4, 4, 4]),
        ("OR5", [5, 5, 7, 7, 5, 5, 7, 7]),
        ("|0x5", [5, 5, 7, 7, 5, 5, 7, 7]),
        ("AND0", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("  Or  0  ", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("MOD08", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_syntaxes_of_a_split(split: str | None, colors: list[int]) -> None:
    assert [color_of(rank, split, None) for rank in range(8)] == colors


@pytest.mark.parametrize(
    ("mask", "colors"),
    [("1", [0, 1, 0, 1]), ("0x2", [0, 0, 2, 2]), ("A", [0, 0, 2, 2]), ("10", [0, 0, 0, 0])],
)
def test_a_mask_is_hexadecimal_and_goes_before_a_split(mask: str, colors: list[int]) -> None:
    assert [color_of(rank, "MOD3", mask) for rank in range(4)] == colors


@pytest.mark.parametrize(
    "split",
    ["MOD", "8", "XOR8", "MOD-1", "MOD0", "%0", "DIV 0", "/0x0", "MOD 0b0", "MOD8x", "AND0xg", "MOD1.5"],
)
def test_a_split_that_does_not_parse_is_refused(split: str) -> None:
    with pytest.raises(UserError, match="the split does not parse") as refused:
        color_of(0, split, None)
    assert repr(split) in str(refused.value)
    assert "such as MOD8" in str(refused.value)


@pytest.mark.parametrize("mask", ["g", "0o2", "MOD8", " "])
def test_a_mask_that_does_not_parse_is_refused(mask: str) -> None:
    with pytest.raises(UserError, match="the split mask is not a hexadecimal number"):
        color_of(0, None, mask)


@given(st.text(max_size=12))
def test_no_split_makes_more_than_a_sentence(split: str) -> None:
    with contextlib.suppress(UserError):
        assert color_of(5, split, None) >= 0


def point_of(bench: Bench, size: int) -> Point:
    blank = Point(bench.counts(0, DATATYPES["float"]), DATATYPES["float"], "sum", 0, False, 0)
    return at_size(bench, blank, size, False)


def test_groups_are_averaged_inside_and_the_row_over_the_world(bench_on: Any) -> None:
    """Ranks 0, 2 and 4 gather 960 bytes, ranks 1 and 3 gather 992 of 1000. Computed by hand."""
    seconds = (1e-6, 10e-6, 2e-6, 30e-6, 3e-6)

    def body(bench: Bench) -> Any:
        own = seconds[bench.world.rank]
        return result(bench, point_of(bench, 1000), CallTimes(own, own), (), True)

    def groups(average: int) -> Any:
        settings = {"minbytes": 1000, "maxbytes": 1000, "average": average}
        return bench_on(5, "all_gather", body, split="MOD2", **settings)[0]

    mean = groups(average=1)
    assert mean.seconds == pytest.approx(9.2e-6)  # of all five, as nccl-tests has it
    assert mean.algbw == pytest.approx(0.96 / 9.2)  # with the bytes of rank 0's group
    assert mean.busbw == pytest.approx(0.64 / 9.2)
    even, odd = mean.groups
    assert (even.color, even.ranks, odd.color, odd.ranks) == (0, (0, 2, 4), 1, (1, 3))
    assert (even.seconds, odd.seconds) == pytest.approx((2e-6, 20e-6))
    assert (even.algbw, odd.algbw) == pytest.approx((0.96 / 2, 0.992 / 20))
    assert (even.busbw, odd.busbw) == pytest.approx((0.64 / 2, 0.496 / 20))
    assert (even.wrong, odd.wrong) == (0, 0)

    def seconds_of(average: int) -> list[float]:
        measured = groups(average)
        return [measured.seconds, *(group.seconds for group in measured.groups)]

    assert seconds_of(average=0) == pytest.approx([1e-6, 1e-6, 10e-6])  # each group's first rank
    assert seconds_of(average=2) == pytest.approx([1e-6, 1e-6, 10e-6])
    assert seconds_of(average=3) == pytest.approx([30e-6, 3e-6, 30e-6])


def test_ranks_together_have_no_groups(bench_on: Any) -> None:
    rows = bench_on(3, "all_reduce", lambda bench: list(sweep(bench)), split="DIV8")[0]
    assert rows[0].out_of_place.groups == ()


@pytest.fixture
def slow_group(bench_on: Any, disturbed: Any) -> ResultRow:
    """Eight ranks, two a group, of which group 2 (ranks 4 and 5) is slow."""

    def body(bench: Bench) -> list[ResultRow]:
        if bench.colors[bench.world.rank] == 2:
            bench.group = disturbed(bench.group, before=sleep)
        return list(sweep(bench))

    def sleep(call: Call) -> None:
        time.sleep(NAP)

    settings = {"minbytes": 1024, "maxbytes": 1024, "iters": 3}
    [row] = bench_on(8, "all_reduce", body, split="DIV2", **settings)[0]
    return row


@pytest.mark.timed
def test_a_slow_group_is_named(slow_group: ResultRow) -> None:
    for measured in (slow_group.out_of_place, slow_group.in_place):
        assert [group.ranks for group in measured.groups] == [(0, 1), (2, 3), (4, 5), (6, 7)]
        ordered = sorted(measured.groups, key=lambda group: group.seconds)
        assert ordered[-1].color == 2
        # The world's average shows neither.
        assert measured.seconds == pytest.approx(fmean(measured.by_rank))
        assert ordered[-2].seconds < measured.seconds < ordered[-1].seconds
    ranks = tuple(RankDevice(rank, rank // 2, 0, "host", rank, "", "") for rank in range(8))
    report = names.names(slow_group, Header("all_reduce_perf", 0, "", ranks))
    lowest = f"busbw min {min(group.busbw for group in slow_group.out_of_place.groups):.4g} GB/s (group 2)"
    assert f"groups out of place: {lowest}" in report
    assert "group 2 (ranks 4-5) out of place" in report


def test_every_group_has_its_own_results(bench_on: Any, disturbed: Any) -> None:
    """Wrong data is counted in its group, and in total for the row."""

    def body(bench: Bench) -> Any:
        if bench.world.rank == 5:
            bench.group = disturbed(bench.group, after=spoil)
        return next(sweep(bench)).out_of_place

    def spoil(call: Call) -> None:
        call.recv.bytes(8)[...] ^= 0xFF

    measured = bench_on(6, "all_gather", body, split="MOD3", minbytes=960, maxbytes=960)[0]
    assert [group.wrong for group in measured.groups] == [0, 0, 2]
    assert measured.wrong == 2
    [wrong] = measured.findings
    assert (wrong.rank, wrong.source) == (5, 2)  # group 2 is ranks 2 and 5


@pytest.mark.parametrize("operation", [name for name in SPECS if name != "hypercube"])
def test_groups_of_different_sizes_are_right(operation: str, bench_on: Any) -> None:
    rows = bench_on(5, operation, lambda bench: list(sweep(bench)), split="DIV3", minbytes=512, maxbytes=1024)
    for row in rows[0]:
        assert row.out_of_place.wrong == 0
        assert [group.wrong for group in row.out_of_place.groups] == [0, 0]


@pytest.mark.parametrize(
    ("operation", "root", "colors", "report"),
    [
        ("hypercube", 0, [0, 0, 0], "got 3 ranks"),
        ("hypercube", 0, [0, 0, 1, 1, 1], "got 3 ranks"),  # one group would do, the other would not
        ("hypercube", 0, [0, 1, 1, 1, 1, 1, 1], "-n 4"),
        ("broadcast", 2, [0, 0, 0, 1, 1], "at most 1"),
        ("gather", -1, [0, 0, 0, 1, 1], "groups of 2 and 3 ranks"),
    ],
)
def test_what_does_not_go_with_every_group_is_refused(
    operation: str, root: int, colors: list[int], report: str
) -> None:
    with pytest.raises(UserError) as refused:
        check_ranks(SPECS[operation], SweepSettings(root=root), colors)
    assert refused.value.everywhere
    assert report in str(refused.value)


@pytest.mark.parametrize(
    ("operation", "root", "colors"),
    [
        ("hypercube", 0, [0]),
        ("hypercube", 0, [0, 0, 1, 1, 1, 1]),
        ("broadcast", 1, [0, 0, 0, 1, 1]),
        ("broadcast", -1, [0, 1, 0, 1]),
        ("all_gather", 7, [0, 0]),  # has no root
    ],
)
def test_what_goes_with_every_group_is_measured(operation: str, root: int, colors: list[int]) -> None:
    check_ranks(SPECS[operation], SweepSettings(root=root), colors)
