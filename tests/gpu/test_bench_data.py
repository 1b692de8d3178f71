"""Bench's data kernels on a GPU against the NumPy reference: the same bits, the same verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.jobs.measure import check, patterns
from meshrun.jobs.measure.patterns import Contributed, Copied, Reduced, Segment, Untouched
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype

cupy = pytest.importorskip("cupy", reason="needs CuPy")

ALL = [pytest.param(datatype, id=name) for name, datatype in DATATYPES.items()]
RANKS = (1, 2, 3, 8, 72, 300)
COUNT = 5000


def contents() -> list[patterns.Data]:
    listed: list[patterns.Data] = [Copied(1, 0), Untouched(), Copied(-7, patterns.PERIOD - 100)]
    for reduction in REDUCTIONS:
        for ranks in RANKS:
            listed.append(Contributed(ranks, patterns.PERIOD - 77, reduction, ranks, ranks // 2))
            listed.append(Reduced(ranks, patterns.PERIOD - 77, reduction, ranks))
    return listed


def segments() -> list[Segment]:
    return [Segment(1 + number * COUNT, COUNT, content, number) for number, content in enumerate(contents())]


def filled(datatype: Datatype, xp: Any) -> Any:
    memory = xp.empty((len(segments()) * COUNT + 2) * datatype.itemsize, xp.uint8)
    check.poison(memory)
    check.fill(memory, datatype, segments())
    return memory


@pytest.mark.parametrize("datatype", ALL)
def test_gpu_and_host_fill_alike(datatype: Datatype) -> None:
    memory = filled(datatype, cupy)
    np.testing.assert_array_equal(memory.get(), filled(datatype, np))
    assert check.verify(memory, datatype, segments()) is None


@pytest.mark.parametrize("datatype", ALL)
def test_gpu_and_host_find_the_same(datatype: Datatype) -> None:
    generator = np.random.default_rng(3)
    right = filled(datatype, np)
    for flips in (1, 2, 50, 3000):
        memory = right.copy()
        for place in generator.integers(0, memory.size, flips):
            memory[place] ^= 1 << generator.integers(0, 8)
        expected = check.verify(memory, datatype, segments())
        assert check.verify(cupy.asarray(memory), datatype, segments()) == expected


def test_more_than_four_billion_elements() -> None:
    count = 2**32 + 100
    if cupy.cuda.Device().mem_info[0] < count + 2**30:
        pytest.skip("needs 5 GiB of free GPU memory")
    datatype, memory = DATATYPES["uint8"], cupy.empty(count, cupy.uint8)
    everything = [Segment(0, count, Copied(1, 0), 0)]
    check.fill(memory, datatype, everything)
    assert check.verify(memory, datatype, everything) is None
    memory[[2**32 + 50, 2**32 + 20]] ^= 4
    found = check.verify(memory, datatype, everything)
    assert found is not None
    assert (found.count, found.offset, found.flipped_bits) == (2, 2**32 + 20, 1)
