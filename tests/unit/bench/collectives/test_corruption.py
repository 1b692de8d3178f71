"""Planted wrong data is found and named: rank, offset, values, and the rank whose data was expected.

Every operation, datatype, reduction, placement and number of ranks, on ranks as threads; a wrapper of one
rank's collectives does the damage, before or after each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.collectives.checks import chosen_call
from meshrun.jobs.bench.collectives.measure import at_size, measure
from meshrun.jobs.bench.collectives.results import PlacementResult
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.jobs.measure.patterns import POISON
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Call
from meshrun.runner.comm.collectives.api import OPERATIONS as NAMES

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
GATHERING = ("all_gather", "hypercube", "gather")
RANKS = dict.fromkeys(NAMES, (2, 3, 4, 5)) | {"hypercube": (2, 4)}
DAILY = dict.fromkeys(NAMES, 3) | {"hypercube": 4}  # by day; all numbers of ranks at night
COUNTS = [
    pytest.param(
        name, ranks, id=f"{name}-{ranks}", marks=[] if ranks == DAILY[name] else [pytest.mark.nightly]
    )
    for name in NAMES
    for ranks in RANKS[name]
]


@dataclass(frozen=True)
class Bit:
    """A flipped bit: the element of a rank's result, its bits before and after."""

    element: int
    right: int
    wrong: int


class Flip:
    """Flip one bit of the data that a rank has just received, in the element at this fraction of it."""

    def __init__(self, fraction: float = 0.0, bit: int = 0) -> None:
        self.fraction, self.bit = fraction, bit
        self.last: Bit | None = None

    def __call__(self, call: Call, elements: int) -> None:
        width = call.datatype.itemsize
        words = call.recv.bytes(elements * width).view(f"u{width}")
        element = min(int(self.fraction * elements), elements - 1)
        right = int(words[element])
        words[element] ^= words.dtype.type(1 << self.bit % (8 * width))
        self.last = Bit(element, right, int(words[element]))


def points(bench: Bench, datatypes: Sequence[str], reductions: Sequence[str] = REDUCTIONS) -> Iterator[Point]:
    """Yield every check of one size; the root changes from one to the next."""
    operation, ranks = bench.operation, bench.group.size
    roots = itertools.cycle(range(ranks))
    for name in datatypes:
        for reduction in reductions if operation.name in REDUCING else ("sum",):
            for in_place in (False, True) if operation.in_place else (False,):
                counts = bench.counts(0, DATATYPES[name])
                root = next(roots) if operation.rooted else 0
                blank = Point(counts, DATATYPES[name], reduction, root, False, 0)
                yield at_size(bench, blank, bench.settings.maxbytes, in_place)


def owner(point: Point, operation: str, ranks: int, rank: int, element: int) -> int | None:
    """Return the rank whose data belongs at an element of a rank's result; None for reductions and poison."""
    count = point.counts.count
    if operation == "gather" and rank != point.root:
        return rank if point.in_place and element // count == rank else None
    if operation in (*GATHERING, "alltoall"):
        return element // count
    if operation == "alltoallv":
        assert point.counts.traffic is not None
        received = itertools.accumulate(row[rank] for row in point.counts.traffic)
        return next((peer for peer, end in enumerate(received) if element < end), None)
    if operation in ("broadcast", "scatter"):
        return point.root
    if operation == "sendrecv":
        return (rank - 1) % ranks
    return rank if operation == "reduce" and rank != point.root and point.in_place else None


