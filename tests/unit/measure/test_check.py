"""Faults of data in a collective, and their detection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.measure import check, patterns
from meshrun.jobs.measure.check import DataMismatch
from meshrun.jobs.measure.patterns import Contributed, Copied, Reduced, Segment, Untouched
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype

Array = np.ndarray[Any, Any]

ALL = [pytest.param(datatype, id=name) for name, datatype in DATATYPES.items()]
CHUNK = 500  # elements


def filled(datatype: Datatype, segments: list[Segment]) -> Array:
    count = max(segment.start + segment.count for segment in segments)
    memory = np.empty(count * datatype.itemsize, np.uint8)
    check.poison(memory)
    check.fill(memory, datatype, segments)
    return memory


def gathered(seed: int = 4, ranks: int = 4) -> list[Segment]:
    """An all_gather's result: each rank's chunk, by a seed of its own."""
    return [Segment(rank * CHUNK, CHUNK, Copied(100 * seed + rank, 0), rank) for rank in range(ranks)]


def exchanged(seed: int = 4, ranks: int = 4, rank: int = 1) -> list[Segment]:
    """An alltoall's result: this rank's chunk out of each rank's data."""
    return [
        Segment(source * CHUNK, CHUNK, Copied(100 * seed + source, rank * CHUNK), source)
        for source in range(ranks)
    ]


def combined(reduction: str, ranks: int = 4, seed: int = 4, count: int = 4 * CHUNK) -> list[Segment]:
    return [Segment(0, count, Reduced(seed, 0, reduction, ranks))]


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("count", [0, 1, 1000, 2 * patterns.PERIOD + 100])
def test_right_data_are_right(datatype: Datatype, count: int) -> None:
    segments = [
        Segment(7, count, Copied(1, 9), 0),
        Segment(count + 7, count, Reduced(1, 9, "sum", 3)),
        Segment(2 * count + 8, 2, Untouched()),
    ]
    memory = filled(datatype, segments)
    assert check.verify(memory, datatype, segments) is None
    # Repeats with PERIOD, and nothing else was written.
    words = memory.view(f"u{datatype.itemsize}")
    for segment in segments:
        own = words[segment.start : segment.start + segment.count]
        np.testing.assert_array_equal(own, patterns.values(datatype, segment.data, 0, segment.count))
    assert np.all(memory[: 7 * datatype.itemsize] == patterns.POISON)
    assert np.all(words[2 * count + 7 :] == words[0])


def test_elements_outside_segments_are_left_alone_and_not_checked() -> None:
    datatype = DATATYPES["float"]
    segments = [Segment(5, 10, Copied(1, 0), 0), Segment(20, 4, Contributed(1, 0, "sum", 4, 2), 2)]
    memory = np.arange(128, dtype=np.uint8)
    before = memory.copy()
    check.fill(memory, datatype, segments)
    untouched = np.r_[0:20, 60:80, 96:128]
    np.testing.assert_array_equal(memory[untouched], before[untouched])
    memory[untouched] = 0
    assert check.verify(memory, datatype, segments) is None


@pytest.mark.parametrize("name", ["int8", "half", "float", "double"])
def test_memory_may_begin_at_any_element(name: str) -> None:
    datatype = DATATYPES[name]
    whole = np.empty(4 * CHUNK * datatype.itemsize + 8, np.uint8)
    for shift in (datatype.itemsize, 3):
        memory = whole[shift : shift + 4 * CHUNK * datatype.itemsize]
        check.fill(memory, datatype, gathered())
        assert check.verify(memory, datatype, gathered()) is None


