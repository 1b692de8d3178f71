"""Sums that are rounded once, compared with sums of fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from meshrun.runner.run.verify.rounded_once import RoundedOnce, rounded_sum


def nearest(exact: Fraction, dtype: Any) -> Any:
    """Return the nearest number of a dtype, the even one of two."""
    near = np.dtype(dtype).type(float(exact))
    around = [np.nextafter(near, near.dtype.type(-np.inf)), near, np.nextafter(near, near.dtype.type(np.inf))]
    far = [abs(Fraction(float(one)) - exact) for one in around]
    least = [one for one, away in zip(around, far, strict=True) if away == min(far)]
    kind = f"i{near.dtype.itemsize}"
    return next((one for one in least if not one.view(kind) & 1), least[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("seed", range(20))
def test_random_sums(dtype: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    cells = (chance.normal(size=(5, 9)) * 2.0 ** chance.integers(-6, 6, (5, 9))).astype(dtype)
    exact = sum(Fraction(float(one)) for one in cells.ravel())
    assert rounded_sum(cells).tobytes() == nearest(exact, dtype).tobytes()


@pytest.mark.parametrize("tiny", [-1, 1])
def test_a_sum_beside_the_middle_of_two_numbers(tiny: int) -> None:
    """Rounded to float64 first, it would be the middle."""
    cells = np.array([1, 2.0**-24, tiny * 2.0**-80], np.float32)
    assert rounded_sum(cells) == (np.float32(1) if tiny < 0 else np.nextafter(np.float32(1), np.float32(2)))


def test_every_way_to_sum() -> None:
    cells = np.array([[1e16, 1.0], [-1e16, 1.0]])
    a = cells.copy().view(RoundedOnce)
    assert [np.sum(a), a.sum(), a.sum(axis=(0, 1)), 4 * a.mean(), np.sum(a[:, 1:] * 1)] == [2] * 5
    b = np.ones(4).view(RoundedOnce)
    assert [np.vdot(a, a * 0 + 1), np.dot(a.ravel(), b), a.ravel() @ b, a.ravel().dot(b)] == [2] * 4
    assert np.linalg.norm(a) == np.sqrt(2e32)
    assert np.sum(a, axis=0).tolist() == [0, 2]
    assert np.vdot(1j * a, a) == -1j * 2e32
    assert np.isnan(np.sum(a * np.inf))
    assert np.sum(np.arange(5).view(RoundedOnce)).dtype == int
    assert type(np.zeros_like(a)[1:] + 1) is RoundedOnce
