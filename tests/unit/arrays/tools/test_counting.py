"""Histograms and counts of arrays that are split over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import on_ranks, same, split, split_values, values

from meshrun.runner.arrays.tools import fixed_point as sums_of_slices
from meshrun.runner.arrays.tools.counting import bincount, histogram
from meshrun.runner.arrays.tools.fixed_point import binned_sums, fixed_point
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))


@pytest.fixture(scope="module", autouse=True)
def _small_slabs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_of_slices, "HOST_SLAB", 7)
        yield


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


@FEWER
@given(
    drawn=split_values(["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8"]),
    bins=st.one_of(
        st.integers(1, 9),
        st.lists(st.sampled_from([-1.5, 0, 0, 1, 2, 3, 100]), min_size=1, max_size=5).map(sorted),
        st.sampled_from([0, [2, 1], [[1, 2]], 2.5]),
    ),
    range=st.sampled_from([None, (0, 3), (0.5, 1e4), (2, 2), (3, 1), (0, np.inf)]),
    density=st.booleans(),
)
def test_histograms_have_numpys_bits(drawn: Any, bins: Any, range: Any, density: bool) -> None:
    """Values at edges, NaNs, equal edges; and what NumPy refuses is refused."""
    whole, grid = drawn
    try:
        numpys = np.histogram(whole, bins, range, density)
    except (TypeError, ValueError) as failure:
        numpys, refusal = None, str(failure)

    def body(world: World) -> Any:
        if numpys is None:
            with pytest.raises(UserError) as raised:
                histogram(split(world, whole, grid), bins, range, density)
            assert raised.value.why == refusal
            world.control.barrier()
            return None
        array = split(world, whole, grid)
        ones = split(world, np.ones(whole.shape, "i8"), grid)
        # The bins of weights are found otherwise.
        weighted = histogram(array, bins, range, density, ones)
        counts = histogram(array, bins, range, density)
        same(weighted[0], counts[0])
        return counts

    for ours in on_ranks(int(np.prod(grid)), body):
        if numpys is not None:
            same(ours[0], numpys[0])
            same(ours[1], numpys[1])


@FEWER
@given(data=st.data(), drawn=split_values(["f4"]), dtype=st.sampled_from(["i4", "f2", "f4", "f8", "c8"]))
def test_weights_add_up_to_the_same_bits_on_any_ranks(data: Any, drawn: Any, dtype: str) -> None:
    whole, grid = drawn
    weights = values(
        dtype, whole.size, data.draw(st.integers(0, 9)), data.draw(st.sampled_from(["few", "random"]))
    )
    weights = weights.reshape(whole.shape)
    bins = [-np.inf, -10, 0, 1, 10, np.inf]

    def body(world: World, parts: Any) -> Any:
        return histogram(split(world, whole, parts), bins, weights=split(world, weights, parts))[0]

    (alone,) = on_ranks(1, lambda world: body(world, (1,)))
    for ours in on_ranks(int(np.prod(grid)), lambda world: body(world, grid)):
        same(ours, alone)
    assert alone.dtype == weights.dtype
    numpys = np.histogram(whole, bins, weights=weights.astype("c16" if dtype == "c8" else "f8"))[0]
    if dtype == "i4":
        numpys = numpys.astype("i8").astype("i4")
    size = abs(weights).astype("f8").sum()  # NumPy subtracts sums of several bins
    eps = np.finfo(dtype).eps if dtype[0] in "fc" else 0
    with np.errstate(invalid="ignore"):
        known = np.isfinite(numpys) & np.isfinite(alone)
        assert (abs(alone - numpys)[known] <= 60 * eps * size).all()


@FEWER
@given(drawn=split_values(["?", "i1", "u2", "i4"], axes=1), minlength=st.integers(0, 9))
def test_counts_have_numpys_bits(drawn: Any, minlength: int) -> None:
    whole, grid = drawn
    whole = whole % 20 if whole.dtype != bool else whole
    for ours in on_ranks(grid[0], lambda world: bincount(split(world, whole, grid), minlength=minlength)):
        same(ours, np.bincount(whole, minlength=minlength))


@FEWER
@given(
    ranks=st.sampled_from([1, 2, 3, 5]),
    size=st.integers(0, 50),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1.0, 1e300, 1e-300, 5e-324, 0.0]),
    odd=st.sampled_from([[], [np.inf], [np.nan], [np.inf, -np.inf]]),
)
def test_sums_of_weights_do_not_depend_on_the_order(
    ranks: int, size: int, seed: int, scale: float, odd: list[float]
) -> None:
    random = np.random.default_rng(seed)
    bins = random.integers(0, 5, size)
    weights = random.lognormal(0, 5, size) * random.choice([-1, 1], size) * scale / 1e3
    weights[: len(odd)] = odd[:size]
    order = random.permutation(size)

    def body(world: World) -> Any:
        sums = bincount(split(world, bins, (ranks,)), split(world, weights, (ranks,)), 5)
        moved = split(world, bins[order], (ranks,)), split(world, weights[order], (ranks,))
        same(bincount(moved[0], moved[1], 5), sums)
        return sums

    exact = np.zeros(5, "g")
    np.add.at(exact, bins, weights.astype("g"))
    for sums in on_ranks(ranks, body):
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(sums[~finite], exact[~finite].astype("f8"))
        largest = abs(weights[np.isfinite(weights)]).max(initial=0)
        assert (abs(sums - exact)[finite] <= 1e-15 * largest * max(size, 1) + 5e-324).all()


def test_slices_of_many_floats_add_exactly() -> None:
    """So many that a slice has few digits."""

    def body(world: World) -> Any:
        form = fixed_point(world, np.array([1.0, 0.75]), terms=1 << 30)
        parts = [*form.split(np, np.array([0.75]))]
        assert all(abs(part[0]) * 2.0**31 <= 2.0**53 for part in parts)
        return form.bits * len(parts) >= 64, form.join(np, parts)[0]

    assert on_ranks(1, body) == [(True, 0.75)]


def test_sums_are_those_of_exact_arithmetic() -> None:
    """1 is lost if floats are added from left to right."""
    weights = np.array([1e16, 1.0, -1e16])
    (sums,) = on_ranks(1, lambda world: binned_sums(world, np.zeros(3, "i8"), weights, 1))
    assert sums == [1]


def test_weights_that_are_split_otherwise_are_moved() -> None:
    labels, weights = np.arange(6) % 3, np.arange(6.0)

    def body(world: World) -> Any:
        array, moved = split(world, labels, (3,)), split(world, weights, (3,), starts=(0, 1, 5))
        table = split(world, labels.reshape(2, 3), (1, 3)), split(world, weights.reshape(2, 3), (3,))
        return bincount(array, moved).tolist(), histogram(table[0], 3, weights=table[1])[0].tolist()

    assert on_ranks(3, body) == [([3, 5, 7], [3, 5, 7])] * 3


def test_what_cannot_be_counted() -> None:
    def body(world: World) -> None:
        numbers, floats = split(world, np.array([1, -2, 3]), (2,)), split(world, np.zeros(3), (2,))
        for call, message in (
            (lambda: bincount(numbers), "bincount takes integers of 0 or more: got -2"),
            (lambda: bincount(floats), "bincount takes an array of one axis of integers: got float64"),
            (lambda: bincount(split(world, np.zeros(3, "i4"), (2,)), minlength=-1), "minlength is negative"),
            (lambda: histogram(floats, "auto"), "histogram chooses no number of bins"),
            (
                lambda: histogram(floats, 3, weights=split(world, np.zeros(4), (2,))),
                "weights has not the shape of the array: got shape",
            ),
        ):
            with pytest.raises(UserError, match=message):
                call()
        world.control.barrier()

    on_ranks(2, body)