@given(
    st.sampled_from(list(DATATYPES.values())),
    st.sampled_from(["all_gather", "alltoall", "untouched", *REDUCTIONS]),
    st.integers(0, 2**32),
)
def test_a_flipped_bit_is_found_and_named(datatype: Datatype, what: str, draw: int) -> None:
    segments = {
        "all_gather": gathered(),
        "alltoall": exchanged(),
        "untouched": [Segment(0, 2 * CHUNK, Copied(1, 0), 0), Segment(2 * CHUNK, 9, Untouched())],
    }.get(what) or combined(what)
    memory = filled(datatype, segments)
    bit = draw % (8 * memory.size)
    offset = bit // 8 // datatype.itemsize
    words = memory.view(f"u{datatype.itemsize}")
    expected = int(words[offset])
    memory[bit // 8] ^= 1 << bit % 8
    [segment] = [one for one in segments if one.start <= offset < one.start + one.count]
    found = check.verify(memory, datatype, segments)
    assert found == DataMismatch(1, offset, int(words[offset]), expected, segment.source, datatype)
    assert found.flipped_bits == 1


def test_the_first_is_the_first_in_the_order_of_the_segments() -> None:
    datatype = DATATYPES["int32"]
    segments = gathered()[::-1]
    memory = filled(datatype, segments)
    words = memory.view(np.uint32)
    words[[3, 3 * CHUNK + 40, 3 * CHUNK + 7, 2 * CHUNK]] ^= 0b1011
    found = check.verify(memory, datatype, segments)
    assert found is not None
    assert (found.count, found.offset, found.source, found.flipped_bits) == (4, 3 * CHUNK + 7, 3, 3)


def test_an_element_beyond_the_period_is_found() -> None:
    datatype = DATATYPES["uint8"]
    segments = [Segment(0, 3 * patterns.PERIOD, Copied(1, 0), 0)]
    memory = filled(datatype, segments)
    memory[[2 * patterns.PERIOD + 9, patterns.PERIOD + 9, patterns.PERIOD + 5]] ^= 1
    found = check.verify(memory, datatype, segments)
    assert found is not None
    assert (found.count, found.offset) == (3, patterns.PERIOD + 5)


def wrong_in(memory: Array, datatype: Datatype, segments: list[Segment]) -> int:
    found = check.verify(memory, datatype, segments)
    return found.count if found else 0


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("segments", [gathered, exchanged])
def test_swapped_chunks_are_found(datatype: Datatype, segments: Any) -> None:
    right = segments()
    memory = filled(datatype, right)
    size = CHUNK * datatype.itemsize
    memory[:size], memory[size : 2 * size] = memory[size : 2 * size].copy(), memory[:size].copy()
    assert wrong_in(memory, datatype, right) > 1.9 * CHUNK


@pytest.mark.parametrize("datatype", ALL)
def test_another_ranks_part_is_found(datatype: Datatype) -> None:
    memory = filled(datatype, exchanged(rank=2))
    assert wrong_in(memory, datatype, exchanged(rank=1)) > 3.9 * CHUNK


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 9, 100])
def test_stale_and_unwritten_results_are_found(datatype: Datatype, reduction: str, ranks: int) -> None:
    right = combined(reduction, ranks)
    memory = filled(datatype, combined(reduction, ranks, seed=5))
    assert wrong_in(memory, datatype, right) > 0
    memory = filled(datatype, combined(reduction, ranks, count=CHUNK))
    short = np.full(4 * CHUNK * datatype.itemsize, patterns.POISON, np.uint8)
    short[: memory.size] = memory
    found = check.verify(short, datatype, right)
    assert found is not None
    assert found.offset in range(CHUNK, CHUNK + 200)  # poison may be right by chance where few values are
    assert found.count > 2.5 * CHUNK


@pytest.mark.parametrize("datatype", ALL)
def test_a_shifted_result_is_found(datatype: Datatype) -> None:
    right = combined("sum")
    memory = filled(datatype, right)
    assert wrong_in(np.roll(memory, datatype.itemsize), datatype, right) > 2 * CHUNK


@pytest.mark.parametrize("datatype", ALL)
def test_writing_where_nothing_may_be_is_found(datatype: Datatype) -> None:
    segments = [Segment(0, 10, Copied(1, 0), 0), Segment(10, 10, Untouched())]
    memory = filled(datatype, segments)
    memory[12 * datatype.itemsize] = 0
    found = check.verify(memory, datatype, segments)
    assert found is not None
    assert (found.count, found.offset, found.source) == (1, 12, None)


def test_minus_zero_is_not_zero() -> None:
    datatype = DATATYPES["f8e5m2"]
    right = combined("sum", 8)
    memory = filled(datatype, right)
    zeros = np.flatnonzero(memory == 0)
    memory[zeros] = 0x80
    assert wrong_in(memory, datatype, right) == zeros.size > 0


def test_tolerance_counts_representable_numbers_and_never_reaches_infinity_or_nan() -> None:
    half = DATATYPES["half"]

    def close(got: int, expected: int, allowed: int) -> bool:
        words = [np.array([bits], np.uint16) for bits in (got, expected)]
        return bool(check._close(*words, half, allowed)[0])

    assert close(0x3C00, 0x3C02, 2)
    assert not close(0x3C00, 0x3C03, 2)
    assert close(0x8000, 0x0000, 1)  # -0 and +0
    assert close(0x8001, 0x0001, 3)  # the subnormals beside them
    assert not close(0x8001, 0x0001, 2)
    assert not close(0xBC00, 0x3C00, 100)
    assert not close(0x7C00, 0x7BFF, 2)  # infinity, and the number below
    assert not close(0x7E00, 0x7BFF, 5000)
    assert not close(0xFE00, 0xFBFF, 5000)


def test_an_average_within_tolerance_is_right() -> None:
    datatype, right = DATATYPES["f8e4m3"], combined("avg", 300)
    memory = filled(datatype, right)
    assert check.verify(memory + np.uint8(2), datatype, right) is None
    assert wrong_in(memory + np.uint8(3), datatype, right) == 4 * CHUNK


@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [
        ("float", 0x3FC00000, "1.5 (0x3fc00000)"),
        ("float", 0x3DCCCCCD, "0.1 (0x3dcccccd)"),
        ("double", 1 << 63, "-0.0 (0x8000000000000000)"),
        ("half", 0x7E00, "nan (0x7e00)"),
        ("bfloat16", 0x3FC0, "1.5 (0x3fc0)"),
        ("f8e4m3", 0x7E, "448 (0x7e)"),
        ("f8e5m2", 0x7C, "inf (0x7c)"),
        ("int8", 0xFF, "-1 (0xff)"),
        ("uint64", 2**64 - 1, "18446744073709551615 (0xffffffffffffffff)"),
    ],
)
def test_an_element_for_people(name: str, bits: int, expected: str) -> None:
    assert check.text(bits, DATATYPES[name]) == expected
