"""Percentiles, quantiles and medians of arrays that are split over the ranks have NumPy's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import joined, on_ranks, split, split_values, values

from meshrun.runner.arrays.tools import order_statistics
from meshrun.runner.arrays.tools.order_statistics import METHODS, median, percentile, quantile
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))
REALS = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "m8[us]", "M8[s]"]
# Before, the dtype of the array determined that of the percentages.
SAME_BITS = np.lib.NumpyVersion(np.__version__) >= "2.4.0"

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def equal(ours: Any, numpys: Any) -> None:
    """Zeros of both signs are equal: NumPy returns any of them."""
    ours, numpys = np.asarray(ours), np.asarray(numpys)
    if SAME_BITS:
        assert (ours.dtype, ours.shape) == (numpys.dtype, numpys.shape)
        np.testing.assert_array_equal(ours, numpys)
    else:
        np.testing.assert_allclose(ours.astype("f8"), numpys.astype("f8"), rtol=1e-3)


@FEWER
@given(
    data=st.data(),
    drawn=split_values(REALS),
    method=st.sampled_from(METHODS),
    q=st.one_of(st.floats(0, 100), st.integers(0, 100), st.lists(st.floats(0, 100), min_size=1, max_size=5)),
    small=st.booleans(),
)
def test_percentiles_are_numpys(data: Any, drawn: Any, method: str, q: Any, small: bool) -> None:
    whole, grid = drawn
    axis = data.draw(st.sampled_from([None, *range(-whole.ndim, whole.ndim)]))
    if not whole.size:
        return
    ranks = int(np.prod(grid))
    try:
        numpys = np.percentile(whole, q, axis, method=method)
    except TypeError:  # bool has no differences
        numpys = None

    def body(world: World) -> Any:
        array = split(world, whole, grid)
        if numpys is None:
            with pytest.raises(UserError, match="percentile cannot take these arguments"):
                percentile(array, q, axis, method=method)
            return None
        return percentile(array, q, axis, method=method)

    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(order_statistics, "FEW", 1)
            patch.setattr(order_statistics, "SAMPLE", 4)
        ours = on_ranks(ranks, body)
    if numpys is not None:
        for result in [joined(ours)] if axis is not None and whole.ndim > 1 else ours:
            equal(result, numpys)


@FEWER
@given(data=st.data(), drawn=split_values([*REALS[:-1], "c8"]))
def test_medians_along_an_axis_are_numpys(data: Any, drawn: Any) -> None:
    whole, grid = drawn
    axis = data.draw(st.integers(-whole.ndim, whole.ndim - 1))
    numpys = np.median(whole, axis)
    ours = on_ranks(int(np.prod(grid)), lambda world: median(split(world, whole, grid), axis))
    result = joined(ours) if whole.ndim > 1 else np.asarray(ours[0])
    assert result.dtype == numpys.dtype
    if whole.dtype.kind == "c":  # NaNs of any kind
        np.testing.assert_array_equal(np.isnan(result), np.isnan(numpys))
        result, numpys = np.where(np.isnan(result), 0, result), np.where(np.isnan(numpys), 0, numpys)
    np.testing.assert_array_equal(result, numpys)


@FEWER
@given(drawn=split_values([*REALS[:-1], "c8"]), small=st.booleans())
def test_medians_are_numpys(drawn: Any, small: bool) -> None:
    whole, grid = drawn
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(order_statistics, "FEW", 1)
            patch.setattr(order_statistics, "SAMPLE", 4)
        for ours in on_ranks(int(np.prod(grid)), lambda world: median(split(world, whole, grid))):
            if whole.dtype.kind == "c" and np.isnan(whole).any():
                assert np.isnan(ours)
            else:
                np.testing.assert_array_equal(ours, np.median(whole))
                assert np.asarray(ours).dtype == np.asarray(np.median(whole)).dtype


@pytest.mark.parametrize("kind", ["random", "few", "equal"])
def test_few_rounds_select_of_many_cells(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round leaves a few percent of the cells."""
    monkeypatch.setattr(order_statistics, "FEW", 1 << 10)
    monkeypatch.setattr(order_statistics, "SAMPLE", 1 << 10)
    rounds = []
    sample = order_statistics._sample
    monkeypatch.setattr(
        order_statistics, "_sample", lambda *arguments: (rounds.append(1), sample(*arguments))[1]
    )
    whole = values("f4", 100_001, 3, kind)

    def body(world: World) -> Any:
        array = split(world, whole, (3,))
        return quantile(array, [0.01, 0.5, 0.99]), median(array)

    for ours, middle in on_ranks(3, body):
        equal(ours, np.quantile(whole, [0.01, 0.5, 0.99]))
        assert middle == np.median(whole)
    # Each rank: two rounds for each of the four brackets, at most.
    assert len(rounds) <= 3 * (1 + 3 + 2)


def test_a_quantile_has_the_dtype_of_the_array_unless_its_own_counts() -> None:
    whole = values("f4", 10, 0)
    for q in (0.3, np.float64(0.3), [0.3]):
        for ours in on_ranks(2, lambda world, q=q: quantile(split(world, whole, (2,)), q)):
            equal(ours, np.quantile(whole, q))


def test_what_has_no_percentile() -> None:
    def body(world: World) -> None:
        array = split(world, np.zeros((4, 3)), (2,))
        for arguments, message in (
            ((array, 101), "percentile out of range: got 101, expected from 0 to 100"),
            ((array, np.nan), "percentile out of range"),
            ((array, "high"), "percentile cannot take these arguments: could not convert"),
            ((array, 5, 2), "no such axis"),
            ((split(world, np.zeros((0, 3)), (2,)), 5), "percentile of an array without cells"),
            ((split(world, np.zeros(3, "c8"), (2,)), 5), "percentile of complex numbers"),
        ):
            with pytest.raises(UserError, match=message):
                percentile(*arguments)
        with pytest.raises(UserError, match="median cannot take these arguments"):
            median(split(world, np.zeros(3, "M8[s]"), (2,)))
        with pytest.raises(UserError, match="median cannot take these arguments"):
            median(split(world, np.zeros((3, 4), "M8[s]"), (2,)), 0)
        with pytest.raises(UserError, match="percentile has no such method: got 'hazen'"):
            percentile(array, 5, method="hazen")
        world.control.barrier()

    on_ranks(2, body)
