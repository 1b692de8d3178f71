"""The BLAS of NumPy: ranks share a host's cores also in its products, and products are added in place."""

from __future__ import annotations

import ctypes
import tracemalloc
from typing import Any

import numpy as np
import pytest

from meshrun.runner.device import host_blas
from meshrun.runner.device.host_blas import add_product, adds_products, at_most_blas_threads, blas_threads

needs_blas = pytest.mark.skipif(not adds_products(np.dtype("d")), reason="NumPy has an unknown BLAS")


def test_threads_are_limited_and_restored() -> None:
    before = blas_threads()
    if before is None:
        pytest.skip("NumPy has a BLAS whose threads cannot be set")
    with at_most_blas_threads(1):
        assert blas_threads() == 1
        np.ones((300, 300)) @ np.ones((300, 300))
        with at_most_blas_threads(2):
            assert blas_threads() == 1
    assert blas_threads() == before


def values(shape: tuple[int, int], dtype: str, seed: int) -> Any:
    """Small integers, of which a product is exact in any order; complex ones with both parts."""
    found = np.random.default_rng(seed).integers(-9, 9, (2, *shape))
    return (found[0] + 1j * found[1] if np.dtype(dtype).kind == "c" else found[0]).astype(dtype)


@needs_blas
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (1, 40, 9), (33, 1, 2), (0, 2, 3), (2, 0, 3)])
def test_a_product_is_added(shape: tuple[int, int, int], dtype: str) -> None:
    """Also of parts of the rows of larger arrays; what lies beside `out` stays."""
    m, k, n = shape
    a, b = values((m, k + 4), dtype, 1)[:, 2 : 2 + k], values((k, n + 3), dtype, 2)[:, :n]
    whole = values((m, n + 2), dtype, 3)
    expected = whole.copy()
    expected[:, 1 : 1 + n] += a @ b
    add_product(a, b, whole[:, 1 : 1 + n])
    np.testing.assert_array_equal(whole, expected)


@needs_blas
def test_no_array_is_made() -> None:
    a, b, out = np.ones((200, 300)), np.ones((300, 400)), np.zeros((200, 400))
    tracemalloc.start()
    try:
        add_product(a, b, out)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (out == 300).all()
    assert most < 20_000


@needs_blas
@pytest.mark.parametrize(
    ("a", "b", "out", "sentence"),
    [
        (np.ones((2, 3)), np.ones((4, 5)), np.ones((2, 5)), "not added to"),
        (np.ones((2, 3)), np.ones((3, 5)), np.ones((2, 4)), "not added to"),
        (np.ones((2, 3), "f4"), np.ones((3, 5)), np.ones((2, 5)), "no BLAS adds a product of float32"),
        (np.ones((2, 3), "i4"), np.ones((3, 5), "i4"), np.ones((2, 5), "i4"), "no BLAS adds"),
        (np.ones((2, 6))[:, ::2], np.ones((3, 5)), np.ones((2, 5)), "rows with gaps"),
        (np.ones((3, 2)).T, np.ones((3, 5)), np.ones((2, 5)), "rows with gaps"),
        (np.ones((2, 3))[::-1], np.ones((3, 5)), np.ones((2, 5)), "rows that overlap"),
    ],
)
def test_what_blas_would_read_or_write_elsewhere_is_refused(a: Any, b: Any, out: Any, sentence: str) -> None:
    before = out.copy()
    with pytest.raises(ValueError, match=sentence):
        add_product(a, b, out)
    np.testing.assert_array_equal(out, before)


@needs_blas
def test_a_blas_that_multiplies_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first product of each dtype is checked."""
    monkeypatch.setitem(host_blas.SCALARS, "d", lambda value: ctypes.c_double(2 * value))
    host_blas._gemm.cache_clear()
    try:
        assert not adds_products(np.dtype("d"))
    finally:
        host_blas._gemm.cache_clear()


def test_integers_have_no_blas() -> None:
    assert not any(adds_products(np.dtype(one)) for one in ("i4", "u1", "f2", "g"))
