"""Products and transforms of distributed arrays, compared with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from tests.unit.arrays.test_operations import RANKS, on_ranks, refused, values


def close(found: Any, expected: Any) -> None:
    assert (found.shape, found.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    cells = found.gather() if hasattr(found, "gather") else found
    np.testing.assert_allclose(cells, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", RANKS)
def test_products(ranks: int) -> None:
    a, b, v, w = values((7, 5), "f8"), values((5, 6), "f8", 1), values(5, "f8"), values(7, "f8")

    def body(world: Any) -> None:
        m, n, x, y = map(world.array, (a, b, v, w))
        close(m @ n, a @ b)
        close(np.matmul(m, x), a @ v)
        close(y @ m, w @ a)
        close(m.T[:, ::2] @ m[::2], a.T[:, ::2] @ a[::2])
        close(np.dot(m, n), np.dot(a, b))
        close(x @ x, v @ v)
        close(m @ v, a @ v)
        close(meshrun.matmul(m, n), a @ b)
        close(meshrun.transpose(m), a.T)
        m @= np.eye(5)
        close(m, a)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_transforms(ranks: int) -> None:
    a = values((8, 6), "f8")

    def body(world: Any) -> None:
        u = world.array(a)
        close(np.fft.fft(u), np.fft.fft(a))
        close(np.fft.fft(u, axis=0, norm="ortho"), np.fft.fft(a, axis=0, norm="ortho"))
        close(np.fft.ifft2(u), np.fft.ifft2(a))
        close(np.fft.rfftn(u), np.fft.rfftn(a))
        close(np.fft.irfftn(np.fft.rfftn(u)), a)
        close(np.fft.irfft(np.fft.rfft(u[:, :5]), 5), a[:, :5])
        close(np.fft.fftshift(np.fft.fftn(u)), np.fft.fftshift(np.fft.fftn(a)))
        close(np.fft.ifftshift(u, 1), np.fft.ifftshift(a, 1))
        close(meshrun.fft(u), np.fft.fftn(a))
        close(meshrun.irfft(meshrun.rfft(u, axes=[1]), axes=[1], length=6), a)

    on_ranks(ranks, body)


def test_what_products_and_transforms_refuse() -> None:
    refused(ValueError, r"size 4 is different from 3", lambda world: world.ones((2, 3)) @ world.ones((4, 2)))
    refused(UserError, "matrices and vectors", lambda world: world.ones((2, 3, 3)) @ world.ones((3, 2)))
    refused(UserError, "neither cuts nor pads", lambda world: np.fft.fft(world.ones(8), 16))
