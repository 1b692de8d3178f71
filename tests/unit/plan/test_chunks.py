"""Chunks cover an array once, whatever its shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Region


@given(st.data())
def test_every_cell_is_in_one_chunk(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    grid = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    chunks = Chunks(Partition(shape, grid), data.draw(st.integers(1, 10)))
    seen = np.zeros(shape, int)
    for number in range(len(chunks)):
        region = chunks[number]
        assert region.size > 0
        assert region.shape[0] <= chunks.rows
        seen[region.slices] += 1
    assert (seen == 1).all()


def test_chunks_are_numbered_block_by_block() -> None:
    chunks = Chunks(Partition((5, 4), (1, 2)), 2)
    assert [str(chunks[number]) for number in range(len(chunks))] == [
        "[0:2, 0:2]", "[2:4, 0:2]", "[4:5, 0:2]", "[0:2, 2:4]", "[2:4, 2:4]", "[4:5, 2:4]",
    ]  # fmt: skip
    with pytest.raises(IndexError):
        chunks[6]


def test_regions_are_the_arrays_own() -> None:
    assert Chunks(Partition((7,), (1,)), 3)[2] == Region((6,), (7,))
