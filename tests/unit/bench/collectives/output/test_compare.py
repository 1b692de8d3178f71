"""Compare two records: missing, wrong or slow rows fail."""

from __future__ import annotations

import math

import pytest

from meshrun.jobs.bench.collectives.output.compare import compare, render, verdict
from meshrun.jobs.bench.collectives.output.reader import BenchRecord, Figures, RowKey
from meshrun.runner.errors import UserError

KEYS = [RowKey(size, size // 4, "float", "sum", -1) for size in (8, 1024, 1048576)]


def a_record(
    name: str, times: list[float], wrong: int | None = 0, clock: str = "time", program: str | None = None
) -> BenchRecord:
    """The same times in both placements; bandwidth is 1000 / time."""
    rows = {
        key: {
            placement: (Figures(time, 1000 / time if time else 0.0, 1000 / time if time else 0.0, wrong),)
            for placement in ("out_of_place", "in_place")
        }
        for key, time in zip(KEYS, times, strict=False)
    }
    return BenchRecord(name, rows, clock, program)


A = a_record("a", [10.0, 20.0, 400.0])


def test_equal_records_pass() -> None:
    found = compare(A, A, 0.0)
    assert found.ok
    assert [line.ratio for line in found.rows] == [1.0] * 6
    assert verdict(found) == (
        "ok: no value of 6 is slower than A's by more than 0 %; "
        "the slowest is 1.000 times A's, at 8 B float sum out of place"
    )


@pytest.mark.parametrize(
    ("time", "ok", "word"),
    [(21.0, True, "ok"), (19.0, True, "ok"), (21.1, False, "slower"), (18.9, True, "faster")],
)
def test_only_slower_rows_fail(time: float, ok: bool, word: str) -> None:
    found = compare(A, a_record("b", [10.0, time, 400.0]), 0.05)
    assert found.ok is ok
    assert [line.verdict for line in found.rows] == ["ok", "ok", word, word, "ok", "ok"]


def test_more_bandwidth_is_faster() -> None:
    found = compare(A, a_record("b", [10.0, 10.0, 400.0]), 0.05, metric="busbw")
    assert [line.verdict for line in found.rows][2:4] == ["faster", "faster"]
    assert found.rows[2].ratio == 2.0


def test_faster_everywhere_is_ok() -> None:
    """Not even its largest difference fails, and of rates, the smallest is the slowest."""
    found = compare(A, a_record("b", [5.0, 19.5, 399.0]), 0.05)
    assert found.ok
    assert verdict(found) == (
        "ok: no value of 6 is slower than A's by more than 5 %, 2 are faster; "
        "the slowest is 0.998 times A's, at 1048576 B float sum out of place"
    )


def test_a_row_that_b_lacks_fails() -> None:
    found = compare(A, a_record("b", [10.0, 20.0]), 0.05)
    assert not found.ok
    assert [line.verdict for line in found.rows][4:] == ["missing in B"] * 2
    assert verdict(found).endswith(
        "2 of 6 values fail (tolerance 5 %); the worst is missing in B, at 1048576 B float sum out of place"
    )


def test_a_placement_that_b_lacks_fails() -> None:
    rows = {key: {"out_of_place": placements["out_of_place"]} for key, placements in A.rows.items()}
    assert [line.verdict for line in compare(A, BenchRecord("b", rows), 1.0).rows][:2] == [
        "ok",
        "missing in B",
    ]
    assert not compare(A, BenchRecord("b", rows), 1.0).ok
    assert compare(BenchRecord("a", rows), A, 1.0).ok


def test_rows_only_in_b_are_listed_and_pass() -> None:
    found = compare(a_record("a", [10.0, 20.0]), A, 0.05)
    assert found.ok
    assert [line.verdict for line in found.rows][4:] == ["only in B"] * 2
    assert verdict(found).startswith("ok: no value of 4")


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [(2, 0, "wrong data in A"), (0, 1, "wrong data in B"), (1, 1, "wrong data in A and B")],
)
def test_wrong_data_never_passes(a: int, b: int, word: str) -> None:
    times = [10.0, 20.0, 400.0]
    found = compare(a_record("a", times, a), a_record("b", times, b), math.inf)
    assert not found.ok
    assert {line.verdict for line in found.rows} == {word}
    assert word in verdict(found)


def test_wrong_data_in_a_row_that_only_b_has_fails() -> None:
    rows = {**A.rows, KEYS[2]: {"in_place": (Figures(1.0, 1.0, 1.0, 5),)}}
    found = compare(a_record("a", [10.0, 20.0]), BenchRecord("b", rows), 0.05)
    assert not found.ok
    assert "the worst is wrong data in B, at 1048576 B float sum in place" in verdict(found)


def test_what_was_not_checked_may_pass() -> None:
    assert compare(a_record("a", [1.0], None), a_record("b", [1.0], None), 0.0).ok


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (math.nan, 10.0),
        (10.0, math.nan),
        (10.0, math.inf),
        (0.0, 10.0),
        (10.0, 0.0),
        (10.0, -1.0),
        (-1.0, -1.0),
    ],
)
def test_what_is_no_time_never_passes(a: float, b: float) -> None:
    found = compare(a_record("a", [a]), a_record("b", [b]), math.inf)
    assert [line.verdict for line in found.rows] == ["not a time"] * 2
    assert not found.ok


