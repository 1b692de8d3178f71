"""Sorting, statistics and particles on GPUs.

`mpirun -n N python -m pytest --with-mpi tests/gpu/test_tools_gpu.py`
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_arrays import same, values

import meshrun
from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.tools.cells import made_of, on_host
from meshrun.runner.plan.grid import Partition
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
REALS = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8"]


def split(world: World, whole: Any) -> DistributedArray:
    """The array, split along its first axis."""
    partition = Partition(whole.shape, (world.size, *(1,) * (whole.ndim - 1)))
    return made_of(world, partition, world.xp.asarray(whole[partition[world.rank].slices]))


def part_of(array: DistributedArray, whole: Any) -> Any:
    """This rank's part of NumPy's array."""
    return whole[array.region.slices]


@pytest.mark.parametrize("kind", ["random", "few", "equal", "special"])
@pytest.mark.parametrize("size", [0, 1, 5, 100_003])
@pytest.mark.parametrize("dtype", REALS)
def test_sorted_cells_have_the_bits_of_a_stable_sort(world: World, dtype: str, size: int, kind: str) -> None:
    whole = values(dtype, size, 0, kind)
    array = split(world, whole)
    ordered, order = meshrun.sort(array), meshrun.argsort(array)
    same(on_host(ordered.interior), part_of(ordered, np.sort(whole, kind="stable")))
    same(on_host(order.interior), part_of(order, np.argsort(whole, kind="stable")))
    results = meshrun.unique(array, True, True, True)
    for number, numpys in enumerate(np.unique(whole, True, True, True)):
        ours = on_host(results[number].interior)
        np.testing.assert_array_equal(ours, part_of(results[number], numpys))


@pytest.mark.parametrize("dtype", ["i1", "i4", "f2", "f4", "f8"])
def test_statistics_are_numpys(world: World, dtype: str) -> None:
    whole = values(dtype, 400_003, 1)
    array = split(world, whole)
    shares = [0, 12.5, 50, 99.9]
    np.testing.assert_array_equal(on_host(meshrun.percentile(array, shares)), np.percentile(whole, shares))
    np.testing.assert_array_equal(on_host(meshrun.median(array)), np.median(whole))
    counts, edges = meshrun.histogram(array, 17, (-100, 100))
    for ours, numpys in zip((counts, edges), np.histogram(whole, 17, (-100, 100)), strict=True):
        same(on_host(ours), numpys)
    sought = values(dtype, 50, 2)
    places = meshrun.searchsorted(meshrun.sort(array), split(world, sought))
    same(on_host(places.interior), part_of(places, np.searchsorted(np.sort(whole), sought)))


def test_sums_do_not_depend_on_the_order(world: World) -> None:
    """Atomic additions come in any order."""
    random = np.random.default_rng(0)
    labels, weights = random.integers(0, 50, 100_000), random.lognormal(0, 5, 100_000)
    once = on_host(meshrun.bincount(split(world, labels), split(world, weights)))
    again = on_host(meshrun.bincount(split(world, labels[::-1].copy()), split(world, weights[::-1].copy())))
    same(once, again)
    np.testing.assert_allclose(once, np.bincount(labels, weights), rtol=1e-12)
    scan = meshrun.cumsum(split(world, weights.astype("f4")))
    np.testing.assert_allclose(on_host(scan.interior), part_of(scan, np.cumsum(weights)), rtol=1e-5)


def test_small_matrices_are_solved(world: World) -> None:
    a = np.random.default_rng(2).standard_normal((40, 9, 3, 3)) + 4 * np.eye(3)
    array, pairs = split(world, a), split(world, a[..., :2])
    for ours, numpys in (
        (meshrun.solve(array, pairs), np.linalg.solve(a, a[..., :2])),
        (meshrun.inv(array), np.linalg.inv(a)),
        (meshrun.det(array), np.linalg.det(a)),
        (meshrun.eigh(split(world, a + a.swapaxes(-1, -2)))[0], np.linalg.eigh(a + a.swapaxes(-1, -2))[0]),
    ):
        np.testing.assert_allclose(on_host(ours.interior), part_of(ours, numpys), rtol=1e-10, atol=1e-12)


def test_particles_give_their_charge_and_get_the_field(world: World) -> None:
    random = np.random.default_rng(3)
    positions, charge, wave = (
        random.random(10_000) * 64,
        random.lognormal(0, 3, 10_000),
        np.sin(np.arange(64.0)),
    )
    plan = HaloPlan(Partition((64,), (world.size,)), world.rank, ((1, 1),), "wrap", padded=True)
    grid = DistributedArray(plan, plan.empty(world.backend, wave.dtype), world)
    grid.interior[...] = world.xp.asarray(part_of(grid, wave))
    x, q = split(world, positions), split(world, charge)
    x, q = meshrun.send_to_owners(meshrun.owners(grid, x), x, q)
    rho, field = meshrun.deposit(grid, [x], q), meshrun.interpolate(grid, [x])
    low, share = np.floor(positions).astype(int), positions % 1
    expected = np.bincount(low, charge * (1 - share), 64) + np.bincount((low + 1) % 64, charge * share, 64)
    np.testing.assert_allclose(on_host(rho.interior), part_of(rho, expected), rtol=1e-12)
    mine = on_host(x.interior)
    low, share = np.floor(mine).astype(int), mine % 1
    expected = wave[low] * (1 - share) + wave[(low + 1) % 64] * share
    np.testing.assert_allclose(on_host(field.interior), expected, rtol=1e-12, atol=1e-12)
    (kept,) = meshrun.compress(made_of(world, q.partition, q.interior > 1), x)
    assert kept.shape == ((charge > 1).sum(),)
