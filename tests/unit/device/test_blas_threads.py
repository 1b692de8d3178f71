"""Ranks share a host's cores also in NumPy's products."""

from __future__ import annotations

import numpy as np
import pytest

from runner.device.blas_threads import at_most_blas_threads, blas_threads


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
