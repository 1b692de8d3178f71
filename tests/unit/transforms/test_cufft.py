"""Transforms by cuFFT's plans, without a GPU: a stand-in executes each plan's layout by NumPy."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun.runner.transforms import fourier
from meshrun.runner.transforms.fourier import Local
from meshrun.runner.transforms.plan import Transform

C2C, Z2Z, FORWARD, INVERSE = 41, 105, -1, 1
Array = np.ndarray[Any, Any]


class PlanNd:
    """As cupy.cuda.cufft.PlanNd, of one axis: element x of batch b is at b * dist + x * stride."""

    made = 0

    def __init__(self, *words: Any) -> None:
        (self.shape, inembed, self.stride, self.dist, onembed, ostride, odist, self.kind, self.batch, order,
         self.last_axis, last_size) = words  # fmt: skip
        assert inembed == onembed == self.shape
        assert (self.stride, self.dist) == (ostride, odist)
        assert order == "C"
        assert last_size is None
        PlanNd.made += 1

    def fft(self, a: Array, out: Array, direction: int) -> None:
        assert a.dtype == out.dtype == {C2C: "complex64", Z2Z: "complex128"}[self.kind]
        assert a.size == out.size == math.prod(self.shape) * self.batch
        cells = [
            np.lib.stride_tricks.as_strided(
                one, (self.batch, *self.shape), (self.dist * one.itemsize, self.stride * one.itemsize)
            )
            for one in (a, out)
        ]
        work = np.fft.fft if direction == FORWARD else np.fft.ifft
        cells[1][...] = work(cells[0], axis=1, norm="backward" if direction == FORWARD else "forward")


class LongLines:
    """As meshrun.runner.device.fourier_lines: takes lines of 7 cells of complex64 if `takes`."""

    def __init__(self) -> None:
        self.takes, self.launched = False, 0

    def line_plan(
        self, length: int, lines: int, pitches: tuple[int, int], dtype: np.dtype[Any], inverse: bool
    ) -> Callable[[Array, Array], None] | None:
        if not self.takes or (length, dtype) != (7, np.complex64):
            return None

        def execute(source: Array, out: Array) -> None:
            assert pitches == (lines, lines)
            work = np.fft.ifft if inverse else np.fft.fft
            cells = [one.reshape(length, lines) for one in (source, out)]
            cells[1][...] = work(cells[0], axis=0, norm="forward" if inverse else "backward")
            self.launched += 1

        return execute


@pytest.fixture
def long_lines(monkeypatch: pytest.MonkeyPatch) -> LongLines:
    found = LongLines()
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.fourier_lines", found)  # type: ignore[arg-type]
    return found


@pytest.fixture
def cupy(long_lines: LongLines) -> Any:
    PlanNd.made = 0
    cache: dict[Any, Any] = {}
    copies = SimpleNamespace(**{name: getattr(np.fft, name) for name in ("fft", "ifft", "fftn", "ifftn")})
    copies.config = SimpleNamespace(get_plan_cache=lambda: cache)
    cufft = SimpleNamespace(PlanNd=PlanNd, CUFFT_C2C=C2C, CUFFT_Z2Z=Z2Z, CUFFT_FORWARD=FORWARD,
                            CUFFT_INVERSE=INVERSE)  # fmt: skip
    return SimpleNamespace(fft=copies, cuda=SimpleNamespace(cufft=cufft), empty=np.empty)


def made(shape: tuple[int, ...], dtype: str) -> Array:
    generator = np.random.default_rng(shape)
    return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "plans"),
    [
        ((7, 3, 5), 0, 1),
        ((1, 7, 5), 1, 1),
        ((3, 5, 7), 2, 1),
        ((5, 7, 1), 1, 1),
        ((13,), 0, 1),
        ((3, 7, 5), 1, 0),
    ],
)
def test_the_first_and_the_last_axis_have_a_plan_without_copies(
    cupy: Any, shape: tuple[int, ...], axis: int, plans: int, inverse: bool, norm: str, dtype: str
) -> None:
    block = made(shape, dtype)
    given = block.copy()
    for _ in range(2):  # the plan is kept
        got = Local(cupy, inverse, "", norm, 0)(block, Transform((axis,), shape))
    expected = (np.fft.ifft if inverse else np.fft.fft)(block.astype(complex), axis=axis, norm=norm)
    assert got.dtype == dtype
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 if dtype == "complex64" else 1e-13)
    np.testing.assert_array_equal(block, given)
    assert PlanNd.made == plans


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "plans"),
    [
        ((7, 3, 5), 0, "complex64", 0),
        ((1, 7, 5), 1, "complex64", 0),
        ((7, 3, 5), 0, "complex128", 1),
        ((3, 5, 7), 2, "complex64", 1),
        ((6, 3, 5), 0, "complex64", 1),
    ],
)
def test_long_lines_that_are_side_by_side_have_a_kernel(
    cupy: Any,
    long_lines: LongLines,
    shape: tuple[int, ...],
    axis: int,
    dtype: str,
    plans: int,
    inverse: bool,
    norm: str,
) -> None:
    long_lines.takes = True
    block = made(shape, dtype)
    got = Local(cupy, inverse, "", norm, 0)(block, Transform((axis,), shape))
    expected = (np.fft.ifft if inverse else np.fft.fft)(block.astype(complex), axis=axis, norm=norm)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert (PlanNd.made, long_lines.launched) == (plans, 1 - plans)


def test_a_block_with_gaps_is_transformed_by_the_library(cupy: Any) -> None:
    block = made((6, 4, 5), "complex64")[:, 1:3]
    got = Local(cupy, False, "", "backward", 0)(block, Transform((0,), block.shape))
    np.testing.assert_allclose(got, np.fft.fft(block, axis=0), rtol=0, atol=1e-5)
    assert PlanNd.made == 0


def test_a_layout_that_a_plan_cannot_have_is_left_to_the_library(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fourier, "PLAN_MOST", 14)
    local = Local(cupy, False, "", "backward", 0)
    for shape, plans in (((7, 3, 5), 0), ((7, 2, 7), 1)):
        block = made(shape, "complex64")
        np.testing.assert_allclose(local(block, Transform((0,), shape)), np.fft.fft(block, axis=0), atol=1e-5)
        assert PlanNd.made == plans