def misnamed(
    measured: PlacementResult, flipped: Bit | None, point: Point, operation: str, ranks: int, rank: int
) -> list[str]:
    """List the differences of the findings from the one bit that was flipped on `rank`."""
    if flipped is None or len(measured.findings) != 1 or measured.wrong != 1:
        return [f"{operation} on {ranks}, {point}, rank {rank}: {flipped}, found {measured.findings}"]
    [found] = measured.findings
    digits = 2 * point.datatype.itemsize
    pairs = {
        "rank": (found.rank, rank),
        "count": (found.count, 1),
        "offset": (found.offset, flipped.element),
        "got": (found.got.rpartition(" ")[2], f"(0x{flipped.wrong:0{digits}x})"),
        "expected": (found.expected.rpartition(" ")[2], f"(0x{flipped.right:0{digits}x})"),
        "source": (found.source, owner(point, operation, ranks, rank, flipped.element)),
        "flipped bits": (found.flipped_bits, 1),
        "device": (found.device, "CPU"),
    }
    return [
        f"{operation} on {ranks}, {point}, rank {rank}: {what} is {got}, not {right}"
        for what, (got, right) in pairs.items()
        if got != right
    ]


def disturb(bench: Bench, disturbed: Any, **hooks: Callable[[Call], None]) -> None:
    bench.group = disturbed(bench.group, **hooks)


@pytest.mark.parametrize(("operation", "ranks"), COUNTS)
def test_one_flipped_bit_is_named_exactly(operation: str, ranks: int, bench_on: Any, disturbed: Any) -> None:
    """On every rank in turn, in every datatype, reduction and placement; the other ranks find nothing."""

    def body(bench: Bench) -> list[str]:
        undisturbed, complaints, turn = bench.group, [], 0
        for point in points(bench, [*DATATYPES]):
            for rank in range(ranks):
                turn += 1
                flip = Flip(fraction=turn * 0.618 % 1, bit=turn)
                bench.group = undisturbed
                if bench.group.rank == rank:
                    disturb(bench, disturbed, after=lambda call, p=point, f=flip: f(call, p.counts.recv))
                measured = measure(bench, point)
                if bench.group.rank == rank:
                    complaints += misnamed(measured, flip.last, point, operation, ranks, rank)
        return complaints

    # Large enough for an element of 8 bytes from everyone to everyone, by distance too.
    size = 16 * ranks * ranks + 24
    found = bench_on(ranks, operation, body, minbytes=size, maxbytes=size)
    assert [*itertools.chain(*found)] == []


@pytest.mark.parametrize(("operation", "ranks"), COUNTS)
def test_right_data_raise_no_alarm(operation: str, ranks: int, bench_on: Any) -> None:
    def body(bench: Bench) -> list[PlacementResult]:
        return [measure(bench, point) for point in points(bench, [*DATATYPES])]

    size = 16 * ranks * ranks + 24
    for measured in bench_on(ranks, operation, body, minbytes=size, maxbytes=size, check=2)[0]:
        assert (measured.wrong, measured.findings) == (0, ())


@given(
    case=st.sampled_from([(name, ranks) for name in NAMES for ranks in RANKS[name]]),
    datatype=st.sampled_from([*DATATYPES]),
    reduction=st.sampled_from(REDUCTIONS),
    size=st.integers(16 * 5 * 5, 3000),
    unalign=st.integers(0, 3),
    fraction=st.floats(0, 1),
    bit=st.integers(0, 63),
    victim=st.integers(0, 4),
    data=st.data(),
)
def test_any_bit_of_any_size_is_named(
    case: tuple[str, int], datatype: str, reduction: str, size: int, unalign: int, fraction: float, bit: int,
    victim: int, data: st.DataObject, bench_on: Any, disturbed: Any,
) -> None:  # fmt: skip
    operation, ranks = case
    victim %= ranks
    choice = data.draw(st.integers(0, 1 if SPECS[operation].in_place else 0), label="in place")

    def body(bench: Bench) -> list[str]:
        point = [*points(bench, [datatype], [reduction])][choice]
        flip = Flip(fraction, bit)
        if bench.group.rank == victim:
            disturb(bench, disturbed, after=lambda call: flip(call, point.counts.recv))
        measured = measure(bench, point)
        if bench.group.rank != victim:
            return []
        return misnamed(measured, flip.last, point, operation, ranks, victim)

    found = bench_on(ranks, operation, body, minbytes=size, maxbytes=size, unalign=unalign)
    assert [*itertools.chain(*found)] == []


# What goes wrong with more than a bit. Four ranks, elements of 8 bytes, so that nothing is right by chance.

