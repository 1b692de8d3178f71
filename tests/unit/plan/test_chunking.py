"""How many rows of a chunk fit a memory, by hand and by trial; and a forecast's decisions are a run's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UserError
from runner.plan.chunking import Budget, MemoryUse, chunk_memory

FLOAT32 = np.dtype(np.float32)


def test_what_a_chunk_takes_by_hand() -> None:
    # 10 rows of 100 float32, one cell of halo round it: 12 x 102 x 4 bytes; the result 10 x 100 x 4.
    halo = ((1, 1), (1, 1))
    assert chunk_memory((10, 100), halo, FLOAT32, 4000, asynchronous=False) == MemoryUse(2 * 4896 + 4000, 0)
    assert chunk_memory((10, 100), halo, FLOAT32, 4000, asynchronous=True) == MemoryUse(
        4896 + 4000, 2 * 4896 + 4000
    )
    none = ((0, 0), (0, 0))
    assert chunk_memory((10, 100), none, FLOAT32, 4000, asynchronous=True) == MemoryUse(8000, 8000)


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

    def takes(rows: int) -> MemoryUse:
        return chunk_memory((rows, columns), widths, FLOAT32, rows * columns * 4, asynchronous=True)

    def fits(rows: int) -> bool:
        return depth * takes(rows).host <= host and depth * takes(rows).device <= device

    budget = Budget(MemoryUse(host, device), depth)
    if not fits(align):
        with pytest.raises(UserError, match="does not fit the"):
            budget.rows(takes(align), takes(2 * align), wanted=wanted, align=align)
        return
    rows = budget.rows(takes(align), takes(2 * align), wanted=wanted, align=align)
    assert rows % align == 0
    assert fits(rows)
    assert rows <= max(wanted, align)
    assert not fits(rows + align) or rows + align > wanted


def test_a_row_that_does_not_fit_is_told_with_both_numbers() -> None:
    one = chunk_memory((1, 1000), ((1, 1), (0, 0)), FLOAT32, 4000, asynchronous=False)
    with pytest.raises(UserError) as refusal:
        Budget(MemoryUse(10_000, 0), 3).rows(one, one, wanted=10, align=1)
    assert str(refusal.value) == (
        "a chunk of a row with its halo does not fit the host memory: got 3 chunks of 28,000 bytes, "
        "expected at most 10,000 bytes. Try: --host-memory, --depth 1, or --grid, which cuts rows too"
    )
