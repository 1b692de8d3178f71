"""Sorted arrays that are split over the ranks have the bits of NumPy's stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import DTYPES, joined, on_ranks, same, split, split_values, values

from meshrun.runner.arrays.tools import sorting
from meshrun.runner.arrays.tools.sorting import argsort, find_cuts, sort, sort_own
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))


@FEWER
@given(data=st.data(), drawn=split_values())
def test_sort_and_argsort_have_numpys_bits(data: Any, drawn: Any) -> None:
    whole, grid = drawn
    axis = data.draw(st.sampled_from([None, *range(-whole.ndim, whole.ndim)]))

    def body(world: World) -> Any:
        array = split(world, whole, grid)
        return sort(array, axis), argsort(array, axis), array

    ordered, indices, untouched = zip(*on_ranks(int(np.prod(grid)), body), strict=True)
    same(joined([*ordered]), np.sort(whole, axis, kind="stable"))
    same(joined([*indices]), np.argsort(whole, axis, kind="stable").astype("i8"))
    same(joined([*untouched]), whole)


@FEWER
@given(dtype=st.sampled_from(DTYPES), kind=st.sampled_from(["random", "few", "equal", "special"]))
def test_cells_that_are_split_unevenly_are_sorted_evenly(dtype: str, kind: str) -> None:
    """Ranks without cells too; in the smallest windows."""
    whole = values(dtype, 500, 1, kind)

    def body(world: World) -> Any:
        array = split(world, whole, (5,), starts=(0, 0, 450, 451, 451))
        return sort(array), argsort(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "SAMPLES", 1)
        ordered, indices = zip(*on_ranks(5, body), strict=True)
    same(joined([*ordered]), np.sort(whole, kind="stable"))
    same(joined([*indices]), np.argsort(whole, kind="stable"))
    assert [array.interior.size for array in ordered] == [100] * 5


@FEWER
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    different=st.sampled_from([1, 3, 1000]),
    fractions=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_cuts_are_those_of_the_whole_order(
    lengths: list[int], different: int, fractions: list[float], seed: int
) -> None:
    """The order of key, rank and position: equal keys do not go to one rank."""
    random = np.random.default_rng(seed)
    parts = [np.sort(random.integers(0, different, length)) for length in lengths]
    rank = np.repeat(np.arange(len(parts)), lengths)[np.argsort(np.concatenate(parts), kind="stable")]
    targets = sorted(int(fraction * sum(lengths)) for fraction in fractions)
    for cuts in on_ranks(len(lengths), lambda world: find_cuts(world, parts[world.rank], lengths, targets)):
        for cut, target in zip(cuts, targets, strict=True):
            np.testing.assert_array_equal(cut, np.bincount(rank[:target], minlength=len(parts)))


def test_few_rounds_find_the_cuts_of_many_cells() -> None:
    """Windows get narrower by much more than a half in a round."""
    gathers = []

    def body(world: World) -> Any:
        cells = np.arange(1 << 20) * (world.rank + 1)
        count = 0
        gather = world.all_gather

        def counted(array: Any, axis: int = 0) -> Any:
            nonlocal count
            count += 1
            return gather(array, axis)

        world.all_gather = counted  # type: ignore[method-assign]
        find_cuts(world, cells, [1 << 20] * 2, [1 << 20])
        gathers.append(count)

    on_ranks(2, body)
    assert max(gathers) <= 4


@FEWER
@given(dtype=st.sampled_from(["f2", "f4", "f8", ">f4", "g"]), seed=st.integers(0, 99))
def test_own_floats_are_sorted_as_integers(dtype: str, seed: int) -> None:
    """NaNs with any sign and payload, zeros of both signs, infinities."""
    random = np.random.default_rng(seed)
    cells = values("f8", 60, seed, "special").astype(dtype)
    if dtype in ("f2", "f4", "f8"):
        bits = random.integers(0, 256, (20, np.dtype(dtype).itemsize), dtype="u1").view(dtype)[:, 0]
        bits.view(f"u{np.dtype(dtype).itemsize}")[::2] |= np.array(np.nan, dtype).view(
            f"u{np.dtype(dtype).itemsize}"
        )
        cells = random.permutation(np.concatenate([cells, bits]))
    before = cells.tobytes()
    (ours, _), numpys = sort_own(np, cells), np.sort(cells, kind="stable")
    assert cells.tobytes() == before
    if dtype == "g":  # whose padding has any bits
        np.testing.assert_array_equal(ours, numpys)
    else:
        same(ours, numpys)


@pytest.mark.parametrize(
    "pair", [(0.0, -0.0), (np.nan, -np.nan), (1.0, 2.0)], ids=["zeros", "NaNs", "neither"]
)
def test_equal_cells_of_two_ranks_keep_their_order(pair: Any) -> None:
    """No rank alone has both."""
    whole = np.repeat(np.array(pair, "f4"), [3, 5])
    for cells in (whole, whole[::-1].copy()):
        ordered = on_ranks(2, lambda world, cells=cells: sort(split(world, cells, (2,), starts=(0, 3))))
        same(joined(ordered), np.sort(cells, kind="stable"))


def test_what_cannot_be_sorted() -> None:
    def body(world: World) -> None:
        array = split(world, np.zeros((4, 3)), (2,))
        for function in (sort, argsort):
            with pytest.raises(UserError, match="no such axis: got 2, expected an axis of 2"):
                function(array, 2)
            with pytest.raises(UserError, match=r"takes arrays that are split over the ranks: got ndarray"):
                function(np.zeros(3))  # type: ignore[arg-type]
        world.control.barrier()

    on_ranks(2, body)
