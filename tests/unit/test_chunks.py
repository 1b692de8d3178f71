"""Chunks cover an array once, whatever its shape; and how many rows of it fit a memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.chunks import Chunks, Need, Room, need
from runner.errors import UserError
from runner.partition import Partition, Region

FLOAT32 = np.dtype(np.float32)


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


def test_what_a_chunk_takes_by_hand() -> None:
    # 10 rows of 100 float32, one cell of halo round it: 12 x 102 x 4 bytes; the result 10 x 100 x 4.
    halo = ((1, 1), (1, 1))
    assert need((10, 100), halo, FLOAT32, 4000, asynchronous=False) == Need(2 * 4896 + 4000, 0)
    assert need((10, 100), halo, FLOAT32, 4000, asynchronous=True) == Need(4896 + 4000, 2 * 4896 + 4000)
    none = ((0, 0), (0, 0))
    assert need((10, 100), none, FLOAT32, 4000, asynchronous=True) == Need(8000, 8000)


@given(
    st.integers(1, 50),
    st.integers(0, 4),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 100),
    st.integers(200, 100_000),
    st.integers(200, 100_000),
)
def test_the_rows_chosen_are_the_most_that_fit(
    columns: int, halo: int, depth: int, align: int, wanted: int, host: int, device: int
) -> None:
    widths = ((halo, halo), (halo, 0))

    def takes(rows: int) -> Need:
        return need((rows, columns), widths, FLOAT32, rows * columns * 4, asynchronous=True)

    def fits(rows: int) -> bool:
        return depth * takes(rows).host <= host and depth * takes(rows).device <= device

    room = Room(Need(host, device), depth)
    if not fits(align):
        with pytest.raises(UserError, match="does not fit the"):
            room.rows(takes(align), takes(2 * align), wanted=wanted, align=align)
        return
    rows = room.rows(takes(align), takes(2 * align), wanted=wanted, align=align)
    assert rows % align == 0
    assert fits(rows)
    assert rows <= max(wanted, align)
    assert not fits(rows + align) or rows + align > wanted


def test_a_row_that_does_not_fit_is_told_with_both_numbers() -> None:
    one = need((1, 1000), ((1, 1), (0, 0)), FLOAT32, 4000, asynchronous=False)
    with pytest.raises(UserError) as refusal:
        Room(Need(10_000, 0), 3).rows(one, one, wanted=10, align=1)
    assert str(refusal.value) == (
        "a chunk of a row with its halo does not fit the host memory: got 3 chunks of 28,000 bytes, "
        "expected at most 10,000 bytes. Try: --host-memory, --depth 1, or --grid, which cuts rows too"
    )


def test_regions_are_the_arrays_own() -> None:
    assert Chunks(Partition((7,), (1,)), 3)[2] == Region((6,), (7,))
