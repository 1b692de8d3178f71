"""Moments of a state, and the state of given moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow import moments
from meshrun.jobs.airflow.lattice import LATTICES, Lattice


@pytest.mark.parametrize("lattice", LATTICES.values(), ids=LATTICES)
@pytest.mark.parametrize(("storage", "error"), [(np.float32, 1e-7), (np.float16, 3e-5)])
def test_an_equilibrium_has_the_moments_it_was_made_of(lattice: Lattice, storage: Any, error: float) -> None:
    shape = (5, 7, 6)[: lattice.axes]
    random = np.random.default_rng(0)
    excess, velocity = random.uniform(-0.02, 0.02, shape), random.uniform(-0.1, 0.1, (lattice.axes, *shape))
    state = moments.equilibrium(lattice, excess, list(velocity), storage)
    assert all(one.dtype == storage and one.flags.c_contiguous for one in state)
    assert moments.excess(state).dtype == np.float32
    np.testing.assert_allclose(moments.excess(state), excess, rtol=0, atol=error)
    np.testing.assert_allclose(moments.density(state), 1 + excess, rtol=0, atol=error + 1e-7)
    np.testing.assert_allclose(moments.pressure(state), excess / 3, rtol=0, atol=error)
    np.testing.assert_allclose(moments.momentum(lattice, state), velocity, rtol=0, atol=error)
    np.testing.assert_allclose(
        moments.speed(lattice, state), np.sqrt((velocity**2).sum(axis=0)), rtol=0, atol=2 * error
    )
