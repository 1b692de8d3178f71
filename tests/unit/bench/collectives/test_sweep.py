"""The order of all calls of a run, against that of nccl-tests (TimeTest and BenchTime), written out by hand.

The calls are those of rank 1 of 2 gathering floats: of 64 bytes, 32 are its own.
"""

from __future__ import annotations

import textwrap
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun.jobs.bench.collectives import timing
from meshrun.jobs.bench.collectives.measure import sweep
from meshrun.jobs.bench.collectives.results import ResultRow
from meshrun.jobs.bench.collectives.session import Bench
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS


@pytest.fixture
def journal(bench_on: Any, recorded: Any) -> Any:
    """Record the calls of rank 1 of 2 in a sweep of all_gather; `queues` as for `recorded`."""

    def run(queues: bool = False, **settings: Any) -> list[str]:
        def body(bench: Bench) -> list[str]:
            watched = recorded(bench, queues)
            list(sweep(watched.bench))
            return watched.journal

        journal: list[str] = bench_on(2, "all_gather", body, **settings)[1]
        return journal

    return run


def steps(text: str) -> list[str]:
    """One step a line, or several with commas between; # begins a comment."""
    lines = (line.partition("#")[0] for line in textwrap.dedent(text).splitlines())
    return [step.strip() for line in lines for step in line.split(",") if step.strip()]


def test_two_sizes(journal: Any) -> None:
    assert journal(minbytes=64, maxbytes=256, stepfactor=4, iters=3, warmup_iters=2) == steps(
        """
        barrier
        # The warm-up doubles sizes, whatever -f is, and rotates through the 256 bytes.
        send+0 > recv+0, send+64 > recv+64, wait
        send+0 > recv+0, send+128 > recv+128, wait
        send+0 > recv+0, send+0 > recv+0, wait
        # 64 bytes, out of place: an untimed call, three of which one is checked, and one more
        fresh send+0 > recv+0, wait, barrier
        send+0 > recv+0, fresh send+64 > recv+64, send+128 > recv+128, wait, barrier
        fresh send+0 > recv+0, wait
        # in place: from this rank's half; the check before has poisoned what follows its result
        fresh recv+32 > recv+0, wait, barrier
        recv+32 > recv+0, fresh recv+96 > recv+64, fresh recv+160 > recv+128, wait, barrier
        fresh recv+32 > recv+0, wait
        # 256 bytes: no room to rotate
        fresh send+0 > recv+0, wait, barrier
        send+0 > recv+0, send+0 > recv+0, send+0 > recv+0, wait, barrier
        fresh send+0 > recv+0, wait
        fresh recv+128 > recv+0, wait, barrier
        recv+128 > recv+0, recv+128 > recv+0, recv+128 > recv+0, wait, barrier
        fresh recv+128 > recv+0, wait
        """
    )


@pytest.mark.parametrize("settings", [{}, {"blocking": 1}, {"cudagraph": 2}])
def test_the_untimed_call_is_repeated(
    journal: Any, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before the one that nccl-tests makes, too, of sizes up to a limit; all else stays as it is."""
    monkeypatch.setattr(timing, "STEADY_SECONDS", 1e-9)
    monkeypatch.setattr(timing, "STEADY_BYTES", 64)
    monkeypatch.setattr(timing, "STEADY_CALLS", 3)
    sizes = {"minbytes": 64, "maxbytes": 128, "stepfactor": 2, "iters": 2, "warmup_iters": 0, "check": 0}
    plain, steady = journal(**sizes, **settings), journal(steady=True, **sizes, **settings)
    added = ["send+0 > recv+0"] * 3 + ["wait"], ["recv+32 > recv+0"] * 3 + ["wait"]
    out = 1 + next(n for n, step in enumerate(plain) if step == "wait" and plain[n + 1] == "send+0 > recv+0")
    within = plain.index("recv+32 > recv+0")
    assert steady == [*plain[:out], *added[0], *plain[out:within], *added[1], *plain[within:]]


def test_the_untimed_call_is_repeated_for_some_time_equally_often_on_every_rank(
    bench_on: Any, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is fast; it repeats as often as rank 0."""
    clocks = {0: iter([0.0, 0.9e-3, 1e-3, 1.9e-3, 2e-3, 2.9e-3]), 1: iter([0.0] * 6)}

    def body(bench: Bench) -> int:
        watched = recorded(bench, False)
        ticks = clocks[bench.group.rank]
        ranks.rank = bench.group.rank
        timing.keep_busy(watched.bench, [])
        assert next(ticks, None) is None
        return watched.journal.count("wait")

    ranks = threading.local()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clocks[ranks.rank])))
    assert bench_on(2, "all_gather", body) == [3, 3]


