"""bench_data.cu, run on the host, against the NumPy reference: the same bits, the same verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.jobs.measure import check, patterns
from meshrun.jobs.measure.exact_reductions import tolerance
from meshrun.jobs.measure.patterns import Contributed, Copied, Reduced, Segment, Untouched
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype

ALL = [pytest.param(datatype, id=name) for name, datatype in DATATYPES.items()]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(kernels_on_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_on_host", lambda memory: False)
    monkeypatch.setattr(check, "BLOCKS", 3)  # so that a thread has several elements


def pieces(datatype: Datatype, *contents: patterns.Data) -> list[Segment]:
    """One after the other, with gaps, of many sizes, not at the start."""
    segments, start = [], 3
    for number, content in enumerate(contents):
        count = (1, 255, 1300, 0)[number % 4]
        segments.append(Segment(start, count, content, number))
        start += count + number % 3
    return segments


def memory_for(datatype: Datatype, segments: list[Segment]) -> np.ndarray[Any, Any]:
    last = max(segment.start + segment.count for segment in segments)
    memory = np.empty((last + 5) * datatype.itemsize, np.uint8)
    check.poison(memory)
    return memory


def contents_of(datatype: Datatype) -> list[patterns.Data]:
    contents: list[patterns.Data] = [
        Copied(1, 0),
        Untouched(),
        Copied(-7, patterns.PERIOD - 100),
        Copied(2, 5),
    ]
    for reduction in REDUCTIONS:
        for ranks in (1, 2, 3, 8, 64, 100, 300):
            index = patterns.PERIOD * ranks - 77
            contents.append(Contributed(ranks, index, reduction, ranks, ranks // 2))
            contents.append(Contributed(ranks, index, reduction, ranks, ranks - 1))
            contents.append(Reduced(ranks, index, reduction, ranks))
    return contents


@pytest.mark.parametrize("datatype", ALL)
def test_kernels_make_and_check_the_bits_of_the_reference(datatype: Datatype) -> None:
    segments = pieces(datatype, *contents_of(datatype))
    memory = memory_for(datatype, segments)
    check.fill(memory, datatype, segments)
    expected = memory_for(datatype, segments).view(f"u{datatype.itemsize}")
    for segment in segments:
        values = patterns.values(datatype, segment.data, 0, segment.count)
        expected[segment.start : segment.start + segment.count] = values
    np.testing.assert_array_equal(memory.view(expected.dtype), expected)
    assert check.verify(memory, datatype, segments) is None


@pytest.mark.parametrize("datatype", ALL)
def test_the_kernel_finds_what_the_reference_finds(
    datatype: Datatype, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = pieces(datatype, *contents_of(datatype))
    generator = np.random.default_rng(3)
    for flips in (1, 1, 2, 50, 3000):
        memory = memory_for(datatype, segments)
        check.fill(memory, datatype, segments)
        for place in generator.integers(0, memory.size, flips):
            memory[place] ^= 1 << generator.integers(0, 8)
        with monkeypatch.context() as context:
            found = check.verify(memory, datatype, segments)
            context.setattr(check, "_on_host", lambda memory: True)
            assert found == check.verify(memory, datatype, segments)


def test_the_kernel_allows_what_tolerance_says_and_no_nan() -> None:
    datatype, ranks = DATATYPES["f8e4m3"], 300
    assert tolerance(datatype, "avg", ranks) == 2
    segments = [Segment(0, 2000, Reduced(1, 0, "avg", ranks))]
    memory = np.empty(2000, np.uint8)
    check.fill(memory, datatype, segments)
    for apart, wrong in ((2, 0), (3, 2000)):
        found = check.verify(memory + np.uint8(apart), datatype, segments)
        assert (found.count if found else 0) == wrong


def test_the_kernel_takes_no_nan_for_the_largest_number() -> None:
    datatype, segment = DATATYPES["f8e4m3"], Segment(0, 2000, Copied(1, 0))
    right = patterns.values(datatype, segment.data, 0, segment.count)
    for numbers, wrong in (((0x7D, 0x7E), 0), ((0x7E, 0x7F), np.count_nonzero(right == 0x7E))):
        memory, found = right.copy(), np.zeros(2, np.uint64)
        memory[right == numbers[0]] = numbers[1]
        check._launch("verify", memory, datatype, segment, *np.array([2, 0x7E], np.uint64), found)
        assert found[0] == wrong


def test_a_thread_that_finds_two_reports_the_first() -> None:
    datatype, segments = DATATYPES["uint8"], [Segment(0, 5000, Copied(1, 0))]
    memory = memory_for(datatype, segments)
    check.fill(memory, datatype, segments)
    memory[[100 + number * check.THREADS * check.BLOCKS for number in range(3)]] ^= 1
    found = check.verify(memory, datatype, segments)
    assert found is not None
    assert (found.count, found.offset) == (3, 100)
