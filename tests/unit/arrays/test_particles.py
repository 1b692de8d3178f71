"""Particles on ranks: rows move and are kept as NumPy would, and grids get the sums of a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_arrays import joined, on_ranks, same, split

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.particles import compress, deposit, interpolate, owners, send_to_owners
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.world.world import World

FEWER = settings(max_examples=max(settings.default.max_examples // 2, 1))
GRIDS = [(1,), (2,), (3,), (5,), (1, 2), (2, 2), (2, 1, 2)]


def field(world: World, whole: Any, grid: Any, boundary: Any, halo: Any = (0, 0)) -> DistributedArray:
    """An array on a grid of ranks with a boundary."""
    partition = Partition(whole.shape, (*grid, *(1,) * (whole.ndim - len(grid))))
    plan = HaloPlan(partition, world.rank, (halo,) * whole.ndim, boundary, padded=True)
    array = DistributedArray(plan, plan.empty(world.backend, whole.dtype), world)
    array.interior[...] = whole[array.region.slices]
    return array


@st.composite
def clouds(draw: st.DrawFn) -> Any:
    """A grid of ranks, the shape of cells, the boundary, and positions with weights."""
    grid = draw(st.sampled_from(GRIDS))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(draw(st.integers(len(grid), 3))))
    boundary = draw(st.sampled_from(["wrap", "nearest"]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    size, dtype = draw(st.integers(0, 40)), draw(st.sampled_from(["f4", "f8"]))
    positions = []
    for length in shape:
        if boundary == "wrap":
            position = random.uniform(-2 * length, 2 * length, size)
        else:
            position = random.uniform(0, length - 1, size)
        # Some are at cells, and at the last one.
        at_cells = random.random(size) < 0.3
        positions.append(np.where(at_cells, np.floor(position), position).astype(dtype))
        if size:
            positions[-1][0] = length - 1
    weights = (random.lognormal(0, 4, size) * random.choice([-1, 1], size)).astype(dtype)
    return grid, shape, boundary, positions, weights


def shares(shape: Any, boundary: str, positions: Any, order: str) -> Any:
    """The cells and shares of each particle, one after the other."""
    for number in range(len(positions[0])):
        cloud = [((), 1.0)]
        for position, length in zip(positions, shape, strict=True):
            low = int(np.floor(position[number]))
            part = float(position[number] - np.floor(position[number]))
            near = [(low, 1 - part), (low + 1, part)] if order == "linear" else [(low + (part >= 0.5), 1.0)]
            cloud = [
                (
                    (*cell, axis_cell % length if boundary == "wrap" else min(axis_cell, length - 1)),
                    share * more,
                )
                for cell, share in cloud
                for axis_cell, more in near
            ]
        yield number, cloud


@FEWER
@given(
    cloud=clouds(),
    order=st.sampled_from(["linear", "nearest"]),
    halo=st.sampled_from([(0, 0), (1, 1), (0, 1)]),
)
def test_a_cloud_on_a_grid(cloud: Any, order: Any, halo: Any) -> None:
    """Particles find their ranks; sums have the same bits on any ranks; and a grid's values come back."""
    grid, shape, boundary, positions, weights = cloud
    if min(shape) < 2 and halo != (0, 0):
        halo = (0, 0)
    values = np.random.default_rng(1).random(shape).astype(weights.dtype)
    numbers = np.arange(len(weights))

    def body(world: World) -> Any:
        whole = field(world, values, grid if world.size > 1 else (1,), boundary, halo)
        cells = [split(world, position, (world.size,)) for position in positions]
        rows = split(world, weights, (world.size,)), split(world, np.stack([numbers] * 2, 1), (world.size,))
        moved = send_to_owners(owners(whole, *cells), *rows, *cells)
        density = deposit(whole, moved[2:], moved[0], order)
        assert density.layout is whole.layout
        return density, interpolate(whole, moved[2:], order), moved[1]

    densities, forces, rows = zip(*on_ranks(int(np.prod(grid)), body), strict=True)
    ((alone, alone_forces, alone_rows),) = on_ranks(1, body)
    same(joined([*densities]), alone.interior)

    # Each particle has one row, at which its own value is.
    order_of_rows = joined([*rows])
    np.testing.assert_array_equal(np.sort(order_of_rows[:, 0]), numbers)
    forces_of = np.empty(len(numbers), weights.dtype)
    forces_of[order_of_rows[:, 1]] = joined([*forces])
    same(forces_of[alone_rows.interior[:, 0]], alone_forces.interior)

    # Beside a plain loop.
    density, sizes, force = np.zeros(shape), np.zeros(shape), np.zeros(len(numbers))
    for number, cloud_of in shares(shape, boundary, positions, order):
        for cell, share in cloud_of:
            density[cell] += share * float(weights[number])
            sizes[cell] += abs(share * float(weights[number]))
            force[number] += share * values[cell]
    eps = np.finfo(weights.dtype).eps
    assert (abs(alone.interior - density) <= 50 * eps * sizes + 1e-300).all()
    np.testing.assert_allclose(forces_of, force, rtol=20 * eps, atol=20 * eps)