# One size from here on. Its beginning and its two placements, as the settings change them:
IN_PLACE = """
        fresh recv+32 > recv+0, wait, barrier
        recv+32 > recv+0, fresh recv+96 > recv+64, wait, barrier
        fresh recv+32 > recv+0, wait
"""


def test_without_warm_up_sizes_are_still_waited_for(journal: Any) -> None:
    assert journal(maxbytes=128, stepfactor=3, iters=2, warmup_iters=0) == steps(
        """
        barrier, wait, wait
        fresh send+0 > recv+0, wait, barrier
        send+0 > recv+0, fresh send+64 > recv+64, wait, barrier
        fresh send+0 > recv+0, wait
        """
        + IN_PLACE
    )


def test_steps_of_so_many_bytes(journal: Any) -> None:
    found = journal(minbytes=32, maxbytes=96, stepfactor=1, stepbytes=32, check=0)
    in_place = [step for step in found if step.startswith("recv")]
    # Sizes 32, 64 and 96, of which rank 1 has the upper halves; each once untimed and once timed.
    assert in_place == [f"recv+{half} > recv+0" for half in (16, 16, 32, 32, 48, 48)]


def test_two_cycles_warm_up_once(journal: Any) -> None:
    once, twice = (journal(maxbytes=128, run_cycles=cycles) for cycles in (1, 2))
    warm_up = ["barrier", "wait", "wait"]
    assert once[:3] == warm_up
    assert twice == once + once[3:]


def test_aggregated_operations_are_one_group(journal: Any) -> None:
    """-m 4 -n 2: buffers rotate through the groups; neither the untimed nor the checked call is grouped.

    In place, all places but the first and that of the checked call hold the poison that followed a result.
    """
    assert journal(maxbytes=384, stepfactor=64, iters=2, agg_iters=4)[4:] == steps(
        """
        fresh send+0 > recv+0, wait, barrier
        {, send+0 > recv+0, send+64 > recv+64, send+128 > recv+128, fresh send+192 > recv+192, }
        {, send+256 > recv+256, send+320 > recv+320, send+0 > recv+0, send+64 > recv+64, }
        wait, barrier
        fresh send+0 > recv+0, wait
        fresh recv+32 > recv+0, wait, barrier
        {, recv+32 > recv+0, fresh recv+96 > recv+64, fresh recv+160 > recv+128, fresh recv+224 > recv+192, }
        {, fresh recv+288 > recv+256, fresh recv+352 > recv+320, recv+32 > recv+0, fresh recv+96 > recv+64, }
        wait, barrier
        fresh recv+32 > recv+0, wait
        """
    )


def test_a_graph_is_launched_so_often_and_checked_by_one_more(journal: Any) -> None:
    assert journal(queues=True, maxbytes=128, stepfactor=64, iters=2, cudagraph=3)[3:] == steps(
        """
        fresh send+0 > recv+0, wait, barrier
        [, send+0 > recv+0, fresh send+64 > recv+64, ], barrier
        launch, launch, launch, wait, barrier
        [, fresh send+0 > recv+0, ], launch, wait
        fresh recv+32 > recv+0, wait, barrier
        [, recv+32 > recv+0, fresh recv+96 > recv+64, ], barrier
        launch, launch, launch, wait, barrier
        [, fresh recv+32 > recv+0, ], launch, wait
        """
    )


def test_queued_calls_are_waited_for_before_the_check(bench_on: Any, recorded: Any) -> None:
    """On a device that does nothing before it is waited for, results are still right."""

    def body(bench: Bench) -> list[ResultRow]:
        return list(sweep(recorded(bench, queues=True).bench))

    for settings in ({}, {"cudagraph": 2}, {"agg_iters": 2}, {"blocking": 1}, {"per_iter_timing": True}):
        rows = bench_on(3, "all_reduce", body, maxbytes=256, iters=4, check=2, **settings)[0]
        assert [(row.out_of_place.wrong, row.in_place.wrong) for row in rows] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("blocking", "timed"),
    [
        (1, "send+0 > recv+0, wait, barrier, fresh send+64 > recv+64, wait, barrier"),
        (2, "send+0 > recv+0, wait, fresh send+64 > recv+64, wait"),
        (3, "send+0 > recv+0, wait, barrier, fresh send+64 > recv+64, wait, barrier"),
    ],
)
def test_calls_that_are_waited_for(journal: Any, blocking: int, timed: str) -> None:
    found = journal(maxbytes=128, stepfactor=64, iters=2, blocking=blocking)
    expected = steps(f"fresh send+0 > recv+0, wait, barrier, {timed}, barrier, fresh send+0 > recv+0, wait")
    assert found[3 : 3 + len(expected)] == expected


