"""Transforms of split arrays, and their batches of lines on a GPU, against numpy.fft."""

from __future__ import annotations

from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy_lines import by_numpy, operand_and_result

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.plan.grid import bounds
from meshrun.runner.transforms.device import DeviceTransform, batches_of
from meshrun.runner.transforms.plan import Real
from meshrun.runner.transforms.split import SplitTransform, best_split
from meshrun.runner.world.world import open_world

KINDS: list[Real] = ["", "forward", "inverse"]


@pytest.mark.parametrize("real", KINDS)
@pytest.mark.parametrize("shape", [(1,), (7,), (30,), (64,), (5, 6), (8, 1), (4, 5, 6), (3, 2, 9)])
def test_the_same_bits_on_any_number_of_ranks(shape: tuple[int, ...], real: Real) -> None:
    dtype = "f4" if sum(shape) % 2 else "f8"
    for axes in [
        order for count in range(len(shape)) for order in permutations(range(len(shape)), count + 1)
    ]:
        whole, wanted, length = operand_and_result(shape, axes, real, dtype)
        split = (sum(axes) + len(axes)) % len(shape)
        transform = SplitTransform(shape, axes, real, real == "inverse", length, split)
        found = set()
        for ranks in (1, 2, 3, 5):

            def rank(control: Any, ranks: int = ranks, transform: Any = transform, whole: Any = whole) -> Any:
                world = open_world("cpu", control=control)
                first, last = bounds(transform.shape[transform.split], ranks, world.rank)
                part = (slice(None),) * transform.split + (slice(first, last),)
                return transform.carry_out(world, np.ascontiguousarray(whole[part]))

            got = np.concatenate(run_ranks(ranks, rank), axis=transform.result_split)
            found.add(got.tobytes())
        assert got.shape == wanted.shape == transform.result_shape
        tolerance = 32 * np.finfo(dtype).eps * max(float(np.abs(wanted).max()), 1)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)
        assert len(found) == 1


def test_an_operand_is_split_where_one_exchange_is_enough() -> None:
    assert best_split((8, 6), (0, 1), "forward", False, 4) == 0
    assert best_split((8, 4), (0, 1), "inverse", True, 6) == 1
    assert best_split((8, 6), (1,), "", False, 0) == 0
    assert best_split((8, 6), (0,), "", False, 0) == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), (3, 4, 6), (1, 4, 5), (4, 1, 3)])
def test_batches_have_every_line_once(shape: tuple[int, ...], padded: bool) -> None:
    rng = np.random.default_rng(1)
    for axis in range(len(shape)):
        outer = tuple(n + 2 * padded for n in shape)
        source, out = (np.zeros(outer, complex) for _ in range(2))
        inside = tuple(slice(int(padded), int(padded) + n) for n in shape)
        source, out = source[inside], out[inside]
        source[...] = rng.standard_normal(shape)
        one = batches_of(source, out, axis)
        for start in one.starts:
            lines = [
                as_strided(
                    array[start],
                    (one.batch, cells),
                    (distance * array.itemsize, stride * array.itemsize),
                )
                for array, cells, stride, distance in zip(
                    (source, out), one.cells, one.strides, one.distances, strict=True
                )
            ]
            lines[1][...] = np.fft.fft(lines[0], axis=1)
        np.testing.assert_allclose(out, np.fft.fft(source, axis=axis), atol=1e-12)
        if not padded:
            assert len(one.starts) <= min(shape)


@pytest.mark.parametrize("real", KINDS)
@pytest.mark.parametrize("shape", [(8, 6), (5, 7), (4, 5, 6)])
def test_passes_on_one_gpu(shape: tuple[int, ...], real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded arrays; the source is as it was, and another transform uses the same memory."""
    by_numpy(monkeypatch)
    world, kept = open_world("cpu"), dict[Any, Any]()
    for axes in chain(*(permutations(range(len(shape)), count) for count in range(1, len(shape) + 1))):
        whole, wanted, length = operand_and_result(shape, axes, real, "f8")
        transform = SplitTransform(shape, axes, real, real == "inverse", length, 0)
        source, target = (
            np.zeros(tuple(n + 2 for n in lengths), dtype)[tuple(slice(1, 1 + n) for n in lengths)]
            for lengths, dtype in ((shape, whole.dtype), (wanted.shape, wanted.dtype))
        )
        source[...] = whole
        one = DeviceTransform(world, transform, source, target, kept)
        for _ in range(2):
            one.begin()
            one.finish()
            np.testing.assert_allclose(target, wanted, rtol=0, atol=1e-12 * max(np.abs(wanted).max(), 1))
            np.testing.assert_array_equal(source, whole)