@FEWER
@given(seed=st.integers(0, 99), ranks=st.sampled_from([1, 2, 3, 5]), size=st.integers(0, 30))
def test_rows_that_are_kept_are_numpys(seed: int, ranks: int, size: int) -> None:
    """Also of rows that are kept before, of which ranks have different numbers."""
    random = np.random.default_rng(seed)
    mask, x, v = random.random(size) < 0.4, random.random(size), random.random((size, 2, 3))

    def body(world: World) -> Any:
        kept = split(world, mask, (ranks,))
        arrays = compress(kept, split(world, x, (ranks,)), split(world, v, (ranks,)))
        again = compress(split_like(arrays[0], arrays[0].interior < 0.5), *arrays)
        return *arrays, *again

    def split_like(array: DistributedArray, cells: Any) -> DistributedArray:
        result = array.empty_like(bool)
        result.interior[...] = cells
        return result

    ours = [joined([*one]) for one in zip(*on_ranks(ranks, body), strict=True)]
    small = x[mask] < 0.5
    for mine, numpys in zip(ours, (x[mask], v[mask], x[mask][small], v[mask][small]), strict=True):
        same(mine, numpys)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_particle_at_a_cell_has_no_share_in_the_next_one() -> None:
    """Not even of an infinity, or of a NaN."""

    def body(world: World) -> Any:
        grid = field(world, np.array([1.0, np.inf, 2.0, np.nan, 3.0, 4.0]), (2,), "nearest")
        x = split(world, np.array([0.0, 2.0, 4.0, 5.0]), (2,))
        weights = split(world, np.array([np.inf, 1.0, -np.inf, 5.0]), (2,))
        x, weights = send_to_owners(owners(grid, x), x, weights)
        return interpolate(grid, [x]), deposit(grid, [x], weights)

    values, sums = zip(*on_ranks(2, body), strict=True)
    np.testing.assert_array_equal(joined([*values]), [1, 2, 3, 4])
    np.testing.assert_array_equal(joined([*sums]), [np.inf, 0, 1, 0, -np.inf, 5])


def test_rows_stay_where_the_first_array_has_them() -> None:
    """Of the other arrays, and of the mask, rows that are split otherwise move there."""
    x, mask = np.arange(7.0), np.arange(7) % 3 != 1

    def body(world: World) -> Any:
        uneven = split(world, x, (3,), starts=(0, 1, 6))
        pairs = split(world, np.stack([x, -x], 1), (1, 3) if world.size == 3 else (1,))
        kept, both = compress(split(world, mask, (3,)), uneven, pairs)
        there = send_to_owners(split(world, np.full(7, 2), (3,)), uneven, pairs)
        return kept.interior.tolist(), both, there

    found = on_ranks(3, body)
    assert [kept for kept, *_ in found] == [[0], [2, 3, 5], [6]]
    same(joined([both for _, both, _ in found]), np.stack([x, -x], 1)[mask])
    same(found[2][2][1].interior, np.stack([x, -x], 1))


def test_what_particles_cannot_do() -> None:
    def body(world: World) -> None:
        walls, ring = (field(world, np.zeros(6), (2,), boundary) for boundary in ("nearest", "wrap"))
        x = split(world, np.array([0.5, 1, 2, 5]), (2,))
        weights = split(world, np.ones(4), (2,))
        far, odd = (split(world, np.array([1.0, 2, 3, end]), (2,)) for end in (5.5, np.nan))
        whole = split(world, np.arange(4), (2,))
        for call, message in (
            (
                lambda: owners(walls, far),
                "beyond the grid along axis 0: got 5.5 on rank 1, expected from 0 to 5",
            ),
            (lambda: owners(ring, odd), "beyond the grid along axis 0: got nan on rank 1, expected a finite"),
            (
                lambda: deposit(ring, [x], weights),
                "on a rank that does not have its cell along axis 0: got 2.0",
            ),
            (lambda: interpolate(ring, [x, x]), "takes a position for each axis of the grid: got 2"),
            (lambda: interpolate(ring, [whole]), "takes positions that are floats: got int64"),
            (lambda: deposit(ring, [x], whole), "takes weights that are floats"),
            (lambda: deposit(ring, [x], weights, "cubic"), "unknown order: got cubic"),  # type: ignore[arg-type]
            (lambda: send_to_owners(whole, x), "no such rank: got 2 on rank 1, expected 0 to 1"),
            (lambda: send_to_owners(x, x), "takes a rank for each row: got float64"),
            (lambda: compress(x, x), "takes a mask of one axis: got float64"),
            (
                lambda: compress(split(world, np.ones(5, bool), (2,)), x),
                "different numbers of rows: got shapes",
            ),
            (lambda: deposit(ring, [x], split(world, np.ones(5), (2,))), "different numbers of rows"),
            (
                lambda: interpolate(ring, [split(world, np.ones((4, 2)), (2,))]),
                "takes a number for each particle",
            ),
        ):
            with pytest.raises(UserError, match=message):
                call()
        world.control.barrier()

    on_ranks(2, body)
