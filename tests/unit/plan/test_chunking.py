"""How many rows of a chunk fit a memory, by hand and by trial; and a forecast's decisions are a run's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import UserError
from meshrun.runner.plan.chunking import Budget, MemoryUse, chunk_memory


def of_chunk(cells: tuple[int, int], halo: tuple[int, int], *, asynchronous: bool) -> MemoryUse:
    """What float32 cells take. halo: on either side of each axis."""
    (rows, columns), (across, along) = cells, halo
    padded = (rows + 2 * across) * (columns + 2 * along) * 4
    return chunk_memory(padded, rows * columns * 4, halo=any(halo), asynchronous=asynchronous)


def test_what_a_chunk_takes_by_hand() -> None:
    # 10 rows of 100 float32, one cell of halo round it: 12 x 102 x 4 bytes; the result 10 x 100 x 4.
    assert of_chunk((10, 100), (1, 1), asynchronous=False) == MemoryUse(2 * 4896 + 4000, 0)
    assert of_chunk((10, 100), (1, 1), asynchronous=True) == MemoryUse(4896 + 4000, 2 * 4896 + 4000)
    assert of_chunk((10, 100), (0, 0), asynchronous=True) == MemoryUse(8000, 8000)


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

    def takes(rows: int) -> MemoryUse:
        return of_chunk((rows, columns), (halo, halo), asynchronous=True)

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
    one = chunk_memory(12_000, 4000, halo=True, asynchronous=False)  # 1 row of 1000 float32, 2 of halo
    with pytest.raises(UserError) as refusal:
        Budget(MemoryUse(10_000, 0), 3).rows(one, one, wanted=10, align=1)
    assert str(refusal.value) == (
        "a chunk of a row with its halo does not fit the host memory: got 3 chunks of 28,000 bytes, "
        "expected at most 10,000 bytes. Try: --host-memory, --depth 1, or --grid, which cuts rows too"
    )
