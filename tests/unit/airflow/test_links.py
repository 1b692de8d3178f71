"""Links: those of a loop over all cells; slots and forces by the formulas, link by link.."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import surfaces

from meshrun.jobs.airflow.lattice import D2Q9, D3Q19, D3Q27, Lattice
from meshrun.jobs.airflow.links import find_links, force, momentum, set_slots
from meshrun.jobs.airflow.shapes.bodies import Body, Round, of_cells
from meshrun.jobs.airflow.shapes.surface import Surface
from meshrun.runner.region import Region

Array = np.ndarray[Any, Any]

CIRCLE = Round("", (20, 26), 11.0, 11.0, (9.3, 11.8), 5.5)
BALL = Round("", (14, 15, 16), 9.0, 1.0, (6.2, 7.1, 7.9), 4.5)
PRISM = Round("", (4, 20, 26), 11.0, 44.0, (9.3, 11.8), 5.5)
MESH = Surface("", (14, 15, 16), 9.0, 1.0, surfaces.sphere(2)[..., ::-1] * 4.5 + [6.2, 7.1, 7.9])
CASES = [(CIRCLE, D2Q9), (BALL, D3Q19), (PRISM, D3Q27), (MESH, D3Q27)]


def picture(solid: Array) -> Body:
    return of_cells("", solid.shape, lambda region: solid[region.slices])


def whole(body: Body) -> Region:
    return Region((0,) * len(body.shape), body.shape)


def populations(
    shape: tuple[int, ...], lattice: Lattice, dtype: str = "float32", seed: int = 0
) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.uniform(-0.1, 0.1, shape).astype(dtype) for _ in range(lattice.size)]


def plain(
    body: Body, region: Region, fluid: Array, lattice: Lattice
) -> dict[tuple[Any, ...], tuple[float, bool]]:
    """By a loop over all cells: (b, number of the direction) to (q, whether the cell behind is fluid)."""
    links, behind = [], []
    around = Region(tuple(n - 1 for n in region.start), tuple(n + 1 for n in region.stop))
    solid = body.solid(around)
    for b in np.ndindex(region.shape):
        for number, velocity in enumerate(lattice.velocities):
            s, back = (tuple(1 + x + sign * e for x, e in zip(b, velocity, strict=True)) for sign in (1, -1))
            if any(velocity) and fluid[tuple(x + 1 for x in b)] and solid[s]:
                links.append((*b, number))
                behind.append(bool(fluid[back]))
    cells, numbers = np.array(links)[:, :-1], np.array(links)[:, -1]
    q = body.intersect(cells + region.start, np.array(lattice.velocities)[numbers])
    return dict(zip(links, zip(q.tolist(), behind, strict=True), strict=True))


@pytest.mark.parametrize(("body", "lattice"), CASES)
def test_links_are_those_of_all_cells(body: Body, lattice: Lattice) -> None:
    solid = np.pad(body.solid(whole(body)), 1, mode="wrap")
    fluid = ~solid & (np.random.default_rng(0).random(solid.shape) < 0.9)
    found = find_links(body, whole(body), lattice, fluid=fluid)
    expected = plain(body, whole(body), fluid, lattice)
    assert found.count == len(expected) > 50
    q_seen = set()
    for at in range(found.count):
        b = np.unravel_index(found.near[at], fluid.shape)
        number = int(found.direction[at])
        velocity = lattice.velocities[number]
        q, behind = expected.pop((*(int(x) - 1 for x in b), number))
        if q < 0.5 and not behind:
            q = 0.5
        q_seen.add(q > 0.5)
        assert (
            np.ravel_multi_index([int(x) + e for x, e in zip(b, velocity, strict=True)], fluid.shape)
            == found.solid[at]
        )
        assert found.opposite[at] == lattice.opposite[number]
        assert found.fraction[at] == np.float32(q)
    assert q_seen == {True, False}


def test_links_of_a_picture_are_half_way() -> None:
    solid = np.zeros((9, 9), bool)
    solid[3:6, 4:7] = True
    found = find_links(picture(solid), Region((0, 0), (9, 9)), D2Q9)
    assert found.count == 4 * 3 + 4 * 5  # a side, and two sides, of the square
    assert (found.fraction == 0.5).all()
    assert (found.near_weight == 1).all()
    assert (found.far_weight == 0).all()


def slots_by_formula(state: list[Array], body: Body, width: int, lattice: Lattice) -> list[Array]:
    """Bouzidi's formula, link by link, in float64."""
    new = [one.astype(np.float64) for one in state]
    fluid = np.pad(~body.solid(whole(body)), 1, mode="wrap")
    for (*b, number), (q, behind) in plain(body, whole(body), fluid, lattice).items():
        velocity = np.array(lattice.velocities[number])
        here = tuple(x + width for x in b)
        s, back = tuple(here + velocity), tuple(here - velocity)
        opposite = lattice.opposite[number]
        own = float(state[number][here])
        if np.isnan(q) or (q < 0.5 and not behind):
            value = own
        elif q < 0.5:
            value = 2 * q * own + (1 - 2 * q) * float(state[number][back])
        else:
            value = own / (2 * q) + (1 - 1 / (2 * q)) * float(state[opposite][here])
        new[opposite][s] = value
    return new


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("body", "lattice"), CASES[:2])
def test_slots_are_set_by_the_formula(body: Body, lattice: Lattice, width: int) -> None:
    state = populations(tuple(n + 2 * width for n in body.shape), lattice)
    expected = slots_by_formula(state, body, width, lattice)
    set_slots(state, find_links(body, whole(body), lattice, width))
    for one, other in zip(state, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_blocks_with_room_between_rows(dtype: str) -> None:
    shape, room = tuple(n + 2 for n in CIRCLE.shape), 37
    state = populations(shape, D2Q9, dtype)
    apart = [np.full((shape[0], room), 99, dtype)[:, 5 : 5 + shape[1]] for _ in state]
    for one, other in zip(apart, state, strict=True):
        one[...] = other
    packed, spaced = (find_links(CIRCLE, whole(CIRCLE), D2Q9, strides=strides) for strides in ((), (room, 1)))
    set_slots(state, packed)
    set_slots(apart, spaced)
    for one, other in zip(apart, state, strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.base[:, :5] == 99).all()
    np.testing.assert_array_equal(momentum(apart, spaced, D2Q9), momentum(state, packed, D2Q9))
    with pytest.raises(ValueError, match="strides"):
        set_slots(apart, packed)
    with pytest.raises(ValueError, match="strides"):
        momentum(state, spaced, D2Q9)


@pytest.mark.parametrize(("body", "lattice"), CASES)
def test_the_force_is_the_sum_over_links_and_the_same_for_every_split(body: Body, lattice: Lattice) -> None:
    shape = tuple(n + 2 for n in body.shape)
    state = populations(shape, lattice, seed=3)
    found = find_links(body, whole(body), lattice)
    total = momentum(state, found, lattice)
    flat = [one.reshape(-1).astype(np.float64) for one in state]
    shares = [
        np.array(lattice.velocities[i]) * (flat[i][b] + flat[lattice.opposite[i]][s])
        for i, b, s in zip(found.direction.tolist(), found.near.tolist(), found.solid.tolist(), strict=True)
    ]
    np.testing.assert_allclose(force(total), np.sum(shares, 0), atol=found.count * 2.0**-36)
    assert total.dtype == np.int64
    for cut in ((2, 1), (3, 2), (5, 1)):
        parts = np.zeros_like(total)
        edges = [
            np.linspace(0, n, 1 + (cut[at] if at < 2 else 1)).astype(int) for at, n in enumerate(body.shape)
        ]
        for at in np.ndindex(*(len(one) - 1 for one in edges)):
            region = Region(
                tuple(int(one[i]) for one, i in zip(edges, at, strict=True)),
                tuple(int(one[i + 1]) for one, i in zip(edges, at, strict=True)),
            )
            block = [
                one[tuple(slice(a, b + 2) for a, b in zip(region.start, region.stop, strict=True))].copy()
                for one in state
            ]
            parts += momentum(block, find_links(body, region, lattice), lattice)
        np.testing.assert_array_equal(parts, total)


def test_slots_of_a_split_are_those_of_the_whole() -> None:
    """A slot is set by the rank of the fluid cell, in its own halo if the solid cell is another rank's."""
    state = populations((22, 28), D2Q9)
    together = [one.copy() for one in state]
    set_slots(together, find_links(CIRCLE, whole(CIRCLE), D2Q9))
    for first, last in ((0, 7), (7, 11), (11, 20)):
        block = [one[first : last + 2].copy() for one in state]
        set_slots(block, find_links(CIRCLE, Region((first, 0), (last, 26)), D2Q9))
        for velocity, one, other in zip(D2Q9.velocities, block, together, strict=True):
            pulled = tuple(slice(1 - e, n - 1 - e) for e, n in zip(velocity, one.shape, strict=True))
            whole_pulled = (
                slice(first + 1 - velocity[0], last + 1 - velocity[0]),
                slice(1 - velocity[1], 27 - velocity[1]),
            )
            own = ~CIRCLE.solid(Region((first, 0), (last, 26)))
            np.testing.assert_array_equal(one[pulled][own], other[whole_pulled][own])


def test_a_fluid_at_rest_pushes_a_body_nowhere() -> None:
    """All populations are their weights times a density: the force is 0, to the last bit but for rounding of
    slots."""
    for body, lattice in CASES:
        shape = tuple(n + 2 for n in body.shape)
        state = [np.full(shape, np.float32(0.1 * weight)) for weight in lattice.weights]
        found = find_links(body, whole(body), lattice)
        np.testing.assert_array_equal(momentum(state, found, lattice), 0)
        set_slots(state, found)  # weights of float32: their sum is rounded
        np.testing.assert_allclose(force(momentum(state, found, lattice)), 0, atol=1e-9 * found.count)


def test_what_is_no_flow_is_seen() -> None:
    state = populations((22, 28), D2Q9)
    found = find_links(CIRCLE, whole(CIRCLE), D2Q9)
    state[1][np.unravel_index(found.near[found.direction == 1][:2], (22, 28))] = [np.nan, np.inf]
    state[2][np.unravel_index(found.near[found.direction == 2][:1], (22, 28))] = 4.5
    total = momentum(state, found, D2Q9)
    assert total[-1] == 3
    assert np.isnan(force(total)).all()
    assert np.isfinite(force(momentum(populations((22, 28), D2Q9), found, D2Q9))).all()


def test_the_scale_of_storage() -> None:
    state = populations((22, 28), D2Q9, "float16")
    stored = [(one.astype(np.float32) * 2**8).astype(np.float16) for one in state]
    found = find_links(CIRCLE, whole(CIRCLE), D2Q9)
    np.testing.assert_array_equal(momentum(stored, found, D2Q9, scale=2.0**-8), momentum(state, found, D2Q9))


def test_no_links() -> None:
    empty = find_links(CIRCLE, Region((0, 0), (2, 26)), D2Q9)
    state = populations((4, 28), D2Q9)
    kept = [one.copy() for one in state]
    set_slots(state, empty)
    np.testing.assert_array_equal(state, kept)
    np.testing.assert_array_equal(momentum(state, empty, D2Q9), [0, 0, 0])
    assert empty.count == 0
    nothing = Body("none", (20, 26), 1.0, 1.0)
    assert find_links(nothing, whole(nothing), D2Q9).count == 0


@pytest.mark.parametrize(("body", "lattice"), CASES)
def test_the_body_gets_the_momentum_that_the_fluid_loses(body: Body, lattice: Lattice) -> None:
    """While populations only move, in a domain whose opposite ends are joined."""
    fluid = ~body.solid(whole(body))
    state = [np.where(fluid, one, 0) for one in populations(body.shape, lattice, seed=5)]
    blocks = [np.pad(one, 1, mode="wrap") for one in state]
    found = find_links(body, whole(body), lattice)
    set_slots(blocks, found)
    after = [
        block[tuple(slice(1 - e, n - 1 - e) for e, n in zip(velocity, block.shape, strict=True))]
        for velocity, block in zip(lattice.velocities, blocks, strict=True)
    ]
    velocities = np.array(lattice.velocities, float)
    before_sum, after_sum = (
        velocities.T @ np.array([one[fluid].sum(dtype=np.float64) for one in every])
        for every in (state, after)
    )
    np.testing.assert_allclose(
        force(momentum(blocks, found, lattice)), before_sum - after_sum, atol=found.count * 2.0**-36
    )