def test_zero_equals_zero() -> None:
    assert compare(a_record("a", [0.0]), a_record("b", [0.0]), 0.0, metric="busbw").ok


def test_cycles_compare_by_their_medians() -> None:
    cycles = tuple(Figures(time, 1.0, 1.0, 0) for time in (10.0, 11.0, 500.0))
    found = compare(
        a_record("a", [11.0]),
        BenchRecord("b", {KEYS[0]: dict.fromkeys(("out_of_place", "in_place"), cycles)}),
        0.0,
    )
    assert [line.b for line in found.rows] == [11.0, 11.0]
    assert found.ok


def test_one_wrong_cycle_is_wrong() -> None:
    cycles = (Figures(10.0, 1.0, 1.0, 0), Figures(10.0, 1.0, 1.0, 3))
    found = compare(a_record("a", [10.0]), BenchRecord("b", {KEYS[0]: {"out_of_place": cycles}}), 0.0)
    assert found.rows[0].verdict == "wrong data in B"


def test_the_worst_is_the_slowest() -> None:
    found = compare(A, a_record("b", [10.0 * 1.4, 20.0 / 1.6, 400.0]), 0.05)
    assert verdict(found) == (
        "not ok: 2 of 6 values fail (tolerance 5 %); "
        "the worst is 1.400 times A's, at 8 B float sum out of place"
    )


def test_the_table_ends_with_the_verdict() -> None:
    text = render(compare(A, a_record("b", [10.0, 21.5, 400.0]), 0.05))
    lines = text.splitlines()
    assert lines[:3] == ["A: a", "B: b", "time in us"]
    assert lines[4].split() == ["size", "type", "redop", "root", "placement", "A", "B", "B/A", "verdict"]
    assert lines[7].split() == [
        "1024",
        "float",
        "sum",
        "-1",
        "out",
        "of",
        "place",
        "20.00",
        "21.50",
        "1.075",
        "slower",
    ]
    assert lines[-1].startswith("not ok: 2 of 6")
    assert len({len(line) for line in lines[4:11]}) == 1


@pytest.mark.parametrize(
    ("b", "arguments", "sentence"),
    [
        (A, {"tolerance": -0.1}, "tolerance is not a fraction"),
        (A, {"tolerance": math.nan}, "tolerance is not a fraction"),
        (A, {"tolerance": 0.1, "metric": "speed"}, "unknown metric: got speed"),
        (a_record("b", [1.0], clock="cputime"), {"tolerance": 0.1}, "different times: got time and cputime"),
        (
            a_record("b", [1.0], program="reduce_perf"),
            {"tolerance": 0.1},
            "of different tests: got all_reduce and reduce",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(b: BenchRecord, arguments: dict, sentence: str) -> None:
    a = a_record("a", [1.0], program="all_reduce_perf_mpi")
    with pytest.raises(UserError, match=sentence):
        compare(a, b, **arguments)


def test_bandwidths_of_different_clocks_compare() -> None:
    assert compare(A, a_record("b", [10.0, 20.0, 400.0], clock="cputime"), 0.0, metric="busbw").ok


def test_the_mpi_binary_is_the_same_test() -> None:
    pair = [a_record("x", [1.0], program=f"all_reduce_perf{suffix}") for suffix in ("", "_mpi")]
    assert compare(*pair, 0.0).ok