WIDE = ("double", "int64")
HURT = 2  # the rank that it happens to


def harmed(
    operation: str, hooks: Callable[[Bench, Point], dict[str, Callable[[Call], None]]], bench_on: Any,
    disturbed: Any, at_root: bool = False,
) -> list[tuple[Point, PlacementResult]]:  # fmt: skip
    """Return every checked point and its result if rank 2's calls are disturbed; at_root: if it is root."""

    def body(bench: Bench) -> list[tuple[Point, PlacementResult]]:
        undisturbed, results = bench.group, []
        for point in points(bench, WIDE):
            bench.group = undisturbed
            if at_root and point.root != HURT and bench.operation.rooted:
                continue
            if bench.group.rank == HURT:
                disturb(bench, disturbed, **hooks(bench, point))
            results.append((point, measure(bench, point)))
        return results

    size = 1024 + 8
    results: list[tuple[Point, PlacementResult]] = bench_on(4, operation, body, minbytes=size, maxbytes=size)[
        0
    ]
    assert results
    return results


def receivers(operation: str, root: int) -> set[int]:
    """Return the ranks that receive data of rank 2."""
    if operation in ("broadcast", "scatter"):
        return {0, 1, 2, 3} if root == HURT else set()
    if operation in ("reduce", "gather"):
        return {root}
    if operation == "sendrecv":
        return {(HURT + 1) % 4}
    # By distance, nobody sends anything to itself.
    return {0, 1, 3} if operation == "alltoallv" else {0, 1, 2, 3}


@pytest.mark.parametrize("operation", NAMES)
def test_a_lost_contribution_is_found_by_all_who_needed_it(
    operation: str, bench_on: Any, disturbed: Any
) -> None:
    """One rank sends poison instead of its data."""

    def hooks(bench: Bench, point: Point) -> dict[str, Callable[[Call], None]]:
        nbytes = point.counts.send * point.datatype.itemsize

        def lose(call: Call) -> None:
            call.send.bytes(nbytes)[...] = POISON

        return {"before": lose}

    for point, measured in harmed(operation, hooks, bench_on, disturbed):
        finders = receivers(operation, point.root)
        if operation in ("reduce", "gather") and point.in_place and point.root != HURT:
            finders = finders | {HURT}  # its own input, which lies where its result would be
        assert {wrong.rank for wrong in measured.findings} == finders
        for wrong in measured.findings:
            if operation not in REDUCING:  # no other rank's data is blamed, and all of these are wrong
                assert wrong.source == HURT
                assert wrong.got.endswith("(0xa5a5a5a5a5a5a5a5)")
                assert wrong.count == {
                    "alltoallv": point.counts.traffic and point.counts.traffic[HURT][wrong.rank]
                }.get(operation, point.counts.count)


@pytest.mark.parametrize("operation", NAMES)
def test_swapped_chunks_are_found(operation: str, bench_on: Any, disturbed: Any) -> None:
    """A rank's result is complete, but two chunks are exchanged."""

    def hooks(bench: Bench, point: Point) -> dict[str, Callable[[Call], None]]:
        width, elements = point.datatype.itemsize, point.counts.recv
        chunk = elements // 4

        def swap(call: Call) -> None:
            words = call.recv.bytes(elements * width).view(f"u{width}")
            first, third = words[:chunk].copy(), words[2 * chunk : 3 * chunk].copy()
            words[:chunk], words[2 * chunk : 3 * chunk] = third, first

        return {"after": swap}

    for point, measured in harmed(operation, hooks, bench_on, disturbed, at_root=True):
        [wrong] = measured.findings
        chunk = point.counts.recv // 4
        assert wrong.rank == HURT
        assert wrong.offset < chunk
        # Sums of few bits may be alike in a few places, random bits are not.
        assert chunk < wrong.count <= 2 * chunk
        if operation not in REDUCING:
            assert (wrong.offset, wrong.count) == (0, 2 * chunk)


