"""Cumulative sums and products of arrays that are split over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import joined, on_ranks, same, split, split_values, values

from meshrun.runner.arrays.tools import scans
from meshrun.runner.arrays.tools.scans import cumprod, cumsum
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))
SCANS = {cumsum: np.cumsum, cumprod: np.cumprod}


@FEWER
@given(
    data=st.data(),
    drawn=split_values(["?", "i1", "u2", "i4", "u8"]),
    function=st.sampled_from([*SCANS]),
    chunk=st.sampled_from([2, 3, 5, 1024]),
)
def test_scans_of_integers_have_numpys_bits(data: Any, drawn: Any, function: Any, chunk: int) -> None:
    whole, grid = drawn
    axis = data.draw(st.sampled_from([None, *range(-whole.ndim, whole.ndim)]))
    dtype = data.draw(st.sampled_from([None, "i2", "i8"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "CHUNK", chunk)
        ours = on_ranks(int(np.prod(grid)), lambda world: function(split(world, whole, grid), axis, dtype))
    same(joined(ours), SCANS[function](whole, axis, dtype))


@FEWER
@given(
    data=st.data(),
    drawn=split_values(["f2", "f4", "f8", "c8"]),
    function=st.sampled_from([*SCANS]),
    chunk=st.sampled_from([2, 3, 5, 1024]),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scans_of_floats_have_the_same_bits_on_any_ranks(
    data: Any, drawn: Any, function: Any, chunk: int
) -> None:
    """Also infinities and NaNs where NumPy has them."""
    whole, grid = drawn
    if data.draw(st.booleans()):
        whole = np.nan_to_num(
            whole % 3 if whole.dtype.kind == "f" else whole / 1e3, nan=0.5, posinf=2, neginf=1
        )
    axis = data.draw(st.sampled_from([None, *range(whole.ndim)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "CHUNK", chunk)
        ours = joined(on_ranks(int(np.prod(grid)), lambda world: function(split(world, whole, grid), axis)))
        alone = joined(on_ranks(1, lambda world: function(split(world, whole), axis)))
    # The sign of a NaN depends on the vector instructions.
    same(np.where(np.isnan(ours), 0, ours), np.where(np.isnan(alone), 0, alone))
    np.testing.assert_array_equal(ours, alone)
    # In the next longer dtype; a sum's error is that of its terms' sizes.
    numpys = SCANS[function](whole, axis)
    if function is cumsum and whole.dtype.kind == "f" and np.isfinite(whole).all():
        exact = np.cumsum(whole.astype("g"), axis)
        size = np.cumsum(abs(whole.astype("g")), axis)
        finite = np.isfinite(numpys)
        eps = np.finfo(whole.dtype).eps * max(max(whole.shape, default=0), 8)
        assert (abs(ours - exact) <= eps * size)[finite].all()
    assert ours.dtype == numpys.dtype
    if np.isfinite(whole).all() is False:
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(numpys))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_minus_zeros_and_infinities_are_numpys() -> None:
    for cells in ([-0.0, -0.0, 1.0, np.inf, 2.0, -np.inf, 1.0], [np.nan, 1.0], [-0.0]):
        whole = np.array(cells)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scans, "CHUNK", 3)
            same(
                joined(on_ranks(2, lambda world, whole=whole: cumsum(split(world, whole, (2,))))),
                np.cumsum(whole),
            )


def test_chunks_of_an_aligned_array_do_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "CHUNK", 8)
    whole = values("f4", 64, 0)

    def body(world: World) -> None:
        array = split(world, whole, (2,))
        monkeypatch.setattr(World, "redistribute", None)
        cumsum(array)

    on_ranks(2, body)


def test_half_precision_is_rounded_once() -> None:
    whole = np.ones(3000, "f2")  # half precision has no 2049
    ours = joined(on_ranks(2, lambda world: cumsum(split(world, whole, (2,)))))
    np.testing.assert_array_equal(ours, np.arange(1, 3001).astype("f2"))


def test_what_cannot_be_scanned() -> None:
    def body(world: World) -> None:
        with pytest.raises(UserError, match="no such axis: got 1"):
            cumsum(split(world, np.zeros(4), (2,)), 1)
        with pytest.raises(UserError, match="cumsum cannot take these arguments"):
            cumsum(split(world, np.zeros(4, "M8[s]"), (2,)))
        world.control.barrier()

    on_ranks(2, body)