@pytest.mark.parametrize("check", [0, 1, 2])
def test_so_many_checks(journal: Any, check: int) -> None:
    found = journal(maxbytes=128, stepfactor=64, iters=2, check=check)
    # Without checks nothing is written into the buffers first, so that nothing looks fresh.
    first = "fresh " if check else ""
    expected = steps(
        f"{first}send+0 > recv+0, wait, barrier, send+0 > recv+0, {first}send+64 > recv+64, wait, barrier"
    ) + check * ["fresh send+0 > recv+0", "wait"]
    assert found[3 : 3 + len(expected)] == expected
    assert len(found) == 3 + 2 * len(expected)


def test_shifted_buffers(journal: Any) -> None:
    """-u 3: three floats further, in both buffers and placements."""
    assert journal(maxbytes=128, stepfactor=64, iters=2, unalign=3)[3:] == steps(
        """
        fresh send+12 > recv+12, wait, barrier
        send+12 > recv+12, fresh send+76 > recv+76, wait, barrier
        fresh send+12 > recv+12, wait
        fresh recv+44 > recv+12, wait, barrier
        recv+44 > recv+12, fresh recv+108 > recv+76, wait, barrier
        fresh recv+44 > recv+12, wait
        """
    )


@pytest.fixture
def rows(bench_on: Any) -> Any:
    def run(ranks: int, operation: str, **settings: Any) -> list[ResultRow]:
        found: list[ResultRow] = bench_on(ranks, operation, lambda bench: list(sweep(bench)), **settings)[0]
        return found

    return run


def kinds(rows: list[ResultRow]) -> list[tuple[str, str, int]]:
    return [(row.datatype, row.reduction, row.root) for row in rows]


def test_all_types_and_reductions_come_in_nccls_order(rows: Any) -> None:
    found = rows(2, "all_reduce", datatypes=(*DATATYPES,), reductions=REDUCTIONS)
    assert kinds(found) == [(name, reduction, -1) for name in DATATYPES for reduction in REDUCTIONS]
    assert kinds(found)[:7] == [
        ("int8", "sum", -1), ("int8", "prod", -1), ("int8", "max", -1), ("int8", "min", -1),
        ("int8", "avg", -1), ("int8", "mulsum", -1), ("uint8", "sum", -1),
    ]  # fmt: skip


def test_operations_without_a_reduction_run_once(rows: Any) -> None:
    two = {"datatypes": ("half", "int64"), "reductions": ("max", "avg")}
    assert kinds(rows(2, "all_gather", **two)) == [("half", "none", -1), ("int64", "none", -1)]
    assert kinds(rows(2, "hypercube", **two)) == [("half", "", -1), ("int64", "", -1)]
    # But nccl-tests loops over reductions for sendrecv, which has none.
    assert kinds(rows(2, "sendrecv", **two)) == [
        ("half", "max", -1), ("half", "avg", -1), ("int64", "max", -1), ("int64", "avg", -1),
    ]  # fmt: skip


def test_every_root_in_turn(rows: Any) -> None:
    assert kinds(rows(3, "broadcast", root=-1)) == [("float", "none", root) for root in (0, 1, 2)]
    assert kinds(rows(3, "gather", root=2)) == [("float", "none", 2)]
    # Roots are innermost.
    assert kinds(rows(2, "reduce", root=-1, reductions=("sum", "max"))) == [
        ("float", "sum", 0), ("float", "sum", 1), ("float", "max", 0), ("float", "max", 1),
    ]  # fmt: skip
    assert kinds(rows(3, "all_reduce", root=-1)) == [("float", "sum", -1)]


def test_the_first_columns(rows: Any) -> None:
    found = rows(3, "all_gather", minbytes=8, maxbytes=1000, stepfactor=5)
    assert [(row.size, row.count) for row in found] == [(0, 0), (0, 0), (192, 16), (960, 80)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "alltoallv", "scatter", "sendrecv"])
def test_sizes_too_small_for_an_element_are_measured_as_nothing(
    rows: Any, operation: str, ranks: int
) -> None:
    found = rows(ranks, operation, minbytes=1, maxbytes=4, datatypes=("double",), iters=2)
    assert [(row.size, row.count) for row in found] == [(0, 0)] * 3
    assert {row.out_of_place.wrong for row in found} == {0}
    assert {row.out_of_place.algbw for row in found} == {0.0}