@pytest.mark.parametrize("operation", NAMES)
@pytest.mark.parametrize("missing", [1, 7])
def test_an_unwritten_tail_is_found(operation: str, missing: int, bench_on: Any, disturbed: Any) -> None:
    def hooks(bench: Bench, point: Point) -> dict[str, Callable[[Call], None]]:
        width, elements = point.datatype.itemsize, point.counts.recv

        def cut(call: Call) -> None:
            call.recv.bytes(elements * width)[-missing * width :] = POISON

        return {"after": cut}

    for point, measured in harmed(operation, hooks, bench_on, disturbed, at_root=True):
        [wrong] = measured.findings
        assert (wrong.rank, wrong.offset, wrong.count) == (HURT, point.counts.recv - missing, missing)
        assert wrong.got.endswith("(0xa5a5a5a5a5a5a5a5)")
        assert wrong.source == owner(point, operation, 4, HURT, wrong.offset)


@pytest.mark.parametrize("operation", NAMES)
def test_the_result_of_an_earlier_size_is_found(operation: str, bench_on: Any, disturbed: Any) -> None:
    """A rank keeps what it received in the previous measurement, of half the size."""

    def body(bench: Bench) -> list[tuple[Point, PlacementResult]]:
        datatype = DATATYPES["double"]
        root = HURT if bench.operation.rooted else 0
        blank = Point(bench.counts(0, datatype), datatype, "sum", root, False, 0)
        smaller, point = (at_size(bench, blank, size, in_place=False) for size in (512, 1024))
        kept: list[np.ndarray[Any, Any]] = []

        def keep(call: Call) -> None:
            kept[:] = [call.recv.bytes(smaller.counts.recv * 8).copy()]

        def replay(call: Call) -> None:
            call.recv.bytes(kept[0].size)[...] = kept[0]

        undisturbed, results = bench.group, []
        for now, hook in ((smaller, keep), (point, replay)):
            bench.group = undisturbed
            if bench.group.rank == HURT:
                disturb(bench, disturbed, after=hook)
            results.append((now, measure(bench, now)))
        return results

    (smaller, before), (_, after) = bench_on(4, operation, body, minbytes=1024, maxbytes=1024)[0]
    assert before.findings == ()
    [wrong] = after.findings
    assert (wrong.rank, wrong.offset) == (HURT, 0)
    assert smaller.counts.recv * 0.9 < wrong.count <= smaller.counts.recv
    if operation not in REDUCING:
        assert wrong.count == smaller.counts.recv


def test_what_is_written_beyond_a_ranks_share_is_found(bench_on: Any, disturbed: Any, tmp_path: Path) -> None:
    """By a matrix, rank 1 receives 64 bytes in all, and the busiest rank 160."""
    matrix = tmp_path / "matrix.txt"
    matrix.write_text("16 32 64\n48 16 96\n0 16 0\n")

    def body(bench: Bench) -> tuple[PlacementResult, PlacementResult]:
        point = next(points(bench, ["float"]))
        right = measure(bench, point)
        flip = Flip(0.5, 3)
        if bench.group.rank == 1:
            disturb(bench, disturbed, after=lambda call: flip(call, point.counts.recv))
        return right, measure(bench, point)

    right, measured = bench_on(3, "alltoallv", body, matrix=matrix, minbytes=160, maxbytes=160)[0]
    assert right.findings == ()
    [wrong] = measured.findings
    assert (wrong.rank, wrong.count, wrong.offset, wrong.source) == (1, 1, 20, None)
    assert wrong.expected.endswith("(0xa5a5a5a5)")


def test_several_ranks_that_are_wrong_are_each_named(bench_on: Any, disturbed: Any) -> None:
    def body(bench: Bench) -> PlacementResult:
        point = next(points(bench, ["float"], ["sum"]))
        if bench.group.rank in (0, 3):
            flip = Flip(0.5, bench.group.rank)
            disturb(bench, disturbed, after=lambda call: flip(call, point.counts.recv))
        return measure(bench, point)

    measured = bench_on(5, "all_gather", body, minbytes=1000, maxbytes=1000)[4]
    assert [(wrong.rank, wrong.count) for wrong in measured.findings] == [(0, 1), (3, 1)]
    assert measured.wrong == 2


