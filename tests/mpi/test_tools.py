"""Sorting, statistics and particles on MPI's ranks, at any number of them."""

from __future__ import annotations

import numpy as np
import pytest
from split_arrays import same, split, values

import meshrun
from meshrun.runner.world.world import World

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]


@pytest.mark.parametrize("dtype", ["?", "u2", "f4", "c16", "M8[s]"])
def test_sorting_has_numpys_bits(world: World, dtype: str) -> None:
    """Of every kind of dtype that crosses ranks as bytes."""
    whole = values(dtype, 1003, 0, "few" if dtype == "?" else "special")
    array = split(world, whole, (world.size,))
    ordered, order = meshrun.sort(array), meshrun.argsort(array)
    same(ordered.interior, np.sort(whole, kind="stable")[ordered.region.slices])
    same(order.interior, np.argsort(whole, kind="stable")[order.region.slices])
    if dtype != "c16":  # whose NaNs are of several kinds
        _, inverse = meshrun.unique(array, return_inverse=True)
        same(inverse.interior, np.unique(whole, return_inverse=True)[1][inverse.region.slices])


def test_statistics_are_numpys(world: World) -> None:
    whole = values("f8", 1003, 1)
    array = split(world, whole, (world.size,))
    np.testing.assert_array_equal(meshrun.median(array), np.median(whole))
    np.testing.assert_array_equal(meshrun.histogram(array, 9)[0], np.histogram(whole, 9)[0])
    scan = meshrun.cumsum(array)
    np.testing.assert_allclose(scan.interior, np.cumsum(whole)[scan.region.slices], rtol=1e-9)
    ordered, sought = meshrun.sort(array), split(world, whole[:10], (world.size,))
    found = meshrun.searchsorted(ordered, sought)
    same(found.interior, np.searchsorted(np.sort(whole), whole[:10])[found.region.slices])


def test_particles_go_to_their_owners(world: World) -> None:
    """Of a grid with fewer cells than rows, and no walls; all charge is on the grid."""
    grid = split(world, np.zeros(7), (world.size,))
    x = split(world, np.random.default_rng(0).uniform(0, 6, 100), (world.size,))
    charge = split(world, np.arange(100.0), (world.size,))
    x, charge = meshrun.send_to_owners(meshrun.owners(grid, x), x, charge)
    low, high = grid.region.start[0], grid.region.stop[0]
    assert ((x.interior >= low) & (x.interior < high)).all()
    assert float(meshrun.deposit(grid, [x], charge).sum()) == pytest.approx(4950, rel=1e-14)
