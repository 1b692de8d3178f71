"""Lattices: their moments, and what makes them isotropic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshrun.jobs.airflow.lattice import LATTICES, Lattice

EVERY = pytest.mark.parametrize("lattice", LATTICES.values(), ids=LATTICES)


@EVERY
def test_the_name_tells_axes_and_populations(lattice: Lattice) -> None:
    assert lattice.name == f"D{lattice.axes}Q{lattice.size}"
    assert len(set(lattice.velocities)) == len(lattice.weights) == lattice.size
    assert lattice.velocities[0] == (0,) * lattice.axes


@EVERY
def test_moments_up_to_the_fifth_are_isotropic(lattice: Lattice) -> None:
    """Of the weights: those of a Gaussian of variance 1/3, as far as an equilibrium of second order needs."""
    velocities, weights = np.array(lattice.velocities), np.array(lattice.weights)
    axes = range(lattice.axes)
    assert weights.sum() == pytest.approx(1, abs=1e-15)
    for order in (1, 3, 5):
        for chosen in itertools.product(axes, repeat=order):
            assert abs((weights * velocities[:, chosen].prod(axis=1)).sum()) < 1e-15
    for a, b in itertools.product(axes, repeat=2):
        assert (weights * velocities[:, [a, b]].prod(axis=1)).sum() == pytest.approx((a == b) / 3, abs=1e-15)
    for a, b, c, d in itertools.product(axes, repeat=4):
        expected = ((a == b) * (c == d) + (a == c) * (b == d) + (a == d) * (b == c)) / 9
        assert (weights * velocities[:, [a, b, c, d]].prod(axis=1)).sum() == pytest.approx(
            expected, abs=1e-15
        )


@EVERY
def test_opposites_and_mirror_images(lattice: Lattice) -> None:
    for one, velocity in enumerate(lattice.velocities):
        other = lattice.velocities[lattice.opposite[one]]
        assert tuple(-e for e in velocity) == other
        for axis in range(lattice.axes):
            image = list(velocity)
            image[axis] = -image[axis]
            assert lattice.velocities[lattice.mirror[axis][one]] == tuple(image)
    assert sorted(itertools.chain((0,), *lattice.pairs)) == list(range(lattice.size))
    assert all(lattice.opposite[one] == other for one, other in lattice.pairs)