def test_a_source_in_a_group_is_named_by_its_world_rank(bench_on: Any, disturbed: Any) -> None:
    """Five ranks, every other in a group: ranks 0, 2, 4 and 1, 3."""

    def body(bench: Bench) -> PlacementResult:
        point = next(points(bench, ["float"], ["sum"]))
        if bench.world.rank == 2:
            flip = Flip(0.99, 0)
            disturb(bench, disturbed, after=lambda call: flip(call, point.counts.recv))
        return measure(bench, point)

    measured = bench_on(5, "all_gather", body, minbytes=960, maxbytes=960, split="MOD2")[0]
    [wrong] = measured.findings
    assert (wrong.rank, wrong.source) == (2, 4)
    assert [group.wrong for group in measured.groups] == [1, 0]


@pytest.mark.parametrize("operation", NAMES)
def test_one_element_beyond_a_result_is_found(operation: str, bench_on: Any, disturbed: Any) -> None:
    """In both placements; in the call that is made to be checked, which is the last."""

    def hooks(bench: Bench, point: Point) -> dict[str, Callable[[Call], None]]:
        size = point.datatype.itemsize
        end = point.counts.recv * size

        def overrun(call: Call) -> None:
            call.recv.bytes(end + size)[end:] = 0x5A

        return {"after": overrun}

    for point, measured in harmed(operation, hooks, bench_on, disturbed, at_root=True):
        [wrong] = measured.findings
        assert (wrong.rank, wrong.offset, wrong.count) == (HURT, point.counts.recv, 1), point
        assert wrong.got.endswith("(0x5a5a5a5a5a5a5a5a)")


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "alltoall", "broadcast"])
@pytest.mark.parametrize(
    "settings", [{"iters": 6}, {"iters": 3, "agg_iters": 2}, {"iters": 6, "blocking": 1}]
)
def test_timed_calls_that_return_the_result_before_theirs_are_found(
    operation: str, settings: dict[str, int], bench_on: Any, disturbed: Any
) -> None:
    """The call after them, which is made to be checked, is right."""

    def body(bench: Bench) -> PlacementResult:
        point = at_size(bench, next(points(bench, WIDE)), 256, False)
        kept: list[np.ndarray[Any, Any]] = []

        def stale(call: Call) -> None:
            result = call.recv.bytes(point.counts.recv * 8)
            kept.append(result.copy())
            if 1 < len(kept) <= 1 + 6:  # after the untimed call
                result[...] = kept[-2]

        if bench.group.rank == HURT:
            disturb(bench, disturbed, after=stale)
        return measure(bench, point)

    measured = bench_on(4, operation, body, minbytes=256, maxbytes=2048, **settings)[0]
    [wrong] = measured.findings
    assert (wrong.rank, wrong.offset) == (HURT, 0)
    assert wrong.timed_call in range(6)


@pytest.mark.parametrize("in_place", [False, True])
def test_the_checked_timed_call_is_any_of_those_that_remain(in_place: bool, bench_on: Any) -> None:
    """The same on all ranks; a sum in place that is repeated on its own result is not checked."""

    def body(bench: Bench) -> list[tuple[int | None, int | None]]:
        chosen = []
        for bench.checks in range(60):
            blank = next(points(bench, WIDE))
            few, many = (at_size(bench, blank, size, in_place) for size in (256, 2048))
            chosen.append((chosen_call(bench, few), chosen_call(bench, many)))
        return chosen

    found = bench_on(2, "all_reduce", body, minbytes=256, maxbytes=2048, iters=12)
    assert found[0] == found[1]
    few, many = ({*column} for column in zip(*found[0], strict=True))
    assert many == ({None} if in_place else {11}), "one place, which every call overwrites"
    # Eight places: those of calls 4 to 11; 4 to 7 are not repeated, and 8 is at the first call's.
    assert few == ({4, 5, 6, 7, None} if in_place else {*range(4, 12)} - {8})
