"""Positions and different values of arrays that are split over the ranks are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import DTYPES, joined, on_ranks, same, split, split_values, values

from meshrun.runner.arrays.tools.searching import searchsorted, unique
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))


@FEWER
@given(drawn=split_values(), index=st.booleans(), inverse=st.booleans(), counts=st.booleans())
def test_unique_is_numpys(drawn: Any, index: bool, inverse: bool, counts: bool) -> None:
    whole, grid = drawn
    results = on_ranks(
        int(np.prod(grid)), lambda world: unique(split(world, whole, grid), index, inverse, counts)
    )
    numpys = np.unique(whole, index, inverse, counts)
    if not (index or inverse or counts):
        results, numpys = [(result,) for result in results], (numpys,)
    ours = [joined([*one]) for one in zip(*results, strict=True)]
    np.testing.assert_array_equal(ours[0], numpys[0])  # zeros of any sign
    assert ours[0].dtype == numpys[0].dtype
    for mine, theirs in zip(ours[1:], numpys[1:], strict=True):
        same(mine, theirs.reshape(mine.shape) if np.__version__.startswith("2.0") else theirs)


@FEWER
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    ranks=st.sampled_from([1, 2, 3, 5]),
    size=st.integers(0, 30),
    side=st.sampled_from(["left", "right"]),
)
def test_positions_are_numpys(data: Any, dtype: str, ranks: int, size: int, side: Any) -> None:
    kind = data.draw(st.sampled_from(["random", "few", "equal", "special"]))
    cells = np.sort(values(dtype, size, 1, kind), kind="stable")
    wanted = np.concatenate([values(dtype, 12, 1, kind), values(dtype, 12, 2, kind)]).reshape(4, 6)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=ranks - 1, max_size=ranks - 1)))

    def body(world: World) -> Any:
        a, v = split(world, cells, (ranks,), starts=(0, *cuts)), split(world, wanted, (1, ranks))
        return searchsorted(a, v, side), searchsorted(a, wanted, side), searchsorted(cells, v, side)

    results = on_ranks(ranks, body)
    numpys = np.searchsorted(cells, wanted, side)
    same(joined([result[0] for result in results]), numpys)
    same(joined([result[2] for result in results]), numpys)
    for result in results:
        same(result[1], numpys)


def test_a_single_value_and_other_dtypes() -> None:
    def body(world: World) -> Any:
        a = split(world, np.arange(5), (2,))
        return searchsorted(a, 2.5), joined_of_one(searchsorted(a, split(world, np.array([2.5, 9]), (2,))))

    def joined_of_one(array: Any) -> Any:
        return array.interior.tolist()

    assert on_ranks(2, body) == [(3, [3]), (3, [5])]


def test_what_cannot_be_searched() -> None:
    def body(world: World) -> None:
        array = split(world, np.zeros((4, 2)), (2,))
        with pytest.raises(UserError, match="takes a sorted array of one axis: got shape"):
            searchsorted(array, 1)
        with pytest.raises(UserError, match="unknown side: got middle"):
            searchsorted(split(world, np.zeros(4), (2,)), 1, "middle")  # type: ignore[arg-type]
        with pytest.raises(UserError, match="takes arrays that are split over the ranks"):
            searchsorted(np.zeros(4), 1)
        with pytest.raises(UserError, match="takes arrays that are split over the ranks"):
            unique(np.zeros(4))  # type: ignore[arg-type]
        world.control.barrier()

    on_ranks(2, body)
